"""SOLVE-GP: regression tables of Shi, Titsias & Mnih, AISTATS 2020 (Tables 2, 6 and 7).

    python asv_benchmarks/papers/solve_gp.py --data DIR --out OUT --cells 'elevators-*'

There are five random splits into 64 % training, 16 % validation and 20 % test rows. The validation rows are not used.
The models have a Matern-3/2 kernel with one lengthscale, and zero mean. Adam trains all parameters, including the
inducing inputs, at rate 0.01 for 100 epochs, with batches of 1,024 rows. Positive parameters are softplus functions of
the parameters that Adam moves. There is no whitening, and q(u) starts at the prior. K-means chooses the initial
inducing inputs.

In the cells named "noise-1", the noise variance starts at 1 instead of 0.1. In those named "random-rows", random rows
are the initial inducing inputs.

The cells named "costs" measure CPU seconds per training step on elevators, and of the factorisations, triangular solves
and matrix products in one evaluation of the bound. The operations are those that the paper counts, in units of 1,024³;
agp takes fewer where a factor is triangular.
The paper states that SOLVE-GP with two groups of M inducing inputs needs two Cholesky factorisations of size M, which
cost a quarter of one of size 2 M.
"""

import one_thread  # noqa: F401 - before NumPy

# isort: split
import sys
import time
from typing import Any

import numpy as np
from cells import Cell, Figure, Paper, Run, Table, main, remove_units
from operations import KINDS, costs
from rows import Rows, regression

import agp
from agp.posteriors import Marginal, PriorSpread
from agp.updates import Adam

EPOCHS, BATCH, RATE = 100, 1024, 0.01
TEST, TRAIN = 0.2, 0.64
NOISE = 0.1
"""Starting value of the noise variance."""
SMALL = {"steps": 5, "shrink": 128}
"""Number of steps and divisor of sizes in a rehearsal."""

METHODS: dict[str, tuple[int, int, Any]] = {
    "svgp-1024": (1024, 0, None),
    "svgp-1536": (1536, 0, None),
    "odvgp-1024+1024": (1024, 1024, PriorSpread),
    "solve-1024+1024": (1024, 1024, None),
    "svgp-2048": (2048, 0, None),
}
"""The sizes of both groups of inducing inputs, and the posterior of the second group."""
VARIANTS: dict[str, dict[str, Any]] = {"noise-1": {"noise": 1.0}, "random-rows": {"inducing": "random"}}
"""Other starting values."""
COSTS = ("svgp-1024", "solve-1024+1024", "svgp-2048")
"""Methods whose costs are measured."""
TIMED = 5
"""Number of training steps that are timed, after a first one."""


def start(run: Run, rows: Rows, method: str, *, noise: float = NOISE, inducing: str = "kmeans") -> Any:
    """Build the untrained model of a method."""
    first, orthogonal, second = sizes(run, method)
    parts: dict[str, Any] = {
        "kernel": agp.Matern32(1.0, 1.0),
        "likelihood": agp.Gaussian(noise),
        "mean_function": agp.ZeroMean(),
        "posterior": Marginal,
        "num_inducing": first,
        "inducing": inducing,
        "seed": run.seed,
    }
    if not orthogonal:
        return remove_units(agp.SVGP.from_data(rows.X, rows.y, **parts))
    return remove_units(agp.SOLVEGP.from_data(rows.X, rows.y, num_orthogonal=orthogonal, second=second, **parts))


def sizes(run: Run, method: str) -> tuple[int, int, Any]:
    """The sizes of both groups, and the posterior of the second group."""
    first, orthogonal, second = METHODS[method]
    shrink = SMALL["shrink"] if run.small else 1
    return first // shrink, orthogonal // shrink, second


def measure(run: Run, *, table: str, method: str, timed: bool = False, **variant: Any) -> dict[str, float]:
    """Measure scores or costs of a method, with the starting values of a variant if one is given."""
    rows = regression(run.data, table, run.seed, train=TRAIN, test=TEST, small=run.small)
    batch = min(BATCH, len(rows.y))
    settings = {"batch_size": batch, "seed": run.seed, "updates": [Adam(RATE)]}
    model = start(run, rows, method, **variant)
    if timed:
        return {"step_seconds": step_seconds(model, rows, settings)} | costs(*sizes(run, method)[:2], batch)
    steps = SMALL["steps"] if run.small else EPOCHS * -(-len(rows.y) // batch)
    return scores(run.train(model, rows.X, rows.y, steps=steps, **settings).model, rows)


def scores(model: Any, rows: Rows) -> dict[str, float]:
    """Log density per test row and RMSE, in units of the standard deviation of the training targets."""
    mean, _ = model.predict(rows.X_test)
    density = model.log_density(rows.X_test, rows.y_test)
    return {"log_density": float(np.mean(density)), "rmse": agp.metrics.rmse(mean, rows.y_test)}


def step_seconds(model: Any, rows: Rows, settings: dict[str, Any]) -> float:
    """Median CPU seconds of a training step."""
    times: list[float] = []
    callbacks = [lambda _: times.append(time.process_time())]
    agp.train(model, rows.X, rows.y, steps=1 + TIMED, callbacks=callbacks, **settings)
    return float(np.median(np.diff(times)))


THEIRS: dict[str, dict[str, tuple[float, float | None, float]]] = {
    "elevators": {
        "svgp-1024": (-0.516, None, 0.398),
        "svgp-1536": (-0.511, None, 0.396),
        "odvgp-1024+1024": (-0.518, None, 0.397),
        "solve-1024+1024": (-0.509, None, 0.395),
        "svgp-2048": (-0.507, None, 0.395),
    },
    "bike": {
        "svgp-1024": (-0.218, None, 0.283),
        "svgp-1536": (-0.203, None, 0.279),
        "odvgp-1024+1024": (-0.191, None, 0.272),
        "solve-1024+1024": (-0.189, None, 0.272),
        "svgp-2048": (-0.193, None, 0.276),
    },
    "kin40k": {
        "svgp-1024": (0.094, 0.003, 0.193),
        "svgp-1536": (0.129, 0.003, 0.182),
        "odvgp-1024+1024": (0.137, 0.003, 0.183),
        "solve-1024+1024": (0.187, 0.002, 0.172),
        "svgp-2048": (0.137, 0.003, 0.177),
    },
    "keggundirected": {
        "svgp-1024": (0.678, 0.004, 0.123),
        "svgp-1536": (0.673, 0.004, 0.123),
        "odvgp-1024+1024": (0.105, 0.033, 0.156),
        "solve-1024+1024": (0.680, 0.003, 0.123),
        "svgp-2048": (0.665, 0.004, 0.124),
    },
}
"""Log density with its standard error, and RMSE: Table 7 (elevators and bike), and Tables 2 and 6 (the others)."""

NAMES = {"cholesky": "factorisations", "solve": "solves", "product": "products"}


def cells() -> list[Cell]:
    """The cells of the tables."""
    found = []
    for table, figures in THEIRS.items():
        for method, (density, error, rmse) in figures.items():
            theirs = {"log_density": Figure(density, error), "rmse": Figure(rmse)}
            found.append(Cell(f"{table}-{method}", table, {"table": table, "method": method}, theirs))
    for name, variant in VARIANTS.items():
        settings = {"table": "elevators", "method": "svgp-1024", **variant}
        found.append(Cell(f"{name}-elevators-svgp-1024", "elevators", settings))
    settings = {"table": "elevators", "timed": True}
    return found + [Cell(f"costs-{method}", "elevators", {"method": method, **settings}) for method in COSTS]


PAPER = Paper(
    name="solve_gp",
    version=1,
    title="SOLVE-GP",
    source=(
        'Shi, Titsias & Mnih, "Sparse orthogonal variational inference for Gaussian processes", AISTATS 2020: Tables '
        "2, 6 and 7."
    ),
    protocol=__doc__,
    cells=cells(),
    differences=(
        "Our splits are drawn from other seeds.",
        "The number of steps is that of 100 epochs with incomplete batches. Our batches are complete, and each "
        "epoch drops the rows that are left over.",
        "The paper does not state whether data are standardised. We standardise inputs and targets by the training "
        "rows.",
        "The paper also has ODVGP with 8,096 points in the second group, and other data sets.",
        "The paper does not state the initial values of the lengthscale, the variance and the noise variance. We "
        "use those of the authors' example with one input column: 1, 1 and 0.1. Its k-means starts from random rows, "
        "and ours from rows chosen by k-means++.",
        "The bike data have 17 columns, as in the usual collection of UCI data for GPs. The logarithm of the sum of "
        "two of them is the target. The paper does not describe its columns; without these two, our RMSE is twice "
        "the paper's.",
    ),
    reasons={
        "elevators-svgp-1024": (
            "agp's figures are better than the paper's, and the reason is unknown. The starting values, which the "
            "paper does not state, change them by more than this difference, but none of those that we tried gives "
            "the paper's figures."
        ),
        "bike-solve-1024+1024": (
            "agp's figure is better than the paper's, and the reason is unknown. On the same splits, SOLVE-GP has a "
            "log density higher than that of SVGP with 1,024 inducing inputs by 0.046 to 0.047 in each run; in the "
            "paper, it is higher by 0.029. The RMSE is lower by 0.012, and by 0.011 in the paper."
        ),
    },
    tables=(
        Table("Other starting values", "*-elevators-svgp-1024", {"log_density": "log density", "rmse": "RMSE"}),
        Table(
            "Costs",
            "costs-*",
            {"step_seconds": "training step, s"}
            | {f"{kind}_count": f"{NAMES[kind]}, 1,024³" for kind in KINDS}
            | {f"{kind}_seconds": f"{NAMES[kind]}, s" for kind in KINDS},
        ),
    ),
)

if __name__ == "__main__":
    sys.exit(main(PAPER, measure))
