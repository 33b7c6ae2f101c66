"""Integration over hyperparameters: against closed forms, quadrature, and the same posterior in other units."""

import warnings
from functools import partial

import numpy as np
import pytest
from scipy import stats
from users_kernel import UsersKernel

import agp
from agp.backend import asarray_like, to_numpy
from agp.bounds import log_evidence, stacked_evidence, stacked_leave_one_out
from agp.kernels import RBF, Constant, Kernel, Linear, Matern52, Periodic
from agp.models import GPR, GPRMixture
from agp.training._hyper_prior import hyper_prior
from agp.training._importance import match_moments, sample_density, truncate
from agp.training._integrate import HyperPosterior
from agp.training._intervals import Intervals

RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, (14, 2))
Y = np.sin(2.0 * X[:, :1]) + 0.1 * RNG.standard_normal((14, 1))
NEW = RNG.uniform(-3.0, 3.0, (6, 2))


def kernel():
    return Matern52() + Linear.centred(X)


@pytest.fixture(scope="module")
def integral():
    return agp.integrate(GPR.from_data(X, Y, kernel=kernel()))


# -- the sampler ------------------------------------------------------------------------------------------------------


def _skew_normal(points):
    """A density with skewed, correlated coordinates, and its exact moments."""
    a = np.asarray([[1.0, 0.0], [0.6, 0.5]])
    z = np.linalg.solve(a, points.T).T
    return np.sum(stats.gamma.logpdf(np.exp(z), 3.0) + z, axis=1) - np.log(np.abs(np.linalg.det(a))) + 1.3


def test_moments_and_the_integral_of_a_density():
    from scipy.special import digamma, polygamma

    found = sample_density(_skew_normal, [(np.zeros(2), np.eye(2))], [256] * 6, 256)
    a = np.asarray([[1.0, 0.0], [0.6, 0.5]])
    mean, variance = a @ np.full(2, digamma(3.0)), np.diag(a @ a.T) * polygamma(1, 3.0)
    assert abs(found.log_total - 1.3) < 0.01  # the density integrates to exp(1.3)
    np.testing.assert_allclose(found.weights @ found.points, mean, atol=0.02)
    np.testing.assert_allclose(found.weights @ (found.points - mean) ** 2, variance, rtol=0.05)
    assert found.points.shape == (256, 2)
    assert found.effective > 256


def test_two_modes_have_their_shares():
    def density(points):
        parts = [stats.norm.logpdf(points[:, 0], at, 0.5) + np.log(w) for at, w in ((-4.0, 0.2), (3.0, 0.8))]
        return np.logaddexp(*parts)

    modes = [(np.asarray([-4.0]), np.eye(1) * 4.0), (np.asarray([3.0]), np.eye(1) * 4.0)]
    found = sample_density(density, modes, [256] * 6, 256)
    assert abs(found.weights[found.points[:, 0] < 0.0].sum() - 0.2) < 0.02


def test_density_that_is_never_finite():
    with pytest.raises(FloatingPointError, match="not finite at any point"):
        sample_density(lambda points: np.full(len(points), np.nan), [(np.zeros(1), np.eye(1))], [64], 16)


def test_weights_are_truncated_and_moments_matched():
    weights = truncate(np.asarray([0.97, 0.01, 0.01, 0.01]))
    assert weights[0] < 0.97
    assert np.isclose(weights.sum(), 1.0)
    points, others = RNG.standard_normal((300, 2)), 0.3 + 0.8 * RNG.standard_normal((4000, 2))
    equal = np.full(4000, 1.0 / 4000)
    tilted = match_moments(points, np.full(300, 1.0 / 300), others, equal)
    np.testing.assert_allclose(tilted @ points, equal @ others, atol=1e-3)
    np.testing.assert_allclose(tilted @ points**2, equal @ others**2, atol=5e-3)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_all_weight_on_one_point_is_no_obstacle(size):
    points = 9.0 + 1e-3 * RNG.normal(size=(32, size))
    alone = np.zeros(32)
    alone[7] = 1.0
    tilted = match_moments(points, truncate(RNG.uniform(size=32)), points + 1e-9, alone)
    assert np.isfinite(tilted).all()
    assert abs(tilted.sum() - 1.0) < 1e-12


@pytest.mark.parametrize("seed", [23, 47, 1])
def test_few_rows_without_noise(seed):
    # for the constant kernel, almost all weight is on a single setting
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(int(rng.integers(4, 9)), 2)).round(2)
    y = (100.0 * np.sin(3.0 * X[:, 0]) * X[:, 1] - 50.0).round(1)
    found = agp.fit_regression(X, y, likelihood=agp.Gaussian(0.0)).model
    assert np.max(np.abs(found.predict_mean(X)[:, 0] - y)) < 1e-3 * np.std(y)


# -- the posterior ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [{}, {"weights": 0.5 + X[:, 0] ** 2}, {"noise": 0.1 + X[:, 1] ** 2}], ids=str)
def test_evidence_of_a_stack_is_that_of_each_setting(known, backend):
    model = GPR.from_data(X, Y, kernel=kernel(), mean_function=agp.ZeroMean(), **known)
    at = HyperPosterior(model).settings(0.3 * RNG.standard_normal((5, 5)))
    on = [backend.move(one) for one in (at, model)]
    found = to_numpy(stacked_evidence(on[0].kernel, on[0].noise, on[1]._data))
    left = to_numpy(stacked_leave_one_out(on[0].kernel, on[0].noise, on[1]._data))
    mixture = GPRMixture((model,), (at,), np.full(5, 0.2))
    for s in range(5):
        one = mixture.setting(s)
        assert np.isclose(found[s], float(log_evidence(one, one._data)[0]), rtol=1e-10)
        np.testing.assert_allclose(left[s], one.leave_one_out(), rtol=1e-8)


def test_level_is_a_constant_kernel():
    model = GPR.from_data(X, Y, kernel=RBF(), mean_function=agp.ZeroMean())
    at = HyperPosterior(model).settings(0.3 * RNG.standard_normal((3, 4)))
    with_constant = GPRMixture((model,), (at,), np.full(3, 1.0 / 3.0))
    for s in range(3):
        one = with_constant.setting(s)
        added = GPR(one.kernel + Constant(np.asarray(7.0)), one.likelihood, X=X, y=Y)
        found = stacked_evidence(at.kernel, at.noise, model._data, level=np.asarray(7.0))
        assert np.isclose(found[s], float(log_evidence(added, added._data)[0]), rtol=1e-10)


def test_slope_of_the_posterior_is_its_difference_quotient():
    _check_slopes({"kernel.parts.0.lengthscale": agp.priors.Gamma(2.0, 1.0)}, 0.2)


def _check_slopes(priors, size):
    from agp.training._integrate import _Penalised
    from agp.training._newton import Evidence

    posterior = HyperPosterior(GPR.from_data(X, Y, kernel=kernel(), priors=priors))
    work, names, _ = posterior._with_level()
    objective = _Penalised(Evidence(work, posterior.batch, names), posterior.prior)
    point, h = size * RNG.standard_normal(posterior.prior.size), 1e-5
    slope = objective(point).slope
    for i, e in enumerate(np.eye(len(point))):
        pair = posterior.log_density(np.stack([point + h * e, point - h * e]))
        assert np.isclose(slope[i], (pair[0] - pair[1]) / (2.0 * h), rtol=1e-5, atol=1e-6)
    assert np.isclose(objective(point).value, posterior.log_density(point[None])[0], rtol=1e-10)


def test_scale_of_the_targets_is_almost_unknown():
    """The prior of all variances together is flat, compared with that of their ratios."""
    model = GPR.from_data(X, Y, kernel=kernel())
    prior = hyper_prior(model, [name for name in agp.tree.leaves(model, "parameter") if "mean" not in name])
    points = np.zeros((2, prior.size))
    leaves = [leaf.name for leaf in prior.coordinates.leaves]
    assert leaves[0].endswith("lengthscale")
    points[1, 2:] = np.log(100.0)  # after two lengthscales come the variances, slopes and noise
    change = np.diff(prior.log_density(points))[0]
    assert -0.2 < change < 0.0
    points[1, 2] = 0.0
    assert np.diff(prior.log_density(points))[0] < -3.0


def test_integral_over_two_hyperparameters_is_quadrature():
    """With the lengthscale known by a narrow prior, a grid gives the same predictions and evidence."""
    priors = {"kernel.lengthscale": agp.priors.LogNormal(0.0, 0.01)}
    kernel_of = RBF(lengthscale=np.asarray(1.0))
    model = GPR.from_data(X, Y, kernel=kernel_of, mean_function=agp.ZeroMean(), priors=priors)
    found = agp.integrate(model)
    posterior = HyperPosterior(model)
    axis = np.linspace(-9.0, 9.0, 91)
    grid = np.stack([g.ravel() for g in np.meshgrid([0.0], axis, axis, indexing="ij")], axis=1)
    assert posterior.prior.size == 3
    logs = posterior.log_density(grid)
    width = np.log((axis[1] - axis[0]) ** 2) + 0.5 * np.log(2.0 * np.pi) + np.log(0.01)
    assert abs(found.log_evidence - (np.logaddexp.reduce(logs) + width)) < 0.05
    shares = np.exp(logs - np.logaddexp.reduce(logs))
    kept = shares > 1e-9
    at = posterior.settings(grid[kept])
    exact = GPRMixture((model,), (at,), shares[kept] / shares[kept].sum())
    a, b = found.model.predict(NEW, observed=True), exact.predict(NEW, observed=True)
    np.testing.assert_allclose(a.mean, b.mean, atol=0.02)
    np.testing.assert_allclose(np.sqrt(a.variance), np.sqrt(b.variance), rtol=0.03)


def test_any_units_give_the_same_mixture(integral):
    a, c, d = np.asarray([1e-5, 1e4]), 1e5, -3e6
    moved = agp.integrate(GPR.from_data(a * X, c * Y + d, kernel=Matern52() + Linear.centred(a * X)))
    first, second = integral.model.predict(NEW, observed=True), moved.model.predict(a * NEW, observed=True)
    np.testing.assert_allclose((second.mean - d) / c, first.mean, atol=1e-6)
    np.testing.assert_allclose(second.variance / c**2, first.variance, rtol=1e-6)
    assert np.isclose(moved.log_evidence, integral.log_evidence - len(Y) * np.log(c), atol=1e-5)


def test_mixture_is_a_continuous_function_of_the_data(integral):
    first = integral.model.predict(NEW, observed=True)
    for size in (1e-9, 1e-5):
        moved = agp.integrate(GPR.from_data(X, Y + size * RNG.standard_normal(Y.shape), kernel=kernel()))
        found = moved.model.predict(NEW, observed=True)
        np.testing.assert_allclose(found.mean, first.mean, atol=1e3 * size)
        np.testing.assert_allclose(found.variance, first.variance, rtol=1e3 * size)


def test_libraries_give_the_same_mixture(integral, backend):
    found = agp.integrate(GPR.from_data(backend.array(X), backend.array(Y), kernel=backend.move(kernel())))
    first, second = integral.model.predict(NEW, observed=True), found.model.predict(backend.array(NEW), observed=True)
    np.testing.assert_allclose(to_numpy(second.mean), first.mean, atol=1e-7)
    np.testing.assert_allclose(to_numpy(second.variance), first.variance, rtol=1e-6)


def test_pure_noise_is_nearly_student_t():
    """With a constant function only, predictions are those of a normal distribution with unknown mean and variance."""
    y = np.random.default_rng(3).standard_normal((5, 1))
    model = agp.integrate(GPR.from_data(X[:5], y, kernel=Constant())).model
    ends = model.interval(NEW[:1], 0.9)
    exact = stats.t.interval(0.9, 4, y.mean(), y.std(ddof=1) * np.sqrt(1.2))
    width = (float(ends[1][0, 0]) - float(ends[0][0, 0])) / (exact[1] - exact[0])
    assert 0.85 < width < 1.2


def test_several_kernels_are_weighted_by_evidence():
    models = [GPR.from_data(X, Y, kernel=one) for one in (kernel(), Constant())]
    found = agp.integrate(models, shares=(1.0, 0.1))
    assert len(found.by_kernel) == 2
    shares = found.model.kernel_shares()
    assert np.isclose(sum(shares), 1.0)
    ratio = 0.1 * np.exp(found.by_kernel[1] - found.by_kernel[0])
    expected = max(ratio / (1.0 + ratio) - 1e-3, 0.0)
    assert abs((shares[1] if len(shares) > 1 else 0.0) - expected) < 1e-3
    assert found.model.mode.kernel.parts


def test_kernels_without_second_derivatives():
    class Mine(RBF):
        def linearise(self, _X):
            return None

    mine = agp.tree.model(Mine)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = agp.integrate(GPR.from_data(X, Y, kernel=mine()))
        usual = agp.integrate(GPR.from_data(X, Y, kernel=RBF()))
    a, b = found.model.predict(NEW, observed=True), usual.model.predict(NEW, observed=True)
    np.testing.assert_allclose(a.mean, b.mean, atol=0.03)
    np.testing.assert_allclose(np.sqrt(a.variance), np.sqrt(b.variance), rtol=0.05)


def test_present_values_are_a_start():
    """A periodic kernel keeps its period, which has no unit from the data."""
    x = np.linspace(0.0, 20.0, 40)[:, None]
    y = np.sin(2.0 * np.pi * x / 5.0)
    model = agp.integrate(GPR.from_data(x, y, kernel=Periodic(period=np.asarray(5.0)))).model
    assert abs(float(np.ravel(model.mode.kernel.period)[0]) - 5.0) < 0.2


def test_few_settings_and_float32():
    found = agp.integrate(GPR.from_data(X.astype(np.float32), Y.astype(np.float32), kernel=RBF()), settings=32).model
    assert found.shares.shape[0] <= 32
    assert found.predict(NEW.astype(np.float32)).mean.dtype == np.float32
    assert asarray_like(np.ones(1), found.X).dtype == np.float32


def test_wrong_arguments():
    model = GPR.from_data(X, Y)
    with pytest.raises(TypeError, match="integrate needs a GPR, but got SVGP"):
        agp.integrate(agp.SVGP.from_data(X, Y, num_inducing=4))
    with pytest.raises(ValueError, match="there are no models; pass at least one GPR"):
        agp.integrate([])
    with pytest.raises(ValueError, match="train it on the same data"):
        agp.integrate([model, GPR.from_data(X + 1.0, Y)])
    with pytest.raises(
        ValueError, match=r"shares is \(1.0,\), but must contain a positive number for each of 2 models"
    ):
        agp.integrate([model, model], shares=(1.0,))
    with pytest.raises(ValueError, match="settings"):
        agp.integrate(model, settings=1)


# -- limits -----------------------------------------------------------------------------------------------------------

BETWEEN = agp.priors.Between
INTERVALS = Intervals(np.asarray([-np.inf, -1.0, -np.inf, 0.5]), np.asarray([np.inf, np.inf, 2.0, 0.8]))


def test_coordinates_of_intervals_are_smooth_and_invertible():
    z = RNG.uniform(-6.0, 6.0, (50, 4))
    x, h = INTERVALS.points(z), 1e-6
    assert np.all((x >= INTERVALS.low) & (x <= INTERVALS.high))
    np.testing.assert_allclose(INTERVALS.coordinates(x), z, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(x[:, 0], z[:, 0])
    slope = (INTERVALS.points(z + h) - INTERVALS.points(z - h)) / (2.0 * h)
    np.testing.assert_allclose(INTERVALS.slopes(z), slope, rtol=1e-6)
    first, _ = INTERVALS.log_slope_terms(z[0])
    change = INTERVALS.log_slopes(z[0] + h) - INTERVALS.log_slopes(z[0] - h)
    np.testing.assert_allclose(first, change / (2.0 * h), rtol=1e-6, atol=1e-9)


def test_curvature_that_limits_add_is_that_of_a_mode():
    # f(x) = -a (x - b) has its mode at -a x' + (log x')' = 0
    for i, a in ((1, 3.0), (2, -2.0), (3, 9.0)):
        one = Intervals(INTERVALS.low[i : i + 1], INTERVALS.high[i : i + 1])

        def density(z, one=one, a=a):
            z = np.atleast_1d(z)
            return float(-a * one.points(z)[0] + one.log_slopes(z)[0])

        grid = np.linspace(-9.0, 9.0, 180_001)
        values = -a * one.points(grid[:, None])[:, 0] + one.log_slopes(grid[:, None])[:, 0]
        mode, h = float(grid[np.argmax(values)]), 1e-3
        second = -(density(mode + h) - 2.0 * density(mode) + density(mode - h)) / h**2
        assert np.isclose(one.log_slope_terms(np.asarray([mode]))[1][0], second, rtol=1e-3)


NOISE, ANY = "likelihood.noise_variance", (1e-9, 1e9)
LENGTHSCALE, EVERY = agp.priors.Gamma(3.0, 2.0), agp.priors.Relative(agp.priors.LogNormal(0.0, 0.5))
LIMITS = {  # the priors, the ends of both hyperparameters, and densities of logarithms beside weak priors
    "active": ({"*lengthscale": BETWEEN(0.3, 0.6), NOISE: BETWEEN(0.05)}, ((0.3, 0.6), (0.05, 1e9)), (None, None)),
    "wide": ({"*lengthscale": BETWEEN(*ANY), NOISE: BETWEEN(None, 1e9)}, (ANY, (1e-30, 1e9)), (None, None)),
    "far": ({"*lengthscale": BETWEEN(30.0), NOISE: BETWEEN(1e-9)}, ((30.0, 1e4), ANY), (None, None)),
    "densities": (
        {
            "kernel.lengthscale": LENGTHSCALE,
            "*.lengthscale": BETWEEN(None, 0.7),
            NOISE: agp.priors.HalfNormal(0.2),
            "*.noise_variance": BETWEEN(0.02, 0.05),
        },
        ((1e-4, 0.7), (0.02, 0.05)),
        (
            lambda _, t: LENGTHSCALE._entries(np.exp(t))[0] + t,
            lambda _, t: agp.priors.HalfNormal(0.2)._entries(np.exp(t))[0] + t,
        ),
    ),
    "entry": (
        {"kernel.lengthscale": EVERY, "*lengthscale[0]": BETWEEN(0.2, 0.7), NOISE: BETWEEN(1e-9)},
        ((0.2, 0.7), ANY),
        (lambda unit, t: EVERY._entries(np.exp(t) / unit)[0] + t, None),
    ),
}


def _truncated(log_density, low, high):
    """Return a grid [301] of logarithms, and the logarithms of the prior probabilities of its cells."""
    t = np.linspace(np.log(low), np.log(high), 301)
    logs = log_density(t)
    logs[[0, -1]] -= np.log(2.0)
    return t, logs - np.logaddexp.reduce(logs)


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.filterwarnings("ignore:.* is given as .* limits it to:UserWarning")
def test_integral_within_limits_is_quadrature(name):
    """The evidence is the average over priors that are truncated to the limits."""
    priors, ends, densities = LIMITS[name]
    priors = priors | {"kernel.variance": agp.priors.Fixed()}
    x, y = X[:, :1], Y[:, 0]
    start = np.asarray(0.5) if name != "entry" else np.asarray([0.5])
    model = GPR.from_data(x, y, kernel=RBF(lengthscale=start), mean_function=agp.ZeroMean(), priors=priors)
    found = agp.integrate(model)
    medians = float(np.squeeze(model.kernel.lengthscale_unit)), 0.05 * float(model.likelihood.noise_variance_unit)
    # the noise variance shares the factor of all variances, whose logarithm has standard deviation 10
    weak = [
        partial(stats.norm.logpdf, loc=np.log(a), scale=b)
        for a, b in zip(medians, (1.0, np.hypot(1.5, 10.0)), strict=True)
    ]
    axes = [
        _truncated(weak[i] if densities[i] is None else partial(densities[i], medians[0]), *ends[i]) for i in range(2)
    ]
    lengthscales, noises = np.exp(axes[0][0]), np.exp(axes[1][0])
    K = float(model.kernel.variance) * np.exp(-0.5 * (x - x.T) ** 2 / lengthscales[:, None, None] ** 2)
    values, vectors = np.linalg.eigh(K)
    squares = (vectors.mT @ y) ** 2
    total = np.maximum(values, 0.0)[:, None, :] + noises[:, None]
    evidence = -0.5 * np.sum(squares[:, None, :] / total + np.log(2.0 * np.pi * total), axis=-1)
    logs = evidence + axes[0][1][:, None] + axes[1][1]
    assert abs(found.log_evidence - np.logaddexp.reduce(logs, axis=None)) < 0.03
    shares = np.exp(logs - np.logaddexp.reduce(logs, axis=None))
    (settings,) = found.model.settings
    for i, sampled in enumerate((settings.kernel.lengthscale, settings.noise)):
        sampled, own = np.log(np.reshape(sampled, -1)), shares.sum(axis=1 - i)
        mean, deviation = own @ axes[i][0], np.sqrt(own @ axes[i][0] ** 2 - (own @ axes[i][0]) ** 2)
        weights = np.asarray(found.model.shares)
        assert abs(weights @ sampled - mean) < 0.1 * deviation
        assert abs(np.sqrt(weights @ (sampled - mean) ** 2) / deviation - 1.0) < 0.1
        assert np.all((sampled > np.log(ends[i][0])) & (sampled < np.log(ends[i][1])))


def test_slope_of_the_posterior_in_limits_is_its_difference_quotient():
    limits = {
        "kernel.parts.0.lengthscale[0]": BETWEEN(0.3, 3.0),
        "kernel.parts.0.lengthscale[1]": BETWEEN(None, 5.0),
        "likelihood.noise_variance": BETWEEN(1e-3),
        "kernel.parts.0.variance": agp.priors.Gamma(2.0, 1.0),
        "kernel.parts.0.varianc*": BETWEEN(0.1, 9.0),
    }
    _check_slopes(limits, 0.5)


@pytest.mark.filterwarnings("ignore:.* is given as .* limits it to:UserWarning")
def test_limits_in_other_units_give_the_same_mixture():
    def mixture(a, c):
        limits = {
            "kernel.lengthscale[0]": BETWEEN(a[0] * 0.3, a[0] * 0.6),
            "likelihood.noise_variance": BETWEEN(c * c * 0.01),
        }
        return agp.integrate(GPR.from_data(a * X, c * Y, kernel=Matern52(lengthscale=a), priors=limits))

    a, c = np.asarray([1e-5, 1e4]), 1e5
    first, second = mixture(np.ones(2), 1.0), mixture(a, c)
    assert np.isclose(second.log_evidence, first.log_evidence - len(Y) * np.log(c), atol=1e-5)
    one, other = first.model.predict(NEW, observed=True), second.model.predict(a * NEW, observed=True)
    np.testing.assert_allclose(other.mean / c, one.mean, atol=1e-6)
    np.testing.assert_allclose(other.variance / c**2, one.variance, rtol=1e-6)


@pytest.mark.parametrize("limits", [(0.1, 0.3), (0.6, 0.8), (0.7, None), (None, 0.2)])
@pytest.mark.parametrize("constraint", [agp.tree.POSITIVE, agp.tree.REAL], ids=str)
def test_starts_outside_limits_of_users_parameters(limits, constraint):
    """Parameters without a unit start at a limit, where the density has no difference quotients."""

    @agp.tree.model
    class Exchangeable(agp.kernels.Kernel):
        rho: object = agp.tree.param(constraint, default=0.5)

        def __call__(self, X, Z=None, /):
            equal = X @ (X if Z is None else Z).mT * 0.0 + ((X if Z is None else Z).mT == X)
            return self.rho + (1.0 - self.rho) * equal, None

        def diag(self, X, /):
            return X[:, 0] * 0.0 + 1.0, None

        def from_data(self, X, variance, /):
            return self

        def check(self, width, /):
            pass

    codes, y = np.arange(24.0)[:, None] % 4, np.sin(np.arange(24.0) % 4)
    priors = {"kernel.rho": BETWEEN(*limits)}
    found = agp.integrate(GPR.from_data(codes, y, kernel=Exchangeable(), priors=priors), settings=16).model
    for settings in found.settings:
        rho = np.asarray(settings.kernel.rho)
        assert np.all(rho > (limits[0] or -np.inf))
        assert np.all(rho < (limits[1] or np.inf))


# -- kernels without second derivatives -------------------------------------------------------------------------------


CALLS = []


@agp.tree.model
class Own(UsersKernel):
    """A user's kernel, which has pullbacks, but no second derivatives and no stacks."""

    inner: Kernel

    def __call__(self, X, Z=None, /):
        CALLS.append(Z is None)
        return super().__call__(X, Z)


@agp.tree.model
class OwnValues(UsersKernel):
    """A user's kernel without pullbacks."""

    inner: Kernel

    def __call__(self, X, Z=None, /):
        return self.inner(X, Z)[0]

    def diag(self, X, /):
        return self.inner.diag(X)[0]


@pytest.mark.parametrize("mean", ["constant", "zero"])
def test_slopes_of_the_density_follow_from_pullbacks(mean):
    mean_function = agp.means.ConstantMean() if mean == "constant" else agp.means.ZeroMean()
    priors = {
        "kernel.inner.variance": agp.priors.Gamma(2.0, 1.0),
        "likelihood.noise_variance": agp.priors.Between(0, 1),
    }
    model = GPR.from_data(X, Y, kernel=Own(kernel()), mean_function=mean_function)
    other = GPR.from_data(X, Y, kernel=Own(RBF()), mean_function=mean_function, priors=priors)
    for one in (model, other):
        posterior = HyperPosterior(one)
        slopes = posterior._slopes(*posterior._with_level())
        for start in posterior._starts():
            (value, slope), (expected, quotients) = slopes(start), posterior._differences(start)
            np.testing.assert_allclose(value, expected, rtol=1e-9)
            np.testing.assert_allclose(slope, quotients, rtol=1e-4, atol=1e-5)


def test_modes_of_own_kernels_take_few_evaluations():
    CALLS.clear()
    own = HyperPosterior(GPR.from_data(X, Y, kernel=Own(RBF()))).modes()
    assert len(CALLS) < 250
    without = HyperPosterior(GPR.from_data(X, Y, kernel=OwnValues(RBF()))).modes()
    best, expected = (max(modes, key=lambda mode: mode.value) for modes in (own, without))
    np.testing.assert_allclose(best.value, expected.value, atol=1e-3)
    np.testing.assert_allclose(best.vector, expected.vector, atol=0.02)
    np.testing.assert_allclose(best.information.dense(), expected.information.dense(), rtol=0.02, atol=0.02)
