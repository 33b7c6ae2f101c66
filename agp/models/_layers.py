"""The layers of deep processes for vectors and images, with starting values from data."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from agp import tree
from agp.backend import Array, asarray_like, backend_of, like, to_numpy
from agp.checks import check_instance, check_whole
from agp.chunking import column_spreads
from agp.errors import count_of, there_are
from agp.inducing import Inducing, Patches, PatchGrid, some_rows
from agp.kernels import RBF, Kernel
from agp.means import Projection
from agp.models._groups import group_sizes, start_of_groups
from agp.models._start import Observed, sparse_process
from agp.posteriors import find_posterior, start_of
from agp.processes import Deep, FixedMap, Patchwise, Process, Sparse, Stack
from agp.starts import principal_directions

LENGTHSCALE = 2.0
"""The minimum initial lengthscale in all layers, as a multiple of the spread of the layer's inputs."""
INNER_VARIANCE = 1e-4
"""The initial prior variance of the functions that inner layers add to their fixed maps, which have variance 1."""
INNER_DEVIATION = 1e-2
"""The initial standard deviation of q(u) in inner layers, as a multiple of that of the prior."""
IMAGES = 200
"""The maximum number of images whose patches determine starting values."""


def settings_by_layer(data: Observed, own: dict[str, Any], layers: int) -> list[dict[str, Any]]:
    """Return the settings of each layer: the posterior, the number of inducing inputs, and those of `own`.

    A sequence has a value per layer; any other value applies to all layers. Raises TypeError or ValueError if the
    length of a sequence or the type of a kernel is wrong.
    """
    choices = {name: data.options[name] for name in ("posterior", "num_inducing")} | own
    for name, given in choices.items():
        if isinstance(given, (list, tuple)) and len(given) != layers:
            raise ValueError(
                f"{name} has {count_of(len(given), 'entry')}, but {there_are(layers, 'layer')}; pass one value, or "
                "one per layer."
            )
    found = [
        {name: given[i] if isinstance(given, (list, tuple)) else given for name, given in choices.items()}
        for i in range(layers)
    ]
    for choice in found:
        check_instance("kernel", choice["kernel"], Kernel, optional=True)
        if choice["kernel"] is not None and choice["kernel"].reads_tags:
            raise TypeError(
                "kernel is WithSlopes, but the layers of a deep GP are functions of each other, whose slopes cannot be "
                "observed; use SVGP."
            )
    return found


def deep_process(data: Observed, choices: list[dict[str, Any]], /, *, width: int, skip: bool) -> Deep:
    """Build the layers of `DeepGP.from_data` from the settings of each layer."""
    chosen = [_with_groups(choice, i, data.X.shape[0]) for i, choice in enumerate(choices)]
    common = {name: data.options[name] for name in ("seed", "jitter")}
    built: list[Process] = []
    H = data.X
    for choice, (own, carried) in zip(chosen[:-1], _maps(H, width, skip), strict=False):
        settings = {**_with_kernel(choice, H), "mean_function": own, **common}
        layer = _calm(Sparse.from_data(H, outputs=width, **settings), settings)
        built.append(layer if carried is None else Stack((layer, FixedMap(carried))))
        H = backend_of(H).xp.concat([h(H)[0] for h in (own, carried) if h is not None], axis=1)
    built.append(sparse_process(data._replace(X=H), **_with_kernel(chosen[-1], H), **common))
    return Deep(tuple(built), data.options["samples"])


def _with_groups(choice: dict[str, Any], layer: int, rows: int) -> dict[str, Any]:
    """Convert the settings of a layer to arguments of `Sparse.from_data`.

    If `num_orthogonal` is given, the argument `posterior` combines the q of both groups.
    """
    settings = dict(choice)
    M2, second = settings.pop("num_orthogonal"), settings.pop("second")
    if M2 is None:
        if second is not None:
            raise ValueError(
                f"second is given, but layer {layer} has one group of inducing variables; also pass num_orthogonal=."
            )
        return settings
    M, M2 = group_sizes(rows, settings["num_inducing"], M2)
    sizes = (M, M2) if M2 else (M,)
    start = start_of_groups(find_posterior(settings["posterior"]), find_posterior(second), sizes)
    return settings | {"posterior": start, "num_inducing": M + M2}


def _with_kernel(choice: dict[str, Any], H: Array) -> dict[str, Any]:
    """Return the settings, with starting values for missing kernel lengthscales, computed from inputs H.

    Settings with an `Inducing` object are returned unchanged.
    """
    if isinstance(choice["inducing"], Inducing):
        return choice
    kernel = RBF() if choice["kernel"] is None else choice["kernel"]
    given, started = tree.leaves(kernel), tree.leaves(kernel.from_data(H, 1.0))
    missing = {
        name: max(1.0, LENGTHSCALE / H.shape[1] ** 0.5) * x
        for name, x in started.items()
        if name.endswith("lengthscale") and name not in given and f"{name}_unit" in started  # in units of the inputs
    }
    return {**choice, "kernel": tree.with_leaves(kernel, missing)}


def _maps(X: Array, width: int, skip: bool) -> Iterator[tuple[Projection, Projection | None]]:
    """Yield, for each inner layer, its fixed map and, if `skip` is true, a map that forwards the model inputs.

    The iterator is infinite.
    """
    xp, D = backend_of(X).xp, X.shape[1]
    scale, centre = xp.eye(D, **like(X)) / column_spreads(X)[:, None], xp.mean(X, axis=0)
    yield (
        Projection(scale @ _directions((X - centre) @ scale, width), centre),
        Projection(scale, centre) if skip else None,
    )
    rows = width + D if skip else width
    zeros = xp.zeros((rows,), **like(X))
    own = Projection(xp.eye(rows, width, **like(X)), zeros)
    while True:
        yield own, Projection(xp.eye(rows, D, k=-width, **like(X)), zeros) if skip else None


def _calm(layer: Sparse, settings: dict[str, Any]) -> Sparse:
    """Return the layer with a small covariance of q(u), and usually a small kernel variance.

    The kernel variance does not change if the user set it. Nor does it change if the mean of q(u) is in units of f,
    because a small variance would keep the mean near zero.
    """
    q, held = layer.posterior, tree.leaves(layer.posterior)
    if not any(name.endswith("mean_unit") for name in held):
        given = {} if settings["kernel"] is None else tree.leaves(settings["kernel"])
        free = {name: x for name, x in tree.leaves(layer.kernel, "parameter").items() if given.get(name) is None}
        smaller = {name: INNER_VARIANCE * x for name, x in free.items() if name.endswith("variance")}
        layer = dataclasses.replace(layer, kernel=tree.with_leaves(layer.kernel, smaller))
        q = start_of(settings["posterior"])(layer.inducing_covariance()[0], layer.outputs)
    roots = {name: x for name, x in tree.leaves(q).items() if name.rpartition(".")[2] in ("scale", "deviation")}
    q = tree.with_leaves(q, {name: INNER_DEVIATION * x for name, x in roots.items()})
    return dataclasses.replace(layer, posterior=q)


def _directions(X: Array, width: int) -> Array:
    """Return the identity [D, width], or the leading principal directions of X [N, D] if D exceeds `width`."""
    D = X.shape[1]
    if width >= D:
        return backend_of(X).xp.eye(D, width, **like(X))
    return asarray_like(principal_directions(to_numpy(X), width), X)


# -- images -----------------------------------------------------------------------------------------------------------


def convolutional_process(
    data: Observed,
    image: Any,
    channels: tuple[Any, ...],
    choices: list[dict[str, Any]],
    /,
    *,
    weighted: bool,
) -> Deep:
    """Build the layers of `DeepGP.convolutional` from the settings of each layer."""
    common = {name: data.options[name] for name in ("seed", "jitter")}
    H = some_rows(data.X, IMAGES, common["seed"])
    if not isinstance(image, (tuple, list)) or len(image) not in (2, 3):
        raise ValueError(f"image is {image!r}, but must be (H, W), or (H, W, C) for C channels.")
    shape, incoming = (image[0], image[1]), image[2] if len(image) == 3 else 1
    made = [check_whole("channels", C) for C in channels]
    layers: list[Process] = []
    for i, (outputs, choice) in enumerate(zip(made, choices, strict=False)):
        grid = _grid(i, shape, incoming, choice)
        layer, passed_on = _inner_layer(grid, H, outputs, choice, common)
        layers.append(layer)
        H = backend_of(H).xp.reshape(passed_on, (H.shape[0], -1))
        shape, incoming = grid.shape, outputs
    layers.append(_last_layer(_grid(len(made), shape, incoming, choices[-1]), H, data, choices[-1], weighted, common))
    return Deep(tuple(layers), data.options["samples"])


def _grid(layer: int, shape: tuple[int, int], channels: int, choice: dict[str, Any]) -> PatchGrid:
    patch = choice["patch"]
    patch = tuple(patch) if isinstance(patch, (tuple, list)) else (patch, patch)
    options = {name: choice[name] for name in ("stride", "padding", "located")}
    grid = PatchGrid(shape, patch, channels=channels, **options)
    try:
        grid.check()
    except ValueError as error:
        raise ValueError(f"layer {layer}: {error}") from None
    return grid


def _settings(grid: PatchGrid, rows: Array, choice: dict[str, Any], common: dict[str, Any]) -> dict[str, Any]:
    """Convert the settings of a layer with patches `rows` [N Q, .] to arguments of `Sparse.from_data`."""
    chosen = {name: choice[name] for name in ("posterior", "kernel", "num_inducing")}
    return chosen | common | ({"kernel": _kernel(grid, rows)} if choice["kernel"] is None else {})


def _kernel(grid: PatchGrid, rows: Array) -> Kernel:
    """Return a patch kernel whose lengthscale is the square root of the summed pixel variances."""
    xp = backend_of(rows).xp
    total = float(xp.sum(xp.var(rows[:, : grid.pixels], axis=0)))
    return grid.usual_kernel(RBF(lengthscale=total**0.5 if total > 0.0 else 1.0))


def _inner_layer(
    grid: PatchGrid, H: Array, outputs: int, choice: dict[str, Any], common: dict[str, Any]
) -> tuple[Patchwise, Array]:
    """Return a layer for images H [N, H W C], and the outputs of its map for each patch [N Q, C']."""
    grid.check_images(H)
    rows, _ = grid.rows(H)
    passes_on = _map(grid, rows, outputs)
    settings = {**_settings(grid, rows, choice, common), "mean_function": passes_on}
    layer = _calm(Sparse.from_data(rows, outputs=outputs, **settings), settings)
    return Patchwise(layer, grid), passes_on(rows)[0]


def _map(grid: PatchGrid, rows: Array, outputs: int) -> Projection:
    """Return a projection of patches [N Q, .] onto their leading principal directions.

    The projection ignores the locations of patches. Its outputs have variance 1 on average.
    """
    xp = backend_of(rows).xp
    centre, pixels = xp.mean(rows, axis=0), rows[:, : grid.pixels]
    leading = _directions(pixels - centre[: grid.pixels], outputs)
    variance = float(xp.mean(xp.var(pixels @ leading, axis=0)))
    unit = leading * (variance**-0.5 if variance > 0.0 else 1.0)
    places = xp.zeros((grid.columns - grid.pixels, outputs), **like(rows))
    return Projection(xp.concat([unit, places], axis=0), centre)


def _last_layer(
    grid: PatchGrid, H: Array, data: Observed, choice: dict[str, Any], weighted: bool, common: dict[str, Any]
) -> Sparse:
    grid.check_images(H)
    options = {"stride": grid.stride, "padding": grid.padding, "channels": grid.channels, "located": grid.located}
    place = Patches(grid.image, grid.patch, weights=1.0 if weighted else None, **options)
    settings = _settings(grid, grid.rows(H)[0], choice, common)
    return sparse_process(data._replace(X=H), inducing=place, **settings)
