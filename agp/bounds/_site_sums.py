"""Sums over the rows of data for site and natural-gradient steps."""

from typing import Any

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.batch import Batch
from agp.bounds._elbo import batch_of, rows_first, rows_of
from agp.likelihoods import row_site_gradients
from agp.linalg import lower_of
from agp.posteriors import Sums
from agp.random import Draws, draws_with_prefix


def site_sums(model: Any, factor: Any, batch: Batch, /, *, block_rows: int) -> dict[str, Any]:
    """Sums over the rows for a site step of each posterior that has sites.

    In one pass over the rows, with memory for one block, `scale` times the expected log density at the marginals of the
    process is differentiated: alpha = d/dmu and beta = -2 d/dvar. `agp.processes.Process.project_to_sites` maps these
    derivatives to the sums of each posterior. The result maps the path of each posterior in the process to its sums.
    The factor is that of the process, and the other arguments are those of `agp.bounds.elbo`.
    """
    _, reference = model.process.reference  # X may be a lazy array
    weight = batch.scale * backend_of(reference).xp.ones((), **like(reference))
    rows, fold = rows_of(batch, first=True), backend_of(batch.X).fold
    return fold(_block, (model, factor, weight), rows, block_rows, add=_add_optional)[0]


def _block(params: tuple[Any, Any, Array], block: tuple[Any, ...]) -> tuple[dict, None]:
    (model, factor, weight), (X, y, noise, *known) = params, block
    draws = rows_first(noise)
    process = model.process.with_draws(draws_with_prefix("process", Draws(draws, {})))
    (mu, var), to_sites = process.project_to_sites(factor, X)
    samples = mu.shape[0] // X.shape[0]
    batch, own = batch_of((X, y, draws, *known), samples)
    shared = model.process.shares_precision
    alpha, beta = row_site_gradients(model.likelihood, mu, var, batch, own, shared=shared)
    each = weight / samples
    return to_sites(each * alpha, -0.5 * each * beta), None  # `site_sums` asks for no pullback


def _add_optional(a: dict | None, b: dict | None) -> dict | None:
    if a is None or b is None:
        return b if a is None else a
    return {path: tree.add(a[path], b[path]) for path in a}


def white_site_sums(
    prior: Any, Lu: Array, X: Array, shift: Array, precision: Array, /, *, block_rows: int
) -> tuple[Sums, Pullback]:
    """Whitened sums of the sites over their inputs X [N, D], with memory for one block of rows.

    With A = Lu^-1 Kuf, the sums are sum_n A_n lam1_n [M, P] and sum_n lam2_n A_n A_n^T [P, M, M], for the linear
    parameters lam1 [N, P] (`shift`) and precisions lam2 [N, P] of the sites. `prior` is an `agp.processes.SparsePrior`
    with the Cholesky factor Lu [M, M] of Kuu.

    The pullback is ``sums_bar -> (prior_bar, S_bar)``, where `S_bar` is the cotangent of Lu^-1 dLu. The cotangent of
    the precision sum must be symmetric.
    """
    rows = X, shift, precision
    return backend_of(X).fold(_white_block, (prior, Lu), rows, block_rows, add=tree.add)


def _white_block(params: tuple[Any, Array], block: tuple[Array, Array, Array]) -> tuple[Sums, Pullback]:
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
