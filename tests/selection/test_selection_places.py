"""The same choices and the same numbers on every array library, and for rows that are elsewhere."""

from functools import partial

import numpy as np
import pytest
from helpers import assert_close, peak
from tables import WAYS, table

import agp
from agp import selection, to_numpy
from agp.backend import backend_of
from agp.errors import NoSignalWarning

fit_regression = partial(selection.fit_regression, hyperparameters="mode")
"""The search for one setting; `test_few_rows.py` tests the integration over settings."""


def assert_same(found, expected, new, there, tolerance=1e-6):
    assert found.kernel == expected.kernel
    assert found.message == expected.message
    assert [one[:2] for one in found.candidates] == [one[:2] for one in expected.candidates]
    assert_close(found.bound, expected.bound, tolerance)
    assert_close(found.baseline, expected.baseline, 1e-12)
    assert_close(found.log_density, expected.log_density, 10.0 * tolerance)
    for one, two in zip(found.model.predict(there(new)), expected.model.predict(new), strict=True):
        assert_close(to_numpy(one), two, 100.0 * tolerance)


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_every_library_comes_to_the_same(way, backend):
    rows, method = WAYS[way]
    X, y = table(rows, outputs=2)
    found = fit_regression(backend.array(X), backend.array(y), method=method)
    for leaf in agp.tree.leaves(found.model).values():
        backend.check(leaf)
    tolerance = 1e-4 if way == "both" else 1e-6  # neighbours are trained in float32
    assert_same(found, fit_regression(X, y, method=method), table(6, seed=1)[0], backend.array, tolerance)


@pytest.mark.long
@pytest.mark.parametrize("way", ["sample", "collapsed"])
def test_noise_on_every_library(way, backend):
    rows, method = WAYS[way]
    X, _ = table(rows)
    y = np.random.default_rng(0).normal(size=rows)
    with pytest.warns(NoSignalWarning):
        found = fit_regression(backend.array(X), backend.array(y), method=method)
    mean, variance = (backend.numpy(x) for x in found.model.predict(backend.array(X), observed=True))
    np.testing.assert_allclose(mean, y.mean(), atol=1e-3)
    np.testing.assert_allclose(variance, y.var(), rtol=1e-3)


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_short_numbers(way, backend):
    rows, method = WAYS[way]
    X, y = table(rows)
    found = fit_regression(backend.array(X, "float32"), backend.array(y, "float32"), method=method)
    mean, variance = (backend.numpy(x, "float32") for x in found.model.predict(backend.array(X, "float32")))
    assert np.isfinite(mean).all()
    assert (variance >= 0.0).all()
    assert np.sqrt(np.mean((mean[:, 0] - y) ** 2)) < 0.3


# -- rows elsewhere ----------------------------------------------------------------------------------------------------


@pytest.fixture
def dask_array():
    """dask.array, with tasks one after the other."""
    da = pytest.importorskip("dask.array")
    from dask import config

    with config.set(scheduler="synchronous"):
        yield da


@pytest.mark.long
@pytest.mark.parametrize("chunks", [(110,), 30, (5, 80, 1, 24)])
def test_lazy_rows_come_to_the_same(chunks, dask_array):
    X, y = table()
    found = fit_regression(dask_array.from_array(X, chunks=(chunks, 2)), dask_array.from_array(y, chunks=chunks))
    assert isinstance(found.model, agp.SVGP)
    assert {backend_of(x).name for x in agp.tree.leaves(found.model).values()} == {"numpy"}
    assert_same(found, fit_regression(X, y, method="sgpr"), table(6, seed=1)[0], lambda x: x)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::agp.errors.NoSignalWarning")
@pytest.mark.parametrize("rows", [2, 9, 40])
def test_few_lazy_rows_have_no_exact_posterior(rows, dask_array):
    X, y = (dask_array.from_array(x, chunks=7) for x in table(rows))
    assert isinstance(fit_regression(X, y, kernel=agp.RBF()).model, (agp.SVGP, agp.GPR))


@pytest.mark.slow
def test_noise_elsewhere(dask_array):
    X, _ = table()
    y = np.random.default_rng(1).normal(size=110)
    there = (dask_array.from_array(x, chunks=40) for x in (X, y))
    with pytest.warns(NoSignalWarning):
        found = fit_regression(*there)
    np.testing.assert_allclose(found.model.predict(X)[0], y.mean(), atol=1e-3)


@pytest.mark.slow
def test_lazy_rows_refuse_what_needs_them_in_memory(dask_array):
    X, y = (dask_array.from_array(x, chunks=40) for x in table())
    with pytest.raises((TypeError, ValueError), match="GPR"):
        fit_regression(X, y, method="gpr")


@pytest.mark.long
def test_lazy_rows_are_never_all_in_memory(dask_array):
    rows, columns = 1_000_000, 20
    state = dask_array.random.RandomState(0)
    X = state.uniform(size=(rows, columns), chunks=(20_000, columns))
    y = dask_array.sin(6.0 * X[:, 0]) + 0.1 * state.normal(size=rows, chunks=20_000)
    size = rows * columns * 8 / 2**20
    assert peak(lambda: fit_regression(X, y, kernel=agp.RBF(), most=64, memory=4.0)) < 0.6 * size
