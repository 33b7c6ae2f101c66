"""Functions for all benchmarks: backends as parameters, reproducible problems, and waiting for the device.

asv runs each set of parameters in a new process, which imports agp and the library of the benchmark. In each of asv's
own environments, ``AGP_BENCH_LIBRARY`` is the library whose benchmarks are run there; the others are skipped.

By default, each axis has a few values only. They include each method, backend, gradient mode and precision.
``AGP_BENCH=all`` runs the full product, which takes hours. With ``AGP_BENCH_CLOCK=processor``, steps are timed by CPU
time, which is useful on a busy CPU.
"""

import importlib.util
import os
import shutil
import time
import timeit

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

import numpy as np

WHOLE = os.environ.get("AGP_BENCH") == "all"
"""Whether all values of all axes are run."""

LIBRARY = os.environ.get("AGP_BENCH_LIBRARY", "")
"""The library whose benchmarks are run; all installed ones if it is empty."""

TIMER = time.process_time if os.environ.get("AGP_BENCH_CLOCK") == "processor" else timeit.default_timer
"""Timer of steps: wall-clock time, or CPU time, which other processes do not affect but which ignores a GPU."""


def axis(values, *short):
    """Values of a parameter: all, or those in `short`, if given."""
    return list(values) if WHOLE or not short else list(short)


EVERY_BACKEND = ["numpy", "torch", "torch:cuda", "jax", "cupy"]
EVERY_DTYPE = ["float64", "float32"]
EVERY_GRADIENT = ["closed-form", "autodiff"]
BACKENDS = axis(EVERY_BACKEND, "numpy")
METHODS = ["msvgp", "wsvgp", "lsvgp", "rsvgp", "asvgp"]
DTYPES = axis(EVERY_DTYPE, "float64")
GRADIENTS = axis(EVERY_GRADIENT, "closed-form")
INDUCING = axis([32, 128, 512], 128)
ROWS, BATCH, COLUMNS = 4096, 256, 8


ACCELERATED = ("torch:cuda", "cupy")
"""Backends that require a GPU and its driver."""


def installed(library):
    """Whether a library is installed; it is not imported."""
    return importlib.util.find_spec(library) is not None


def skip_elsewhere(library="numpy"):
    """Raise NotImplementedError, which makes asv skip the benchmark, in an environment of another library."""
    if LIBRARY not in ("", library):
        raise NotImplementedError


def backend_or_skip(name, gradient="closed-form"):
    """Return a backend and its device, or raise NotImplementedError, which makes asv skip the benchmark."""
    from agp.backend import get_backend
    from agp.errors import BackendError

    library, _, device = name.partition(":")
    skip_elsewhere(library)
    if not installed(library) or (name in ACCELERATED and shutil.which("nvidia-smi") is None):
        raise NotImplementedError  # avoid an import that takes seconds
    try:
        B = get_backend(library)
    except BackendError as error:
        raise NotImplementedError from error
    B.enable_float64()
    devices = [known for known in B.devices() if known.startswith(device or known)]
    if not devices or gradient not in B.gradients:
        raise NotImplementedError
    return B, devices[0]


def problem(B, device, rows=ROWS, dtype="float64"):
    """Create inputs [rows, 8] and noisy targets [rows, 1] of a smooth function, on a device."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, COLUMNS))
    y = np.sin(X[:, :1]) * X[:, 1:2] + 0.1 * rng.normal(size=(rows, 1))
    return B.from_numpy(X, dtype=dtype, device=device), B.from_numpy(y, dtype=dtype, device=device)


def finished(B, leaves):
    """Wait until the device has computed all arrays in a dictionary."""
    for x in leaves.values():
        B.synchronise(x)


def protocol(model, name):
    """Return a training method of a model; in older versions of agp, its name has no underscore."""
    return getattr(model, f"_{name}", None) or getattr(model, name)


def beside(B, model, X):
    """Convert the parameters of a model part to the library, dtype and device of X."""
    from agp import tree
    from agp.backend import like

    return tree.with_leaves(model, {name: B.xp.asarray(x, **like(X)) for name, x in tree.leaves(model).items()})


def sparse_model(method, X, y, num_inducing):
    """Create an SVGP with random rows as inducing inputs, which takes little time."""
    from agp import posteriors
    from agp.models import SVGP

    kinds = {
        "msvgp": posteriors.Marginal,
        "wsvgp": posteriors.Whitened,
        "lsvgp": posteriors.LikelihoodForm,
        "rsvgp": posteriors.Relaxed,
        "asvgp": posteriors.InverseFree,
    }
    return SVGP.from_data(X, y, posterior=kinds[method], Z=X[:num_inducing, :])


def full_model(method, X, y, num_inducing):
    """Create an SGPR model or an exact GP, which use all rows in each step."""
    from agp.models import GPR, SGPR

    if method == "gpr":
        return GPR.from_data(X, y)
    return SGPR.from_data(X, y, Z=X[:num_inducing, :])
