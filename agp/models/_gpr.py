"""Exact GP regression."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self, Unpack

from agp import tree
from agp.backend import Array, Pullback
from agp.bounds import Batch, Expansion, expand_evidence, leave_one_out, log_evidence
from agp.models._parts import ExactParts
from agp.models._regression import Regression, WithData, exact_process, prepare_regression
from agp.models._start import exact_parts, held_in_memory, initialise_model
from agp.processes import Process
from agp.repairs import public


@tree.model
class GPR(WithData, Regression):
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
    offset
        Known numbers [N, 1] or [N, P] that are added to f at the training inputs. None means 0.
    noise
        Known noise variances [N, 1], which are added to the trained noise variance. None means 0. For rows whose noise
        is known completely, freeze the noise variance at 0.

    Examples
    --------
    Predictions interpolate the targets. Far from the rows, the prior returns, here with variance 1.

    >>> import numpy as np
    >>> import agp
    >>> X = np.asarray([[0.0], [1.0], [2.0]])
    >>> y = np.asarray([1.0, 3.0, 2.0])
    >>> kernel, likelihood = agp.RBF(1.0, 1.0), agp.Gaussian(1e-4)
    >>> model = agp.GPR.from_data(X, y, kernel=kernel, likelihood=likelihood)
    >>> mean, variance = model.predict(np.asarray([[1.0], [1.5], [20.0]]))
    >>> print(mean[:, 0].round(2), variance[:, 0].round(2))
    [3.   2.83 2.  ] [0.   0.02 1.  ]

    `agp.fit` trains the kernel, the noise variance and the mean function.
    """

    inducing: ClassVar[None] = None
    _mixes: ClassVar[bool] = True

    @classmethod
    def from_data(cls, X: Array, y: Array, /, **parts: Unpack[ExactParts]) -> Self:
        """Build a model that is ready for training.

        Raises
        ------
        TypeError
            If the likelihood is not Gaussian.
        """
        data = prepare_regression(cls, X, y, parts)
        return initialise_model(cls(**exact_parts(data), **held_in_memory(cls, X, y, data)), data)

    def _objective(self, batch: Batch, /, *, memory: float | None = None) -> tuple[Array, Pullback]:  # noqa: ARG002
        return log_evidence(self, batch)  # ignores the budget, because the whole N x N matrix is stored

    def _expand(self, batch: Batch, scales: Mapping[str, Array], /) -> Expansion | None:
        return expand_evidence(self, batch, scales)

    @public(ignore="underflow")
    def leave_one_out(self) -> Array:
        """Compute the leave-one-out log densities log p(y_n | all other rows) [N], summed over outputs.

        These densities measure how well each row is predicted from the other rows at the model's hyperparameters.
        Computing all of them takes O(N^3) operations. For a row of weight w > 1, one observation is left out and w - 1
        remain, so the weighted average over rows equals the average over repeated observations.

        Source: Rasmussen & Williams, "Gaussian processes for machine learning", 2006, section 5.4.2.
        """
        return leave_one_out(self, self._data)

    @classmethod
    def _mixture_of(cls, *parts: Any) -> Any:
        from agp.models._gpr_mixture import GPRMixture  # it consists of models of this class

        return GPRMixture(*parts)

    def _posterior_process(self, *, memory: float | None = None) -> Process:  # noqa: ARG002
        return exact_process(self)
