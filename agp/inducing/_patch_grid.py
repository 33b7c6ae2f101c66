"""Grids of patches of images, and the map from images to patches."""

from typing import Any

from agp import tree
from agp.backend import Array, Pullback, backend_of, constant, like
from agp.checks import check_whole
from agp.errors import count_of
from agp.kernels import RBF, Kernel, Matern32


@tree.model
class PatchGrid:
    """A grid that divides images into Q = H' W' patches, which may overlap.

        H' = (H + 2 padding - h) // stride + 1,  W' = (W + 2 padding - w) // stride + 1

    An image of H x W pixels with C channels is one row of X, with H W C columns. The columns contain the pixels row by
    row, with the channels of each pixel together. Patches [h w C] have the same layout, and are ordered along the grid
    row by row.

    Parameters
    ----------
    image, patch
        The sizes (H, W) and (h, w), in pixels.
    stride
        The distance between neighbouring patches, down and across, in pixels.
    padding
        The width of the border of zeros around the image, in pixels.
    channels
        The number of channels C.
    per_channel
        Whether each patch [h w] covers a single channel. If true, Q = H' W' C, and the C patches of each place are
        consecutive.
    located
        Whether each patch has two additional, constant columns: the row and the column of its centre in the image, in
        pixels, counted from 0.
    """

    image: tuple[int, int]
    patch: tuple[int, int]
    stride: int = 1
    padding: int = 0
    channels: int = 1
    per_channel: bool = False
    located: bool = False

    def __post_init__(self) -> None:
        _check_pair("image", self.image)
        _check_pair("patch", self.patch)
        check_whole("stride", self.stride)
        check_whole("padding", self.padding, least=0)
        check_whole("channels", self.channels)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of patches down and across, (H', W')."""
        (H, W), (h, w), around = self.image, self.patch, 2 * self.padding
        return (H + around - h) // self.stride + 1, (W + around - w) // self.stride + 1

    @property
    def number(self) -> int:
        """The number of patches Q."""
        rows, columns = self.shape
        return rows * columns * (self.channels if self.per_channel else 1)

    @property
    def width(self) -> int:
        """The number of columns of an image, H W C."""
        return self.image[0] * self.image[1] * self.channels

    @property
    def pixels(self) -> int:
        """The number of pixel columns of a patch: h w C, or h w for a single channel."""
        return self.patch[0] * self.patch[1] * (1 if self.per_channel else self.channels)

    @property
    def columns(self) -> int:
        """The number of columns of a patch, including the two columns of its centre if `located` is true."""
        return self.pixels + (2 if self.located else 0)

    def check(self) -> None:
        """Raise ValueError if the patches are larger than the padded images."""
        if min(self.shape) < 1:
            (H, W), (h, w) = self.image, self.patch
            around = f" with {self.padding} pixels of zeros around them" if self.padding else ""
            raise ValueError(
                f"patches of {h} x {w} pixels do not fit into images of {H} x {W}{around}; use smaller patches."
            )

    def describe(self) -> str:
        """Return a description of the patches for messages."""
        (h, w), C = self.patch, 1 if self.per_channel else self.channels
        more = f" and {C} channels" if C > 1 else ""
        return f"patches of {h} x {w} pixels{more}{' with places' if self.located else ''}"

    def usual_kernel(self, pixels: Kernel | None = None) -> Kernel:
        """Return `pixels`, by default RBF. For located patches, multiply it by a Matern32 kernel of the centres."""
        pixels = RBF() if pixels is None else pixels
        if not self.located:
            return pixels
        return pixels.on(range(self.pixels)) * Matern32(1.0).on((self.pixels, self.pixels + 1))

    def check_images(self, X: Array) -> None:
        """Raise ValueError unless X has H W C columns."""
        self.check()
        if X.shape[1] != self.width:
            (H, W), C = self.image, self.channels
            of = f" and {C} channels" if C > 1 else ""
            raise ValueError(
                f"X has {count_of(X.shape[1], 'column')}, but images of {H} x {W} pixels{of} need "
                f"{count_of(self.width, 'column')}; change X "
                "or the size of the images."
            )

    # -- cuts -------------------------------------------------------------------------------------------------------

    def __call__(self, X: Array, /) -> tuple[Array, Pullback]:
        """Return the patches [N, Q, .] of images X [N, H W C], and the pullback ``bar -> X_bar``."""
        xp = backend_of(X).xp
        (h, w), (rows, columns), C, N = self.patch, self.shape, self.channels, X.shape[0]
        images = xp.reshape(X, (N, *self.image, C))
        if self.padding:
            for axis in (1, 2):
                images = _scatter(images, axis, self.padding, 1, images.shape[axis] + 2 * self.padding)
        cut = [images[:, _every(i, rows, self.stride), :, :] for i in range(h)]
        cut = [part[:, :, _every(j, columns, self.stride), :] for part in cut for j in range(w)]
        patches = xp.stack(cut, axis=3)  # [N, H', W', h w, C]

        def pullback(bar):
            pixels = xp.reshape(bar[..., : self.pixels], (N, rows, columns, -1, h * w if self.per_channel else C))
            return self._sum_over_patches(pixels.mT if self.per_channel else pixels)

        patches = xp.reshape(patches.mT if self.per_channel else patches, (N, self.number, self.pixels))
        if self.located:
            places = xp.broadcast_to(self.places(X), (N, self.number, 2))
            patches = xp.concat([patches, places], axis=-1)
        return patches, pullback

    def rows(self, X: Array, /) -> tuple[Array, Pullback]:
        """Return all patches as rows [N Q, .], image after image, and the pullback ``bar -> X_bar``."""
        xp = backend_of(X).xp
        patches, pull = self(X)
        return xp.reshape(patches, (-1, self.columns)), lambda bar: pull(xp.reshape(bar, patches.shape))

    def _sum_over_patches(self, bar: Array) -> Array:
        """Return images [N, H W C], given values of the pixels of all patches [N, H', W', h w, C].

        Each pixel is the sum of its values in the patches that contain the pixel.
        """
        xp = backend_of(bar).xp
        (H, W), (h, w), around = self.image, self.patch, self.padding
        total = None
        for i in range(h):
            strip = None  # row i of the patches, [N, H', W + 2 padding, C]
            for j in range(w):
                strip = tree.add(strip, _scatter(bar[:, :, :, i * w + j, :], 2, j, self.stride, W + 2 * around))
            total = tree.add(total, _scatter(strip, 1, i, self.stride, H + 2 * around))
        inside: Any = total[:, around : around + H, around : around + W, :]  # type: ignore[index]
        return xp.reshape(inside, (bar.shape[0], self.width))

    def places(self, X: Array, /) -> Array:
        """Return the centre [Q, 2] of each patch (row, column) in pixels, with the library, dtype and device of X."""
        (rows, columns), (h, w) = self.shape, self.patch
        first = [0.5 * (n - 1) - self.padding for n in (h, w)]
        repeats = range(self.channels if self.per_channel else 1)
        places = [
            place
            for i in range(rows)
            for j in range(columns)
            for _ in repeats
            for place in (first[0] + self.stride * i, first[1] + self.stride * j)
        ]
        return backend_of(X).xp.reshape(constant(tuple(places), X), (-1, 2))


def _check_pair(name: str, value: Any) -> None:
    """Raise ValueError unless the value is a pair of positive whole numbers."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ValueError(f"{name} is {value!r}, but must be a pair of whole numbers: rows and columns of pixels.")
    for number in value:
        check_whole(f"a side of {name}", number)


def _every(first: int, count: int, step: int) -> slice:
    return slice(first, first + step * (count - 1) + 1, step)


def _scatter(x: Array, axis: int, first: int, step: int, size: int) -> Array:
    """Copy x into an array of zeros, to the positions first, first + step, ... of an axis.

    `size` is the length of this axis in the result.
    """
    xp = backend_of(x).xp
    shape = list(x.shape)

    def zeros(count: int) -> Array:
        return xp.zeros((*shape[:axis], count, *shape[axis + 1 :]), **like(x))

    if step > 1:
        gaps = xp.zeros((*shape[: axis + 1], step - 1, *shape[axis + 1 :]), **like(x))
        x = xp.concat([xp.expand_dims(x, axis=axis + 1), gaps], axis=axis + 1)
        x = xp.reshape(x, (*shape[:axis], shape[axis] * step, *shape[axis + 1 :]))
        kept = [slice(None)] * len(shape)
        kept[axis] = slice(0, (shape[axis] - 1) * step + 1)
        x = x[tuple(kept)]
    return xp.concat([zeros(first), x, zeros(size - first - x.shape[axis])], axis=axis)
