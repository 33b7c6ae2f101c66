"""Random numbers: seeded generators, and the draws that a training step passes to the nodes of a model."""

import numbers
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["NO_DRAWS", "Draws", "Noise", "draws_with_prefix", "merge_draws", "prefix_draws"]


class Noise(ABC):
    """A random number generator of an array library. Nodes may use the two methods below, which work as in NumPy."""

    @abstractmethod
    def standard_normal(self, size: Any = ()) -> Any:
        """Return independent standard normal numbers of shape `size`."""

    @abstractmethod
    def integers(self, low: int, high: int, size: Any = ()) -> Any:
        """Return integers of shape `size`, uniform from low to high - 1."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"draws='device' supports only standard_normal and integers, not {name}; leave out draws='device'."
        )


class Draws(NamedTuple):
    """Random arrays by name.

    A name consists of the path to the node that uses the array, a dot, and the array's name in the node.
    """

    by_row: Mapping[str, Any]
    """Arrays [S, N, ...], whose second axis is split into batches and blocks in the same way as the data."""
    whole: Mapping[str, Any]
    """Other arrays."""


NO_DRAWS = Draws({}, {})
"""An empty collection of draws."""


def prefix_draws(path: str, draws: Draws, /) -> Draws:
    """Rename the draws of a node for a model that contains the node at this path."""
    return Draws(*({f"{path}.{name}": x for name, x in part.items()} for part in draws))


def draws_with_prefix(path: str, draws: Draws, /) -> Draws:
    """Return the draws of the node at a path, under their names in the node: the inverse of `prefix_draws`."""
    if not any(draws):
        return NO_DRAWS
    start = f"{path}."
    return Draws(*({name[len(start) :]: x for name, x in part.items() if name.startswith(start)} for part in draws))


def merge_draws(several: Iterable[Draws], /) -> Draws:
    """Merge several collections of draws into one."""
    by_row, whole = {}, {}
    for draws in several:
        by_row |= draws.by_row
        whole |= draws.whole
    return Draws(by_row, whole)


# -- NumPy generators, for other subpackages ---------------------------------------------------------------------------


def generator(seed: int, *purpose: int) -> np.random.Generator:
    """Return a NumPy generator for a seed and a purpose. Generators for different purposes are independent."""
    if not isinstance(seed, numbers.Integral) or seed < 0:
        raise ValueError(f"seed is {seed!r}, but must be a whole number of at least 0.")
    return np.random.default_rng([int(seed), *purpose])


def row_normals(seed: int, start: int, rows: int, count: int) -> npt.NDArray[np.float64]:
    """Return standard normal numbers [rows, count] for rows from `start` on, however the rows are divided into chunks.

    A counter-based generator is advanced to the first row, and each number takes one draw.
    """
    from scipy.special import ndtri

    per_row = -(-count // 4)  # the generator counts in blocks of four numbers
    bits = np.random.Philox(key=[seed, 8])
    bits.advance(start * per_row)
    uniform = np.random.Generator(bits).random((rows, 4 * per_row))
    # multiples of 2^-53 from 0 to 1, moved off both ends
    return ndtri(np.clip(uniform[:, :count], 2.0**-54, 1.0 - 2.0**-53))


def common_normals(seed: int, samples: int, rows: int, width: int) -> npt.NDArray[np.float64]:
    """Return standard normal numbers [samples, rows, width] of a Latin hypercube, the same for all rows.

    Each column has one number in each of `samples` intervals of equal probability. Averages over the samples are
    therefore closer to expectations than averages of independent numbers.
    """
    from scipy.special import ndtri

    rng = generator(seed, 9)
    parts = rng.permuted(np.tile(np.arange(samples)[:, None], width), axis=0)
    normals = ndtri((parts + rng.uniform(2.0**-53, 1.0, (samples, width))) / samples)
    return np.broadcast_to(normals[:, None, :], (samples, rows, width))


def numbers_of_draws(shares: npt.NDArray[Any], count: int, rng: Any, /) -> list[tuple[int, int]]:
    """Return pairs of an index and how often it is drawn, by systematic sampling with a NumPy generator.

    `shares` [S] are probabilities on the host. Each index is drawn w_s `count` times, rounded up or down.
    """
    ends = np.cumsum(shares.astype(np.float64))
    at = (np.arange(count) + rng.uniform()) / count * ends[-1]
    found, numbers = np.unique(np.minimum(np.searchsorted(ends, at, side="right"), len(ends) - 1), return_counts=True)
    return list(zip(found.tolist(), numbers.tolist(), strict=True))


def weighted_quantiles(
    x: npt.NDArray[Any], weights: npt.NDArray[Any], levels: tuple[float, ...], /
) -> npt.NDArray[Any]:
    """Return quantiles [Q, ...] of arrays x [S, ...] on the host, with weights [S]."""
    flat = x.reshape(len(x), -1)
    order = np.argsort(flat, axis=0, kind="stable")
    ends = np.cumsum(weights[order], axis=0)
    places = [np.minimum(np.sum(ends < level * ends[-1:], axis=0), len(x) - 1) for level in levels]
    ordered = np.take_along_axis(flat, order, axis=0)
    return np.stack([ordered[place, np.arange(flat.shape[1])].reshape(x.shape[1:]) for place in places])
