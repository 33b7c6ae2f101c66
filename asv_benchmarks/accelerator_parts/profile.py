"""Counts of kernel launches and copies in a training step, from torch's profiler."""

from typing import Any

from accelerator_parts.part import Figures, Part, Plan, Settings
from accelerator_parts.places import opened
from accelerator_parts.steps import training_of

LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx")
READS = "aten::_local_scalar_dense"
HEAVIEST = 6
"""Number of kernels that are listed."""
WARM = 3
"""Number of steps before the profiled step."""


def entries(plan: Plan) -> list[Settings]:
    """List entries for W and R; only torch has a profiler that counts launches."""
    return [
        {"library": "torch", "M": M, "method": method, "gradient": "closed-form", "dtype": dtype}
        for M in ((32,) if plan.small else (4096, 1024))
        for method in ("wsvgp", "rsvgp")
        for dtype in (("float64",) if plan.small else ("float32", "float64"))
        if "torch" in plan.libraries
    ]


def measured(*, library: str, device: str, small: bool, seconds: float, **entry: Any) -> Figures:
    """Count operators, launches and copies in one step, after a few other steps."""
    from torch.autograd import DeviceType
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

    logged = training_of(B, device, rows=32 if small else 1024, callbacks=[callback], **entry)(WARM + 2)
    events = profiler.key_averages()
    kernels = [event for event in events if event.device_type == DeviceType.CUDA]
    heaviest = sorted(kernels, key=lambda event: event.self_device_time_total, reverse=True)[:HEAVIEST]
    return {
        "launches": sum(event.count for event in events if event.key in LAUNCHES),
        "operators": sum(event.count for event in events if event.key.startswith("aten::")),
        "host reads": sum(event.count for event in events if event.key == READS),
        "copies": sum(event.count for event in events if event.key.startswith("Memcpy")),
        "device ms": sum(event.self_device_time_total for event in kernels) / 1e3,
        "heaviest": ", ".join(
            f"{event.key[:60]} {event.self_device_time_total / 1e3:.3g} ms ({event.count})" for event in heaviest
        ).replace("|", "/"),
    } | logged


NOTE = """One step after a few others. `operators` counts the operators that torch dispatches, including
those that other operators call. `launches` counts the kernels that the CUDA runtime launched, and `copies` the copies
between host and device and on the device. `device ms` is the total time of the kernels, and *heaviest* lists those
that take the most time, with the number of their launches."""
PART = Part("Profile of a training step", NOTE, entries, measured, guess=3.0, small_guess=3.0)
