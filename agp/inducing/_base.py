"""Base classes of inducing variables, with methods for covariances and their pullbacks."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback
from agp.kernels import RBF, Kernel, terms_of

FeatureMap = Callable[[Array], tuple[Array, Pullback]]
"""A function from X [N, D] to features [N, F] and their pullback ``bar -> X_bar``."""


class Inducing(tree.Part, ABC):
    """M inducing variables u of a process f with a kernel.

    The methods return covariances of u and f. The cotangent `inducing_bar` has the class of the inducing variables, and
    `kernel_bar` has the class of the kernel. None stands for a cotangent of zero.
    """

    _is_counted: ClassVar[bool] = True
    locations: ClassVar[tuple[str, ...]] = ()
    """The names of the leaves with inducing inputs. Training changes them later than other leaves, and more slowly."""

    @property
    @abstractmethod
    def count(self) -> int:
        """The number of inducing variables M."""

    @property
    @abstractmethod
    def width(self) -> int:
        """The number of columns D of the inputs of f."""

    @property
    @abstractmethod
    def reference(self) -> tuple[str, Array]:
        """The name and value of an array with the library, dtype and device that inputs must have."""

    def usual_kernel(self) -> Kernel:
        """Return the default kernel, whose missing values are computed by `initialise`."""
        return RBF()

    @abstractmethod
    def covariance(self, kernel: Kernel, /) -> tuple[Array, Pullback]:
        """Return the symmetric Kuu [M, M], and the pullback ``bar -> (inducing_bar, kernel_bar)``."""

    @abstractmethod
    def cross(self, kernel: Kernel, X: Array, /) -> tuple[Array, Pullback]:
        """Return Kuf [M, N] for X [N, D], and the pullback ``bar -> (inducing_bar, kernel_bar, X_bar)``."""

    @abstractmethod
    def diag(self, kernel: Kernel, X: Array, /) -> tuple[Array, Pullback]:
        """Return the variances kff [N] at X [N, D], and the pullback ``bar -> (inducing_bar, kernel_bar, X_bar)``."""

    @abstractmethod
    def full(self, kernel: Kernel, X: Array, /) -> tuple[Array, Pullback]:
        """Return the symmetric Kff [N, N] at X [N, D].

        Also return the pullback ``bar -> (inducing_bar, kernel_bar, X_bar)``.
        """

    def cross_terms(self, kernel: Kernel, X: Array, /) -> list[tuple[Array, Array]]:
        """Return, for each term of the kernel (`agp.kernels.terms_of`), its covariances Kuf and its variances kff."""
        return [(self.cross(term, X)[0], self.diag(term, X)[0]) for term in terms_of(kernel)]

    def random_features(self, kernel: Kernel, rng: Any, count: int, /) -> tuple[FeatureMap, Array]:  # noqa: ARG002
        """Return a `FeatureMap` of the prior of f, and the features [M, F] of u.

        The arguments and errors are those of `agp.kernels.Kernel.random_features`. Raise TypeError if the inducing
        variables have no random features.
        """
        raise TypeError(
            f"{type(self).__name__} has no random features, so functions cannot be sampled; call `sample` instead."
        )

    @abstractmethod
    def floats_per_row(self, kernel: Kernel, /) -> int:
        """Return the number of floats that `cross` and `diag` store per row of X, for memory budgets."""

    @abstractmethod
    def check(self, kernel: Kernel, /) -> None:
        """Raise ValueError if the shapes of the leaves do not match each other or the kernel."""

    def add_inducing(self, Z: Array, /, *, front: bool = False) -> Self:  # noqa: ARG002
        """Add variables at inputs Z [M, D] after the existing variables, or before them if `front` is true.

        Raise TypeError if the class does not support adding variables.
        """
        raise TypeError(f"{type(self).__name__} cannot add inducing inputs; use Points.")

    @abstractmethod
    def initialise(
        self, X: Array, kernel: Kernel, variance: float, /, *, num_inducing: int | None, how: Any, seed: int
    ) -> tuple[Self, Kernel]:
        """Compute missing leaves from the data; return the inducing variables and their kernel.

        Parameters
        ----------
        X
            Inputs [N, D], already checked.
        kernel
            The kernel, whose leaves may be missing or plain numbers.
        variance
            The variance of the targets.
        num_inducing, how, seed
            `num_inducing` is the number M, by default the smaller of 128 and N. For `how` and `seed`, see
            `agp.inducing.choose`.

        Raises
        ------
        TypeError, ValueError
            If given leaves do not fit the data, or M is out of range.
        """
