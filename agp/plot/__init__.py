"""Pictures, by matplotlib (the extra ``plot``)."""

from agp.plot._compare import plot_curves, plot_map
from agp.plot._uncertainty import plot_uncertainty

__all__ = ["plot_curves", "plot_map", "plot_uncertainty"]
