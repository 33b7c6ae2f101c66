"""`agp compare --peers`: train W-SVGP in other libraries, which run in interpreters that the user names."""

import dataclasses
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from agp import metrics
from agp.bounds import Batch
from agp.cli._peers.contract import Run, Start
from agp.cli._plan import CURVE_POINTS, WARM_UP, Settings, build_model, curve_rows, threads_of
from agp.data import Dataset
from agp.means import ConstantMean
from agp.methods import updates_of
from agp.training import Batches
from agp.updates import Adam

LIBRARIES: tuple[str, ...] = ("gpytorch", "gpflow", "gpjax")
METHOD = "wsvgp"
"""The method that the other libraries train."""
KERNELS = ("rbf", "matern12", "matern32", "matern52")
HERE = Path(__file__).parent / "_peers"
LOOK = "import importlib.util as u, json, sys; print(json.dumps([n for n in sys.argv[1:] if u.find_spec(n)]))"


def find_peers(pythons: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Find the first interpreter that has each library. Return remarks about libraries that no interpreter has.

    Raise a ValueError if a path is not a Python interpreter.
    """
    here: dict[str, str] = {}
    for python in pythons:
        try:
            command = [python, "-c", LOOK, *LIBRARIES]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
            names = json.loads(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "unexpected output"
            msg = f"--peers is {python}, which is not a Python interpreter ({reason}); use e.g. venv/bin/python."
            raise ValueError(msg) from error
        here |= {name: python for name in names if name not in here}
    missing = [name for name in LIBRARIES if name not in here]
    here = {name: here[name] for name in LIBRARIES if name in here}
    return here, [f"{name}: not installed for {', '.join(pythons)}" for name in missing]


def check_peers(methods: Sequence[str], kernel: str) -> None:
    """Raise a ValueError if the other libraries support none of the methods, or do not support the kernel."""
    if METHOD not in methods:
        msg = f"--peers trains {METHOD} in other libraries, but --method does not include {METHOD}; add {METHOD}."
        raise ValueError(msg)
    if kernel not in KERNELS:
        msg = f"--kernel is {kernel}, but with --peers it must be one of {', '.join(KERNELS)}."
        raise ValueError(msg)


def peer_stems(library: str) -> list[str]:
    """Return the names, without an ending, of the files that are exchanged with a library's interpreter."""
    return [f"peer-{library}-{name}" for name in ("start", "run", "out")]


def train_peer(
    library: str, python: str, data: Dataset, settings: Settings, folder: Path, threads: int
) -> dict[str, Any] | str:
    """Train W-SVGP with a library in its own interpreter. Return the library's results, or its error as text."""
    paths = [folder / f"{stem}.npz" for stem in peer_stems(library)]
    try:
        expected = _write(paths[0], paths[1], data, settings)
        command = [python, str(HERE / "train.py"), library, *map(str, paths)]
        done = subprocess.run(
            command, capture_output=True, text=True, env=os.environ | threads_of(threads), check=False
        )
        if done.returncode:
            return (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        with np.load(paths[2]) as file:
            return _facts(dict(file), expected, data, settings)
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def _write(start_path: Path, run_path: Path, data: Dataset, s: Settings) -> float:
    """Write the initial model and the run for the other interpreter. Return agp's bound at the probe."""
    X, y = np.ascontiguousarray(data.X), np.ascontiguousarray(data.y)
    model = build_model(METHOD, X, y, data, s)
    process, size, M = model.process, min(s.batch_size, len(X)), len(model.process.inducing.Z)
    adam = updates_of(METHOD, model, s.iterations, rate=s.rate, fall=s.fall, natural=None)[0]
    assert isinstance(adam, Adam)
    late = next(iter(adam.groups.values()))
    batches = Batches(X, y, size, s.seed)
    rows = np.stack([np.arange(size) if size == len(X) else batches.indices(t) for t in range(s.iterations)])
    probe_mean, probe_scale = _probe(M)
    initial_values(model, len(X), s.kernel, epsilon=adam.epsilon, Z_beta1=late.beta1).write(start_path)
    every = max(1, s.iterations // CURVE_POINTS)
    Run(
        X=X, y=y[:, 0], X_test=data.X_test, curve_rows=curve_rows(data, s),
        curve_steps=np.unique([1, *range(every, s.iterations, every), s.iterations]), batches=rows.astype(np.int32),
        rates=_rates(adam.rate, s.iterations), Z_rates=_rates(late.rate, s.iterations), probe_mean=probe_mean,
        probe_scale=probe_scale,
    ).write(run_path)  # fmt: skip
    q = dataclasses.replace(process.posterior, mean=probe_mean[:, None], scale=probe_scale[None])
    jitter = float(process._absolute_jitter())
    probed = dataclasses.replace(model, process=dataclasses.replace(process, posterior=q, jitter=jitter))
    return float(probed._objective(Batch(X[rows[0]], y[rows[0]], len(X) / size))[0])


def initial_values(model: Any, rows: int, kernel: str, *, epsilon: float, Z_beta1: float) -> Start:
    """Return the initial values of a W-SVGP, with N and the constants of Adam."""
    process, h = model.process, model.process.mean_function
    Z, M = process.inducing.Z, len(process.inducing.Z)
    return Start(
        Z=Z, lengthscale=np.broadcast_to(process.kernel.lengthscale, Z.shape[1:]).copy(),
        variance=float(process.kernel.variance), noise=float(model.likelihood.noise_variance),
        mean=float(np.squeeze(h.value)) if isinstance(h, ConstantMean) else float("nan"), kernel=kernel,
        jitter=float(process._absolute_jitter()), rows=rows, epsilon=epsilon, Z_beta1=Z_beta1, q_mean=np.zeros(M),
        q_scale=np.eye(M),
    )  # fmt: skip


def _probe(M: int) -> tuple[npt.NDArray, npt.NDArray]:
    """Return the mean and scale of a q(u) at which the bound depends on every part of the model."""
    rng = np.random.default_rng(0)
    return 0.1 * rng.standard_normal(M), 0.5 * np.eye(M) + 0.01 * np.tril(rng.standard_normal((M, M)), -1)


def _rates(rate: Any, steps: int) -> npt.NDArray:
    """Evaluate a learning rate, which is a number or a schedule, at each step."""
    if isinstance(rate, float):
        return np.full(steps, rate)
    return np.asarray([float(rate(np.asarray(float(t)))) for t in range(steps)])


def _nlpd(y: npt.NDArray, mean: npt.NDArray, variance: npt.NDArray) -> float:
    return metrics.nlpd(-0.5 * (np.log(2.0 * np.pi * variance) + (y - mean) ** 2 / variance))


def _facts(out: dict[str, Any], expected: float, data: Dataset, s: Settings) -> dict[str, Any]:
    """Compute the results of a row from the file that the other interpreter wrote."""
    seconds, y = out["seconds"], data.y_test
    later = seconds[WARM_UP:] if len(seconds) > WARM_UP else seconds
    mean, variance = out["mean"][:, None], out["variance"][:, None]
    some = y[curve_rows(data, s), 0]
    moments = zip(out["curve_means"], out["curve_variances"], strict=True)
    return {
        "peer": str(out["versions"]),
        "num_inducing": s.num_inducing,
        "steps": len(seconds),
        "bound": float(out["bound"]),
        "nlpd": _nlpd(y, mean, variance),
        "rmse": metrics.rmse(mean, y),
        "coverage95": metrics.coverage(mean, variance, y),
        "ms_per_step": 1e3 * float(np.mean(later)),
        "warm_up_seconds": float(np.sum(seconds[:WARM_UP])),
        "seconds": float(np.sum(seconds)),
        "peak_mib": float(out["peak_mib"]),
        "max_rel_diff_bound": abs(float(out["probe"]) - expected) / abs(expected),
        "max_rel_diff_grad": None,
        "curve": [(float(t), _nlpd(some, *pair)) for t, pair in zip(out["curve_seconds"], moments, strict=True)],
    }
