"""Users' own kernels of categories: they are kept, they receive codes, and inducing inputs are rows."""

import warnings

import numpy as np
import pandas as pd
import pytest
from helpers import as_arrays
from users_kernel import UsersKernel

import agp
from agp import GPR, RBF, SVGP, Linear, Matern52, Overlap, RandomEffects, tree
from agp.estimators import GPClassifier, GPRegressor
from agp.kernels import ActiveDims, Constant, Kernel, Projected
from agp.tree import POSITIVE


@tree.model
class Exchangeable(Kernel):
    """k(x, z) = 1 if the levels are equal, else odds / (1 + odds), as a user writes it, without further methods."""

    odds: object = tree.param(POSITIVE, default=1.0)

    def __call__(self, X, Z=None, /):
        xp = agp.backend_of(X).xp
        equal = xp.astype((X if Z is None else Z).mT == X, X.dtype)
        share = self.odds / (1.0 + self.odds)

        def pullback(K_bar):
            bar = tree.cotangent(self, odds=xp.sum(K_bar * (1.0 - equal)) / (1.0 + self.odds) ** 2)
            return (bar, None) if Z is None else (bar, None, None)

        return share + (1.0 - share) * equal, pullback

    def diag(self, X, /):
        return 0.0 * X[:, 0] + 1.0, lambda _: (tree.cotangent(self), None)

    def from_data(self, X, variance, /):
        return tree.with_defaults(self, odds=1.0)

    def check(self, width, /):
        if width != 1:
            raise ValueError("Exchangeable acts on one column; select it with on().")
        agp.kernels.check_number(self, "odds")


@tree.model
class Declared(Exchangeable):
    """The same, but it says that it takes codes."""

    takes_codes = True


@tree.model
class Cauchy(agp.kernels.Stationary):
    """A user's kernel of numbers."""

    def profile(self, r2, /):
        g = 1.0 / (1.0 + r2)
        return g, lambda: -g * g


KINDS = {"undeclared": Exchangeable, "declared": Declared}
CODE = np.random.default_rng(0).integers(0, 4, 60)
SIZE = np.random.default_rng(1).uniform(0.0, 3.0, 60)
Y = np.sin(2.0 * SIZE) * (CODE % 2 * 2.0 - 1.0) + 0.1 * np.random.default_rng(2).standard_normal(60)
X = np.column_stack([SIZE, CODE.astype(float)])
TABLE = pd.DataFrame({"size": SIZE, "kind": np.asarray(list("abcd"))[CODE]})


def classes_in(model):
    return {type(node).__name__ for node in tree.nodes(model, Kernel).values()}


def is_kept(model, kind):
    return kind.__name__ in classes_in(model) and "Overlap" not in classes_in(model)


# -- conversion -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS.values())
def test_kernels_on_codes_alone_are_kept(kind):
    for kernel, width, codes in (
        (kind().on(1), 2, (1,)),
        (RBF().on(0) * kind().on(1), 2, (1,)),
        (RBF().on(0) + 2.0 * kind().on(1), 2, (1,)),
        ((2.0 * kind()).on(2) + kind().on(1), 3, (1, 2)),
        (kind(), 1, (0,)),
        (2.0 * kind(), 1, (0,)),
        ((RBF() * kind().on(1)).on((0, 2)), 3, (2,)),
    ):
        mixed = kernel.with_categories(width, codes)
        assert is_kept(mixed, kind)
        assert {*mixed.category_levels(width)} == {*codes}
        assert repr(mixed.with_categories(width, codes)) == repr(mixed)
        start = mixed.from_data(np.column_stack([X, CODE])[:, :width].round(), 1.0)
        assert {*start.category_levels(width)} == {*codes}


@pytest.mark.parametrize("kind", KINDS.values())
def test_parameters_of_kept_kernels_keep_their_names(kind):
    kernel = RBF().on(0) * kind().on(1)
    assert tree.leaves(kernel.with_categories(2, (1,))).keys() == tree.leaves(kernel).keys()


def test_kernels_on_numbers_take_no_codes_unless_they_say_so():
    assert Exchangeable().category_levels(2) == {}
    assert Declared().category_levels(2) == {0: 0, 1: 0}
    assert Declared().on(1).category_levels(2) == {1: 0}
    assert repr(Exchangeable().with_categories(1, ())) == repr(Exchangeable())


@pytest.mark.parametrize("make", [Cauchy, Matern52])
def test_kernels_of_mixed_columns_are_multiplied_by_overlap(make):
    for kernel, columns in ((make(), (0, 1)), (make().on((0, 1)), (0, 1))):
        mixed = kernel.with_categories(2, (1,))
        assert "Overlap" in classes_in(mixed)
        K = as_arrays(mixed.from_data(X, 1.0))(X[:5])[0]
        right = (make().on(0) * Overlap().on(1)).from_data(X, 1.0)
        assert columns
        np.testing.assert_allclose(K, as_arrays(right)(X[:5])[0], rtol=1e-12)


FACTORS = {
    "overlap": (RBF() * Overlap().on(1), RBF().on(0) * Overlap().on(1)),
    "effects": (RandomEffects().on(1) * RBF(), RandomEffects().on(1) * RBF().on(0)),
    "declared": (RBF() * Declared().on(1), RBF().on(0) * Declared().on(1)),
    "undeclared": (RBF() * Exchangeable().on(1), RBF().on(0) * Exchangeable().on(1)),
    "linear": (Linear() * Declared().on(1), Linear().on(0) * Declared().on(1)),
    "sum": (
        (RBF() + 2.0 * Linear() + agp.White(0.1)) * Declared().on(1),
        (RBF().on(0) + 2.0 * Linear().on(0) + agp.White(0.1)) * Declared().on(1),
    ),
    "multiple": (2.0 * RBF() * (0.5 * Declared()).on(1), 2.0 * RBF().on(0) * (0.5 * Declared()).on(1)),
    "entries": (RBF(1.0, [0.7, 0.9]) * Declared().on(1), RBF(1.0, [0.7]).on(0) * Declared().on(1)),
    "projected": (
        Projected(RBF(), [[1.0], [2.0]]) * Declared().on(1),
        Projected(RBF(), [[1.0]]).on(0) * Declared().on(1),
    ),
    "a sum that takes codes": (
        RBF() * (Constant(0.3) + Declared().on(1)),
        RBF().on(0) * (Constant(0.3) + Declared().on(1)),
    ),
    "selected": (
        RBF().on((0, 1)) * Declared().on(1),
        RBF().on(0) * Overlap().on(1) * Declared().on(1),
    ),
}


@pytest.mark.parametrize("name", FACTORS)
def test_factors_leave_the_codes_to_those_that_take_them(name):
    given, right = FACTORS[name]
    K = as_arrays(given.with_categories(2, (1,)).from_data(X, 1.0))(X[:7])[0]
    np.testing.assert_allclose(K, as_arrays(right.from_data(X, 1.0))(X[:7])[0], rtol=1e-12)


def test_the_other_factors_still_compare_further_categories():
    rows = np.column_stack([X, CODE % 2])
    mixed = (RBF() * Declared().on(1)).with_categories(3, (1, 2)).from_data(rows, 1.0)
    right = (RBF().on(0) * Overlap().on(2) * Declared().on(1)).from_data(rows, 1.0)
    np.testing.assert_allclose(as_arrays(mixed)(rows[:9])[0], as_arrays(right)(rows[:9])[0], rtol=1e-12)


def test_terms_of_sums_differ_between_levels():
    mixed = (RBF() + Declared().on(1)).with_categories(2, (1,))
    right = RBF().on(0) * Overlap().on(1) + Declared().on(1)
    assert tree.outline(mixed.from_data(X, 1.0)) == tree.outline(right.from_data(X, 1.0))


def test_factors_of_codes_alone_are_constant():
    codes = X[:, 1:]
    mixed = (RBF() * Declared()).with_categories(1, (0,)).from_data(codes, 3.0)
    right = (Constant() * Declared()).from_data(codes, 3.0)
    np.testing.assert_allclose(as_arrays(mixed)(codes[:9])[0], as_arrays(right)(codes[:9])[0], rtol=1e-12)


# -- fits -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS.values())
@pytest.mark.parametrize("product", ["on", "whole"])
def test_estimators_keep_them(kind, product):
    kernel = (RBF().on("size") if product == "on" else RBF()) * kind().on("kind")
    model = GPRegressor(kernel=kernel, hyperparameters="mode").fit(TABLE, Y)
    assert is_kept(model.model_, kind)
    assert {*model.model_.kernel.category_levels(2)} == {1}
    S = model.model_.kernel(model.model_.X)[0] + model.model_.likelihood.noise_variance * np.eye(60)
    new = TABLE.iloc[:5].assign(kind=["a", "b", "new", "d", "c"])
    codes = np.column_stack([SIZE[:5], [0.0, 1.0, -1.0, 3.0, 2.0]])
    cross = model.model_.kernel(codes, model.model_.X)[0]
    level = model.model_.mean_function.value[0]
    expected = level + cross @ np.linalg.solve(S, model.model_.y[:, 0] - level)
    forward = model.transform_.inverse(expected[:, None])[:, 0] if model.transform_ is not None else expected
    if model.transform_ is None:
        np.testing.assert_allclose(model.predict(new), forward, rtol=1e-6)
    classes = GPClassifier(kernel=kernel).fit(TABLE, Y > 0.0)
    assert is_kept(classes.model_, kind)
    counts = GPRegressor(kernel=kernel, likelihood="poisson").fit(TABLE, np.round(np.exp(Y)))
    assert is_kept(counts.model_, kind)


@pytest.mark.parametrize("kind", KINDS.values())
@pytest.mark.parametrize("method", ["sgpr", "wsvgp", "rsvgp", "tsvgp", "nngp", "vif"])
def test_other_methods_keep_them(kind, method):
    kernel = RBF().on("size") * kind().on("kind")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = GPRegressor(kernel=kernel, method=method, max_steps=3).fit(TABLE, Y)
    assert is_kept(model.model_, kind)
    for Z in agp.inspection.inducing_inputs(model.model_).values():
        assert {*Z[:, 1]} <= {0.0, 1.0, 2.0, 3.0}


@pytest.mark.parametrize("kind", KINDS.values())
def test_fits_of_arrays_keep_them(kind):
    kernel = RBF().on(0) * kind().on(1)
    options = {"categories": [1], "kernel": kernel}
    assert is_kept(agp.fit_regression(X, Y, hyperparameters="mode", **options).model, kind)
    assert is_kept(agp.fit_classification(X, (Y > 0.0) * 1.0, **options).model, kind)


def test_users_kernels_of_numbers_on_codes_are_kept_too():
    mixed = (RBF().on(0) * Cauchy().on(1)).with_categories(2, (1,))
    assert is_kept(mixed, Cauchy)
    assert mixed.category_levels(2) == {1: 0}


# -- inducing inputs and checks ---------------------------------------------------------------------------------------


def test_inducing_inputs_are_rows():
    for kernel in (RBF().on(0) * Declared().on(1), (RBF().on(0) * Exchangeable().on(1)).with_categories(2, (1,))):
        Z = SVGP.from_data(X, Y, kernel=kernel, num_inducing=20).process.inducing.Z
        assert {*Z[:, 1]} == {0.0, 1.0, 2.0, 3.0}


@tree.model
class Blind(Declared):
    """A wrong pullback, which counts pairs of equal levels in k(X, Z)."""

    def __call__(self, X, Z=None, /):
        K, pull = super().__call__(X, Z)
        xp = agp.backend_of(X).xp

        def pullback(K_bar):
            bar = tree.cotangent(self, odds=xp.sum(K_bar) / (1.0 + self.odds) ** 2)
            return (bar, None) if Z is None else (bar, None, None)

        return K, pullback


@tree.model
class WrongAtUnknown(Declared):
    """A pullback that is wrong for the unknown level."""

    def __call__(self, X, Z=None, /):
        K, pull = super().__call__(X, Z)
        xp = agp.backend_of(X).xp
        known = xp.astype(X >= 0.0, X.dtype)
        return K, lambda K_bar: pull(K_bar * known)


@pytest.mark.parametrize("kind", [Blind, WrongAtUnknown])
def test_wrong_pullbacks_of_codes_are_found(kind):
    agp.testing.check_pullback(Declared(), width=1, backends=[])
    for part in (kind(), RBF().on(0) * kind().on(1), kind().on(("kind",))):
        with pytest.raises(AssertionError, match="odds"):
            agp.testing.check_pullback(part, backends=[])


def test_active_dims_say_whether_they_hold_codes(tmp_path):
    kernel = (RBF().on(0) + Cauchy().on(1)).with_categories(2, (1,))
    assert [part.codes for part in tree.nodes(kernel, ActiveDims).values()] == [False, True]
    model = GPR.from_data(X, Y, kernel=kernel)
    assert model.kernel.category_levels(2) == {1: 0}
    agp.save(model, tmp_path / "m.safetensors")
    assert agp.load(tmp_path / "m.safetensors", classes=[Cauchy]).kernel.category_levels(2) == {1: 0}


# -- groups of inputs -------------------------------------------------------------------------------------------------


@tree.model
class Counted(UsersKernel):
    """A user's kernel that counts its calls."""

    inner: Kernel

    def __call__(self, X, Z=None, /):
        CALLS.append(X.shape)
        return super().__call__(X, Z)


CALLS = []


@pytest.mark.parametrize("shape", [(2000, 1, 1), (150, 3, 2), (3, 70, 70), (1, 4, 5)])
@pytest.mark.parametrize("alone", [True, False])
def test_groups_of_few_rows_share_calls(shape, alone, backend):
    rng = np.random.default_rng(0)
    G, N, M = shape
    A = rng.normal(size=(G, N, 2))
    others = () if alone else (rng.normal(size=(G, M, 2)),)
    kernel = as_arrays(Counted(RBF(1.2, 0.7) + Linear((0.4, 0.3)) + agp.White(0.2)))
    inside = as_arrays(kernel.inner)
    CALLS.clear()
    K, pull = backend.move(kernel).grouped_covariance(*map(backend.array, (A, *others)))
    assert len(CALLS) <= max(3, G // 15)
    right, pull_right = inside.grouped_covariance(A, *others)
    np.testing.assert_allclose(backend.numpy(K), right, rtol=1e-12, atol=1e-12)
    bar = rng.normal(size=right.shape)
    bars, expected = pull(backend.array(bar)), pull_right(bar)
    for name, x in tree.leaves(expected[0]).items():
        np.testing.assert_allclose(backend.numpy(tree.leaves(bars[0].inner)[name]), x, rtol=1e-9, atol=1e-9)
    for x, right in zip(bars[1:], expected[1:], strict=True):
        np.testing.assert_allclose(backend.numpy(x), right, rtol=1e-9, atol=1e-9)


def test_groups_of_kernels_without_slopes_of_inputs():
    codes = CODE[:40, None].astype(float).reshape(20, 2, 1)
    K, pull = as_arrays(Declared()).grouped_covariance(codes)
    bars = pull(np.ones_like(K))
    assert bars[1] is None
    np.testing.assert_allclose(K[3], as_arrays(Declared())(codes[3])[0])
