"""The methods by name: one record for each, which the estimators, the command line and the documentation read."""

from agp.methods._record import Method
from agp.methods._registry import register

__all__ = ["Method", "register"]

# for other subpackages
from agp.methods._record import LAYERS, OUTPUTS
from agp.methods._registry import build, load_plugins, unknown_method_message, updates_of
from agp.methods._table import METHODS
