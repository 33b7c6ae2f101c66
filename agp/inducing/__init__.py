"""Inducing variables, and ways to choose their inputs: on the host, with the same result on every backend."""

from agp.inducing._base import Inducing
from agp.inducing._choose import choose, kmeans, random
from agp.inducing._greedy import greedy_variance
from agp.inducing._patch_grid import PatchGrid
from agp.inducing._patches import Patches
from agp.inducing._points import Points
from agp.inducing._together import Together

__all__ = ["Inducing", "PatchGrid", "Patches", "Points", "Together", "choose", "greedy_variance", "kmeans", "random"]

# for other rooms
from agp.inducing._choose import How
from agp.inducing._patches import some_rows
from agp.inducing._points import NUM_INDUCING, placement
