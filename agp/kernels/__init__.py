"""Stage (a): covariance functions and their pullbacks to hyperparameters and inputs."""

from agp.kernels._base import ActiveDims, Kernel, Product, Scaled, Sum
from agp.kernels._constant import Constant, White
from agp.kernels._linear import Linear
from agp.kernels._periodic import Periodic
from agp.kernels._stationary import RBF, Matern12, Matern32, Matern52, RationalQuadratic

__all__ = [
    "RBF",
    "ActiveDims",
    "Constant",
    "Kernel",
    "Linear",
    "Matern12",
    "Matern32",
    "Matern52",
    "Periodic",
    "Product",
    "RationalQuadratic",
    "Scaled",
    "Sum",
    "White",
]
