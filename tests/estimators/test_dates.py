"""Dates, times and durations in data frames: days, in one unit."""

import datetime as dt
import warnings

import numpy as np
import pytest

import agp

pd = pytest.importorskip("pandas", reason="data frames are those of pandas")
pytest.importorskip("sklearn", reason="estimators need the extra sklearn")

from agp.estimators import GPRegressor  # noqa: E402

N = 60
DAYS = 18262.0 + np.arange(N) / 4.0  # four times a day from 2020-01-01 on
TIMES = pd.Series(pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(N) * 6, unit="h"))
Y = np.sin(0.5 * np.arange(N)) + 0.1 * np.random.default_rng(0).normal(size=N)
SINCE, SINCE_UTC = "when [days since 1970-01-01]", "when [days since 1970-01-01 UTC]"


def trained(cells, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", agp.errors.ConvergenceWarning)
        return GPRegressor(kernel="rbf", max_steps=2, **settings).fit(pd.DataFrame({"when": cells}), Y)


def inputs(model, cells):
    return model.model_inputs(pd.DataFrame({"when": cells}))[:, 0]


CELLS = {
    "nanoseconds": (TIMES.astype("datetime64[ns]"), SINCE),
    "milliseconds": (TIMES.astype("datetime64[ms]"), SINCE),
    "objects": (pd.Series([t.to_pydatetime() for t in TIMES], dtype=object), SINCE),
    "zone": (TIMES.dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"), SINCE_UTC),
    "durations": (TIMES - pd.Timestamp(0), "when [days]"),
    "duration objects": (pd.Series([dt.timedelta(days=d) for d in DAYS], dtype=object), "when [days]"),
}


@pytest.mark.parametrize("name", CELLS)
def test_times_become_days(name):
    cells, column = CELLS[name]
    model = trained(cells)
    assert model.model_columns() == [column]
    np.testing.assert_allclose(inputs(model, cells), DAYS, rtol=0.0, atol=1e-10)


def test_dates_and_times_are_of_one_kind():
    dates = pd.Series([dt.date(2020, 1, 1 + i % 28) for i in range(N)], dtype=object)
    model = trained(dates)
    np.testing.assert_array_equal(inputs(model, dates), 18262.0 + np.arange(N) % 28)
    np.testing.assert_allclose(inputs(model, TIMES), DAYS)
    assert inputs(model, pd.Series([dt.date(1969, 12, 31)], dtype=object)) == [-1.0]


def test_time_zones_are_no_matter_of_the_moment():
    model = trained(TIMES.dt.tz_localize("UTC"))
    zones = ("Europe/Berlin", "America/New_York")
    several = pd.Series([t.tz_localize("UTC").tz_convert(zones[i % 2]) for i, t in enumerate(TIMES)], dtype=object)
    np.testing.assert_allclose(inputs(model, several), DAYS)
    with pytest.raises(ValueError, match="column 'when' holds dates, but held times with a time zone in training"):
        inputs(model, TIMES)
    mixed = several.copy()
    mixed[3] = TIMES[3]
    with pytest.raises(ValueError, match="column 'when' holds dates and times with a time zone; convert all of them"):
        trained(mixed)


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (TIMES, DAYS, "holds numbers, but held dates"),
        (DAYS, TIMES, "holds dates, but held numbers"),
        (TIMES, TIMES - TIMES[0], "holds durations, but held dates"),
        (TIMES, ["early"] * N, "holds text, but held dates"),
    ],
)
def test_predictions_follow_the_kind_of_training(before, now, words):
    with pytest.raises(ValueError, match=f"column 'when' {words} in training"):
        inputs(trained(before), now)


@pytest.mark.slow
@pytest.mark.parametrize("objects", [False, True])
def test_missing_times_are_refused_or_imputed(objects):
    cells = TIMES.where(np.arange(N) != 3)
    cells = cells.astype(object) if objects else cells
    with pytest.raises(
        ValueError, match="column 'when' has a missing cell in row 3 .counted from 0.; fill it in, or set missing="
    ):
        trained(cells)
    model = trained(cells, missing="impute")
    assert model.model_columns() == [SINCE, "when is missing"]
    expected = np.where(np.arange(N) == 3, np.delete(DAYS, 3).mean(), DAYS)
    np.testing.assert_allclose(inputs(model, cells), expected)
    np.testing.assert_allclose(inputs(model, pd.Series([pd.NaT, pd.NaT])), expected[3])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::agp.errors.NoSignalWarning")
def test_years_are_numbers_and_dates_may_be_text():
    assert trained(2000 + np.arange(N)).model_columns() == ["when"]
    assert trained([f"2020-01-0{i % 9 + 1}" for i in range(N)]).model_columns() == [SINCE]
    texts = trained([f"early {i % 9 + 1}" for i in range(N)])
    assert texts.model_columns() == ["when"]
    assert texts.columns_.levels == {"when": [f"early {i}" for i in range(1, 10)]}


PERIODS = {"years": "Y-DEC", "quarters": "Q-DEC", "months": "M", "weeks": "W-SUN", "days": "D", "hours": "h"}


@pytest.mark.parametrize("name", PERIODS)
def test_periods_are_dates_of_their_starts(name):
    periods = pd.Series(pd.period_range("1975-01-01", periods=N, freq=PERIODS[name]))
    starts, new = periods.dt.to_timestamp(), periods + 7
    model, other = trained(periods), trained(starts)
    assert model.model_columns() == other.model_columns() == [SINCE]
    answers = [
        one.predict(pd.DataFrame({"when": cells}), return_std=True)
        for one in (model, other)
        for cells in (new, new.dt.to_timestamp())
    ]
    for found in answers[1:]:
        np.testing.assert_array_equal(found, answers[0])
    if name == "months":
        np.testing.assert_array_equal(inputs(model, new.astype(str)), inputs(model, new))


def test_missing_periods_are_refused_or_imputed():
    periods = pd.Series(pd.period_range("2020-01", periods=N, freq="M"))
    gaps = periods.where(np.arange(N) != 3)
    with pytest.raises(ValueError, match=r"column 'when' has a missing cell in row 3"):
        trained(gaps)
    with pytest.raises(ValueError, match=r"column 'when' has a missing cell in row 3"):
        trained(periods).predict(pd.DataFrame({"when": gaps}))
    found, other = trained(gaps, missing="impute"), trained(gaps.dt.to_timestamp(), missing="impute")
    np.testing.assert_array_equal(inputs(found, gaps), inputs(other, gaps.dt.to_timestamp()))


def test_forecasts_of_a_monthly_series_are_those_of_its_dates():
    months = pd.Series(pd.period_range("2010-01", periods=48, freq="M"))
    sales = np.sin(2.0 * np.pi * np.arange(48) / 12.0) + 0.02 * np.arange(48)
    later = pd.DataFrame({"month": pd.period_range("2014-01", periods=6, freq="M")})
    settings = {"hyperparameters": "mode", "random_state": 0}
    found = GPRegressor(**settings).fit(pd.DataFrame({"month": months}), sales)
    other = GPRegressor(**settings).fit(pd.DataFrame({"month": months.dt.to_timestamp()}), sales)
    assert found.kernel_ == other.kernel_
    expected = other.predict(later.apply(lambda column: column.dt.to_timestamp()), return_std=True)
    np.testing.assert_array_equal(found.predict(later, return_std=True), expected)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["parquet", "feather"])
def test_periods_in_files_and_the_shell(ending, tmp_path, monkeypatch, capsys):
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: not executed")
    from agp.cli import main

    monkeypatch.chdir(tmp_path)
    periods = pd.Series(pd.period_range("2010-01", periods=N, freq="M"))
    for name, cells in (("periods", periods), ("starts", periods.dt.to_timestamp())):
        table = pd.DataFrame({"when": cells, "y": Y})
        (table.to_parquet if ending == "parquet" else table.to_feather)(f"{name}.{ending}")
        call = ["fit", f"{name}.{ending}", "--target", "y", "--kernel", "rbf", "--max-steps", "2", "-q"]
        assert main([*call, "--out", f"{name}.safetensors"]) == 0
        assert main(["predict", f"{name}.safetensors", f"{name}.{ending}", "--out", f"{name}.csv", "-q"]) == 0
    assert (tmp_path / "periods.csv").read_text() == (tmp_path / "starts.csv").read_text()
    capsys.readouterr()
    model = agp.load("periods.safetensors")
    np.testing.assert_array_equal(inputs(model, periods), inputs(model, periods.dt.to_timestamp()))


@pytest.mark.slow
def test_arrow_tables_and_files(tmp_path):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: not executed")
    model = trained(TIMES)
    table = pa.table({"when": pa.array([*TIMES.dt.date, None], pa.date32())})
    with pytest.raises(ValueError, match="missing cell in row 60"):
        model.predict(table)
    np.testing.assert_array_equal(model.model_inputs(table[:N])[:, 0], np.floor(DAYS))
    agp.save(model, tmp_path / "m.safetensors")
    found = agp.load(tmp_path / "m.safetensors")
    assert found.model_columns() == [SINCE]
    np.testing.assert_array_equal(found.predict(table[:N]), model.predict(table[:N]))


@pytest.mark.long
def test_units_do_not_matter():
    when = TIMES.to_frame(name="when")
    answers = [GPRegressor().fit(X, Y).predict(X, return_std=True) for X in (when, when.astype("datetime64[us]"))]
    np.testing.assert_allclose(*answers, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_a_known_season_goes_on_and_is_not_trained():
    months = pd.DataFrame({"month": pd.date_range("2000-01-01", periods=144, freq="MS")})
    phase = 2.0 * np.pi * ((months["month"] - pd.Timestamp(0)) / pd.Timedelta(days=365.25)).to_numpy()
    y = np.sin(phase) + 0.5 * np.cos(2.0 * phase) + 0.1 * np.random.default_rng(1).normal(size=144)
    model = GPRegressor(kernel="seasonal(365.25) * rbf + matern32").fit(months[:96], y[:96])
    assert float(agp.tree.leaves(model.model_.kernel)["parts.0.parts.0.period"]) == 365.25
    assert np.sqrt(np.mean((model.predict(months[96:]) - y[96:]) ** 2)) < 0.2


def test_a_table_with_only_a_column_of_dates_has_forecasts_with_trend_and_season():
    months = pd.date_range("2000-01-01", periods=144, freq="MS")
    years = (months - months[0]) / pd.Timedelta(days=365.25)
    y = 0.5 * years + np.sin(2.0 * np.pi * years) + 0.1 * np.random.default_rng(1).normal(size=144)
    for dates in (months, months.strftime("%Y/%m/%d 00:00"), months.strftime("%d.%m.%Y")):
        table = pd.DataFrame({"date": dates})
        model = GPRegressor(random_state=0).fit(table[:96], y[:96])
        assert model.left_out_ == []
        assert "seasonal(365.25)" in model.kernel_
        assert np.sqrt(np.mean((model.predict(table[96:120]) - y[96:120]) ** 2)) < 0.25


def test_dates_are_times_of_regression_but_durations_are_not():
    table = pd.DataFrame(
        {"size": np.arange(30.0) ** 2, "when": pd.date_range("2020", periods=30), "took": TIMES[:30] - TIMES[0]}
    )
    columns = GPRegressor().fit(table, np.random.default_rng(0).standard_normal(30) + np.arange(30.0)).columns_
    assert columns.names()[1].startswith("when")
    assert columns.dates == (1,)
