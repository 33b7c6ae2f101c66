"""Actions: the directions in the data on which computation-aware GPs spend their computation."""

from agp.actions._base import Actions
from agp.actions._blocks import BlockActions
from agp.actions._dense import DenseActions, FixedActions
from agp.actions._layout import Init, Layout, arranged, column_spread, started_blocks

__all__ = [
    "Actions",
    "BlockActions",
    "DenseActions",
    "FixedActions",
    "Init",
    "Layout",
    "arranged",
    "column_spread",
    "started_blocks",
]
