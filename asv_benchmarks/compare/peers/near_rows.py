"""Compare agp's default regression on many rows with GPBoost's nearest rows: scores of test rows and CPU time.

    python asv_benchmarks/compare/peers/near_rows.py DATA TABLE --approx agp
    peers/bin/python asv_benchmarks/compare/peers/near_rows.py DATA TABLE --approx vecchia --shape 1.5

DATA is a folder, and TABLE.npz in it has X [N, D], y [N] and `test_masks` [N, S]. Inputs and targets are standardised
by the training rows, so both scores are in units of the targets' standard deviation. Each command measures one library
with one thread, and prints one line of JSON. agp is `agp.GPRegressor` with its defaults. GPBoost's `GPModel` has zero
mean, a Matern kernel with a lengthscale for each column, and the defaults of its approximation: "vecchia" has nearest
rows, and "vif" nearest rows and inducing inputs. GPBoost chooses the neighbours by correlation.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "papers"))

import one_thread  # noqa: F401 - before NumPy

# isort: split
import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rows import InputError, Rows, read, select, standardise

LEFT_OUT = {"bike": (15, 16)}
"""Columns that are left out: two counts whose sum is the target."""
SHAPES = (0.5, 1.5, 2.5)
"""Smoothness of the Matern kernels."""
Predict = Callable[[Any], tuple[Any, Any]]
"""Means [N] and variances [N] of new observations at inputs [N, D]."""


def table(folder: Path, name: str, split: int) -> Rows:
    """The rows of a split, standardised, without columns that are constant in the training rows."""
    X, y, masks = read(folder, name, "test_masks")
    X, test = np.delete(X, LEFT_OUT.get(name, ()), axis=1), masks[:, split].astype(bool)
    X = standardise(X, X[~test])
    return select(X[:, X[~test].any(axis=0)], standardise(y, y[~test]), ~test, test)


def fit_gpboost(rows: Rows, approx: str, shape: float, seed: int) -> tuple[Predict, str]:
    """Fit GPBoost's model; return its predictions and the name of the library."""
    import gpboost

    model = gpboost.GPModel(
        gp_coords=rows.X,
        cov_function="matern_ard",
        cov_fct_shape=shape,
        likelihood="gaussian",
        gp_approx=approx,
        seed=seed,
    )
    model.fit(y=rows.y[:, 0])

    def predict(X: Any) -> tuple[Any, Any]:
        found = model.predict(gp_coords_pred=X, predict_var=True, predict_response=True)
        return found["mu"], found["var"]

    return predict, f"gpboost {gpboost.__version__}"


def fit_agp(rows: Rows, seed: int) -> tuple[Predict, str]:
    """Fit agp's estimator; return its predictions and the name of the library."""
    import agp

    model = agp.GPRegressor(random_state=seed).fit(rows.X, rows.y[:, 0])

    def predict(X: Any) -> tuple[Any, Any]:
        mean, deviation = model.predict(X, return_std=True)
        return mean, deviation**2

    return predict, f"agp {agp.__version__}"


def measure(rows: Rows, fit: Callable[[], tuple[Predict, str]]) -> dict[str, Any]:
    """CPU seconds of the fit and of the predictions of all test rows, NLPD and RMSE."""
    began = time.process_time()
    predict, library = fit()
    fitted = time.process_time()
    mean, variance = predict(rows.X_test)
    ended = time.process_time()
    error = rows.y_test[:, 0] - mean
    return {
        "library": library,
        "nlpd": float(np.mean(0.5 * (np.log(2.0 * np.pi * variance) + error**2 / variance))),
        "rmse": float(np.sqrt(np.mean(error**2))),
        "fit_cpu_seconds": fitted - began,
        "predict_cpu_seconds": ended - fitted,
    }


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DATA", help="folder of the table")
    parser.add_argument("table", metavar="TABLE", help="name of the table")
    parser.add_argument("--approx", choices=("agp", "vecchia", "vif"), required=True, help="agp, or GPBoost's method")
    parser.add_argument("--shape", type=float, choices=SHAPES, default=1.5, help="smoothness of GPBoost's kernel")
    parser.add_argument("--split", type=int, default=0, metavar="S", help="column of test_masks")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the fit")
    a = parser.parse_args()
    try:
        rows = table(a.data, a.table, a.split)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    agp = a.approx == "agp"
    found = measure(rows, lambda: fit_agp(rows, a.seed) if agp else fit_gpboost(rows, a.approx, a.shape, a.seed))
    facts = {"table": a.table, "approx": a.approx, "shape": None if agp else a.shape, "split": a.split, "seed": a.seed}
    print(json.dumps(facts | found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
