"""Choice of a kernel for any model."""

import numpy as np
import pytest

from agp.backend import to_numpy
from agp.estimators import GPRegressor
from agp.likelihoods import Gamma, Gaussian
from agp.selection import select_kernel

UNITS = np.asarray([1.0, 0.5, 100.0, 1e-6])


@pytest.mark.parametrize("seed", [0, 5, 9])
def test_lengthscales_resolve_columns_of_few_values(seed):
    """The means of the 16 cells are unrelated, so that the evidence prefers lengthscales near zero."""
    rng = np.random.default_rng(seed)
    flags = rng.integers(0, 2, (60, 4))
    y = rng.gamma(20.0, np.exp(rng.normal(size=16))[flags @ [8, 4, 2, 1]])
    kernel = select_kernel(flags * UNITS, y[:, None], Gamma(2.0))
    lengthscales = to_numpy(kernel.lengthscale) / UNITS
    assert lengthscales.min() == pytest.approx(0.25)
    assert lengthscales.max() > 0.25
    model = GPRegressor(likelihood="gamma", num_inducing=16, random_state=0).fit(flags * UNITS, y)
    assert model.learned_
    means = np.asarray([y[(flags == row).all(axis=1)].mean() for row in flags])
    assert np.corrcoef(np.log(model.predict(flags * UNITS)), np.log(means))[0, 1] > 0.98


def test_lazy_rows_have_the_kernel_of_rows_in_memory():
    dask = pytest.importorskip("dask.array")
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = np.sin(2.0 * X[:, :1])
    lazy = select_kernel(dask.from_array(X, chunks=16), dask.from_array(y, chunks=16), Gaussian())
    assert isinstance(lazy.lengthscale, np.ndarray)
    np.testing.assert_allclose(lazy.lengthscale, select_kernel(X, y, Gaussian()).lengthscale)
