"""Seasonal kernels of functions that average to zero over each period."""

import warnings

import numpy as np
import pytest
from helpers import as_arrays, assert_close
from scipy.special import ive

import agp
from agp.kernels import RBF, Centred, Constant, Linear, Matern12, Matern32, Periodic, Seasonal
from agp.testing import check_pullback
from agp.tree import to_backend

X = np.random.default_rng(1).uniform(0.0, 9.0, (12, 1))


def season(lengthscale=0.7, **options):
    return as_arrays(Seasonal(1.3, lengthscale, 2.5, centred=True, **options))


@pytest.mark.parametrize("lengthscale", [1e-3, 0.01, 0.0353, 0.036, 0.1, 1.0, 30.0, 1e4])
def test_the_average_over_a_period_is_zero(lengthscale, backend):
    """Also for lengthscales at which the covariances are tiny, or nearly zero between different phases."""
    kernel = backend.move(season(lengthscale))
    count = 20_000 if lengthscale < 0.01 else 2_000
    points = backend.array(np.linspace(0.0, 2.5, count, endpoint=False)[:, None])
    K = backend.numpy(kernel(backend.array(X), points)[0])
    assert np.max(np.abs(np.mean(K, axis=1))) < 1e-13 * np.max(np.abs(K))
    variances = backend.numpy(kernel.diag(backend.array(X))[0])
    assert_close(variances, np.diagonal(backend.numpy(kernel(backend.array(X))[0])), 1e-14)
    with np.errstate(over="ignore"):
        expected = 1.3 * (1.0 - ive(0, 0.25 / lengthscale**2))
    assert_close(variances, np.full(12, expected), 1e-13 + 1e-15 * 1.3 / expected)


def test_it_is_the_kernel_given_the_average_at_many_phases():
    """`Centred` over equally spaced phases tends to it."""
    phases = np.linspace(0.0, 2.5, 64, endpoint=False)[:, None]
    given = as_arrays(Centred(Seasonal(1.3, 0.7, 2.5), phases))
    assert_close(season()(X)[0], given(X)[0], 1e-13)


def test_float32_keeps_the_digits_of_a_nearly_constant_season():
    kernel = season(300.0)
    narrow = to_backend(kernel, "numpy", dtype="float32")
    x = X.astype(np.float32)
    exact = kernel(x.astype(np.float64))[0]
    assert_close(narrow(x)[0], exact, 1e-5)
    assert_close(narrow.diag(x)[0], np.diagonal(exact), 1e-6)


@pytest.mark.parametrize("lengthscale", [0.02, 0.0353, 0.036, 0.5, 40.0])
@pytest.mark.parametrize("kind", [Seasonal, Periodic])
def test_pullbacks(kind, lengthscale):
    kernel = as_arrays(kind(1.3, lengthscale, 2.5, centred=True))
    check_pullback(kernel, width=1)


def test_stacks_of_seasons_are_evaluated_together():
    for one in (Seasonal(1.3, [0.7, 0.9], 2.5), Seasonal(1.3, 0.7, [2.5, 3.0]), Seasonal(0.4, 0.7, 2.5, centred=True)):
        kernel = as_arrays(one)
        leaves = agp.tree.leaves(kernel, "parameter")
        stack = agp.tree.with_leaves(kernel, {name: np.stack([x, 1.5 * x, 0.5 * x]) for name, x in leaves.items()})
        x, z = np.random.default_rng(1).uniform(0.0, 9.0, (2, 6, 2))
        K, pull = stack.stacked_covariance(x, z)
        bar = np.random.default_rng(2).normal(size=K.shape)
        several = [stack.setting(s) for s in range(3)]
        assert_close(K, np.stack([k(x, z)[0] for k in several]), 1e-13)
        assert_close(stack.stacked_variances(x)[0], np.stack([k.diag(x)[0] for k in several]), 1e-13)
        expected = [sum(parts) for parts in zip(*(k(x, z)[1](bar[s])[1:] for s, k in enumerate(several)), strict=True)]
        for one_bar, other in zip(pull(bar), expected, strict=True):
            assert_close(one_bar, other, 1e-12)


# -- a trend and a season that changes slowly -------------------------------------------------------------------------


def series(count=180):
    rng = np.random.default_rng(0)
    t = np.arange(count)[:, None] / 12.0
    trend = 340.0 + 1.8 * t + 0.03 * t**2
    size = 3.0 * (1.0 + 0.25 * np.sin(2.0 * np.pi * t / 25.0))
    cycle = np.sin(2.0 * np.pi * t) + 0.4 * np.cos(4.0 * np.pi * t)
    return t, trend, size * cycle, trend + size * cycle + 0.4 * rng.standard_normal(t.shape)


def components_of(one, t, y):
    kernel = Linear.centred(t) + Matern32(lengthscale=10.0) + one * RBF(lengthscale=20.0) + Matern12(lengthscale=0.5)
    return agp.fit(agp.GPR.from_data(t, y, kernel=kernel), t, y).model.predictor().components(t)


def test_a_centred_season_leaves_the_trend_alone():
    t, _, truth, y = series()
    found = components_of(Seasonal(period=1.0, centred=True), t, y)
    assert found.names[2] == "centred(seasonal(1)) * rbf"
    error = found.mean[:, 0, 2] - truth[:, 0]
    assert np.sqrt(np.mean(error**2)) < 0.3
    assert np.mean(np.abs(error) < 1.96 * np.sqrt(found.variance[:, 0, 2])) > 0.85


def test_the_season_is_the_same_for_other_rows():
    """It does not depend on the rows: 30 months are no whole number of years."""
    phases = np.linspace(0.0, 1.0, 64, endpoint=False)[:, None]
    t, y = (x[:30] for x in (series()[0], series()[3]))
    kernel = Constant() + Seasonal(period=1.0, centred=True)
    found = agp.fit(agp.GPR.from_data(t, y, kernel=kernel), t, y).model.predictor().components(phases)
    assert abs(np.mean(found.mean[:, 0, 1])) < 1e-12


# -- phases -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 86400.0, 1e-3])
@pytest.mark.parametrize("kind", [Seasonal, lambda **options: Seasonal(**options, centred=True)])
def test_rows_of_one_phase_are_reported(kind, scale):
    days = scale * np.floor(np.arange(40.0) * 30.44)[:, None] + scale * 14000.0
    with pytest.warns(agp.errors.ColumnWarning, match="all rows have the same phase of the period"):
        kind(period=scale).from_data(days, 1.0)
    shifted = days + 0.3 * scale * (np.arange(40.0) % 2.0)[:, None]
    for period, rows in ((7.0, days), (1.0, days[:1]), (1.0, days[:1] + 0.0 * days), (1.0, shifted)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            kind(period=scale * period).from_data(rows, 1.0)


def test_linear_of_a_data_frame_names_the_remedy():
    pd = pytest.importorskip("pandas")
    dates = pd.DataFrame({"date": pd.date_range("2005-01-01", periods=5, freq="MS")})
    for wrong in (dates, dates["date"], dates["date"].to_numpy()[:, None], [[1.0]]):
        with pytest.raises(TypeError, match=r"Linear\(at_mean=True\)"):
            Linear.centred(wrong)
