"""What the cells of columns mean, and what is said of columns that cannot be used."""

import datetime as dt
import re
import time
import warnings
from decimal import Decimal

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="data frames are those of pandas")
nw = pytest.importorskip("narwhals.stable.v2", reason="tables need narwhals")

from agp.errors import ColumnWarning  # noqa: E402
from agp.tables import CATEGORY, DAYS, DURATION, NUMBER, ORDERED, UNSEEN, ColumnError, Columns, as_frame  # noqa: E402
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
    "book numbers": ([f"0{39000000 + 77 * i}" for i in range(30)] + ["039000838X"], CATEGORY),
    "words and Booleans": (["a", True], CATEGORY),
    "ranges": (pd.cut(pd.Series([1.0, 2.0, 3.0]), 2), ORDERED),
    "grades": (pd.Categorical(["low", None, "high"], ["low", "middle", "high"], ordered=True), ORDERED),
    "dates as categories": (pd.Categorical(pd.to_datetime(["2023-01-01", "2023-01-02"])), CATEGORY),
    "percentages": (["12%", "3.5 %", "-1%", None], NUMBER),
    "money": (["$1,200", "$ 0.50", "-$3", "($4)", "0"], NUMBER),
    "decimal commas": (["1,5", "1.000,25", "3"], NUMBER),
    "limits": (["< 5", "< 10", "> 20"], CATEGORY),
    "units": (["12 kg", "3 kg"], NUMBER),
    "two currencies": (["$5", "€7"], CATEGORY),
    "some percentages": (["5%", "7"], CATEGORY),
    "words with commas": (["1, 5", "a,b"], CATEGORY),
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
    "periods": (pd.Series(pd.PeriodIndex(["2023-01", None, "2023-03"], freq="M")), DAYS),
    "no periods": (pd.Series(pd.PeriodIndex([None, None], freq="M")), DAYS),
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
    with pytest.raises(
        ColumnError, match="in row 1 .counted from 0., which is not a duration; write durations as in '3 days 12"
    ):
        Columns().learn(as_frame(pd.DataFrame({"took": ["26:30:00", text]})))


def test_zones_are_times_in_utc():
    columns = Columns()
    cells = columns.learn(as_frame(pd.DataFrame({"when": DATES})))
    expected = (DATES.dt.tz_convert("UTC") - pd.Timestamp("1970-01-01", tz="UTC")) / pd.Timedelta(days=1)
    np.testing.assert_allclose(cells.numbers[:, 0], expected, rtol=0.0, atol=1e-9)


BAD = {
    "an error among numbers": (
        [*map(str, range(12)), "x"],
        "'x' in row 12 .counted from 0., which is not a number; correct it, or empty the cell",
    ),
    "ambiguous dates": (["1/2/2023", "2/1/2023"], "has ambiguous dates such as '1/2/2023'; write them as in 2020-12"),
    "formats of dates": (["13/1/2023", "1/13/2023"], "has dates in several formats, such as '13/1/2023'; write them"),
    "a zone for some": (
        ["2023-01-01 10:00Z", "2023-01-01 10:00"],
        "has a time without a time zone in row 1 .counted from 0., but other cells have one; add a time zone",
    ),
    "no date": (
        ["2023-01-31", "2023-02-30"],
        "has '2023-02-30' in row 1 .counted from 0., which is not a date; write dates as in",
    ),
    "numbers and words": (
        [1, "a"],
        "holds int and str values; convert all of them to one type: float, dates or text; or leave",
    ),
    "dates and durations": ([dt.date(2023, 1, 1), dt.timedelta(1)], "holds dates and durations; convert all of them"),
    "clocks": ([dt.time(12)], "holds time values; convert all of them to one type: float, dates or text; or leave"),
    "ranges of one type": (
        pd.Series(pd.interval_range(0, 3)),
        r"holds cells of type interval\[int64, right\]; convert them to float",
    ),
    "lists": ([[1], [2]], "holds list values; convert all of them to one type: float, dates or text; or leave"),
    "bytes": ([b"a", b"b"], "holds bytes values; convert all of them to one type: float, dates or text; or leave"),
    "an error among percentages": (
        [*(f"{i}%" for i in range(12)), "x"],
        "'x' in row 12 .counted from 0., which is not a percentage; correct it, or empty the cell",
    ),
    "a number among percentages": (
        [*(f"{i}%" for i in range(12)), "0.5"],
        "'0.5' in row 12 .counted from 0., which is not a percentage",
    ),
    "a currency among another": (
        [*(f"${i}" for i in range(12)), "€5"],
        r"'€5' in row 12 .counted from 0., which is not an amount in \$",
    ),
    "a point among commas": (
        [*(f"{i},5" for i in range(12)), "1.5"],
        "'1.5' in row 12 .counted from 0., which is not a number with a decimal comma",
    ),
    "limits among numbers": (
        [*(f"{i},000" for i in range(1, 13)), "< 5"],
        "'< 5' in row 12 .counted from 0., which is a limit, not a number; write a number, such as half of the limit",
    ),
    "complex": ([1j, 2.0], "holds cells of type complex128; convert them to float, dates or text, or leave it out"),
    "infinite": ([1.0, np.inf], "has an infinite number in row 1 .counted from 0.; correct it, or empty the cell"),
    "missing": ([1.0, None], "has a missing cell in row 1 .counted from 0.; fill it in, or set missing='impute'"),
    "missing text": (
        ["a", "a", " "],
        "has a missing cell in row 2 .counted from 0.; fill it in, or set missing='impute'",
    ),
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


def test_lazy_data_frames_of_polars_are_computed():
    polars = pytest.importorskip("polars", reason="polars is not installed: not executed")
    assert as_frame(polars.DataFrame({"a": [1.0]}).lazy()).to_dict(as_series=False) == {"a": [1.0]}


def _dask(frame):
    dask = pytest.importorskip("dask.dataframe", reason="dask is not installed: not executed")
    return dask.from_pandas(frame, npartitions=1)


def _duckdb(frame):
    return pytest.importorskip("duckdb", reason="duckdb is not installed: not executed").from_df(frame)


def _ibis(frame):
    return pytest.importorskip("ibis", reason="ibis is not installed: not executed").memtable(frame)


@pytest.mark.parametrize(("lazy", "call"), [(_dask, "compute"), (_duckdb, "df"), (_ibis, "to_pandas")])
def test_lazy_data_frames_of_other_libraries_are_told(lazy, call):
    rows = lazy(pd.DataFrame({"a": [1.0, 2.0]}))
    with pytest.raises(TypeError, match=rf"^X is a lazy data frame, .*not known yet; pass X.{call}\(\)\.$"):
        as_frame(rows)
    assert as_frame(getattr(rows, call)()).shape == (2, 1)


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


# -- numbers as people write them -------------------------------------------------------------------------------------

NUMBERS = {
    "percentages": (
        ["12%", " 3.5 % ", "(1%)"],
        [12.0, 3.5, -1.0],
        r"percentages as text, where '12%' is read as 12 and '\(1%\)' is read as -1; convert",
    ),
    "commas of thousands": (["1,000", "12"], [1000.0, 12.0], "'1,000' is read as 1000; convert"),
    "commas and points": (["1,054.95", "1,000"], [1054.95, 1000.0], "'1,054.95' is read as 1054.95; convert"),
    "Indian numbers": (["12,34,567", "1"], [1234567.0, 1.0], "'12,34,567' is read as 1234567; convert"),
    "dollars": (
        ["$1,200", "-$5.50", "+3"],
        [1200.0, -5.5, 3.0],
        r"amounts in \$ as text, where '\$1,200' is read as 1200",
    ),
    "euros": (["€ 9.50", "1 000 €"], [9.5, 1000.0], "amounts in € as text, where '€ 9.50' is read as 9.5"),
    "parentheses": (["(1,200.5)", "7"], [-1200.5, 7.0], r"'\(1,200.5\)' is read as -1200.5"),
    "decimal commas": (
        ["1,5", "-2,25"],
        [1.5, -2.25],
        "where '1,5' is read as 1.5; convert",
    ),
    "a zero before the comma": (["1,500", "0,250"], [1.5, 0.25], "'1,500' is read as 1.5; convert"),
    "points of thousands": (["1.500", "2.000,5"], [1500.0, 2000.5], "'2.000,5' is read as 2000.5"),
    "points alone": (["1.500.000", "2"], [1.5e6, 2.0], "'1.500.000' is read as 1500000"),
    "blanks": (["1 000", "12 345 678"], [1000.0, 12345678.0], "'1 000' is read as 1000; convert"),
    "narrow blanks": (["1\u00a0000", "2\u202f000,5"], [1000.0, 2000.5], "is read as 1000; convert"),
    "apostrophes": (["1'000.5", "2"], [1000.5, 2.0], "numbers as text"),
    "minus signs": (["\u22125", "2"], [-5.0, 2.0], "numbers as text"),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_read_as_people_write_them(name):
    cells, expected, words = NUMBERS[name]
    columns = Columns("impute")
    with pytest.warns(ColumnWarning, match=words) as told:
        found = columns.learn(as_frame(pd.DataFrame({"c": [*cells, None]})))
    assert len(told) == 1
    np.testing.assert_array_equal(found.numbers[:, 0], [*expected, np.nan])
    again = columns.read(as_frame(pd.DataFrame({"c": [cells[0], np.nan]}))).numbers[:, 0]
    np.testing.assert_array_equal(again, [expected[0], np.nan])  # whatever the other cells are


def learned(cells):
    columns = Columns()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ColumnWarning)
        columns.learn(as_frame(pd.DataFrame({"c": cells})))
    return columns


@pytest.mark.parametrize(
    ("training", "new", "expected"),
    [
        (["1,5", "2"], ["1,500", "2.000"], [1.5, 2000.0]),  # not 1500
        (["1,054.95"], ["1,500", "2"], [1500.0, 2.0]),
        (["$5"], ["$1,500", "2"], [1500.0, 2.0]),
        (["12%"], pd.Series([12.0, 3.0]), [12.0, 3.0]),
        ([1.5, 2.0], ["$1,500", "2"], [1500.0, 2.0]),
        ([1.5, 2.0], ["1,5", "2"], [1.5, 2.0]),
    ],
)
def test_new_texts_are_read_as_in_training(training, new, expected):
    np.testing.assert_array_equal(learned(training).read(as_frame(pd.DataFrame({"c": new}))).numbers[:, 0], expected)


@pytest.mark.parametrize(
    ("training", "new", "words"),
    [
        (
            ["1,5", "2"],
            ["1,5", "1.5"],
            "has '1.5' in row 1 .counted from 0., which is not a number with a decimal comma; correct it",
        ),
        (["12%", "2%"], ["3%", "0.5"], "has '0.5' in row 1 .counted from 0., which is not a percentage; correct it"),
        (["$5", "2"], ["$5", "€3"], r"has '€3' in row 1 .counted from 0., which is not an amount in \$; correct it"),
        (
            [0.12, 0.5],
            ["12%", "50%"],
            "holds percentages, but held plain numbers in training; remove the percent signs",
        ),
        (
            [1.5, 2.0],
            ["1", "1,500"],
            "has '1,500' in row 1 .counted from 0., which may mean 1500 or 1.5; write numbers without com",
        ),
        ([1.5, 2.0], ["a", "b"], "holds text, but held numbers in training"),
    ],
)
def test_new_texts_of_another_style_are_told(training, new, words):
    with pytest.raises(ColumnError, match=words):
        learned(training).read(as_frame(pd.DataFrame({"c": new})))


# -- ordered categories -----------------------------------------------------------------------------------------------

SIZES = ["small", "middle", "large", "huge"]


def ordered(cells, library):
    frame = pd.DataFrame({"size": pd.Categorical(cells, SIZES, ordered=True)})
    if library == "pandas":
        return as_frame(frame)
    if library == "pyarrow":
        arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: not executed")
        return as_frame(arrow.Table.from_pandas(frame))
    polars = pytest.importorskip("polars", reason="polars is not installed: not executed")
    return as_frame(polars.DataFrame({"size": polars.Series(cells, dtype=polars.Enum(SIZES))}))


@pytest.mark.parametrize("library", ["pandas", "pyarrow", "polars"])
def test_ordered_categories_are_the_positions_of_their_levels(library):
    columns = Columns("impute")
    cells = columns.learn(ordered(["large", "small", None, "large"], library))
    np.testing.assert_array_equal(cells.numbers[:, 0], [2.0, 0.0, np.nan, 2.0])
    assert (columns.kinds, columns.orders, columns.levels) == ({"size": ORDERED}, {"size": SIZES}, {})
    assert columns.numbers == ["size"]
    for new in (ordered(["huge", "middle"], library), as_frame(pd.DataFrame({"size": ["huge ", "middle"]}))):
        np.testing.assert_array_equal(columns.read(new).numbers[:, 0], [3.0, 1.0])
    other = as_frame(pd.DataFrame({"size": ["small", "vast"]}))
    with pytest.raises(
        ColumnError,
        match="has 'vast' in row 1 .counted from 0., which is not one of the ordered levels 'small', 'middle",
    ):
        columns.read(other)
    columns.missing = "refuse"
    with pytest.raises(ColumnError, match="column 'size' has a missing cell in row 0 .counted from 0.; fill it in"):
        columns.read(ordered([None, "small"], library))


def test_ordered_numbers_keep_their_order_and_other_categories_have_none():
    falling = pd.Categorical([10, 30] * 2, [30, 20, 10], ordered=True)
    columns = Columns()
    cells = columns.learn(as_frame(pd.DataFrame({"a": falling, "b": pd.Categorical([10, 30] * 2)})))
    np.testing.assert_array_equal(cells.numbers[:, 0], [2.0, 0.0] * 2)
    assert (columns.orders, columns.levels) == ({"a": ["30", "20", "10"]}, {"b": ["10", "30"]})
    found = columns.read(as_frame(pd.DataFrame({"a": [20.0, 10.0], "b": [30.0, 10.0]})))
    np.testing.assert_array_equal(found.numbers[:, 0], [1.0, 2.0])
    np.testing.assert_array_equal(found.codes[:, 0], [1, 0])


# -- other types ------------------------------------------------------------------------------------------------------


def test_sparse_columns_are_numbers():
    cells = Columns().learn(as_frame(pd.DataFrame({"c": pd.arrays.SparseArray([0.0, 2.0, 0.0])})))
    np.testing.assert_array_equal(cells.numbers[:, 0], [0.0, 2.0, 0.0])


def test_dates_as_categories_are_the_same_levels_as_their_texts():
    days = pd.Series(pd.Categorical(pd.to_datetime(["2023-01-01", "2023-01-02"] * 2)))
    columns = Columns()
    columns.learn(as_frame(pd.DataFrame({"c": days})))
    assert columns.levels == {"c": ["2023-01-01", "2023-01-02"]}
    for new in (["2023-01-02"], [dt.date(2023, 1, 2)], pd.to_datetime(["2023-01-02"])):
        np.testing.assert_array_equal(columns.read(as_frame(pd.DataFrame({"c": new}))).codes, [[1]])


@pytest.mark.parametrize("kind", ["List", "Binary", "Struct", "Array"])
def test_nested_columns_of_polars_are_told(kind):
    polars = pytest.importorskip("polars", reason="polars is not installed: not executed")
    cells = {
        "List": [[1]],
        "Binary": [b"a"],
        "Struct": [{"a": 1}],
        "Array": polars.Series([[1]], dtype=polars.Array(int, 1)),
    }
    with pytest.raises(ColumnError, match=f"column 'c' holds cells of type {kind}.*; convert them to float, dates"):
        Columns().learn(as_frame(polars.DataFrame({"c": cells[kind]})))


@pytest.mark.parametrize("ordered", [True, False])
def test_arrow_categories_of_intervals_are_refused(ordered):
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: not executed")
    ranges = pd.Series(pd.cut(np.linspace(-1.0, 1.0, 6), 3, ordered=ordered, labels=pd.interval_range(0, 3)))
    table = arrow.Table.from_pandas(pd.DataFrame({"c": ranges}), preserve_index=False)
    with pytest.raises(ColumnError, match="column 'c' holds cells of type category of extension.*; convert them to fl"):
        Columns().learn(as_frame(table))


def test_columns_of_null_of_any_type_are_left_out():
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: not executed")
    for kind in (arrow.null(), arrow.month_day_nano_interval(), arrow.list_(arrow.int64())):
        table = arrow.table({"x": [1.0, 2.0], "c": arrow.array([None, None], kind)})
        columns = Columns()
        with pytest.warns(ColumnWarning, match="column 'c' is left out, because all its cells are empty"):
            columns.learn(as_frame(table))


def test_the_first_and_the_last_day_are_learned():
    columns = Columns("impute")
    columns.learn(as_frame(pd.DataFrame({"when": ["2023-01-31", None, "2022-12-01"], "x": [1.0, 2.0, 3.0]})))
    assert columns.ranges == {"when": (19327.0, 19388.0)}


@pytest.mark.slow
@pytest.mark.parametrize("library", ["pandas", "pyarrow", "polars"])
def test_long_columns_of_text_and_wide_tables_are_read_in_no_time(library):
    rng = np.random.default_rng(0)
    words = np.asarray([f"level {i}" for i in range(1000)], dtype=object)
    tables = [pd.DataFrame({"c": words[rng.integers(1000, size=300_000)]})]
    tables.append(pd.DataFrame(words[rng.integers(20, size=(200, 1000))]).rename(columns=str))
    if library != "pandas":
        pytest.importorskip(library, reason=f"{library} is not installed: not executed")
        tables = [
            nw.from_native(table).to_arrow() if library == "pyarrow" else nw.from_native(table).to_polars()
            for table in tables
        ]
    for table in tables:
        columns, began = Columns(), time.process_time()
        columns.learn(as_frame(table))
        columns.read(as_frame(table))
        assert time.process_time() - began < 3.0  # about 0.3 s


# -- times ------------------------------------------------------------------------------------------------------------


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


def test_numbers_beside_much_other_text_are_categories():
    texts = [str(1000 + 10 * (i % 25)) if i % 3 else f"{i % 20}00 - {i % 20 + 2}00 m" for i in range(300)]
    columns = Columns()
    with pytest.warns(ColumnWarning, match="holds numbers and other text, which are used as categories"):
        columns.learn(as_frame(pd.DataFrame({"altitude": texts, "x": np.arange(300.0) % 7})))
    assert columns.categories == ["altitude"]


@pytest.mark.parametrize("gap", ["nil", "NA", "-", "?", "n/a", "."])
@pytest.mark.parametrize("number", ["{}.5", "{}%", "$1,{}00"])
def test_marks_of_missing_cells_among_numbers(gap, number):
    texts = [number.format(i % 9 + 1) for i in range(30)]
    frame = pd.DataFrame({"x": [*texts, gap], "z": np.arange(31.0) % 7})
    columns = Columns("impute")
    with pytest.warns(ColumnWarning, match=f"{re.escape(repr(gap))} counts as a missing cell"):
        cells = columns.learn(as_frame(frame))
    assert columns.kinds["x"] == NUMBER
    assert np.isnan(cells.numbers[-1, 0])
    assert not np.isnan(cells.numbers[:-1, 0]).any()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ColumnWarning)
        with pytest.raises(ColumnError, match="has a missing cell in row 30"):
            Columns().learn(as_frame(frame))


def test_marks_of_missing_cells_alone_are_text():
    columns = Columns()
    columns.learn(as_frame(pd.DataFrame({"x": ["-", "?", "-", "?"] * 5, "z": np.arange(20.0) % 7})))
    assert columns.categories == ["x"]


@pytest.mark.parametrize("library", ["pandas", "polars"])
@pytest.mark.parametrize(
    "cells",
    [
        np.array([0.5, 1.5, 2.0]),
        np.array([3, 1, 1]),
        np.array([1, 0, 1], dtype=np.uint8),
        np.array([True, False, True]),
        np.array(["2024-01-01", "2024-02-01", "2024-03-01"], dtype="M8[ms]"),
    ],
)
def test_the_different_cells_of_columns_of_numbers_are_not_collected(cells, library, monkeypatch):
    def refuse(_):
        raise AssertionError("a pass over Python objects takes seconds for millions of rows")

    monkeypatch.setattr("agp.tables._cells.Column._distinct", property(refuse))
    columns = Columns()
    make = pytest.importorskip(library).DataFrame
    numbers = columns.learn(as_frame(make({"c": cells}))).numbers
    assert numbers.shape == (3, 1)
    assert columns.truths == ({"c": ["False", "True"]} if cells.dtype == bool else {})
