"""Where inducing variables live, and where their inputs start: chosen on the host, the same ones on every backend."""

from agp.inducing._base import FeatureMap, Inducing
from agp.inducing._choose import How, choose
from agp.inducing._greedy import greedy_variance
from agp.inducing._kmeans import kmeans
from agp.inducing._patch_grid import PatchGrid
from agp.inducing._patches import Patches, some_rows
from agp.inducing._points import NUM_INDUCING, Points, chosen_rows, placement
from agp.inducing._random import random
from agp.inducing._together import Together

__all__ = [
    "NUM_INDUCING",
    "FeatureMap",
    "How",
    "Inducing",
    "PatchGrid",
    "Patches",
    "Points",
    "Together",
    "choose",
    "chosen_rows",
    "greedy_variance",
    "kmeans",
    "placement",
    "random",
    "some_rows",
]
