"""R-SVGP: kin40k and elevators as in Cortinovis, Aitchison, Eleftheriadis & van der Wilk.

    python asv_benchmarks/papers/rsvgp.py --data DIR --out OUT --cells 'kin40k-layers1-*'

As in the paper: 90 % of the rows for training, RBF kernel with one lengthscale per column, all parameters start at 1,
jitter 1e-6, inducing inputs by k-means. Cells named "curve" have batches of 100 rows and 20,000 steps, as the paper's
figures; their scores are kept over the run. Cells named "layers" have M = 500 and batches of 1,000 rows, as the
paper's table, but a tenth of its 200,000 steps.
"""

import dataclasses
import sys
from typing import Any

import numpy as np
from cells import Cell, Figure, Place, main, train
from rows import Rows, regression

import agp
from agp.linalg import log_linear_step
from agp.posteriors import LikelihoodForm, Relaxed, Whitened
from agp.updates import Adam, Group, InverseUpdate, Plateau, delayed

RATE = 5e-3
METHODS = {"w": Whitened, "l": LikelihoodForm, "r": Relaxed}
SAMPLES = 100
"""Number of samples of deep models in the scores."""
STEPS = 20_000
FEW = {"steps": 4, "num_inducing": 8}
"""Settings of a rehearsal."""


def curve(
    place: Place, seed: int, *, table: str, method: str, num_inducing: int, probes: int = 256
) -> dict[str, float]:
    """Train a model with batches of 100 rows; return the NLPD at several steps and the seconds until then."""
    rows = regression(place.data, table, seed, train=0.9, test=0.1, small=place.small)
    steps, M = (FEW["steps"], FEW["num_inducing"]) if place.small else (STEPS, num_inducing)
    X, y = rows.X, rows.y
    parts: dict[str, Any] = {"num_inducing": M, "seed": seed, "jitter": 1e-6, "likelihood": agp.Gaussian(1.0)}
    model: Any = agp.SVGP.from_data(X, y, posterior=METHODS[method], kernel=agp.RBF(1.0, np.ones(X.shape[1])), **parts)
    updates: list[Any] = [Adam(RATE)]
    if method == "r":
        exact = place.small or probes >= M
        posterior: Any = dataclasses.replace(model.posterior, probes=0 if exact else probes)
        process: Any = dataclasses.replace(model.process, posterior=posterior)
        model = dataclasses.replace(model, process=process)
        late = Group(delayed(1e-3, 1000), beta1=0.99, plateau=Plateau(0.95, 100))
        updates = [Adam(RATE, groups={"Z": late}), InverseUpdate(tolerance=5e-3)]
    found = {}

    def note(progress: Any) -> None:
        if progress.step in (steps // 20, steps // 4, steps // 2, steps):
            found[f"nlpd_{progress.step}"] = -float(np.mean(progress.model.log_density(rows.X_test, rows.y_test)))
            found[f"seconds_{progress.step}"] = progress.seconds

    settings = {"batch_size": min(100, len(y)), "seed": seed, "updates": updates, "callbacks": [note]}
    result = train(place, model, X, y, steps=steps, **settings)
    return found | {"seconds": result.seconds, "nlpd": found[f"nlpd_{steps}"]}


def layers(place: Place, seed: int, *, method: str, count: int, num_inducing: int, steps: int) -> dict[str, float]:
    """Train a model with `count` layers on kin40k; return its NLPD, as the mean over samples for deep models."""
    rows = regression(place.data, "kin40k", seed, train=0.9, test=0.1, small=place.small)
    if place.small:
        steps, num_inducing = FEW["steps"], FEW["num_inducing"]
    model, plateau = start_of_layers(rows, method, count, num_inducing, seed)
    updates: list[Any] = [Adam(RATE, plateau=plateau)]
    if method == "r":
        updates.append(InverseUpdate(tolerance=1e-9, step=log_linear_step()))
    settings = {"batch_size": min(1000, len(rows.y)), "seed": seed, "updates": updates}
    result = train(place, model, rows.X, rows.y, steps=steps, **settings)
    model = result.model
    if count > 1:
        model = dataclasses.replace(model, prediction_samples=SAMPLES)
    return {
        "nlpd": -float(np.mean(model.mean_log_density(rows.X_test, rows.y_test))),
        "nlpd_of_mixture": -float(np.mean(model.log_density(rows.X_test, rows.y_test))),
        "seconds": result.seconds,
    }


def start_of_layers(rows: Rows, method: str, count: int, num_inducing: int, seed: int) -> tuple[Any, Plateau | None]:
    """Build an untrained model, and the plateau rule of its rates."""
    D, posterior = rows.X.shape[1], METHODS[method]
    common = {"num_inducing": num_inducing, "seed": seed, "jitter": 1e-6, "posterior": posterior}
    if count == 1:
        likelihood = agp.Gaussian(1.0)
        return agp.SVGP.from_data(
            rows.X, rows.y, kernel=agp.RBF(1.0, np.ones(D)), likelihood=likelihood, **common
        ), None
    wide = np.full(D, 2.0)
    kernels = [agp.RBF(1e-4, wide)] * (count - 1) + [agp.RBF(1.0, wide)]
    settings = {"layers": count, "width": D, "kernel": kernels, "likelihood": agp.Gaussian(0.1), **common}
    return agp.DeepGP.from_data(rows.X, rows.y, **settings), Plateau(0.95, 1000)


def measure(place: Place, seed: int, *, kind: str, **settings: Any) -> dict[str, float]:
    """Measure a cell of a curve or of the table of layers."""
    return {"curve": curve, "layers": layers}[kind](place, seed, **settings)


THEIRS = {
    1: {"w": (-0.38, 0.001), "l": (-0.39, 0.002), "r": (-0.39, 0.002)},
    2: {"w": (-1.86, 0.03), "l": (-1.88, 0.02), "r": (-1.88, 0.02)},
    3: {"w": (-2.39, 0.03), "l": (-2.64, 0.01), "r": (-2.64, 0.01)},
}
"""NLPD of the paper's table of layers, with standard errors."""


def cells() -> list[Cell]:
    """The cells of the table of layers, of the figure of M, and of the figure of probes."""
    found = []
    for count, methods in THEIRS.items():
        for method, figure in methods.items():
            settings = {"kind": "layers", "method": method, "count": count, "num_inducing": 500, "steps": STEPS}
            name = f"kin40k-layers{count}-{method}"
            found.append(Cell(name, {"nlpd": Figure(*figure)}, settings, full=False))
    for table in ("elevators", "kin40k"):
        for num_inducing in (1000, 2000):
            for method in METHODS:
                settings = {"kind": "curve", "table": table, "method": method, "num_inducing": num_inducing}
                found.append(Cell(f"{table}-curve-{method}-{num_inducing}", {}, settings))
    for probes in (16, 64, 256, 1024):
        settings = {"kind": "curve", "table": "kin40k", "method": "r", "num_inducing": 2000, "probes": probes}
        found.append(Cell(f"kin40k-curve-probes-{probes}", {}, settings))
    return found


if __name__ == "__main__":
    sys.exit(main("rsvgp", __doc__, cells(), measure))
