"""Random numbers: seeded generators, and the draws that a training step hands to the nodes of a model."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["NO_DRAWS", "Draws", "Noise", "draws_with_prefix", "merge_draws", "prefix_draws"]


class Noise(ABC):
    """A random number generator of an array library, with the methods of NumPy's that nodes may use."""

    @abstractmethod
    def standard_normal(self, size: Any = ()) -> Any:
        """Independent standard normal numbers of that shape."""

    @abstractmethod
    def integers(self, low: int, high: int, size: Any = ()) -> Any:
        """Integers of that shape, uniform from low to high - 1."""

    def __getattr__(self, name: str) -> Any:
        msg = f"noise on a device has standard_normal and integers, but no {name}; leave out draws='device'."
        raise AttributeError(msg)


class Draws(NamedTuple):
    """Random arrays by name: the path of the node that asked for them, and its name for them."""

    by_row: Mapping[str, Any]
    """Arrays [S, N, ...], whose second axis is cut into batches and blocks together with the data."""
    whole: Mapping[str, Any]
    """Other arrays."""


NO_DRAWS = Draws({}, {})
"""No draws."""


def prefix_draws(path: str, draws: Draws, /) -> Draws:
    """The draws of a node, renamed for a model that has the node at that path."""
    return Draws(*({f"{path}.{name}": x for name, x in part.items()} for part in draws))


def draws_with_prefix(path: str, draws: Draws, /) -> Draws:
    """The draws of the node at a path: the inverse of `prefix_draws`."""
    if not any(draws):
        return NO_DRAWS
    start = f"{path}."
    return Draws(*({name[len(start) :]: x for name, x in part.items() if name.startswith(start)} for part in draws))


def merge_draws(several: Iterable[Draws], /) -> Draws:
    """All of the draws."""
    by_row, whole = {}, {}
    for draws in several:
        by_row |= draws.by_row
        whole |= draws.whole
    return Draws(by_row, whole)


# -- NumPy generators, for other subpackages ---------------------------------------------------------------------------


def generator(seed: int, *purpose: int) -> np.random.Generator:
    """The generator of a seed, independent for each purpose."""
    return np.random.default_rng([seed, *purpose])


def row_normals(seed: int, start: int, rows: int, count: int) -> npt.NDArray[np.float64]:
    """Standard normal numbers [rows, count] for the rows from `start` on, the same for any chunking of the rows.

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
    """Standard normal numbers [samples, rows, width] by a Latin hypercube, the same for all rows.

    In every column, one number comes from each of `samples` intervals of equal probability, so averages are closer to
    expectations than those of independent numbers.
    """
    from scipy.special import ndtri

    rng = generator(seed, 9)
    parts = rng.permuted(np.tile(np.arange(samples)[:, None], width), axis=0)
    normals = ndtri((parts + rng.uniform(2.0**-53, 1.0, (samples, width))) / samples)
    return np.broadcast_to(normals[:, None, :], (samples, rows, width))
