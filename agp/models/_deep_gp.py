"""Deep Gaussian processes."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self

from agp import tree
from agp.backend import Array
from agp.checks import check_whole
from agp.inducing import How, Inducing
from agp.kernels import Kernel
from agp.likelihoods import Likelihood
from agp.means import Mean
from agp.models._layers import convolutional_process, deep_process, settings_by_layer
from agp.models._start import initialise_model, prepare_data
from agp.models._variational import Variational
from agp.priors import Prior, Priors, as_priors
from agp.processes import Deep, Process


@tree.model
class DeepGP(Variational):
    """A deep Gaussian process, in which the outputs of each layer are the inputs of the next.

    Layers may use any class of q(u). If the layers have two orthogonal groups of inducing variables, the model is a
    deep SOLVE-GP. `DeepGP.from_data` builds a model from data; the constructor takes any `Deep` process.

    Parameters
    ----------
    process
        The layers, and the number of samples in training.
    likelihood, priors
        See `SVGP`.
    prediction_samples
        The number of inner-layer samples for predictions. Each sample uses the same noise for all rows.

    Source: Salimbeni & Deisenroth, "Doubly stochastic variational inference for deep Gaussian processes", NeurIPS 2017.
    """

    process: Deep  # type: ignore[override]
    likelihood: Likelihood
    priors: Priors = ()
    prediction_samples: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.process, Deep):
            msg = (
                f"process is a {type(self.process).__name__}, but must be a Deep process; use SVGP for other processes."
            )
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
        """Build a model that is ready for training on inputs X [N, D] and targets y [N] or [N, K].

        Each inner layer computes a fixed map of its inputs and adds a trained function, which starts near zero. The map
        is the identity if the layer has as many outputs as inputs. If the layer has fewer outputs than inputs, the map
        projects the inputs onto their leading principal directions. If the layer has more outputs than inputs, the map
        pads the inputs with zeros. The first layer standardises its inputs.

        Parameters
        ----------
        layers
            The number of layers.
        width
            The number of outputs of each inner layer. The default is D.
        skip
            Whether the inputs of the model are also passed to every layer.
        posterior, kernel, num_inducing, inducing
            A value for all layers, or a sequence with a value for each layer; see `SVGP.from_data`. The default kernel
            is `RBF`. Missing lengthscales start at the spread of each column, multiplied by 2 or by the square root of
            the number of columns, whichever is larger.
        num_orthogonal, second
            The size and the posterior class of a second group of inducing variables; see `SOLVEGP.from_data`. A second
            group makes the model a deep SOLVE-GP. Pass a value for all layers, or a sequence with a value for each
            layer. The default, None, means no second group.
        X, y, likelihood, mean_function, priors, seed, jitter
            See `SVGP.from_data`. The mean function is that of the last layer.
        samples
            The number S of inner-layer samples for each evaluation of the bound.
        prediction_samples
            See the class.

        Raises
        ------
        TypeError, ValueError
            For the reasons listed in `SVGP.from_data` and, with a second group, in `SOLVEGP.from_data`. These
            errors are also raised if the number of layers, a width or a number of samples is below 1, or if a sequence
            does not have one entry for each layer.
        """
        check_whole("layers", layers)
        data = prepare_data(X, y, None, likelihood, mean_function)
        choices = {"posterior": posterior, "kernel": kernel, "num_inducing": num_inducing, "inducing": inducing}
        choices |= {"num_orthogonal": num_orthogonal, "second": second}
        columns = data.X.shape[1] if width is None else check_whole("width", width)
        options: dict[str, Any] = {"width": columns, "skip": skip, "samples": samples, "seed": seed, "jitter": jitter}
        process = deep_process(data, settings_by_layer(choices, layers), **options)
        return initialise_model(cls(process, data.likelihood, as_priors(priors), prediction_samples))

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
        """Build a deep convolutional GP for images X [N, H W C] and targets y [N] or [N, K].

        Inner layers map images to images (`agp.processes.Patchwise`). The last layer averages a function of patches
        (`agp.inducing.Patches`). Each inner layer computes a fixed map and adds a trained function, which starts near
        zero. The map projects the input patches onto their leading principal directions, scaled so that its outputs
        have variance 1 on average.

        Parameters
        ----------
        image
            The image size (H, W), or (H, W, C) for C channels. Each row of X contains the pixels of one image in
            row-major order. The channels of a pixel are adjacent.
        channels
            The number of output channels of each inner layer; the last layer has no entry.
        patch, stride, padding, located
            `patch` is the side of square patches in pixels, or (h, w). See `agp.inducing.Patches` for `stride`,
            `padding` and `located`. Pass a value for all layers, or a sequence with a value for each layer.
        weighted
            Whether the last layer has trained patch weights, which start at 1.
        posterior, kernel, num_inducing
            A value for all layers, or a sequence with a value for each layer; see `SVGP.from_data`. The kernel inputs
            are patches. The default is RBF with a single lengthscale, the square root of the summed pixel variances in
            a patch. If patches are `located`, this kernel is multiplied by a Matern32 kernel of the location.
        X, y, likelihood, mean_function, samples, prediction_samples, priors, seed, jitter
            See `from_data`.

        Raises
        ------
        TypeError, ValueError
            For the reasons listed in `from_data`, or if the shapes of the image, the patches and X do not match.

        Source: Blomqvist, Kaski & Heinonen, "Deep convolutional Gaussian processes", ECML PKDD 2019.
        """
        data = prepare_data(X, y, None, likelihood, mean_function)
        grids = {"patch": patch, "stride": stride, "padding": padding, "located": located}
        choices = grids | {"posterior": posterior, "kernel": kernel, "num_inducing": num_inducing}
        chosen = settings_by_layer(choices, len(channels) + 1)
        options = {"weighted": weighted, "samples": samples, "seed": seed, "jitter": jitter}
        process = convolutional_process(data, image, tuple(channels), chosen, **options)
        return initialise_model(cls(process, data.likelihood, as_priors(priors), prediction_samples))

    def _posterior_process(self, *, memory: float | None = None) -> Process:  # noqa: ARG002
        return dataclasses.replace(self.process, samples=self.prediction_samples)
