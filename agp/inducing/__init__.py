"""Inducing variables, and methods that choose inducing inputs. The results are the same on every backend."""

from agp.inducing._base import Inducing
from agp.inducing._choose import choose, kmeans, random
from agp.inducing._greedy import greedy_variance
from agp.inducing._patch_grid import PatchGrid
from agp.inducing._patches import Patches
from agp.inducing._points import Points
from agp.inducing._together import JointInducing

__all__ = [
    "Inducing",
    "JointInducing",
    "PatchGrid",
    "Patches",
    "Points",
    "choose",
    "greedy_variance",
    "kmeans",
    "random",
]

# for other subpackages
from agp.inducing._choose import How
from agp.inducing._patches import some_rows
from agp.inducing._points import NUM_INDUCING
from agp.inducing._rows import distinct_rows
