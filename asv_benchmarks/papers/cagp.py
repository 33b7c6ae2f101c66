"""Computation-aware GPs: Table 1 of Wenger, Wu, Hennig, Gardner, Pleiss & Cunningham, NeurIPS 2024.

    python asv_benchmarks/papers/cagp.py --data DIR --out OUT --cells 'bike-*'

As in the paper: 90 % of the rows for training, Matern-3/2 kernel with one lengthscale per column, all parameters start
at log 2, rates that fall linearly to a tenth, 1,024 inducing inputs or 512 actions. The paper reports the epoch with
the least test NLPD and the best of several rates. Here, a twentieth of the training rows chooses the rate among three
(`sweep`), and the last epoch is reported.
"""

import sys
from math import log
from typing import Any

import numpy as np
from cells import Cell, Figure, Place, main, train
from rows import Rows, regression

import agp
from agp.updates import linear

START = log(2.0)
"""Initial value of variance, lengthscales and noise variance: softplus of 0."""
INDUCING, ACTIONS, BATCH = 1024, 512, 1024
LEVEL = 0.95
SMALL = 8
"""Number of inducing inputs and of actions in a rehearsal."""


def start(rows: Rows, method: str, seed: int, *, small: bool) -> Any:
    """Build the untrained model."""
    kernel = agp.Matern32(START, np.full(rows.X.shape[1], START))
    parts: dict[str, Any] = {"kernel": kernel, "likelihood": agp.Gaussian(START), "seed": seed}
    inducing, actions = (SMALL, SMALL) if small else (INDUCING, ACTIONS)
    if method == "svgp":
        return agp.SVGP.from_data(rows.X, rows.y, posterior="whitened", num_inducing=inducing, **parts)
    if method == "sgpr":
        return agp.SGPR.from_data(rows.X, rows.y, num_inducing=inducing, **parts)
    return agp.CaGP.from_data(rows.X, rows.y, num_actions=actions, layout="random", init="normal", **parts)


def fitted(place: Place, rows: Rows, method: str, seed: int, rate: float, epochs: int) -> Any:
    """Train a model by the optimiser of the table; return the result."""
    model, steps = start(rows, method, seed, small=place.small), 3 if place.small else epochs
    if method == "sgpr":
        return agp.fit_lbfgs(model, rows.X, rows.y, max_iterations=steps)
    batch = min(BATCH, len(rows.y)) if method == "svgp" else None
    if batch is not None and not place.small:
        steps *= -(-len(rows.y) // batch)
    updates = [agp.updates.Adam(linear(rate, 0.1 * rate, steps))]
    settings = {"batch_size": batch, "seed": seed, "updates": updates, "every": 20}
    return train(place, model, rows.X, rows.y, steps=steps, **settings)


def measure(
    place: Place, seed: int, *, table: str, method: str, epochs: int, rate: float = 0.0, validate: bool = False
) -> dict[str, float]:
    """Train a model; return NLPD, RMSE and coverage of 95 % intervals on standardised targets.

    With `validate`, the scores are those of a twentieth of the training rows, which are held out.
    """
    parts = {"hidden": 0.1, "test": 0.045, "train": 0.855} if validate else {"test": 0.1, "train": 0.9}
    rows = regression(place.data, table, seed, **parts, leaks=True, small=place.small)
    result = fitted(place, rows, method, seed, rate, epochs)
    model = result.model
    mean, variance = model.predict(rows.X_test, observed=True)
    return {
        "nlpd": -float(np.mean(model.log_density(rows.X_test, rows.y_test))),
        "rmse": agp.metrics.rmse(mean, rows.y_test),
        "coverage": agp.metrics.coverage(mean, variance, rows.y_test, LEVEL),
        "seconds": result.seconds,
    }


THEIRS: dict[str, dict[str, tuple[int, float, tuple[float, float], tuple[float, float]]]] = {
    "bike": {
        "sgpr": (100, 0.0, (-3.017, 0.022), (0.009, 0.002)),
        "svgp": (1000, 0.01, (-2.256, 0.020), (0.020, 0.002)),
        "cagp-opt": (1000, 1.0, (-2.401, 0.037), (0.018, 0.002)),
    },
    "keggundirected": {
        "sgpr": (100, 0.0, (-0.712, 0.028), (0.118, 0.003)),
        "svgp": (1000, 0.01, (-0.710, 0.026), (0.118, 0.003)),
    },
}
"""Epochs, rate, NLPD and RMSE with standard deviations."""


def cells() -> list[Cell]:
    """The cells of the table."""
    found = []
    for table, methods in THEIRS.items():
        for method, (epochs, rate, nlpd, rmse) in methods.items():
            settings = {"table": table, "method": method, "epochs": epochs, "rate": rate}
            found.append(Cell(f"{table}-{method}", {"nlpd": Figure(*nlpd), "rmse": Figure(*rmse)}, settings))
    return found


if __name__ == "__main__":
    sys.exit(main("cagp", __doc__, cells(), measure))
