"""Properties of CUDA devices, for several plug-ins."""

FAST_FLOAT64 = frozenset({(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)})
"""Compute capabilities with one float64 unit for every two float32 units; other devices have one for 32 or 64."""
LARGE, SMALL = 1024, 256


def whole_block(double: bool, capability: tuple[int, int]) -> float:
    """Value of `Backend.device_block` for a CUDA device, for arrays in float64 (`double`) or float32.

    With 5 microseconds per launch and 50 TFLOP/s, the launches of one level of the recursion take as long as the
    operations that the level saves at M = 1024. With slow float64 units, the size for float64 is far smaller.
    """
    return SMALL if double and capability not in FAST_FLOAT64 else LARGE
