"""The warning about arrays that a loop outside of agp does not update."""

import warnings
from typing import Any

from agp import tree
from agp.backend import backend_of
from agp.errors import UntouchedWarning
from agp.repairs import outside


def warn_about_stale(model: Any, /) -> None:
    """Warn if a library differentiates parameters on which auxiliary arrays depend that it does not differentiate.

    Auxiliary arrays are the inverse factors and sites that only agp's updates change. They depend on all parameters,
    except those of q(u) and of the mean function. Traced arrays, as in JAX, do not tell whether a gradient is needed.
    """
    leaves = tree.leaves(model).items()
    asking = {name for name, x in leaves if (B := backend_of(x)).asks_gradient(x) and B.is_concrete(x)}
    if not any({"posterior", "mean_function"}.isdisjoint(name.split(".")) for name in asking):
        return
    stale = [name for name in tree.leaves(model, "auxiliary") if name not in asking]
    if stale:
        warnings.warn(
            f"optimisers other than agp's do not update {', '.join(stale)}, which become stale when parameters change; "
            "use a model without such arrays, such as SVGP with posterior='whitened', or agp.train, or apply agp's "
            "updates after each step, and ignore this warning.",
            UntouchedWarning,
            stacklevel=outside(),
        )
