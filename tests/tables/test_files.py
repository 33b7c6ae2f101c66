"""Tables as people have them: dialects of text, Parquet, arrays; and what is said of those that are none."""

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="tables need the extra cli")

from agp.tables import read_table  # noqa: E402

EXPECTED = pd.DataFrame({"a": [1.5, -2.0, 3.25], "kind": ["x", "y", "x"], "n": [1, 20, 3]})
ROWS = [(1.5, "x", 1), (-2.0, "y", 20), (3.25, "x", 3)]


def text_of(separator=",", quote="", decimal=".", end="\n", header="a,kind,n"):
    names = separator.join(f"{quote}{name}{quote}" for name in header.split(","))
    rows = [separator.join([f"{a}".replace(".", decimal), f"{quote}{k}{quote}", f"{n}"]) for a, k, n in ROWS]
    return end.join([names, *rows]) + end


LINES = text_of().split()
DIALECTS = {
    "plain": text_of().encode(),
    "byte-order mark": b"\xef\xbb\xbf" + text_of().encode(),
    "semicolons": text_of(";").encode(),
    "decimal commas": text_of(";", decimal=",").encode(),
    "tabs": text_of("\t").encode(),
    "tabs and commas": text_of("\t", decimal=",").encode(),
    "bars": text_of("|").encode(),
    "quotes": text_of(quote='"').encode(),
    "blanks": text_of(" ").encode(),
    "blanks after commas": text_of(", ").encode(),
    "windows": text_of(end="\r\n").encode(),
    "empty lines": text_of().replace("\n", "\n\n").encode(),
    "utf-16": text_of().encode("utf-16"),
    "index": "\n".join(f"{i},{line}" for i, line in zip(["", 0, 1, 2], LINES, strict=True)).encode(),
    "names of rows": "\n".join([LINES[0], *(f"r{i},{line}" for i, line in enumerate(LINES[1:]))]).encode(),
    "trailing separator": "\n".join([LINES[0], *(f"{line}," for line in LINES[1:])]).encode(),
}  # fmt: skip
NOTES = {
    "decimal commas": "numbers have decimal commas",
    "tabs and commas": "numbers have decimal commas",
    "names of rows": "the first cell of each row has no name in the header and is left out",
}


@pytest.mark.parametrize("name", DIALECTS)
def test_a_table_is_read_in_every_dialect(name, tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(DIALECTS[name])
    table = read_table(path)
    found = table.frame.to_native()
    assert (name == "index") == (found.columns[0] == "Unnamed: 0")
    pd.testing.assert_frame_equal(found[["a", "kind", "n"]], EXPECTED, check_dtype=False)
    assert table.notes == ((NOTES[name],) if name in NOTES else ())


@pytest.mark.parametrize("name", DIALECTS)
def test_texts_are_as_they_are_written(name, tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(DIALECTS[name])
    texts = read_table(path, texts=["n", "kind", "there is none"]).frame.to_native()
    assert texts["n"].tolist() == ["1", "20", "3"]
    pd.testing.assert_frame_equal(texts[["a", "kind"]], EXPECTED[["a", "kind"]], check_dtype=False)


def test_texts_keep_their_zeros_and_points(tmp_path):
    (tmp_path / "t.csv").write_text(" k ,x\n007 ,1\n 1.0,2\n,3\nTRUE,4\n")
    frame = read_table(tmp_path / "t.csv", texts=["k"]).frame.to_native()
    assert frame["k"].fillna("none").str.strip().tolist() == ["007", "1.0", "none", "TRUE"]
    assert frame["x"].dtype.kind == "i"


def test_numbers_come_back_to_the_bit(tmp_path):
    x = np.random.default_rng(0).normal(size=200) * 10.0 ** np.random.default_rng(1).integers(-30, 30, 200)
    pd.DataFrame({"x": x, "y": -x}).to_csv(tmp_path / "t.csv", index=False)
    np.testing.assert_array_equal(read_table(tmp_path / "t.csv").frame["x"].to_numpy(), x)


def test_old_encodings_are_read_and_told(tmp_path):
    (tmp_path / "t.csv").write_bytes("größe,y\n1,2\n".encode("cp1252"))
    table = read_table(tmp_path / "t.csv")
    assert table.frame.columns == ["größe", "y"]
    assert table.notes == ("read as cp1252 text, because it is not UTF-8",)


def test_parquet_and_arrays(tmp_path):
    pytest.importorskip("pyarrow", reason="Parquet needs the extra cli")
    EXPECTED.to_parquet(tmp_path / "t.parquet")
    pd.testing.assert_frame_equal(read_table(tmp_path / "t.parquet").frame.to_native(), EXPECTED, check_dtype=False)
    np.savez(tmp_path / "t.npz", X=np.ones((3, 2)), y=np.zeros(3), test_masks=np.ones((3, 4), bool))
    table = read_table(tmp_path / "t.npz")
    assert table.frame.columns == ["X0", "X1", "y"]
    assert table.notes == ("the arrays test_masks are left out",)
    np.savez(tmp_path / "t.npz", a=np.arange(3.0), kind=np.array(["x", "y", "x"]))
    assert read_table(tmp_path / "t.npz").frame.columns == ["a", "kind"]
    np.savez(tmp_path / "t.npz", a=np.arange(3.0), b=np.arange(4.0))
    with pytest.raises(ValueError, match=r"has arrays a \[3\], b \[4\], but must have X"):
        read_table(tmp_path / "t.npz")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"", "t.csv is empty"),
        ("t.csv", b"\n \n", "t.csv is empty"),
        ("t.csv", b"a,b\n", "has a header but no rows"),
        (
            "t.csv",
            b"1,2\n3,4\n",
            "seems to have no header line: its first line is '1,2'; add a line with the names of the columns",
        ),
        ("t.csv", b"a,b\n1,2\n1,2,3,4\n", "line 3 has 4 cells, but should have 2"),
        ("t.csv", b"a,b,b\n1,2,3\n", "has 2 columns named 'b'; give each column a different name"),
        ("t.csv", b"PK\x03\x04\0\0\0", "is not text; save the table as text, Parquet or npz"),
        ("t.docx", b"PK", "is not a table that can be read; save it as .csv, .tsv"),
        ("t.parquet", b"a,b\n", "cannot be read as a Parquet file"),
        ("t.npz", b"a,b\n", "is not an npz file of plain arrays"),
    ],
)
def test_what_is_no_table_is_told_in_one_sentence(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match="t[.]") as caught:
        read_table(tmp_path / name)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_not_there_are_told(tmp_path):
    with pytest.raises(ValueError, match=r"there is no file .*nowhere\.csv\.$"):
        read_table(tmp_path / "nowhere.csv")
    with pytest.raises(ValueError, match="not a regular file"):
        read_table(tmp_path)


def test_cells_are_told_by_line_even_after_texts_of_several_lines(tmp_path):
    (tmp_path / "t.csv").write_text('a,b\n"x\ny",1\n\nz,2\n')
    table = read_table(tmp_path / "t.csv")
    assert [table.place(row) for row in (0, 1)] == ["line 2", "line 5"]
