"""Products with the weights W [P, L] of a mixture, or [P], the diagonal of a diagonal W."""

from agp.backend import Array, backend_of

__all__ = ["mixed", "unmixed", "weights_bar"]


def mixed(x: Array, weights: Array) -> Array:
    """Values x [..., L] of the functions as those of the outputs [..., P]: x W^T."""
    return x * weights if weights.ndim == 1 else x @ weights.mT


def unmixed(bar: Array, weights: Array) -> Array:
    """The cotangent [..., L] of x, from that of the product [..., P]."""
    return bar * weights if weights.ndim == 1 else bar @ weights


def weights_bar(bar: Array, x: Array, weights: Array) -> Array:
    """The cotangent of the weights, from those of the product [R, P], for x [R, L]."""
    return backend_of(x).xp.sum(bar * x, axis=0) if weights.ndim == 1 else bar.mT @ x
