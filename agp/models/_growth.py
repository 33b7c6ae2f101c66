"""Models with more inducing inputs."""

from typing import Any, TypeVar

from agp import tree
from agp.backend import Array
from agp.inducing import Points
from agp.posteriors import Posterior
from agp.processes import Mixed, Process, Sparse, SparsePrior

__all__ = ["growing_part", "grown"]

T = TypeVar("T", bound=Any)


def grown(model: T, Z: Array, /, *, begun: bool = False) -> T:
    """The model with further inducing inputs Z [M, D], whose inducing variables have the prior given the present ones.

    So q(f), the bound and the predictions of an `SVGP` do not change. The bound of `SGPR` is no lower.

    Parameters
    ----------
    model
        `SGPR`, or an `SVGP` whose process is a `Sparse` one, or a `Mixed` one of that, with `Points`.
    Z
        Inputs [M, D] like those of the model.
    begun
        Give new pseudo-observations (`Relaxed`, `LikelihoodForm` and similar) the variances at which training starts:
        the same mean of q(f), and smaller variances.

    Raises
    ------
    TypeError, ValueError
        For other models; if the posterior cannot grow, or Z does not fit the inducing inputs.
    """
    path, part = growing_part(model)
    return tree.replaced(model, {path: part._grown(Z, begun=begun)})


def growing_part(model: Any, /) -> tuple[str, SparsePrior]:
    """The path and the value of the only part with inducing inputs.

    TypeError if there is none, or several, or its inputs are not those of the model.
    """
    parts = tree.nodes(model, SparsePrior)
    between = [x for x in tree.nodes(model, Process).values() if not isinstance(x, (Sparse, Mixed))]
    if len(parts) != 1 or between:
        what = type(between[0] if between else model).__name__
        msg = (
            f"{what} does not grow by inducing inputs: they must be those of one kernel, as in SGPR, or SVGP with a "
            "Sparse process (or a LinearMixing one of that)."
        )
        raise TypeError(msg)
    path, part = next(iter(parts.items()))
    still = [x for x in tree.nodes(part, Posterior).values() if type(x).grown is Posterior.grown]
    for x in [part] if type(part)._grown is SparsePrior._grown else still:
        msg = f"{type(x).__name__} does not grow by inducing inputs; use SGPR, or SVGP with Whitened, for instance."
        raise TypeError(msg)
    if not isinstance(part.inducing, Points):
        msg = f"{type(part.inducing).__name__} does not grow by inducing inputs; use Points, which are rows of inputs."
        raise TypeError(msg)
    return path, part
