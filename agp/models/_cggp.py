"""Exact GP regression by conjugate gradients."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import Any, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of, like, placed
from agp.batch import Batch
from agp.bounds import estimated_evidence, preconditioning_root
from agp.checks import check_whole
from agp.chunking import rows_within, tile_rows
from agp.kernels import Kernel
from agp.likelihoods import Gaussian, Likelihood
from agp.means import Mean, ZeroMean
from agp.models._base import WithoutInducing
from agp.models._regression import Regression, check_without_white, exact_parts
from agp.models._start import started_model
from agp.predictors import Conditional, ExactConditional, IterativeConditional
from agp.priors import Prior, Priors, as_priors
from agp.random import Draws, generator

__all__ = ["CGGP"]

TIGHT, TIGHT_ITERATIONS = 1e-13, 2000
"""Relative residual and iterations of solves that are compared between backends: conjugate gradients magnify rounding,
but not beyond their tolerance."""
RANK = 15
"""The rank of the preconditioner, by default."""
PREDICTION_RANK = 256
"""The rank for predictions, whose many right-hand sides repay its cost."""
PRECONDITIONER_COPIES = 16
"""Numbers for each row and unit of rank while a preconditioner is computed."""


@tree.model
class CGGP(Regression, WithoutInducing):
    """Exact GP regression with Gaussian noise by preconditioned conjugate gradients: O(N^2) an iteration, O(N) memory.

    The model is that of `GPR`. No N x N matrix is held unless it fits into the memory budget: each iteration evaluates
    the rows of K anew. Training follows an estimate of the gradient of the log evidence from random probes, unbiased up
    to the tolerance of the solves; the value is estimated by Lanczos quadrature. The probes depend on the seed and the
    step. `bound` itself uses one fixed set of probes: an estimate with a constant error, the same on every backend, not
    a bound.

    If K fits, predictions are those of `GPR`, by its Cholesky factor, which is cheaper unless there are few test
    inputs. Otherwise they solve for the mean once, and for the variances by one system for each test input, with a
    preconditioner of rank 256 if the memory allows. Inexact solves increase variances by about the relative residual.

    Parameters
    ----------
    kernel, likelihood
        The prior covariance of f, and `Gaussian` noise. White noise belongs into the likelihood.
    X, y
        The data [N, D] and [N, P], for predictions.
    mean_function, priors
        As `SVGP`.
    rank
        Of the preconditioner, a partial pivoted Cholesky factorisation; 0 for none. Predictions may use a higher one.
    probes
        The number of random vectors of a step.
    tolerance
        Relative residual of the solves in training.
    prediction_tolerance
        Relative residual of the solves in prediction.
    max_iterations
        The most iterations of a solve; needing more is reported as a repair.
    lanczos_steps
        The most iterations in the quadrature of the log determinant.

    Source: Gardner, Pleiss, Bindel, Weinberger & Wilson, "GPyTorch: blackbox matrix-matrix Gaussian process inference
    with GPU acceleration", NeurIPS 2018.
    """

    kernel: Kernel
    likelihood: Gaussian  # type: ignore[assignment]
    _: KW_ONLY
    X: Array = tree.constant()
    y: Array = tree.constant()
    mean_function: Mean = ZeroMean()
    priors: Priors = ()
    rank: int = RANK
    probes: int = 10
    tolerance: float = 1e-4
    prediction_tolerance: float = 1e-6
    max_iterations: int = 512
    lanczos_steps: int = 100

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
        rank: int | None = None,
        probes: int = 10,
        tolerance: float = 1e-4,
        prediction_tolerance: float = 1e-6,
        max_iterations: int = 512,
        lanczos_steps: int = 100,
    ) -> Self:
        """A model ready to be trained.

        Parameters
        ----------
        X, y
            Inputs [N, D] and targets [N] or [N, P].
        kernel, likelihood, mean_function, priors
            As for `SVGP.from_data`.
        rank
            By default 15, or N if that is less.
        probes, tolerance, prediction_tolerance, max_iterations, lanczos_steps
            As for the model.

        Raises
        ------
        TypeError, ValueError
            As `SVGP.from_data`; if the likelihood is not Gaussian; if a rank, a count or a tolerance is out of range;
            if the kernel has a `White` part.
        """
        model = cls(
            **exact_parts(cls, X, y, kernel, likelihood, mean_function),
            priors=as_priors(priors),
            rank=min(RANK, X.shape[0]) if rank is None else rank,
            probes=probes,
            tolerance=tolerance,
            prediction_tolerance=prediction_tolerance,
            max_iterations=max_iterations,
            lanczos_steps=lanczos_steps,
        )
        model._check_settings()
        return started_model(model)

    # -- training ---------------------------------------------------------------------------------------------------

    def _check(self, X: Array, y: Array, /) -> None:
        super()._check(X, y)
        self._check_settings()

    def _check_settings(self) -> None:
        """ValueError for a rank, a count or a tolerance out of range, or a kernel with white noise."""
        check_whole("rank", self.rank, least=0)
        if self.rank > self.X.shape[0]:
            msg = f"rank is {self.rank}, but there are {self.X.shape[0]} data; use at most as many."
            raise ValueError(msg)
        for name in ("probes", "max_iterations", "lanczos_steps"):
            check_whole(name, getattr(self, name))
        for name in ("tolerance", "prediction_tolerance"):
            value = getattr(self, name)
            if not (isinstance(value, (int, float)) and 0.0 < value < math.inf):
                msg = f"{name} is {value!r}, but must be a finite number above 0, such as 1e-4."
                raise ValueError(msg)
        check_without_white(type(self), self.kernel, self.X)

    def _draws(self, rng: Any, rows: int, /) -> Draws:
        low = {"low": rng.standard_normal((self.rank, self.probes))} if self.rank else {}
        return Draws({}, low | {"full": rng.standard_normal((rows, self.probes))})

    def _objective(self, batch: Batch, /, *, memory: float | None = None) -> tuple[Array, Pullback]:
        draws = batch.draws.whole or self._fixed_draws()
        rows = self._block_rows(memory)
        return estimated_evidence(self, batch.X, batch.y, draws.get("low"), draws["full"], block_rows=rows)

    def _inverted_matrices(self) -> tuple[Array, ...]:
        """A diagonal matrix with bounds on the eigenvalues of K + sigma^2 I: the trace of K bounds those of K."""
        xp, noise = backend_of(self.X).xp, self.likelihood.noise_variance
        extremes = xp.stack([xp.sum(self.kernel.diag(self.X)[0]) + noise, noise])
        return (extremes * xp.eye(2, **like(extremes)),)

    def _tightened(self) -> Self:
        return dataclasses.replace(self, tolerance=TIGHT, max_iterations=TIGHT_ITERATIONS)

    def _fixed_draws(self) -> dict[str, Array]:
        noise = self._draws(generator(0, 9), self.X.shape[0]).whole
        return {name: placed(x, self.X) for name, x in noise.items()}

    def _block_rows(self, memory: float | None) -> int:
        N = self.X.shape[0]
        floats = N * (self.kernel.floats_per_entry + 2)
        whole = rows_within(memory, floats, self.X) == N  # the matrix is kept
        return N if whole else tile_rows(memory, floats, self.X)

    # -- prediction -------------------------------------------------------------------------------------------------

    def _conditional(self, *, memory: float | None = None) -> Conditional:
        rows, noise = self._block_rows(memory), self.likelihood.noise_variance
        if rows == self.X.shape[0]:
            return ExactConditional.of(self, self.y)
        residual = self.y - self.mean_function(self.X)[0]
        found = IterativeConditional(
            self.kernel,
            self.mean_function,
            noise,
            self.X,
            residual,
            preconditioning_root(self.kernel, self.X, self._prediction_rank(memory)),
            block_rows=rows,
            tolerance=self.prediction_tolerance,
            max_iterations=self.max_iterations,
        )
        return tree.with_leaves(found, {"weights": found.solve(residual)})

    def _prediction_rank(self, memory: float | None) -> int:
        """The rank of the preconditioner for predictions."""
        fits = rows_within(memory, PRECONDITIONER_COPIES * self.X.shape[0], self.X)
        return max(self.rank, min(PREDICTION_RANK, fits)) if self.rank else 0
