"""Estimators in files whose parameters contain classes of the user."""

import dataclasses

import numpy as np
import pytest

import agp
from agp import tree
from agp.errors import FileError

pytest.importorskip("sklearn", reason="estimators need the extra sklearn")

from agp.estimators import GPClassifier, GPRegressor

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 2))
Y = np.sin(2.0 * X[:, 0]) + 0.1 * RNG.normal(size=30)
UP = X[:, 0] > 0.0


@tree.model
class Mine(agp.RBF):
    """A kernel of a user."""


@tree.model
class Level(agp.means.ConstantMean):
    """A mean function of a user."""


@tree.model
class Noise(agp.Gaussian):
    """A likelihood of a user."""


@dataclasses.dataclass(frozen=True)
class Wide(agp.priors.Prior):
    """A prior of a user."""

    scale: float = 3.0

    def _entries(self, x):
        return -0.5 * (x / self.scale) ** 2, lambda: -x / self.scale**2


NOISE = "likelihood.noise_variance"
QUICK = {"tolerance": 0.1, "max_steps": 5, "random_state": 0}
CASES = {
    "kernel": (GPRegressor, {"kernel": Mine()}, (Mine,)),
    "kernel inside": (GPRegressor, {"kernel": Mine() + agp.Linear()}, (Mine,)),
    "kernel of labels": (GPClassifier, {"kernel": Mine()}, (Mine,)),
    "mean": (GPRegressor, {"mean_function": Level()}, (Level,)),
    "likelihood": (GPRegressor, {"likelihood": Noise()}, (Noise,)),
    "prior": (GPRegressor, {"priors": {NOISE: Wide()}}, (Wide,)),
    "prior inside": (GPRegressor, {"priors": {NOISE: agp.priors.Relative(Wide(2.0))}}, (Wide,)),
    "prior of labels": (GPClassifier, {"priors": {"kernel.variance": Wide()}}, (Wide,)),
    "several": (GPRegressor, {"kernel": Mine(), "priors": {"kernel.variance": Wide()}}, (Mine, Wide)),
}


@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
@pytest.mark.parametrize("name", CASES)
def test_classes_of_a_user_are_handed_over(name, tmp_path):
    cls, parameters, classes = CASES[name]
    if parameters.keys() & {"priors", "kernel", "mean_function"} and cls is GPRegressor:
        parameters = {"hyperparameters": "mode", "kernel": "rbf", **parameters}
    estimator = cls(**parameters, **QUICK).fit(X, UP if cls is GPClassifier else Y)
    path = tmp_path / "estimator.safetensors"
    agp.save(estimator, path)
    found = agp.load(path, classes=classes)
    assert np.array_equal(found.predict(X), estimator.predict(X))
    same = ("kernel", "mean_function", "likelihood", "priors")
    given = estimator.get_params(deep=False)
    for key in given.keys() & {*same}:
        value = found.get_params(deep=False)[key]
        assert type(value) is type(given[key])
        assert key != "priors" or value == given[key]
    for one in classes:
        others = tuple(other for other in classes if other is not one)
        message = rf"estimator\.safetensors has a part of the class {__name__}\.{one.__name__}, which is not a class of"
        with pytest.raises(FileError, match=message):
            agp.load(path, classes=others)
