"""Inducing variables that are values of the process: u = f(Z)."""

from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.checks import check_inputs, check_like, check_whole, usable
from agp.chunking import column_spreads
from agp.errors import count_of
from agp.inducing._base import FeatureMap, Inducing
from agp.inducing._choose import choose
from agp.kernels import Kernel
from agp.tree import constant_data, copy_array

NUM_INDUCING = 128
"""The default number of inducing variables."""


class AtInputs(Inducing):
    """Inducing variables u = g(Z) at inducing inputs `Z` [M, .]. The kernel is the covariance of the process g."""

    Z: Array

    locations: ClassVar[tuple[str, ...]] = ("Z",)

    @property
    def count(self) -> int:
        return self.Z.shape[0]

    @property
    def reference(self) -> tuple[str, Array]:
        return "Z", self.Z

    def covariance(self, kernel: Kernel, /) -> tuple[Array, Pullback]:
        Kuu, pull = kernel(self.Z)

        def pullback(bar):
            kernel_bar, Z_bar = pull(bar)
            return tree.cotangent(self, Z=Z_bar), kernel_bar

        return Kuu, pullback


@tree.model
class Points(AtInputs):
    """Inducing variables u = f(Z) - h(Z): values of the process at inducing inputs Z, without the mean function h.

    Parameters
    ----------
    Z
        Inducing inputs [M, D], in units of the inputs. By default, the inducing inputs are chosen from the data.
    """

    Z: Array = tree.param(default=None, unit="Z_unit")
    Z_unit: Array | None = tree.unit(default=None)

    @property
    def width(self) -> int:
        return self.Z.shape[1]

    def cross(self, kernel: Kernel, X: Array, /) -> tuple[Array, Pullback]:
        Kuf, pull = kernel(self.Z, X)

        def pullback(bar):
            kernel_bar, Z_bar, X_bar = pull(bar)
            return tree.cotangent(self, Z=Z_bar), kernel_bar, X_bar

        return Kuf, pullback

    def diag(self, kernel: Kernel, X: Array, /) -> tuple[Array, Pullback]:
        kff, pull = kernel.diag(X)
        return kff, lambda bar: (None, *pull(bar))

    def full(self, kernel: Kernel, X: Array, /) -> tuple[Array, Pullback]:
        Kff, pull = kernel(X)
        return Kff, lambda bar: (None, *pull(bar))

    def random_features(self, kernel: Kernel, rng: Any, count: int, /) -> tuple[FeatureMap, Array]:
        features = kernel.random_features(rng, count, self.width)
        return features, features(self.Z)[0]

    def floats_per_row(self, kernel: Kernel, /) -> int:
        return self.count * (kernel.floats_per_entry + 1)

    def check(self, kernel: Kernel, /) -> None:
        kernel.check(self.width)

    def add_inducing(self, Z: Array, /, *, front: bool = False) -> Self:
        check_inputs("Z", Z)
        check_like("Z", Z, "the inducing inputs", self.Z)
        if Z.shape[1] != self.width:
            raise ValueError(
                f"Z has {count_of(Z.shape[1], 'column')}, but the inducing inputs have "
                f"{count_of(self.width, 'column')}; pass Z with "
                f"{count_of(self.width, 'column')}."
            )
        both = [Z, self.Z] if front else [self.Z, Z]
        return tree.with_leaves(self, {"Z": backend_of(Z).xp.concat(both, axis=0)})

    def initialise(
        self, X: Array, kernel: Kernel, variance: float, /, *, num_inducing: int | None, how: Any, seed: int
    ) -> tuple[Self, Kernel]:
        kernel = usable(kernel.from_data(X, variance), X)
        kernel.check(X.shape[1])
        Z = choose_inputs(X, self.Z, kernel, num_inducing, how=how, seed=seed)
        return type(self)(Z, Z_unit=column_spreads(X)), kernel


def choose_inputs(
    X: Array, Z: Array | None, kernel: Kernel, num_inducing: int | None, /, *, how: Any, seed: int
) -> Array:
    """Check and copy the given inducing inputs, or choose `num_inducing` inducing inputs from the rows of X [N, D].

    Raises
    ------
    TypeError, ValueError
        If Z and X differ in library, dtype, device or number of columns, if Z has more rows than X, if M is out of
        range, or if the variance of the kernel is zero at all inducing inputs.
    """
    if num_inducing == "auto":
        raise ValueError(
            "num_inducing is 'auto', but must be a whole number here; start with 64, and train with agp.fit_growing."
        )
    if Z is None:
        M = min(NUM_INDUCING, X.shape[0]) if num_inducing is None else check_whole("num_inducing", num_inducing)
        Z = choose(X, kernel, M, seed=seed, how=how)
    else:
        check_inputs("Z", Z)
        check_like("Z", Z, "X", X)
        if Z.shape[0] > X.shape[0]:
            raise ValueError(
                f"Z has {count_of(Z.shape[0], 'row')}, but X has {count_of(X.shape[0], 'row')}; use at most "
                f"{X.shape[0]} inducing inputs."
            )
        if Z.shape[1] != X.shape[1]:
            raise ValueError(
                f"Z has {count_of(Z.shape[1], 'column')}, but X has {count_of(X.shape[1], 'column')}; pass Z with "
                f"{X.shape[1]} columns."
            )
        Z = copy_array(*constant_data(Z))
    xp = backend_of(Z).xp
    if not bool(xp.any(kernel.diag(Z)[0] != 0.0)):  # Kuu would be zero
        zeros = "" if bool(xp.any(Z != 0.0)) else ", because all inducing inputs are zero"
        raise ValueError(
            f"the kernel {type(kernel).__name__} has variance 0 at every inducing input{zeros}; add "
            "agp.kernels.Constant() to the kernel, or pass other inputs."
        )
    return Z
