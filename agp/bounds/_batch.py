"""The rows of a training step, and the densities of rows under a likelihood.

A weight w_n multiplies the log density of a row. An offset is added to the latent functions. A known noise variance is
added to the trained noise variance of a Gaussian likelihood.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from agp.backend import Array, Pullback
from agp.chunking import repeat_rows
from agp.random import NO_DRAWS, Draws


class Batch(NamedTuple):
    """All rows, or a minibatch, with what is known of each row."""

    X: Array
    """Inputs [B, D]."""
    y: Array
    """Targets [B, K]."""
    scale: float | Array = 1.0
    """The factor N / B by which sums over the rows are multiplied."""
    rows: Array | None = None
    """The indices [B] of these rows in the data; None for all data in order."""
    draws: Draws = NO_DRAWS
    """The noise and the probes of the step."""
    weights: Array | None = None
    """The weights [B]: the number of observations that each row represents. None means 1."""
    offset: Array | None = None
    """Numbers [B, 1] or [B, P] that are added to the latent functions, such as log exposures. None means 0."""
    noise: Array | None = None
    """Known noise variances [B, 1] or [B, P], which are added to the trained noise variance. None means 0."""

    @property
    def known(self) -> tuple[Array | None, Array | None, Array | None]:
        """The weights, the offset and the noise."""
        return self.weights, self.offset, self.noise

    def take(self, rows: Callable[[Array], Array]) -> "Batch":
        """Return a batch of some rows, which the function takes from each array."""
        parts = {name: getattr(self, name) for name in ("X", "y", "weights", "offset", "noise")}
        return self._replace(**{name: None if x is None else rows(x) for name, x in parts.items()})

    def tile(self, samples: int) -> "Batch":
        """Repeat targets, weights, offset and noise along axis 0, for each of S samples of the latent functions."""
        if samples <= 1:
            return self
        parts = {name: getattr(self, name) for name in ("y", "weights", "offset", "noise")}
        return self._replace(**{name: repeat_rows(x, samples) for name, x in parts.items()})


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
        likelihood_bar, mu_bar, var_bar = pull(bar if weights is None else weights * bar)
        return likelihood_bar if pull_noise is None else pull_noise(likelihood_bar), mu_bar, var_bar

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
