"""Public entrances under what a user has set: NumPy's floating-point errors raised, and JAX programs around them."""

import warnings

import numpy as np
import pytest

from agp import GPR, SGPR, SVGP, Gaussian, fit_lbfgs, train, tree, value_and_gradient
from agp.kernels import (
    RBF,
    Constant,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
    White,
)
from agp.likelihoods import (
    Bernoulli,
    Beta,
    Exponential,
    Gamma,
    LatentNoiseGaussian,
    NegativeBinomial,
    Ordinal,
    Poisson,
    RobustMax,
    Softmax,
    StudentT,
)
from agp.models import CGGP, SOLVEGP, SOLVEGPR, TNNGP, TSVGP, TVGP, CaGP
from agp.posteriors import (
    DiagonalMarginal,
    DiagonalWhitened,
    Dual,
    DualInverseFree,
    FullSiteLikelihoodForm,
    FullSiteRelaxed,
    InverseFree,
    LikelihoodForm,
    Marginal,
    Relaxed,
    Whitened,
)
from agp.repairs import collect_reports

Q = (
    *(Whitened, Marginal, LikelihoodForm, Relaxed, InverseFree, Dual, DualInverseFree),
    *(DiagonalWhitened, DiagonalMarginal, FullSiteLikelihoodForm, FullSiteRelaxed),
)
MODELS = {
    q.__name__: (lambda X, y, q=q, **parts: SVGP.from_data(X, y, posterior=q, num_inducing=6, **parts)) for q in Q
}
MODELS |= {m.__name__: m.from_data for m in (GPR, SGPR, SOLVEGP, SOLVEGPR, TSVGP, TVGP, TNNGP, CGGP, CaGP)}

KERNELS = {
    "rbf": lambda: RBF(),
    "short": lambda: RBF(1.0, 1e-2),
    "matern12": lambda: Matern12(),
    "matern32": lambda: Matern32(),
    "matern52": lambda: Matern52(),
    "rational-quadratic": lambda: RationalQuadratic(),
    "periodic": lambda: Periodic(),
    "sum": lambda: Linear() + Constant() + White(),
    "product": lambda: 2.0 * RBF() * Linear().on((1,)),
}


def smooth():
    rng = np.random.default_rng(0)
    X = 3.0 * rng.normal(size=(24, 2))
    return X, np.sin(X[:, :1]), rng


def values():
    X, f, rng = smooth()
    return X, f + 0.1 * rng.normal(size=f.shape)


LIKELIHOODS = {
    "gaussian": (lambda: Gaussian(), lambda f, rng: f + 0.1 * rng.normal(size=f.shape)),
    "probit": (lambda: Bernoulli(), lambda f, rng: (f > 0.0) * 1.0),
    "squash": (lambda: Bernoulli(squash=1e-3), lambda f, rng: (f > 0.0) * 1.0),
    "logit": (lambda: Bernoulli(link="logit"), lambda f, rng: (f > 0.0) * 1.0),
    "student-t": (lambda: StudentT(), lambda f, rng: f),
    "poisson": (lambda: Poisson(), lambda f, rng: rng.poisson(np.exp(f)) * 1.0),
    "gamma": (lambda: Gamma(), lambda f, rng: np.exp(f) * rng.gamma(2.0, size=f.shape)),
    "exponential": (lambda: Exponential(), lambda f, rng: np.exp(f) * rng.exponential(size=f.shape)),
    "negative-binomial": (lambda: NegativeBinomial(), lambda f, rng: rng.poisson(np.exp(f)) * 1.0),
    "beta": (lambda: Beta(), lambda f, rng: 1.0 / (1.0 + np.exp(-f))),
    "beta-logit": (lambda: Beta(link="logit"), lambda f, rng: 1.0 / (1.0 + np.exp(-f))),
    "ordinal": (lambda: Ordinal(3), lambda f, rng: np.digitize(f, [-0.5, 0.5]) * 1.0),
    "latent-noise": (lambda: LatentNoiseGaussian(), lambda f, rng: f + 0.1 * rng.normal(size=f.shape)),
    "robustmax": (lambda: RobustMax(3), lambda f, rng: np.digitize(f, [-0.5, 0.5]) * 1.0),
    "softmax": (lambda: Softmax(3, samples=5, fixed_samples=20), lambda f, rng: np.digitize(f, [-0.5, 0.5]) * 1.0),
}


def everything(build, X, y, **known):
    """Every public entrance of a model, at rows near the data and far from them."""
    model = build(X, y, **known)
    value_and_gradient(model, X, y, **known)
    model.bound(X, y, **known)[1](1.0)
    model = train(model, X, y, steps=3, **known).model
    known.pop("weights", None)
    far = np.concatenate([X[:4], 100.0 * X[4:8]])
    for _ in range(2):
        model.predict(far)
        model.predict(far, observed=True)
        model.predict_mean(far)
        model.predict_covariance(far)
        model.sample(far, 2)
        model.log_density(X, y, **known)
        far = 1e3 * far
    return model


@pytest.fixture
def raising():
    """NumPy raises on underflow, overflow, division by zero and invalid operations, and does so afterwards."""
    with np.errstate(all="raise"), warnings.catch_warnings(), collect_reports():
        warnings.filterwarnings("ignore", message=".*numerical repairs")
        yield
        assert set(np.geterr().values()) == {"raise"}


@pytest.mark.parametrize("model", MODELS)
def test_models_where_numpy_raises(model, raising):
    everything(MODELS[model], *values())


@pytest.mark.parametrize("noise_variance", [0.0, None])
@pytest.mark.parametrize("model", MODELS)
def test_rows_with_weights_offsets_and_noise_where_numpy_raises(model, noise_variance, raising):
    X, y = values()
    known = {"weights": 0.5 + X[:, 0] ** 2, "offset": X[:, 1], "noise": 0.1 + X[:, 1] ** 2}
    everything(lambda *rows, **parts: MODELS[model](*rows, likelihood=Gaussian(noise_variance), **parts), X, y, **known)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("model", ["Relaxed", "GPR"])
def test_kernels_where_numpy_raises(kernel, model, raising):
    everything(lambda X, y: MODELS[model](X, y, kernel=KERNELS[kernel]()), *values())


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("posterior", ["Whitened", "Relaxed"])
def test_likelihoods_where_numpy_raises(likelihood, posterior, raising):
    build, targets = LIKELIHOODS[likelihood]
    X, f, rng = smooth()
    everything(lambda X, y: MODELS[posterior](X, y, likelihood=build()), X, targets(f, rng))


def test_the_rest_where_numpy_raises(raising):
    X, y = values()
    model = SGPR.from_data(X, y, kernel=RBF(1.0, 0.1), num_inducing=6)
    fit_lbfgs(model, X, y, max_iterations=3)
    model.upper_bound(X, y)
    CaGP.from_data(X, y, kernel=RBF(1.0, 0.1)).uncertainty(100.0 * X)


def test_overflow_stays_what_the_user_made_it():
    X, y = values()
    model = GPR.from_data(X, y, kernel=Linear())
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        model.predict(1e160 * X)


# -- JAX programs around predictions ----------------------------------------------------------------------------------


def predictions(model, X, y):
    """What a model says about new rows."""
    return {
        "latent": model.predict(X),
        "observed": model.predict(X, observed=True),
        "mean": model.predict_mean(X),
        "covariance": model.predict_covariance(X),
        "sample": model.sample(X, 2, seed=3),
        "density": model.log_density(X, y),
    }


def observations(model, X, y):
    return {"observed": model.predict(X, observed=True), "density": model.log_density(X, y)}


def compiles(predict, model, X, y, inside=False):
    """Predictions by a compiled program, the model its argument or inside it, are NumPy's."""
    jax = pytest.importorskip("jax", reason="jax is not installed: not executed")
    here, Xj, yj = (tree.to_backend(x, "jax") for x in (model, X, y))
    found = jax.jit(lambda X, y: predict(here, X, y))(Xj, yj) if inside else jax.jit(predict)(here, Xj, yj)
    for name, value in predict(model, X, y).items():
        for a, b in zip(jax.tree.leaves(found[name]), jax.tree.leaves(value), strict=True):
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-7, atol=1e-8, err_msg=name)


@pytest.mark.parametrize("model", MODELS)
def test_predictions_of_models_compile(model):
    X, y = values()
    compiles(predictions, MODELS[model](X, y), X[:6], y[:6])


@pytest.mark.parametrize("model", ["GPR", "Relaxed"])
def test_predictions_compile_with_the_model_inside(model):
    X, y = values()
    compiles(predictions, MODELS[model](X, y), X[:6], y[:6], inside=True)


@pytest.mark.parametrize("likelihood", sorted(set(LIKELIHOODS) - {"gaussian"}))
def test_predictions_of_likelihoods_compile(likelihood):
    build, targets = LIKELIHOODS[likelihood]
    X, f, rng = smooth()
    y = targets(f, rng)
    compiles(observations, MODELS["Whitened"](X, y, likelihood=build()), X[:6], y[:6])


def test_what_is_known_is_still_checked_while_compiling():
    jax = pytest.importorskip("jax", reason="jax is not installed: not executed")
    X, y = values()
    model, Xj = tree.to_backend(GPR.from_data(X, y), "jax"), tree.to_backend(X, "jax")
    with pytest.raises(ValueError, match="X has 1 column"):
        jax.jit(model.predict)(Xj[:, :1])
    with pytest.raises(TypeError, match="X has dtype float32"):
        jax.jit(model.predict)(Xj.astype("float32"))
