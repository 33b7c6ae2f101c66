"""What the cells of columns mean, and what is said of columns that cannot be used."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="data frames are those of pandas")
nw = pytest.importorskip("narwhals.stable.v2", reason="tables need narwhals")

from agp.tables import CATEGORY, DAYS, DURATION, NUMBER, UNSEEN, ColumnError, Columns, as_frame  # noqa: E402
from agp.tables._cells import DAYS_UTC, kind_of, plain_column, time_in  # noqa: E402

DATES = pd.Series(pd.date_range("2023", periods=40, freq="6h", tz="America/New_York"))

KINDS = {
    "whole numbers": ([1, 2, 3], NUMBER),
    "decimals": ([Decimal("1.5"), None], NUMBER),
    "Booleans beside a gap": ([True, None, False], NUMBER),
    "texts of numbers": (["1", " 2.50 ", "-3e-4", None], NUMBER),
    "texts of Booleans": (["TRUE", "false", ""], NUMBER),
    "gaps": ([None, None], NUMBER),
    "codes": (pd.Series([1, 2, 1], dtype="category"), CATEGORY),
    "words": (["a", "b", None], CATEGORY),
    "a few numbers and a word": (["4", "6", "rotary", "4"], CATEGORY),
    "words and some numbers": (["1", "b", "c"], CATEGORY),
    "words and Booleans": (["a", True], CATEGORY),
    "ranges": (pd.cut(pd.Series([1.0, 2.0, 3.0]), 2), CATEGORY),
    "dates as text": (["2023-01-31", "2023-2-1"], DAYS),
    "months": (["2023-01", "2023-02"], DAYS),
    "days first": (["31.1.2023", "1.2.2023"], DAYS),
    "months first": (["1/31/2023 2:30 PM", "2/1/2023 11:00 am"], DAYS),
    "zones": (["2023-01-31T10:00:00+01:00", "2023-01-31 10:00 UTC"], DAYS_UTC),
    "a zone with a line below": (DATES, DAYS_UTC),
    "a zone with digits": (DATES.dt.tz_convert("Etc/GMT+3"), DAYS_UTC),
    "objects of dates": ([dt.date(2023, 1, 1), None], DAYS),
    "durations as text": (["3 days 12:00:00", "26:30:00", " 1 day, 0:00:00", "", None], DURATION),
    "days and other words": (["3 days", "later"], CATEGORY),
    "hours or minutes": (["26:30", "12:15"], CATEGORY),
    "durations": (pd.to_timedelta(pd.Series([1.0, 2.0]), unit="D"), DURATION),
}


def series(cells):
    return plain_column(nw.from_native(pd.Series(cells, name="c"), series_only=True))


@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_columns(name):
    cells, kind = KINDS[name]
    assert kind_of(series(cells)) == kind


def test_durations_as_text_are_those_of_pandas_and_python():
    spans = pd.Series(pd.to_timedelta([84.0, 26.5, 0.0, -12.0, -60.25, 1e-4, 48.0], unit="h"))
    for texts in (spans.astype(str), spans.map(lambda span: str(span.to_pytimedelta())), ["84:00:00", "26:30:00"]):
        cells = Columns().learn(as_frame(pd.DataFrame({"took": texts})))
        np.testing.assert_allclose(cells.numbers[:, 0] * 24.0, spans[: len(texts)] / pd.Timedelta(hours=1), atol=1e-9)


@pytest.mark.parametrize("text", ["-1 days 12:00:00", "1:60:00", "9999999999 days"])
def test_texts_that_are_no_durations_are_told(text):
    with pytest.raises(ColumnError, match="in row 1, which is not a duration; write durations as in '3 days 12"):
        Columns().learn(as_frame(pd.DataFrame({"took": ["26:30:00", text]})))


def test_zones_are_times_in_utc():
    columns = Columns()
    cells = columns.learn(as_frame(pd.DataFrame({"when": DATES})))
    expected = (DATES.dt.tz_convert("UTC") - pd.Timestamp("1970-01-01", tz="UTC")) / pd.Timedelta(days=1)
    np.testing.assert_allclose(cells.numbers[:, 0], expected, rtol=0.0, atol=1e-9)


BAD = {
    "an error among numbers": (
        [*map(str, range(12)), "x"],
        "'x' in row 12, which is not a number; correct it, or empty the cell",
    ),
    "ambiguous dates": (["1/2/2023", "2/1/2023"], "has ambiguous dates such as '1/2/2023'; write them as in 2020-12"),
    "formats of dates": (["13/1/2023", "1/13/2023"], "has dates in several formats, such as '13/1/2023'; write them"),
    "a zone for some": (
        ["2023-01-01 10:00Z", "2023-01-01 10:00"],
        "has a time without a time zone in row 1, but other cells have one; add a time zone to every cell",
    ),
    "no date": (["2023-01-31", "2023-02-30"], "has '2023-02-30' in row 1, which is not a date; write dates as in"),
    "numbers and words": ([1, "a"], "holds int and str values; convert all of them to numbers or to text, or leave it"),
    "dates and durations": ([dt.date(2023, 1, 1), dt.timedelta(1)], "holds dates and durations; convert all of them"),
    "clocks": ([dt.time(12)], "holds time values; convert all of them to numbers or to text, or leave it out"),
    "periods": (pd.Series(pd.period_range("2023", periods=3, freq="M")), r"holds period\[M\]; convert it to numbers"),
    "sparse": (pd.Series(pd.arrays.SparseArray([0.0, 1.0])), "holds Sparse"),
    "complex": ([1j, 2.0], "holds complex128; convert it to numbers, dates or text, or leave it out"),
    "infinite": ([1.0, np.inf], "has an infinite number in row 1; correct it, or empty the cell"),
    "missing": ([1.0, None], "has a missing cell in row 1; fill it in, or set missing='impute'"),
    "missing text": (["a", "a", " "], "has a missing cell in row 2; fill it in, or set missing='impute'"),
}


@pytest.mark.parametrize("name", BAD)
def test_columns_that_cannot_be_used_are_told_in_one_sentence(name):
    cells, words = BAD[name]
    with pytest.raises(ColumnError, match=words) as caught:
        Columns().learn(as_frame(pd.DataFrame({"c": cells})))
    assert str(caught.value).startswith("column 'c' ")
    assert "\n" not in str(caught.value)
    if caught.value.row is not None:
        assert caught.value.at("line 7").startswith("line 7, column 'c' has ")


def test_lazy_data_frames_are_told():
    polars = pytest.importorskip("polars", reason="polars is not installed: not executed")
    with pytest.raises(TypeError, match=r"X is a lazy data frame, whose rows are not known yet; pass X.collect\(\)"):
        as_frame(polars.DataFrame({"a": [1.0]}).lazy())


def test_cells_become_numbers_and_codes():
    frame = pd.DataFrame({"kind": ["b", None, "a", "b", "a"], "x": ["1", "2.5", None, "4", "5"]})
    columns = Columns("impute")
    with pytest.warns(UserWarning, match="column 'x' holds numbers as text"):
        numbers, codes = columns.learn(as_frame(frame))
    np.testing.assert_array_equal(numbers[:, 0], [1.0, 2.5, np.nan, 4.0, 5.0])
    assert columns.levels == {"kind": ["a", "b", None]}
    np.testing.assert_array_equal(codes[:, 0], [1, 2, 0, 1, 0])
    new = as_frame(pd.DataFrame({"kind": ["c", "a "], "x": [1, 2]}))
    np.testing.assert_array_equal(columns.read(new).codes[:, 0], [UNSEEN, 0])
    assert columns.unseen(new) == {"kind": ["c"]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2023-01-31", dt.datetime(2023, 1, 31)),
        ("2023/1/31 4:05", dt.datetime(2023, 1, 31, 4, 5)),
        ("31.01.2023 12:00:01.5", dt.datetime(2023, 1, 31, 12, 0, 1, 500000)),
        ("31.01.2023 12:30 am", dt.datetime(2023, 1, 31, 0, 30)),
        ("2023-01-31T12:30:00 +0100", dt.datetime(2023, 1, 31, 12, 30, tzinfo=dt.timezone(dt.timedelta(hours=1)))),
        ("2023-01-31 12:30 GMT", dt.datetime(2023, 1, 31, 12, 30, tzinfo=dt.UTC)),
        ("31.01.23", None),
        ("2023-13-01", None),
        ("2023-01-31 25:00", None),
        ("today", None),
    ],
)
def test_times_in_texts(text, expected):
    assert time_in(text, day_first=True) == expected
