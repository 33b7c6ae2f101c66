"""Adding inducing inputs to a model."""

from typing import Any, TypeVar

from agp import tree
from agp.backend import Array
from agp.inducing import Points
from agp.posteriors import Posterior
from agp.processes import LinearMixing, Process, Sparse, SparsePrior

T = TypeVar("T", bound=Any)


def add_inducing(model: T, Z: Array, /, *, begun: bool = False) -> T:
    """Return the model with further inducing inputs Z [M, D].

    Given the existing inducing variables, the new ones follow the prior. Therefore, the bound and the predictions of an
    `SVGP` do not change, and the bound of an `SGPR` does not decrease.

    Parameters
    ----------
    model
        An `SGPR`, or an `SVGP` with `Points` and one `Sparse` process, which may be inside a `LinearMixing`.
    Z
        Further inducing inputs [M, D], with the library, dtype, device and number of columns of the existing ones.
    begun
        Whether new pseudo-observations have the variances used at the start of training (only for classes with
        pseudo-observations, such as `Relaxed` and `LikelihoodForm`). If True, the mean of q(f) does not change, but its
        variances decrease.

    Raises
    ------
    TypeError, ValueError
        If the model is of another kind, if its posterior does not support further inducing inputs, or if Z does not fit
        the existing inducing inputs.
    """
    path, part = growing_part(model)
    return tree.replace(model, {path: part._add_inducing(Z, begun=begun)})


def growing_part(model: Any, /) -> tuple[str, SparsePrior]:
    """Return the path of the model's only part with inducing inputs, and the part itself.

    Raises TypeError if no part or several parts have inducing inputs, or if the inputs of this part are not those of
    the model.
    """
    parts = tree.nodes(model, SparsePrior)
    between = [x for x in tree.nodes(model, Process).values() if not isinstance(x, (Sparse, LinearMixing))]
    if len(parts) != 1 or between:
        what = type(between[0] if between else model).__name__
        raise TypeError(
            f"{what} does not support adding inducing inputs; use SGPR, or SVGP with outputs='shared' or 'intrinsic'."
        )
    path, part = next(iter(parts.items()))
    still = [x for x in tree.nodes(part, Posterior).values() if type(x).add_inducing is Posterior.add_inducing]
    for x in [part] if type(part)._add_inducing is SparsePrior._add_inducing else still:
        raise TypeError(f"{type(x).__name__} does not support adding inducing inputs; use SGPR, or SVGP with Whitened.")
    if not isinstance(part.inducing, Points):
        raise TypeError(f"{type(part.inducing).__name__} does not support adding inducing inputs; use Points.")
    return path, part
