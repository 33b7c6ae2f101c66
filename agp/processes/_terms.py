"""The posterior of each term of a function f = f_1 + f_2 + ... whose kernel is a sum.

The terms are independent a priori, and the data, or the inducing variables u, depend on them through their sum. The
covariance of f_i(x) with u is therefore k_i(x, Z), in which the kernel k is replaced by its term k_i, and what depends
on the data alone stays the same. With the matrix G of the explained variance k_u(x)^T G k_u(x),

    E[f_i(x)] = k_i(x, Z) w,    Cov[f_i(x), f_j(x)] = delta_ij k_i(x, x) - k_i(x, Z) G k_j(Z, x).

Sums over all terms are the mean and the variance of f. The last term of all arrays is the mean function.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from agp.backend import Array, backend_of, like
from agp.errors import count_of
from agp.kernels import Kernel, kernel_text, terms_of
from agp.means import Mean, ZeroMean

MEAN = "mean function"
"""The name of the last term."""
Terms = tuple[Array, Array]
"""Means [R, P, K + 1] and covariances [R, P, K + 1, K + 1] of K terms and of the mean function."""


def names_of_terms(kernel: Kernel, mean: Mean | None, columns: Sequence[str] = (), /) -> tuple[str, ...]:
    """Return the names of the terms, which end with `MEAN` if there is a mean function."""
    names = _distinct(kernel_text(term, columns) for term in terms_of(kernel))
    return names if mean is None or isinstance(mean, ZeroMean) else (*names, MEAN)


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    found: list[str] = []
    for name in names:
        again = found.count(name) + sum(one.startswith(f"{name} (") for one in found)
        found.append(f"{name} ({again + 1})" if again else name)
    return tuple(found)


def common_names(what: str, several: Sequence[tuple[str, ...]], /) -> tuple[str, ...]:
    """Return the names of terms that correspond to each other in several sums.

    Terms correspond by their order. Raise TypeError if the sums have different numbers of terms, or the same terms in
    another order.
    """
    counts = {len(names) - (MEAN in names) for names in several}
    if len(counts) > 1:
        raise TypeError(
            f"{what} are sums of {min(counts)} to {count_of(max(counts), 'term')}, which do not correspond to each "
            "other; choose one kernel for all of them."
        )
    found = []
    for place in range(counts.pop()):
        kinds = list(dict.fromkeys(names[place] for names in several))
        moved = next((x for x in kinds for names in several if x in names and names.index(x) != place), None)
        if moved is not None:
            raise TypeError(f"{what} have the term {moved!r} at different places; write all sums in the same order.")
        found.append(" or ".join(kinds))
    return (*found, MEAN) if any(MEAN in names for names in several) else tuple(found)


def join_terms(means: Array, prior: Array, explained: Array, h: Array, /) -> Terms:
    """Return the moments of all terms.

    Parameters
    ----------
    means
        The changes of the means [n, P, K] by the data.
    prior
        The prior variances [n, K] of the terms.
    explained
        The explained covariances [n, P or 1, K, K].
    h
        The values [n, P or 1] of the mean function.
    """
    xp, (n, P, K) = backend_of(means).xp, means.shape
    last = xp.broadcast_to(h, (n, P))[:, :, None]
    covariance = xp.broadcast_to(covariance_of_terms(prior[:, None, :], explained), (n, P, K, K))
    wide = xp.concat([covariance, xp.zeros((n, P, 1, K), **like(means))], axis=2)
    wide = xp.concat([wide, xp.zeros((n, P, K + 1, 1), **like(means))], axis=3)
    return xp.concat([means, last], axis=2), wide


def covariance_of_terms(prior: Array, explained: Array, /) -> Array:
    """Return diag(prior) - explained [..., K, K], which is symmetric, with diagonals that are not negative."""
    xp, K = backend_of(prior).xp, prior.shape[-1]
    own = xp.eye(K, **like(prior)) > 0.0
    covariance = xp.where(own, prior[..., None], 0.0 * explained) - 0.5 * (explained + explained.mT)
    return xp.where(own & (covariance < 0.0), xp.zeros_like(covariance), covariance)


def project_terms(project: Callable[..., Any], parts: Sequence[tuple[Array, Array]], h: Array, P: int, /) -> Terms:
    """Return the moments of all terms from their covariances Kuf [M, n] and kff [n] with the inducing variables.

    ``project(Kuf, kff)`` is that of a posterior: the mean is linear in Kuf, and the variance is kff minus a quadratic
    form of Kuf, which is read from the pullback.
    """
    xp, n, K = backend_of(h).xp, h.shape[0], len(parts)
    Kuf, kff = (xp.concat(list(several), axis=-1) for several in zip(*parts, strict=True))
    # at twice the prior variance no variance is negative, so that none is replaced by zero
    (means, _), pull = project(Kuf, 2.0 * kff)
    by_row = xp.permute_dims(xp.reshape(Kuf, (-1, K, n)), (2, 1, 0))
    explained = []
    for p in range(P):
        chosen = xp.zeros_like(means) + xp.eye(P, **like(means))[p, :]
        slope = pull(xp.zeros_like(means), chosen)[2]  # -2 G Kuf
        explained.append(-0.5 * by_row @ xp.permute_dims(xp.reshape(slope, (-1, K, n)), (2, 0, 1)))
    changes = xp.permute_dims(xp.reshape(means, (K, n, P)), (1, 2, 0))
    return join_terms(changes, xp.reshape(kff, (K, n)).mT, xp.stack(explained, axis=1), h)
