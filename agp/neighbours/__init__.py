"""The rows of data that are nearest to an input, and rows with equal inputs."""

from agp.neighbours._repeats import Merged, merge_repeats
from agp.neighbours._search import NeighbourSearch

__all__ = ["Merged", "NeighbourSearch", "merge_repeats"]
