"""Estimates of the log evidence of an exact GP, from products of the covariance matrix with random probes."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from agp import tree
from agp.backend import Array, Pullback, backend_of, row_blocks, wide
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

LOG_2PI = math.log(2.0 * math.pi)


class CovarianceSystem(NamedTuple):
    """The matrix K + sigma^2 I of a model at fixed values: products and preconditioner, in float64."""

    product: Callable[[Array], Array]
    """V [N, k] -> (K + sigma^2 I) V."""
    preconditioner: Preconditioner
    max_iterations: int
    coefficients: int

    @classmethod
    def of(cls, model: Any, X: Array, block_rows: int, /, *, rank: int | None = None) -> "CovarianceSystem":
        """From a model with the fields kernel, likelihood, rank, max_iterations and lanczos_steps, and X [N, D].

        `rank`, at most N, replaces the model's rank of the preconditioner.
        """
        kernel, X = _constants(model.kernel), backend_of(X).stop_gradient(X)
        root = preconditioning_root(kernel, X, model.rank if rank is None else rank)
        limits = {"max_iterations": model.max_iterations, "coefficients": model.lanczos_steps}
        return cls.at(kernel, model.likelihood.noise_variance, X, block_rows, root, **limits)

    @classmethod
    def at(
        cls,
        kernel: Kernel,
        noise_variance: Array,
        X: Array,
        block_rows: int,
        root: Array | None,
        /,
        *,
        max_iterations: int,
        coefficients: int = 0,
    ) -> "CovarianceSystem":
        """From a kernel and a noise variance at X [N, D], with the `preconditioning_root` of a preconditioner."""
        B = backend_of(X)
        kernel, X, noise = _constants(kernel), B.stop_gradient(X), B.stop_gradient(wide(noise_variance))
        known = kernel(X)[0] if block_rows >= X.shape[0] else None  # a single tile is kept

        if known is not None and known.dtype == noise.dtype:
            matrix = add_diagonal(known, noise)
            return cls(lambda V: matrix @ V, preconditioner(root, noise, X.shape[0]), max_iterations, coefficients)

        def product(V: Array) -> Array:
            narrow = B.xp.astype(V, X.dtype, copy=False)
            KV = _product_by_tiles(kernel, X, narrow, block_rows) if known is None else known @ narrow
            return B.add_product(wide(KV), noise, V)

        return cls(product, preconditioner(root, noise, X.shape[0]), max_iterations, coefficients)

    def solve(self, rhs: Array, tolerance: float, /, *, coefficients: bool = False) -> Solution:
        """The solutions for right-hand sides [N, k]; columns that did not converge are reported."""
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
    """The kernel without gradients."""
    return tree.with_leaves(kernel, {k: backend_of(x).stop_gradient(x) for k, x in tree.leaves(kernel).items()})


def preconditioning_root(kernel: Kernel, X: Array, rank: int, /) -> Array | None:
    """U [N, rank] in float64 with U U^T ~ K at X [N, D], by partial pivoted Cholesky factorisation; None of rank 0."""
    B = backend_of(X)
    if not rank:
        return None
    eps = float(B.xp.finfo(X.dtype).eps)

    def column(i: Array) -> Array:
        return kernel(X, B.rows_at(X, i))[0]

    return pivoted_cholesky(column, wide(kernel.diag(X)[0]), rank, precision=eps).U


def _product_by_tiles(kernel: Any, X: Array, V: Array, rows: int) -> Array:
    """K V [N, k] as the sum over blocks b of K[:, b] V[b, :]."""
    B = backend_of(X)

    def term(X_all: Array, block: tuple[Array, Array]) -> tuple[Array, Pullback]:
        X_block, V_block = block
        return kernel(X_all, X_block)[0] @ V_block, lambda _: None

    if not B.is_concrete(V):
        return B.fold(term, X, (X, V), rows, add=tree.add)[0]
    # square tiles, since sums over tiles of all rows would be read and written N / rows times, which grows as N^3
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
        f"systems above the relative residual {tolerance:.3g} (worst {{2:.3g}}), and their last iterates are used. "
        "Give a higher rank, more noise, or more max_iterations.",
        solution.iterations,
        xp.count_nonzero(solution.residual > tolerance),
        worst,
        count=(worst > tolerance) & (worst < math.inf),  # infinite numbers show in the result
    )


# -- the evidence -----------------------------------------------------------------------------------------------------


def estimated_evidence(
    model: Any, X: Array, y: Array, low: Array | None, full: Array, /, *, block_rows: int
) -> tuple[Array, Pullback]:
    """An estimate of log N(y; h(X), K + sigma^2 I) summed over the outputs, 0-d, with an unbiased gradient.

    With A = K + sigma^2 I, its preconditioner P, probes z_i ~ N(0, P) and alpha = A^-1 (y - h),

        value     -1/2 [ sum_p alpha_p^T (y - h)_p + P_out (log|P| + N/t sum_i e_0^T log(T_i) e_0) + N P_out log 2 pi ]
        gradient   1/2 [ sum_p alpha_p^T dA alpha_p - P_out/t sum_i (A^-1 z_i)^T dA (P^-1 z_i) ] + sum alpha dh

    where E z z^T = P makes the mean of the second term tr(A^-1 dA). The gradient is an independent estimate, not the
    derivative of the value for one draw. Automatic differentiation uses a surrogate, which has this derivative and adds
    zero to the value.

    Parameters
    ----------
    model
        With the fields kernel, mean_function, likelihood (Gaussian), rank, tolerance, max_iterations, lanczos_steps.
    X, y
        All inputs [N, D] and targets [N, P_out].
    low, full
        Standard normal noise [rank, t] (None at rank 0) and [N, t] of t probes.
    block_rows
        The number of rows of K in a tile; N keeps K.

    Returns
    -------
    estimate
    pullback
        ``bar=1.0 -> (model_bar, None)``.

    Source: Gardner, Pleiss, Bindel, Weinberger & Wilson, "GPyTorch: blackbox matrix-matrix Gaussian process inference
    with GPU acceleration", NeurIPS 2018; Wang et al., "Exact Gaussian processes on a million data points", NeurIPS
    2019.
    """
    B = backend_of(X)
    xp = B.xp
    N, outputs = y.shape
    h, pull_mean = model.mean_function(X)
    residual = wide(y - B.stop_gradient(h))
    system = CovarianceSystem.of(model, X, block_rows)
    P = system.preconditioner
    probes = P.sample(None if low is None else wide(low), wide(full))
    found = system.solve(xp.concat([residual, probes], axis=1), model.tolerance, coefficients=True)
    alpha, solved = found.x[:, :outputs], found.x[:, outputs:]
    # if the host knows the number of iterations, the coefficients of the others are skipped
    there = min(model.lanczos_steps, max(1, int(found.iterations))) if B.is_concrete(found.iterations) else None
    logs = log_quadrature(found.steps[:there, outputs:], found.ratios[:there, outputs:])
    log_det = P.log_det + N * xp.mean(logs)
    value = -0.5 * (xp.sum(alpha * residual) + outputs * (log_det + N * LOG_2PI))
    # A_bar = left right^T
    share = -0.5 * outputs / full.shape[1]
    left = xp.concat([alpha, solved], axis=1)
    right = xp.concat([0.5 * alpha, share * P.solve(probes)], axis=1)
    kernel_form, pull_kernel = _kernel_form(model.kernel, X, left, right, block_rows)
    trace = xp.sum(left * right)

    def pullback(bar=1.0):
        bar = bar * xp.ones_like(value)
        narrow = xp.astype(bar, X.dtype)
        likelihood_bar = tree.cotangent(model.likelihood, noise_variance=xp.astype(bar * trace, X.dtype))
        mean_bar = pull_mean(narrow * xp.astype(alpha, X.dtype))[0]
        bars = {"kernel": pull_kernel(narrow), "likelihood": likelihood_bar, "mean_function": mean_bar}
        return tree.cotangent(model, **bars), None

    if "autodiff" in B.gradients:
        form = kernel_form() + xp.sum(xp.astype(alpha, X.dtype) * h)
        surrogate = wide(form) + trace * wide(model.likelihood.noise_variance)
        value = B.stop_gradient(value) + (surrogate - B.stop_gradient(surrogate))
    return xp.astype(value, X.dtype), pullback


def _kernel_form(
    kernel: Any, X: Array, left: Array, right: Array, rows: int
) -> tuple[Callable[[], Array], Callable[[Array], Any]]:
    """A function that returns sum left * (K right), 0-d, and ``bar -> kernel_bar``: by tiles, for constants [N, k]."""
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
        total = None
        for block in row_blocks((X, left), rows):  # without the value
            total = tree.add(total, tile(kernel, block)[1](bar))
        return total

    return lambda: B.fold(tile, kernel, (X, left), rows, add=tree.add)[0], pullback
