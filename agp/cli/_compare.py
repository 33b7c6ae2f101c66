"""`agp compare`: methods x backends x gradient modes x precisions, trained side by side on real data."""

import argparse
import fcntl
import itertools
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agp.backend import get_backend, known_backends
from agp.cli._checks import check_fit, chosen_actions, chosen_groups, chosen_layers, chosen_storage
from agp.cli._children import spawn
from agp.cli._likelihoods import chosen_likelihood, chosen_task, takes_own_unit
from agp.cli._parser import add_command
from agp.cli._peering import METHOD, check_peers, found_peers, train_peer
from agp.cli._plan import Settings, Task
from agp.cli._report import RESULTS, Report
from agp.cli._tables import console
from agp.data import Dataset, load
from agp.methods import FULL_METHODS, METHODS, kernel_named

__all__ = ["add_parser"]

HELP = """usage: agp compare [options]
Train methods on every backend; compare bounds, gradients, speed and memory:
the exit status is 0 only if all float64 rows agree with NumPy to 1e-9.
data:
  --data NAME        elevation (default), diabetes, breast_cancer, digits; FILE
  --target COLUMN, --split S   the target of a table; the test mask of an .npz
  --task NAME        auto (default), regression, classification
rows, each of them with one or more NAMEs:
  --method NAME ...  wsvgp rsvgp (default), gpr, sgpr, lsvgp, deep-rsvgp, ...
  --backend NAME ...   as agp backends lists them (default: all)
  --gradient NAME ..., --dtype NAME ...   closed-form autodiff; float64 float32
model and training:
  --kernel TEXT, --likelihood NAME   matern32; by the targets (defaults)
  --num-inducing M, --num-orthogonal M2   the groups of inducing inputs (128, M)
  --storage NAME, --layers L   of tsvgp; of deep-* (2)
  --num-actions I, --support ROWS   of cagp-*
  --batch-size B, --iterations T, --rate R   512, 500, 0.05 (defaults)
  --fall F, --q-steps NAME, --mean NAME   where rates end (0.1 of R); q(u) by
               natural (gradients) or adam; constant (by the targets) or zero
  --device NAME, --threads N, --seed N   cpu, 1, 0 (defaults)
beside other libraries, and output:
  --peers PYTHON ...   wsvgp of GPyTorch, GPflow, GPJax, where these have them
  --out FOLDER, -q, --quiet, --debug, -h, --help   agp-compare; as agp --help
example: agp compare --data t.csv --target y --method gpr rsvgp --dtype float64
"""
NUMBERS: dict[str, int | None] = {
    "split": 0,
    "num-inducing": 128,
    "num-orthogonal": None,
    "num-actions": None,
    "support": None,
    "layers": None,
    "batch-size": 512,
    "iterations": 500,
    "seed": 0,
    "threads": 1,
}
"""Options that take whole numbers, and their defaults."""


def add_parser(commands: Any) -> None:
    """Declare the command."""
    parser = add_command(commands, "compare", HELP, _run)
    for name in ("method", "backend", "gradient", "dtype"):
        parser.add_argument(f"--{name}", action="extend", nargs="+")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--kernel", default="matern32")
    parser.add_argument("--task", default="auto")
    parser.add_argument("--likelihood", type=lambda name: "student-t" if name == "studentt" else name)  # 0.2's name
    parser.add_argument("--storage")
    for name, default in NUMBERS.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--fall", type=float, default=0.1)
    parser.add_argument("--q-steps", choices=("natural", "adam"), default="natural")
    parser.add_argument("--mean", choices=("constant", "zero"), default="constant")
    parser.add_argument("--out", type=Path, default=Path("agp-compare"))
    parser.add_argument("--data", default="elevation")
    parser.add_argument("--target")
    parser.add_argument("--peers", nargs="+", metavar="PYTHON")


def _run(arguments: argparse.Namespace) -> int:
    a = arguments
    _check_numbers(a)
    kernel_named(a.kernel)
    task = chosen_task(a.task, a.likelihood)
    tasks, left_out = _tasks(a)
    methods = list(dict.fromkeys(row.method for row in tasks))
    peers, absent = found_peers(a.peers) if a.peers else ({}, [])
    left_out += absent
    if a.peers:
        check_peers(methods, a.kernel)
    groups, storage = chosen_groups(a.num_orthogonal, a.num_inducing, methods), chosen_storage(a.storage, methods)
    counts = takes_own_unit(a.likelihood)
    data = load(a.data, target=a.target, split=a.split, seed=a.seed, task=task, counts=counts)
    settings = Settings(
        a.data, a.target, a.split, task, chosen_likelihood(a.likelihood, data), a.kernel, a.num_inducing, a.batch_size,
        a.iterations, a.rate, a.seed, a.device, groups, storage,
        *chosen_actions(a.num_actions, a.support, a.num_inducing, len(data.X), methods),
        a.fall, a.q_steps, a.mean, chosen_layers(a.layers, methods),
    )  # fmt: skip
    check_fit(data, methods, settings)
    if a.peers and settings.likelihood != "gaussian":
        msg = f"--peers is for gaussian noise, but the likelihood is {settings.likelihood}; leave --peers out."
        raise ValueError(msg)
    with _claimed(a.out):
        return _compare(tasks, left_out, Report(a.out, data, settings), a.threads, peers)


@contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """The folder, made if need be, for this process alone; ValueError if there are results or another writes there."""
    if folder.exists() and not folder.is_dir():
        msg = f"--out is {folder}, which is a file; name a folder."
        raise ValueError(msg)
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            msg = f"another comparison is writing to {folder}; name another folder with --out."
            raise ValueError(msg) from error
        if (folder / RESULTS).exists():
            msg = f"{folder} holds the results of another comparison; name another folder with --out, or remove it."
            raise ValueError(msg)
        yield
    finally:
        os.close(descriptor)  # and with it goes the lock


def _compare(tasks: list[Task], left_out: list[str], report: Report, threads: int, peers: dict[str, str]) -> int:
    """Run the tasks and report them; the exit status."""
    data, settings, out = report.data, report.settings, console()
    for line in [*_headlines(data, tasks, settings), *(f"not run: {line}" for line in left_out)]:
        out.print(line, markup=False)
    try:
        for i, row in enumerate(tasks):
            out.print(f"[{i + 1}/{len(tasks)}] {row.label}", markup=False)
            report.add(row, spawn(row, settings, report, threads))
        for library, python in peers.items():
            out.print(f"[peer] {METHOD} {library}: q(u) by Adam, minibatches and rates as above", markup=False)
            report.add_peer(METHOD, library, train_peer(library, python, data, settings, report.folder, threads))
    except KeyboardInterrupt:
        out.print("interrupted: the rows finished so far follow")
        report.interrupted = True
    return report.finish()


def _check_numbers(a: argparse.Namespace) -> None:
    counts = dict.fromkeys(("num_inducing", "batch_size", "iterations", "threads"), 1)
    for name, least in (counts | {"seed": 0, "split": 0}).items():
        if getattr(a, name) < least:
            msg = f"--{name.replace('_', '-')} is {getattr(a, name)}, but must be at least {least}."
            raise ValueError(msg)
    if not 0 < a.rate < math.inf:
        msg = f"--rate is {a.rate}, but must be positive and finite."
        raise ValueError(msg)
    if not 0 < a.fall <= 1:
        msg = f"--fall is {a.fall}, but must be above 0 and at most 1."
        raise ValueError(msg)


def _headlines(data: Dataset, tasks: list[Task], s: Settings) -> list[str]:
    """What is about to be compared, for people."""
    chosen = " (judged by the targets; --task overrides)" if s.task == "auto" else ""
    inputs = f"{data.X.shape[1]} input{'s' if data.X.shape[1] > 1 else ''}"
    lines = [
        f"{data.name}: {data.task}{chosen}; {len(data.X):,} training and {len(data.X_test):,} test rows, {inputs}",
        f"kernel {s.kernel}, likelihood {s.likelihood}, M = {s.num_inducing}, {s.iterations} steps of "
        f"{min(s.batch_size, len(data.X))} rows, rate {s.rate:g}, seed {s.seed}",
    ]
    lines += [f"{data.name}: {note}" for note in data.notes]
    if s.num_orthogonal is not None:
        lines.append(f"a second group of M2 = {s.num_orthogonal} inducing inputs, where a method has one")
    if s.layers is not None:
        lines.append(f"deep methods have {s.layers} layers, each with inducing inputs of its own")
    if s.num_actions is not None:
        lines.append(f"{s.num_actions} actions, which cover {s.support} of {len(data.X)} rows")
    if s.storage is not None:
        lines.append(f"sites of tsvgp: {s.storage}")
    if full := [name for name in FULL_METHODS if any(task.method == name for task in tasks)]:
        lines.append(f"every step of {' and '.join(full)} takes all rows")
    return lines


def _tasks(a: argparse.Namespace) -> tuple[list[Task], list[str]]:
    """The rows, the reference row of each method first, and a line for everything that is not run."""
    methods = _chosen("method", a.method, ["wsvgp", "rsvgp"], list(METHODS))
    gradients = _chosen("gradient mode", a.gradient, ["closed-form", "autodiff"], ["closed-form", "autodiff"])
    dtypes = _chosen("dtype", a.dtype, ["float64", "float32"], ["float64", "float32"])
    backends, left_out = _backends(a.backend)
    devices = _devices(a.device, backends)
    tasks = []
    for method in methods:
        tasks.append(Task(method, "numpy", "closed-form", "float64", "cpu"))
        for backend, gradient, dtype in itertools.product(backends, gradients, dtypes):
            task = Task(method, backend, gradient, dtype, devices[backend])
            if gradient in get_backend(backend).gradients and task not in tasks:
                tasks.append(task)
    return tasks, left_out


def _chosen(kind: str, given: list[str] | None, default: list[str], known: list[str]) -> list[str]:
    for name in given or []:
        if name not in known:
            msg = f"unknown {kind} {name!r}; known are {', '.join(known)}."
            raise ValueError(msg)
    return list(dict.fromkeys(given or default))


def _devices(wanted: str, backends: list[str]) -> dict[str, str]:
    """The device of each backend: the wanted one where there is such a one, else the first; "cuda" means any."""
    there = {backend: get_backend(backend).devices() for backend in backends}
    fitting = {
        backend: next((device for device in devices if device.split(":")[0] == wanted or device == wanted), None)
        for backend, devices in there.items()
    }
    if not any(fitting.values()):
        known = "; ".join(f"{backend}: {', '.join(devices)}" for backend, devices in there.items())
        msg = f"no backend of this comparison has a device {wanted!r} here; they have {known}."
        raise ValueError(msg)
    return {backend: fitting[backend] or there[backend][0] for backend in backends}


def _backends(given: list[str] | None) -> tuple[list[str], list[str]]:
    everything = [status for status in known_backends() if not status.conformance and not status.is_lazy]
    usable = [status.name for status in everything if status.usable]
    if not given or given == ["all"]:
        return usable, [f"{status.name}: {status.reason}" for status in everything if not status.usable]
    for name in given:
        if get_backend(name).is_lazy:
            msg = f"{name} arrays hold rows of data, which other libraries evaluate; compare those."
            raise ValueError(msg)
    return list(dict.fromkeys(given)), []
