"""Actions: the directions onto which computation-aware GPs project their data."""

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

# for other subpackages
from agp.actions._blocks import Init, Layout, initialise_blocks, order_rows
