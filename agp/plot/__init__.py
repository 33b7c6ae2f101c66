"""Pictures, by matplotlib (the extra ``plot``)."""

import importlib

from agp.errors import not_installed as _not_installed

try:
    importlib.import_module("matplotlib")
except ImportError as error:
    msg = f"agp.plot needs {_not_installed('matplotlib', 'plot')}."
    raise ImportError(msg) from error

from agp.plot._compare import plot_curves, plot_map
from agp.plot._uncertainty import plot_uncertainty

__all__ = ["plot_curves", "plot_map", "plot_uncertainty"]
