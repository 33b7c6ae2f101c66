"""Exact models off their optima, with all that can be known of rows, for the expansion of their evidence."""

import numpy as np
from helpers import as_arrays, gpr

from agp import tree
from agp.bounds import Batch
from agp.kernels import RBF, Constant, Linear, Matern32, Matern52, Periodic, RationalQuadratic, White
from agp.likelihoods import Gaussian
from agp.means import ConstantMean, LinearMean, ZeroMean
from agp.training._newton import Coordinates

KERNELS = {
    "rbf-ard": lambda: RBF(0.8, (0.7, 1.1, 0.9)),
    "matern52": lambda: Matern52(0.8, 1.4),
    "rq-ard": lambda: RationalQuadratic(0.8, (0.7, 1.1, 0.9), 1.3),
    "linear-part": lambda: Matern32(0.8, (0.7, 1.1, 0.9)) + Linear((0.3, 0.2, 0.4)) + Constant(0.5),
    "product": lambda: Matern52(0.8, 1.3) * Periodic(1.1, 0.9, 2.2) + White(0.2),
    "scaled-on": lambda: 0.7 * RBF(0.8, (0.7, 1.3)).on((2, 0)) + Linear(0.4).on([1]),
}
MEANS = {
    "zero": lambda P: ZeroMean(),
    "constant": lambda P: ConstantMean(0.3 + np.arange(float(P))),
    "shared": lambda P: ConstantMean(np.asarray(0.2)),
    "linear": lambda P: LinearMean(0.1 * np.ones((3, P)), np.linspace(-0.3, 0.4, P)),
}
KNOWN = ("nothing", "weights", "offset", "noise", "all")
ROWS = 24


def known_of(what, rows=ROWS, outputs=1, seed=1):
    """What is known of each row."""
    rng = np.random.default_rng(seed)
    found = {
        "weights": rng.uniform(0.4, 3.0, size=rows),
        "offset": rng.normal(size=(rows, outputs)),
        "noise": rng.uniform(0.0, 0.5, size=(rows, 1)),
    }
    return found if what == "all" else {name: x for name, x in found.items() if name == what}


def case(kernel="rbf-ard", mean="constant", outputs=1, known="nothing", rows=ROWS):
    """A host model and its rows."""
    rng = np.random.default_rng([outputs, rows])
    X, y = rng.normal(size=(rows, 3)), rng.normal(size=(rows, outputs))
    model = as_arrays(gpr(KERNELS[kernel](), Gaussian(0.2), X, y, MEANS[mean](outputs)))
    return model, Batch(X, y, **known_of(known, rows, outputs))


def moved(place, model, batch):
    """Both on a place."""
    parts = {name: place.array(x) for name, x in batch._asdict().items() if isinstance(x, np.ndarray)}
    return place.move(model), batch._replace(**parts)


def coordinates_of(model, names=None):
    """All parameters, or these."""
    return Coordinates(model, sorted(tree.leaves(model, "parameter") if names is None else names))


def expand(model, batch, names=None):
    """The expansion in the logarithms of positive parameters."""
    return model._expand(batch, coordinates_of(model, names).scales_at(model))


def gradient_at(model, batch, coordinates, vector):
    """The slopes of the evidence in coordinates, from the pullback of the bound."""
    there = coordinates.model_at(vector)
    bars = tree.leaves(there._objective(batch)[1](1.0)[0])
    parts = [np.reshape(bars[name] * scale, -1) for name, scale in coordinates.scales_at(there).items()]
    return np.concatenate(parts)
