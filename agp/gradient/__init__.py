"""Values and gradients of training objectives, and the parameters of a model as one vector, for other optimisers."""

from agp.gradient._flatten import Unflatten, flatten
from agp.gradient._values import gradient_of_batch, value_and_gradient

__all__ = ["Unflatten", "flatten", "gradient_of_batch", "value_and_gradient"]

# for other subpackages
from agp.gradient._flatten import unfrozen
from agp.gradient._values import GradientMode, bound_of_batch, check_mode
