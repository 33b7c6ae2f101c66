"""The arguments that constructors of models share. Each is declared once, with its type, default and documentation.

To add an argument, add an entry here. The constructors of all classes that take the parts then accept and document it,
and pass it on to `prepare_data`, with the other parts.
"""

from collections.abc import Mapping
from typing import Annotated, TypedDict

from agp.backend import Array
from agp.inducing import How, Inducing
from agp.kernels import Kernel
from agp.likelihoods import Likelihood
from agp.means import Mean
from agp.models._constructor import Argument
from agp.priors import Prior


class KernelArgument(TypedDict, total=False):
    """One kernel."""

    kernel: Annotated[
        Kernel | None,
        Argument(
            "The prior covariance of f. The default is `RBF` with a lengthscale for each column. Leaves may be "
            "numbers. Missing leaves start at values computed from the data.",
        ),
    ]


class PlacementArguments(TypedDict, total=False):
    """The choice of inducing variables for the inputs X."""

    num_inducing: Annotated[
        int | None,
        Argument(
            "The number of inducing inputs M, at most N. The default is 128, or N if N is less than 128.",
            error="if M exceeds N",
        ),
    ]
    Z: Annotated[Array | None, Argument("The inducing inputs [M, D].")]
    inducing: Annotated[
        How | Inducing,
        Argument(
            'The method that chooses inducing inputs if Z is not given: "kmeans", "random", "greedy-variance", or a '
            "function of (X, kernel, M, seed). `inducing` may also be an object that defines other inducing variables, "
            "such as ``Patches((28, 28), (5, 5))``.",
            default="kmeans",
        ),
    ]


class NumericalArguments(TypedDict, total=False):
    """Settings of models with inducing variables."""

    seed: Annotated[int, Argument("Seed for choosing the inducing inputs.", default=0)]
    jitter: Annotated[
        float | None,
        Argument(
            "The number added to the diagonal of Kuu. By default, it is 1e-6 (float64) or 1e-4 (float32) times the "
            "mean of the diagonal.",
        ),
    ]


class ModelParts(TypedDict, total=False):
    """The arguments of all constructors."""

    likelihood: Annotated[
        Likelihood | None,
        Argument(
            "The likelihood p(y | f). The default is `Gaussian`. Leaves may be numbers. Missing leaves start at values "
            "computed from the data.",
            error="if a target is outside the support of the likelihood",
        ),
    ]
    mean_function: Annotated[
        Mean | None,
        Argument(
            "The prior mean of f. The default is a trained `ConstantMean`, or `ZeroMean` if the targets are not real "
            "numbers. Missing leaves start at values computed from the data.",
        ),
    ]
    priors: Annotated[
        Mapping[str, Prior] | None,
        Argument(
            "Priors on hyperparameters. The keys are leaf-name patterns, as in "
            '``{"kernel.lengthscale": Gamma(2.0, 1.0)}``. The default is no priors.',
        ),
    ]

    weights: Annotated[
        Array | None,
        Argument(
            "Weights [N]: the number of observations of the same target, with independent noise, that each row "
            "represents. Weights need not be whole numbers. The default is 1.",
            error="if weights are negative, or zero in a model that holds the data",
        ),
    ]
    offset: Annotated[
        Array | None,
        Argument(
            "Known numbers [N] or [N, P] that are added to the latent functions, such as logarithms of exposures. The "
            "default is 0.",
        ),
    ]
    noise: Annotated[
        Array | None,
        Argument(
            "Known noise variances [N] or [N, P] of the rows, in squared units of y, which are added to the trained "
            "noise variance of a Gaussian likelihood. The default is 0.",
            error="if noise variances are negative, or are given for another likelihood",
        ),
    ]


class ExactParts(KernelArgument, ModelParts, total=False):
    """The arguments of models with one kernel and without inducing variables."""


class InducingParts(ModelParts, PlacementArguments, NumericalArguments, total=False):
    """The arguments of models with inducing variables and any number of kernels."""


class SparseParts(KernelArgument, InducingParts, total=False):
    """The arguments of models with one kernel and one set of inducing variables."""


class GroupParts(SparseParts, total=False):
    """The arguments of models with two groups of inducing inputs."""

    num_inducing: Annotated[
        int | None,
        Argument(
            "The size M of the first group. The default is 128, or N / 2 if that is less. All M + M2 inducing inputs "
            "are chosen together by the method `inducing`, and the first M form the first group.",
            error="if M + M2 exceeds N",
        ),
    ]
    num_orthogonal: Annotated[
        int | None,
        Argument("The size M2 of the second group. The default is M. If M2 is 0, there is no second group."),
    ]
    Z: Annotated[Array | None, Argument("The inducing inputs [M, D] of the first group.")]
    O: Annotated[  # noqa: E741 - the usual name in the literature
        Array | None,
        Argument(
            "The inducing inputs [M2, D] of the second group, possibly without rows. Pass both Z and O, or neither.",
            error="if only one of Z and O is given",
        ),
    ]
