"""Shared by the plug-ins with CUDA devices."""

FAST_FLOAT64 = frozenset({(6, 0), (7, 0), (8, 0), (9, 0), (10, 0)})
"""Compute capabilities with one float64 unit for every two of float32; elsewhere there is one for 32 or 64."""
LARGE, SMALL = 1024, 256


def whole_block(double: bool, capability: tuple[int, int]) -> float:
    """`Backend.device_block` of a CUDA device, for arrays in float64 (`double`) or float32.

    At 5 us per launch and 50 TFLOP/s, the launches of a recursion level cost as much as the operations that it saves
    at M = 1024; with slow float64 units, operations cost more than launches far below that.
    """
    return SMALL if double and capability not in FAST_FLOAT64 else LARGE
