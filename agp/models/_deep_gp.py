"""Deep Gaussian processes from data: layers with starting values that train."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, backend_of, like
from agp.checks import check_whole
from agp.inducing import How, Inducing
from agp.kernels import RBF, Kernel
from agp.likelihoods import Likelihood
from agp.means import Mean, Projection
from agp.models._deep_convolutional import convolutional_process
from agp.models._groups import group_sizes, start_of_groups
from agp.models._inner_layers import calm, directions
from agp.models._start import check_instance, observed, started_model
from agp.models._variational import Variational
from agp.posteriors import posterior_named
from agp.predictors import Conditional, ProcessConditional
from agp.priors import Prior, Priors, as_priors
from agp.processes import Deep, Known, Process, Sparse, Stack
from agp.scaling import column_spreads

__all__ = ["DeepGP"]

LENGTHSCALE = 2.0
"""The lengthscales of all layers at the least, in spreads of their inputs."""


@tree.model
class DeepGP(Variational):
    """A deep Gaussian process: each layer's outputs are the next layer's inputs, and any q(u) serves in each.

    With two orthogonal groups of inducing variables in its layers it is a deep SOLVE-GP.

    Built from data by `DeepGP.from_data`; the plain constructor takes any `Deep` process.

    Parameters
    ----------
    process
        The layers, and how many samples of them training draws.
    likelihood
        p(y | f).
    priors
        Pairs of a pattern of leaf names and an `agp.priors.Prior`: training then finds the largest posterior density.
    prediction_samples
        How many samples of the inner layers predictions average over; all rows have the same noise.

    Source: Salimbeni & Deisenroth, "Doubly stochastic variational inference for deep Gaussian processes", NeurIPS 2017.
    """

    process: Deep  # type: ignore[override]
    likelihood: Likelihood
    priors: Priors = ()
    prediction_samples: int = 32

    stochastic: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.process, Deep):
            msg = f"the process of a DeepGP is a {type(self.process).__name__}, but must be a Deep process; use SVGP."
            raise TypeError(msg)
        check_whole("prediction_samples", self.prediction_samples)

    @classmethod
    def from_data(
        cls,
        X: Array,
        y: Array,
        /,
        *,
        layers: int = 2,
        width: int | None = None,
        skip: bool = False,
        posterior: Any = "relaxed",
        kernel: Kernel | Sequence[Kernel] | None = None,
        likelihood: Likelihood | None = None,
        mean_function: Mean | None = None,
        num_inducing: int | Sequence[int] | None = None,
        num_orthogonal: int | Sequence[int | None] | None = None,
        second: Any = None,
        inducing: How | Inducing | Sequence[Any] = "kmeans",
        samples: int = 1,
        prediction_samples: int = 32,
        priors: Mapping[str, Prior] | None = None,
        seed: int = 0,
        jitter: float | None = None,
    ) -> Self:
        """A model ready to be trained on inputs X [N, D] and targets y [N] or [N, K].

        Inner layers start close to what they pass on: their inputs where the widths agree, the leading principal
        directions of these where a layer is narrower, the inputs and zeros where it is wider. Of the first layer the
        inputs are standardised for that. This map is fixed; what the layer adds to it is small at first and trained.

        Parameters
        ----------
        X, y
            Floating-point arrays of one library, dtype and device, which become those of the model.
        layers
            How many, the last one included.
        width
            The number of outputs of inner layers; D by default.
        skip
            Hand the inputs of the model on to every layer, beside the outputs of the layer before.
        posterior, kernel, num_inducing, inducing
            As `SVGP.from_data`, for all layers; or a sequence with one for each. Kernels are RBF by default;
            lengthscales that are not given start at the spread of each column, times the root of the number of columns
            and at least twice.
        num_orthogonal, second
            The size of a second group of inducing variables and, if it is another, the class of its q, as
            `SOLVEGP.from_data`: a deep SOLVE-GP. For all layers, or a sequence with one for each. None (default)
            means no second group.
        likelihood, mean_function, priors, seed, jitter
            As `SVGP.from_data`; the mean function is that of the last layer.
        samples
            S, how many samples of the inner layers each evaluation of the bound draws.
        prediction_samples
            See the class.

        Raises
        ------
        TypeError, ValueError
            As `SVGP.from_data` and, with a second group, as `SOLVEGP.from_data`; for a number of layers, a width or
            numbers of samples below 1; and for a sequence that has not one entry for each layer.
        """
        check_whole("layers", layers)
        data = observed(X, y, None, likelihood, mean_function)
        columns = data.X.shape[1] if width is None else check_whole("width", width)
        choices = {"posterior": posterior, "kernel": kernel, "num_inducing": num_inducing, "inducing": inducing}
        choices |= {"num_orthogonal": num_orthogonal, "second": second}
        chosen = [_with_groups(choice, i, data.X.shape[0]) for i, choice in enumerate(_by_layer(choices, layers))]
        for choice in chosen:
            check_instance("kernel", choice["kernel"], Kernel)
        built: list[Process] = []
        H = data.X
        for choice, (own, carried) in zip(chosen[:-1], _maps(H, columns, skip), strict=False):
            settings = {**_with_kernel(choice, H), "mean_function": own, "seed": seed, "jitter": jitter}
            layer = calm(Sparse.from_data(H, outputs=columns, **settings), settings)
            built.append(layer if carried is None else Stack((layer, Known(carried))))
            H = backend_of(H).xp.concat([h(H)[0] for h in (own, carried) if h is not None], axis=1)
        settings = {**_with_kernel(chosen[-1], H), "mean_function": data.mean_function, "variance": data.variance}
        settings |= {"outputs": data.outputs, "level": data.level}
        built.append(Sparse.from_data(H, **settings, seed=seed, jitter=jitter))
        process = Deep(tuple(built), samples)
        return started_model(cls(process, data.likelihood, as_priors(priors), prediction_samples))

    @classmethod
    def convolutional(
        cls,
        X: Array,
        y: Array,
        /,
        *,
        image: tuple[int, ...],
        patch: Any = 5,
        channels: Sequence[int] = (4,),
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        located: bool | Sequence[bool] = False,
        weighted: bool = True,
        posterior: Any = "relaxed",
        kernel: Kernel | Sequence[Kernel] | None = None,
        likelihood: Likelihood | None = None,
        mean_function: Mean | None = None,
        num_inducing: int | Sequence[int] | None = None,
        samples: int = 1,
        prediction_samples: int = 32,
        priors: Mapping[str, Prior] | None = None,
        seed: int = 0,
        jitter: float | None = None,
    ) -> Self:
        """A deep convolutional GP ready to be trained on images X [N, H W C] and targets y [N] or [N, K].

        Inner layers go from images to images (`agp.processes.EachPatch`), the last one is a response to patches
        (`agp.inducing.Patches`). An inner layer starts close to what it passes on: the leading principal directions of
        its input's patches, of variance 1 on average. This map is fixed; what the layer adds to it is small at first
        and trained.

        Parameters
        ----------
        X, y
            Floating-point arrays of one library, dtype and device, which become those of the model.
        image
            (H, W), or (H, W, C) for C channels: an image is one row of X, row after row of pixels, the channels of each
            beside each other.
        channels
            The number of channels that each inner layer makes; there is one layer more.
        patch, stride, padding, located
            The side of square patches or (h, w), and the rest as `agp.inducing.Patches`; for all layers, or a sequence
            with one for each.
        weighted
            Whether the last layer weighs its patches: weights are trained then, and start at 1.
        posterior, kernel, num_inducing
            As `SVGP.from_data`, for all layers, or a sequence with one for each. Kernels are functions of patches, by
            default RBF with one lengthscale, the root of the summed variances of a patch's pixels; times a Matern32
            kernel of the place where patches are located.
        likelihood, mean_function, samples, prediction_samples, priors, seed, jitter
            As `from_data`.

        Raises
        ------
        TypeError, ValueError
            As `from_data`; if images or patches have no such shapes, or do not fit X or each other.

        Source: Blomqvist, Kaski & Heinonen, "Deep convolutional Gaussian processes", ECML PKDD 2019.
        """
        data = observed(X, y, None, likelihood, mean_function)
        grids = {"patch": patch, "stride": stride, "padding": padding, "located": located}
        choices = grids | {"posterior": posterior, "kernel": kernel, "num_inducing": num_inducing}
        chosen = _by_layer(choices, len(channels) + 1)
        for choice in chosen:
            check_instance("kernel", choice["kernel"], Kernel)
        options = {"weighted": weighted, "samples": samples, "seed": seed, "jitter": jitter}
        process = convolutional_process(data, image, tuple(channels), chosen, **options)
        return started_model(cls(process, data.likelihood, as_priors(priors), prediction_samples))

    def _conditional(self, *, memory: float | None = None) -> Conditional:  # noqa: ARG002
        return ProcessConditional.of(dataclasses.replace(self.process, samples=self.prediction_samples))


def _by_layer(choices: dict[str, Any], layers: int) -> list[dict[str, Any]]:
    """The choices of each layer; what is no sequence is the choice of all."""
    for name, given in choices.items():
        if isinstance(given, (list, tuple)) and len(given) != layers:
            msg = f"{name} has {len(given)} entries, but there are {layers} layers; give one for each, or one for all."
            raise ValueError(msg)
    return [
        {name: given[i] if isinstance(given, (list, tuple)) else given for name, given in choices.items()}
        for i in range(layers)
    ]


def _with_groups(choice: dict[str, Any], layer: int, rows: int) -> dict[str, Any]:
    """The choice as arguments of `Sparse.from_data`: q of both groups of inducing variables, where there are two."""
    settings = dict(choice)
    M2, second = settings.pop("num_orthogonal"), settings.pop("second")
    if M2 is None:
        if second is not None:
            msg = f"second is given, but layer {layer} has one group of inducing variables; give num_orthogonal, too."
            raise ValueError(msg)
        return settings
    M, M2 = group_sizes(rows, settings["num_inducing"], M2)
    sizes = (M, M2) if M2 else (M,)
    start = start_of_groups(posterior_named(settings["posterior"]), posterior_named(second), sizes)
    return settings | {"posterior": start, "num_inducing": M + M2}


def _with_kernel(choice: dict[str, Any], H: Array) -> dict[str, Any]:
    """The choice, with the missing lengthscales of its kernel of inputs H, unless inducing variables live elsewhere."""
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
    """What each inner layer passes on of its inputs, and how it hands on those of the model, if it does; endless."""
    xp, D = backend_of(X).xp, X.shape[1]
    scale, centre = xp.eye(D, **like(X)) / column_spreads(X)[:, None], xp.mean(X, axis=0)
    yield (
        Projection(scale @ directions((X - centre) @ scale, width), centre),
        Projection(scale, centre) if skip else None,
    )
    rows = width + D if skip else width
    zeros = xp.zeros((rows,), **like(X))
    own = Projection(xp.eye(rows, width, **like(X)), zeros)
    while True:
        yield own, Projection(xp.eye(rows, D, k=-width, **like(X)), zeros) if skip else None
