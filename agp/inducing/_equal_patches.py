"""Patches of an image that are equal, such as those of an empty background: one, with the sum of their weights."""

from collections.abc import Callable

import numpy as np

from agp import tree
from agp.backend import Array, backend_of, placed, to_numpy
from agp.kernels import Kernel, White

__all__ = ["merged"]

WORTHWHILE = 0.9
"""Patches are merged where no more than this share of them is left."""
CANCELLED = 1e-3
"""... and where the sum of the merged weights has not cancelled below this share of the sum of their sizes."""

Merged = tuple[Array, Array, Callable[[Array, Array], tuple[Array, Array]]]


def merged(patches: Array, w: Array, among: Kernel | None = None, /) -> Merged:
    """Fewer patches and weights with the same weighted sums, of any function of patches, for each image.

    Those that equal the first patch of their image become one, on a CPU and outside of programs that are traced or that
    differentiate with respect to the patches; others stay as they are. Where images are left with unlike numbers, some
    patches have the weight zero.

    Parameters
    ----------
    patches
        [N, Q, D].
    w
        Weights [Q], the same for all images.
    among
        A kernel, where the sums are over pairs of patches: one that sees noise in each row tells equal ones apart.

    Returns
    -------
    patches
        [N, K, D], K at most Q.
    weights
        [N, K].
    pullback
        ``(patches_bar [N, K, D], weights_bar [N, K]) -> (patches_bar [N, Q, D], w_bar [Q])``.
    """
    B = backend_of(patches)
    xp, (N, Q, D) = B.xp, patches.shape
    told_apart = among is not None and bool(tree.nodes(among, White))
    found = None if told_apart else _positions(patches, w)
    if found is None:
        weights = xp.broadcast_to(w, (N, Q))
        return patches, weights, lambda patches_bar, weights_bar: (patches_bar, xp.sum(weights_bar, axis=0))
    same, kept, where = found
    K, places = kept.shape[1], np.arange(kept.shape[1])
    lonely = (places > 0) & (places <= np.max(where, axis=1, keepdims=True))
    flat = placed(np.reshape(kept + Q * np.arange(N)[:, None], (-1,)), patches)
    back = placed(np.reshape(where + K * np.arange(N)[:, None], (-1,)), patches)
    equal, alone, first = (placed(1.0 * x, w) for x in (same, lonely, places == 0))
    total = equal @ w
    own = xp.reshape(xp.take(w, placed(np.reshape(kept, (-1,)), w), axis=0), (N, K))
    weights = alone * own + first * total[:, None]

    def pullback(patches_bar, weights_bar):
        w_bar = xp.sum(xp.reshape(xp.take(xp.reshape(weights_bar, (-1,)), back, axis=0), (N, Q)), axis=0)
        share = 1.0 + equal * (w / total[:, None] - 1.0)  # of its group in what moves the patch that stands for all
        spread = xp.reshape(xp.take(xp.reshape(patches_bar, (-1, D)), back, axis=0), (N, Q, D))
        return share[:, :, None] * spread, w_bar

    return xp.reshape(xp.take(xp.reshape(patches, (-1, D)), flat, axis=0), (N, K, D)), weights, pullback


def _positions(patches: Array, w: Array) -> tuple | None:
    """Which patches [N, Q] equal the first one, which ones [N, K] are kept, and where each one [N, Q] is among these.

    None where nothing is to be merged.
    """
    B = backend_of(patches)
    if not (B.is_concrete(patches) and B.is_concrete(w)) or B.asks_gradient(patches) or B.device_name(patches) != "cpu":
        return None
    same = to_numpy(B.xp.all(patches == patches[:, :1, :], axis=-1))
    Q = same.shape[1]
    K = Q + 1 - int(np.min(np.sum(same, axis=1)))
    sizes = np.abs(weights := to_numpy(w))
    if K > WORTHWHILE * Q or not np.all(np.abs(same @ weights) > CANCELLED * (same @ sizes)):
        return None
    # the first, then those that differ from it, then as many of the others as it takes
    ranks = same.astype(np.int8)
    ranks[:, 0] = -1
    kept = np.argsort(ranks, axis=1, kind="stable")[:, :K]
    return same, kept, np.where(same, 0, np.cumsum(~same, axis=1))
