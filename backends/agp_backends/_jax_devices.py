"""Devices of JAX: their names, their memory, and arrays on them."""

from functools import cache
from typing import Any

import jax


def list_devices() -> list[Any]:
    """List the devices on the CPU and the default platform."""
    return [*jax.devices("cpu"), *(device for device in jax.devices() if device.platform != "cpu")]


def platform_of(device: Any) -> str:
    """Return the name of the platform, "cuda" instead of "gpu"."""
    return "cuda" if device.platform == "gpu" else device.platform


def name_of(device: Any) -> str:
    """Return the name of a device, such as "cpu" or "cuda:0"."""
    return "cpu" if device.platform == "cpu" and device.id == 0 else f"{platform_of(device)}:{device.id}"


@cache
def memory_of(device: Any) -> float | None:
    """Memory limit of a device's allocator in MiB, or None on the host; the result is cached."""
    statistics = device.memory_stats()
    return statistics["bytes_limit"] / 2**20 if statistics else None


def bind_device(x: Any) -> Any:
    """Commit an array to its device; return other objects unchanged."""
    return x if getattr(x, "committed", True) else jax.device_put(x, x.device)


def is_on_cpu(args: Any) -> bool:
    """Whether the arrays are on a CPU; all arrays must be on the same device."""
    first = next((x for x in jax.tree.leaves(args) if isinstance(x, jax.Array)), None)
    return first is not None and all(device.platform == "cpu" for device in first.devices())
