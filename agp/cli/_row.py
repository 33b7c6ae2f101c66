"""The program that trains one row of a comparison, in its own process and with one array library.

It reads a task as JSON from standard input, and writes ``STEM.json`` and ``STEM.npz`` to the comparison's folder.
"""

import dataclasses
import json
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agp import metrics, tree
from agp.backend import Array, get_backend
from agp.cli._plan import CURVE_POINTS, WARM_UP, Settings, Task, build_model, curve_rows
from agp.errors import Interrupted, NonFiniteError, RepairWarning
from agp.gradient import gradient_of_batch
from agp.methods import load_plugins, updates_of
from agp.models import Model
from agp.processes import SparsePrior
from agp.training import Batches, Progress, Result, train


def main() -> int:
    """Run the task read from standard input. Return the exit status: 0 if files were written, 130 if interrupted."""
    request = json.load(sys.stdin)
    warnings.simplefilter("ignore", RepairWarning)  # the results contain the number of repairs
    load_plugins()
    row = Row(Task(**request["task"]), Settings(**request["settings"]), Path(request["folder"]))
    try:
        row.run(request["reference"])
    except Interrupted:
        return 130
    return 0


class Row:
    """The arrays, model and results of a task."""

    def __init__(self, task: Task, settings: Settings, folder: Path) -> None:
        self.task, self.settings, self.folder = task, settings, folder
        self.B = get_backend(task.backend)
        self.B.enable_float64()
        self.data = settings.load()
        self.X, self.y = self.array(self.data.X), self.array(self.data.y)
        self.curve: list[tuple[float, float]] = []
        self.warm_up = 0.0

    def array(self, x: npt.NDArray) -> Array:
        """Convert a NumPy array to the backend, device and precision of the task."""
        return self.B.from_numpy(np.asarray(x, order="C"), dtype=self.task.dtype, device=self.task.device)

    def run(self, reference: str | None) -> None:
        """Train and measure the model. `reference` is the npz file of the reference row, or None if it is this row."""
        model = build_model(self.task.method, self.X, self.y, self.data, self.settings)
        began = time.perf_counter()
        result = self.train(model)
        facts = self.measure(result.model)
        arrays = self.judge(result.model, reference)
        facts |= {
            "num_inducing": sum(node.inducing.count for node in priors_of(result.model).values()) or None,
            "steps": result.steps,
            "ms_per_step": self.milliseconds(result),
            "warm_up_seconds": self.warm_up,
            "seconds": time.perf_counter() - began,
            "repairs": result.repairs.total(),
            "curve": self.curve,
        }
        np.savez(self.folder / f"{self.task.stem}.npz", allow_pickle=False, **arrays)
        (self.folder / f"{self.task.stem}.json").write_text(json.dumps(facts))

    def train(self, model: Model) -> Result[Model]:
        """Train with the method's recipe, and record the test NLPD."""
        s = self.settings
        every = max(1, s.iterations // CURVE_POINTS)
        rows = curve_rows(self.data, s)
        X, y = self.array(self.data.X_test[rows]), self.array(self.data.y_test[rows])

        def follow(progress: Progress) -> None:
            if progress.step <= WARM_UP:
                self.warm_up = progress.seconds
            if progress.step % every == 0 or progress.step in (1, s.iterations):
                density = self.B.to_numpy(progress.model.log_density(X, y))
                self.curve.append((progress.seconds, metrics.nlpd(density)))

        how: dict[str, Any] = {"rate": s.rate, "fall": s.fall} | ({"natural": None} if s.q_steps == "adam" else {})
        return train(
            model, self.X, self.y, steps=s.iterations, seed=s.seed, callbacks=[follow], progress=True,
            updates=updates_of(self.task.method, model, s.iterations, **how, gradient=self.task.gradient),
            batch_size=min(s.batch_size, len(self.X)) if model.stochastic else None,
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
        density = to_numpy(model.log_density(X_test, self.array(y)))
        mean, variance = map(to_numpy, model.predict(X_test, observed=True))
        facts: dict[str, Any] = {"bound": float(model.bound(self.X, self.y)[0]), "nlpd": metrics.nlpd(density)}
        if self.data.classes:
            facts |= {"error_rate": metrics.error_rate(mean, y), "coverage95": None}
        else:
            # the intervals assume normal distributions
            normal = self.settings.likelihood == "gaussian"
            coverage = metrics.coverage(mean, variance, y) if normal else None
            facts |= {"rmse": metrics.rmse(mean, y), "coverage95": coverage}
        return facts | self.evidence(model) | {"peak_mib": self.B.peak_memory(self.X)}

    def evidence(self, model: Model) -> dict[str, float]:
        """Return the exact GP's log evidence at the model's parameters, or bounds on it, if the method has any."""
        interval = model._evidence_interval(self.X, self.y)
        if interval is None:
            return {}
        lower, upper = map(float, interval)
        if lower == upper:
            return {"log_evidence_per_datum": lower / len(self.data.X)}
        return {"upper_bound": upper, "gap_per_datum": (upper - lower) / len(self.data.X)}

    def judge(self, model: Model, reference: str | None) -> dict[str, npt.NDArray]:
        """Compute the bound and its gradient on one batch, at the reference row's parameters.

        The reference row also stores its parameters, and the predictions that `map` returns.
        """
        if reference is None:
            arrays = self.inheritance(model) | self.map(model)
            model = with_jitter(model, arrays)
        else:
            model, arrays = self.inherit(model, reference), {}
        if self.task.dtype == "float64":
            model = model._with_tight_tolerance()
        size = min(self.settings.batch_size, len(self.data.X)) if model.stochastic else len(self.data.X)
        batch = Batches(self.X, self.y, size, self.settings.seed, model._draws)[0]
        mode: Any = self.task.gradient
        bound, gradient = gradient_of_batch(model, batch, mode)
        arrays["bound"] = np.asarray(float(bound))
        return arrays | {f"gradient:{name}": self.B.to_numpy(x) for name, x in gradient.items()}

    def inheritance(self, model: Model) -> dict[str, npt.NDArray]:
        """Return the leaves and jitter for the other rows, and the largest condition number of an inverted matrix."""
        leaves = {f"leaf:{name}": self.B.to_numpy(x) for name, x in tree.leaves(model).items()}
        jitter = {f"jitter:{path}": self.B.to_numpy(node._absolute_jitter()) for path, node in priors_of(model).items()}
        condition = [np.max(np.linalg.cond(self.B.to_numpy(matrix))) for matrix in model._matrices_to_invert()]
        return leaves | jitter | {"condition": np.asarray(max(condition, default=1.0))}

    def inherit(self, model: Model, reference: str) -> Any:
        """Load the leaves and jitter of the reference row, in the precision of this row."""
        with np.load(reference) as file:
            arrays = {name: file[name] for name in file.files}
        leaves = {name.removeprefix("leaf:"): self.array(x) for name, x in arrays.items() if name.startswith("leaf:")}
        return with_jitter(tree.with_leaves(model, leaves), arrays)

    def map(self, model: Model) -> dict[str, npt.NDArray]:
        """Predict all rows, for maps of the predictions; return no arrays unless there are two input columns."""
        if self.data.X_all is None:
            return {}
        observed = bool(self.data.classes) or self.data.counts
        mean, variance = map(self.B.to_numpy, model.predict(self.array(self.data.X_all), observed=observed))
        if self.data.classes:
            both = np.concatenate([1.0 - mean, mean], axis=1)
            return {"map:probability": both if mean.shape[1] == 1 else mean}
        return {"map:mean": mean[:, 0], "map:sd": np.sqrt(variance[:, 0])}


def priors_of(model: Model) -> dict[str, SparsePrior]:
    """The nodes with inducing variables, by path."""
    return tree.nodes(model, SparsePrior)  # type: ignore[type-abstract]


def with_jitter(model: Model, arrays: dict[str, npt.NDArray]) -> Any:
    """Return the model with the jitter of the reference row as numbers, which have no gradient, in every row."""
    nodes: dict[str, Any] = priors_of(model)
    jitter = {path: float(arrays[f"jitter:{path}"]) for path in nodes}
    return tree.replace(model, {path: dataclasses.replace(node, jitter=jitter[path]) for path, node in nodes.items()})


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ArithmeticError, MemoryError, NonFiniteError, RuntimeError, TypeError, ValueError) as error:
        first, *details = str(error).splitlines() or [type(error).__name__]
        for line in (*details, f"agp: {first}"):  # the table shows the last line
            print(line, file=sys.stderr)
        sys.exit(1)
    except Exception as error:  # a bug: print the traceback, and a last line for the table
        traceback.print_exc()
        print(f"agp: {type(error).__name__}: {str(error).partition(chr(10))[0]}", file=sys.stderr)
        sys.exit(1)
