"""What steps of sites and natural gradients need of the data: derivatives of the expected log density, summed up."""

from typing import Any

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.bounds._elbo import rows_first, tiled
from agp.random import NO_DRAWS, Draws, below

__all__ = ["site_sums"]


def site_sums(
    model: Any,
    factor: Any,
    X: Array,
    y: Array,
    /,
    *,
    scale: float | Array = 1.0,
    draws: Draws = NO_DRAWS,
    block_rows: int,
) -> dict[str, Any]:
    """The sums of each posterior that moves by sites, by its path in the process, in the memory of one block of rows.

    One pass over the rows: at the marginals of the process, the likelihood gives alpha = d/dmu and beta = -2 d/dvar of
    `scale` times the expected log density; from there they go back to the marginals of each posterior
    (`agp.processes.Process.project_to_sites`), which adds up what it needs.

    Parameters
    ----------
    model
        With the fields `process` and `likelihood`.
    factor
        Of the process.
    X, y, scale, draws
        As `agp.bounds.elbo`.
    block_rows
        Rows to take at once.
    """
    _, reference = model.process.reference  # X may lie elsewhere
    weight = scale * backend_of(reference).xp.ones((), **like(reference))
    rows = X, y, rows_first(draws.by_row)
    return backend_of(X).fold(_block, (model, factor, weight), rows, block_rows, add=_added)[0]


def _block(params: tuple[Any, Any, Array], block: tuple[Array, Array, dict[str, Array]]) -> tuple[dict, Pullback]:
    (model, factor, weight), (X, y, noise) = params, block
    draws = Draws(rows_first(noise), {})
    process = model.process.drawn(below("process", draws))
    (mu, var), to_sites = process.project_to_sites(factor, X)
    samples = mu.shape[0] // X.shape[0]
    y, own = tiled(samples, y, below("likelihood", draws).by_row)
    alpha, beta = model.likelihood.site_gradients(mu, var, y, own)
    each = weight / samples

    def pullback(_bar):
        msg = "sums for steps of sites are never differentiated."
        raise TypeError(msg)

    return to_sites(each * alpha, -0.5 * each * beta), pullback


def _added(a: dict | None, b: dict | None) -> dict | None:
    if a is None or b is None:
        return b if a is None else a
    return {path: tree.add(a[path], b[path]) for path in a}
