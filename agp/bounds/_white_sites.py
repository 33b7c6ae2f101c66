"""Sites of single data as sites of inducing variables, in whitened coordinates."""

from typing import Any

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.linalg import lower_of
from agp.posteriors import Sums

__all__ = ["white_site_sums"]


def white_site_sums(
    prior: Any, Lu: Array, X: Array, shift: Array, precision: Array, /, *, block_rows: int
) -> tuple[Sums, Pullback]:
    """sum_n A_n lam1_n [M, P] and sum_n lam2_n A_n A_n^T [P, M, M] with A = Lu^-1 Kuf, in the memory of one block.

    Parameters
    ----------
    prior
        An `agp.processes.SparsePrior`.
    Lu
        The Cholesky factor of its Kuu [M, M].
    X
        Inputs [N, D] of the sites.
    shift, precision
        lam1 and lam2 [N, P].
    block_rows
        Rows to take at once.

    Returns
    -------
    sums
    pullback
        ``sums_bar -> (prior_bar, S_bar)``, S_bar the cotangent of Lu^-1 dLu; the precision's is symmetric.
    """
    rows = X, shift, precision
    return backend_of(X).fold(_block, (prior, Lu), rows, block_rows, add=tree.add)


def _block(params: tuple[Any, Array], block: tuple[Array, Array, Array]) -> tuple[Sums, Pullback]:
    (prior, Lu), (X, shift, precision) = params, block
    B = backend_of(X)
    xp = B.xp
    (Kuf, kff, h), pull_features = prior._features(X)
    A = B.solve_triangular(Lu, Kuf)
    weighted = A * precision.mT[:, None, :]

    def pullback(bar):
        shift_bar, precision_bar = bar
        A_bar = shift_bar @ shift.mT + 2.0 * xp.sum(precision_bar @ weighted, axis=0)
        Kuf_bar = B.solve_triangular(Lu, A_bar, transpose=True)
        prior_bar, _ = pull_features(Kuf_bar, xp.zeros_like(kff), xp.zeros_like(h))
        # dA = Lu^-1 dKuf - (Lu^-1 dLu) A
        return prior_bar, -lower_of(A_bar, A.mT)

    return Sums(A @ shift, weighted @ A.mT), pullback
