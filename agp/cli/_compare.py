"""`agp compare`: train combinations of methods, backends, gradient modes and precisions on the same data."""

import argparse
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from agp.backend import get_backend, known_backends
from agp.cli._checks import check_fit, check_task, choose_likelihood, method_settings
from agp.cli._fit import TASKS
from agp.cli._peering import METHOD, check_peers, find_peers, peer_stems, train_peer
from agp.cli._plan import LIKELIHOODS, Settings, Task, threads_of
from agp.cli._report import RESULTS, Report
from agp.cli._terminal import POSITIVE, SEED, add_command, console, file_identity, option, whole
from agp.data import Dataset
from agp.io import check_replaceable
from agp.kernels import parse_kernel
from agp.methods import METHODS

HELP = """usage: agp compare [options]
Train methods on several backends; compare bounds, gradients, speed and memory.
The exit status is 0 if all float64 rows agree with NumPy to 1e-9.
options:
  --data NAME          elevation (default), diabetes, breast_cancer or digits;
                       or a .csv, .parquet or .npz file
  --target COLUMN, --split S   target of a table; column of .npz test_masks (0)
  --task NAME          auto (default), regression or classification
  --method NAME ...    names listed by agp methods (default: wsvgp rsvgp)
  --backend NAME ...   names listed by agp backends (default: all usable ones)
  --gradient NAME ..., --dtype NAME ...   closed-form autodiff; float64 float32
  --kernel TEXT, --likelihood NAME   default: matern32; chosen by the targets
  --num-inducing M, --num-orthogonal M2   sizes of inducing groups (128, M)
  --storage NAME, --layers L   sites of tsvgp (datum); layers if deep (2)
  --num-actions I, --support ROWS   actions of cagp-*; rows that they cover
  --batch-size B, --iterations T   rows per minibatch (512); steps (500)
  --rate R, --fall F   learning rate (0.05); its factor at the end (0.1)
  --q-steps NAME       steps of q(u): natural (gradients, default) or adam
  --mean NAME          mean of numeric targets: constant (default) or zero
  --device NAME, --threads N, --seed N   default: cpu, 1, 0
  --peers PYTHON ...   interpreters in which GPyTorch, GPflow, GPJax train wsvgp
  --out FOLDER         folder for the results (default: agp-compare)
  -q, --quiet, --debug, -h, --help   see agp --help
example: agp compare --data t.csv --target y --method gpr rsvgp --dtype float64
"""
GRADIENTS, DTYPES = ("closed-form", "autodiff"), ("float64", "float32")
NUMBERS: dict[str, tuple[int | None, int]] = {
    "split": (0, 0),
    "num-inducing": (128, 1),
    "num-orthogonal": (None, 0),
    "num-actions": (None, 1),
    "support": (None, 1),
    "layers": (None, 1),
    "batch-size": (512, 1),
    "iterations": (500, 1),
    "threads": (1, 1),
}
"""Options that take whole numbers: their defaults and minimum values."""
SHARE = option(float, "above 0 and at most 1", lambda x: 0.0 < x <= 1.0)


def add_parser(commands: Any) -> None:
    """Add the parser of the command."""
    parser = add_command(commands, "compare", HELP, _run)
    several: Any = {"action": "extend", "nargs": "+"}
    parser.add_argument("--method", choices=METHODS, **several)
    parser.add_argument("--gradient", choices=GRADIENTS, **several)
    parser.add_argument("--dtype", choices=DTYPES, **several)
    parser.add_argument("--backend", **several)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--kernel", default="matern32")
    parser.add_argument("--task", choices=TASKS, default="auto")
    old = {"studentt": "student-t"}  # the name in 0.2
    parser.add_argument("--likelihood", type=lambda name: old.get(name, name), choices=LIKELIHOODS)
    parser.add_argument("--storage", choices=[name for method in METHODS.values() for name in method.storages])
    for name, (default, least) in NUMBERS.items():
        parser.add_argument(f"--{name}", type=whole(least), default=default)
    parser.add_argument("--seed", type=SEED, default=0)
    parser.add_argument("--rate", type=POSITIVE, default=0.05)
    parser.add_argument("--fall", type=SHARE, default=0.1)
    parser.add_argument("--q-steps", choices=("natural", "adam"), default="natural")
    parser.add_argument("--mean", choices=("constant", "zero"), default="constant")
    parser.add_argument("--out", type=Path, default=Path("agp-compare"))
    parser.add_argument("--data", default="elevation")
    parser.add_argument("--target")
    parser.add_argument("--peers", nargs="+", metavar="PYTHON")


def _run(a: argparse.Namespace) -> int:
    parse_kernel(a.kernel)
    a.task = check_task(a.task, a.likelihood)
    tasks, left_out = _tasks(a)
    methods = list(dict.fromkeys(row.method for row in tasks))
    peers, absent = find_peers(a.peers) if a.peers else ({}, [])
    if a.peers:
        check_peers(methods, a.kernel)
    settings = Settings(**{field.name: vars(a)[field.name] for field in fields(Settings)})
    data = settings.load()
    likelihood = choose_likelihood(a.likelihood, data)
    settings = replace(settings, likelihood=likelihood, **method_settings(a, methods, len(data.X)))
    check_fit(data, methods, settings)
    if a.peers and likelihood != "gaussian":
        msg = f"--peers requires the gaussian likelihood, but the likelihood is {likelihood}; leave --peers out."
        raise ValueError(msg)
    report = Report(a.out, data, settings)
    with _claim_folder(a.out):
        _check_outputs(a, tasks, peers)
        _compare(tasks, [*left_out, *absent], report, a.threads, peers)
        try:
            a.written = (report.write(),)
        finally:  # the table is printed even if it cannot be written
            status = report.finish()
        return status


def _check_outputs(a: argparse.Namespace, tasks: list[Task], peers: Iterable[str]) -> None:
    """Raise a ValueError if the comparison would replace its data, or anything but regular files."""
    stems = [*(task.stem for task in tasks), *(stem for library in peers for stem in peer_stems(library))]
    for out in (a.out / f"{stem}{ending}" for stem in stems for ending in (".npz", ".json")):
        if file_identity(out) == file_identity(a.data):
            msg = f"--out is {a.out}, where {out.name} is the table itself; name another folder."
            raise ValueError(msg)
        check_replaceable(out)


@contextmanager
def _claim_folder(folder: Path) -> Iterator[None]:
    """Create the folder if necessary, and lock it, except on Windows.

    Raise a ValueError if the folder contains results or is locked.
    """
    if folder.exists() and not folder.is_dir():
        msg = f"--out is {folder}, which is a file; name a folder."
        raise ValueError(msg)
    folder.mkdir(parents=True, exist_ok=True)
    with _lock(folder):
        if (folder / RESULTS).exists():
            msg = f"{folder} holds the results of another comparison; remove the folder, or name another with --out."
            raise ValueError(msg)
        yield


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Lock a folder until the end of the context. Raise a ValueError if another process has locked it."""
    try:
        import fcntl
    except ImportError:  # on Windows
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            msg = f"another comparison is writing to {folder}; name another folder with --out."
            raise ValueError(msg) from error
        yield
    finally:
        os.close(descriptor)  # releases the lock


def _compare(tasks: list[Task], left_out: list[str], report: Report, threads: int, peers: dict[str, str]) -> None:
    """Run the tasks, and add their results to the report."""
    data, settings, out = report.data, report.settings, console()
    for line in [*_headlines(data, tasks, settings), *(f"not run: {line}" for line in left_out)]:
        out.print(line, markup=False)
    try:
        for i, row in enumerate(tasks):
            out.print(f"[{i + 1}/{len(tasks)}] {row.label}", markup=False)
            report.add(row, _run_task(row, report, threads))
        for library, python in peers.items():
            out.print(f"[peer] {METHOD} {library}: q(u) by Adam, same minibatches and learning rates", markup=False)
            report.add_peer(METHOD, library, train_peer(library, python, data, settings, report.folder, threads))
    except KeyboardInterrupt:
        out.print("interrupted; the table shows the rows that have finished")
        report.interrupted = True


def _run_task(task: Task, report: Report, threads: int) -> str | None:
    """Run a task in its own process. Return None if it succeeds, otherwise the last line of its error output."""
    reference = None if task.is_reference else report.references.get(task.method)
    if not task.is_reference and reference is None:
        return f"the reference row of {task.method} failed"
    request = {"task": vars(task), "settings": vars(report.settings), "folder": str(report.folder)}
    command = [sys.executable, "-m", "agp.cli._row"]
    environment = os.environ | threads_of(threads)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdin is not None
        assert child.stderr is not None
        child.stdin.write(json.dumps(request | {"reference": reference}))
        child.stdin.close()
        said = _echo(child.stderr)
        if child.wait() == 130:
            raise KeyboardInterrupt
    return None if child.returncode == 0 else said or f"exit status {child.returncode}"


def _echo(stream: Any) -> str:
    """Copy a task's progress bar and errors to standard error. Return the last complete line."""
    line, last = "", ""
    while piece := stream.read(1):
        sys.stderr.write(piece)
        line += piece
        if piece in "\r\n":
            sys.stderr.flush()
            last, line = line.strip() or last, ""
    return last.removeprefix("agp: ")


def _headlines(data: Dataset, tasks: list[Task], s: Settings) -> list[str]:
    """Return lines that describe the comparison."""
    chosen = " (inferred from the targets; --task overrides it)" if s.task == "auto" else ""
    inputs = f"{data.X.shape[1]} input{'s' if data.X.shape[1] > 1 else ''}"
    lines = [
        f"{data.name}: {data.task}{chosen}; {len(data.X):,} training and {len(data.X_test):,} test rows, {inputs}",
        f"kernel {s.kernel}, likelihood {s.likelihood}, M = {s.num_inducing}, {s.iterations} steps of "
        f"{min(s.batch_size, len(data.X))} rows, rate {s.rate:g}, seed {s.seed}",
    ]
    lines += [f"{data.name}: {note}" for note in data.notes]
    if s.num_orthogonal is not None:
        lines.append(f"methods with a second group of inducing inputs: M2 = {s.num_orthogonal}")
    if s.layers is not None:
        lines.append(f"deep methods have {s.layers} layers, and each layer has its own inducing inputs")
    if s.num_actions is not None:
        lines.append(f"{s.num_actions} actions, which cover {s.support} of {len(data.X)} rows")
    used = [method for name, method in METHODS.items() if any(task.method == name for task in tasks)]
    if s.storage is not None:
        storing = ", ".join(method.name for method in used if method.storages)
        lines.append(f"storage of {storing}'s sites: {s.storage}")
    if full := [method.name for method in used if method.uses_all_rows]:
        lines.append(f"methods that use all rows in each step: {', '.join(full)}")
    return lines


def _tasks(a: argparse.Namespace) -> tuple[list[Task], list[str]]:
    """Return the tasks, and a line for each backend that is left out. Each method's reference task comes first."""
    methods, gradients, dtypes = (
        list(dict.fromkeys(given or usual))
        for given, usual in ((a.method, ("wsvgp", "rsvgp")), (a.gradient, GRADIENTS), (a.dtype, DTYPES))
    )
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


def _devices(wanted: str, backends: list[str]) -> dict[str, str]:
    """Return, for each backend, its device that matches `wanted` ("cuda" matches any GPU), or else its first device."""
    there = {backend: get_backend(backend).devices() for backend in backends}
    fitting = {
        backend: next((device for device in devices if wanted in (device, device.split(":")[0])), None)
        for backend, devices in there.items()
    }
    if not any(fitting.values()):
        known = "; ".join(f"{backend}: {', '.join(devices)}" for backend, devices in there.items())
        msg = f"--device is {wanted!r}, but no backend of this comparison has this device; choose from {known}."
        raise ValueError(msg)
    return {backend: fitting[backend] or there[backend][0] for backend in backends}


def _backends(given: list[str] | None) -> tuple[list[str], list[str]]:
    everything = [status for status in known_backends() if not status.conformance and not status.is_lazy]
    usable = [status.name for status in everything if status.usable]
    if not given or given == ["all"]:
        return usable, [f"{status.name}: {status.reason}" for status in everything if not status.usable]
    for name in given:
        if get_backend(name).is_lazy:
            msg = f"--backend is {name}, which computes with other array libraries; name one of those libraries."
            raise ValueError(msg)
    return list(dict.fromkeys(given)), []
