"""Inducing patches for convolutional processes. The inducing variables are values of the patch response."""

import dataclasses
import numbers
from collections.abc import Callable
from typing import Any, Self

from agp import tree
from agp.backend import Array, Pullback, asarray_like, backend_of, like
from agp.checks import check_inputs, usable
from agp.chunking import cached_rows, column_spreads, on_device, row_ranges, tile_rows
from agp.errors import count_of
from agp.inducing._base import FeatureMap
from agp.inducing._equal_patches import merge_equal_patches
from agp.inducing._patch_grid import PatchGrid
from agp.inducing._points import AtInputs, choose_inputs
from agp.kernels import Features, Kernel
from agp.linalg import diagonal
from agp.random import generator
from agp.tree import place_leaves as placed_leaves

IMAGES = 500
"""The number of images whose patches determine starting values."""
FEW_IMAGES = 20
"""The number of images from which the variance of the average over patches is estimated."""


@tree.model
class Patches(AtInputs):
    """A convolutional process: f(x) = 1/Q sum_q w_q g(patch_q(x)), with u = g(Z) for the patch response g ~ GP(0, k).

        Kuu = k(Z, Z),  Kuf[m, n] = 1/Q sum_q w_q k(z_m, patch_q(x_n)),  kff[n] = 1/Q^2 w^T k(patches, patches) w

    An input row is an image of H x W pixels with C channels, and its patches of h x w pixels form a grid (`PatchGrid`).
    With stride 1 and no padding, the number of patches is Q = (H - h + 1) (W - w + 1). The kernel is the covariance of
    g, so its inputs are patches. By default, the variance of the kernel starts at a value such that f and the targets
    have the same variance on average.

    Parameters
    ----------
    image, patch
        The sizes (H, W) and (h, w), in pixels.
    Z
        Inducing patches [M, h w C], or [M, h w] for a single channel. If `located` is true, Z has two additional
        columns for the location. By default, Z is chosen from the patches of the data.
    weights
        The dimensionless weights w [Q], which are trained if you pass them. If you pass a number, all weights start at
        this value. By default, all weights are fixed at 1.
    stride, padding, channels, per_channel
        See `PatchGrid`.
    located
        See `PatchGrid`. If true, the default kernel is ``RBF().on(pixels) * Matern32(1.0).on(place)``. If false, the
        default kernel is ``RBF()``.

    Source: van der Wilk, Rasmussen & Hensman, "Convolutional Gaussian processes", NeurIPS 2017. Source for located
    patches: Dutordoir, van der Wilk, Artemev & Hensman, "Bayesian image classification with deep convolutional Gaussian
    processes", AISTATS 2020.
    """

    image: tuple[int, int]
    patch: tuple[int, int]
    Z: Array = tree.param(default=None, unit="Z_unit")
    weights: Array | None = tree.param(default=None, optional=True)
    Z_unit: Array | None = tree.unit(default=None)
    stride: int = 1
    padding: int = 0
    channels: int = 1
    per_channel: bool = False
    located: bool = False

    def __post_init__(self) -> None:
        self.grid  # noqa: B018 - checks its settings

    @property
    def grid(self) -> PatchGrid:
        """The grid of the patches."""
        settings = self.stride, self.padding, self.channels, self.per_channel, self.located
        return PatchGrid(self.image, self.patch, *settings)

    @property
    def width(self) -> int:
        return self.grid.width

    @property
    def number(self) -> int:
        """The number of patches Q in an image."""
        return self.grid.number

    def usual_kernel(self) -> Kernel:
        """Return an RBF kernel. For located patches, return a kernel of the pixels times one of the location."""
        return self.grid.usual_kernel()

    # -- covariances ------------------------------------------------------------------------------------------------

    def cross(self, kernel: Kernel, X: Array, /) -> tuple[Array, Pullback]:
        value, pull = self._map_images(_responses, self.count, kernel, X)
        return value.mT, lambda bar: pull(bar.mT)

    def diag(self, kernel: Kernel, X: Array, /) -> tuple[Array, Pullback]:
        return self._map_images(_variances, self.number, kernel, X)

    def _map_images(self, f: Callable, others: int, kernel: Kernel, X: Array) -> tuple[Array, Pullback]:
        """Evaluate `f((self, kernel), patches)` for a few images at a time, without keeping their covariances.

        On a device with enough memory, all images are evaluated together and the covariances are kept. `others` is the
        number of covariances per patch. The pullback returns (patches_bar, kernel_bar, X_bar).
        """
        patches, pull_patches = self.grid(X)
        at_once, params = cached_rows(self._covariance_floats(others, kernel), X), (self, kernel)
        if at_once >= X.shape[0] and on_device(X):
            value, pull = f(params, patches)
        else:
            value, pull = backend_of(X).map_rows(f, params, patches, at_once, add=tree.add)

        def pullback(bar):
            params_bar, patches_bar = pull(bar)
            return *params_bar, pull_patches(patches_bar)

        return value, pullback

    def full(self, kernel: Kernel, X: Array, /) -> tuple[Array, Pullback]:
        # evaluate each pair of images once, in blocks [Q, n Q], which are recomputed in the pullback
        xp = backend_of(X).xp
        N, Q = X.shape[0], self.number
        rows, pull_rows = self.grid.rows(X)
        w = self.patch_weights(X) / Q
        alone, pull_alone = self.diag(kernel, X)
        at_once = tile_rows(None, self._covariance_floats(Q, kernel), X)
        later = [[(n + 1 + i, n + 1 + j) for i, j in row_ranges(N - n - 1, at_once)] for n in range(N)]

        def between(n: int, i: int, j: int) -> tuple[Array, Pullback]:
            K, pull = kernel(rows[n * Q : (n + 1) * Q, :], rows[i * Q : j * Q, :])
            return xp.reshape(K, (Q, j - i, Q)), pull

        def row(n: int) -> Array:
            zeros = xp.zeros((n + 1,), **like(X))
            return xp.concat([zeros, *(w @ (between(n, i, j)[0] @ w) for i, j in later[n])], axis=0)

        def pullback(bar):
            both = bar + bar.mT
            own, kernel_bar, X_bar = pull_alone(diagonal(bar))
            w_bar, bars = xp.zeros_like(w), [xp.zeros_like(rows[:Q, :])] * N
            for n in range(N):
                for i, j in later[n]:
                    K, pull = between(n, i, j)
                    b = both[n, i:j]
                    one_bar, first_bar, others_bar = pull(xp.reshape(w[:, None, None] * (b[:, None] * w), (Q, -1)))
                    kernel_bar = tree.add(kernel_bar, one_bar)
                    w_bar = w_bar + xp.tensordot(K, b[:, None] * w, axes=2)
                    w_bar = w_bar + b @ xp.tensordot(w, K, axes=1)
                    bars[n] = bars[n] + first_bar
                    for m in range(i, j):
                        bars[m] = bars[m] + others_bar[(m - i) * Q : (m - i + 1) * Q, :]
            own = tree.add(own, tree.cotangent(self, **self._weights_bar(w_bar / Q)))
            return own, kernel_bar, tree.add(X_bar, pull_rows(xp.concat(bars, axis=0)))

        upper = xp.stack([row(n) for n in range(N)])
        return upper + upper.mT + alone[:, None] * xp.eye(N, **like(X)), pullback

    def random_features(self, kernel: Kernel, rng: Any, count: int, /) -> tuple[FeatureMap, Array]:
        features = kernel.random_features(rng, count, self.grid.columns)
        return ResponseFeatures(self, features), features(self.Z)[0]

    def floats_per_row(self, kernel: Kernel, /) -> int:
        row = 2 * self.count + 3 * self.number * self.grid.columns
        # a CPU holds the covariances of a few images at a time (`_map_images`); a device keeps all of them
        return row + self._covariance_floats(self.count + self.number, kernel) if on_device(self.Z) else row

    def _covariance_floats(self, others: int, kernel: Kernel) -> int:
        """Return the number of floats per image for the covariances, with `others` covariances per patch."""
        return self.number * others * (kernel.floats_per_entry + 1)

    # -- patches ----------------------------------------------------------------------------------------------------

    def patch_weights(self, X: Array, /) -> Array:
        """Return w [Q], with the library, dtype and device of X."""
        return backend_of(X).xp.ones((self.number,), **like(X)) if self.weights is None else self.weights

    def _weights_bar(self, bar: Array) -> dict[str, Array]:
        return {} if self.weights is None else {"weights": bar}

    # -- checks and starts ------------------------------------------------------------------------------------------

    def check(self, kernel: Kernel, /) -> None:
        grid = self.grid
        grid.check()
        if self.Z is not None and self.Z.shape[1] != grid.columns:
            raise ValueError(
                f"Z has {count_of(self.Z.shape[1], 'column')}, but {grid.describe()} need "
                f"{count_of(grid.columns, 'column')}; pass Z with "
                f"{count_of(grid.columns, 'column')}."
            )
        if self.weights is not None and tuple(self.weights.shape) != (self.number,):
            raise ValueError(
                f"weights has shape {tuple(self.weights.shape)}, but the images have {self.number} patches; pass one "
                "weight for each patch."
            )
        kernel.check(grid.columns)

    def initialise(
        self, X: Array, kernel: Kernel, variance: float, /, *, num_inducing: int | None, how: Any, seed: int
    ) -> tuple[Self, Kernel]:
        check_inputs("X", X)
        self.grid.check_images(X)
        some = some_rows(X, IMAGES, seed)
        rows, _ = self.grid.rows(some)
        weights: Any = self.weights
        if isinstance(weights, numbers.Real):
            weights = [float(weights)] * self.number
        place = placed_leaves(dataclasses.replace(self, weights=weights, Z_unit=column_spreads(rows)), X)
        plain = usable(kernel.from_data(rows, variance), X)
        place.check(plain)
        few = some[: min(FEW_IMAGES, some.shape[0]), :]
        share = float(backend_of(few).xp.mean(place.diag(plain, few)[0])) / variance  # of f, relative to g
        kernel = usable(kernel.from_data(rows, variance / (share if share > 0.0 else 1.0)), X)
        Z = choose_inputs(rows, self.Z, kernel, num_inducing, how=how, seed=seed)
        found = usable(dataclasses.replace(place, Z=Z), X)
        found.check(kernel)
        return found, kernel


def _responses(params: tuple[Patches, Kernel], patches: Array) -> tuple[Array, Pullback]:
    """Return 1/Q sum_q w_q k(patch_q(x_n), z_m) [N, M] for patches [N, Q, .].

    The pullback is ``bar -> ((inducing_bar, kernel_bar), patches_bar)``.
    """
    place, kernel = params
    Q = place.number
    rows, w, pull_rows = merge_equal_patches(patches, place.patch_weights(patches) / Q)
    sums, pull = kernel.grouped_sums(place.Z, rows, w)

    def pullback(bar):
        kernel_bar, Z_bar, rows_bar, w_bar = pull(bar)
        patches_bar, w_bar = pull_rows(rows_bar, w_bar)
        return (tree.cotangent(place, Z=Z_bar, **place._weights_bar(w_bar / Q)), kernel_bar), patches_bar

    return sums, pullback


def _variances(params: tuple[Patches, Kernel], patches: Array) -> tuple[Array, Pullback]:
    """Return 1/Q^2 w^T k(patches, patches) w [N] for patches [N, Q, .].

    The pullback is ``bar -> ((inducing_bar, kernel_bar), patches_bar)``.
    """
    place, kernel = params
    Q = place.number
    rows, w, pull_rows = merge_equal_patches(patches, place.patch_weights(patches) / Q, kernel)
    forms, pull = kernel.quadratic_forms(rows, w)

    def pullback(bar):
        kernel_bar, rows_bar, w_bar = pull(bar)
        patches_bar, w_bar = pull_rows(rows_bar, w_bar)
        return (tree.cotangent(place, **place._weights_bar(w_bar / Q)), kernel_bar), patches_bar

    return forms, pullback


@tree.model
class ResponseFeatures:
    """The weighted averages of a kernel's features over the patches of images."""

    patches: Patches
    features: Features

    def __call__(self, X: Array, /) -> tuple[Array, Pullback]:
        xp = backend_of(X).xp
        N, Q = X.shape[0], self.patches.number
        rows, pull_rows = self.patches.grid.rows(X)
        phi, pull = self.features(rows)
        w = self.patches.patch_weights(X)[:, None] / Q

        def pullback(bar):
            rows_bar = pull(xp.reshape(bar[:, None, :] * w, phi.shape))
            return None if rows_bar is None else pull_rows(rows_bar)

        return xp.sum(xp.reshape(phi, (N, Q, -1)) * w, axis=1), pullback


def some_rows(X: Array, most: int, seed: int) -> Array:
    """Choose at most `most` rows of X [N, D] at random, with random numbers drawn on the host."""
    order = generator(seed, 7).permutation(X.shape[0])[:most]
    return backend_of(X).rows_at(X, asarray_like(order, X))
