"""Exact GP regression."""

from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import Self

from agp import tree
from agp._context import public
from agp.backend import Array, Pullback
from agp.batch import Batch
from agp.bounds import leave_one_out, log_evidence
from agp.kernels import Kernel
from agp.likelihoods import Gaussian, Likelihood
from agp.linalg import add_diagonal
from agp.means import Mean, ZeroMean
from agp.models._parts import WithoutInducing
from agp.models._regression import Regression, gaussian_only
from agp.models._start import refuse_rows_elsewhere, started, started_model, valid_weights
from agp.predictors import Conditional, ExactConditional
from agp.priors import Prior, Priors, as_priors
from agp.tree import copied

__all__ = ["GPR"]


@tree.model
class GPR(Regression, WithoutInducing):
    """Exact GP regression with Gaussian noise: O(N^3) time, O(N^2) memory; the yardstick for every approximation.

    Parameters
    ----------
    kernel, likelihood
        The prior covariance of f, and `Gaussian` noise.
    X, y
        The data [N, D] and [N, P], which prediction needs.
    mean_function, priors
        As `SVGP`.
    weights
        None, or how many observations each row counts as [N], positive: twice y_n with weight 1 is once y_n with
        weight 2. They need not be whole.
    """

    kernel: Kernel
    likelihood: Gaussian  # type: ignore[assignment]
    _: KW_ONLY
    X: Array = tree.constant()
    y: Array = tree.constant()
    mean_function: Mean = ZeroMean()
    priors: Priors = ()
    weights: Array | None = tree.constant(default=None, optional=True)

    @classmethod
    def from_data(
        cls,
        X: Array,
        y: Array,
        /,
        *,
        kernel: Kernel | None = None,
        likelihood: Likelihood | None = None,
        mean_function: Mean | None = None,
        priors: Mapping[str, Prior] | None = None,
        weights: Array | None = None,
    ) -> Self:
        """A model ready to be trained; arguments and errors as `SVGP.from_data`.

        Weights [N] count rows as that many observations of the same targets, with independent noise, in the evidence,
        in predictions and in what starting values are taken from. Rows of weight 0 have to be left out.

        Raises
        ------
        TypeError
            Also if the likelihood is not Gaussian.
        ValueError
            Also if weights are not positive and finite, or not one for each row.
        """
        weights = valid_weights(weights, X)
        X, y, kernel, likelihood, mean_function = started(
            X, y, kernel, gaussian_only(cls, likelihood), mean_function, by_output=False, weights=weights
        )
        refuse_rows_elsewhere(cls, X, y)
        held = {"X": copied(X), "y": copied(y), "mean_function": mean_function, "priors": as_priors(priors)}
        held["weights"] = weights
        return started_model(cls(kernel, likelihood, **held))  # type: ignore[arg-type]

    @property
    def _row_weights(self) -> Array | None:
        return self.weights

    def _objective(self, batch: Batch, /, *, memory: float | None = None) -> tuple[Array, Pullback]:  # noqa: ARG002
        return log_evidence(self, batch.X, batch.y)  # N x N whatever the budget

    @public(ignore="underflow")
    def leave_one_out(self) -> Array:
        """log p(y_n | all other rows) [N], summed over the outputs: how well each row is predicted from the others.

        O(N^3), for all rows together; the hyperparameters are those of the model. Of a row with a weight w above 1 one
        observation is left out and w - 1 remain, of others the whole row: so the average over the rows, with their
        weights, is that over repeated observations.

        Source: Rasmussen & Williams, "Gaussian processes for machine learning", 2006, section 5.4.2.
        """
        return leave_one_out(self, self.X, self.y)

    def _inverted_matrices(self) -> tuple[Array, ...]:
        """K + sigma^2 I, with sigma^2 / w where rows have weights."""
        noise = self.likelihood.noise_variance
        return (add_diagonal(self.kernel(self.X)[0], noise if self.weights is None else noise / self.weights),)

    def _evidence_interval(self, X: Array, y: Array, /) -> tuple[Array, Array] | None:
        evidence = self.bound(X, y)[0]
        return evidence, evidence

    def _conditional(self, *, memory: float | None = None) -> Conditional:  # noqa: ARG002
        return ExactConditional.of(self, self.y)
