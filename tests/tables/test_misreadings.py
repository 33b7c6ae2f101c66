"""Text files that could be misread without a word: shifted columns, decimal marks, codes like units, and comments."""

import numpy as np
import pytest

pytest.importorskip("pandas")
from agp.tables import read_table
from agp.tables._numbers import read_numbers

LEFT_OUT = "the first cell of each row has no name in the header and is left out"


def _read(tmp_path, text, name="t.csv", **settings):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_table(path, **settings)


def _columns(table):
    return {name: table.frame.get_column(name).to_list() for name in table.frame.columns}


@pytest.mark.parametrize("names", [(1, 2, 3), (2019, 2020, 2021), ("r1", "r2", "r3"), (0, 1, 2), (7, 3, 5)])
def test_names_of_rows_without_a_name_are_left_out_and_told(tmp_path, names):
    table = _read(tmp_path, "a,b\n" + "".join(f"{name},{i},{2 * i}\n" for i, name in enumerate(names)))
    assert _columns(table) == {"a": [0, 1, 2], "b": [0, 2, 4]}
    assert LEFT_OUT in table.notes


@pytest.mark.parametrize(
    ("text", "line"),
    [("a,b\n1,2,note\n4,5\n7,8\n", 2), ("a,b\n4,5\n1,2,note\n7,8\n", 3), ("# c\na,b\n\n1,2,note\n4,5\n", 4)],
)
def test_single_rows_with_more_cells_are_told_by_their_line(tmp_path, text, line):
    with pytest.raises(ValueError, match=f"line {line} has 3 cells, but should have 2"):
        _read(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "decimal", "first"),
    [
        ("a;b\n1.234;5,5\n2.345;6,5\n", "", 1234.0),
        ("a;b\n1.234;5\n2.345;6\n", "", 1.234),
        ("a;b\n1.234;5\n2.345;6\n", ",", 1234.0),  # trained on the first file
        ("a;b\n1.25;5\n2.5;6\n", ",", 1.25),
        ("a;b\n1,234;1\n2,345;2\n", "", 1.234),  # semicolons are written where commas are decimal marks
        ("a;b\n1,234;1\n2,345;2\n", ".", "1,234"),  # as in the training file, which `Columns` checks
        ("a;b\n1,234;1\n950;2\n", "", "1,234"),
        ("a\tb\n1,234\t50\n950\t40\n12,500\t70\n", "", "1,234"),
        ("a\tb\n0,234\t50\n12,345\t40\n", "", 0.234),
    ],
)
def test_decimal_marks_depend_on_the_whole_table(tmp_path, text, decimal, first):
    assert _columns(_read(tmp_path, text, "t.tsv", decimal=decimal))["a"][0] == first


def test_models_remember_the_decimal_mark_of_their_table(tmp_path, monkeypatch, capsys):
    from agp.cli import main

    monkeypatch.chdir(tmp_path)
    x = np.arange(1.0, 9.0, 0.35)
    rows = [(f"{a:.3f}", f"{np.sin(a):.2f}".replace(".", ",")) for a in x]  # 1.350 is 1350 beside decimal commas
    training = "a;t\n" + "".join(f"{a};{t}\n" for a, t in rows)
    (tmp_path / "train.csv").write_text(training, encoding="utf-8")
    (tmp_path / "new.csv").write_text("a;b\n2.500;1\n", encoding="utf-8")
    assert main(["fit", "train.csv", "--target", "t", "--out", "m.st", "-q"]) == 0
    assert main(["predict", "m.st", "new.csv", "--out", "p.csv", "-q"]) == 0
    mean = float((tmp_path / "p.csv").read_text(encoding="utf-8").splitlines()[1].split(",")[0])
    assert mean == pytest.approx(np.sin(2.5), abs=0.1)
    capsys.readouterr()


@pytest.mark.parametrize(
    "texts",
    [
        ["1.5D-3", "2.5D-3"], ["3D2", "4D2"], ["7 am", "12 am"], ["7 p.m.", "8 p.m."], ["4x4", "6x4"],
        ["12 Mar", "13 Mar"], ["1 may", "2 may"], ["3 Series", "5 Series"], ["1e400"], ["1e400 kg", "2 kg"],
    ],
)  # fmt: skip
def test_texts_that_only_look_like_numbers_with_units_are_none(texts):
    assert None in read_numbers(texts).numbers


@pytest.mark.parametrize("unit", ["kg", "m2", "m/s", "°C", "MHz", "d", "s-1", "kWh", "m^2", "min"])
def test_units_are_units(unit):
    assert read_numbers([f"1 {unit}", f"2.5 {unit}"]).numbers == [1.0, 2.5]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("# units: m, s\ncountry,2020\nDE,2\nFR,4\n", ["country", "2020"]),
        ("# Data from Smith, 2020\nname,city\na,b\nc,d\n", ["name", "city"]),
        ("# made, 2020\nx,y\n1,2\n3,4\n", ["x", "y"]),
        ("# x,y\n1,2\n3,4\n", ["x", "y"]),
        ("#a,b\nu,v\nw,x\n", ["a", "b"]),
    ],
)
def test_comments_are_headers_only_if_a_row_follows(tmp_path, text, names):
    table = _read(tmp_path, text)
    assert list(table.frame.columns) == names
    assert any("comment" in note for note in table.notes)


def test_one_column_whose_name_has_a_blank(tmp_path):
    assert _columns(_read(tmp_path, "unit price\n10\n20\n30\n")) == {"unit price": [10, 20, 30]}
