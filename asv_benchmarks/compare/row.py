"""Train one row of a comparison, in its own process and with one array library.

It reads a task as JSON from standard input, and writes ``NAME.json`` and ``NAME.npz`` to a folder.
"""

import argparse
import dataclasses
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from problem import CURVE_POINTS, WARM_UP, build_model, curve_rows, load

from agp import metrics, tree
from agp.backend import get_backend
from agp.errors import RepairWarning
from agp.gradient import gradient_of_batch
from agp.methods import load_plugins, updates_of
from agp.models import CGGP, GPR, SGPR, SOLVEGPR, Model
from agp.processes import SparsePrior
from agp.training import Batches, Progress, Result, train

TIGHT = {"tolerance": 1e-13, "max_iterations": 2000}
"""The solver of CGGP when rows are compared. Iterates magnify rounding errors up to the tolerance of training."""


def main() -> None:
    """Run the task read from standard input."""
    request = json.load(sys.stdin)
    warnings.simplefilter("ignore", RepairWarning)  # the results contain the number of repairs
    load_plugins()
    Row(argparse.Namespace(**request["options"]), **request["task"]).run(Path(request["file"]), request["reference"])


class Row:
    """The arrays, model and results of a task."""

    def __init__(
        self, a: argparse.Namespace, *, method: str, backend: str, gradient: Any, dtype: str, device: str
    ) -> None:
        self.a, self.method, self.gradient, self.dtype, self.device = a, method, gradient, dtype, device
        self.B = get_backend(backend)
        self.B.enable_float64()
        self.data = load(a)
        self.X, self.y = self.array(self.data.X), self.array(self.data.y)
        self.curve: list[tuple[float, float]] = []
        self.warm_up = 0.0

    def array(self, x: Any) -> Any:
        """Convert a NumPy array to the backend and device and, if it has floats, to the precision of the task."""
        dtype = self.dtype if x.dtype.kind == "f" else x.dtype.name  # neighbours are whole numbers
        return self.B.from_numpy(np.asarray(x, order="C"), dtype=dtype, device=self.device)

    def run(self, file: Path, reference: str | None) -> None:
        """Train and measure the model. `reference` is the file of the reference row, or None if it is this row."""
        began = time.perf_counter()
        result = self.train(build_model(self.method, self.X, self.y, self.data, self.a))
        facts = self.measure(result.model) | {
            "num_inducing": sum(node.inducing.count for node in priors_of(result.model).values()) or None,
            "steps": result.steps,
            "ms_per_step": self.milliseconds(result),
            "warm_up_seconds": self.warm_up,
            "seconds": time.perf_counter() - began,
            "repairs": result.repairs.total(),
            "curve": self.curve,
        }
        np.savez(file.with_suffix(".npz"), allow_pickle=False, **self.judge(result.model, reference))
        file.with_suffix(".json").write_text(json.dumps(facts))

    def train(self, model: Model) -> Result[Model]:
        """Train with the method's recipe, and record the test NLPD."""
        a, rows = self.a, curve_rows(self.data, self.a.seed)
        every = max(1, a.iterations // CURVE_POINTS)
        X, y = self.array(self.data.X_test[rows]), self.array(self.data.y_test[rows])

        def follow(progress: Progress) -> None:
            if progress.step <= WARM_UP:
                self.warm_up = progress.seconds
            if progress.step % every == 0 or progress.step in (1, a.iterations):
                density = self.B.to_numpy(progress.model.log_density(X, y))
                self.curve.append((progress.seconds, metrics.nlpd(density)))

        how: dict[str, Any] = {"rate": a.rate, "fall": a.fall}
        if a.q_steps == "adam":
            how["natural"] = None
        return train(
            model, self.X, self.y, steps=a.iterations, seed=a.seed, callbacks=[follow], progress=sys.stderr.isatty(),
            updates=updates_of(self.method, model, a.iterations, **how, gradient=self.gradient),
            batch_size=min(a.batch_size, len(self.X)) if model.stochastic else None,
        )  # fmt: skip

    def milliseconds(self, result: Result[Model]) -> float:
        """Mean time per step in milliseconds, without the first steps if there are later ones."""
        if result.steps <= WARM_UP:
            return 1e3 * result.seconds / result.steps
        return 1e3 * (result.seconds - self.warm_up) / (result.steps - WARM_UP)

    def measure(self, model: Model) -> dict[str, Any]:
        """Compute the bound for all training rows, the scores on the test rows and the peak memory in MiB."""
        to_numpy, y = self.B.to_numpy, self.data.y_test
        X_test = self.array(self.data.X_test)
        bound = float(model.bound(self.X, self.y)[0])
        density = to_numpy(model.log_density(X_test, self.array(y)))
        mean, variance = map(to_numpy, model.predict(X_test, observed=True))
        facts: dict[str, Any] = {"bound": bound, "nlpd": metrics.nlpd(density), "coverage95": None}
        if self.data.classes:
            facts["error_rate"] = metrics.error_rate(mean, y)
        else:
            facts["rmse"] = metrics.rmse(mean, y)
            if self.a.likelihood == "gaussian":  # the intervals assume normal distributions
                facts["coverage95"] = metrics.coverage(mean, variance, y)
        if isinstance(model, GPR):
            facts["upper_bound"] = bound
        elif isinstance(model, (SGPR, SOLVEGPR)):
            facts["upper_bound"] = float(model.upper_bound(self.X, self.y))
        return facts | {"peak_mib": self.B.peak_memory(self.X)}

    def judge(self, model: Any, reference: str | None) -> dict[str, Any]:
        """Compute the bound and its gradient on one batch, at the reference row's parameters.

        The reference row also stores its parameters, and its jitter as a number, which has no gradient in any row.
        """
        arrays: dict[str, Any] = {}
        if reference is None:
            arrays = {f"leaf:{name}": self.B.to_numpy(x) for name, x in tree.leaves(model).items()}
            jitters = {path: node._absolute_jitter() for path, node in priors_of(model).items()}
            arrays |= {f"jitter:{path}": self.B.to_numpy(jitter) for path, jitter in jitters.items()}
            model = with_jitter(model, arrays)
        else:
            with np.load(reference) as file:
                there = dict(file)
            leaves = {name[5:]: self.array(x) for name, x in there.items() if name.startswith("leaf:")}
            model = with_jitter(tree.with_leaves(model, leaves), there)
        if isinstance(model, CGGP) and self.dtype == "float64":
            model = dataclasses.replace(model, **TIGHT)
        size = min(self.a.batch_size, len(self.data.X)) if model.stochastic else len(self.data.X)
        batch = Batches(self.X, self.y, size, self.a.seed, model._draws)[0]
        bound, gradient = gradient_of_batch(model, batch, self.gradient)
        arrays["bound"] = np.asarray(float(bound))
        return arrays | {f"gradient:{name}": self.B.to_numpy(x) for name, x in gradient.items()}


def priors_of(model: Model) -> dict[str, Any]:
    """The nodes with inducing variables, by path."""
    return tree.nodes(model, SparsePrior)  # type: ignore[type-abstract]


def with_jitter(model: Model, arrays: dict[str, Any]) -> Any:
    """Return the model with the jitter of the reference row."""
    nodes = priors_of(model)
    jitter = {path: float(arrays[f"jitter:{path}"]) for path in nodes}
    return tree.replace(model, {path: dataclasses.replace(node, jitter=jitter[path]) for path, node in nodes.items()})


if __name__ == "__main__":
    main()
