"""Plots of models and estimators with matplotlib, which the extra ``plot`` installs.

Each function returns a matplotlib `Figure`, which you can save (``figure.savefig("fit.png")``) or change
(``figure.axes``). To draw into existing axes, pass them as `ax`, one for each panel. The functions do not use
`matplotlib.pyplot`, which keeps figures in global state and opens windows.
"""

import importlib

from agp.errors import missing_package_message as _not_installed

try:
    importlib.import_module("matplotlib")
except ImportError as error:
    _msg = f"agp.plot needs {_not_installed('matplotlib', 'plot')}."
    raise ImportError(_msg) from error

from agp.plot._calibration import plot_calibration, plot_pit
from agp.plot._components import plot_components
from agp.plot._effects import plot_effects
from agp.plot._fit import plot_fit, plot_inducing
from agp.plot._training import plot_growth, plot_learning

__all__ = [
    "plot_calibration",
    "plot_components",
    "plot_effects",
    "plot_fit",
    "plot_growth",
    "plot_inducing",
    "plot_learning",
    "plot_pit",
]
