"""SOLVE-GPs, sparse variational GPs with two orthogonal groups of inducing inputs, for any likelihood."""

from typing import Any, Self, Unpack

from agp import tree
from agp.backend import Array
from agp.likelihoods import Likelihood
from agp.linalg import groups_of
from agp.models._groups import resolve_groups, start_of_groups
from agp.models._parts import GroupParts
from agp.models._start import initialise_model, prepare_data, sparse_kernel, sparse_process
from agp.models._variational import Variational
from agp.posteriors import Whitened, find_posterior
from agp.priors import Priors
from agp.processes import Sparse


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

    Examples
    --------
    A second group of inducing inputs tightens the bound of a model of counts. Here, only q(u) and q(v) are trained.

    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(0.0, 6.0, 30)[:, None]
    >>> y = np.round(3.0 + 3.0 * np.sin(2.0 * X[:, 0]))
    >>> parts = {"likelihood": agp.Poisson(), "kernel": agp.RBF(1.0, 0.8), "num_inducing": 3}
    >>> bounds = []
    >>> for size in (0, 3):
    ...     model = agp.SOLVEGP.from_data(X, y, num_orthogonal=size, **parts)
    ...     result = agp.fit_lbfgs(model, X, y, frozen=("kernel.*", "mean_function.*", "Z"))
    ...     bounds.append(result.bounds[0])
    >>> [group.shape for group in model.groups]
    [(3, 1), (3, 1)]
    >>> bounds[0] < bounds[1]
    True
    """

    process: Sparse  # type: ignore[assignment]
    likelihood: Likelihood
    priors: Priors = ()

    @classmethod
    def from_data(
        cls, X: Array, y: Array, /, *, posterior: Any = Whitened, second: Any = None, **parts: Unpack[GroupParts]
    ) -> Self:
        """Build a model that is ready for training.

        Parameters
        ----------
        posterior
            The posterior class of each group, an `agp.posteriors.WhitePosterior` such as `Whitened` (default) or
            `Marginal`. You can also pass one class for both groups together, such as `RelaxedOrthogonal`.
        second
            The posterior class of the second group, by default that of the first. `PriorSpread` gives the orthogonally
            decoupled GP.

        Raises
        ------
        TypeError, ValueError
            If a posterior class does not support groups, or if a class for both groups is given although there is only
            one group.
        """
        data, sizes = resolve_groups(prepare_data(X, y, parts))
        start = start_of_groups(find_posterior(posterior), find_posterior(second), sizes)
        process = sparse_process(data, kernel=sparse_kernel(data, data.kernel), posterior=start, **data.options)
        return initialise_model(cls(process, data.likelihood, data.priors), data)

    @property
    def groups(self) -> tuple[Array, ...]:
        """The inducing inputs of each group, Z [M, D] and O [M2, D]."""
        posterior: Any = self.process.posterior
        points: Any = self.process.inducing
        return tuple(points.Z[rows, :] for rows in groups_of(posterior.sizes))

    def structured_posterior(self) -> tuple[Array, Array]:
        """Compute the mean [M + M2, P] and the covariances [P, M + M2, M + M2] of f - h at Z and O."""
        return self.process.inducing_moments()
