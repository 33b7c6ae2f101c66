"""NumPy arrays in kernels, means and likelihoods follow the library, device and dtype of the data."""

import numpy as np
import pandas as pd
import pytest

import agp
from agp import GPR, RBF, SGPR, SVGP, TVGP, Gaussian, tree
from agp.backend import backend_of
from agp.estimators import GPClassifier, GPRegressor
from agp.kernels import Kernel, LevelCovariance
from agp.means import ConstantMean
from agp.tree import POSITIVE, REAL

RNG = np.random.default_rng(0)
X = np.stack([RNG.uniform(0.0, 6.0, 40), RNG.uniform(0.0, 1.0, 40), np.arange(40) % 3], axis=1)
Y = np.sin(X[:, 0]) + X[:, 2] + 0.1 * RNG.standard_normal(40)
PLACES = [("torch", "float64"), ("torch", "float32"), ("numpy", "float32"), ("numpy", "float64")]


pytestmark = pytest.mark.filterwarnings(  # fits of few steps
    "ignore::agp.errors.ConvergenceWarning", "ignore::agp.errors.NoSignalWarning"
)


@tree.model
class Mixed(Kernel):
    """k(x, z) = phi(x) phi(z)^T with phi = W^T A x, for a parameter W and a constant A, as a user writes it."""

    A: object = tree.constant()
    rows: object = tree.constant()
    W: object = tree.param(REAL, default=None)
    variance: object = tree.param(POSITIVE, default=None)

    def _features(self, X):
        return X @ self.A.mT @ self.W

    def __call__(self, X, Z=None, /):
        xp, Z_ = agp.backend_of(X).xp, X if Z is None else Z
        one, two = self._features(X), self._features(Z_)

        def pullback(bar):
            W = self.variance * ((X @ self.A.mT).mT @ (bar @ two) + (Z_ @ self.A.mT).mT @ (bar.mT @ one))
            own = tree.cotangent(self, W=W, variance=xp.sum(bar * (one @ two.mT)))
            back = self.W.mT @ self.A
            one_bar, two_bar = (self.variance * x @ back for x in (bar @ two, bar.mT @ one))
            return (own, one_bar + two_bar) if Z is None else (own, one_bar, two_bar)

        return self.variance * (one @ two.mT), pullback

    def diag(self, X, /):
        xp, one = agp.backend_of(X).xp, self._features(X)
        squares = xp.sum(one * one, axis=1)

        def pullback(bar):
            W = 2.0 * self.variance * ((X @ self.A.mT).mT @ (bar[:, None] * one))
            own = tree.cotangent(self, W=W, variance=xp.sum(bar * squares))
            return own, 2.0 * self.variance * bar[:, None] * (one @ (self.W.mT @ self.A))

        return self.variance * squares, pullback

    def from_data(self, X, variance, /):
        assert backend_of(self.A) is backend_of(X)  # constants are like the data
        assert self.A.dtype == X.dtype
        return tree.with_defaults(self, W=np.full((2, 1), 0.5), variance=variance)  # the parameter may be of NumPy

    def check(self, width, /):
        agp.kernels.check_number(self, "variance")


def mixed():
    return Mixed(np.asarray([[1.0, 0.0], [1.0, 1.0]], dtype=np.float32), np.arange(3))


KERNELS = {
    "lengthscales": lambda: RBF(1.0, np.asarray([1.0, 2.0])).on((0, 1)),
    "whole numbers": lambda: RBF(np.asarray(1), np.asarray([1, 2])).on((0, 1)),
    "beside lists": lambda: RBF(2.0, [1.0, 2.0]).on((0, 1)) + RBF(np.asarray(1.0)).on(0),
    "weights": lambda: RBF().on(0) * LevelCovariance(np.ones((3, 1)), np.full(3, 0.5)).on(2),
    "own": lambda: mixed().on((0, 1)),
}


def is_like(model, reference):
    return all(
        backend_of(x) is backend_of(reference) and x.dtype == reference.dtype
        for name, x in tree.leaves(model).items()
        if not name.endswith((".rows", "neighbours"))
    )


@pytest.mark.parametrize(("library", "dtype"), PLACES)
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("method", [GPR, SGPR, SVGP, TVGP])
def test_arrays_of_models_follow_the_data(library, dtype, name, method):
    A, y = (agp.to_backend(x, library, dtype=dtype) for x in (X, Y))
    options = {"num_inducing": 10} if method in (SGPR, SVGP) else {}
    parts = {"mean_function": ConstantMean(np.asarray(0.5)), "likelihood": Gaussian(np.asarray(0.1))}
    model = method.from_data(A, y, kernel=KERNELS[name](), **parts, **options)
    assert is_like(model, A)
    host = method.from_data(X, Y, kernel=KERNELS[name](), **parts, **options)
    expected, found = float(host.bound(X, Y[:, None])[0]), float(model.bound(A, y[:, None])[0])
    assert found == pytest.approx(expected, rel=1e-8 if dtype == "float64" else 1e-2)
    for leaf, x in tree.leaves(model).items():
        if leaf.endswith(".rows"):
            assert backend_of(x) is backend_of(A)
            assert backend_of(x).xp.isdtype(x.dtype, "integral")


def test_several_kernels_follow_the_data():
    A, y = (agp.to_backend(x, "torch") for x in (X, np.stack([Y, -Y], axis=1)))
    kernels = [KERNELS["own"](), KERNELS["lengthscales"]()]
    for outputs in ("separate", "coregionalised"):
        assert is_like(SVGP.from_data(A, y, kernel=kernels, outputs=outputs, num_inducing=10), A)


@pytest.mark.parametrize(("library", "dtype"), PLACES)
@pytest.mark.parametrize("name", ["lengthscales", "beside lists", "own"])
@pytest.mark.parametrize("estimator", [GPRegressor, GPClassifier])
def test_arrays_of_estimators_follow_the_data(library, dtype, name, estimator):
    table = pd.DataFrame({"x": X[:, 0], "z": X[:, 1]})
    y, options = Y > 0.5, {}
    if estimator is GPRegressor:
        y, options = Y, {"likelihood": Gaussian(np.asarray(0.1)), "mean_function": ConstantMean(np.asarray(0.5))}
        options["hyperparameters"] = "mode"
    found = estimator(kernel=KERNELS[name](), backend=library, dtype=dtype, max_steps=5, **options).fit(table, y)
    assert is_like(found.model_.kernel, agp.to_backend(X, library, dtype=dtype))


def test_torch_arrays_of_estimators_are_kept():
    table = pd.DataFrame({"x": X[:, 0], "z": X[:, 1]})
    kernel = RBF(1.0, agp.to_backend(np.asarray([1.0, 2.0]), "torch"))
    found = GPRegressor(kernel=kernel, backend="torch", max_steps=5, hyperparameters="mode").fit(table, Y)
    assert is_like(found.model_.kernel, agp.to_backend(X, "torch"))


def test_arrays_of_another_device_library_are_refused():
    kernel = RBF(1.0, agp.to_backend(np.asarray([1.0, 2.0]), "torch")).on((0, 1))
    with pytest.raises(TypeError, match="lengthscale is a torch array, but X is a numpy array"):
        GPR.from_data(X, Y, kernel=kernel)
