"""Where lengthscales start: what is compared, on a sample, and that the choice is the same everywhere."""

import numpy as np
import pytest
import scipy.stats
from helpers import process

import agp
from agp import GPR, SGPR, SVGP, Bernoulli, CaGP, Coregionalised, Gaussian, Matern32, Softmax, tree
from agp.chunking import column_spreads
from agp.kernels import RBF, ActiveDims, Constant, Kernel, Linear, Periodic, RationalQuadratic, White
from agp.starts import FACTORS, NOISE, starting_kernel, starting_kernels

GAUSSIAN = Gaussian(0.1)


def friedman(rows=300, columns=50, seed=0):
    """Targets that depend on five of the columns alone."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(rows, columns))
    f = 10.0 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20.0 * (X[:, 2] - 0.5) ** 2 + 10.0 * X[:, 3] + 5.0 * X[:, 4]
    return X, (f + rng.standard_normal(rows))[:, None]


def toy(rows=60, rate=4.0, columns=2, seed=0):
    """Targets that depend on the first column alone."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (rows, columns))
    return X, np.sin(rate * X[:, :1]) + 0.1 * rng.standard_normal((rows, 1))


def ratios(kernel, X):
    """Lengthscales in column spreads times the root of their number."""
    return kernel.lengthscale / (X.std(axis=0) * X.shape[1] ** 0.5)


# -- what is compared -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [RBF(), Matern32(), RationalQuadratic()], ids=lambda k: type(k).__name__)
def test_evidences_are_those_of_the_textbook(kernel):
    X, y = toy(40)
    targets = (y[:, 0] - y.mean()) / y.std()
    found = starting_kernels(kernel, X, y, GAUSSIAN)
    assert len(found) == 2 * len(FACTORS)
    for evidence, start in found:
        K = start.from_data(X, 1.0)(X)[0]
        heights = []
        for noise in NOISE:
            C = K + noise * np.eye(len(X))
            variance = targets @ np.linalg.solve(C, targets) / len(X)
            density = scipy.stats.multivariate_normal(np.zeros(len(X)), variance * C).logpdf(targets)
            heights.append(density / len(X) + 0.5 * (np.log(2.0 * np.pi) + 1.0))
        assert evidence == pytest.approx(max(heights), abs=1e-9)


def test_the_start_is_the_most_probable_one():
    X, y = toy()
    found = starting_kernels(RBF(), X, y, GAUSSIAN)
    best = max(found, key=lambda one: one[0])[1]
    start = starting_kernel(None, X, y, GAUSSIAN)
    assert isinstance(start, RBF)
    np.testing.assert_array_equal(start.lengthscale, best.lengthscale)
    assert tree.missing(start) == ["variance"]
    np.testing.assert_allclose(ratios(found[0][1], X), 1.0)  # the first is that of `Kernel.from_data`


@pytest.mark.parametrize(("rate", "factor"), [(0.1, 3.0), (1.5, 1.0), (6.0, 0.3)])
def test_short_and_long_lengthscales_are_found(rate, factor):
    X, y = toy(200, rate, columns=1)
    np.testing.assert_allclose(ratios(starting_kernel(None, X, y, GAUSSIAN), X), factor)


@pytest.mark.slow
def test_columns_that_tell_nothing_are_long():
    X, y = friedman()
    for kernel in (None, Matern32()):
        start = starting_kernel(kernel, X, y, GAUSSIAN)
        assert set(np.argsort(ratios(start, X))[:5]) == set(range(5))
        model = SGPR.from_data(X, y, kernel=kernel, num_inducing=20)
        np.testing.assert_allclose(model.kernel.lengthscale, start.lengthscale)
    X, y = friedman(2000)  # of which 256 rows are looked at
    assert set(np.argsort(ratios(starting_kernel(None, X, y, GAUSSIAN), X))[:5]) == set(range(5))


def test_a_start_by_relevance_is_worth_it_where_few_columns_tell():
    X, y = friedman()
    found = [evidence for evidence, _ in starting_kernels(RBF(), X, y, GAUSSIAN)]
    assert max(found[3:]) > max(found[:3]) + 0.1


def test_of_many_rows_some_are_compared(monkeypatch):
    X, y = toy(1000)
    seen = []
    evidence = agp.starts._log_evidence
    monkeypatch.setattr("agp.starts._log_evidence", lambda K, targets: seen.append(K.shape) or evidence(K, targets))
    starting_kernel(None, X, y, GAUSSIAN)
    assert set(seen) == {(256, 256)}


# -- the same everywhere ----------------------------------------------------------------------------------------------

KERNELS = {
    "rbf": lambda: None,
    "sum": lambda: Matern32() + Linear() + White(0.1),
    "product": lambda: RBF() * Periodic(),
    "chosen": lambda: 2.0 * RBF().on((1,)) + Constant(),
    "given": lambda: RBF(2.0) + Matern32(lengthscale=[0.5, 0.5]),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_library_starts_at_the_same_values(kernel, dtype, backend):
    X, y = toy()
    expected = starting_kernel(KERNELS[kernel](), X, y, GAUSSIAN)
    here = starting_kernel(KERNELS[kernel](), backend.array(X, dtype), backend.array(y, dtype), GAUSSIAN)
    assert type(here) is type(expected)
    assert tree.missing(here) == tree.missing(expected)
    found = {k: x for k, x in tree.leaves(here).items() if k in _chosen(KERNELS[kernel](), expected)}
    assert found
    for name, x in found.items():
        np.testing.assert_allclose(
            backend.numpy(x, dtype), tree.leaves(expected)[name], rtol=1e-12 if dtype == "float64" else 1e-5
        )


def _chosen(kernel, start):
    return set(tree.leaves(start)) - set({} if kernel is None else tree.leaves(kernel))


@pytest.mark.parametrize(("a", "b", "c", "d"), [(1e6, 0.0, 1.0, 0.0), (1e-6, 0.01, 1e4, 3.0), (1.0, 1e3, 1e-5, -1.0)])
@pytest.mark.parametrize("kernel", ["rbf", "product", "chosen"])
def test_units_do_not_matter(kernel, a, b, c, d):
    X, y = toy()
    scale = np.asarray([a, 1.0 / a])
    here = starting_kernel(KERNELS[kernel](), X, y, GAUSSIAN)
    there = starting_kernel(KERNELS[kernel](), scale * X + b * scale, c * y + d, GAUSSIAN)
    for name in _chosen(KERNELS[kernel](), here):
        own = scale[1:] if kernel == "chosen" else scale
        np.testing.assert_allclose(tree.leaves(there)[name] / own, tree.leaves(here)[name], rtol=1e-6)


@pytest.mark.parametrize(
    "start",
    [
        GPR.from_data,
        lambda X, y: SGPR.from_data(X, y, num_inducing=6),
        lambda X, y: SVGP.from_data(X, y, num_inducing=6),
        lambda X, y: SVGP.from_data(X, y, num_inducing=6, posterior="whitened"),
        lambda X, y: agp.TSVGP.from_data(X, y, num_inducing=6),
        agp.TVGP.from_data,
        agp.TNNGP.from_data,
        lambda X, y: CaGP.from_data(X, y, num_actions=5),
        agp.CGGP.from_data,
        lambda X, y: agp.SOLVEGP.from_data(X, y, num_inducing=4, num_orthogonal=3),
        lambda X, y: agp.SOLVEGPR.from_data(X, y, num_inducing=4, num_orthogonal=3),
    ],
)
def test_all_models_start_alike(start):
    X, y = toy()
    expected = starting_kernel(None, X, y, GAUSSIAN)
    np.testing.assert_array_equal(process(start(X, y)).kernel.lengthscale, expected.lengthscale)


# -- what stays -------------------------------------------------------------------------------------------------------


def test_what_is_given_stays():
    X, y = toy()
    kernel = RBF(lengthscale=0.7) * RationalQuadratic(alpha=0.3) + Matern32(lengthscale=[1.0, 2.0])
    start = starting_kernel(kernel, X, y, GAUSSIAN)
    assert start.parts[0].parts[0].lengthscale == 0.7
    assert start.parts[0].parts[1].alpha == 0.3
    assert start.parts[1].lengthscale == [1.0, 2.0]
    assert start.parts[0].parts[1].lengthscale.shape == (2,)
    assert kernel.parts[0].parts[1].lengthscale is None


@pytest.mark.parametrize("kernel", [RBF(lengthscale=1.0), Linear() + Constant(), Periodic(period=1.0), White()])
def test_nothing_is_compared_where_no_lengthscale_of_inputs_is_missing(kernel, monkeypatch):
    monkeypatch.setattr("agp.starts._log_evidence", None)
    X, y = toy()
    assert starting_kernel(kernel, X, y, GAUSSIAN) is kernel
    assert starting_kernels(kernel, X, y, GAUSSIAN) == []


def test_kernels_of_other_inducing_variables_stay():
    X, y = toy()
    patches = agp.inducing.Patches((1, 2), (1, 1))
    assert starting_kernel(None, X, y, GAUSSIAN, inducing=patches) is None
    assert starting_kernel(None, X, y, GAUSSIAN, inducing=agp.inducing.Points()) is not None
    assert starting_kernel(None, X, y, GAUSSIAN, inducing="random") is not None


def test_few_rows_start_at_the_spreads():
    X, y = toy(7)
    assert starting_kernels(RBF(), X, y, GAUSSIAN) == []
    for start in (starting_kernel(None, X, y, GAUSSIAN).from_data(X, 1.0), GPR.from_data(X, y).kernel):
        np.testing.assert_allclose(ratios(start, X), 1.0)
    GPR.from_data(X[:1], y[:1])
    assert len(starting_kernels(RBF(), *toy(8), GAUSSIAN)) == 6


def test_one_column_has_three_starts():
    X, y = toy(columns=1)
    found = starting_kernels(RBF(), X, y, GAUSSIAN)
    np.testing.assert_allclose([float(ratios(start, X)[0]) for _, start in found], FACTORS)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6])
def test_constant_columns_count_as_a_spread_of_their_size(value):
    X, y = toy(columns=3)
    X[:, 1] = value
    found = starting_kernels(RBF(), X, y, GAUSSIAN)
    assert np.all(np.isfinite([evidence for evidence, _ in found]))
    lengthscales = [start.lengthscale[1] for _, start in found[: len(FACTORS)]]
    np.testing.assert_allclose(lengthscales, (value or 1.0) * 3.0**0.5 * np.asarray(FACTORS), rtol=1e-12)
    without = starting_kernel(None, X[:, [0, 2]], y, GAUSSIAN)
    model = GPR.from_data(X, y)
    np.testing.assert_allclose(model.kernel.lengthscale[0] / without.lengthscale[0], 1.5**0.5, rtol=0.2)
    X[:] = value
    np.testing.assert_allclose(GPR.from_data(X, y).kernel.lengthscale, (value or 1.0) * 3.0**0.5)


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6])
def test_constant_targets_tell_nothing(value):
    X, y = toy()
    assert starting_kernels(RBF(), X, np.full_like(y, value), GAUSSIAN) == []
    both = np.concatenate([y, np.full_like(y, value)], axis=1)
    alone, found = (starting_kernels(RBF(), X, targets, GAUSSIAN) for targets in (y, both))
    np.testing.assert_allclose([one[0] for one in found], [one[0] for one in alone])


# -- targets of other kinds -------------------------------------------------------------------------------------------


def test_rows_without_a_target_do_not_count():
    X, y = toy(80)
    missing = y.copy()
    missing[::3] = np.nan
    seen = np.isfinite(missing[:, 0])
    found, expected = (
        starting_kernels(RBF(lengthscale=None), rows, targets, Gaussian(0.1, missing=True))
        for rows, targets in ((X, missing), (X[seen], y[seen]))
    )
    np.testing.assert_allclose([one[0] for one in found], [one[0] for one in expected], rtol=1e-9)
    model = SVGP.from_data(X, missing, likelihood=Gaussian(missing=True), num_inducing=5)
    assert np.isfinite(process(model).kernel.lengthscale).all()
    missing[3:] = np.nan  # hardly any are left
    model = SVGP.from_data(X, missing, likelihood=Gaussian(missing=True), num_inducing=5)
    np.testing.assert_allclose(ratios(process(model).kernel, X), 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", [Bernoulli(), Softmax(3), agp.RobustMax(3), agp.Poisson()])
def test_labels_and_counts_tell_which_columns_count(likelihood):
    rng = np.random.default_rng(3)
    X = rng.uniform(-2.0, 2.0, (300, 6))
    levels = {"Bernoulli": [0.0], "Poisson": [-1.5, -1.0, -0.5, 0.5, 1.0]}.get(type(likelihood).__name__, [-0.7, 0.7])
    y = np.digitize(X[:, 2:3], levels).astype(float)
    start = starting_kernel(None, X, y, likelihood)
    assert np.argmin(ratios(start, X)) == 2
    assert np.sort(ratios(start, X))[1] > 3.0 * np.min(ratios(start, X))
    model = SVGP.from_data(X, y, likelihood=likelihood, num_inducing=5)
    np.testing.assert_allclose(process(model).kernel.lengthscale, start.lengthscale)


@pytest.mark.slow
def test_each_output_starts_by_itself():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (150, 4))
    y = np.stack([np.sin(3.0 * X[:, 0]), 100.0 * X[:, 3]], axis=1)
    model = SVGP.from_data(X, y, outputs="separate", num_inducing=6)
    found = [np.argmin(ratios(part.kernel, X)) for part in model.process.parts]
    assert found == [0, 3]
    for p, part in enumerate(model.process.parts):
        alone = starting_kernel(None, X, y[:, p : p + 1], GAUSSIAN)
        np.testing.assert_allclose(part.kernel.lengthscale, alone.lengthscale)
    for outputs in ("shared", Coregionalised(2), Coregionalised(2, intrinsic=True)):
        kernels = tree.nodes(SVGP.from_data(X, y, outputs=outputs, num_inducing=6), Kernel).values()
        both = starting_kernel(None, X, y, GAUSSIAN)
        for kernel in kernels:
            np.testing.assert_allclose(kernel.lengthscale, both.lengthscale)


# -- kernels of users -------------------------------------------------------------------------------------------------


@tree.model
class Own(RBF):
    """A user's kernel that computes with one library alone."""

    def __call__(self, X, Z=None, /):
        assert self.library in type(X).__module__
        assert self.library in type(self.lengthscale).__module__
        return super().__call__(X, Z)

    library: str = "numpy"


def test_kernels_of_users_are_evaluated_in_their_library(backend):
    X, y = toy()
    library = type(backend.array(X)).__module__.split(".")[0]
    expected = starting_kernel(None, X, y, GAUSSIAN)
    for kernel in (Own(library=library), RBF(lengthscale=1.0) * Own(library=library)):
        start = starting_kernel(kernel, backend.array(X), backend.array(y), GAUSSIAN)
        own = start if isinstance(start, Own) else start.parts[1]
        assert own.lengthscale.shape == (2,)
    np.testing.assert_allclose(
        backend.numpy(
            GPR.from_data(backend.array(X), backend.array(y), kernel=Own(library=library)).kernel.lengthscale
        ),
        expected.lengthscale,
        rtol=1e-12,
    )


@tree.model
class Broken(RBF):
    """A user's kernel that gives nothing of use."""

    value: float = float("nan")

    def __call__(self, X, Z=None, /):
        K, pull = super().__call__(X, Z)
        return K * self.value, pull


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0])
def test_what_cannot_be_compared_stays_where_it_would_be(value):
    X, y = toy()
    with np.errstate(all="ignore"):
        assert {one[0] for one in starting_kernels(Broken(value=value), X, y, GAUSSIAN)} == {-np.inf}
        kernel = starting_kernel(Broken(value=value), X, y, GAUSSIAN)
    np.testing.assert_allclose(ratios(kernel.from_data(X, 1.0), X), 1.0)


def test_leaves_on_a_graph_are_constants_here(torch_place):
    X, y = map(torch_place.array, toy())
    alpha = torch_place.array(np.asarray(0.7)).requires_grad_()
    kernel = starting_kernel(RationalQuadratic(alpha=alpha), X, y, GAUSSIAN)
    assert kernel.alpha is alpha
    assert not kernel.lengthscale.requires_grad
    assert not GPR.from_data(X, y, kernel=RationalQuadratic(alpha=alpha)).kernel.alpha.requires_grad


def test_what_is_wrong_with_a_kernel_is_said_of_it():
    X, y = toy()
    for kernel, error, message in (
        (RBF() + RBF(variance=-1.0), ValueError, r"parts\.1\.variance is .*, but must be positive and finite"),
        (RBF() * Matern32(lengthscale=[1.0] * 3), ValueError, r"Matern32 has lengthscales of shape \(3,\)"),
        (RBF().on((2,)), ValueError, "the inputs have 2 columns"),
    ):
        with pytest.raises(error, match=message):
            starting_kernel(kernel, X, y, GAUSSIAN)
        for build in (GPR.from_data, SVGP.from_data, SGPR.from_data):
            with pytest.raises(error, match=message):
                build(X, y, kernel=kernel)
    assert isinstance(RBF().on((1,)), ActiveDims)


def test_data_of_any_size_are_compared_where_numpy_raises():
    X, y = toy()
    with np.errstate(all="raise"):
        for size in (1e-150, 1.0, 1e150):
            np.testing.assert_allclose(
                GPR.from_data(size * X, y).kernel.lengthscale / size, GPR.from_data(X, y).kernel.lengthscale, rtol=1e-6
            )


# -- columns that hardly vary -----------------------------------------------------------------------------------------


def rare(rows=2_000, seed=0):
    """Three columns, of which the second is 0.3 but in three rows, and the third is 0.7 everywhere."""
    X, y = toy(rows, seed=seed)
    X = np.column_stack([X[:, 0], np.full(rows, 0.3), np.full(rows, 0.7)])
    X[rows // 2 : rows // 2 + 3, 1] = 5.0
    return X, y


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e-9, 1e-6, 3.0, 1e6])
def test_a_column_that_is_constant_in_the_sample_is_as_long_as_its_spread_asks(scale):
    X, y = rare()
    here, there = (SVGP.from_data(a * X, y, num_inducing=10).process.kernel.lengthscale for a in (1.0, scale))
    np.testing.assert_allclose(there, scale * here, rtol=1e-9)
    assert here[1] / X[:, 1].std() == pytest.approx(here[0] / X[:, 0].std(), rel=0.1)
    assert here[2] / 0.7 == pytest.approx(here[1] / X[:, 1].std(), rel=1e-9)


@pytest.mark.parametrize("value", [0.0, 1.0, -0.3, 1e-8, 7e5])
@pytest.mark.parametrize("rows", [3, 500, 12_345])
def test_a_constant_column_has_no_spread_but_its_size(value, rows):
    X = np.column_stack([np.full(rows, value), np.arange(rows)])
    np.testing.assert_array_equal(column_spreads(X), [abs(value) or 1.0, X[:, 1].std()])


# -- periods ----------------------------------------------------------------------------------------------------------


def waves(seed, rows=200, period=5.0, span=60.0):
    rng = np.random.default_rng(seed)
    X = np.sort(rng.uniform(0.0, span, (rows, 1)), axis=0)
    return X, np.sin(2.0 * np.pi * X[:, 0] / period + rng.uniform(0.0, 6.0)) + 0.1 * rng.standard_normal(rows)


@pytest.mark.parametrize("seed", range(10))
def test_a_missing_period_is_found(seed):
    X, y = waves(seed)
    np.testing.assert_allclose(GPR.from_data(X, y, kernel=Periodic()).kernel.period, 5.0, rtol=0.02)
    model = agp.fit(GPR.from_data(X, y, kernel=Periodic()), X, y).model
    np.testing.assert_allclose(model.kernel.period, 5.0, rtol=2e-3)


def test_a_missing_period_is_found_in_sums_and_products_and_on_its_column():
    X, y = waves(0)
    other = np.random.default_rng(1).uniform(0.0, 60.0, X.shape)
    kernel = GPR.from_data(np.concatenate([other, X], axis=1), y, kernel=Linear() + Periodic().on((1,)) * RBF()).kernel
    np.testing.assert_allclose(kernel.parts[1].parts[0].kernel.period, [5.0], rtol=0.02)


def test_two_missing_periods_are_those_of_two_peaks():
    X, y = waves(0)
    y = y + np.sin(2.0 * np.pi * X[:, 0] / 1.7)
    kernel = agp.fit(GPR.from_data(X, y, kernel=Periodic() + Periodic()), X, y).model.kernel
    np.testing.assert_allclose(sorted(float(part.period[0]) for part in kernel.parts), [1.7, 5.0], rtol=2e-3)


def test_given_periods_stay():
    X, y = waves(0)
    assert float(GPR.from_data(X, y, kernel=Periodic(period=3.0)).kernel.period) == 3.0


def test_a_column_of_few_values_has_the_usual_period():
    X = np.repeat([[0.0], [1.0], [2.0]], 20, axis=0)
    y = np.random.default_rng(0).standard_normal(60)
    np.testing.assert_allclose(GPR.from_data(X, y, kernel=Periodic()).kernel.period, 2.0 * X.std())


def test_the_periodogram_is_the_share_of_the_variance_that_least_squares_explain():
    X, y = waves(0, rows=30)
    x, y = X[:, 0] - X.mean(), y - y.mean()
    y = y - x * (x @ y) / (x @ x)
    for frequency in (0.03, 0.2, 0.71):
        angle = 2.0 * np.pi * frequency * x
        basis = np.stack([np.ones_like(x), np.cos(angle), np.sin(angle)], axis=1)
        rest = y - basis @ np.linalg.lstsq(basis, y)[0]
        found = agp.starts.periodogram(X[:, 0], y[:, None], np.asarray([frequency]))
        np.testing.assert_allclose(found, 1.0 - rest @ rest / (y @ y), rtol=1e-6)


def test_targets_that_a_sample_holds_only_once_start_without_warnings():
    from agp.starts import _relevance

    X = np.random.default_rng(2).integers(0, 2, (27, 3)).astype(float)
    with np.errstate(all="raise"):
        np.testing.assert_array_equal(_relevance(X, np.zeros((27, 1))), np.ones(3))
        assert _relevance(X, X[:, :1]).tolist()[0] == 1.0
