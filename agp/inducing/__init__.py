"""Where inducing inputs start. Chosen on the host, so that every backend gets the same ones for the same seed."""

from agp.inducing._choose import How, choose
from agp.inducing._greedy import greedy_variance
from agp.inducing._kmeans import kmeans
from agp.inducing._random import random

__all__ = ["How", "choose", "greedy_variance", "kmeans", "random"]
