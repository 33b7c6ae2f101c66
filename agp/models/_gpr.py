"""Exact GP regression."""

from dataclasses import KW_ONLY
from typing import ClassVar, Self, Unpack

from agp import tree
from agp._context import public
from agp.backend import Array, Pullback
from agp.batch import Batch
from agp.bounds import leave_one_out, log_evidence
from agp.kernels import Kernel
from agp.likelihoods import Gaussian
from agp.linalg import add_diagonal
from agp.means import Mean, ZeroMean
from agp.models._parts import ExactParts
from agp.models._regression import Regression, prepare_regression
from agp.models._start import exact_parts, held_in_memory, initialise_model, valid_weights
from agp.predictors import Conditional, ExactConditional
from agp.priors import Priors


@tree.model
class GPR(Regression):
    """Exact GP regression with Gaussian noise, in O(N^3) time and O(N^2) memory.

    Parameters
    ----------
    kernel, likelihood
        The prior covariance of f, and `Gaussian` noise.
    X, y
        The training inputs [N, D] and targets [N, P], which are also used for prediction.
    mean_function, priors
        See `SVGP`.
    weights
        Positive weights [N]: the number of observations that each row represents. A row of weight 2 is equivalent to
        two identical rows of weight 1. Weights need not be integers. None means weight 1 for all rows.
    """

    kernel: Kernel
    likelihood: Gaussian
    _: KW_ONLY
    X: Array = tree.constant()
    y: Array = tree.constant()
    mean_function: Mean = ZeroMean()
    priors: Priors = ()
    weights: Array | None = tree.constant(default=None, optional=True)

    inducing: ClassVar[None] = None

    @classmethod
    def from_data(cls, X: Array, y: Array, /, *, weights: Array | None = None, **parts: Unpack[ExactParts]) -> Self:
        """Build a model that is ready for training.

        Parameters
        ----------
        weights
            Positive weights [N]: the number of observations of the same target, with independent noise, that each row
            represents. Weights affect the evidence, the predictions and the starting values. Rows of weight 0 are not
            allowed; remove them from the data. None means weight 1 for all rows.

        Raises
        ------
        TypeError
            If the likelihood is not Gaussian.
        ValueError
            If `weights` does not have a positive and finite entry for each row.
        """
        weights = valid_weights(weights, X)
        data = prepare_regression(cls, X, y, parts, weights=weights)
        return initialise_model(cls(**exact_parts(data), **held_in_memory(cls, X, y), weights=weights))

    @property
    def _row_weights(self) -> Array | None:
        return self.weights

    def _objective(self, batch: Batch, /, *, memory: float | None = None) -> tuple[Array, Pullback]:  # noqa: ARG002
        return log_evidence(self, batch.X, batch.y)  # ignores the budget, because the whole N x N matrix is stored

    @public(ignore="underflow")
    def leave_one_out(self) -> Array:
        """Compute the leave-one-out log densities log p(y_n | all other rows) [N], summed over outputs.

        These densities measure how well each row is predicted from the other rows at the model's hyperparameters.
        Computing all of them takes O(N^3) operations. For a row of weight w > 1, one observation is left out and w - 1
        remain, so the weighted average over rows equals the average over repeated observations.

        Source: Rasmussen & Williams, "Gaussian processes for machine learning", 2006, section 5.4.2.
        """
        return leave_one_out(self, self.X, self.y)

    def _matrices_to_invert(self) -> tuple[Array, ...]:
        """Return K + sigma^2 I, with the noise variance sigma^2 / w for a row of weight w."""
        noise = self.likelihood.noise_variance
        return (add_diagonal(self.kernel(self.X)[0], noise if self.weights is None else noise / self.weights),)

    def _evidence_interval(self, X: Array, y: Array, /) -> tuple[Array, Array] | None:
        evidence = self.bound(X, y)[0]
        return evidence, evidence

    def _conditional(self, *, memory: float | None = None) -> Conditional:  # noqa: ARG002
        return ExactConditional.of(self)
