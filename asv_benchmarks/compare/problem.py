"""The data and the initial models that the rows of a comparison share.

`a` is the namespace of the options of `run.py`.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agp import tree
from agp.backend import Array, backend_of
from agp.likelihoods import LIKELIHOODS as NUMERIC
from agp.likelihoods import Bernoulli, Likelihood, Ordinal, RobustMax, Softmax
from agp.means import ZeroMean
from agp.methods import build

BUNDLED = ("elevation", "diabetes", "breast_cancer", "digits")
"""Data sets that come with matplotlib and scikit-learn."""
TEST_SHARE = 0.1
MAX_CLASSES = 20
"""Whole numbers from 0 to C - 1 are classes if C is at most this number."""
CURVE_ROWS = 2000
"""Maximum number of test rows from which the curve of NLPD against time is computed."""
CURVE_POINTS = 20
WARM_UP = 2
"""Number of initial steps that are not timed, because libraries compile code during them."""
OWN_UNIT = ("poisson", "negative-binomial", "gamma", "exponential", "beta", "ordinal")
"""Likelihoods whose targets are not standardised."""


@dataclass(frozen=True)
class Data:
    """Training rows X [N, D], y [N, 1] and test rows, standardised by the training rows."""

    name: str
    X: Any
    y: Any
    """Targets. Classes, counts and the like are not standardised."""
    X_test: Any
    y_test: Any
    classes: int
    """The number of classes; 0 for regression."""


LIKELIHOODS: dict[str, Callable[[Data], Likelihood]] = {
    **{name: lambda _, kind=kind: kind() for name, kind in NUMERIC.items()},
    "ordinal": lambda data: Ordinal(max(2, 1 + int(max(data.y.max(), data.y_test.max())))),
    "bernoulli": lambda _: Bernoulli(),
    "bernoulli-logit": lambda _: Bernoulli(link="logit"),
    "softmax": lambda data: Softmax(data.classes),
    "robustmax": lambda data: RobustMax(data.classes),
}
"""The constructor of each likelihood. Constructors count the classes or levels in the data."""
OF_CLASSES = ("bernoulli", "bernoulli-logit", "softmax", "robustmax")


def load(a: argparse.Namespace) -> Data:
    """Read, split and standardise the data set `a.data`."""
    X, y, test = _read(a)
    if test is None:
        test = np.zeros(len(X), dtype=bool)
        test[np.random.default_rng(a.seed).permutation(len(X))[-max(1, round(TEST_SHARE * len(X))) :]] = True
    X, classes = _standardise(X, X[~test]), _classes(a, y)
    y = y if classes or a.likelihood in OWN_UNIT else _standardise(y, y[~test])
    return Data(Path(a.data).stem, X[~test], y[~test, None], X[test], y[test, None], classes)


def _read(a: argparse.Namespace) -> tuple[Any, Any, Any]:
    """Return inputs [N, D], targets [N], and a mask [N] of test rows, or None."""
    if a.data.endswith(".npz"):
        with np.load(a.data) as file:
            arrays = dict(file)
        masks = {"test_mask": lambda mask: mask, "train_mask": lambda mask: ~mask}
        masks["test_masks"] = lambda masks: masks[:, a.split]
        test = next((read(arrays[name].astype(bool)) for name, read in masks.items() if name in arrays), None)
        return arrays["X"].astype(float), arrays["y"].astype(float), test
    if a.data == "elevation":
        from matplotlib.cbook import get_sample_data

        with get_sample_data("jacksboro_fault_dem.npz") as file:  # type: ignore[union-attr]
            heights = np.asarray(file["elevation"], dtype=float)
        south, east = np.indices(heights.shape)
        return np.stack([east.ravel(), south.ravel()], axis=1).astype(float), heights.ravel(), None
    if a.data in BUNDLED:
        from sklearn import datasets

        X, y = getattr(datasets, f"load_{a.data}")(return_X_y=True)
        return X, y.astype(float), None
    import pandas as pd

    table = pd.read_csv(a.data).astype(float)
    return table.drop(columns=a.target).to_numpy(), table[a.target].to_numpy(), None


def _classes(a: argparse.Namespace, y: Any) -> int:
    """Return the number of classes of the targets, or 0 for regression."""
    found, rows = np.unique(y, return_counts=True)
    whole = bool((found == np.arange(len(found))).all())
    if a.task == "classification" or a.likelihood in OF_CLASSES:
        if not whole:
            raise SystemExit(
                f"the classes of {a.data} must be 0, 1, ..., but they are {', '.join(f'{x:g}' for x in found[:5])}."
            )
        return len(found)
    if a.task == "regression" or a.likelihood is not None:
        return 0
    return len(found) if whole and 2 <= len(found) <= MAX_CLASSES and rows.min() >= 2 else 0


def _standardise(values: Any, training: Any) -> Any:
    spread = training.std(axis=0)
    return (values - training.mean(axis=0)) / np.where(spread > 1e-10, spread, 1.0)


def build_model(method: str, X: Array, y: Array, data: Data, a: argparse.Namespace) -> Any:
    """Build a method's initial model. As in other libraries, lengthscales refer to the standardised data."""
    model = build(
        method, X, y, likelihood=LIKELIHOODS[a.likelihood](data), kernel=a.kernel, num_inducing=a.num_inducing,
        seed=a.seed, num_orthogonal=a.num_orthogonal, storage=a.storage, num_actions=a.num_actions,
        support=a.support, layers=a.layers, mean_function=ZeroMean() if a.mean == "zero" else None,
    )  # fmt: skip
    units = {name: x for name, x in tree.leaves(model).items() if name.endswith("lengthscale_unit")}
    return tree.with_leaves(model, {name: backend_of(x).xp.ones_like(x) for name, x in units.items()})


def curve_rows(data: Data, seed: int) -> Any:
    """Choose the test rows from which the curve of NLPD against time is computed."""
    return np.random.default_rng(seed).permutation(len(data.X_test))[:CURVE_ROWS]
