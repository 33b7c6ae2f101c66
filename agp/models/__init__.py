"""What a user constructs: parameters and prediction; training is in `agp.training`."""

from agp.models._gpr import GPR
from agp.models._svgp import SVGP

__all__ = ["GPR", "SVGP"]
