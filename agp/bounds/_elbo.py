"""The evidence lower bound of sparse variational GPs, for any kernel, likelihood and parameterisation of q(u)."""

from collections.abc import Mapping
from typing import Any

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.posteriors import factorise, kl_divergence, marginals, project

__all__ = ["blocked_elbo", "elbo"]


Draws = Mapping[str, Array] | None


def elbo(
    model: Any, X: Array, y: Array, /, *, scale: float | Array = 1.0, draws: Draws = None
) -> tuple[Array, Pullback]:
    """Scale sum_n E_q[log p(y_n | f_n)] - KL[q(u) || p(u)], 0-d.

    Parameters
    ----------
    model
        With the fields kernel, likelihood, posterior, mean_function, Z and jitter.
    X, y
        Inputs [B, D] and targets [B, K] as the likelihood takes them: all data, or a minibatch.
    scale
        N / B, so that the bound of a minibatch is an unbiased estimate of the bound of all N data.
    draws
        The likelihood's noise for these rows, arrays [S, B, ...] by name, if it needs any.

    Returns
    -------
    bound
    pullback
        ``bar=1.0 -> (model_bar, X_bar)``.

    Source: Hensman, Matthews & Ghahramani, "Scalable variational Gaussian process classification", AISTATS 2015.
    """
    (mu, var, kl), pull_marginals = marginals(model, X)
    ell, pull_likelihood = model.likelihood.expected_log_density(mu, var, y, draws)
    xp = backend_of(ell).xp

    def pullback(bar=1.0):
        likelihood_bar, mu_bar, var_bar = pull_likelihood(bar * scale * xp.ones_like(ell))
        model_bar, X_bar = pull_marginals(mu_bar, var_bar, -bar)
        return tree.add(model_bar, tree.cotangent(model, likelihood=likelihood_bar)), X_bar

    return scale * xp.sum(ell) - kl, pullback


def blocked_elbo(
    model: Any, X: Array, y: Array, /, *, block_rows: int, scale: float | Array = 1.0, draws: Draws = None
) -> tuple[Array, Pullback]:
    """The same bound in the memory of one block of rows; the pullback gives (model_bar, None).

    Kuu is factorised once; each block is evaluated again in the pullback, and nothing is kept between.
    """
    factor, pull_factor = factorise(model)
    kl, pull_kl = kl_divergence(model, factor)
    rows = X, y, _rows_first(draws)
    ell, pull_ell = backend_of(X).fold(_block, (model, factor), rows, block_rows, add=tree.add)

    def pullback(bar=1.0):
        model_bar, factor_bar = pull_ell(bar * scale)
        prior_bar, prior_factor_bar = pull_kl(-bar)
        through_factor = pull_factor(tree.add(factor_bar, prior_factor_bar))
        return tree.add(tree.add(model_bar, prior_bar), through_factor), None

    return scale * ell - kl, pullback


def _block(params: tuple[Any, Any], block: tuple[Array, Array, Draws]) -> tuple[Array, Pullback]:
    (model, factor), (X, y, draws) = params, block
    (mu, var), pull_project = project(model, factor, X)
    ell, pull_likelihood = model.likelihood.expected_log_density(mu, var, y, _rows_first(draws))
    xp = backend_of(ell).xp

    def pullback(bar):
        likelihood_bar, mu_bar, var_bar = pull_likelihood(bar * xp.ones_like(ell))
        model_bar, factor_bar, _ = pull_project(mu_bar, var_bar)
        return tree.add(model_bar, tree.cotangent(model, likelihood=likelihood_bar)), factor_bar

    return xp.sum(ell), pullback


def _rows_first(draws: Draws) -> Draws:
    """Draws [S, N, ...] as [N, S, ...], the way a fold cuts its rows; and back."""
    return draws and {name: _swapped(x) for name, x in draws.items()}


def _swapped(x: Array) -> Array:
    return backend_of(x).xp.permute_dims(x, (1, 0, *range(2, x.ndim)))
