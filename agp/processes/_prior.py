"""The prior of a sparse process: a kernel, inducing variables and a mean function."""

from abc import ABC
from typing import Any, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.checks import usable
from agp.inducing import Inducing, resolve_inducing
from agp.kernels import Kernel
from agp.linalg import add_jitter, check_jitter, default_jitter
from agp.means import Mean, ZeroMean


class SparsePrior(ABC):
    """A process or model with the fields kernel, inducing, mean_function and jitter.

    The inducing variables are values of f - h, where h is the mean function. The cotangent of a process or model is an
    object of the same class.
    """

    kernel: Kernel
    inducing: Inducing
    mean_function: Mean
    jitter: float | None

    def _add_inducing(self, Z: Array, /, *, begun: bool = False) -> Self:
        """Return a copy with additional inducing inputs Z [M, D] and the same q(f).

        `begun` is as in `agp.posteriors.Posterior.add_inducing`. Raise TypeError if the posterior cannot represent the
        same q(f).
        """
        msg = f"{type(self).__name__} cannot add inducing inputs; use SGPR or SVGP."
        raise TypeError(msg)

    def _inducing_covariance(self) -> tuple[Array, Pullback]:
        """Return Kuu + jitter I [M, M], and its pullback ``(Kuu_bar, **cotangents of other fields) -> self_bar``."""
        Kuu, pull = self.inducing.covariance(self.kernel)

        def pullback(Kuu_bar, **others):
            inducing_bar, kernel_bar = pull(Kuu_bar)
            return tree.cotangent(self, kernel=kernel_bar, inducing=inducing_bar, **others)

        return add_jitter(Kuu, self.jitter), pullback

    def _absolute_jitter(self) -> Array:
        """Return the jitter that is added to the diagonal of Kuu, as a 0-d array."""
        Kuu = self.inducing.covariance(self.kernel)[0]
        return default_jitter(Kuu) if self.jitter is None else backend_of(Kuu).xp.asarray(self.jitter, **like(Kuu))

    def _features(self, X: Array, /) -> tuple[tuple[Array, Array, Array], Pullback]:
        """Return Kuf [M, N], kff [N] and h [N, P] (or [N, 1]) at X [N, D].

        The pullback is ``(Kuf_bar, kff_bar, h_bar, **cotangents of other fields) -> (self_bar, X_bar)``.
        """
        Kuf, pull_Kuf = self.inducing.cross(self.kernel, X)
        kff, pull_kff = self.inducing.diag(self.kernel, X)
        h, pull_mean = self.mean_function(X)

        def pullback(Kuf_bar, kff_bar, h_bar, **others):
            inducing_bar, kernel_bar, X_bar = pull_Kuf(Kuf_bar)
            inducing_diag_bar, kernel_diag_bar, X_diag_bar = pull_kff(kff_bar)
            mean_bar, X_mean_bar = pull_mean(h_bar)
            bar = tree.cotangent(
                self,
                kernel=tree.add(kernel_bar, kernel_diag_bar),
                inducing=tree.add(inducing_bar, inducing_diag_bar),
                mean_function=mean_bar,
                **others,
            )
            return bar, tree.add(tree.add(X_bar, X_diag_bar), X_mean_bar)

        return (Kuf, kff, h), pullback


def initialise_prior(
    X: Array,
    kernel: Kernel | None,
    mean_function: Mean | None,
    level: Array,
    variance: float,
    /,
    *,
    inducing: Any,
    Z: Array | None,
    num_inducing: int | None,
    seed: int,
    jitter: float | None,
) -> dict[str, Any]:
    """Return the fields of a `SparsePrior` by name, with starting values for inputs X [N, D].

    `level` [P] and `variance` are the expected means and the expected variance of the functions. The other arguments
    and the errors are as for `Sparse.from_data`.
    """
    place, how = resolve_inducing(inducing, Z)
    choice = {"num_inducing": num_inducing, "how": how, "seed": seed}
    place, kernel = place.initialise(X, place.usual_kernel() if kernel is None else kernel, variance, **choice)
    mean_function = ZeroMean() if mean_function is None else mean_function
    mean_function = usable(mean_function.from_data(X, level, variance**0.5), X)
    mean_function.check(X.shape[1], level.shape[0])
    jitter = check_jitter(jitter)
    return {"kernel": kernel, "inducing": place, "mean_function": mean_function, "jitter": jitter}
