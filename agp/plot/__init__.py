"""Pictures, by matplotlib (the extra ``plot``)."""

from agp.plot._compare import plot_curves, plot_map

__all__ = ["plot_curves", "plot_map"]
