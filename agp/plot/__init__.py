"""Pictures, by matplotlib (the extra ``plot``): one call each, for every model and estimator.

Each function returns a matplotlib `Figure`, which can be saved (``figure.savefig("fit.png")``) and changed
(``figure.axes``), and draws into `ax` where that is given: axes of the user's own, as many as the picture has panels.
`matplotlib.pyplot`, which keeps figures in a global state and opens windows, is never touched.
"""

import importlib

from agp.errors import not_installed as _not_installed

try:
    importlib.import_module("matplotlib")
except ImportError as error:
    _msg = f"agp.plot needs {_not_installed('matplotlib', 'plot')}."
    raise ImportError(_msg) from error

from agp.plot._calibration import plot_calibration, plot_pit
from agp.plot._compare import plot_comparison, plot_map
from agp.plot._effects import plot_effects
from agp.plot._fit import plot_fit
from agp.plot._inducing import plot_inducing
from agp.plot._training import plot_growth, plot_learning

__all__ = [
    "plot_calibration",
    "plot_comparison",
    "plot_effects",
    "plot_fit",
    "plot_growth",
    "plot_inducing",
    "plot_learning",
    "plot_map",
    "plot_pit",
]
