"""Hostile problems for regressors of every kind of target: families, weights, exposures and noise nobody chooses."""

import traceback
import warnings
from typing import Any, NamedTuple

import numpy as np
from hostile_judge import unsound

from agp.errors import NonFiniteError, NotPositiveDefiniteError
from agp.estimators import GPRegressor
from agp.likelihoods import (
    LIKELIHOODS,
    Beta,
    Exponential,
    Gamma,
    Gaussian,
    LatentNoiseGaussian,
    LogNormal,
    NegativeBinomial,
    Poisson,
    StudentT,
)

__all__ = ["Regression", "answers", "drawn_regression", "judged_regression"]

OBJECTS = {
    "gaussian": lambda size: Gaussian(size),
    "student-t": lambda size: StudentT(size, 2.5),
    "log-normal": lambda size: LogNormal(Gaussian(size)),
    "poisson": lambda _: Poisson(),
    "negative-binomial": lambda size: NegativeBinomial(size),
    "gamma": lambda size: Gamma(size),
    "exponential": lambda _: Exponential(),
    "beta": lambda size: Beta(size),
    "latent-noise": lambda _: LatentNoiseGaussian(),
}
METHODS = ("auto", "auto", "auto", "wsvgp", "wsvgp", "rsvgp", "rsvgp", "tsvgp")
EXACT = ("auto", "gpr", "sgpr", "wsvgp", "solve")
COUNTS = ("poisson", "negative-binomial")
POSITIVE = ("gamma", "exponential", "log-normal", "log")
ALLOWED = (ValueError, TypeError, NonFiniteError, NotPositiveDefiniteError)


class Regression(NamedTuple):
    """A problem: the estimator, and what it is trained on."""

    family: str
    estimator: GPRegressor
    X: Any
    y: Any
    beside: dict[str, Any]
    """Weights, exposures and known noise, where there are any."""


def _wild(rng: np.random.Generator, rows: int) -> Any:
    """Positive numbers of sizes from 1e-12 to 1e12."""
    kind = rng.choice(["usual", "wide", "tiny", "huge", "one"])
    if kind == "usual":
        return rng.uniform(0.5, 2.0, rows)
    if kind == "wide":
        return 10.0 ** rng.uniform(-12.0, 12.0, rows)
    if kind == "one":
        return np.where(np.arange(rows) == rng.integers(rows), 1e12, 1.0)
    return np.full(rows, {"tiny": 1e-12, "huge": 1e12}[str(kind)]) * rng.uniform(0.5, 2.0, rows)


def _targets(rng: np.random.Generator, family: str, f: Any) -> Any:
    kind = rng.choice(["usual", "constant", "outlier", "end", "tiny", "huge"])
    rows = f.shape[0]
    at = rng.integers(rows)
    if family in COUNTS:
        y = rng.poisson(3.0 * np.exp(f)).astype(float)
        y = {"constant": 4.0 + 0.0 * y, "end": 0.0 * y, "tiny": np.minimum(y, 1.0), "huge": 1e6 * y}.get(str(kind), y)
        far: Any = 1e9
    elif family == "beta":
        y = rng.beta(5.0 / (1.0 + np.exp(-f)), 5.0 / (1.0 + np.exp(f))).clip(1e-300, 1.0 - 1e-16)
        y = {"constant": 0.25 + 0.0 * y, "end": 1.0 - 1e-16 + 0.0 * y, "tiny": 1e-300 + 0.0 * y}.get(str(kind), y)
        far = rng.choice([1e-300, 1.0 - 2.0**-53])
    elif family in POSITIVE:
        y = np.exp(f) * rng.gamma(2.0, size=f.shape)
        y = {"constant": 3.0 + 0.0 * y, "tiny": 1e-200 * y, "huge": 1e100 * y, "end": y**30}.get(str(kind), y)
        far = rng.choice([1e100, 1e-200])
    else:
        y = f + 0.1 * rng.normal(size=f.shape)
        y = {"constant": -2.0 + 0.0 * y, "tiny": 1e-200 * y, "huge": 1e100 * y, "end": 1e8 + y}.get(str(kind), y)
        far = rng.choice([1e100, -1e12, 1e8])
    if kind == "outlier":
        y[at] = far
    return y


def drawn_regression(seed: int) -> Regression:
    """The problem of a seed."""
    rng = np.random.default_rng(seed)
    rows, columns = int(rng.integers(2, 61)), int(rng.integers(1, 5))
    X = rng.normal(size=(rows, columns)) * rng.choice([1.0, 1.0, 1e-6, 1e6])
    if rng.uniform() < 0.3:
        X = X[rng.integers(max(1, rows // 3), size=rows), :]
    if rng.uniform() < 0.15:
        X[:, 0] = 1.0
    kind = rng.choice(["name", "name", "object", "log"])
    family = "log" if kind == "log" else str(rng.choice([*(LIKELIHOODS if kind == "name" else OBJECTS)]))
    targets = 2 if rng.uniform() < 0.2 else 1
    scale = X.std() or 1.0
    f = np.stack([np.sin(2.0 * X[:, 0] / scale + k) for k in range(targets)], axis=1)
    y = np.stack([_targets(rng, family, f[:, k]) for k in range(targets)], axis=1)
    settings: dict[str, Any] = {"target_transform": "log"} if kind == "log" else {"likelihood": family}
    if kind == "object":
        settings = {"likelihood": OBJECTS[family](float(10.0 ** rng.uniform(-6.0, 3.0)))}
    settings |= {
        "method": str(rng.choice(EXACT if family in ("gaussian", "log") else METHODS)),
        "kernel": str(rng.choice(["rbf", "matern32", "rbf + linear", "auto"], p=[0.45, 0.3, 0.22, 0.03])),
        "num_inducing": int(rng.integers(1, 9)) if rng.uniform() < 0.7 else None,
        "max_steps": int(rng.integers(5, 21)),
        "dtype": "float32" if rng.uniform() < 0.25 else None,
        "random_state": 0,
    }
    beside = {}
    if rng.uniform() < 0.4:
        beside["sample_weight"] = _wild(rng, rows) * (rng.uniform(size=rows) < rng.choice([0.6, 1.0]))
    if rng.uniform() < (0.5 if family in (*COUNTS, "gamma", "exponential") else 0.03):
        beside["exposure"] = _wild(rng, rows)
    if rng.uniform() < (0.3 if family == "gaussian" else 0.03):
        beside["noise"] = _wild(rng, rows)
    return Regression(family, GPRegressor(**settings), X, y[:, 0] if targets == 1 else y, beside)


def answers(found: GPRegressor, X: Any, y: Any, known: dict[str, Any]) -> dict[str, Any]:
    """What there is to ask: functions without arguments, by name."""
    columns = y if y.ndim == 2 else y[:, None]
    A, beside = found.model_inputs(X), {name: known.get(name) for name in ("exposure", "noise")}
    columns = columns.astype(A.dtype)
    return {
        "predict": lambda: found.predict(X, return_std=True, **beside),
        "interval": lambda: found.predict_interval(X, 0.9, **beside),
        "quantiles": lambda: found.predict_quantiles(X, [0.05, 0.5, 0.95], **beside),
        "density": lambda: found.log_density(X, y, **beside),
        "sample": lambda: found.sample(X, 3, random_state=0, **beside),
        "pit": lambda: found.predictor_.pit(A, columns),
        "crps": lambda: found.predictor_.crps(A, columns),
    }


def judged_regression(seed: int) -> tuple[list[str], list[str]]:
    """Allowed errors, and what must not be: foreign errors and warnings, NaN, negative spreads, ends out of order."""
    problem = drawn_regression(seed)
    errors: list[str] = []
    defects: list[str] = []

    def tried(name: str, action: Any) -> Any:
        try:
            return action()
        except ALLOWED as error:
            message = unsound(error)
            (defects if message else errors).append(f"{name}: {message or f'{type(error).__name__}: {error}'}")
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            defects.append(f"{name}: {type(error).__name__} at {last.filename}:{last.lineno}: {error}")
        return None

    X, y = problem.X, problem.y
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = tried("fit", lambda: problem.estimator.fit(X, y, **problem.beside))
        results = {}
        if found is not None:
            asked = answers(found, X, y, problem.beside)
            results = {name: tried(name, action) for name, action in asked.items()}
    defects += [f"{x.category.__name__} at {x.filename}:{x.lineno}: {x.message}" for x in caught if _is_foreign(x)]
    defects += [f"{name}: {text}" for name, x in results.items() if x is not None for text in _faults(name, x)]
    return errors, defects


def _is_foreign(warning: Any) -> bool:
    """Whether it is of NumPy or SciPy, rather than of the library, whose own are UserWarnings or of `agp.errors`."""
    own = warning.category is UserWarning or warning.category.__module__ == "agp.errors"
    return not own


def _faults(name: str, result: Any) -> list[str]:
    """What is wrong with a result."""
    faults = ["NaN"] if any(np.isnan(x).any() for x in (result if isinstance(result, tuple) else (result,))) else []
    if name == "predict":
        if not np.isfinite(result[0]).all():
            faults.append("a mean that is not finite")
        if not (result[1] >= 0.0).all():
            faults.append("a negative standard deviation")
    elif name in ("interval", "quantiles") and not (np.diff(result, axis=-1) >= 0.0).all():
        faults.append("quantiles out of order")
    elif name == "pit" and not ((result >= 0.0) & (result <= 1.0)).all():
        faults.append("outside [0, 1]")
    elif name == "crps" and not (result >= 0.0).all():
        faults.append("negative")
    if name not in ("predict", "interval", "quantiles") and not np.isfinite(result).all():
        faults.append("not finite")
    return faults
