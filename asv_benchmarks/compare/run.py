"""Train the same model with several methods, array libraries, gradients and precisions, and compare the results.

    python asv_benchmarks/compare/run.py --data diabetes --method wsvgp gpr --dtype float64
    python asv_benchmarks/compare/run.py --data diabetes --method wsvgp --q-steps adam --peer gpytorch=peers/bin/python

Each row is trained in its own process. Rows of one method are compared with its reference row, which NumPy computes
with closed-form gradients in float64: their bounds and gradients at the same parameters, on the same batch. The exit
status is 1 if a row fails, if a float64 row differs by more than 1e-9 or its trained bound by more than 0.1 nats per
datum, or if the bound of another library differs by more than 1e-4.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from peering import METHOD, train_peer
from problem import BUNDLED, LIKELIHOODS, Data, load

from agp.backend import get_backend, known_backends
from agp.methods import METHODS, load_plugins

TOLERANCE = 1e-9
"""Relative tolerance for the bound and the gradient of float64 rows."""
PEER_TOLERANCE = 1e-4
"""Relative tolerance for other libraries' bounds. GPyTorch and GPJax also add jitter to prior variances."""
TRAINED_TOLERANCE = 0.1
"""Tolerance for trained bounds, in nats per datum. It is large, as training amplifies rounding errors."""
SUPPORT = 2048
"""Maximum number of training rows that actions cover by default."""
COLUMNS = {
    "method": "", "backend": "", "gradient": "", "dtype": "", "bound": ",.1f", "nlpd": ".4f", "rmse": ".4f",
    "error_rate": ".4f", "coverage95": ".1%", "ms_per_step": ".1f", "peak_mib": ".0f", "diff_bound": ".1e",
    "diff_grad": ".1e",
}  # fmt: skip
"""The columns of the table, and the formats of their numbers."""


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    load_plugins()
    known = [status for status in known_backends() if status.usable]
    usable = [status.name for status in known if not (status.conformance or status.is_lazy)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", default="elevation", help=f"{', '.join(BUNDLED)}, or a .csv or .npz file (default: elevation)")
    add("--target", help="the target column of a .csv file")
    add("--split", type=int, default=0, help="column of test_masks in an .npz file")
    add("--task", choices=("auto", "regression", "classification"), default="auto")
    add("--method", choices=METHODS, nargs="+", default=["wsvgp", "rsvgp"])
    add("--backend", choices=usable, nargs="+", default=usable)
    add("--gradient", choices=("closed-form", "autodiff"), nargs="+", default=["closed-form", "autodiff"])
    add("--dtype", choices=("float64", "float32"), nargs="+", default=["float64", "float32"])
    add("--kernel", default="matern32")
    add("--likelihood", choices=LIKELIHOODS, help="default: chosen by the targets")
    add("--num-inducing", type=int, default=128, metavar="M")
    add("--num-orthogonal", type=int, metavar="M2", help="size of the second group of inducing inputs (default: M)")
    add("--storage", help="sites of tsvgp (default: datum)")
    add("--layers", type=int, default=2, help="layers of deep methods")
    add("--num-actions", type=int, help="actions of cagp-* (default: M)")
    add("--support", type=int, help=f"training rows that the actions cover (default: at most {SUPPORT})")
    add("--batch-size", type=int, default=512)
    add("--iterations", type=int, default=500)
    add("--rate", type=float, default=0.05, help="Adam's learning rate")
    add("--fall", type=float, default=0.1, help="ratio of the final to the initial rate")
    add("--q-steps", choices=("natural", "adam"), default="natural", help="steps of q(u)")
    add("--mean", choices=("constant", "zero"), default="constant", help="prior mean of numeric targets")
    add("--device", default="cpu", help="a device of the backends; those that lack it use their first device")
    add("--threads", type=int, default=1)
    add("--seed", type=int, default=0)
    add("--peer", nargs="+", default=[], metavar="LIBRARY=PYTHON", help="gpytorch, gpflow or gpjax, which train wsvgp")
    add("--out", type=Path, metavar="FILE.json", help="file for the results")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the command."""
    a = arguments(argv)
    data = load(a)
    a.likelihood = a.likelihood or (("bernoulli" if data.classes == 2 else "softmax") if data.classes else "gaussian")
    a.num_orthogonal = a.num_inducing if a.num_orthogonal is None else a.num_orthogonal
    a.support = a.support or min(SUPPORT, len(data.X))
    a.num_actions = a.num_actions or min(a.num_inducing, a.support)
    task = f"classification, {data.classes} classes" if data.classes else "regression"
    print(f"{data.name}: {task}; {len(data.X):,} training and {len(data.X_test):,} test rows, {data.X.shape[1]} inputs")
    print(f"kernel {a.kernel}, likelihood {a.likelihood}, M = {a.num_inducing}, {a.iterations} steps, seed {a.seed}")
    rows: list[dict[str, Any]] = []
    interrupted = False
    try:
        compare(a, data, rows)
    except KeyboardInterrupt:
        interrupted = True
    print(table(rows))
    limits: dict[str, dict[str, Any]] = {}
    for row in rows:
        if "upper_bound" in row:
            limits.setdefault(row["method"], row)
    for row in limits.values():
        upper, gap = row["upper_bound"], (row["upper_bound"] - row["bound"]) / len(data.X)
        print(f"{row['method']}: the exact GP's log evidence is at most {upper:,.1f}, {gap:.4g} nats per datum above")
    if a.out:
        options = {name: str(value) if isinstance(value, Path) else value for name, value in vars(a).items()}
        a.out.write_text(json.dumps({"options": options, "rows": rows}, indent=1) + "\n")
    failed = [f"FAILED {row['label']}: {fault}" for row in rows if (fault := fault_of(row, rows, len(data.X)))]
    print(*failed or ["all float64 rows agree with NumPy, closed form, to 1e-9"], sep="\n")
    return 130 if interrupted else int(bool(failed))


def tasks_of(a: argparse.Namespace) -> list[dict[str, str]]:
    """Return the tasks. Each method's reference task comes first."""
    tasks = []
    for method in a.method:
        row = {"method": method, "backend": "numpy", "gradient": "closed-form", "dtype": "float64", "device": "cpu"}
        tasks.append(row)
        for backend, gradient, dtype in itertools.product(a.backend, a.gradient, a.dtype):
            B = get_backend(backend)
            device = a.device if a.device in B.devices() else B.devices()[0]
            task = row | {"backend": backend, "gradient": gradient, "dtype": dtype, "device": device}
            if gradient in B.gradients and task not in tasks:
                tasks.append(task)
    return tasks


def compare(a: argparse.Namespace, data: Data, rows: list[dict[str, Any]]) -> None:
    """Run the tasks and the other libraries, and append their results to the rows."""
    tasks = tasks_of(a)
    with tempfile.TemporaryDirectory() as folder:
        references: dict[str, Path] = {}
        for i, task in enumerate(tasks):
            label = " ".join(task[name] for name in ("method", "backend", "gradient", "dtype"))
            print(f"[{i + 1}/{len(tasks)}] {label}", flush=True)
            file = Path(folder) / str(i)
            found = run_task(task, a, file, references.get(task["method"]))
            if "error" not in found:
                found |= differences(file, references.setdefault(task["method"], file))
            rows.append(task | {"label": label} | found)
    for library, _, python in (given.partition("=") for given in a.peer):
        print(f"[peer] {METHOD} {library}: q(u) by Adam, same minibatches and learning rates", flush=True)
        task = {"method": METHOD, "backend": library, "gradient": "autodiff", "dtype": "float64", "device": "cpu"}
        rows.append(task | {"label": f"{METHOD} {library}"} | {"peer": library} | train_peer(library, python, data, a))


def run_task(task: dict[str, str], a: argparse.Namespace, file: Path, reference: Path | None) -> dict[str, Any]:
    """Run a task in its own process, and return its results or its error."""
    options = vars(a) | {"out": None}
    request = {"task": task, "options": options, "file": str(file), "reference": reference and f"{reference}.npz"}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(a.threads))
    command = [sys.executable, str(Path(__file__).with_name("row.py"))]
    done = subprocess.run(command, input=json.dumps(request), text=True, env=os.environ | threads, check=False)
    if done.returncode:
        return {"error": f"exit status {done.returncode}"}
    return json.loads(file.with_suffix(".json").read_text())


def differences(file: Path, reference: Path) -> dict[str, float]:
    """Compute the largest relative differences in bound and gradient, with each leaf scaled by its largest entry."""
    with np.load(f"{file}.npz") as here, np.load(f"{reference}.npz") as there:
        gradients = [name for name in there.files if name.startswith("gradient:")]
        scale = {name: float(np.max(np.abs(there[name]))) or 1.0 for name in gradients}
        return {
            "diff_bound": float(abs(here["bound"] - there["bound"]) / abs(there["bound"])),
            "diff_grad": max(float(np.max(np.abs(here[n] - there[n]))) / scale[n] for n in gradients),
        }


def fault_of(row: dict[str, Any], rows: list[dict[str, Any]], count: int) -> str | None:
    """Return the reason why a row failed, or None if it passed. Differences of float32 rows are printed only."""
    if "error" in row:
        return row["error"]
    if "peer" in row:
        fits = row["diff_bound"] <= PEER_TOLERANCE
        return None if fits else f"its bound for the same model differs by {row['diff_bound']:.1e}"
    if row["dtype"] != "float64":
        return None
    if not (row["diff_bound"] <= TOLERANCE and row["diff_grad"] <= TOLERANCE):
        return f"differs by more than {TOLERANCE:g} from the reference row"
    trained = next(other["bound"] for other in rows if other["method"] == row["method"] and "error" not in other)
    apart = abs(row["bound"] - trained) / count
    if not apart <= TRAINED_TOLERANCE:
        return f"its trained bound differs by {apart:.3g} nats per datum from that of the reference row"
    return None


def table(rows: list[dict[str, Any]]) -> str:
    """Format the rows."""
    shown = [name for name in COLUMNS if any(row.get(name) is not None for row in rows)]
    cells = [shown, *([_cell(row, name) for name in shown] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    sides = ["<" if not COLUMNS[name] else ">" for name in shown]
    lines = ([f"{x:{side}{n}}" for x, side, n in zip(row, sides, widths, strict=True)] for row in cells)
    return "\n".join(map("  ".join, lines))


def _cell(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    if value is None:
        return "failed" if name == "bound" else ""
    return format(value, COLUMNS[name])


if __name__ == "__main__":
    sys.exit(main())
