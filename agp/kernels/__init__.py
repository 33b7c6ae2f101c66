"""Stage (a): covariance functions and their pullbacks to hyperparameters and inputs."""

from agp.kernels._base import Kernel, Sum
from agp.kernels._stationary import RBF, Matern32

__all__ = ["RBF", "Kernel", "Matern32", "Sum"]
