"""Counts of kernel launches and copies in a training step, from torch's profiler."""

from typing import Any

from accelerator_parts.part import Figures, Part, Plan, Settings
from accelerator_parts.places import opened
from accelerator_parts.steps import steps_of

LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx")
READS = "aten::_local_scalar_dense"
WARM = 3
"""Number of steps before the profiled step."""


def entries(plan: Plan) -> list[Settings]:
    """List entries for W and R in both gradient modes; only torch has a profiler that counts launches."""
    M = 32 if plan.small else 1024
    return [
        {"library": "torch", "M": M, "method": method, "gradient": gradient, "dtype": "float64"}
        for method in ("wsvgp", "rsvgp")
        for gradient in ("closed-form", "autodiff")
        if "torch" in plan.libraries
    ]


def measured(*, library: str, device: str, small: bool, seconds: float, **entry: Any) -> Figures:
    """Count operators, launches and copies in one step, after a few other steps."""
    from torch.profiler import ProfilerActivity, profile

    B = opened(library, device)
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.startswith("cuda") else [])]
    profiler = profile(activities=kinds)

    def callback(progress: Any) -> bool:
        if progress.step == WARM:
            profiler.start()
        elif progress.step > WARM:
            profiler.stop()
        return progress.step > WARM

    logged = steps_of(B, device, callback, rows=entry["M"], **entry)
    events = profiler.key_averages()
    heaviest = sorted(events, key=lambda event: event.self_device_time_total, reverse=True)[:3]
    return {
        "launches": sum(event.count for event in events if event.key in LAUNCHES),
        "operators": sum(event.count for event in events if event.key.startswith("aten::")),
        "host reads": sum(event.count for event in events if event.key == READS),
        "copies": sum(event.count for event in events if event.key.startswith("Memcpy")),
        "device ms": sum(event.self_device_time_total for event in events) / 1e3,
        "heaviest": ", ".join(event.key[:40] for event in heaviest if event.self_device_time_total > 0),
    } | logged


NOTE = """One step after a few others, with M = B. `operators` counts the operators that torch dispatches, including
those that other operators call. `launches` counts the kernels that the CUDA runtime launched, and `copies` the copies
between host and device and on the device. `device ms` is the total time of the kernels."""
PART = Part("Profile of a training step", NOTE, entries, measured, guess=10.0, small_guess=3.0)
