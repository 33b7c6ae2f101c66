"""Where a model's inducing inputs are."""

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from agp import tree
from agp.backend import to_numpy
from agp.inducing import Points

__all__ = ["inducing_inputs"]

INNER = re.compile(r"\blayers\.[1-9]")


def inducing_inputs(model: Any, /) -> dict[str, npt.NDArray[np.float64]]:
    """The inducing inputs [M, D] that stand among the inputs of a model, on the host, by the path of their node.

    Those of inner layers, and patches of images, live elsewhere and are left out.
    """
    found = tree.nodes(model, Points)
    return {path: np.asarray(to_numpy(node.Z), np.float64) for path, node in found.items() if not INNER.search(path)}
