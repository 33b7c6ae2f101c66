"""Train W-SVGP in other libraries, which run in interpreters that the user names, as agp trains it."""

import sys
from pathlib import Path

PEERS = Path(__file__).parent / "peers"
sys.path.append(str(PEERS))  # its modules do not import agp, which other interpreters lack

# isort: split
import argparse
import dataclasses
import os
import subprocess
import tempfile
from typing import Any

import numpy as np
from contract import Run, Start
from problem import CURVE_POINTS, WARM_UP, Data, build_model, curve_rows
from scipy.special import ndtr

from agp import metrics
from agp.bounds import Batch
from agp.gradient import gradient_of_batch
from agp.likelihoods import Gaussian
from agp.means import ConstantMean
from agp.methods import updates_of
from agp.training import Batches
from agp.updates import Adam

METHOD = "wsvgp"
"""The method that the other libraries train."""


def train_peer(library: str, python: str, data: Data, a: argparse.Namespace) -> dict[str, Any]:
    """Train W-SVGP with a library in its own interpreter, and return the results of its row."""
    with tempfile.TemporaryDirectory() as folder:
        start, run, out = (Path(folder) / f"{name}.npz" for name in ("start", "run", "out"))
        expected = write_problem(start, run, data, a)
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(a.threads))
        command = [python, str(PEERS / "train.py"), library, str(start), str(run), str(out)]
        done = subprocess.run(command, env=os.environ | threads, check=False)
        if done.returncode:
            return {"error": f"exit status {done.returncode}"}
        with np.load(out) as file:
            return _facts(dict(file), expected, data, a)


def write_problem(start: Path, run: Path, data: Data, a: argparse.Namespace) -> float:
    """Write the initial model and the training run for the other interpreter. Return agp's bound at the probe."""
    X, y = np.ascontiguousarray(data.X), np.ascontiguousarray(data.y)
    model = build_model(METHOD, X, y, data, a)
    process, size, M = model.process, min(a.batch_size, len(X)), len(model.process.inducing.Z)
    adam = updates_of(METHOD, model, a.iterations, rate=a.rate, fall=a.fall, natural=None)[0]
    assert isinstance(adam, Adam)
    late = next(iter(adam.groups.values()))
    batches, every = Batches(X, y, size, a.seed), max(1, a.iterations // CURVE_POINTS)
    rows = np.stack([np.arange(size) if size == len(X) else batches.indices(t) for t in range(a.iterations)])
    rng = np.random.default_rng(0)  # a q(u) at which the bound depends on every part of the model
    mean, scale = 0.1 * rng.standard_normal(M), 0.5 * np.eye(M) + 0.01 * np.tril(rng.standard_normal((M, M)), -1)
    start_of(model, len(X), a.kernel, epsilon=adam.epsilon, Z_beta1=late.beta1).write(start)
    Run(
        X=X, y=y[:, 0], X_test=data.X_test, curve_rows=curve_rows(data, a.seed),
        curve_steps=np.unique([1, *range(every, a.iterations, every), a.iterations]), batches=rows.astype(np.int32),
        rates=_rates(adam.rate, a.iterations), Z_rates=_rates(late.rate, a.iterations), probe_mean=mean,
        probe_scale=scale,
    ).write(run)  # fmt: skip
    q = dataclasses.replace(process.posterior, mean=mean[:, None], scale=scale[None])
    jitter = float(process._absolute_jitter())
    probed = dataclasses.replace(model, process=dataclasses.replace(process, posterior=q, jitter=jitter))
    return float(gradient_of_batch(probed, Batch(X[rows[0]], y[rows[0]], len(X) / size), "closed-form")[0])


def start_of(model: Any, rows: int, kernel: str, *, epsilon: float, Z_beta1: float) -> Start:
    """Return the initial values of a W-SVGP, with N and the constants of Adam."""
    process, h, likelihood = model.process, model.process.mean_function, model.likelihood
    gaussian, Z = isinstance(likelihood, Gaussian), process.inducing.Z
    return Start(
        Z=Z, lengthscale=np.broadcast_to(process.kernel.lengthscale, Z.shape[1:]).copy(),
        variance=float(process.kernel.variance), noise=float(likelihood.noise_variance) if gaussian else 0.0,
        mean=float(np.squeeze(h.value)) if isinstance(h, ConstantMean) else float("nan"), kernel=kernel,
        likelihood="gaussian" if gaussian else "bernoulli", jitter=float(process._absolute_jitter()), rows=rows,
        epsilon=epsilon, Z_beta1=Z_beta1,
    )  # fmt: skip


def _rates(rate: Any, steps: int) -> Any:
    """Evaluate a learning rate, which is a number or a schedule, at each step."""
    if isinstance(rate, float):
        return np.full(steps, rate)
    return np.asarray([float(rate(np.asarray(float(t)))) for t in range(steps)])


def _log_density(y: Any, mean: Any, variance: Any, *, binary: bool) -> Any:
    """Log densities of targets, from the moments of f for classes, or else of observations."""
    if binary:
        return np.log(ndtr((2.0 * y - 1.0) * mean / np.sqrt(1.0 + variance)))
    return -0.5 * (np.log(2.0 * np.pi * variance) + (y - mean) ** 2 / variance)


def _facts(out: dict[str, Any], expected: float, data: Data, a: argparse.Namespace) -> dict[str, Any]:
    """Compute the results of a row from the file that the other interpreter wrote."""
    seconds, y, binary = out["seconds"], data.y_test, bool(data.classes)
    later = seconds[WARM_UP:] if len(seconds) > WARM_UP else seconds
    mean, variance = out["mean"][:, None], out["variance"][:, None]
    some = y[curve_rows(data, a.seed), 0]
    moments = zip(out["curve_seconds"], out["curve_means"], out["curve_variances"], strict=True)
    curve = [(float(t), metrics.nlpd(_log_density(some, *pair, binary=binary))) for t, *pair in moments]
    scores: dict[str, Any] = {"error_rate": float(np.mean((mean > 0.0) != y)), "coverage95": None}
    if not binary:
        scores = {"rmse": metrics.rmse(mean, y), "coverage95": metrics.coverage(mean, variance, y)}
    return scores | {
        "peer": str(out["versions"]),
        "num_inducing": a.num_inducing,
        "steps": len(seconds),
        "bound": float(out["bound"]),
        "nlpd": metrics.nlpd(_log_density(y, mean, variance, binary=binary)),
        "ms_per_step": 1e3 * float(np.mean(later)),
        "warm_up_seconds": float(np.sum(seconds[:WARM_UP])),
        "seconds": float(np.sum(seconds)),
        "peak_mib": float(out["peak_mib"]),
        "diff_bound": abs(float(out["probe"]) - expected) / abs(expected),
        "curve": curve,
    }
