"""Actions: the directions in the data on which computation-aware GPs spend their computation."""

from agp.actions._base import Actions, whole_numbers
from agp.actions._blocks import BlockActions
from agp.actions._conjugate_directions import ConjugateGradients
from agp.actions._dense import DenseActions, FixedActions
from agp.actions._layout import Init, Layout, arranged, column_spread, started_blocks
from agp.actions._policies import KernelColumns, KernelEigenvectors, Policy, RandomDirections, UnitVectors

__all__ = [
    "Actions",
    "BlockActions",
    "ConjugateGradients",
    "DenseActions",
    "FixedActions",
    "Init",
    "KernelColumns",
    "KernelEigenvectors",
    "Layout",
    "Policy",
    "RandomDirections",
    "UnitVectors",
    "arranged",
    "column_spread",
    "started_blocks",
    "whole_numbers",
]
