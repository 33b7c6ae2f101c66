"""Deep Gaussian processes."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, Self, Unpack

from agp import tree
from agp.backend import Array
from agp.checks import check_whole
from agp.inducing import How, Inducing
from agp.kernels import Kernel
from agp.likelihoods import Likelihood
from agp.models._constructor import Argument
from agp.models._layers import convolutional_process, deep_process, settings_by_layer
from agp.models._parts import ModelParts, NumericalArguments
from agp.models._start import Observed, initialise_model, prepare_data
from agp.models._variational import Variational
from agp.priors import Priors
from agp.processes import Deep, Process


class DeepParts(ModelParts, NumericalArguments, total=False):
    """The arguments of the constructors of deep GPs."""

    posterior: Annotated[
        Any,
        Argument(
            "The class of q(u), its name, or a function of Kuu and the number of outputs, as in `SVGP.from_data`: one "
            "value for all layers, or a sequence with a value for each layer.",
            default="relaxed",
        ),
    ]
    num_inducing: Annotated[
        int | Sequence[int] | None,
        Argument(
            "The number of inducing inputs M of all layers, or a sequence with a value for each layer. The default is "
            "128, or N if N is less than 128.",
            error="if M exceeds N",
        ),
    ]
    samples: Annotated[
        int,
        Argument(
            "The number S of inner-layer samples for each evaluation of the bound.",
            error="if a number of samples is below 1",
            default=1,
        ),
    ]
    prediction_samples: Annotated[
        int,
        Argument(
            "The number of inner-layer samples for predictions, which use the same noise for all rows.", default=32
        ),
    ]


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

    Examples
    --------
    Each of the two layers is a sparse GP. Functions are drawn layer by layer, and can be evaluated anywhere.

    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(-1.0, 1.0, 30)[:, None]
    >>> y = np.sign(X[:, 0])
    >>> model = agp.DeepGP.from_data(X, y, layers=2, num_inducing=6)
    >>> result = agp.train(model, X, y, steps=20)
    >>> result.trace["bound"][-1] > result.trace["bound"][0]
    True
    >>> functions = result.model.sample_functions(3)
    >>> functions(X).shape
    (3, 30, 1)
    """

    process: Deep  # type: ignore[override]
    likelihood: Likelihood
    priors: Priors = ()
    prediction_samples: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.process, Deep):
            raise TypeError(
                f"process is a {type(self.process).__name__}, but must be a Deep process; use SVGP for other processes."
            )
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
        kernel: Kernel | Sequence[Kernel] | None = None,
        inducing: How | Inducing | Sequence[Any] = "kmeans",
        num_orthogonal: int | Sequence[int | None] | None = None,
        second: Any = None,
        **parts: Unpack[DeepParts],
    ) -> Self:
        """Build a model that is ready for training.

        Each inner layer computes a fixed map of its inputs and adds a trained function, which starts near zero. The map
        is the identity if the layer has as many outputs as inputs. If the layer has fewer outputs than inputs, the map
        projects the inputs onto their leading principal directions. If the layer has more outputs than inputs, the map
        pads the inputs with zeros. The first layer standardises its inputs. `mean_function` is the mean function of the
        last layer.

        Parameters
        ----------
        layers
            The number of layers.
        width
            The number of outputs of each inner layer. The default is D.
        skip
            Whether the inputs of the model are also passed to every layer.
        kernel
            The kernel of all layers, or a sequence with a kernel for each layer. The default is `RBF`. Missing
            lengthscales start at the spread of each column, multiplied by 2 or by the square root of the number of
            columns, whichever is larger.
        inducing
            The method that chooses the inducing inputs of all layers, or a sequence with a value for each layer:
            "kmeans", "random", "greedy-variance", a function of (X, kernel, M, seed), or an object that defines other
            inducing variables.
        num_orthogonal
            The size M2 of a second group of inducing variables, which makes the model a deep SOLVE-GP: one value for
            all layers, or a sequence with a value for each layer. If M2 is 0, the second group is empty. The default,
            None, means no second group.
        second
            The posterior class of the second group, by default that of the first: one value for all layers, or a
            sequence with a value for each layer.

        Raises
        ------
        TypeError, ValueError
            If the number of layers or a width is below 1, if a sequence does not have one entry for each layer, or if a
            posterior class does not support a second group.
        """
        check_whole("layers", layers)
        data = prepare_data(X, y, parts)
        own = {"kernel": kernel, "inducing": inducing, "num_orthogonal": num_orthogonal, "second": second}
        columns = data.X.shape[1] if width is None else check_whole("width", width)
        process = deep_process(data, settings_by_layer(data, own, layers), width=columns, skip=skip)
        return cls._from_process(data, process)

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
        kernel: Kernel | Sequence[Kernel] | None = None,
        **parts: Unpack[DeepParts],
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
        patch, stride, padding, located
            `patch` is the side of square patches in pixels, or (h, w). See `agp.inducing.Patches` for `stride`,
            `padding` and `located`. Pass a value for all layers, or a sequence with a value for each layer.
        channels
            The number of output channels of each inner layer; the last layer has no entry.
        weighted
            Whether the last layer has trained patch weights, which start at 1.
        kernel
            The kernel of all layers, or a sequence with a kernel for each layer. The kernel inputs are patches. The
            default is RBF with a single lengthscale, the square root of the summed pixel variances in a patch. If
            patches are `located`, this kernel is multiplied by a Matern32 kernel of the location.

        Raises
        ------
        TypeError, ValueError
            If the shapes of the image, the patches and X do not match, or if a sequence does not have one entry for
            each layer.

        Source: Blomqvist, Kaski & Heinonen, "Deep convolutional Gaussian processes", ECML PKDD 2019.
        """
        data = prepare_data(X, y, parts)
        own = {"patch": patch, "stride": stride, "padding": padding, "located": located, "kernel": kernel}
        chosen = settings_by_layer(data, own, len(channels) + 1)
        return cls._from_process(data, convolutional_process(data, image, tuple(channels), chosen, weighted=weighted))

    @classmethod
    def _from_process(cls, data: Observed, process: Deep) -> Self:
        return initialise_model(cls(process, data.likelihood, data.priors, data.options["prediction_samples"]), data)

    def _posterior_process(self, *, memory: float | None = None) -> Process:  # noqa: ARG002
        return dataclasses.replace(self.process, samples=self.prediction_samples)
