"""Sums over the rows of data for site and natural-gradient steps."""

from typing import Any

from agp import tree
from agp.backend import Array, backend_of, like
from agp.bounds._batch import Batch, row_site_gradients
from agp.bounds._elbo import batch_of, rows_first, rows_of
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
