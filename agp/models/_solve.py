"""SOLVE-GPs, sparse variational GPs with two orthogonal groups of inducing inputs, for any likelihood."""

from collections.abc import Mapping
from typing import Any, Self

from agp import tree
from agp.backend import Array
from agp.inducing import How
from agp.kernels import Kernel
from agp.likelihoods import Likelihood
from agp.linalg import groups_of
from agp.means import Mean
from agp.models._groups import check_groups, start_of_groups
from agp.models._start import initialise_model, prepare_data
from agp.models._variational import Variational
from agp.posteriors import Whitened, find_posterior
from agp.priors import Prior, Priors, as_priors
from agp.processes import Sparse
from agp.starts import starting_kernel


@tree.model
class SOLVEGP(Variational):
    """A sparse variational GP with two orthogonal groups of inducing inputs, of sizes M and M2.

    The posterior is `Orthogonal`: it has a full covariance within each group, and no covariance between the groups.
    Predictions are close to those of an SVGP with M + M2 inducing inputs, but are cheaper.

    Parameters
    ----------
    process
        A `Sparse` process whose inducing inputs are those of the first group, followed by those of the second.
    likelihood, priors
        See `SVGP`.

    Source: Shi, Titsias & Mnih, "Sparse orthogonal variational inference for Gaussian processes", AISTATS 2020.
    """

    process: Sparse  # type: ignore[assignment]
    likelihood: Likelihood
    priors: Priors = ()

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
        O: Array | None = None,  # noqa: E741 - the usual name in the literature
        inducing: How = "kmeans",
        priors: Mapping[str, Prior] | None = None,
        seed: int = 0,
        jitter: float | None = None,
    ) -> Self:
        """Build a model that is ready for training.

        Parameters
        ----------
        X, y, kernel, likelihood, mean_function, inducing, priors, seed, jitter
            See `SVGP.from_data`.
        posterior
            The posterior class of each group, an `agp.posteriors.WhitePosterior` such as `Whitened` (default) or
            `Marginal`. You can also pass one class for both groups together, such as `RelaxedOrthogonal`.
        second
            The posterior class of the second group, by default that of the first. `PriorSpread` gives the orthogonally
            decoupled GP.
        num_inducing
            The size M of the first group. The default is 128, or N / 2 if that is less. All M + M2 inducing inputs are
            chosen together by the method `inducing`, and the first M form the first group.
        num_orthogonal
            The size M2 of the second group. The default is M. If M2 is 0, the model is an ordinary SVGP.
        Z, O
            The inducing inputs [M, D] of the first group and [M2, D] of the second. Pass both Z and O, or neither. O
            may have no rows.

        Raises
        ------
        TypeError, ValueError
            For the reasons listed in `SVGP.from_data`, or if only one of Z and O is given, or if M + M2 exceeds N.
            These errors are also raised if a posterior class does not support groups, or if a class for both groups is
            given although there is only one group.
        """
        data = prepare_data(X, y, kernel, likelihood, mean_function)
        union, sizes = check_groups(data.X, Z, O, num_inducing, num_orthogonal)
        start = start_of_groups(find_posterior(posterior), find_posterior(second), sizes)
        kernel = starting_kernel(kernel, data.X, data.y, data.likelihood)
        parts: dict[str, Any] = {"kernel": kernel, "mean_function": data.mean_function, "level": data.level}
        choice = {"inducing": inducing, "Z": union, "num_inducing": sum(sizes), "seed": seed, "jitter": jitter}
        targets = {"outputs": data.outputs, "variance": data.variance}
        process = Sparse.from_data(data.X, posterior=start, **parts, **choice, **targets)
        return initialise_model(cls(process, data.likelihood, as_priors(priors)))

    @property
    def groups(self) -> tuple[Array, ...]:
        """The inducing inputs of each group, Z [M, D] and O [M2, D]."""
        posterior: Any = self.process.posterior
        points: Any = self.process.inducing
        return tuple(points.Z[rows, :] for rows in groups_of(posterior.sizes))

    def structured_posterior(self) -> tuple[Array, Array]:
        """Compute the mean [M + M2, P] and the covariances [P, M + M2, M + M2] of f - h at Z and O."""
        return self.process.inducing_moments()
