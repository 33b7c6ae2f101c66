"""One row of a comparison, in a process of its own with one array library in it.

`python -m agp.cli._row` reads its task as JSON from standard input, trains, measures, and writes ``STEM.json`` and
``STEM.npz`` into the folder of the comparison.
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
from agp.backend import Array, Backend, backend_of, get_backend, like
from agp.cli._likelihoods import likelihood_named
from agp.cli._methods import build, updates_of
from agp.cli._plan import Settings, Task
from agp.data import Dataset
from agp.errors import Interrupted, NonFiniteError, RepairWarning
from agp.gradient import gradient_of
from agp.linalg import default_jitter, identity
from agp.models import CGGP, GPR, SGPR, SOLVEGPR, TVGP, CaGP
from agp.posteriors import InverseFactored, inducing_covariance
from agp.training import Batches, Progress, Result, train

__all__ = ["main"]

CURVE_ROWS = 2000
"""Test rows that the curve of NLPD against time is computed from."""
CURVE_POINTS = 20
EXACT, EXACT_ITERATIONS = 1e-13, 2000
"""Relative residual and iterations of the solves that rows are compared at."""
WARM_UP = 2
"""Steps that are not timed: libraries compile and warm up in them."""


def main() -> int:
    """Run the task on standard input; the exit status is 0 if its files were written, 130 if interrupted."""
    request = json.load(sys.stdin)
    warnings.simplefilter("ignore", RepairWarning)  # they are counted in the row
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
        self.B: Backend = get_backend(task.backend)
        self.B.enable_float64()  # this process is ours
        self.data: Dataset = settings.load()
        self.X, self.y = self.array(self.data.X), self.array(self.data.y)
        self.curve: list[tuple[float, float]] = []
        self.warm_up = 0.0

    def array(self, x: npt.NDArray) -> Array:
        """A host array on the task's backend and device, in its precision."""
        return self.B.from_numpy(np.asarray(x, order="C"), dtype=self.task.dtype, device=self.task.device)

    def run(self, reference: str | None) -> None:
        """Train, measure and write; `reference` is the npz file of the reference row, if this is not it."""
        s = self.settings
        likelihood = likelihood_named(s.likelihood, self.data.classes)
        model = build(
            self.task.method, self.X, self.y, likelihood=likelihood, kernel=s.kernel, num_inducing=s.num_inducing,
            seed=s.seed, num_orthogonal=s.num_orthogonal, storage=s.storage or "datum", num_actions=s.num_actions,
            support=s.support,
        )  # fmt: skip
        began = time.perf_counter()
        result = self.train(model)
        facts = self.measure(result.model)
        arrays = self.judge(result.model, reference)
        facts |= {
            "num_inducing": int(result.model.Z.shape[0]) if hasattr(result.model, "Z") else None,
            "steps": result.steps,
            "ms_per_step": self.milliseconds(result),
            "warm_up_seconds": self.warm_up,
            "seconds": time.perf_counter() - began,
            "repairs": result.repairs.total(),
            "curve": self.curve,
        }
        np.savez(self.folder / f"{self.task.stem}.npz", allow_pickle=False, **arrays)
        (self.folder / f"{self.task.stem}.json").write_text(json.dumps(facts))

    def train(self, model: Any) -> Result:
        """Train with the project's recipe, following the test NLPD."""
        s = self.settings
        every = max(1, s.iterations // CURVE_POINTS)
        rows = np.random.default_rng(s.seed).permutation(len(self.data.X_test))[:CURVE_ROWS]
        X, y = self.array(self.data.X_test[rows]), self.array(self.data.y_test[rows])

        def follow(progress: Progress) -> None:
            if progress.step <= WARM_UP:
                self.warm_up = progress.seconds
            if progress.step % every == 0 or progress.step in (1, s.iterations):
                density = self.B.to_numpy(progress.model.log_density(X, y))
                self.curve.append((progress.seconds, metrics.nlpd(density)))

        mode: Any = self.task.gradient
        return train(
            model, self.X, self.y, steps=s.iterations, seed=s.seed, callbacks=[follow], progress=True,
            updates=updates_of(self.task.method, model, s.iterations, rate=s.rate, gradient=mode),
            batch_size=min(s.batch_size, len(self.X)) if model.stochastic else None,
        )  # fmt: skip

    def milliseconds(self, result: Result) -> float:
        """Mean time of a step, without the first ones; of a run no longer than those, of all."""
        if result.steps <= WARM_UP:
            return 1e3 * result.seconds / result.steps
        return 1e3 * (result.seconds - self.warm_up) / (result.steps - WARM_UP)

    def measure(self, model: Any) -> dict[str, Any]:
        """The bound of all training rows, the scores of the test rows, and the peak memory."""
        to_numpy, y = self.B.to_numpy, self.data.y_test
        X_test = self.array(self.data.X_test)
        density = to_numpy(model.log_density(X_test, self.array(y)))
        mean, variance = map(to_numpy, model.predict(X_test, observed=True))
        facts: dict[str, Any] = {"bound": float(model.bound(self.X, self.y)[0]), "nlpd": metrics.nlpd(density)}
        if self.data.classes:
            facts |= {"error_rate": metrics.error_rate(mean, y), "coverage95": None}
        else:
            # the central interval of a normal distribution, which other likelihoods do not predict
            normal = self.settings.likelihood == "gaussian"
            coverage = metrics.coverage(mean, variance, y) if normal else None
            facts |= {"rmse": metrics.rmse(mean, y), "coverage95": coverage}
        return facts | self.evidence(model, facts["bound"]) | {"peak_mib": self.B.peak_memory()}

    def evidence(self, model: Any, bound: float) -> dict[str, float]:
        """What is known about the log evidence of the exact GP at the parameters of the model, where a method tells."""
        N = len(self.data.X)
        if isinstance(model, GPR):
            return {"log_evidence_per_datum": bound / N}
        if isinstance(model, (SGPR, SOLVEGPR)):
            upper = float(model.upper_bound(self.X, self.y))
            return {"upper_bound": upper, "gap_per_datum": (upper - bound) / N}
        return {}

    def judge(self, model: Any, reference: str | None) -> dict[str, npt.NDArray]:
        """Bound and gradient at the reference row's parameters on one batch; the reference writes all of it down."""
        if reference is None:
            arrays = self.inheritance(model) | self.map(model)
        else:
            model, arrays = self.inherited(model, reference), {}
        if isinstance(model, CGGP) and self.task.dtype == "float64":
            # iterates of conjugate gradients magnify rounding, but not beyond their tolerance
            model = dataclasses.replace(model, tolerance=EXACT, max_iterations=EXACT_ITERATIONS)
        size = min(self.settings.batch_size, len(self.data.X)) if model.stochastic else len(self.data.X)
        batch = Batches(self.X, self.y, size, self.settings.seed, model.draws)[0]
        mode: Any = self.task.gradient
        bound, gradient = gradient_of(model, batch, mode)
        arrays["bound"] = np.asarray(float(bound))
        return arrays | {f"gradient:{name}": self.B.to_numpy(x) for name, x in gradient.items()}

    def inheritance(self, model: Any) -> dict[str, npt.NDArray]:
        """What the other rows need to evaluate the very same problem, and how well conditioned it is."""
        leaves = {f"leaf:{name}": self.B.to_numpy(x) for name, x in tree.leaves(model).items()}
        matrix = self.B.to_numpy(inverted_matrix(model))
        jitter = 0.0 if not hasattr(model, "jitter") else float(default_jitter(model.kernel(model.Z)[0]))
        return leaves | {"condition": np.max(np.linalg.cond(matrix)), "jitter": np.asarray(jitter)}

    def inherited(self, model: Any, reference: str) -> Any:
        """The reference row's model in this row's precision: its leaves and its very jitter."""
        with np.load(reference) as file:
            leaves = {name.removeprefix("leaf:"): file[name] for name in file.files if name.startswith("leaf:")}
            jitter = float(file["jitter"])
        model = tree.with_leaves(model, {name: self.array(x) for name, x in leaves.items()})
        return dataclasses.replace(model, jitter=jitter) if hasattr(model, "jitter") else model

    def map(self, model: Any) -> dict[str, npt.NDArray]:
        """Predictions at all rows, where there are two inputs to draw a map of: as the truth is drawn."""
        if self.data.X_all is None:
            return {}
        observed = bool(self.data.classes) or self.data.counts
        mean, variance = map(self.B.to_numpy, model.predict(self.array(self.data.X_all), observed=observed))
        if self.data.classes:
            both = np.concatenate([1.0 - mean, mean], axis=1)
            return {"map:probability": both if mean.shape[1] == 1 else mean}
        return {"map:mean": mean[:, 0], "map:sd": np.sqrt(variance[:, 0])}


def inverted_matrix(model: Any) -> Array:
    """The matrix whose inverse the method needs: Kff + sigma^2 I, S^T (Kff + sigma^2 I) S, Kuu, Kuu + diag(s) ..."""
    if isinstance(model, GPR):
        K = model.kernel(model.X)[0]
        return K + model.likelihood.noise_variance * identity(K)
    if isinstance(model, CaGP):
        return model.projected_covariance()
    if isinstance(model, CGGP):  # without the matrix: no eigenvalue of K exceeds its trace
        xp, noise = backend_of(model.X).xp, model.likelihood.noise_variance
        extremes = xp.stack([xp.sum(model.kernel.diag(model.X)[0]) + noise, noise])
        return extremes * xp.eye(2, **like(extremes))
    if isinstance(model, TVGP):
        K, precision = model.kernel(model.X)[0], model.site_precision.mT
        root = precision[:, :, None] ** 0.5
        return K * root * root.mT + identity(K)
    Kuu = inducing_covariance(model)[0]
    posterior = getattr(model, "posterior", None)
    return posterior.inverse_target(Kuu) if isinstance(posterior, InverseFactored) else Kuu


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ArithmeticError, MemoryError, NonFiniteError, RuntimeError, TypeError, ValueError) as error:
        first, *details = str(error).splitlines() or [type(error).__name__]
        for line in (*details, f"agp: {first}"):  # last what the table shows
            print(line, file=sys.stderr)
        sys.exit(1)
    except Exception as error:  # a defect: where it is, and a last line that the table can show
        traceback.print_exc()
        print(f"agp: {type(error).__name__}: {str(error).partition(chr(10))[0]}", file=sys.stderr)
        sys.exit(1)
