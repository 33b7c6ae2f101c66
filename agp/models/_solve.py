"""SOLVE-GP: sparse variational GPs with two orthogonal groups of inducing inputs, for any likelihood."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array
from agp.inducing import How
from agp.kernels import Kernel
from agp.likelihoods import Likelihood
from agp.linalg import groups_of
from agp.means import Mean
from agp.models._groups import check_groups, start_of_groups
from agp.models._start import observed, started_model
from agp.models._variational import Variational
from agp.posteriors import Whitened, posterior_named
from agp.priors import Prior, Priors, as_priors
from agp.processes import Sparse
from agp.starts import starting_kernel

__all__ = ["SOLVEGP"]


@tree.model
class SOLVEGP(Variational):
    """A sparse variational GP whose inducing inputs Z come in two groups, the second orthogonal to the first.

    The posterior is an `Orthogonal` one: a full covariance within each group, none between the groups. It predicts
    nearly like an SVGP with all M + M2 inducing inputs, at less cost.

    Parameters
    ----------
    process
        A `Sparse` process with the inducing inputs of one group after those of the other.
    likelihood, priors
        As `SVGP`.

    Source: Shi, Titsias & Mnih, "Sparse orthogonal variational inference for Gaussian processes", AISTATS 2020.
    """

    process: Sparse  # type: ignore[assignment]
    likelihood: Likelihood
    priors: Priors = ()

    stochastic: ClassVar[bool] = True

    @classmethod
    def from_data(
        cls,
        X: Array,
        y: Array,
        /,
        *,
        posterior: Any = Whitened,
        second: Any = None,
        kernel: Kernel | None = None,
        likelihood: Likelihood | None = None,
        mean_function: Mean | None = None,
        num_inducing: int | None = None,
        num_orthogonal: int | None = None,
        Z: Array | None = None,
        O: Array | None = None,  # noqa: E741 - the name that the field uses
        inducing: How = "kmeans",
        priors: Mapping[str, Prior] | None = None,
        seed: int = 0,
        jitter: float | None = None,
    ) -> Self:
        """A model ready to be trained.

        Parameters
        ----------
        X, y, kernel, likelihood, mean_function, inducing, priors, seed, jitter
            As `SVGP.from_data`.
        posterior
            The class of q of each group, an `agp.posteriors.WhitePosterior` such as `Whitened` (default) or `Marginal`;
            or a class for both groups, such as `RelaxedOrthogonal`.
        second
            The class of q of the second group, if it differs: `PriorSpread` gives the orthogonally decoupled GP.
        num_inducing, num_orthogonal
            M (default: 128, or half of N if that is less) and M2 (default: M; 0 is an ordinary SVGP). All are chosen
            together as `inducing` says; the first M become the first group.
        Z, O
            The inducing inputs [M, D] and [M2, D], both or neither; O may have no rows.

        Raises
        ------
        TypeError, ValueError
            As `SVGP.from_data`; if only one of Z and O is given, M + M2 exceeds N, a class of q does not suit
            groups, or one for two groups gets one.
        """
        data = observed(X, y, kernel, likelihood, mean_function)
        union, sizes = check_groups(data.X, Z, O, num_inducing, num_orthogonal)
        start = start_of_groups(posterior_named(posterior), posterior_named(second), sizes)
        kernel = starting_kernel(kernel, data.X, data.y, data.likelihood)
        parts: dict[str, Any] = {"kernel": kernel, "mean_function": data.mean_function, "level": data.level}
        choice = {"inducing": inducing, "Z": union, "num_inducing": sum(sizes), "seed": seed, "jitter": jitter}
        targets = {"outputs": data.outputs, "variance": data.variance}
        process = Sparse.from_data(data.X, posterior=start, **parts, **choice, **targets)
        return started_model(cls(process, data.likelihood, as_priors(priors)))

    @property
    def groups(self) -> tuple[Array, ...]:
        """The inducing inputs of each group, Z [M, D] and O [M2, D]."""
        posterior: Any = self.process.posterior
        points: Any = self.process.inducing
        return tuple(points.Z[rows, :] for rows in groups_of(posterior.sizes))

    def structured_posterior(self) -> tuple[Array, Array]:
        """Mean [M + M2, P] and covariances [P, M + M2, M + M2] of f - h at Z and O (`Sparse.inducing_moments`)."""
        return self.process.inducing_moments()
