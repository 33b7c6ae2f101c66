"""What the benchmarks share: backends as parameters, seeded problems, waiting for the device.

Every set of parameters is a process that imports libraries anew, so `asv run` takes the axes in short: enough to see
each method and each way to compute. ``AGP_BENCH=all`` takes the whole product, which is hours. On a CPU that others use
as well, ``AGP_BENCH_CLOCK=processor`` times steps by the processor's time.
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
"""Whether all values of all axes are asked for."""

TIMER = time.process_time if os.environ.get("AGP_BENCH_CLOCK") == "processor" else timeit.default_timer
"""Of steps: the clock, or the time of the process, which others on a CPU do not slow; useless with a GPU."""


def axis(values, *short):
    """The values of a parameter, or the few that stand for them; all of them if no few are named."""
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
"""Backends that need a GPU and its driver."""


def installed(library):
    """Whether a library can be found, without importing it."""
    return importlib.util.find_spec(library) is not None


def backend_or_skip(name, gradient="closed-form"):
    """The backend of a parameter and its device; NotImplementedError, which asv skips, where there is none."""
    from agp.backend import get_backend
    from agp.errors import BackendError

    library, _, device = name.partition(":")
    if not installed(library) or (name in ACCELERATED and shutil.which("nvidia-smi") is None):
        raise NotImplementedError  # before an import that takes seconds
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
    """Inputs [rows, 8] and targets [rows, 1] of a smooth function with noise, on a device."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, COLUMNS))
    y = np.sin(X[:, :1]) * X[:, 1:2] + 0.1 * rng.normal(size=(rows, 1))
    return B.from_numpy(X, dtype=dtype, device=device), B.from_numpy(y, dtype=dtype, device=device)


def finished(B, leaves):
    """Wait until every one of some named arrays has been computed."""
    for x in leaves.values():
        B.synchronise(x)


def protocol(model, name):
    """What a model offers those who train it, in this version of agp or in one whose names had no underscore."""
    return getattr(model, f"_{name}", None) or getattr(model, name)


def beside(B, model, X):
    """A part of a model whose leaves, given as numbers or arrays, are arrays like X."""
    from agp import tree
    from agp.backend import like

    return tree.with_leaves(model, {name: B.xp.asarray(x, **like(X)) for name, x in tree.leaves(model).items()})


def sparse_model(method, X, y, num_inducing):
    """An SVGP with random rows as inducing inputs: cheap to set up."""
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
    """SGPR or an exact GP, which take all rows at once."""
    from agp.models import GPR, SGPR

    if method == "gpr":
        return GPR.from_data(X, y)
    return SGPR.from_data(X, y, Z=X[:num_inducing, :])
