"""What the benchmarks share: backends as parameters, seeded problems, waiting for the device."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

BACKENDS = ["numpy", "torch", "torch:cuda", "jax", "cupy"]
METHODS = ["wsvgp", "rsvgp"]
GRADIENTS = ["closed-form", "autodiff"]
INDUCING = [128, 512]
ROWS, BATCH, COLUMNS = 4096, 512, 8


def backend_or_skip(name, gradient="closed-form"):
    """The backend of a parameter and its device; NotImplementedError, which asv skips, where there is none."""
    from agp.backend import get_backend
    from agp.errors import BackendError

    library, _, device = name.partition(":")
    try:
        B = get_backend(library)
    except BackendError as error:
        raise NotImplementedError from error
    devices = [known for known in B.devices() if known.startswith(device or known)]
    if not devices or gradient not in B.gradients:
        raise NotImplementedError
    return B, devices[0]


def problem(B, device, rows=ROWS):
    """Inputs [rows, 8] and targets [rows, 1] of a smooth function with noise, on a device."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, COLUMNS))
    y = np.sin(X[:, :1]) * X[:, 1:2] + 0.1 * rng.normal(size=(rows, 1))
    return B.from_numpy(X, device=device), B.from_numpy(y, device=device)


def sparse_model(method, X, y, num_inducing):
    """A model with random rows as inducing inputs: cheap to set up."""
    from agp import SVGP, Relaxed, Whitened

    posterior = {"wsvgp": Whitened, "rsvgp": Relaxed}[method]
    return SVGP.from_data(X, y, posterior=posterior, Z=X[:num_inducing, :])
