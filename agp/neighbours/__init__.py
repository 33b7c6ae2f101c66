"""The rows of data that are nearest to an input, and rows with equal inputs."""

# for other subpackages
from agp.neighbours._repeats import Merged, merge_repeats
from agp.neighbours._search import TREE_COLUMNS, NeighbourSearch
