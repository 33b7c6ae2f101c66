"""What somebody else's program does with the package, annotated as their checker wants it: see test_downstream.py."""

import importlib.util
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, assert_type

import numpy as np
import numpy.typing as npt

import agp
from agp.backend import Array, Pullback
from agp.bounds import Batch
from agp.estimators import GPClassifier, GPRegressor
from agp.kernels import Stationary
from agp.likelihoods import Likelihood, Prediction, expectation, log_expectation
from agp.posteriors import Posterior
from agp.priors import Gamma, LogNormal
from agp.training import FitResult, GrowthResult, LBFGSResult, Progress
from agp.tree import POSITIVE
from agp.updates import Adam, Group

Numbers = npt.NDArray[np.float64]
Factor = TypeVar("Factor")


# -- parts of one's own -----------------------------------------------------------------------------------------------


@agp.tree.model
class Cauchy(Stationary):
    """k(x, z) = variance / (1 + r2)."""

    def profile(self, r2: Array, /) -> tuple[Array, Pullback]:
        g = 1.0 / (1.0 + r2)
        return g, lambda: -g * g


@agp.tree.model
class Laplace(Likelihood):
    """p(y | f) = exp(-|y - f| / b) / (2 b)."""

    scale: Array = agp.tree.param(POSITIVE, default=0.2)

    def _log_density(self, f: Array, y: Array) -> tuple[Array, Pullback]:
        xp, b = agp.backend_of(f).xp, self.scale
        distance = xp.abs(y - f)

        def pullback(bar: Array) -> tuple["Laplace", Array]:
            scale_bar = xp.sum(bar * (distance / b - 1.0)) / b
            return agp.tree.cotangent(self, scale=scale_bar), bar * xp.sign(y - f) / b

        return -distance / b - xp.log(2.0 * b), pullback

    def expected_log_density(
        self, mu: Array, var: Array, y: Array, /, draws: Mapping[str, Array] | None = None
    ) -> tuple[Array, Pullback]:
        return expectation(self._log_density, mu, var, y, 20)

    def predict(self, mu: Array, var: Array, /) -> Prediction:
        return Prediction(mu, var + 2.0 * self.scale**2)

    def predictive_log_density(self, mu: Array, var: Array, y: Array, /) -> Array:
        return agp.backend_of(mu).xp.sum(log_expectation(self._log_density, mu, var, y, 20), axis=-1)

    def from_data(self, variance: Array, /) -> "Laplace":
        return self

    def check_targets(self, y: Array, /) -> None:
        if not bool(agp.backend_of(y).xp.all(agp.backend_of(y).xp.isfinite(y))):
            msg = "targets must be finite."
            raise ValueError(msg)


# -- programs ---------------------------------------------------------------------------------------------------------


def made_up(rows: int, seed: int = 0) -> tuple[Numbers, Numbers]:
    """Inputs [N, 2] and targets [N, 1]."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (rows, 2))
    return X, np.sin(2.0 * X[:, :1]) + 0.1 * rng.standard_normal((rows, 1))


def regression(folder: Path) -> float:
    """A model from data to predictions, and back from its file."""
    X, y = made_up(60)
    kernel = agp.Matern52() + agp.RBF(lengthscale=(0.5,)).on((1,)) * agp.Linear().on([0])
    priors = {"kernel.parts.0.lengthscale": LogNormal(0.0, 1.0), "likelihood.noise_variance": Gamma(2.0, 10.0)}
    model = agp.SGPR.from_data(X, y, kernel=kernel, num_inducing=10, priors=priors)
    result = agp.fit(model, X, y)
    assert result.message
    assert result.converged
    assert result.frozen == ()
    assert agp.summary(result.model, columns=["left", "right"]).startswith("SGPR")

    trained = result.model
    predictor = trained.predictor()
    prediction = predictor.predict(X, observed=True)
    mean: Numbers = prediction.mean
    slopes = predictor.gradient(X)
    lower, upper = predictor.interval(X, 0.9)
    medians = predictor.quantile(X, 0.5)
    several = predictor.quantile(X, (0.1, 0.9))
    seen = predictor.condition_on(X[:2], y[:2])
    samples = predictor.sample(X[:5], 3, seed=1)
    functions = seen.sample_functions(2)
    assert functions(X).shape == (2, 60, 1)
    assert functions.gradient(X).shape == (2, 60, 1, 2)
    assert predictor.predict_covariance(X[:3]).shape == (1, 3, 3)
    assert samples.shape == (3, 5, 1)
    assert several.shape == (2, 60, 1)
    assert slopes.mean.shape == (60, 1, 2)
    assert bool(np.all((lower <= medians) & (medians <= upper)))

    agp.save(trained, folder / "model.safetensors")
    again = agp.load(folder / "model.safetensors")
    assert isinstance(again, agp.SGPR)
    assert np.array_equal(again.predict(X, observed=True).mean, mean)
    return float(predictor.log_density(X, y).sum()) + float(mean.sum())


def chosen_for_me() -> float:
    """A kernel and a posterior chosen by `fit_regression`, and the scores of its predictions."""
    X, y = made_up(60)
    result = agp.fit_regression(X, y, kernel=agp.Matern32(), weights=np.ones(60), max_seconds=20.0, seed=1)
    names: list[str] = [candidate.kernel for candidate in result.candidates]
    seconds: float = sum(stage.seconds for stage in result.stages)
    assert result.learned
    assert result.kernel in names
    assert result.describe().endswith(result.message)

    predictor: agp.Predictor = result.model.predictor()
    below: Numbers = predictor.cdf(X, y)
    assert predictor.pit(X, y, seed=1).shape == below.shape == (60, 1)
    return seconds + result.log_density - result.baseline + float(predictor.crps(X, y).mean())


def likelihoods() -> list[tuple[int, ...]]:
    """Counts, classes and long tails, under several kernels."""
    X, y = made_up(40)
    counts = np.floor(np.exp(y + 1.0))
    kernels = (
        agp.RBF(variance=2.0),
        agp.Periodic(period=3.0),
        agp.RationalQuadratic(),
        agp.Seasonal(period=7.0) * agp.RBF(),
    )
    problems: list[tuple[Likelihood, Numbers]] = [
        (agp.Poisson(), counts),
        (agp.StudentT(), y),
        (agp.Bernoulli(), (y > 0.0).astype(np.float64)),
        (agp.NegativeBinomial(), counts),
    ]
    shapes: list[tuple[int, ...]] = []
    for (likelihood, targets), kernel in zip(problems, kernels, strict=True):
        model = agp.SVGP.from_data(X, targets, kernel=kernel, likelihood=likelihood, num_inducing=6)
        prediction: Prediction = agp.train(model, X, targets, steps=2).model.predict(X, observed=True)
        shapes.append(tuple(prediction.mean.shape))
    return shapes


def known_of_rows() -> list[float]:
    """Weights, offsets and known noise, in training and in predictions."""
    X, y = made_up(40)
    ones, variances = np.ones(40), np.full(40, 0.01)
    model = agp.SVGP.from_data(X, y, weights=ones, offset=0.1 * ones, noise=variances, num_inducing=6)
    model = agp.train(model, X, y, steps=2, weights=ones, offset=0.1 * ones, noise=variances).model
    fitted = agp.fit(model, X, y, weights=ones, offset=0.1 * ones, noise=variances, max_steps=2).model
    exact = agp.GPR.from_data(X, y, likelihood=agp.Gaussian(0.0), noise=variances)
    predictor: agp.Predictor = exact.predictor().condition_on(X[:2], y[:2], noise=variances[:2], weights=ones[:2])
    prediction: Prediction = predictor.predict(X, observed=True, offset=ones, noise=variances)
    bounds = (fitted.bound(X, y, weights=ones, noise=variances)[0], exact.bound(X, y)[0])
    batch = Batch(X, y, weights=ones, noise=variances[:, None])
    assert batch.offset is None
    return [*map(float, bounds), float(prediction.variance.min())]


def stochastic() -> float:
    """Updates, groups, callbacks; bounds and gradients for optimisers of one's own."""
    X, y = made_up(80)
    model = agp.SVGP.from_data(X, y, kernel=Cauchy(), likelihood=Laplace(), posterior="whitened", num_inducing=8)
    steps: list[int] = []

    def noted(progress: Progress) -> bool:
        steps.append(progress.step)
        return progress.step >= 4

    updates = [Adam(0.01, groups={"Z": Group(1e-3)}, frozen="likelihood.*")]
    result = agp.train(model, X, y, steps=10, batch_size=20, updates=updates, callbacks=[noted])
    result = agp.train(result.model, X, y, steps=3, updates=agp.recipe(result.model, 3))
    value, gradient = agp.value_and_gradient(result.model, X, y)
    vector, unflatten = agp.flatten(result.model)
    again = unflatten(vector)
    assert sorted(gradient) == sorted(agp.tree.unconstrain(again))
    assert {leaf.role for leaf in agp.tree.describe(again)} == {"parameter", "constant"}
    return float(value) + float(again.bound(X, y)[0]) + len(steps)


def several_outputs() -> tuple[int, ...]:
    """Processes as parts, missing targets, and covariances between outputs."""
    X, y = made_up(50)
    both = np.concatenate([y, np.where(X[:, :1] > 0.0, np.nan, 1.0 - y)], axis=1)
    noise = agp.Gaussian(missing=True)
    model = agp.SVGP.from_data(X, both, outputs="separate", likelihood=noise, num_inducing=8)
    seen = model.predictor().condition_on(X[:3], both[:3])
    return tuple(seen.predict_covariance(X[:4], cross_outputs=True).shape)


def constructors() -> list[tuple[int, ...]]:
    """Arguments that models share, and arguments of one class."""
    X, y = made_up(40)
    kernel, priors = agp.RBF(), {"likelihood.noise_variance": Gamma(2.0, 10.0)}
    models: list[agp.models.Model] = [
        agp.GPR.from_data(X, y, kernel=kernel, priors=priors, weights=np.ones(40)),
        agp.SGPR.from_data(X, y, kernel=kernel, mean_function=agp.ZeroMean(), Z=X[:6], weights=np.ones(40)),
        agp.SVGP.from_data(
            X, y, kernel=kernel, outputs="shared", posterior="whitened", inducing="random", num_inducing=6
        ),
        agp.SOLVEGP.from_data(X, y, kernel=kernel, num_inducing=4, num_orthogonal=3, seed=1, jitter=1e-5),
        agp.CGGP.from_data(X, y, kernel=kernel, likelihood=agp.Gaussian(0.1), rank=3, tolerance=1e-3),
        agp.DeepGP.from_data(X, y, kernel=kernel, layers=2, num_inducing=[4, 5], prediction_samples=3),
    ]
    return [tuple(model.predict(X).mean.shape) for model in models[:2]]


def types() -> None:
    """What a checker knows of results: the class of the model, and of the factor of its posterior."""
    X, y = made_up(40)
    exact = agp.fit(agp.GPR.from_data(X, y), X, y, max_steps=2)
    assert_type(exact, FitResult[agp.GPR])
    assert_type(exact.model, agp.GPR)
    assert_type(agp.train(agp.SVGP.from_data(X, y, num_inducing=5), X, y, steps=2).model, agp.SVGP)
    small = agp.SGPR.from_data(X, y, num_inducing=5)
    assert_type(agp.fit_lbfgs(small, X, y, max_iterations=2), LBFGSResult[agp.SGPR])
    assert_type(agp.fit_growing(small, X, y, most=6, max_steps=2), GrowthResult[agp.SGPR])
    chosen = agp.fit_regression(X, y, max_seconds=5.0).model
    assert_type(chosen, agp.GPR | agp.GPRMixture | agp.SVGP | agp.NNGP | agp.VIF)
    assert_type(GPRegressor(method="gpr").fit(X, y[:, 0]).model_, agp.models.Model)
    prediction = exact.model.predict(X)
    assert_type(np.sqrt(prediction.variance) + prediction.mean, Array)

    covariance = agp.RBF(1.0, 1.0)(X[:5])[0]
    whitened = agp.posteriors.Whitened.from_prior(covariance, 1)
    assert_type(whitened.factorise(covariance)[0], agp.posteriors.WhiteFactor)
    assert_type(shape_of(whitened, covariance), agp.posteriors.WhiteFactor)
    assert_type(agp.SVGP.from_data(X, y, num_inducing=5).posterior, Posterior[Any])


def shape_of(posterior: Posterior[Factor], covariance: Array) -> Factor:
    """The factor of any posterior; its KL divergence is a number."""
    factor = posterior.factorise(covariance)[0]
    assert posterior.kl_divergence(factor)[0].shape == ()
    return factor


def elsewhere() -> None:
    """The same model on another array library."""
    if importlib.util.find_spec("torch") is None:
        return
    X, y = made_up(20)
    model = agp.to_backend(agp.GPR.from_data(X, y), "torch")
    inputs = agp.to_backend(X, "torch")
    mean = agp.to_numpy(model.predict(inputs).mean)
    assert mean.shape == (20, 1)


def estimators() -> float:
    """scikit-learn's conventions."""
    X, y = made_up(60)
    regressor = GPRegressor(method="sgpr", num_inducing=8).fit(X, y[:, 0])
    mean, deviation = regressor.predict(X, return_std=True)
    lower, upper = regressor.predictor_.interval(regressor.model_inputs(X), 0.95)
    bands = regressor.predict_interval(X, 0.9)
    quantiles: Numbers = regressor.predict_quantiles(X, (0.1, 0.9))
    draws = regressor.sample(X[:5], 3, random_state=0)
    assert bands.shape == quantiles.shape == (60, 2)
    assert draws.shape == (5, 3)
    assert regressor.log_density(X, y[:, 0]).shape == (60,)
    counted = GPRegressor(method="wsvgp", likelihood="poisson", num_inducing=8, max_steps=5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", agp.errors.ConvergenceWarning)  # five steps
        counted.fit(X, np.floor(np.exp(y[:, 0] + 1.0)), exposure=np.ones(60), sample_weight=np.ones(60))
    assert counted.predict(X, exposure=2.0 * np.ones(60)).shape == (60,)
    measured = GPRegressor(method="gpr", kernel="rbf").fit(X, y[:, 0], noise=np.full(60, 0.01))
    assert measured.predict_interval(X, 0.9, noise=np.full(60, 0.01)).shape == (60, 2)
    classifier = GPClassifier(method="wsvgp", num_inducing=8).fit(X, y[:, 0] > 0.0)
    probabilities: Numbers = classifier.predict_proba(X)
    labels = classifier.predict(X)
    assert probabilities.shape == (60, 2)
    assert len(labels) == len(mean) == len(deviation) == len(lower) == len(upper)
    return regressor.score(X, y[:, 0]) + classifier.score(X, y[:, 0] > 0.0)


def main() -> None:
    """All of it."""
    with tempfile.TemporaryDirectory() as folder:
        assert np.isfinite(regression(Path(folder)))
    assert np.isfinite(chosen_for_me())
    assert likelihoods() == [(40, 1)] * 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", agp.errors.ConvergenceWarning)  # two steps
        assert np.isfinite(known_of_rows()).all()
    assert np.isfinite(stochastic())
    assert several_outputs() == (4, 2, 4, 2)
    assert constructors() == [(40, 1)] * 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", agp.errors.ConvergenceWarning)  # two steps
        types()
    assert estimators() > 1.0
    elsewhere()


if __name__ == "__main__":
    main()
