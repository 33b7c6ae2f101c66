"""Marginals of processes at blocks of test inputs."""

from collections.abc import Callable
from typing import Any

from agp import tree
from agp.backend import Array, asarray_like, backend_of
from agp.batch import repeat_rows
from agp.checks import check_results
from agp.processes import Process
from agp.random import Draws

SEED = 0
"""Seed for the random draws of sampled processes."""


def with_common_draws(process: Process, X: Array, /) -> Process:
    """Return the process with the random draws for the rows X [n, D], which do not depend on other rows."""
    draws = process.common_draws(SEED, X.shape[0])
    if not draws.by_row:
        return process
    return process.with_draws(Draws(*({name: asarray_like(x, X) for name, x in part.items()} for part in draws)))


def latent_moments(
    predictor: Any, process: Process, factor: Any, X: Array, offset: Array | None = None, /
) -> tuple[Array, Array]:
    """Compute the means and variances [S n, P] of the latent functions at X [n, D], for S samples of the process.

    If X requires gradients, but no leaf of the predictor does, torch or JAX uses the closed-form pullback.
    """
    B, process = backend_of(X), with_common_draws(process, X)
    if not B.asks_gradient(X) or any(B.asks_gradient(x) for x in tree.leaves(predictor).values()):
        mean, variance = process.project(factor, X)[0]
    else:
        mean, variance = _with_pullback(process, factor, X)
    return mean if offset is None else mean + repeat_rows(offset, mean.shape[0] // X.shape[0]), variance


def _with_pullback(process: Process, factor: Any, X: Array) -> tuple[Array, Array]:
    P, B = process.outputs, backend_of(X)

    def closed_form(arrays: dict[str, Array]) -> tuple[Array, Callable]:
        x = arrays["X"]
        moments, pull = process.project(factor, x)

        def cotangents(bar: Array, names: tuple[str, ...]) -> dict[str, Array]:
            X_bar = pull(bar[:, :P], bar[:, P:])[-1]
            return dict.fromkeys(names, B.xp.zeros_like(x) if X_bar is None else X_bar)

        return B.xp.concat(list(moments), axis=1), cotangents

    both = B.with_pullback(closed_form, {"X": X})
    return both[:, :P], both[:, P:]


def refuse_nonfinite(**predicted: Array) -> None:
    """Raise NonFiniteError if a prediction is not finite."""
    remedy = "check the kernel's parameters, use standardised data or float64, or predict closer to the data"
    check_results("the predicted", predicted, remedy)


def split_sets(X: Array) -> list[Array]:
    """Split an array [..., N, .] into its sets [N, .]."""
    flat = backend_of(X).xp.reshape(X, (-1, *X.shape[-2:]))
    return [flat[i, :, :] for i in range(flat.shape[0])]


def concat_rows(parts: list[tuple[Array, ...]]) -> tuple[Array, ...]:
    """Concatenate arrays for consecutive rows."""
    if len(parts) == 1:
        return tuple(parts[0])
    xp = backend_of(parts[0][0]).xp
    return tuple(xp.concat(list(column), axis=0) for column in zip(*parts, strict=True))
