"""The base classes of inducing variables: their covariances, each with its pullback."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback
from agp.kernels import RBF, Kernel

FeatureMap = Callable[[Array], tuple[Array, Pullback]]
"""X [N, D] -> features [N, F], and ``bar -> X_bar``."""


class Inducing(ABC):
    """M inducing variables u of a process f with a kernel, and their covariances with f.

    Cotangents of their leaves have the class of the object, those of the kernel the class of the kernel; None is zero.
    """

    locations: ClassVar[tuple[str, ...]] = ()
    """The leaves with the positions of the variables, which training moves late and slowly."""

    @property
    @abstractmethod
    def count(self) -> int:
        """M."""

    @property
    @abstractmethod
    def width(self) -> int:
        """The number of columns D of the inputs of f."""

    @property
    @abstractmethod
    def reference(self) -> tuple[str, Array]:
        """The name and value of an array with the library, dtype and device that inputs must have."""

    def usual_kernel(self) -> Kernel:
        """The default kernel; `started` fills its leaves."""
        return RBF()

    @abstractmethod
    def covariance(self, kernel: Kernel, /) -> tuple[Array, Pullback]:
        """Kuu [M, M], symmetric, and ``bar -> (inducing_bar, kernel_bar)``."""

    @abstractmethod
    def cross(self, kernel: Kernel, X: Array, /) -> tuple[Array, Pullback]:
        """Kuf [M, N] for X [N, D], and ``bar -> (inducing_bar, kernel_bar, X_bar)``."""

    @abstractmethod
    def diag(self, kernel: Kernel, X: Array, /) -> tuple[Array, Pullback]:
        """The variances kff [N] of f at X [N, D], and ``bar -> (inducing_bar, kernel_bar, X_bar)``."""

    @abstractmethod
    def full(self, kernel: Kernel, X: Array, /) -> tuple[Array, Pullback]:
        """Kff [N, N], symmetric, for X [N, D], and ``bar -> (inducing_bar, kernel_bar, X_bar)``."""

    def random_features(self, kernel: Kernel, rng: Any, count: int, /) -> tuple[FeatureMap, Array]:  # noqa: ARG002
        """Features of f a priori, ``X [N, D] -> ([N, F], pullback)``, and the same features of u [M, F].

        Arguments and errors as for `agp.kernels.Kernel.random_features`; TypeError also if the inducing variables have
        none.
        """
        msg = f"{type(self).__name__} has no random features, so functions cannot be sampled; use sample."
        raise TypeError(msg)

    @abstractmethod
    def floats_per_row(self, kernel: Kernel, /) -> int:
        """The numbers held by `cross` and `diag` for each row of X, for memory budgets."""

    @abstractmethod
    def check(self, kernel: Kernel, /) -> None:
        """Raise ValueError unless the leaves fit each other and the kernel."""

    def grown(self, Z: Array, /, *, front: bool = False) -> Self:  # noqa: ARG002
        """With further variables at inputs Z [M, D] after the existing ones, or in front; TypeError if unsupported."""
        msg = f"{type(self).__name__} cannot add inducing inputs; use Points."
        raise TypeError(msg)

    @abstractmethod
    def started(
        self, X: Array, kernel: Kernel, variance: float, /, *, num_inducing: int | None, how: Any, seed: int
    ) -> tuple[Self, Kernel]:
        """The object and its kernel with missing leaves filled.

        Parameters
        ----------
        X
            Inputs [N, D], checked.
        kernel
            The kernel; its leaves may be missing or numbers.
        variance
            The variance of the targets.
        num_inducing, how, seed
            M (by default 128, or N if smaller), and arguments of `agp.inducing.choose`.

        Raises
        ------
        TypeError, ValueError
            If given leaves do not fit the data, or M is out of range.
        """


class AtInputs(Inducing):
    """Inducing variables that are values of the kernel's process: u = g(Z) for inducing inputs `Z` [M, .]."""

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
