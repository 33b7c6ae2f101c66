"""The posterior of each term of a function f = f_1 + f_2 + ... whose kernel is a sum.

The terms are independent a priori, and the data, or the inducing variables u, depend on them through their sum. The
covariance of f_i(x) with u is therefore k_i(x, Z), in which the kernel k is replaced by its term k_i, and what depends
on the data alone stays the same. With the matrix G of the explained variance k_u(x)^T G k_u(x),

    E[f_i(x)] = k_i(x, Z) w,    Cov[f_i(x), f_j(x)] = delta_ij k_i(x, x) - k_i(x, Z) G k_j(Z, x).

Sums over all terms are the mean and the variance of f. The last term of all arrays is the mean function.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from agp.backend import Array, backend_of, like
from agp.errors import count_of
from agp.kernels import Kernel, columns_of, kernel_text, terms_of
from agp.means import ConstantMean, Mean, ZeroMean

MEAN = "mean function"
"""The name of the last term."""
Moments = tuple[Array, Array]
"""Means [R, P, K + 1] and covariances [R, P, K + 1, K + 1] of K terms and of the mean function."""


class Term(NamedTuple):
    """A term of a function."""

    text: str
    """The kernel of the term as text, or `MEAN`."""
    columns: tuple[int, ...]
    """The numbers of the input columns on which the term depends."""


def describe_terms(kernel: Kernel, mean: Mean | None, width: int, names: Sequence[str], /) -> tuple[Term, ...]:
    """Return the terms of a kernel, and the mean function, if there is one.

    `width` is the number of columns of the inputs, and `names` are their names, or empty.
    """
    terms, found = terms_of(kernel), []
    for term in terms:
        text = kernel_text(term, names)
        again = sum(one.text == text or one.text.startswith(f"{text} (") for one in found)
        found.append(Term(f"{text} ({again + 1})" if again else text, columns_of(term, width)))
    return (*found, *describe_mean(mean, width))


def describe_mean(mean: Mean | None, width: int, /) -> tuple[Term, ...]:
    """Return the term of the mean function; nothing if it is zero or None."""
    if mean is None or isinstance(mean, ZeroMean):
        return ()
    return (Term(MEAN, () if isinstance(mean, ConstantMean) else tuple(range(width))),)


def common_terms(what: str, several: Sequence[tuple[Term, ...]], /) -> tuple[Term, ...]:
    """Return the terms that correspond to each other in several sums.

    Terms correspond by their order. Raise TypeError if the sums have different numbers of terms, or the same terms in
    another order.
    """
    sums = [[term for term in terms if term.text != MEAN] for terms in several]
    counts = {len(terms) for terms in sums}
    if len(counts) > 1:
        raise TypeError(
            f"{what} are sums of {min(counts)} to {count_of(max(counts), 'term')}, which do not correspond to each "
            "other; choose one kernel for all of them."
        )
    found = []
    for place, terms in enumerate(zip(*sums, strict=True)):
        names = list(dict.fromkeys(term.text for term in terms))
        others = {term.text for terms in sums for i, term in enumerate(terms) if i != place}
        if moved := [name for name in names if name in others]:
            raise TypeError(f"{what} have the term {moved[0]!r} at different places; write all sums in the same order.")
        found.append(Term(" or ".join(names), _union(terms)))
    means = [term for terms in several for term in terms if term.text == MEAN]
    return (*found, Term(MEAN, _union(means))) if means else tuple(found)


def _union(terms: Iterable[Term]) -> tuple[int, ...]:
    return tuple(sorted({column for term in terms for column in term.columns}))


def join_terms(means: Array, prior: Array, explained: Array, h: Array, /) -> Moments:
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


def project_terms(project: Callable[..., Any], parts: Sequence[tuple[Array, Array]], h: Array, P: int, /) -> Moments:
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


def join_joint_terms(prior: Sequence[Array], explained: Array, /) -> Array:
    """Return the covariances [K, n, K, n] of K terms, from prior ones [n, n] and the explained ones [K, n, K, n]."""
    xp, K, n = backend_of(explained).xp, len(prior), prior[0].shape[0]
    flat = xp.reshape(explained, (K * n, K * n))
    rows = []
    for i, own in enumerate(prior):
        blocks = [own if j == i else xp.zeros_like(own) for j in range(K)]
        rows.append(xp.concat(blocks, axis=1))
    return xp.reshape(xp.concat(rows, axis=0) - 0.5 * (flat + flat.mT), (K, n, K, n))


def project_joint_terms(
    project: Callable[..., Any], parts: Sequence[tuple[Array, Array]], prior: Sequence[Array], h: Array, P: int, /
) -> Moments:
    """Return the means [n, P, K + 1] and the covariances [P, K, n, K, n], as `project_terms` does at the same row."""
    xp, n, K = backend_of(h).xp, h.shape[0], len(parts)
    Kuf, kff = (xp.concat(list(several), axis=-1) for several in zip(*parts, strict=True))
    (means, _), pull = project(Kuf, 2.0 * kff)
    found = []
    for p in range(P):
        chosen = xp.zeros_like(means) + xp.eye(P, **like(means))[p, :]
        slope = pull(xp.zeros_like(means), chosen)[2]  # -2 G Kuf
        found.append(join_joint_terms(prior, xp.reshape(-0.5 * Kuf.mT @ slope, (K, n, K, n))))
    changes = xp.permute_dims(xp.reshape(means, (K, n, P)), (1, 2, 0))
    last = xp.broadcast_to(h, (n, P))[:, :, None]
    return xp.concat([changes, last], axis=2), xp.stack(found)
