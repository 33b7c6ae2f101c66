"""Inducing patches: values of the response to small images, for convolutional processes on large ones."""

from typing import Any, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.checks import check_inputs
from agp.host import generator
from agp.inducing._base import AtInputs, FeatureMap
from agp.inducing._points import chosen_rows
from agp.kernels import Features, Kernel
from agp.leaves import usable
from agp.units import column_spreads

__all__ = ["Patches"]

IMAGES = 500
"""Images from which patches are taken where inducing patches and lengthscales start."""


@tree.model
class Patches(AtInputs):
    """A convolutional process: f(x) = 1/Q sum_q w_q g(patch_q(x)), with u = g(Z) for the patch response g ~ GP(0, k).

        Kuu = k(Z, Z),  Kuf[m, n] = 1/Q sum_q w_q k(z_m, patch_q(x_n)),  kff[n] = 1/Q^2 w^T k(patches, patches) w

    An input is an image of H x W pixels as one row, row after row of pixels. Its Q = (H - h + 1) (W - w + 1) patches of
    h x w pixels overlap. The kernel is that of g, a function of patches.

    Parameters
    ----------
    image, patch
        (H, W) and (h, w).
    Z
        Inducing patches [M, h w]. None starts among the patches of the data.
    weights
        w [Q], without units, trained; None takes all patches alike, w = 1.

    Source: van der Wilk, Rasmussen & Hensman, "Convolutional Gaussian processes", NeurIPS 2017.
    """

    image: tuple[int, int]
    patch: tuple[int, int]
    Z: Array = tree.param(default=None, unit="Z_unit")
    weights: Array | None = tree.param(default=None, optional=True)
    Z_unit: Array | None = tree.unit(default=None)

    @property
    def width(self) -> int:
        return self.image[0] * self.image[1]

    @property
    def number(self) -> int:
        """The number of patches Q in an image."""
        (H, W), (h, w) = self.image, self.patch
        return (H - h + 1) * (W - w + 1)

    # -- covariances ------------------------------------------------------------------------------------------------

    def cross(self, kernel: Kernel, X: Array, /) -> tuple[Array, Pullback]:
        xp = backend_of(X).xp
        N, Q = X.shape[0], self.number
        patches, pull_patches = self.patches(X)
        K, pull = kernel(self.Z, xp.reshape(patches, (N * Q, -1)))
        responses = xp.reshape(K, (self.count, N, Q))
        w = self.patch_weights(X)

        def pullback(bar):
            spread = xp.reshape(bar[:, :, None] * (w / Q), (self.count, N * Q))
            kernel_bar, Z_bar, patches_bar = pull(spread)
            w_bar = xp.sum(responses * bar[:, :, None], axis=(0, 1)) / Q
            own = tree.cotangent(self, Z=Z_bar, **self._weights_bar(w_bar))
            return own, kernel_bar, pull_patches(xp.reshape(patches_bar, patches.shape))

        return xp.sum(responses * w, axis=-1) / Q, pullback

    def diag(self, kernel: Kernel, X: Array, /) -> tuple[Array, Pullback]:
        xp = backend_of(X).xp
        patches, pull_patches = self.patches(X)
        w, Q = self.patch_weights(X), self.number
        found = [kernel(patches[n, ...]) for n in range(X.shape[0])]
        half = xp.stack([K @ w for K, _ in found]) / Q**2  # [N, Q]

        def pullback(bar):
            outer = w[:, None] * w[None, :] / Q**2
            own = tree.cotangent(self, **self._weights_bar(2.0 * xp.sum(half * bar[:, None], axis=0)))
            kernel_bar, patches_bar = None, []
            for n, (_, pull) in enumerate(found):
                one_bar, patch_bar = pull(bar[n] * outer)
                kernel_bar = tree.add(kernel_bar, one_bar)
                patches_bar.append(patch_bar)
            return own, kernel_bar, pull_patches(xp.stack(patches_bar))

        return xp.sum(half * w, axis=-1), pullback

    def full(self, kernel: Kernel, X: Array, /) -> tuple[Array, Pullback]:
        # image by image: [Q, N Q] numbers at once; the images on the diagonal with one argument, which sees white noise
        xp = backend_of(X).xp
        N, Q = X.shape[0], self.number
        patches, pull_patches = self.patches(X)
        w = self.patch_weights(X)
        every = xp.reshape(patches, (N * Q, -1))
        alone, pull_alone = self.diag(kernel, X)
        found = [kernel(patches[n, ...], every) for n in range(N)]
        halves = [xp.reshape(K, (Q, N, Q)) for K, _ in found]
        rows = xp.stack([xp.sum(w[:, None] * xp.sum(half * w, axis=-1), axis=0) for half in halves]) / Q**2
        eye = xp.eye(N, **like(X))

        def pullback(bar):
            between = 0.5 * (bar + bar.mT) * (1.0 - eye)
            own, kernel_bar, X_bar = pull_alone(xp.sum(bar * eye, axis=-1))
            w_bar, patches_bar, every_bar = xp.zeros_like(w), [], None
            for n, ((_, pull), half) in enumerate(zip(found, halves, strict=True)):
                row = between[n, :, None] / Q**2
                one_bar, patch_bar, all_bar = pull(xp.reshape(w[:, None, None] * (row * w)[None, ...], (Q, N * Q)))
                kernel_bar, every_bar = tree.add(kernel_bar, one_bar), tree.add(every_bar, all_bar)
                patches_bar.append(patch_bar)
                w_bar = (
                    w_bar + xp.sum(half * (row * w), axis=(1, 2)) + xp.sum(half * row * w[:, None, None], axis=(0, 1))
                )
            total = xp.stack(patches_bar) + xp.reshape(every_bar, patches.shape)
            own = tree.add(own, tree.cotangent(self, **self._weights_bar(w_bar)))
            return own, kernel_bar, tree.add(X_bar, pull_patches(total))

        return 0.5 * (rows + rows.mT) * (1.0 - eye) + alone[:, None] * eye, pullback

    def random_features(self, kernel: Kernel, rng: Any, count: int, /) -> tuple[FeatureMap, Array]:
        features = kernel.random_features(rng, count, self.patch[0] * self.patch[1])
        return ResponseFeatures(self, features), features(self.Z)[0]

    def floats_per_row(self, kernel: Kernel, /) -> int:
        Q = self.number
        return Q * (self.count + Q) * (kernel.floats_per_entry + 1) + Q * self.patch[0] * self.patch[1]

    # -- patches ----------------------------------------------------------------------------------------------------

    def patches(self, X: Array, /) -> tuple[Array, Pullback]:
        """The patches [N, Q, h w] of images [N, H W], and ``bar -> X_bar``: cuts, and sums of shifted cuts."""
        xp = backend_of(X).xp
        (H, W), (h, w) = self.image, self.patch
        N, rows, columns = X.shape[0], H - h + 1, W - w + 1
        images = xp.reshape(X, (N, H, W))
        shifts = [(i, j) for i in range(h) for j in range(w)]
        cut = [xp.reshape(images[:, i : i + rows, j : j + columns], (N, rows * columns)) for i, j in shifts]

        def pullback(bar):
            total = None
            for s, (i, j) in enumerate(shifts):
                part = xp.reshape(bar[:, :, s], (N, rows, columns))
                total = tree.add(total, _padded(part, (i, H - rows - i), (j, W - columns - j)))
            return xp.reshape(total, (N, H * W))

        return xp.stack(cut, axis=-1), pullback

    def patch_weights(self, X: Array, /) -> Array:
        """w [Q], beside X."""
        return backend_of(X).xp.ones((self.number,), **like(X)) if self.weights is None else self.weights

    def _weights_bar(self, bar: Array) -> dict[str, Array]:
        return {} if self.weights is None else {"weights": bar}

    # -- checks and starts ------------------------------------------------------------------------------------------

    def check(self, kernel: Kernel, /) -> None:
        (H, W), (h, w) = self.image, self.patch
        if not (1 <= h <= H and 1 <= w <= W):
            msg = f"patches of {h} x {w} pixels do not fit into images of {H} x {W}."
            raise ValueError(msg)
        if self.Z is not None and self.Z.shape[1] != h * w:
            msg = f"Z has {self.Z.shape[1]} columns, but patches of {h} x {w} pixels have {h * w}."
            raise ValueError(msg)
        if self.weights is not None and tuple(self.weights.shape) != (self.number,):
            msg = f"weights has shape {tuple(self.weights.shape)}, but the images have {self.number} patches."
            raise ValueError(msg)
        kernel.check(h * w)

    def started(
        self, X: Array, kernel: Kernel, variance: float, /, *, num_inducing: int | None, how: Any, seed: int
    ) -> tuple[Self, Kernel]:
        check_inputs("X", X)
        if X.shape[1] != self.width:
            msg = (
                f"X has {X.shape[1]} columns, but images of {self.image[0]} x {self.image[1]} pixels have {self.width}."
            )
            raise ValueError(msg)
        B = backend_of(X)
        order = generator(seed, 7).permutation(X.shape[0])[:IMAGES]
        some = B.xp.take(X, B.from_numpy(order, device=B.device_name(X)), axis=0)
        patches, _ = self.patches(some)
        rows = B.xp.reshape(patches, (-1, patches.shape[-1]))
        kernel = usable(kernel.from_data(rows, variance), X)
        Z = chosen_rows(rows, self.Z, kernel, num_inducing, how=how, seed=seed)
        found = usable(type(self)(self.image, self.patch, Z, self.weights, Z_unit=column_spreads(rows)), X)
        found.check(kernel)
        return found, kernel


@tree.model
class ResponseFeatures:
    """The weighted averages of a kernel's features over the patches of images."""

    patches: Patches
    features: Features

    def __call__(self, X: Array, /) -> tuple[Array, Pullback]:
        xp = backend_of(X).xp
        place, Q = self.patches, self.patches.number
        patches, pull_patches = place.patches(X)
        phi, pull = self.features(xp.reshape(patches, (X.shape[0] * Q, -1)))
        w = place.patch_weights(X)[:, None] / Q

        def pullback(bar):
            patches_bar = pull(xp.reshape(bar[:, None, :] * w, phi.shape))
            return None if patches_bar is None else pull_patches(xp.reshape(patches_bar, patches.shape))

        return xp.sum(xp.reshape(phi, (X.shape[0], Q, -1)) * w, axis=1), pullback


def _padded(x: Array, rows: tuple[int, int], columns: tuple[int, int]) -> Array:
    """X [N, r, c] with so many rows and columns of zeros before and after."""
    xp = backend_of(x).xp
    N, r, _ = x.shape
    sides = [xp.zeros((N, r, n), **like(x)) for n in columns]
    x = xp.concat([sides[0], x, sides[1]], axis=2)
    ends = [xp.zeros((N, n, x.shape[2]), **like(x)) for n in rows]
    return xp.concat([ends[0], x, ends[1]], axis=1)
