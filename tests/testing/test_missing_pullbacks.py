"""Parts whose methods return no pullback: torch and JAX derive it, and NumPy says what to do."""

import numpy as np
import pytest
from helpers import toy_data

import agp
from agp import tree
from agp.likelihoods import Likelihood, Prediction, expectation, log_expectation
from agp.posteriors import WhitePosterior, WhiteState
from agp.tree import POSITIVE

X, Y = toy_data(30)
RATES = np.exp(Y)


@tree.model
class Cauchy(agp.kernels.Stationary):
    def profile(self, r2, /):
        return 1.0 / (1.0 + r2), None


@tree.model
class Power(agp.kernels.Stationary):
    """A profile with a parameter of its own, and neither a slope nor `shape_slopes`."""

    power: object = tree.param(POSITIVE, default=1.5)

    def profile(self, r2, /):
        return (1.0 + r2) ** -self.power, None


@tree.model
class PowerWithSlope(Power):
    def profile(self, r2, /):
        base = 1.0 + r2
        return base**-self.power, lambda: -self.power * base ** (-self.power - 1.0)


@tree.model
class Squared(agp.kernels.Kernel):
    variance: object = tree.param(POSITIVE, default=1.0)

    def __call__(self, X, Z=None, /):
        return self.variance * (X @ (X if Z is None else Z).mT) ** 2, None

    def diag(self, X, /):
        return self.variance * agp.backend_of(X).xp.sum(X * X, axis=1) ** 2, None

    def from_data(self, X, variance, /):
        return self

    def check(self, width, /):
        pass


@tree.model
class Alone(Squared):
    """A kernel whose methods return the values alone."""

    def __call__(self, X, Z=None, /):
        return self.variance * (X @ (X if Z is None else Z).mT) ** 2

    def diag(self, X, /):
        return self.variance * agp.backend_of(X).xp.sum(X * X, axis=1) ** 2


@tree.model
class Slope(agp.means.Mean):
    coefficients: object = tree.param(default=(0.5, -0.2))

    def __call__(self, X, /):
        return X @ self.coefficients[:, None], None

    def from_data(self, X, level, spread, /):
        return self

    def check(self, width, outputs, /):
        pass


@tree.model
class Laplace(Likelihood):
    scale: object = tree.param(POSITIVE, default=0.3)

    def _log_density(self, f, y):
        xp = agp.backend_of(f).xp
        return -xp.sqrt(1e-3 + (f - y) ** 2) / self.scale - xp.log(2.0 * self.scale), None

    def expected_log_density(self, mu, var, y, /, draws=None):
        return expectation(self._log_density, mu, var, y, 12)

    def predict(self, mu, var, /):
        return Prediction(mu, var + 2.0 * self.scale**2)

    def predictive_log_density(self, mu, var, y, /):
        return agp.backend_of(mu).xp.sum(log_expectation(self._log_density, mu, var, y, 12), axis=-1)


@tree.model
class Lambda(Laplace):
    """A likelihood whose log density is another function, which returns its value alone."""

    def _by_value(self, f, y):
        return Laplace._log_density(self, f, y)[0]

    def expected_log_density(self, mu, var, y, /, draws=None):
        return expectation(lambda f, y: self._by_value(f, y), mu, var, y, 20)

    def predictive_log_density(self, mu, var, y, /):
        return agp.backend_of(mu).xp.sum(log_expectation(self._by_value, mu, var, y, 20), axis=-1)


@tree.model
class Two(Lambda):
    """A likelihood that adds two expectations, one of them with None as the pullback."""

    def expected_log_density(self, mu, var, y, /, draws=None):
        parts = (lambda f, y: (0.5 * self._by_value(f, y), None)), (lambda f, y: 0.5 * self._by_value(f, y))
        return sum(expectation(part, mu, var, y, 20)[0] for part in parts)


@tree.model
class Moments(Laplace):
    """A likelihood whose expectation returns no pullback itself."""

    def expected_log_density(self, mu, var, y, /, draws=None):
        xp = agp.backend_of(mu).xp
        return -xp.sum(0.5 * ((y - mu) ** 2 + var) / self.scale + xp.log(self.scale), axis=1), None


@tree.model
class MeanField(WhitePosterior, WhiteState):
    mean: object = tree.param()
    deviation: object = tree.param(POSITIVE)

    @property
    def outputs(self):
        return self.mean.shape[1]

    def whitened_state(self, Lu, /):
        return self, None

    def white_moments(self, A, /):
        return (A.mT @ self.mean, (A * A).mT @ self.deviation**2), None

    def white_covariance(self, A, /):
        scaled = self.deviation.mT[:, :, None] * A
        return scaled.mT @ scaled

    def white_kl(self):
        xp, m, d = agp.backend_of(self.mean).xp, self.mean, self.deviation
        return xp.sum(0.5 * (m * m + d * d - 1.0) - xp.log(d)), None

    @classmethod
    def from_prior(cls, Kuu, outputs, /):
        zeros = agp.backend_of(Kuu).xp.zeros((Kuu.shape[0], outputs), **agp.backend.like(Kuu))
        return cls(zeros, zeros + 1.0)


@tree.model
class InnerState(WhiteState):
    mean: object = tree.auxiliary()
    deviation: object = tree.auxiliary()

    white_moments = MeanField.white_moments
    white_covariance = MeanField.white_covariance
    white_kl = MeanField.white_kl


@tree.model
class ByValues(MeanField):
    """The mean is that of u itself, so the state depends on Lu."""

    def whitened_state(self, Lu, /):
        return InnerState(agp.backend_of(Lu).solve_triangular(Lu, self.mean), self.deviation), None

    white_mean = None


@tree.model
class OwnFactor(agp.posteriors.Posterior):
    """A posterior with a plain tuple as its factor: q(u) = N(m, s^2 Kuu)."""

    mean: object = tree.param()
    share: object = tree.param(POSITIVE)

    @property
    def outputs(self):
        return self.mean.shape[1]

    def factorise(self, Kuu, /):
        xp = agp.backend_of(Kuu).xp
        return (xp.linalg.solve(Kuu, self.mean), Kuu), None

    def project(self, factor, Kuf, kff, /):
        xp, (weights, Kuu) = agp.backend_of(Kuf).xp, factor
        q = xp.sum(Kuf * xp.linalg.solve(Kuu, Kuf), axis=0)
        var = kff - (1.0 - self.share**2) * q
        return (Kuf.mT @ weights, xp.broadcast_to(var[:, None], (Kuf.shape[1], self.outputs))), None

    def kl_divergence(self, factor, /):
        xp, (weights, Kuu) = agp.backend_of(self.mean).xp, factor
        spread = 0.5 * Kuu.shape[0] * self.outputs * (self.share**2 - 1.0 - 2.0 * xp.log(self.share))
        return 0.5 * xp.sum(weights * self.mean) + spread, None

    def project_mean(self, factor, Kuf, /):
        return Kuf.mT @ factor[0]

    def project_covariance(self, factor, Kuf, Kff, /):
        xp = agp.backend_of(Kuf).xp
        inner = Kff - (1.0 - self.share**2) * Kuf.mT @ xp.linalg.solve(factor[1], Kuf)
        return xp.broadcast_to(inner, (self.outputs, *inner.shape))

    @classmethod
    def from_prior(cls, Kuu, outputs, /):
        xp, like = agp.backend_of(Kuu).xp, agp.backend.like(Kuu)
        return cls(xp.zeros((Kuu.shape[0], outputs), **like), xp.asarray(1.0, **like))


def sparse(y=Y, **parts):
    return lambda: (agp.SVGP.from_data(X, y, **{"num_inducing": 5, "posterior": "whitened"} | parts), X, y)


CASES = {
    "profile": sparse(kernel=Cauchy()),
    "profile with a parameter": sparse(kernel=Power()),
    "parameter without slopes": sparse(kernel=PowerWithSlope()),
    "kernel": sparse(kernel=Squared() + 0.5 * agp.RBF()),
    "kernel that returns values": sparse(kernel=Alone()),
    "kernel on a column": sparse(kernel=agp.RBF() * Cauchy().on((1,))),
    "mean": sparse(mean_function=Slope()),
    "log density": sparse(likelihood=Laplace()),
    "log density of another name": sparse(likelihood=Lambda()),
    "two log densities": sparse(likelihood=Two()),
    "expectation": sparse(likelihood=Moments()),
    "state": sparse(posterior=MeanField),
    "state in values": sparse(posterior=ByValues),
    "posterior": sparse(posterior=OwnFactor),
    "exact": lambda: (agp.GPR.from_data(X, Y, kernel=Power(), mean_function=Slope()), X, Y),
    "collapsed": lambda: (agp.SGPR.from_data(X, Y, kernel=Squared() + Cauchy(), num_inducing=5), X, Y),
    "neighbours": lambda: (agp.VIF.from_data(X, Y, kernel=Power(), num_inducing=4, neighbours=3), X, Y),
}


def moved(case, backend):
    model, *data = CASES[case]()
    raw = tree.unconstrain(model)
    rng = np.random.default_rng(0)
    model = tree.constrain(model, {name: x + 0.2 * rng.standard_normal(x.shape) for name, x in raw.items()})
    return [agp.to_backend(x, backend) for x in (model, *data)]


@pytest.mark.parametrize("case", CASES)
def test_both_gradients_agree_on_torch(case, torch_place):
    given = moved(case, "torch")
    value, gradient = agp.value_and_gradient(*given)
    other, expected = agp.value_and_gradient(*given, gradient="autodiff")
    assert float(value) == pytest.approx(float(other), rel=1e-12)
    size = max(float(x.abs().max()) for x in expected.values())
    for name, x in expected.items():
        np.testing.assert_allclose(gradient[name], x, rtol=1e-8, atol=1e-10 * size, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["profile with a parameter", "kernel", "log density", "state in values"])
def test_both_gradients_agree_on_jax(case):
    jax = pytest.importorskip("jax")
    given = moved(case, "jax")
    gradient, expected = (
        jax.jit(lambda *given, mode=mode: agp.value_and_gradient(*given, gradient=mode)[1])(*given)
        for mode in ("closed-form", "autodiff")
    )
    size = max(float(abs(x).max()) for x in expected.values())
    for name, x in expected.items():
        np.testing.assert_allclose(gradient[name], x, rtol=1e-8, atol=1e-10 * size, err_msg=name)


@pytest.mark.parametrize(
    ("case", "where"),
    [
        ("profile", "Cauchy.profile"),
        ("kernel", "Squared.__call__"),
        ("kernel that returns values", "Alone.__call__"),
        ("parameter without slopes", "PowerWithSlope.profile"),
        ("mean", "Slope.__call__"),
        ("log density", "Laplace._log_density"),
        ("log density of another name", "Lambda.expected_log_density"),
        ("two log densities", "Two.expected_log_density"),
        ("state", "MeanField"),
        ("posterior", "OwnFactor"),
    ],
)
def test_numpy_predicts_and_names_the_remedy(case, where):
    model, X, y = CASES[case]()
    assert np.isfinite(model.bound(X, y)[0])
    assert np.isfinite(model.predict(X).mean).all()
    with pytest.raises(TypeError, match=rf"{where}.* returned no pullback, and numpy has no automatic") as caught:
        agp.value_and_gradient(model, X, y)
    assert "agp.to_backend(model, 'torch')" in str(caught.value)


@pytest.mark.parametrize("case", ["profile with a parameter", "log density", "posterior"])
def test_such_parts_are_trained_on_torch(case, torch_place):
    model, *data = [agp.to_backend(x, "torch") for x in CASES[case]()]
    trained = agp.train(model, *data, steps=10).model
    assert float(trained.bound(*data)[0]) > float(model.bound(*data)[0])
    fitted = agp.fit(model, *data, tolerance=0.5).model
    assert float(fitted.bound(*data)[0]) > float(model.bound(*data)[0])


def test_parameters_of_a_profile_need_slopes_for_second_derivatives():
    assert PowerWithSlope(1.0, 1.0).linearise(X) is None
    assert Cauchy().linearise is not None
    model, *data = [agp.to_backend(x, "torch") for x in CASES["exact"]()]
    assert agp.fit(model, *data, tolerance=0.5).model.kernel.linearise(data[0]) is None


def test_the_classes_of_agp_stay_as_they_are():
    assert agp.posteriors.Whitened.white_moments.__qualname__ == "Whitened.white_moments"
    assert not hasattr(agp.posteriors.Whitened.white_moments, "__wrapped__")
    assert hasattr(MeanField.white_moments, "__wrapped__")


@tree.model
class CauchyWithSlope(agp.kernels.Stationary):
    def profile(self, r2, /):
        return 1.0 / (1.0 + r2), lambda: -1.0 / (1.0 + r2) ** 2


@pytest.mark.parametrize(
    "options",
    [{}, {"hyperparameters": "mode"}, {"hyperparameters": "mixture"}, {"method": "sgpr"}, {"labels": True}],
    ids=str,
)
def test_searches_take_kernels_without_pullback(torch_place, options):
    """The same kernel with pullbacks gives the same predictions."""
    labels = options.get("labels", False)
    x, targets = torch_place.array(X), torch_place.array((np.sign(Y - np.median(Y)) > 0) * 1.0 if labels else Y)
    fit = agp.fit_classification if labels else agp.fit_regression
    settings = {name: value for name, value in options.items() if name != "labels"}
    means = [
        agp.to_numpy(fit(x, targets, kernel=kernel, **settings).model.predict_mean(x))
        for kernel in (Cauchy(), CauchyWithSlope())
    ]
    np.testing.assert_allclose(means[0], means[1], atol=2e-3)
