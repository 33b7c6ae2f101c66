"""Likelihoods and starting values of rows with offsets and known noise variances."""

from typing import Any

from agp.backend import Array, backend_of
from agp.chunking import repeat_rows


def with_row_noise(likelihood: Any, noise: Array | None, samples: int = 1, /) -> Any:
    """Return the likelihood of rows with known noise variances, repeated for each of S samples; None means 0."""
    if noise is None:
        return likelihood
    return likelihood.with_noise(noise if likelihood.differs_by_sample else repeat_rows(noise, samples))[0]


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
