"""Columns of times: which periods they can tell, whether rows are a series, and forecasts with trend and seasons."""

import numpy as np
import pytest

import agp
from agp.selection._seasons import DAY, WEEK, WITHOUT, YEAR, Rated, describe_times, simplest

RNG = np.random.default_rng(0)


def described(times):
    return describe_times(np.asarray(times, dtype=float)[:, None], (0,))


def daily(years, seed=0):
    rng = np.random.default_rng(seed)
    days = np.arange(0.0, 365.25 * years)
    season = 8.0 * np.cos(2.0 * np.pi * days / YEAR)
    weather = np.convolve(rng.standard_normal(len(days) + 4), np.ones(5), "valid")
    return days[:, None], 15.0 + season + weather


@pytest.mark.parametrize(
    ("times", "periods"),
    [
        (np.arange(0.0, 1000.0), [YEAR, WEEK]),
        (np.arange(0.0, 600.0), [WEEK]),
        (np.arange(0.0, 30.0), []),
        (np.arange(0.0, 3000.0, 30.5), [YEAR]),
        (np.arange(0.0, 10.0, 1.0 / 24.0), [DAY]),
        (np.arange(0.0, 800.0, 1.0 / 24.0), [YEAR, WEEK, DAY]),
        (np.arange(0.0, 3000.0, 365.25), None),
    ],
)
def test_the_times_tell_which_periods_they_can_show(times, periods):
    found = described(times)
    assert (found[0].periods if found else None) == periods


def test_rows_are_a_series_if_there_is_one_at_each_time():
    assert described(np.arange(100.0))[0].is_series
    assert described(np.delete(np.arange(100.0), [20, 30, 31]))[0].is_series
    assert described(np.arange(100.0)[RNG.permutation(100)])[0].is_series
    weekdays = [day for day in range(140) if day % 7 < 5]
    assert described(weekdays)[0].is_series
    assert not described(np.repeat(np.arange(100.0), 2))[0].is_series
    assert not described(np.cumsum(RNG.exponential(size=400)))[0].is_series


def test_the_simplest_candidate_wins_within_one_standard_error():
    noise = RNG.standard_normal(100)
    simple, same, better = (Rated(name, x) for name, x in (("a", noise), ("b", noise[::-1] + 0.01), ("c", noise + 1.0)))
    assert simplest([simple, same]).trial == "a"
    assert simplest([simple, same, better]).trial == "c"
    assert simplest([simple, Rated("d", noise - np.inf)]).trial == "a"


@pytest.mark.slow
def test_a_daily_series_is_continued_with_its_season():
    X, y = daily(4)
    rows = 3 * 365
    result = agp.fit_regression(X[:rows], y[:rows], times=(0,))
    assert "seasonal(365.25)" in result.kernel
    mean, variance = result.model.predict(X[rows:], observed=True)
    z = (y[rows:] - mean[:, 0]) / variance[:, 0] ** 0.5
    assert np.sqrt(np.mean((y[rows:] - mean[:, 0]) ** 2)) < 3.0  # the weather has 2.2
    assert 0.8 < np.mean(np.abs(z) < 1.645) <= 1.0
    without = agp.fit_regression(X[:rows], y[:rows]).model.predict_mean(X[rows:])[:, 0]
    assert np.sqrt(np.mean((y[rows:] - without) ** 2)) > 5.0


def test_few_rows_are_continued_with_their_season():
    X = np.arange(0.0, 365.25 * 7, 30.4)[:, None]
    y = np.cos(2.0 * np.pi * X[:, 0] / YEAR) + 0.002 * X[:, 0] + 0.1 * np.random.default_rng(0).standard_normal(len(X))
    result = agp.fit_regression(X[:48], y[:48], times=(0,))
    assert result.kernel == "matern52 + linear + seasonal(365.25) * rbf"
    mean, variance = (x[:, 0] for x in result.model.predict(X[48:72], observed=True))
    assert np.sqrt(np.mean((y[48:72] - mean) ** 2)) < 0.3
    assert np.all(np.abs(y[48:72] - mean) < 4.0 * variance**0.5)
    assert variance[-1] > variance[0]


def test_times_without_a_season_have_none():
    rng = np.random.default_rng(0)
    X = np.arange(0.0, 1200.0, 4.0)[:, None]
    y = np.cumsum(rng.standard_normal(len(X)))
    assert "seasonal" not in agp.fit_regression(X, y, times=(0,), hyperparameters="mode").kernel


def test_rows_that_are_no_series_are_judged_by_left_out_rows():
    rng = np.random.default_rng(0)
    X = np.stack([rng.integers(0, 4000, 400).astype(float), rng.standard_normal(400)], axis=1)
    y = 2.0 * np.cos(2.0 * np.pi * X[:, 0] / YEAR) + X[:, 1] + rng.standard_normal(400)
    result = agp.fit_regression(X, y, times=(0,))
    ahead = np.stack([np.arange(4200.0, 4500.0, 10.0), np.zeros(30)], axis=1)
    truth = 2.0 * np.cos(2.0 * np.pi * ahead[:, 0] / YEAR)
    assert "seasonal(365.25)" in result.kernel
    assert np.sqrt(np.mean((result.model.predict_mean(ahead)[:, 0] - truth) ** 2)) < 0.4


@pytest.mark.parametrize(("times", "text"), [((1,), "times contains 1, but X has 1 column"), ((-1,), "times")])
def test_times_must_be_columns(times, text):
    X, y = daily(1)
    with pytest.raises(ValueError, match=text):
        agp.fit_regression(X, y, times=times)


@pytest.mark.long
def test_hours_of_many_days_are_continued_with_the_daily_season():
    rng = np.random.default_rng(0)
    X = np.arange(0.0, 200.0, 1.0 / 24.0)[:, None]
    y = 3.0 * np.cos(2.0 * np.pi * X[:, 0]) + np.convolve(rng.standard_normal(len(X) + 9), np.ones(10), "valid") / 5.0
    rows = len(X) - 240
    result = agp.fit_regression(X[:rows], y[:rows], times=(0,))
    assert "seasonal(1)" in result.kernel
    assert np.sqrt(np.mean((result.model.predict_mean(X[rows:])[:, 0] - y[rows:]) ** 2)) < 1.0


def series_with_a_column(rows, seed=0):
    """A series of every ten minutes: a function of a column, plus what changes from hour to hour."""
    rng = np.random.default_rng(seed)
    times, x = np.arange(rows) / 144.0, rng.uniform(-2.0, 2.0, rows)
    drift = np.zeros(rows)
    for i in range(1, rows):
        drift[i] = 0.9 * drift[i - 1] + 0.4 * rng.standard_normal()
    return np.stack([times, x], axis=1), np.sin(2.0 * x) + drift


@pytest.mark.slow
@pytest.mark.usefixtures("full_size")
@pytest.mark.parametrize("rows", [700, pytest.param(4600, marks=pytest.mark.long)])
def test_forecasts_of_a_series_use_the_other_columns(rows):
    X, y = series_with_a_column(rows + 400)
    found = agp.fit_regression(X[:rows], y[:rows], times=(0,), method="nngp" if rows > 4000 else "gpr")
    mean = found.model.predict_mean(X[rows:])[:, 0]
    function = np.sin(2.0 * X[rows:, 1])
    assert np.std(mean - function) < 0.45 * np.std(function)
    density = found.model.predictor().log_density(X[rows:], y[rows:, None]).mean()
    assert density > -0.5 * np.log(2.0 * np.pi * np.e * np.var(y[rows:] - function)) - 0.15


def test_times_stay_if_forecasts_need_them():
    X, y = series_with_a_column(700)
    y = np.sin(2.0 * X[:, 1]) + 0.8 * X[:, 0] + 0.1 * np.random.default_rng(1).standard_normal(700)
    assert WITHOUT not in agp.fit_regression(X, y, times=(0,)).kernel
