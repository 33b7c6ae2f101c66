"""What somebody else's program does with tables, as `downstream.py` does with models: see test_downstream.py."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import assert_type

import numpy as np
import numpy.typing as npt

import agp
from agp.errors import ConvergenceWarning, Interrupted
from agp.estimators import GPClassifier, GPRegressor
from agp.inspection import kernel_relevance, permutation_importance
from agp.kernels import Kernel
from agp.likelihoods import Prediction
from agp.metrics import interval_coverage
from agp.predictors import Predictor
from agp.priors import Between, Fixed, LogNormal, Prior

Numbers = npt.NDArray[np.float64]


def concrete(rows: int, seed: int = 0) -> tuple[dict[str, Numbers], Numbers]:
    """Columns of a table, and a target."""
    rng = np.random.default_rng(seed)
    columns = {"age": rng.uniform(1.0, 90.0, rows), "water": rng.uniform(120.0, 240.0, rows)}
    strength = 20.0 + 8.0 * np.log(columns["age"]) - 0.1 * columns["water"] + rng.standard_normal(rows)
    return columns, strength


def regression(folder: Path) -> float:
    """Train, predict with error bars, explain, save and load."""
    columns, y = concrete(80)
    X = np.stack([*columns.values()], axis=1)
    kernel: Kernel = agp.Matern52(lengthscale=[30.0, 50.0])
    priors: dict[str, Prior] = {"likelihood.noise_variance": Between(1e-3, 100.0), "kernel.*": LogNormal(0.0, 10.0)}
    regressor = GPRegressor(kernel=kernel, priors=priors, frozen=("kernel.lengthscale[1]",), random_state=0)
    trained = regressor.fit(X, y)
    assert_type(trained, GPRegressor)
    assert_type(trained.bound_, float)
    assert_type(trained.predictor_, Predictor)
    prediction: Prediction = trained.predictor_.predict(trained.model_inputs(X), observed=True)
    assert prediction.variance.shape == (80, 1)
    names: list[str] = trained.model_columns()
    facts: dict[str, str] = trained.facts()
    assert len(names) == 2
    assert facts
    agp.save(trained, folder / "regressor.safetensors")
    again = agp.load(folder / "regressor.safetensors")
    assert isinstance(again, GPRegressor)
    relevance = kernel_relevance(trained, X, y)
    importance = permutation_importance(trained, X, y, repeats=2, seed=0)
    return float(np.sum(prediction.mean)) + len(relevance.names) + len(importance.names)


def classification() -> list[float]:
    """Probabilities of labels."""
    columns, y = concrete(60)
    X = np.stack([*columns.values()], axis=1)
    labels = np.where(y > float(np.median(y)), "strong", "weak")
    classifier = GPClassifier(class_weight="balanced").fit(X, labels)
    assert_type(classifier, GPClassifier)
    return [classifier.bound_, float(classifier.converged_), float(classifier.n_iter_)]


def chosen(seconds: float) -> str:
    """The choice of a kernel, within a time, with limits."""
    columns, y = concrete(60)
    X = np.stack([*columns.values()], axis=1)
    try:
        result = agp.fit_regression(
            X, y, priors={"kernel.*lengthscale": Between(1.0)}, frozen=(), max_seconds=seconds, seed=0
        )
    except Interrupted as interrupt:
        return str(interrupt)
    name: str = result.kernel
    lower, upper = result.predictor().interval(X, 0.9)
    coverage: float = float(interval_coverage(y[:, None], lower, upper))
    assert 0.0 <= coverage <= 1.0
    return name


def held() -> tuple[str, ...]:
    """Fixed parameters of a model, and a training that freezes others."""
    columns, y = concrete(40)
    X = np.stack([*columns.values()], axis=1)
    model = agp.GPR.from_data(X, y, priors={"kernel.variance": Fixed()})
    found = agp.fit(model, X, y, frozen=["kernel.lengthscale[0]"], max_steps=3)
    limits: tuple[tuple[str, Prior], ...] = found.model.priors
    assert limits
    return found.frozen


def main() -> None:
    """Run everything."""
    import warnings

    warnings.simplefilter("ignore", ConvergenceWarning)
    with TemporaryDirectory() as folder:
        assert np.isfinite(regression(Path(folder)))
    assert len(classification()) == 3
    assert chosen(20.0)
    assert "kernel.variance" in held()


if __name__ == "__main__":
    main()
