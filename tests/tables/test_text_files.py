"""Text files as they come: compressed, with comments, long cells and strange bytes; and other kinds of files."""

import bz2
import csv
import gzip
import io
import lzma
import zipfile

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="tables need the extra cli")
pa = pytest.importorskip("pyarrow", reason="tables need the extra cli")

from agp.tables import Columns, read_table  # noqa: E402

BASE = b"a,kind,y\n1.5,x,1\n2.5,y,2\n3.5,x,3\n"
FRAME = pd.DataFrame({"a": [1.5, 2.5, 3.5], "kind": ["x", "y", "x"], "y": [1, 2, 3]})


def zipped(**members):
    with io.BytesIO() as buffer:
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, content in members.items():
                archive.writestr(name.replace("_", "."), content)
        return buffer.getvalue()


PACKED = {
    "t.csv.gz": gzip.compress(BASE * 1),
    "t.csv.bz2": bz2.compress(BASE),
    "t.TSV.xz": lzma.compress(BASE.replace(b",", b"\t")),
    "t.csv.zip": zipped(t_csv=BASE),
    "t.csv.zst": pa.compress(BASE, codec="zstd", asbytes=True),
}


def read(tmp_path, content, name="t.csv", **options):
    (tmp_path / name).write_bytes(content)
    return read_table(tmp_path / name, **options)


def refusal(tmp_path, content, name="t.csv"):
    with pytest.raises(ValueError, match=name) as caught:
        read(tmp_path, content, name)
    said = str(caught.value)
    assert "\n" not in said
    return said


# -- compression ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PACKED)
def test_compressed_text_is_read(name, tmp_path):
    table = read(tmp_path, PACKED[name], name)
    pd.testing.assert_frame_equal(table.frame.to_native(), FRAME, check_dtype=False)
    assert [table.place(row) for row in (0, 2)] == ["line 2", "line 4"]
    assert read(tmp_path, PACKED[name], name, texts=["y"]).frame.to_native()["y"].tolist() == ["1", "2", "3"]


@pytest.mark.parametrize("damage", ["cut", "not compressed", "nothing"])
@pytest.mark.parametrize("name", PACKED)
def test_damaged_archives_are_told_in_one_sentence(name, damage, tmp_path):
    content = {"cut": PACKED[name][:-10], "not compressed": BASE, "nothing": b""}[damage]
    said = refusal(tmp_path, content, name)
    assert "cannot be unpacked (" in said or (damage == "nothing" and said.endswith("is empty."))


def test_archives_of_several_files_are_refused(tmp_path):
    assert "holds 2 files, but must hold one table" in refusal(tmp_path, zipped(a_csv=BASE, b_csv=BASE), "t.csv.zip")
    assert "holds 0 files, but must hold one table" in refusal(tmp_path, zipped(), "t.csv.zip")


# -- comments ---------------------------------------------------------------------------------------------------------

COMMENTS = {
    "two comments": (b'# made by x\n# at "home\n' + BASE, ["a", "kind", "y"], 2, "line 4"),
    "blank lines": (b"\n \n,,\n" + BASE, ["a", "kind", "y"], 0, "line 5"),
    "comments and blank lines": (b"\r\n# c\r\n\r\n" + BASE, ["a", "kind", "y"], 1, "line 5"),
    "commas in a comment": (b"# a, b, c\n" + BASE, ["a", "kind", "y"], 1, "line 3"),
    "years as names": (b"# World Bank\ncountry,1990,1991\nx,1,2\n", ["country", "1990", "1991"], 1, "line 3"),
    "savetxt": (b"# x y z\n1 2 3\n4 5 6\n", ["x", "y", "z"], 0, "line 2"),
    "savetxt with commas": (b"# x,y,z\n1,2,3\n4,5,6\n", ["x", "y", "z"], 0, "line 2"),
    "gnuplot": (b"# a plot\n# x y\n 1.0 2.0\n 3.0 4.0\n", ["x", "y"], 1, "line 3"),
    "a marked name": (b"#id,kind,y\n1,x,1\n2,y,2\n", ["id", "kind", "y"], 0, "line 2"),
    "a name of one mark": (b"#,kind,y\n1,x,1\n2,y,2\n", ["#", "kind", "y"], 0, "line 2"),
    "words alone": (b"#city,country\nParis,France\nRome,Italy\n", ["city", "country"], 0, "line 2"),
    "semicolons": (b"# c\na;b\n1,5;2\n2,5;3\n", ["a", "b"], 1, "line 3"),
}


@pytest.mark.parametrize("name", COMMENTS)
def test_comments_before_the_header(name, tmp_path):
    content, names, skipped, place = COMMENTS[name]
    table = read(tmp_path, content)
    assert table.frame.columns == names
    assert table.place(0) == place
    remark = f"comment lines before the header that are skipped: {skipped}"
    assert (remark in table.notes) == bool(skipped)


def test_signs_of_comments_in_cells_are_data(tmp_path):
    frame = read(tmp_path, b"# c\na,b\n1 # one,#2\n3,#\n").frame.to_native()
    assert frame.to_dict("list") == {"a": ["1 # one", "3"], "b": ["#2", "#"]}


def test_numpy_files_come_back(tmp_path):
    x = np.random.default_rng(0).normal(size=(5, 3))
    for separator in (" ", ",", "\t", ";"):
        np.savetxt(tmp_path / "t.txt", x, "%.17g", separator, header=separator.join("xyz"))
        table = read_table(tmp_path / "t.txt")
        assert table.frame.columns == ["x", "y", "z"]
        np.testing.assert_array_equal(table.frame.to_numpy(), x)


# -- long cells -------------------------------------------------------------------------------------------------------


def test_long_cells_are_read_and_the_limit_of_csv_stays(tmp_path):
    limit = csv.field_size_limit()
    table = read(tmp_path, b"a,b\n" + b"x" * 140_000 + b",1\n\ny,2\n")
    assert table.frame["a"].str.len_chars().to_list() == [140_000, 1]
    assert table.place(1) == "line 4"
    assert csv.field_size_limit() == limit


LONG = b"b" * 5000


@pytest.mark.parametrize(
    "content",
    [
        b"a," + LONG + b"," + LONG + b"\n1,2,3\n",
        b"1" * 5000 + b",2\n3,4\n",
        b"a,b\n" + LONG + b',1\n"' + LONG + b",2\n",
    ],
)
def test_refusals_quote_no_long_cell(content, tmp_path):
    assert len(refusal(tmp_path, content)) < 300


def test_remarks_quote_no_long_cell_or_name(tmp_path):
    rows = b"".join(b"%d,%s%d,%d%%,2020-01-0%d\n" % (i, LONG, i, i, 1 + i) for i in range(8))
    table = read(tmp_path, b"".join([b"x,", LONG, b",p", LONG, b",d", LONG, b"\n", rows]))
    with pytest.warns() as caught:
        Columns().learn(table.frame)
    assert len(caught) == 2
    assert max(len(str(one.message)) for one in caught) < 300


# -- strange bytes ----------------------------------------------------------------------------------------------------

TEXT = BASE.decode()
STRANGE = {
    "UTF-16": TEXT.encode("utf-16"),
    "UTF-16 without a mark": TEXT.encode("utf-16-le"),
    "UTF-16 of another order": TEXT.encode("utf-16-be"),
    "a mark": b"\xef\xbb\xbf" + BASE,
    "old ends of lines": BASE.replace(b"\n", b"\r"),
    "no last end": BASE[:-1],
}


@pytest.mark.parametrize("name", STRANGE)
def test_strange_bytes_are_read(name, tmp_path):
    table = read(tmp_path, STRANGE[name])
    pd.testing.assert_frame_equal(table.frame.to_native(), FRAME, check_dtype=False)
    assert table.place(2) == "line 4"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (TEXT.encode("utf-32"), "is not text; save the table as text"),
        (BASE + b"4.5,\0,4\n", "is not text; save the table as text"),
        (BASE * 500 + b"4.5,\0,4\n", "is not text; save the table as text"),
        (b'a,b\n1,"2\n3,4\n', "line 2 has a quote that is not closed; add the closing quote, or remove it."),
        (b'# c\na,b\n1,2\n3,"4\n', "line 4 has a quote that is not closed"),
        (b'a,"b\n1,2\n3,4\n', "line 1 has a quote that is not closed"),
        (b"# c\na,b\n1,2\n1,2,3\n", "line 4 has 3 cells, but should have 2"),
        (b"a,b\n1,2,3,4\n5,6,7,8\n", "line 2 has 4 cells, but should have 2"),
        (b"# only\n", "has a header but no rows"),
        (b"#\n# one, two\n\n", "has a header but no rows"),
    ],
)
def test_what_cannot_be_read_is_told_by_line(content, message, tmp_path):
    assert message in refusal(tmp_path, content)


def test_short_rows_and_empty_names(tmp_path):
    frame = read(tmp_path, b"a,b,c\n1,2\n3,4\n").frame.to_native()
    assert frame["c"].isna().all()
    assert read(tmp_path, b"a,,\n1,2,3\n4,5,6\n").frame.columns == ["a", "Unnamed: 1", "Unnamed: 2"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"a;b\n1.234,5;1.234\n12,5;2.345\n", [1234.0, 2345.0]),
        (b"a;b\n1.234,5;12\n12,5;2.345.678\n", [12.0, 2345678.0]),
        (b"a;b\n12,5;-1.234\n12,5;0,5\n", [-1234.0, 0.5]),
        (b"a;b\n12,5;1.5\n12,5;2.25\n", [1.5, 2.25]),
        (b'a,b\n"1,5",1.234\n"2,5",2.5\n', [1.234, 2.5]),
    ],
)
def test_points_separate_thousands_beside_decimal_commas(content, expected, tmp_path):
    columns = Columns()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *_, **__: None)
        found = columns.learn(read(tmp_path, content).frame)
    assert found.numbers[:, 1].tolist() == expected


# -- other kinds of files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t.feather", "t.arrow"])
def test_arrow_files(name, tmp_path):
    FRAME.to_feather(tmp_path / name)
    pd.testing.assert_frame_equal(read_table(tmp_path / name).frame.to_native(), FRAME, check_dtype=False)
    assert "cannot be read as a Feather or Arrow file" in refusal(tmp_path, b"junk", name)


def test_lines_of_json(tmp_path):
    lines = b'{"a": 0.1, "kind": "007"}\n{"a": null, "kind": "x"}\n'
    for name, content in (("t.jsonl", lines), ("t.ndjson", lines), ("t.jsonl.gz", gzip.compress(lines))):
        frame = read(tmp_path, content, name).frame.to_native()
        assert frame["kind"].tolist() == ["007", "x"]
        assert frame["a"].iloc[0] == 0.1
    assert "line 2 is not JSON (" in refusal(tmp_path, b'{"a": 1}\n{"a":\n', "t.jsonl")
    assert "line 1 is not an object of JSON" in refusal(tmp_path, b"[1, 2]\n", "t.jsonl")
    assert "has no columns" in refusal(tmp_path, b"\n", "t.jsonl")
    assert "cannot be unpacked" in refusal(tmp_path, lines, "t.jsonl.gz")


def test_wide_parquet_files_are_read(tmp_path):
    wide = pd.DataFrame(np.arange(6000.0).reshape(2, 3000), columns=[f"x{i}" for i in range(3000)])
    wide.to_parquet(tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(read_table(tmp_path / "t.parquet").frame.to_native(), wide)


# -- spreadsheets -----------------------------------------------------------------------------------------------------


def test_a_missing_package_for_spreadsheets_is_named(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise ImportError("no engine")

    monkeypatch.setattr(pd, "ExcelFile", refuse)
    for name, command in (("t.xlsx", r'"array-gp\[excel\]"'), ("t.xls", "xlrd"), ("t.ods", "odfpy")):
        (tmp_path / name).write_bytes(b"PK")
        with pytest.raises(ImportError, match=f"not installed: pip install {command}; or save the table as .csv"):
            read_table(tmp_path / name)


@pytest.fixture
def book(tmp_path):
    """A new spreadsheet, and a function that saves and reads it."""
    openpyxl = pytest.importorskip("openpyxl", reason="spreadsheets need the extra excel")
    made = openpyxl.Workbook()

    def reading():
        made.save(tmp_path / "t.xlsx")
        return read_table(tmp_path / "t.xlsx")

    return made, reading


def test_sheets_and_text_hold_the_same_columns(book, tmp_path):
    made, reading = book
    frame = pd.DataFrame(
        {
            "a": [0.5, 1.5, None, 3.25],
            "whole": [1, 2, 3, 4],
            "float": [1.0, 2.0, 3.0, 4.0],
            "flag": [True, False, True, True],
            "day": pd.date_range("2020-01-30", periods=4),
            "time": pd.date_range("2020-01-30", periods=4, freq="7h"),
            "kind": ["x", "y", "x", "NA"],
            "text": ["1.5%", "2%", "3%", "4%"],
        }
    )
    made.active.append(list(frame.columns))
    for row in frame.itertuples(index=False):
        made.active.append([None if cell != cell else cell for cell in row])
    sheet = reading()
    frame.to_csv(tmp_path / "t.csv", index=False)
    found = [Columns("impute", keep=["kind"]) for _ in range(2)]
    with pytest.warns(match="percentages"):
        cells = [
            one.learn(table.frame) for one, table in zip(found, (sheet, read_table(tmp_path / "t.csv")), strict=True)
        ]
    assert found[0].kinds == found[1].kinds
    assert found[0].levels == found[1].levels
    np.testing.assert_array_equal(cells[0].numbers, cells[1].numbers)
    assert [sheet.place(row) for row in (0, 3)] == ["row 2", "row 5"]
    assert sheet.notes == ()


def test_the_first_sheet_and_the_first_row_with_cells_are_used(book):
    made, reading = book
    for cells in ([], [None, None], ["a", "b"], [1, "x"], [2, "y"]):
        made.active.append(cells)
    made.create_sheet("other")
    table = reading()
    assert table.frame.columns == ["a", "b"]
    assert table.place(0) == "row 4"
    assert table.notes == ("the first sheet, 'Sheet', is read; the others are not: 'other'",)


def test_sheets_that_are_no_tables_are_told(book, tmp_path):
    made, reading = book
    with pytest.raises(ValueError, match="its first sheet, 'Sheet', has no cells"):
        reading()
    made.active.append(["a", "a"])
    with pytest.raises(ValueError, match="several columns named 'a'; give each column a different name"):
        reading()
    assert "is not a spreadsheet; save it as .xlsx, or as text" in refusal(tmp_path, b"PK", "t.xlsx")
