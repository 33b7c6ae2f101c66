"""Merge equal patches of an image, such as an empty background, into a single patch with the sum of their weights."""

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.kernels import Kernel, White

MAX_MERGED_FRACTION = 0.9
"""Patches are merged only if at most this fraction of the patches remains."""
MIN_WEIGHT_FRACTION = 1e-3
"""Patches are merged only if |sum of their weights| exceeds this fraction of the sum of |weights|."""


def merge_equal_patches(patches: Array, w: Array, among: Kernel | None = None, /) -> tuple[Array, Array, Pullback]:
    """Merge equal patches and add their weights; weighted sums over the patches of each image do not change.

    The arguments are patches [N, Q, D] and weights [Q], the same for all images. The results are patches [N, K, D],
    weights [N, K], and the pullback ``(patches_bar, weights_bar) -> (patches_bar [N, Q, D], w_bar [Q])``. In each
    image, all patches that equal the first patch are merged. All images keep the same number K of patches, so surplus
    patches have weight zero.

    Patches are merged only on a CPU, not in traced programs, and not if the gradient with respect to the patches is
    needed. For sums over pairs of patches, pass the kernel as `among`. No patches are merged if the kernel contains
    white noise, which differs between equal patches.
    """
    B = backend_of(patches)
    xp, (N, Q, D) = B.xp, patches.shape
    told_apart = among is not None and bool(tree.nodes(among, White))
    same = None if told_apart else _equal_to_first(patches, w)
    if same is None:
        weights = xp.broadcast_to(w, (N, Q))
        return patches, weights, lambda patches_bar, weights_bar: (patches_bar, xp.sum(weights_bar, axis=0))
    kept, where = _positions(same)
    K, whole = kept.shape[1], like(w) | {"dtype": xp.int64}
    row, place = xp.arange(N, **whole)[:, None], xp.arange(K, **whole)
    equal, first = xp.astype(same, w.dtype), xp.astype(place == 0, w.dtype)
    alone = xp.astype((place > 0) & (place <= xp.max(where, axis=1)[:, None]), w.dtype)
    total = equal @ w
    weights = alone * _take_rows(w, kept) + first * total[:, None]

    def pullback(patches_bar, weights_bar):
        share = 1.0 + equal * (w / total[:, None] - 1.0)  # the share of each patch in the cotangent of its merged patch
        spread = _take_rows(xp.reshape(patches_bar, (N * K, D)), where + K * row)
        w_bar = xp.sum(_take_rows(xp.reshape(weights_bar, (N * K,)), where + K * row), axis=0)
        return share[:, :, None] * spread, w_bar

    return _take_rows(xp.reshape(patches, (N * Q, D)), kept + Q * row), weights, pullback


def _equal_to_first(patches: Array, w: Array) -> Array | None:
    """Return a Boolean array [N, Q] that is true for patches that equal the first patch of their image.

    Return None if no patches are merged.
    """
    B = backend_of(patches)
    if not (B.is_concrete(patches) and B.is_concrete(w)) or B.asks_gradient(patches) or B.device_name(patches) != "cpu":
        return None
    xp = B.xp
    same = xp.all(patches == patches[:, :1, :], axis=-1)
    equal = xp.astype(same, w.dtype)
    few = 1.0 + xp.max(xp.sum(1.0 - equal, axis=1)) <= MAX_MERGED_FRACTION * same.shape[1]
    safe = xp.all(xp.abs(equal @ w) > MIN_WEIGHT_FRACTION * (equal @ xp.abs(w)))
    return same if bool(few & safe) else None


def _positions(same: Array) -> tuple[Array, Array]:
    """Return the indices [N, K] of the kept patches, and the position [N, Q] of each patch among the kept patches.

    The kept patches are the first patch, the patches that differ from it, and further patches up to a total of K.
    """
    xp = backend_of(same).xp
    other = xp.astype(~same, xp.int64)
    where = other * xp.cumulative_sum(other, axis=1)
    ranks = xp.concat([xp.zeros_like(other[:, :1]), 2 - other[:, 1:]], axis=1)
    return xp.argsort(ranks, axis=1, stable=True)[:, : int(xp.max(where)) + 1], where


def _take_rows(x: Array, places: Array) -> Array:
    """Return the rows of x [R, ...] at the indices [N, K], as [N, K, ...]."""
    xp = backend_of(x).xp
    return xp.reshape(xp.take(x, xp.reshape(places, (-1,)), axis=0), (*places.shape, *x.shape[1:]))
