"""Evidence lower bound of variational processes, for any likelihood."""

from collections.abc import Mapping
from typing import Any

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.random import NO_DRAWS, Draws, draws_with_prefix


def elbo(
    model: Any,
    X: Array,
    y: Array,
    /,
    *,
    scale: float | Array = 1.0,
    draws: Draws = NO_DRAWS,
    block_rows: int | None = None,
) -> tuple[Array, Pullback]:
    """Evidence lower bound scale * sum_n E_q[log p(y_n | f_n)] - KL[q || p].

    For deep processes, the expectation is an average over samples.

    Parameters
    ----------
    model
        A model with the fields `process` and `likelihood`.
    X, y
        Inputs [B, D] and targets [B, K]: all rows, or a minibatch.
    scale
        The ratio N / B, which makes the minibatch bound an unbiased estimate of the bound on all N rows.
    draws
        Random numbers for the likelihood and the process, if they use any (`agp.models.Model._draws`).
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
    factor, pull_factor = model.process.factorise()
    kl, pull_kl = model.process.kl_divergence(factor)
    if block_rows is None:
        ell, pull_ell = expectation_block((model, factor), (X, y, draws.by_row))
    else:
        rows = X, y, rows_first(draws.by_row)
        ell, pull_blocks = backend_of(X).fold(_rows_block, (model, factor), rows, block_rows, add=tree.add)
        pull_ell = lambda bar: (*pull_blocks(bar), None)  # noqa: E731

    def pullback(bar=1.0):
        model_bar, factor_bar, X_bar = pull_ell(bar * scale)
        kl_bar, kl_factor_bar = pull_kl(-bar)
        process_bar = tree.add(kl_bar, pull_factor(tree.add(factor_bar, kl_factor_bar)))
        return tree.add(model_bar, tree.cotangent(model, process=process_bar)), X_bar

    return scale * ell - kl, pullback


def expectation_block(
    params: tuple[Any, Any], block: tuple[Array, Array, Mapping[str, Array]]
) -> tuple[Array, Pullback]:
    """The sum of E_q[log p(y_n | f_n)] over a block, and its pullback ``bar -> (model_bar, factor_bar, X_bar)``."""
    (model, factor), (X, y, draws) = params, block
    process = model.process.with_draws(draws_with_prefix("process", Draws(draws, {}))) if draws else model.process
    (mu, var), pull_project = process.project(factor, X)
    samples = mu.shape[0] // X.shape[0]
    noise = draws_with_prefix("likelihood", Draws(draws, {})).by_row if draws else draws
    ell, pull_likelihood = model.likelihood.expected_log_density(mu, var, *tile_samples(samples, y, noise))
    xp = backend_of(ell).xp

    def pullback(bar):
        likelihood_bar, mu_bar, var_bar = pull_likelihood(bar / samples * xp.ones_like(ell))
        process_bar, factor_bar, X_bar = pull_project(mu_bar, var_bar)
        return tree.cotangent(model, process=process_bar, likelihood=likelihood_bar), factor_bar, X_bar

    return xp.sum(ell) / samples, pullback


def _rows_block(params: tuple[Any, Any], block: tuple[Array, Array, dict[str, Array]]) -> tuple[Array, Pullback]:
    X, y, draws = block
    ell, pull = expectation_block(params, (X, y, rows_first(draws)))
    return ell, lambda bar: pull(bar)[:2]


def rows_first(draws: Mapping[str, Array]) -> dict[str, Array]:
    """Swap the first two axes of draws [S, N, ...] or [N, S, ...]; sums over rows require [N, S, ...]."""
    return {name: backend_of(x).xp.permute_dims(x, (1, 0, *range(2, x.ndim))) for name, x in draws.items()}


def tile_samples(samples: int, y: Array, draws: Mapping[str, Array]) -> tuple[Array, Mapping[str, Array] | None]:
    """Repeat targets [N, K] along axis 0 and draws [., N, ...] along axis 1, for each of S samples; {} becomes None."""
    if samples > 1:
        xp = backend_of(y).xp
        y = xp.concat([y] * samples, axis=0)
        draws = {name: xp.concat([x] * samples, axis=1) for name, x in draws.items()}
    return y, draws or None
