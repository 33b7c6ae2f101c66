"""How every row of a comparison starts, and when its test rows are looked at."""

from typing import Any

import numpy as np
import numpy.typing as npt

from agp import tree
from agp.backend import Array, backend_of
from agp.cli._likelihoods import likelihood_named
from agp.cli._plan import Settings
from agp.data import Dataset
from agp.means import ZeroMean
from agp.methods import LAYERS, build

__all__ = ["CURVE_POINTS", "WARM_UP", "built", "curve_rows"]

CURVE_ROWS = 2000
"""Test rows that the curve of NLPD against time is computed from."""
CURVE_POINTS = 20
WARM_UP = 2
"""Steps that are not timed: libraries compile and warm up in them."""


def built(method: str, X: Array, y: Array, data: Dataset, s: Settings) -> Any:
    """The model of a method on a row's arrays.

    Lengthscales are trained in units of the data, which are standardised, as other libraries train them.
    """
    model = build(
        method, X, y, likelihood=likelihood_named(s.likelihood, data), kernel=s.kernel, num_inducing=s.num_inducing,
        seed=s.seed, num_orthogonal=s.num_orthogonal, storage=s.storage or "datum", num_actions=s.num_actions,
        support=s.support, layers=s.layers or LAYERS, mean_function=ZeroMean() if s.mean == "zero" else None,
    )  # fmt: skip
    units = {name: x for name, x in tree.leaves(model).items() if name.endswith("lengthscale_unit")}
    return tree.with_leaves(model, {name: backend_of(x).xp.ones_like(x) for name, x in units.items()})


def curve_rows(data: Dataset, s: Settings) -> npt.NDArray:
    """The test rows of the curve."""
    return np.random.default_rng(s.seed).permutation(len(data.X_test))[:CURVE_ROWS]
