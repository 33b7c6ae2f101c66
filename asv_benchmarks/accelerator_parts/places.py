"""Devices of the array libraries, and timing of functions on them."""

import os
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # leave memory of the card for other libraries

import numpy as np

SECONDS, SMALL_SECONDS = 0.4, 0.05
"""Seconds for which a function is timed, in normal and in small sizes."""
SAMPLE = 0.02
"""Minimum length of a sample in seconds: short calls are repeated, with one wait at the end."""
SAMPLES = 10
"""Minimum number of samples, unless a single sample exceeds the time for all."""


def opened(library: str, device: str) -> Any:
    """Return the backend of a library on this device.

    Raises
    ------
    agp.errors.BackendError, ValueError
        If the library is not installed, or does not have the device.
    """
    from agp.backend import get_backend

    B = get_backend(library)
    B.enable_float64()
    if device not in B.devices():
        raise ValueError(f"{library} has no device {device!r} here; it has {', '.join(B.devices()) or 'none'}.")
    if library == "jax":  # compute float32 products without TF32
        import jax

        jax.config.update("jax_default_matmul_precision", "highest")
    if library == "cupy":  # CuPy runs kernels on the current device
        import cupy

        cupy.cuda.Device(int(device.partition(":")[2])).use()
    return B


def forget_peak(library: str) -> None:
    """Let the peak memory of a library's allocator start from the arrays in use; JAX cannot."""
    if library == "torch":
        import torch

        if torch.cuda.is_available():
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    if library == "cupy":
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()


def has_device(library: str, device: str) -> dict[str, str]:
    """Return an empty dictionary if the library has the device, else raise the error of `opened`."""
    opened(library, device)
    return {}


def device_facts(device: str | None) -> dict[str, str]:
    """Names of a device and its card; by default, of the first accelerator that a library supports, or of the CPU."""
    from agp.backend import get_backend
    from agp.errors import BackendError

    for library in CARDS if device != "cpu" else ():
        try:
            known = [name for name in get_backend(library).devices() if not name.startswith("cpu")]
        except (BackendError, RuntimeError):  # not installed, or no driver
            continue
        if known and (device is None or device in known):
            chosen = device or known[0]
            return {"device": chosen, "card": CARDS[library](int(chosen.partition(":")[2] or 0))}
    if device not in (None, "cpu"):
        raise ValueError(f"no installed library has a device {device!r}.")
    return {"device": "cpu", "card": "cpu"}


def _torch_card(number: int) -> str:
    import torch

    return torch.cuda.get_device_name(number)


def _cupy_card(number: int) -> str:
    import cupy

    return cupy.cuda.runtime.getDeviceProperties(number)["name"].decode()


def _jax_card(number: int) -> str:
    import jax

    return next(device.device_kind for device in jax.devices() if device.id == number)


CARDS: dict[str, Callable[[int], str]] = {"torch": _torch_card, "cupy": _cupy_card, "jax": _jax_card}
"""Functions that return the name of a card."""


def timed(B: Any, run: Callable[[], Any], *, small: bool, share: float = 1.0) -> dict[str, float]:
    """Time calls in milliseconds: the first call, which may compile, and the median and spread of later calls.

    `run` returns an array to wait for. The second call is not counted, because it may compile again for the arrays that
    the first call returned. The calls of a sample run without waiting, as in training, and the host waits for the
    device at the end.
    """
    seconds = share * (SMALL_SECONDS if small else SECONDS)
    first = _lasting(B, run, 1)
    _lasting(B, run, 1)
    once = _lasting(B, run, 1)
    samples = [once] if once > seconds else []
    number = max(1, int(min(SAMPLE, seconds / SAMPLES) / max(once, 1e-6)))
    until = time.perf_counter() + seconds
    while not samples or (once <= seconds and (len(samples) < SAMPLES or time.perf_counter() < until)):
        samples.append(_lasting(B, run, number))
    return _figures(first, samples)


def _figures(first: float, later: list[float]) -> dict[str, float]:
    low, median, high = (1e3 * float(x) for x in np.percentile(later, [25, 50, 75]))
    return {"ms": median, "spread": (high - low) / median, "first_ms": 1e3 * first}


def _lasting(B: Any, run: Callable[[], Any], number: int) -> float:
    """Mean seconds per call over `number` consecutive calls."""
    began = time.perf_counter()
    last = None
    for _ in range(number):
        last = run()
    B.synchronise(last)
    return (time.perf_counter() - began) / number


def normal(B: Any, device: str, shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    """Draw reproducible standard normal numbers on the device."""
    x = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return B.from_numpy(x, dtype=dtype, device=device)
