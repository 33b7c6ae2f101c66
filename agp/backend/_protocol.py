"""Protocol of a backend: the operations that a plug-in provides beyond the Array API standard."""

from agp._deprecated import former_methods
from agp.backend._control import ControlFlow
from agp.backend._folds import Folds
from agp.backend._graphs import Graphs
from agp.backend._lazy import LazyRows
from agp.backend._mathematics import Mathematics


@former_methods(
    gathered="gather",
    generated_rows="generate_rows",
    rows_elsewhere="is_lazy",
    selected="take_rows",
)
class Backend(Mathematics, ControlFlow, Graphs, Folds, LazyRows):
    """Interface to an array library; the defaults are for eager libraries without automatic differentiation.

    A plug-in sets the class attributes and defines at least `cholesky`, `solve_triangular`, `from_numpy` and
    `to_numpy`.
    """
