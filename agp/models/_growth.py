"""Addition of inducing inputs to a model."""

from typing import Any, TypeVar

from agp import tree
from agp.backend import Array
from agp.inducing import Points
from agp.posteriors import Posterior
from agp.processes import LinearMixing, Process, Sparse, SparsePrior

__all__ = ["add_inducing", "growing_part"]

T = TypeVar("T", bound=Any)


def add_inducing(model: T, Z: Array, /, *, begun: bool = False) -> T:
    """Return the model with further inducing inputs Z [M, D].

    The new inducing variables have the prior distribution given the existing ones. So the bound and the predictions of
    an `SVGP` do not change, and the bound of an `SGPR` does not decrease.

    Parameters
    ----------
    model
        An `SGPR`, or an `SVGP` with `Points` and one `Sparse` process, which may be inside a `LinearMixing`.
    Z
        Further inducing inputs [M, D], with the library, dtype, device and columns of the existing ones.
    begun
        Whether new pseudo-observations (`Relaxed`, `LikelihoodForm` and similar) get the variances at which training
        starts. The mean of q(f) then stays the same, but its variances decrease.

    Raises
    ------
    TypeError, ValueError
        If the model is of another kind, its posterior cannot take more inducing inputs, or Z does not fit the existing
        inducing inputs.
    """
    path, part = growing_part(model)
    return tree.replace(model, {path: part._add_inducing(Z, begun=begun)})


def growing_part(model: Any, /) -> tuple[str, SparsePrior]:
    """Return the path of the only part of a model with inducing inputs, and the part itself.

    Raises TypeError if no part or several parts have inducing inputs, or if the inputs of the part differ from those of
    the model.
    """
    parts = tree.nodes(model, SparsePrior)
    between = [x for x in tree.nodes(model, Process).values() if not isinstance(x, (Sparse, LinearMixing))]
    if len(parts) != 1 or between:
        what = type(between[0] if between else model).__name__
        msg = (
            f"{what} cannot grow; use a model with one kernel for all inducing inputs, such as SGPR, or SVGP with a "
            "Sparse process or a LinearMixing of one."
        )
        raise TypeError(msg)
    path, part = next(iter(parts.items()))
    still = [x for x in tree.nodes(part, Posterior).values() if type(x).add_inducing is Posterior.add_inducing]
    for x in [part] if type(part)._add_inducing is SparsePrior._add_inducing else still:
        msg = f"{type(x).__name__} cannot take more inducing inputs; use SGPR, or SVGP with a posterior like Whitened."
        raise TypeError(msg)
    if not isinstance(part.inducing, Points):
        msg = f"{type(part.inducing).__name__} cannot take more inducing inputs; use Points."
        raise TypeError(msg)
    return path, part
