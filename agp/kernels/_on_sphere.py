"""Kernels on the sphere, of longitudes and latitudes."""

import math
from typing import Any, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.errors import count_of
from agp.kernels._active_dims import input_columns
from agp.kernels._base import Kernel
from agp.kernels._categories import Overlap
from agp.kernels._constant import Constant
from agp.kernels._features import Blocks, Features, Term
from agp.kernels._of_inputs import OfInputs, pull_unless_zero
from agp.kernels._stationary import Stationary

RADIANS = math.pi / 180.0
"""Radians in a degree."""
POLE = 90.001
"""The largest latitude in degrees, with rounding errors of single precision."""
AXES = 3
"""The number of coordinates of a unit vector."""


@tree.model
class OnSphere(OfInputs):
    """A kernel of places on the Earth or in the sky, given as longitude and latitude, k(u(x), u(z)).

    u(x) is the unit vector [3] of a place: (cos lat cos lon, cos lat sin lon, sin lat). Every kernel of three columns
    is therefore a kernel on the sphere. With one lengthscale, the covariance depends only on the great-circle distance
    of two places, across the date line and at the poles as everywhere else.

    Parameters
    ----------
    kernel
        Any kernel of three columns. Its lengthscales refer to distances through the sphere, in units of its radius:
        0.1 is 637 km on the Earth. By default, a stationary kernel starts with one lengthscale for all directions.

    Raises
    ------
    ValueError
        By `from_data` and `check`, unless the inputs are two columns in degrees, the longitude first, and latitudes are
        between -90 and 90. Longitudes may be from -180 to 180 or from 0 to 360. For tables with further columns, select
        the two with `on`, as in ``OnSphere(Matern32()).on(("longitude", "latitude"))``.

    Examples
    --------
    Places on both sides of the date line are near, and all longitudes are the same place at a pole.

    >>> import numpy as np
    >>> import agp
    >>> kernel = agp.OnSphere(agp.RBF(np.asarray(1.0), np.asarray(0.5)))
    >>> places = np.asarray([[179.5, 10.0], [-179.5, 10.0], [30.0, 90.0], [-150.0, 90.0]])
    >>> print(kernel(places)[0].round(2))
    [[1.   1.   0.04 0.04]
     [1.   1.   0.04 0.04]
     [0.04 0.04 1.   1.  ]
     [0.04 0.04 1.   1.  ]]
    """

    def change_inputs(self, X: Array, /) -> tuple[Array, Pullback]:
        return unit_vectors(X)

    def metric_inputs(self, X: Array, /) -> Array:
        """Return the inputs and, after them, the coordinates of the kernel on the unit vectors."""
        new = self.kernel.metric_inputs(unit_vectors(X)[0])
        return backend_of(X).xp.concat([X, new], axis=-1)

    def inverse_scales(self, width: int, /) -> Array | None:
        """Return zeros for the inputs, and the factors of the coordinates after them."""
        factors = self.kernel.inverse_scales(AXES)
        if factors is None:
            return None
        B = backend_of(factors)
        return B.xp.concat([B.xp.zeros((width,), **B.like(factors)), factors])

    def with_categories(self, width: int, columns: tuple[int, ...], /) -> Kernel:  # noqa: ARG002
        """Return the kernel or, if a column contains codes, which are no place, a kernel of these codes."""
        return Constant() * Overlap().on(columns) if columns else self

    def random_features(self, rng: Any, count: int, width: int, /) -> Features:  # noqa: ARG002
        found = self.kernel.random_features(rng, count, AXES)
        return Features(tuple(Term(tuple(map(_OfPlaces, term.factors))) for term in found.terms))

    def from_data(self, X: Array, variance: float, /) -> Self:
        self.check_width(X.shape[1])
        xp = backend_of(X).xp
        ends = float(xp.min(X[:, 1])), float(xp.max(X[:, 1]))
        if max(map(abs, ends)) > POLE:
            raise ValueError(
                f"OnSphere has the latitude {max(ends, key=abs):g}, but latitudes are from -90 to 90 degrees; pass the "
                "longitude first, as in on(('longitude', 'latitude'))."
            )
        vectors = unit_vectors(X)[0]
        spread = xp.sqrt(xp.sum(xp.var(vectors, axis=0)))  # r2 between two rows is then about 2, as in `Stationary`
        spread = xp.where(spread > 10.0 * float(xp.finfo(X.dtype).eps), spread, xp.ones_like(spread))
        starts = {
            tree.join_path(path, "lengthscale"): spread
            for path, part in tree.nodes(self.kernel, Stationary).items()
            if part.lengthscale is None
        }
        kernel = tree.with_leaves(self.kernel, starts)
        return type(self)(kernel.from_data(vectors, variance))

    def check(self, width: int, /) -> None:
        self.check_width(width)
        self.kernel.check(AXES)

    def check_width(self, width: int, /) -> None:
        """Raise ValueError unless there are two columns."""
        if width != 2:
            raise ValueError(
                f"OnSphere acts on {count_of(width, 'column')}, but needs two, the longitude and the latitude in "
                "degrees; select them, as in on(('longitude', 'latitude'))."
            )


def place_columns(kernel: Kernel, width: int, /) -> list[int]:
    """Return the numbers of the columns of inputs [N, width] that parts `OnSphere` of the kernel use."""
    found: set[int] = set()
    for path in tree.nodes(kernel, OnSphere):
        found |= {*input_columns(kernel, path, width)}
    return sorted(found)


def unit_vectors(X: Array, /) -> tuple[Array, Pullback]:
    """Return the unit vectors [..., N, 3] of longitudes and latitudes [..., N, 2] in degrees, and the pullback."""
    xp = backend_of(X).xp
    angles = RADIANS * X
    (cos_lon, cos_lat), (sin_lon, sin_lat) = ((f(angles[..., 0]), f(angles[..., 1])) for f in (xp.cos, xp.sin))

    def pullback(bar):
        x, y, z = (bar[..., i] for i in range(AXES))
        longitude_bar = cos_lat * (cos_lon * y - sin_lon * x)
        latitude_bar = cos_lat * z - sin_lat * (cos_lon * x + sin_lon * y)
        return RADIANS * xp.stack([longitude_bar, latitude_bar], axis=-1)

    return xp.stack([cos_lat * cos_lon, cos_lat * sin_lon, sin_lat], axis=-1), pullback


@tree.model
class _OfPlaces(Blocks):
    """Blocks of the unit vectors of places."""

    blocks: Blocks

    def __call__(self, X: Array, /) -> tuple[Array, Pullback]:
        vectors, pull_X = unit_vectors(X)
        value, pull = self.blocks(vectors)
        return value, lambda bar: pull_unless_zero(pull_X, pull(bar))
