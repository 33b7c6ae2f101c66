"""Deep convolutional processes from data: layers from images to images, and a response to patches of the last ones."""

from typing import Any

from agp.backend import Array, backend_of, like
from agp.checks import check_whole
from agp.inducing import Patches, PatchGrid, some_rows
from agp.kernels import RBF, Kernel, Matern32
from agp.means import Projection
from agp.models._inner_layers import calm, directions
from agp.models._start import Observed
from agp.processes import Deep, EachPatch, Process, Sparse

__all__ = ["convolutional_process"]

IMAGES = 200
"""Images whose patches tell where layers start."""


def convolutional_process(
    data: Observed,
    image: Any,
    channels: tuple[Any, ...],
    choices: list[dict[str, Any]],
    /,
    *,
    weighted: bool,
    samples: int,
    seed: int,
    jitter: float | None,
) -> Deep:
    """The layers of `DeepGP.convolutional`, for the choices of each layer; arguments and errors as there."""
    H = some_rows(data.X, IMAGES, seed)
    shape, incoming = _shape(image)
    made = [check_whole("channels", C) for C in channels]
    common = {"seed": seed, "jitter": jitter}
    layers: list[Process] = []
    for i, (outputs, choice) in enumerate(zip(made, choices, strict=False)):
        grid = _grid(i, shape, incoming, choice)
        layer, passed_on = _inner_layer(grid, H, outputs, choice, common)
        layers.append(layer)
        H = backend_of(H).xp.reshape(passed_on, (H.shape[0], -1))
        shape, incoming = grid.shape, outputs
    layers.append(_last_layer(_grid(len(made), shape, incoming, choices[-1]), H, data, choices[-1], weighted, common))
    return Deep(tuple(layers), samples)


def _shape(image: Any) -> tuple[tuple[int, int], int]:
    """(H, W) and C of (H, W) or (H, W, C)."""
    if not isinstance(image, (tuple, list)) or len(image) not in (2, 3):
        msg = f"image is {image!r}, but must be (H, W), or (H, W, C) for C channels."
        raise ValueError(msg)
    return (image[0], image[1]), image[2] if len(image) == 3 else 1


def _grid(layer: int, shape: tuple[int, int], channels: int, choice: dict[str, Any]) -> PatchGrid:
    patch = choice["patch"]
    patch = tuple(patch) if isinstance(patch, (tuple, list)) else (patch, patch)
    options = {name: choice[name] for name in ("stride", "padding", "located")}
    grid = PatchGrid(shape, patch, channels=channels, **options)  # type: ignore[arg-type]
    try:
        grid.check()
    except ValueError as error:
        msg = f"layer {layer}: {error}"
        raise ValueError(msg) from None
    return grid


def _settings(grid: PatchGrid, rows: Array, choice: dict[str, Any], common: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `Sparse.from_data` for a layer whose patches are the rows [N Q, .]."""
    chosen = {name: choice[name] for name in ("posterior", "kernel", "num_inducing")}
    return chosen | common | ({"kernel": _kernel(grid, rows)} if choice["kernel"] is None else {})


def _kernel(grid: PatchGrid, rows: Array) -> Kernel:
    """With the lengthscale at which two patches are usually one root of two lengths apart."""
    xp = backend_of(rows).xp
    total = float(xp.sum(xp.var(rows[:, : grid.pixels], axis=0)))
    pixels = RBF(lengthscale=total**0.5 if total > 0.0 else 1.0)
    if not grid.located:
        return pixels
    return pixels.on(range(grid.pixels)) * Matern32(1.0).on((grid.pixels, grid.pixels + 1))


def _inner_layer(
    grid: PatchGrid, H: Array, outputs: int, choice: dict[str, Any], common: dict[str, Any]
) -> tuple[EachPatch, Array]:
    """A layer for images H [N, H W C], and what it passes on of their patches [N Q, C']."""
    grid.check_images(H)
    rows, _ = grid.rows(H)
    passes_on = _map(grid, rows, outputs)
    settings = {**_settings(grid, rows, choice, common), "mean_function": passes_on}
    layer = calm(Sparse.from_data(rows, outputs=outputs, **settings), settings)
    return EachPatch(layer, grid), passes_on(rows)[0]


def _map(grid: PatchGrid, rows: Array, outputs: int) -> Projection:
    """The leading principal directions of patches [N Q, .], their places left out; of variance 1 on average."""
    xp = backend_of(rows).xp
    centre, pixels = xp.mean(rows, axis=0), rows[:, : grid.pixels]
    leading = directions(pixels - centre[: grid.pixels], outputs)
    variance = float(xp.mean(xp.var(pixels @ leading, axis=0)))
    unit = leading * (variance**-0.5 if variance > 0.0 else 1.0)
    places = xp.zeros((grid.columns - grid.pixels, outputs), **like(rows))
    return Projection(xp.concat([unit, places], axis=0), centre)


def _last_layer(
    grid: PatchGrid, H: Array, data: Observed, choice: dict[str, Any], weighted: bool, common: dict[str, Any]
) -> Sparse:
    grid.check_images(H)
    options = {"stride": grid.stride, "padding": grid.padding, "channels": grid.channels, "located": grid.located}
    place = Patches(grid.image, grid.patch, weights=1.0 if weighted else None, **options)  # type: ignore[arg-type]
    settings = _settings(grid, grid.rows(H)[0], choice, common)
    settings |= {"mean_function": data.mean_function, "level": data.level, "variance": data.variance}
    return Sparse.from_data(H, outputs=data.outputs, inducing=place, **settings)
