"""Kernels whose entries belong to the levels of a category: numbers of levels, the order of codes, absent levels."""

import numpy as np
import pandas as pd
import pytest

import agp
from agp import RBF, tree
from agp.estimators import GPClassifier, GPRegressor
from agp.inspection import level_correlations
from agp.kernels import Kernel, LevelCovariance
from agp.tree import POSITIVE

pytestmark = pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")  # fits of few steps


@tree.model
class Distance(Kernel):
    """k(a, b) = variance exp(-D_ab / ell) for given distances of levels, as a user writes it."""

    takes_codes = True
    D: object = tree.constant()
    variance: object = tree.param(POSITIVE, default=None)
    ell: object = tree.param(POSITIVE, default=None)

    def __call__(self, X, Z=None, /):
        xp = agp.backend_of(X).xp
        one, two = (self._indicators(x) for x in (X, X if Z is None else Z))
        C = xp.exp(-self.D / self.ell)
        K = one @ C @ two.mT

        def pullback(bar):
            of_levels = self.variance * (one.mT @ bar @ two) * C * self.D / self.ell**2
            own = tree.cotangent(self, variance=xp.sum(bar * K), ell=xp.sum(of_levels))
            return (own, None) if Z is None else (own, None, None)

        return self.variance * K, pullback

    def _indicators(self, X):
        codes = agp.backend.asarray_like(np.arange(float(self.D.shape[0])), X)
        return agp.backend_of(X).xp.astype(agp.backend_of(X).xp.round(X) == codes, X.dtype)

    def diag(self, X, /):
        xp = agp.backend_of(X).xp
        known = xp.sum(self._indicators(X), axis=1)
        return self.variance * known, lambda bar: (tree.cotangent(self, variance=xp.sum(bar * known)), None)

    def from_data(self, X, variance, /):
        assert type(self.D) is type(X)  # constants are like the data
        return tree.with_defaults(self, variance=variance, ell=1.0)

    def check(self, width, /):
        agp.kernels.check_number(self, "ell")

    def category_levels(self, width, /):
        return {0: self.D.shape[0]}


@tree.model
class Around(Kernel):
    """A user's kernel around another one, which knows the number of levels itself."""

    inner: Kernel
    count: int

    def __call__(self, X, Z=None, /):
        K, pull = self.inner(X, Z)
        return K, lambda bar: (tree.cotangent(self, inner=pull(bar)[0]), *pull(bar)[1:])

    def diag(self, X, /):
        k, pull = self.inner.diag(X)
        return k, lambda bar: (tree.cotangent(self, inner=pull(bar)[0]), None)

    def from_data(self, X, variance, /):
        return type(self)(self.inner.from_data(X, variance), self.count)

    def check(self, width, /):
        self.inner.check(width)

    def category_levels(self, width, /):
        return {0: self.count}


NAMES = np.asarray(["north", "east", "south", "west", "centre", "coast"])
PLACES = np.random.default_rng(1).uniform(-1.0, 1.0, (6, 2))
DISTANCES = np.sqrt(((PLACES[:, None] - PLACES[None]) ** 2).sum(-1))
RNG = np.random.default_rng(0)
CODES, NUMBERS = RNG.permutation(np.arange(90) % 6), RNG.uniform(0.0, 6.0, 90)
TARGETS = 3.0 * PLACES[CODES, 0] + np.sin(NUMBERS) + 0.1 * RNG.standard_normal(90)
FEW = {"max_steps": 15, "hyperparameters": "mode"}


def table(column, rows=slice(None)):
    return pd.DataFrame({"x": NUMBERS, "site": column})[rows]


def declared(order=NAMES, ordered=False):
    return pd.Categorical(NAMES[CODES], categories=list(order), ordered=ordered)


def on_site(kernel):
    return RBF().on("x") + kernel.on("site")


def permuted(order):
    index = [NAMES.tolist().index(name) for name in order]
    return DISTANCES[np.ix_(index, index)]


KERNELS = {
    "distances": lambda count: Distance(permuted(NAMES[[*range(6), *range(6)][:count]])),
    "wrapper": lambda count: Around(RBF(), count),
    "weights": lambda count: LevelCovariance(np.ones((count, 1)), 1.0),
    "inside": lambda count: 2.0 * (RBF().on(0) + Distance(DISTANCES[:count, :count]).on(0)),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("estimator", [GPRegressor, GPClassifier])
def test_other_numbers_of_levels_are_refused(name, estimator):
    y = TARGETS if estimator is GPRegressor else TARGETS > 0.0
    lacking = CODES > 1
    for rows, count, found in ((lacking, 6, 4), (slice(None), 5, 6)):
        part = KERNELS[name](count)
        with pytest.raises(ValueError, match=f"column 'site' has {found} levels, but .* has entries for {count} lev"):
            estimator(kernel=on_site(part)).fit(table(NAMES[CODES], rows), y[rows])


def test_too_few_levels_of_a_level_covariance_are_refused():
    kernel = RBF().on("x") * LevelCovariance(levels=5).on("site")
    with pytest.raises(ValueError, match="column 'site' has 6 levels, but LevelCovariance has entries for 5 levels"):
        GPRegressor(kernel=kernel).fit(table(NAMES[CODES]), TARGETS)
    more = RBF().on("x") * LevelCovariance(levels=8).on("site")  # which have no values yet
    assert len(GPRegressor(kernel=more, **FEW).fit(table(NAMES[CODES]), TARGETS).model_levels()["site"]) == 6


def test_messages_name_missing_cells_and_declared_levels():
    gaps = np.where(np.arange(90) == 7, None, NAMES[CODES])
    with pytest.raises(ValueError, match="has 6 levels, and missing cells, which are one more, but Distance has en"):
        GPRegressor(kernel=on_site(Distance(DISTANCES)), missing="impute").fit(table(gaps), TARGETS)
    rows, order = CODES > 1, [*NAMES, "far"]
    with pytest.raises(ValueError, match=r"has 4 levels of 7 declared ones, .* pd.Categorical\(column, categories"):
        GPRegressor(kernel=on_site(Distance(DISTANCES))).fit(table(declared(order), rows), TARGETS[rows])


def test_larger_codes_are_refused():
    kernel = on_site(Distance(DISTANCES[:5, :5]))
    with pytest.raises(ValueError, match="column 'site' contains the code 5, but Distance .* codes are 0 to 4"):
        GPRegressor(kernel=kernel).fit(table(CODES), TARGETS)
    with pytest.raises(ValueError, match="column 'site' has 6 ordered levels, but Distance has entries for 5 levels"):
        GPRegressor(kernel=kernel).fit(table(declared(ordered=True)), TARGETS)
    X = np.stack([NUMBERS, CODES], axis=1)
    numbered = RBF().on(0) + Distance(DISTANCES[:5, :5]).on(1)
    for train in (agp.GPR.from_data, lambda X, y, kernel: agp.fit_regression(X, y, kernel=kernel, categories=[1])):
        with pytest.raises(ValueError, match="column 1 of X contains the code 5, but Distance has entries for 5"):
            train(X, TARGETS, kernel=numbered)


@pytest.mark.parametrize("order", [sorted(NAMES), NAMES.tolist(), NAMES[::-1].tolist()])
@pytest.mark.parametrize("ordered", [False, True])
def test_declared_levels_define_the_codes(order, ordered):
    X = np.stack([NUMBERS, CODES], axis=1)
    usual = agp.fit_regression(X, TARGETS, kernel=RBF().on(0) + Distance(DISTANCES).on(1), categories=[1], **FEW)
    kernel = on_site(Distance(permuted(order)))
    found = GPRegressor(kernel=kernel, **FEW).fit(table(declared(order, ordered)), TARGETS)
    assert found.bound_ == pytest.approx(usual.bound, rel=1e-3)
    codes = found.model_inputs(table(declared(order, ordered)))[:, found.model_columns().index("site")]
    np.testing.assert_array_equal(codes, [order.index(name) for name in NAMES[CODES]])
    if not ordered:
        assert found.model_levels() == {"site": order}


def test_absent_levels_are_predicted_from_their_distances(tmp_path):
    rows = CODES != 3
    kernel = on_site(Distance(DISTANCES))
    model = GPRegressor(kernel=kernel, **FEW).fit(table(declared(), rows), TARGETS[rows])
    assert model.model_levels() == {"site": NAMES.tolist()}
    known, unknown = (table(name, slice(0, 20)) for name in ("west", "elsewhere"))  # text without a declared order
    X = np.stack([NUMBERS, CODES], axis=1)
    arrays = agp.fit_regression(X[rows], TARGETS[rows], kernel=RBF().on(0) + Distance(DISTANCES).on(1), **FEW).model
    mean, variance = arrays.predict(np.stack([NUMBERS[:20], np.full(20, 3.0)], axis=1), observed=True)
    found, std = model.predict(known, return_std=True)
    np.testing.assert_allclose(found, mean[:, 0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(std, variance[:, 0] ** 0.5, rtol=1e-5)
    assert np.max(np.abs(found - model.predict(unknown))) > 0.1
    (correlations,) = level_correlations(model)
    assert correlations.levels == tuple(NAMES)
    agp.save(model, tmp_path / "model.safetensors")
    again = agp.load(tmp_path / "model.safetensors", classes=(Distance,))
    np.testing.assert_array_equal(again.predict(known), found)


def test_missing_cells_follow_the_declared_levels():
    rows = CODES != 3
    gaps = pd.Categorical(np.where(np.arange(90) == 7, None, NAMES[CODES]), categories=list(NAMES))
    kernel = on_site(Distance(np.pad(DISTANCES, ((0, 1), (0, 1)), constant_values=2.0) * (1.0 - np.eye(7))))
    model = GPRegressor(kernel=kernel, missing="impute", **FEW).fit(table(gaps, rows), TARGETS[rows])
    assert model.model_levels() == {"site": [*NAMES, None]}


def test_kernels_without_entries_do_not_depend_on_declared_levels():
    rows = CODES != 3
    for kernel in ("auto", "rbf.on(x) * overlap.on(site) + effects.on(site)", on_site(LevelCovariance())):
        text, typed = (
            GPRegressor(kernel=kernel, **FEW).fit(table(column, rows), TARGETS[rows])
            for column in (NAMES[CODES], declared(NAMES[::-1]))
        )
        assert text.model_levels() == typed.model_levels() == {"site": sorted({*NAMES} - {"west"})}
        np.testing.assert_array_equal(text.predict(table("north")), typed.predict(table("north")))


def test_parts_must_agree_on_the_levels():
    kernel = on_site(Distance(DISTANCES)) + LevelCovariance(np.ones((5, 1)), 1.0).on("site")
    rows = CODES != 3
    with pytest.raises(ValueError, match="column 'site' has 5 levels of 6 declared ones, but Distance has entries for"):
        GPRegressor(kernel=kernel).fit(table(declared(), rows), TARGETS[rows])


def test_folds_keep_the_declared_levels():
    from sklearn.model_selection import KFold, cross_val_score

    order = np.argsort(CODES, kind="stable")  # each fold lacks levels
    X, y = table(declared()).iloc[order], TARGETS[order]
    scores = cross_val_score(GPRegressor(kernel=on_site(Distance(DISTANCES)), **FEW), X, y, cv=KFold(3))
    assert np.isfinite(scores).all()
