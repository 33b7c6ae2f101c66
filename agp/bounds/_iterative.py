"""Stochastic estimates of an exact GP's log evidence, from random probes of its covariance matrix."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from agp import tree
from agp.backend import Array, Pullback, as_widest_float, backend_of, row_blocks
from agp.bounds._batch import Batch
from agp.bounds._evidence import targets_of
from agp.bounds._row_noise import LOG_2PI, RowNoise, cotangent_with_noise
from agp.kernels import Kernel
from agp.linalg import (
    Preconditioner,
    Solution,
    add_diagonal,
    conjugate_gradients,
    log_quadrature,
    pivoted_cholesky,
    preconditioner,
)
from agp.repairs import report


class CovarianceSystem(NamedTuple):
    """Linear systems with the matrix K + V, solved by preconditioned conjugate gradients in float64.

    V is the diagonal matrix of the noise variances of the rows, and b is the smallest of them. With R = (b / V)^1/2,
    the systems that are solved have the matrix R K R + b I = R (K + V) R. If all rows have the same noise, R = I.
    """

    product: Callable[[Array], Array]
    """A function that maps Z [N, k] to (R K R + b I) Z."""
    preconditioner: Preconditioner
    """The preconditioner of R K R + b I."""
    scale: Array | None
    """The diagonal of R [N, 1], or None if it is 1."""
    max_iterations: int
    coefficients: int

    @classmethod
    def of(cls, model: Any, X: Array, noise: Array, block_rows: int, /) -> "CovarianceSystem":
        """Create the system of a model at inputs X [N, D] with noise variances (0-d or [N]); `model.rank` <= N."""
        kernel, X = _constants(model.kernel), backend_of(X).stop_gradient(X)
        root = preconditioning_root(kernel, X, noise, model.rank)
        limits = {"max_iterations": model.max_iterations, "coefficients": model.lanczos_steps}
        return cls.at(kernel, noise, X, block_rows, root, **limits)

    @classmethod
    def at(
        cls,
        kernel: Kernel,
        noise: Array,
        X: Array,
        block_rows: int,
        root: Array | None,
        /,
        *,
        max_iterations: int,
        coefficients: int = 0,
    ) -> "CovarianceSystem":
        """Create the system at inputs X [N, D]; `root` is the result of `preconditioning_root`."""
        B = backend_of(X)
        kernel, X, noise = _constants(kernel), B.stop_gradient(X), B.stop_gradient(as_widest_float(noise))
        b, scale = _least_and_scale(noise)
        known = kernel(X)[0] if block_rows >= X.shape[0] else None  # keep K if it is a single tile
        limits = scale, max_iterations, coefficients
        if known is not None and known.dtype == noise.dtype:
            matrix = add_diagonal(known if scale is None else scale * known * scale.mT, b)
            return cls(lambda Z: matrix @ Z, preconditioner(root, b, X.shape[0]), *limits)

        def product(Z: Array) -> Array:
            narrow = B.xp.astype(Z if scale is None else scale * Z, X.dtype, copy=False)
            KZ = as_widest_float(_product_by_tiles(kernel, X, narrow, block_rows) if known is None else known @ narrow)
            return B.add_product(KZ if scale is None else scale * KZ, b, Z)

        return cls(product, preconditioner(root, b, X.shape[0]), *limits)

    def scale_rows(self, x: Array, /) -> Array:
        """Return R x for x [N, k]."""
        return x if self.scale is None else self.scale * x

    def solve_covariance(self, rhs: Array, tolerance: float, /) -> Array:
        """Solve (K + V) x = rhs for right-hand sides [N, k] in float64."""
        return self.scale_rows(self.solve(self.scale_rows(rhs), tolerance).x)

    def solve(self, rhs: Array, tolerance: float, /, *, coefficients: bool = False) -> Solution:
        """Solve with the matrix R K R + b I for right-hand sides [N, k], and report columns that did not converge."""
        solution = conjugate_gradients(
            self.product,
            rhs,
            solve=self.preconditioner.solve,
            tolerance=tolerance,
            max_iterations=self.max_iterations,
            coefficients=self.coefficients if coefficients else 0,
        )
        _report(solution, tolerance)
        return solution


def _constants(kernel: Kernel) -> Kernel:
    """The kernel with its parameters as constants for automatic differentiation."""
    return tree.with_leaves(kernel, {k: backend_of(x).stop_gradient(x) for k, x in tree.leaves(kernel).items()})


def _least_and_scale(noise: Array) -> tuple[Array, Array | None]:
    """The smallest noise variance b (0-d), and (b / noise)^1/2 [N, 1], or None if all rows have the same noise."""
    if not noise.ndim:
        return noise, None
    xp = backend_of(noise).xp
    least = xp.min(noise)
    return least, xp.sqrt(least / noise)[:, None]


def preconditioning_root(kernel: Kernel, X: Array, noise: Array, rank: int, /) -> Array | None:
    """Factor U [N, rank] with U U^T ~ R K R at X [N, D] in float64, by pivoted Cholesky; None if the rank is 0.

    R is that of `CovarianceSystem` for the noise variances (0-d or [N]).
    """
    B = backend_of(X)
    if not rank:
        return None
    eps = float(B.xp.finfo(X.dtype).eps)
    _, scale = _least_and_scale(as_widest_float(noise))
    diagonal = as_widest_float(kernel.diag(X)[0])

    def column(i: Array) -> Array:
        K = kernel(X, B.rows_at(X, i))[0]
        return K if scale is None else scale * K * B.rows_at(scale, i).mT

    return pivoted_cholesky(column, diagonal if scale is None else scale[:, 0] ** 2 * diagonal, rank, precision=eps).U


def _product_by_tiles(kernel: Any, X: Array, V: Array, rows: int) -> Array:
    """The product K V [N, k], computed as the sum of K[:, b] V[b, :] over blocks b."""
    B = backend_of(X)

    def term(X_all: Array, block: tuple[Array, Array]) -> tuple[Array, Pullback]:
        X_block, V_block = block
        return kernel(X_all, X_block)[0] @ V_block, lambda _: None

    if not B.is_concrete(V):
        return B.fold(term, X, (X, V), rows, add=tree.add)[0]
    # Square tiles: with tiles of all N rows, each of the N / rows blocks would read and write the whole sum, which
    # costs O(N^3).
    side = max(rows, math.isqrt(rows * X.shape[0]))
    pieces = []
    for (X_rows,) in row_blocks((X,), side):
        piece = None
        for block in row_blocks((X, V), side):
            piece = tree.add(piece, term(X_rows, block)[0])
        pieces.append(piece)
    return B.xp.concat(pieces, axis=0)


def _report(solution: Solution, tolerance: float) -> None:
    xp = backend_of(solution.residual).xp
    worst = xp.max(solution.residual)
    report(
        f"conjugate gradients stopped after {{0:.0f}} iterations with {{1:.0f}} of {solution.residual.shape[0]} "
        f"systems above the relative residual {tolerance:.3g} (worst {{2:.3g}}), and their last iterates are used; "
        "increase rank, max_iterations or the noise variance.",
        solution.iterations,
        xp.count_nonzero(solution.residual > tolerance),
        worst,
        count=(worst > tolerance) & (worst < math.inf),  # infinite values are visible in the result
    )


# -- the evidence -----------------------------------------------------------------------------------------------------


def estimated_evidence(
    model: Any, batch: Batch, low: Array | None, full: Array, /, *, block_rows: int
) -> tuple[Array, Pullback]:
    """Stochastic estimate of an exact GP's log evidence, summed over the outputs, with an unbiased gradient.

    The log evidence is log N(y; h(X), A) with A = K + sigma^2 I. Weights and known noise variances of rows replace
    sigma^2 I as in `log_evidence`; rows and columns are then scaled as in `CovarianceSystem`. With the preconditioner P
    of A, probes z_i ~ N(0, P) and alpha = A^-1 (y - h), the estimates are

        value     -1/2 [ sum_p alpha_p^T (y - h)_p + P_out (log|P| + N/t sum_i e_0^T log(T_i) e_0) + N P_out log 2 pi ]
        gradient   1/2 [ sum_p alpha_p^T dA alpha_p - P_out/t sum_i (A^-1 z_i)^T dA (P^-1 z_i) ] + sum alpha dh

    Since E[z z^T] = P, the mean of (A^-1 z)^T dA (P^-1 z) is tr(A^-1 dA). The gradient is a separate estimate,
    not the derivative of the estimated value. For automatic differentiation, the value therefore includes a surrogate
    term whose value is zero and whose derivative is the estimated gradient.

    Parameters
    ----------
    model
        A model with the fields `kernel`, `mean_function`, `likelihood` (Gaussian), `rank`, `tolerance`,
        `max_iterations` and `lanczos_steps`.
    batch
        All rows.
    low, full
        Standard normal numbers for t probes, with shapes [rank, t] and [N, t]. If the rank is 0, `low` is None.
    block_rows
        Number of rows of K per tile. With N rows per tile, the whole matrix K is stored.

    Returns
    -------
    estimate
        A 0-d array.
    pullback
        A function ``bar=1.0 -> (model_bar, None)``.

    Source: Gardner, Pleiss, Bindel, Weinberger & Wilson, "GPyTorch: blackbox matrix-matrix Gaussian process inference
    with GPU acceleration", NeurIPS 2018; Wang et al., "Exact Gaussian processes on a million data points", NeurIPS
    2019.
    """
    X, y = batch.X, targets_of(batch)
    B = backend_of(X)
    xp = B.xp
    N, outputs = y.shape
    noise = RowNoise.of(B.stop_gradient(model.likelihood.noise_variance), batch).widen()
    h, pull_mean = model.mean_function(X)
    system = CovarianceSystem.of(model, X, noise.by_row, block_rows)
    residual = system.scale_rows(as_widest_float(y - B.stop_gradient(h)))
    P = system.preconditioner
    probes = P.sample(None if low is None else as_widest_float(low), as_widest_float(full))
    found = system.solve(xp.concat([residual, probes], axis=1), model.tolerance, coefficients=True)
    alpha, solved = found.x[:, :outputs], found.x[:, outputs:]
    # if the host can read the number of iterations, skip the unused coefficients
    there = min(model.lanczos_steps, max(1, int(found.iterations))) if B.is_concrete(found.iterations) else None
    logs = log_quadrature(found.steps[:there, outputs:], found.ratios[:there, outputs:])
    log_det = P.log_det + N * xp.mean(logs)
    if system.scale is not None:
        log_det = log_det - 2.0 * xp.sum(xp.log(system.scale))
    corrections, pull_corrections = noise.correction(outputs)
    value = -0.5 * (xp.sum(alpha * residual) + outputs * (log_det + N * LOG_2PI))
    value = tree.add(value, corrections)
    # the cotangent of A is left right^T
    share = -0.5 * outputs / full.shape[1]
    alpha = system.scale_rows(alpha)
    left = xp.concat([alpha, system.scale_rows(solved)], axis=1)
    right = xp.concat([0.5 * alpha, share * system.scale_rows(P.solve(probes))], axis=1)
    kernel_form, pull_kernel = _kernel_form(model.kernel, X, left, right, block_rows)
    trace = tree.add(noise.pull(xp.sum(left * right, axis=1)), pull_corrections(1.0))

    def pullback(bar=1.0):
        bar = bar * xp.ones_like(value)
        narrow = xp.astype(bar, X.dtype)
        mean_bar = pull_mean(narrow * xp.astype(alpha, X.dtype))[0]
        bars = {"kernel": pull_kernel(narrow), "mean_function": mean_bar}
        return cotangent_with_noise(model, xp.astype(bar * trace, X.dtype), **bars), None

    if "autodiff" in B.gradients:
        form = kernel_form() + xp.sum(xp.astype(alpha, X.dtype) * h)
        surrogate = as_widest_float(form) + trace * as_widest_float(model.likelihood.noise_variance)
        value = B.stop_gradient(value) + (surrogate - B.stop_gradient(surrogate))
    return xp.astype(value, X.dtype), pullback


def _kernel_form(
    kernel: Any, X: Array, left: Array, right: Array, rows: int
) -> tuple[Callable[[], Array], Callable[[Array], Any]]:
    """The sum of the entries of left * (K right), tile by tile, for constant `left` and `right` [N, k].

    Returns a function that computes the sum, and a pullback ``bar -> kernel_bar``.
    """
    B = backend_of(X)
    xp = B.xp
    left, right = xp.astype(left, X.dtype, copy=False), xp.astype(right, X.dtype, copy=False)

    def tile(kernel: Any, block: tuple[Array, Array]) -> tuple[Array, Pullback]:
        X_block, left_block = block
        K, pull = kernel(X_block, X)
        return xp.sum(left_block * (K @ right)), lambda bar: pull(bar * (left_block @ right.mT))[0]

    def pullback(bar: Array) -> Any:
        if not B.is_concrete(left):
            return B.fold(tile, kernel, (X, left), rows, add=tree.add)[1](bar)
        return B.fold_cotangent(tile, kernel, (X, left), rows, bar, add=tree.add)  # without the value

    return lambda: B.fold(tile, kernel, (X, left), rows, add=tree.add)[0], pullback
