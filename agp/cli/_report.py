"""The report of a comparison: the table, the plots, `results.json` and the exit status."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from agp.cli._plan import Settings, Task
from agp.cli._terminal import console, print_table
from agp.data import Dataset
from agp.errors import missing_package_message
from agp.io import explain_write_errors, write_atomically

RESULTS = "results.json"
"""The file to which a comparison writes its results at the end."""

TOLERANCE = {"float64": 1e-9, "float32": 1e-4}
"""Relative tolerances for the bound and the gradient, which are compared at the same parameters."""
PEER_TOLERANCE = 1e-4
"""Relative tolerance for other libraries' bounds. GPyTorch and GPJax also add jitter to prior variances."""
TRAINED_TOLERANCE = 0.1
"""Tolerance for trained bounds in float64, in nats per datum. It is large, as training amplifies rounding errors."""
HEADER = (
    "method", "backend", "gradient", "dtype", "bound", "test NLPD", "{score}", "95 % cov.", "ms/step", "peak MiB",
    "diff bound", "diff grad",
)  # fmt: skip
DPI = 150


class Report:
    """Collects the rows of a comparison, and writes its results."""

    def __init__(self, folder: Path, data: Dataset, settings: Settings) -> None:
        self.folder, self.data, self.settings = folder, data, settings
        self.rows: list[dict[str, Any]] = []
        self.interrupted = False
        self.references: dict[str, str] = {}
        """The npz files of the reference rows that have finished, by method."""

    def add(self, task: Task, failure: str | None) -> None:
        """Add the row of a finished task."""
        row: dict[str, Any] = dict(vars(task))
        if failure is not None:
            self.rows.append(row | {"error": failure})
            console().print(f"    failed: {failure}", markup=False)
            return
        path = self.folder / f"{task.stem}.npz"
        if task.is_reference:
            self.references[task.method] = str(path)
        row |= json.loads((self.folder / f"{task.stem}.json").read_text())
        row |= _differences(path, Path(self.references[task.method]))
        self.rows.append(row)

    def add_peer(self, method: str, library: str, found: dict[str, Any] | str) -> None:
        """Add the row of another library, from its results or its error."""
        row = {**vars(Task(method, library, "autodiff", "float64", "cpu")), "peer": library}
        if isinstance(found, str):
            console().print(f"    failed: {found}", markup=False)
            found = {"error": found}
        self.rows.append(row | found)

    def write(self) -> Path:
        """Write the results, and return their file."""
        results = {"data": self.data.describe(), "settings": vars(self.settings), "rows": self.rows}
        path = self.folder / RESULTS
        with explain_write_errors(path):
            write_atomically(path, (json.dumps(_finite(results), indent=1, allow_nan=False) + "\n").encode())
        return path

    def finish(self) -> int:
        """Print the table, write the plots, and return the exit status."""
        out = console()
        score = "error_rate" if self.data.classes else "rmse"
        title = f"{self.data.name}: bound for all {len(self.data.X):,} training rows; diff from each method's first row"
        header = [name.format(score="error rate" if self.data.classes else "RMSE") for name in HEADER]
        print_table(title, header, [_cells(row, score) for row in self.rows], numbers_from=4)
        for line in _evidence(self.rows):
            out.print(line, markup=False)
        pictures = self._draw()
        out.print(f"written to {self.folder}: {RESULTS}{''.join(', ' + name for name in pictures)}", markup=False)
        return self._status(out)

    def _draw(self) -> list[str]:
        finished = [row for row in self.rows if "error" not in row]
        if not finished:
            return []
        try:
            from agp.plot import plot_comparison, plot_map
        except ImportError:
            console().print(f"no plots: they need {missing_package_message('matplotlib', 'plot')}.", markup=False)
            return []
        plot_comparison(finished).savefig(self.folder / "nlpd_vs_time.png", dpi=DPI)
        names = ["nlpd_vs_time.png"]
        if self.data.X_all is not None:
            for method, path in self.references.items():
                plot_map(self.data, path, method).savefig(self.folder / f"map_{method}.png", dpi=DPI)
                names.append(f"map_{method}.png")
        return names

    def _status(self, out: Any) -> int:
        failed = [(row, why) for row in self.rows if (why := self._fault(row))]
        for row, why in failed:
            out.print(f"FAILED {row['method']} {row['backend']} {row['gradient']} {row['dtype']}: {why}", markup=False)
        if self.interrupted:
            return 130
        if not failed:
            out.print("all float64 rows agree with NumPy, closed form, to 1e-9")
        return 1 if failed else 0

    def _fault(self, row: dict[str, Any]) -> str | None:
        """Return the reason why a row failed, or None if it passed."""
        if "error" in row:
            return row["error"]
        if "peer" in row:
            there = row["max_rel_diff_bound"]
            return None if there <= PEER_TOLERANCE else f"its bound for the same model differs by {there:.1e}"
        if _exceeds(row):
            return f"differs by more than {TOLERANCE[row['dtype']]:g} from the reference row"
        trained = next(x["bound"] for x in self.rows if x["method"] == row["method"] and "error" not in x)
        apart = abs(row["bound"] - trained) / len(self.data.X)
        if row["dtype"] == "float64" and not apart <= TRAINED_TOLERANCE:
            return f"its trained bound differs by {apart:.3g} nats per datum from that of the reference row"
        return None


def _evidence(rows: list[dict[str, Any]]) -> list[str]:
    """Return lines on the exact GP's log evidence, from the first row of each method that computes or bounds it."""
    lines: dict[str, str] = {}
    for row in rows:
        if "log_evidence_per_datum" in row:
            line = f"the bound equals the log evidence, {row['log_evidence_per_datum']:.4f} nats per datum"
        elif "gap_per_datum" in row:
            line = (
                "the exact GP's log evidence at these parameters lies between the bound and "
                f"{row['upper_bound']:,.1f}, a gap of {row['gap_per_datum']:.4g} nats per datum"
            )
        else:
            continue
        lines.setdefault(row["method"], f"{row['method']}: {line}")
    return [*lines.values()]


def _differences(path: Path, reference: Path) -> dict[str, Any]:
    """Compute the largest relative differences in bound and gradient, with each leaf scaled by its largest entry."""
    with np.load(path) as here, np.load(reference) as there:
        gradients = [name for name in there.files if name.startswith("gradient:")]
        scale = {name: float(np.max(np.abs(there[name]))) or 1.0 for name in gradients}
        return {
            "max_rel_diff_bound": float(abs(here["bound"] - there["bound"]) / abs(there["bound"])),
            "max_rel_diff_grad": max(float(np.max(np.abs(here[n] - there[n]))) / scale[n] for n in gradients),
            "condition": float(there["condition"]),
        }


def _exceeds(row: dict[str, Any]) -> bool:
    """Return True if a row differs too much from its reference. Ill-conditioned float32 rows are not checked."""
    if row["dtype"] == "float32" and row["condition"] * np.finfo(np.float32).eps > 0.1 * TOLERANCE["float32"]:
        return False
    return not max(row["max_rel_diff_bound"], row["max_rel_diff_grad"]) <= TOLERANCE[row["dtype"]]


def _cells(row: dict[str, Any], score: str) -> list[str]:
    where = row["backend"] if row["device"] == "cpu" else f"{row['backend']} {row['device']}"
    start = [row["method"], where, row["gradient"], row["dtype"]]
    if "error" in row:
        return [*start, "failed", *[""] * 7]
    coverage = "" if row["coverage95"] is None else f"{100 * row['coverage95']:.1f} %"
    return [
        *start,
        f"{row['bound']:,.1f}",
        f"{row['nlpd']:.4f}",
        f"{row[score]:.4f}",
        coverage,
        f"{row['ms_per_step']:.1f}",
        f"{row['peak_mib']:.0f}",
        f"{row['max_rel_diff_bound']:.1e}",
        "" if row["max_rel_diff_grad"] is None else f"{row['max_rel_diff_grad']:.1e}",
    ]


def _finite(x: Any) -> Any:
    """Replace NaN and infinity with None, because JSON has neither."""
    if isinstance(x, dict):
        return {key: _finite(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [_finite(value) for value in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x
