"""What an array library must bring beyond the Array API standard."""

from agp.backend._control import ControlFlow
from agp.backend._differentiation import Differentiation
from agp.backend._folds import Folds
from agp.backend._graphs import Graphs
from agp.backend._lazy import LazyRows
from agp.backend._mathematics import Mathematics

__all__ = ["Backend"]


class Backend(Mathematics, ControlFlow, Graphs, Folds, LazyRows, Differentiation):
    """What the mathematics asks of an array library; the defaults are right for eager libraries without autodiff.

    A plug-in sets the class attributes and supplies at least `cholesky`, `solve_triangular`, `from_numpy` and
    `to_numpy`.
    """
