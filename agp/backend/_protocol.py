"""The protocol of a backend: what a plug-in provides beyond the Array API standard."""

from agp.backend._control import ControlFlow
from agp.backend._folds import Folds
from agp.backend._graphs import Graphs
from agp.backend._lazy import LazyRows
from agp.backend._mathematics import Mathematics


class Backend(Mathematics, ControlFlow, Graphs, Folds, LazyRows):
    """The interface of an array library; the defaults are for eager libraries without automatic differentiation.

    A plug-in sets the class attributes and defines at least `cholesky`, `solve_triangular`, `from_numpy` and
    `to_numpy`.
    """
