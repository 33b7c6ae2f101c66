"""Evidence lower bound of variational processes, for any likelihood."""

from collections.abc import Mapping
from typing import Any

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.bounds._batch import Batch, expected_row_density, row_site_gradients
from agp.random import Draws, draws_with_prefix


def elbo(model: Any, batch: Batch, /, *, block_rows: int | None = None) -> tuple[Array, Pullback]:
    """Evidence lower bound scale * sum_n w_n E_q[log p(y_n | f_n)] - KL[q || p], with row weights w_n.

    For deep processes, the expectation is an average over samples.

    Parameters
    ----------
    model
        A model with the fields `process` and `likelihood`.
    batch
        All rows, or a minibatch. The field `scale` is the ratio N / B, which makes the minibatch bound an unbiased
        estimate of the bound on all N rows. The field `draws` holds random numbers for the likelihood and the process,
        if they use any (`agp.models.Model._draws`).
    block_rows
        Number of rows per block. The pullback evaluates each block again. By default, all rows form a single block.

    Returns
    -------
    bound
        A 0-d array.
    pullback
        A function ``bar=1.0 -> (model_bar, X_bar)``. `X_bar` is None if `block_rows` is given.

    Source: Hensman, Matthews & Ghahramani, "Scalable variational Gaussian process classification", AISTATS 2015.
    """
    scale = batch.scale
    factor, pull_factor = model.process.factorise()
    kl, pull_kl = model.process.kl_divergence(factor)
    params = model.process, model.likelihood, factor
    if block_rows is None:
        ell, pull_ell = expectation_block(params, rows_of(batch))
    else:
        ell, pull_blocks = backend_of(batch.X).fold(
            _rows_block, params, rows_of(batch, first=True), block_rows, add=tree.add
        )
        pull_ell = lambda bar: (*pull_blocks(bar), None)  # noqa: E731

    def pullback(bar=1.0):
        ell_bar, likelihood_bar, factor_bar, X_bar = pull_ell(bar * scale)
        kl_bar, kl_factor_bar = pull_kl(-bar)
        prior_bar = pull_factor(tree.add(factor_bar, kl_factor_bar))
        process_bar = tree.add(tree.add(ell_bar, kl_bar), prior_bar)
        return tree.cotangent(model, process=process_bar, likelihood=likelihood_bar), X_bar

    return scale * ell - kl, pullback


def rows_of(batch: Batch, *, first: bool = False) -> tuple[Any, ...]:
    """The arrays of a batch that have a row for each datum; draws have the rows on their first axis if `first`."""
    draws = batch.draws.by_row
    return batch.X, batch.y, rows_first(draws) if first else draws, *batch.known


def batch_of(block: tuple[Any, ...], samples: int) -> tuple[Batch, Mapping[str, Array] | None]:
    """The batch of a block, repeated for S samples, and the repeated draws of the likelihood; no draws become None."""
    X, y, draws, *known = block
    noise = draws_with_prefix("likelihood", Draws(draws, {})).by_row if draws else {}
    if samples > 1:
        noise = {name: backend_of(x).xp.concat([x] * samples, axis=1) for name, x in noise.items()}
    return Batch(X, y, 1.0, None, Draws(draws, {}), *known).tile(samples), noise or None


def expectation_block(params: tuple[Any, Any, Any], block: tuple[Any, ...]) -> tuple[Array, Pullback]:
    """The sum of w_n E_q[log p(y_n | f_n)] over a block, given the process, the likelihood and the factor.

    The pullback is ``bar -> (process_bar, likelihood_bar, factor_bar, X_bar)``.
    """
    (process, likelihood, factor), (X, _, draws, *_) = params, block
    if draws:
        process = process.with_draws(draws_with_prefix("process", Draws(draws, {})))
    (mu, var), pull_project = process.project(factor, X)
    samples = mu.shape[0] // X.shape[0]
    ell, pull_likelihood = expected_row_density(likelihood, mu, var, *batch_of(block, samples))
    xp = backend_of(ell).xp

    def pullback(bar):
        likelihood_bar, mu_bar, var_bar = pull_likelihood(bar / samples * xp.ones_like(ell))
        process_bar, factor_bar, X_bar = pull_project(mu_bar, var_bar)
        return process_bar, likelihood_bar, factor_bar, X_bar

    return xp.sum(ell) / samples, pullback


def _rows_block(params: tuple[Any, Any, Any], block: tuple[Any, ...]) -> tuple[Array, Pullback]:
    X, y, draws, *known = block
    ell, pull = expectation_block(params, (X, y, rows_first(draws), *known))
    return ell, lambda bar: pull(bar)[:3]


def rows_first(draws: Mapping[str, Array]) -> dict[str, Array]:
    """Swap the first two axes of draws [S, N, ...] or [N, S, ...]; sums over rows require [N, S, ...]."""
    return {name: backend_of(x).xp.permute_dims(x, (1, 0, *range(2, x.ndim))) for name, x in draws.items()}


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
    return fold(_site_block, (model, factor, weight), rows, block_rows, add=_add_optional)[0]


def _site_block(params: tuple[Any, Any, Array], block: tuple[Any, ...]) -> tuple[dict, None]:
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
