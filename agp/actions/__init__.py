"""Actions: the directions in the data on which computation-aware GPs project."""

from agp.actions._base import Actions
from agp.actions._blocks import BlockActions
from agp.actions._conjugate_directions import ConjugateGradients
from agp.actions._dense import DenseActions, FixedActions
from agp.actions._policies import KernelColumns, KernelEigenvectors, Policy, RandomDirections, UnitVectors

__all__ = [
    "Actions",
    "BlockActions",
    "ConjugateGradients",
    "DenseActions",
    "FixedActions",
    "KernelColumns",
    "KernelEigenvectors",
    "Policy",
    "RandomDirections",
    "UnitVectors",
]

# for other rooms
from agp.actions._base import whole_numbers
from agp.actions._layout import Init, Layout, arranged, column_spread, started_blocks
