"""Likelihoods of rows with weights, offsets and known noise variances, the fields of a `Batch`.

A weight w_n multiplies the log density of a row. An offset is added to the latent functions. A known noise variance is
added to the trained noise variance of a Gaussian likelihood.
"""

from typing import Any

from agp.backend import Array, Pullback, backend_of
from agp.batch import Batch, repeat_rows


def with_row_noise(likelihood: Any, noise: Array | None, samples: int = 1, /) -> Any:
    """Return the likelihood of rows with known noise variances, repeated for each of S samples; None means 0."""
    if noise is None:
        return likelihood
    return likelihood.with_noise(noise if likelihood.differs_by_sample else repeat_rows(noise, samples))[0]


def expected_row_density(
    likelihood: Any, mu: Array, var: Array, batch: Batch, draws: Any = None, /
) -> tuple[Array, Pullback]:
    """Compute w_n E[log p(y_n | f_n)] [N] for the rows of a batch, and its pullback.

    The arguments and the pullback are those of `Likelihood.expected_log_density`.
    """
    weights, offset, noise = batch.known
    at_rows, pull_noise = (likelihood, None) if noise is None else likelihood.with_noise(noise)
    value, pull = at_rows.expected_log_density(mu if offset is None else mu + offset, var, batch.y, draws)

    def pullback(bar):
        own, mu_bar, var_bar = pull(bar if weights is None else weights * bar)
        return own if pull_noise is None else pull_noise(own), mu_bar, var_bar

    return value if weights is None else weights * value, pullback


def row_site_gradients(
    likelihood: Any, mu: Array, var: Array, batch: Batch, draws: Any = None, /, *, shared: bool = False
) -> tuple[Array, Array]:
    """Compute alpha and beta [N, P] of `Likelihood.site_gradients` for the rows of a batch.

    If `shared` is true, beta [N, 1] is that of `Likelihood.shared_site_gradients`.
    """
    weights, offset, noise = batch.known
    mu = mu if offset is None else mu + offset
    at_rows = with_row_noise(likelihood, noise)
    alpha, beta = (at_rows.shared_site_gradients if shared else at_rows.site_gradients)(mu, var, batch.y, draws)
    return (alpha, beta) if weights is None else (weights[:, None] * alpha, weights[:, None] * beta)


# -- starting values --------------------------------------------------------------------------------------------------


def observations_of_rows(likelihood: Any, y: Array, offset: Array | None, /) -> Array | None:
    """Return `Likelihood.observations`, minus the offset."""
    values = likelihood.observations(y)
    return values if values is None or offset is None else values - offset


def level_of_rows(likelihood: Any, y: Array, offset: Array | None, /) -> Array | None:
    """Return `Likelihood.level`, minus the average offset; rates are averaged if the link is logarithmic."""
    level = likelihood.level(y)
    if level is None or offset is None:
        return level
    xp = backend_of(offset).xp
    if not likelihood.log_link:
        return level - xp.mean(offset, axis=0)
    largest = xp.max(offset, axis=0)
    return level - largest - xp.log(xp.mean(xp.exp(offset - largest), axis=0))


def proxies_of_rows(likelihood: Any, y: Array, offset: Array | None, /) -> Array:
    """Return `Likelihood.proxies`, minus the offset."""
    proxies = likelihood.proxies(y)
    return proxies if offset is None or proxies.shape[1] % offset.shape[1] else proxies - offset
