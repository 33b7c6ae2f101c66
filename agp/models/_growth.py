"""Which part of a model grows by inducing inputs."""

from typing import Any

from agp import tree
from agp.inducing import Points
from agp.posteriors import Posterior
from agp.processes import Mixed, Process, Sparse, SparsePrior

__all__ = ["growing_part"]


def growing_part(model: Any, /) -> tuple[str, SparsePrior]:
    """The path and the value of the only part with inducing inputs, whose inputs are those of the model.

    Raises
    ------
    TypeError
        If there is none, or several, or other processes stand between it and the inputs.
    """
    parts = tree.nodes(model, SparsePrior)
    between = [x for x in tree.nodes(model, Process).values() if not isinstance(x, (Sparse, Mixed))]
    if len(parts) != 1 or between:
        what = type(between[0] if between else model).__name__
        msg = (
            f"{what} does not grow by inducing inputs: they must be those of one kernel, as in SGPR, or SVGP with a "
            "Sparse process (or a Mixed one of that)."
        )
        raise TypeError(msg)
    path, part = next(iter(parts.items()))
    for base in (SparsePrior, Posterior):
        for x in [x for x in tree.nodes(part, base).values() if type(x).grown is base.grown]:
            msg = f"{type(x).__name__} does not grow by inducing inputs; use SGPR, or SVGP with Whitened, for instance."
            raise TypeError(msg)
    if not isinstance(part.inducing, Points):
        msg = f"{type(part.inducing).__name__} does not grow by inducing inputs; use Points, which are rows of inputs."
        raise TypeError(msg)
    return path, part
