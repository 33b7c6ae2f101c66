"""Exact GP regression by conjugate gradients."""

from dataclasses import KW_ONLY
from typing import Any, ClassVar, Self, Unpack

from agp import tree
from agp.backend import Array, Pullback, asarray_like
from agp.bounds import Batch, estimated_evidence, preconditioning_root, targets_of
from agp.checks import check_positive, check_whole
from agp.chunking import rows_within, tile_rows
from agp.models._parts import ExactParts
from agp.models._regression import Regression, WithData, check_without_white, exact_process, prepare_regression
from agp.models._start import exact_parts, held_in_memory, initialise_model
from agp.processes import Iterative, Process
from agp.random import Draws, generator

"""The relative residual and the maximum number of iterations of a solve when backends are compared.

Conjugate gradients can amplify rounding errors up to the size of the relative residual.
"""
RANK = 15
"""The default rank of the preconditioner."""
PREDICTION_RANK = 256
"""The maximum rank of the preconditioner for predictions, which solve many systems with the same matrix."""
PRECONDITIONER_COPIES = 16
"""The number of floats held in memory, per row and unit of rank, while a preconditioner is computed."""


@tree.model
class CGGP(WithData, Regression):
    """Exact GP regression with preconditioned conjugate gradients: O(N^2) time per iteration and O(N) memory.

    The model is that of `GPR`, with Gaussian noise. `CGGP` stores the N x N matrix K only if it fits in the memory
    budget; otherwise, each iteration recomputes the rows of K. Training estimates the gradient of the log evidence with
    random probes, which depend on the seed and the step. The estimate is unbiased up to the tolerance of the solves.
    The log evidence itself is estimated by Lanczos quadrature. The method `bound` returns this estimate, not a bound.
    Because `bound` uses a fixed set of probes, the estimate is the same in each call and on every backend.

    If K fits in memory, predictions use a Cholesky factorisation, as in `GPR`. This is cheaper than conjugate gradients
    unless there are few test inputs. If K does not fit, one linear system is solved for the means, and one for the
    variance at each test input. The preconditioner for these solves has rank 256 if memory allows. Inexact solves
    increase the variances, with a relative error of the order of the relative residual.

    Parameters
    ----------
    kernel, likelihood
        The prior covariance of f, and `Gaussian` noise. White noise belongs in the likelihood.
    X, y
        The training inputs [N, D] and targets [N, P], which are also used for prediction.
    mean_function, priors
        See `SVGP`.
    weights, offset, noise
        What is known of the rows; see `GPR`.
    rank
        The rank of the preconditioner, a partial pivoted Cholesky factorisation; 0 means no preconditioner. Predictions
        may use a higher rank.
    probes
        The number of random probes in a training step.
    tolerance
        The relative residual of the solves in training.
    prediction_tolerance
        The relative residual of the solves in prediction.
    max_iterations
        The maximum number of iterations of a solve. If a solve does not converge, a repair is reported.
    lanczos_steps
        The maximum number of Lanczos iterations for estimating the log determinant.

    Source: Gardner, Pleiss, Bindel, Weinberger & Wilson, "GPyTorch: blackbox matrix-matrix Gaussian process inference
    with GPU acceleration", NeurIPS 2018.

    Examples
    --------
    The estimate of the log evidence is close to that of the exact GP, which factorises the covariance matrix.

    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(0.0, 6.0, 200)[:, None]
    >>> y = np.sin(X[:, 0])
    >>> parts = {"kernel": agp.RBF(1.0, 1.0), "likelihood": agp.Gaussian(0.01)}
    >>> models = [Model.from_data(X, y, **parts) for Model in (agp.CGGP, agp.GPR)]
    >>> estimate, exact = (float(model.bound(X, y)[0]) for model in models)
    >>> abs(estimate / exact - 1.0) < 0.01
    True
    """

    _: KW_ONLY
    rank: int = RANK
    probes: int = 10
    tolerance: float = 1e-4
    prediction_tolerance: float = 1e-6
    max_iterations: int = 512
    lanczos_steps: int = 100

    inducing: ClassVar[None] = None

    @classmethod
    def from_data(
        cls,
        X: Array,
        y: Array,
        /,
        *,
        rank: int | None = None,
        probes: int = 10,
        tolerance: float = 1e-4,
        prediction_tolerance: float = 1e-6,
        max_iterations: int = 512,
        lanczos_steps: int = 100,
        **parts: Unpack[ExactParts],
    ) -> Self:
        """Build a model that is ready for training.

        Parameters
        ----------
        rank
            The rank of the preconditioner. The default is 15, or N if N is less than 15.
        probes
            The number of random probes in a training step.
        tolerance, prediction_tolerance
            The relative residuals of the solves in training and in prediction.
        max_iterations
            The maximum number of iterations of a solve.
        lanczos_steps
            The maximum number of Lanczos iterations for estimating the log determinant.

        Raises
        ------
        TypeError
            If the likelihood is not Gaussian.
        ValueError
            If the kernel has a `White` part, or if a rank, a count or a tolerance is out of range.
        """
        data = prepare_regression(cls, X, y, parts)
        model = cls(
            **exact_parts(data),
            **held_in_memory(cls, X, y, data),
            rank=min(RANK, X.shape[0]) if rank is None else rank,
            probes=probes,
            tolerance=tolerance,
            prediction_tolerance=prediction_tolerance,
            max_iterations=max_iterations,
            lanczos_steps=lanczos_steps,
        )
        model._check_settings()
        return initialise_model(model, data)

    # -- training ---------------------------------------------------------------------------------------------------

    def _check(self, batch: Batch, /) -> None:
        super()._check(batch)
        self._check_settings()

    def _check_settings(self) -> None:
        """Raise ValueError if a rank, a count or a tolerance is out of range, or if the kernel has white noise."""
        check_whole("rank", self.rank, least=0)
        if self.rank > self.X.shape[0]:
            raise ValueError(f"rank is {self.rank}, but must be at most the number of rows, {self.X.shape[0]}.")
        for name in ("probes", "max_iterations", "lanczos_steps"):
            check_whole(name, getattr(self, name))
        for name in ("tolerance", "prediction_tolerance"):
            check_positive(name, getattr(self, name))
        check_without_white(type(self), self.kernel, self.X)

    def _draws(self, rng: Any, rows: int, /) -> Draws:
        low = {"low": rng.standard_normal((self.rank, self.probes))} if self.rank else {}
        return Draws({}, low | {"full": rng.standard_normal((rows, self.probes))})

    def _objective(self, batch: Batch, /, *, memory: float | None = None) -> tuple[Array, Pullback]:
        draws = batch.draws.whole
        if not draws:
            fixed = self._draws(generator(0, 9), self.X.shape[0]).whole
            draws = {name: asarray_like(x, self.X) for name, x in fixed.items()}
        rows = self._block_rows(memory)
        return estimated_evidence(self, batch, draws.get("low"), draws["full"], block_rows=rows)

    def _block_rows(self, memory: float | None) -> int:
        N = self.X.shape[0]
        floats = N * (self.kernel.floats_per_entry + 2)
        whole = rows_within(memory, floats, self.X) == N  # the whole matrix is stored
        return N if whole else tile_rows(memory, floats, self.X)

    # -- prediction -------------------------------------------------------------------------------------------------

    def _posterior_process(self, *, memory: float | None = None) -> Process:
        rows = self._block_rows(memory)
        if rows == self.X.shape[0]:
            return exact_process(self)
        fits = rows_within(memory, PRECONDITIONER_COPIES * self.X.shape[0], self.X)
        rank = max(self.rank, min(PREDICTION_RANK, fits)) if self.rank else 0
        noise = self._noise_by_row
        return Iterative(
            self.kernel,
            self.mean_function,
            noise,
            self.X,
            targets_of(self._data) - self.mean_function(self.X)[0],
            preconditioning_root(self.kernel, self.X, noise, rank),
            block_rows=rows,
            tolerance=self.prediction_tolerance,
            max_iterations=self.max_iterations,
        )
