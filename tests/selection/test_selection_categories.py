"""Searches on tables some of whose columns contain codes of levels."""

import time
import warnings
from functools import partial

import numpy as np
import pytest
from tables import WAYS, bits, table
from test_selection_checkpoints import Killed

import agp
from agp import selection, tree
from agp.errors import ConvergenceWarning, NoSignalWarning
from agp.kernels import RBF, ActiveDims, Linear, Matern52, Overlap, RandomEffects
from agp.likelihoods import Bernoulli, Poisson, Softmax
from agp.selection import fit_classification, select_kernel
from agp.selection._climb import Climber, exact_gp, narrow
from agp.selection._given import Columns, Data, Plan, check_categories, with_base
from agp.selection._watch import Pieces, Watch

fit_regression = partial(selection.fit_regression, hyperparameters="mode")

WAYS = WAYS | {"near": (110, "nngp")}
KINDS = {"sample": "GPR", "larger": "GPR", "exact": "GPR", "collapsed": "SVGP", "near": "NNGP", "both": "VIF"}


def coded(rows=110, levels=4, seed=0, effect=2.0, noise=0.1):
    """A smooth function of two numbers, plus an effect of the code in the middle column."""
    X, y = table(rows, seed=seed, noise=noise)
    rng = np.random.default_rng([seed, levels])
    effects, codes = effect * rng.standard_normal(levels), rng.integers(0, levels, rows)
    codes[:levels] = np.arange(levels)[: len(codes)]
    return np.column_stack([X[:, 0], codes, X[:, 1]]), y + effects[codes]


def fit(way, seed=0, **options):
    rows, method = WAYS[way]
    X, y = coded(rows, seed=seed)
    return fit_regression(X, y, categories=[1], method=method, **options)


def quiet(f):
    with warnings.catch_warnings():
        for category in (ConvergenceWarning, NoSignalWarning):
            warnings.simplefilter("ignore", category)
        return f()


# -- results ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_every_way_learns_from_categories(way):
    rows, method = WAYS[way]
    X, y = coded(rows)
    found = quiet(lambda: fit_regression(X, y, categories=[1], method=method))
    plain = quiet(lambda: fit_regression(X[:, [0, 2]], y, method=method))
    assert type(found.model).__name__ == KINDS[way]
    assert found.learned
    assert found.log_density > plain.log_density + 0.5
    assert {*found.model.kernel.category_levels(3)} == {1}
    new, truth = coded(rows + 1)  # other numbers, the same effects
    error = np.asarray(found.model.predict(new).mean)[:, 0] - truth
    assert np.sqrt(np.mean(error**2)) < 0.5 * truth.std()


@pytest.mark.parametrize("way", WAYS)
def test_labels_of_levels_mean_nothing(way):
    rows, method = WAYS[way]
    X, y = coded(rows)
    other = X.copy()
    other[:, 1] = np.asarray([2.0, 3.0, 0.0, 1.0])[X[:, 1].astype(int)]
    one, same = (quiet(lambda X=X: fit_regression(X, y, categories=[1], method=method)) for X in (X, other))
    assert one.kernel == same.kernel
    np.testing.assert_allclose(one.model.predict(X[:20]).mean, same.model.predict(other[:20]).mean, atol=1e-6)
    np.testing.assert_allclose(one.log_density, same.log_density, atol=1e-6)


@pytest.mark.parametrize("way", ["sample", "exact", "near"])
def test_the_place_of_the_column_hardly_matters(way):
    rows, method = WAYS[way]
    X, y = coded(rows)
    moved = X[:, [1, 0, 2]]
    one = quiet(lambda: fit_regression(X, y, categories=[1], method=method))
    other = quiet(lambda: fit_regression(moved, y, categories=[0], method=method))
    np.testing.assert_allclose(one.model.predict(X).mean, other.model.predict(moved).mean, atol=0.05)


def test_a_constant_category_changes_little():
    X, y = table(55)
    constant = np.column_stack([X, np.full(55, 3.0)])
    one = fit_regression(X, y)
    other = fit_regression(constant, y, categories=[2])
    assert abs(one.log_density - other.log_density) < 0.05
    np.testing.assert_allclose(other.model.predict(constant).mean, one.model.predict(X).mean, atol=0.05)


def test_all_columns_may_be_categories():
    X, y = coded(60)
    found = quiet(lambda: fit_regression(X[:, [1]], y, categories=[0]))
    means = np.asarray([y[X[:, 1] == code].mean() for code in range(4)])
    np.testing.assert_allclose(found.model.predict(np.arange(4.0)[:, None]).mean[:, 0], means, atol=0.5)


def test_few_rows_are_a_mixture_in_which_a_new_level_is_wide():
    X, y = coded(24, effect=5.0)
    found = selection.fit_regression(X, y, categories=[1], hyperparameters="mixture")
    assert type(found.model).__name__ == "GPRMixture"
    new = np.repeat(X[:1], 2, axis=0)
    new[1, 1] = -1.0
    mean, variance = found.model.predict(new)
    assert abs(mean[0, 0] - y[0]) < 0.5
    assert variance[1, 0] > 20.0 * variance[0, 0]
    effects = np.asarray([y[X[:, 1] == code].mean() for code in range(4)])
    assert 0.4 < np.sqrt(variance[1, 0]) / effects.std(ddof=1) < 2.5


def test_a_given_kernel_is_mixed():
    X, y = coded(40)
    found = quiet(lambda: fit_regression(X, y, categories=[1], kernel=RBF() + Linear()))
    kinds = [type(node) for node in tree.nodes(found.model.kernel, object).values()]
    assert kinds.count(Overlap) == 1
    assert kinds.count(RandomEffects) == 1
    own = RBF().on((0, 2)) + 0.5 * RandomEffects().on(1)
    kept = quiet(lambda: fit_regression(X, y, categories=[1], kernel=own)).model.kernel
    assert [part.columns for part in tree.nodes(kept, ActiveDims).values()] == [(0, 2), (1,)]
    assert Overlap not in [type(node) for node in tree.nodes(kept, object).values()]


# -- precision and checkpoints ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [RBF(), Matern52() + Linear.centred(coded()[0]), RBF() * Linear.centred(coded()[0])])
def test_single_precision_keeps_codes(kernel):
    X, y = coded(60, levels=40)
    X[:, [0, 2]] += 1e6
    mixed = Columns(3, (1,)).mix(kernel)
    model = exact_gp(Data(X, y[:, None]), kernel=mixed)
    small = narrow(model)
    assert small.X.dtype == np.float32
    np.testing.assert_array_equal(small.X[:, 1], X[:, 1])
    assert abs(small.X[:, [0, 2]]).max() < 10.0
    K = model.kernel(X)[0]
    np.testing.assert_allclose(small.kernel(small.X)[0], K, atol=1e-5 * abs(K).max())


def test_centres_are_shifted_by_their_columns():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4)) + np.asarray([1e4, 0.0, -3e4, 7e4])
    X[:, 1] = rng.integers(0, 3, 60)
    kernel = (RBF() + Linear(centre=np.asarray([7e4, -3e4])).on((1, 0))).on((2, 3)) + RandomEffects().on(1)
    model = exact_gp(Data(X, rng.normal(size=(60, 1))), kernel=kernel)
    K = model.kernel(X)[0]
    small = narrow(model)
    np.testing.assert_allclose(small.kernel(small.X)[0], K, atol=1e-5 * abs(K).max())


@pytest.mark.slow
def test_single_precision_trains_to_the_optimum_of_double_precision():
    X, y = coded(1200, levels=60)
    X[:, [0, 2]] += 1e5
    columns = Columns(3, (1,))
    begun = exact_gp(Data(X, y[:, None]), kernel=columns.mix(Matern52()) + columns.linear(X))
    watch = Watch(None, (), progress=False)
    plan = Plan("auto", agp.Gaussian(), None, "auto", None, 1e-3, columns)
    climb = Climber(plan, Pieces(None, {}, watch), watch)
    wide, small = (climb(f"{how}", "matern52", begun, 30, narrowly=how) for how in (False, True))
    assert wide.scores.evidence > begun.bound(X, y[:, None])[0] / 1200 + 0.5
    assert abs(wide.scores.evidence - small.scores.evidence) < 1e-2
    np.testing.assert_array_equal(small.model.X, X)
    np.testing.assert_allclose(small.model.predict(X[:50]).mean, wide.model.predict(X[:50]).mean, atol=0.02)


@pytest.mark.parametrize("way", ["sample", "collapsed", "near", "both"])
def test_a_checkpoint_is_resumed_to_the_bit(way, tmp_path, monkeypatch):
    expected = bits(quiet(lambda: fit(way)))
    usual, written = Pieces._write, []

    def write(self, to):
        usual(self, to)
        written.append(0)
        if len(written) == 2:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Pieces, "_write", write)
        with pytest.raises(Killed):
            quiet(lambda: fit(way, checkpoint=tmp_path / "run.agp"))
    assert bits(quiet(lambda: fit(way, checkpoint=tmp_path / "run.agp"))) == expected


def test_a_checkpoint_knows_the_categories(tmp_path):
    X, y = coded(20)
    quiet(lambda: fit_regression(X, y, categories=[1], checkpoint=tmp_path / "run.agp"))
    with pytest.raises(ValueError, match="written by a fit with other values of columns"):
        quiet(lambda: fit_regression(X, y, checkpoint=tmp_path / "run.agp"))


# -- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("categories", "error", "message"),
    [
        ([3], ValueError, r"categories is \[3\], but must name different columns from 0 to 2\."),
        ([1, 1], ValueError, r"categories is \[1, 1\], but must name different columns"),
        ([-1], ValueError, "categories is -1"),
        ([0.5], (TypeError, ValueError), "categories is 0.5"),
        ([0], ValueError, r"column 0 has .* in row 0, but codes of levels are whole numbers; number the levels from 0"),
    ],
)
def test_wrong_categories_are_refused(categories, error, message):
    X, y = coded(20)
    for call in (
        lambda: fit_regression(X, y, categories=categories),
        lambda: fit_classification(
            X, (y > 0.0).astype(float), likelihood=Bernoulli(link="logit"), categories=categories
        ),
        lambda: select_kernel(X, y[:, None], agp.Gaussian(), categories=categories),
    ):
        with pytest.raises(error, match=message):
            call()


def test_codes_below_minus_one_and_rows_elsewhere_are_refused():
    X, _ = coded(20)
    X[7, 1] = -2.0
    with pytest.raises(ValueError, match="column 1 has -2 in row 7, but codes of levels are whole numbers"):
        check_categories([1], X)
    X[7, 1] = -1.0
    assert check_categories([1], X) == (1,)
    assert check_categories((), None) == ()
    da = pytest.importorskip("dask.array")
    with pytest.raises(ValueError, match="categories need rows in memory"):
        check_categories([1], da.from_array(X))


def test_kinds_of_mixed_kernels_are_replaced():
    kernel = Columns(3, (1,)).mix(RBF(0.8, (0.5, 1.4, 2.0))) + Columns(3, (1,)).linear(coded()[0])
    found = with_base(kernel, Matern52)
    assert tree.outline(found) == tree.outline(kernel).replace("RBF", "Matern52")
    assert {name: np.asarray(x).tolist() for name, x in tree.leaves(found).items()} == {
        name: np.asarray(x).tolist() for name, x in tree.leaves(kernel).items()
    }


# -- classes and other likelihoods ------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 3])
def test_classes_depend_on_categories(classes):
    rng = np.random.default_rng(classes)
    codes, x = rng.integers(0, 9, 90), rng.normal(size=90)
    X, y = np.column_stack([x, codes]), (codes % classes).astype(np.float64)
    likelihood = Bernoulli(link="logit") if classes == 2 else Softmax(classes)
    found = quiet(lambda: fit_classification(X, y, likelihood=likelihood, categories=[1]))
    assert found.learned
    new = np.column_stack([rng.normal(size=9), np.arange(9)])
    mean = np.asarray(found.model.predict(new, observed=True).mean)
    labels = mean[:, 0] > 0.5 if classes == 2 else mean.argmax(axis=1)
    np.testing.assert_array_equal(labels, np.arange(9) % classes)
    other = X.copy()
    other[:, 1] = np.asarray([4.0, 7.0, 0.0, 2.0, 8.0, 1.0, 3.0, 6.0, 5.0])[codes]
    same = quiet(lambda: fit_classification(other, y, likelihood=likelihood, categories=[1]))
    np.testing.assert_allclose(
        same.model.predict(other[:9], observed=True).mean, found.model.predict(X[:9], observed=True).mean, atol=1e-5
    )
    given = quiet(lambda: fit_classification(X, y, likelihood=likelihood, categories=[1], kernel=RBF()))
    (overlap,) = tree.nodes(given.model, Overlap).values()
    assert overlap.lengthscale.shape == (1,)


@pytest.mark.parametrize("likelihood", [agp.Gaussian(), Poisson(), Bernoulli()])
def test_kernels_for_other_models_are_mixed(likelihood):
    X, y = coded(60, effect=1.0)
    if not isinstance(likelihood, agp.Gaussian):
        y = np.round(np.exp(0.5 * y)) if isinstance(likelihood, Poisson) else (y > np.median(y)).astype(float)
    found = select_kernel(X, y[:, None], likelihood, categories=[1])
    assert {*found.category_levels(3)} == {1}
    assert tree.outline(found.with_categories(3, (1,))) == tree.outline(found)
    few = select_kernel(X[:1], y[:1, None], likelihood, categories=[1])
    assert {*few.category_levels(3)} == {1}
    rest, overlap = found.parts
    assert rest.columns == (0, 2)
    if isinstance(likelihood, agp.Gaussian):
        assert rest.kernel.lengthscale.shape == (2,)
        assert overlap.kernel.lengthscale.shape == (1,)


# -- many rows --------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_many_rows_with_many_levels(full_size):
    X, y = coded(5000, levels=150)
    begun = time.perf_counter()
    found = quiet(lambda: selection.fit_regression(X[:4500], y[:4500], categories=[1]))
    assert time.perf_counter() - begun < 300.0
    error = np.asarray(found.model.predict(X[4500:]).mean)[:, 0] - y[4500:]
    assert np.sqrt(np.mean(error**2)) < 0.15
