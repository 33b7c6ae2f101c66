"""Numbers in every style of writing: the same in files, data frames, lists and arrays, as inputs and as targets."""

import warnings

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="tables need the extra cli")
pytest.importorskip("sklearn", reason="estimators need the extra sklearn")

from agp.errors import ColumnWarning  # noqa: E402
from agp.estimators import GPRegressor  # noqa: E402
from agp.tables import Columns, labels_of, numbers_in_targets, numbers_of, read_table, task_of  # noqa: E402
from agp.tables._columns import as_frame  # noqa: E402

VALUES = [1234.5, -1.5, 20.25, 3.0, 100000.0, 7.75]


def swap(text):
    return text.translate(str.maketrans(",.", ".,"))


STYLES = {
    "plain": str,
    "exponents": lambda x: f"{x:.6e}",
    "percentages": lambda x: f"{x}%",
    "percentages after a blank": lambda x: f"{x} %",
    "dollars before": lambda x: f"{'-' if x < 0 else ''}${abs(x):,.2f}",
    "euros after": lambda x: swap(f"{x:,.2f} €"),
    "thousands": lambda x: f"{x:,.2f}",
    "decimal commas": lambda x: swap(f"{x:,.2f}"),
    "apostrophes": lambda x: f"{x:,.2f}".replace(",", "'"),
    "blanks": lambda x: f"{x:,.2f}".replace(",", " "),
    "narrow blanks and commas": lambda x: f"{x:,.2f}".replace(",", "\u202f").replace(".", ","),
    "parentheses": lambda x: f"({-x})" if x < 0 else f"{x}",
    "minus signs": lambda x: f"{x}".replace("-", "\u2212"),
    "kilograms": lambda x: f"{x} kg",
    "degrees": lambda x: f"{x}°C",
    "speeds": lambda x: swap(f"{x:,.2f} m/s"),
    "areas": lambda x: f"{x:,.2f} m²",
}


def read(call, *arguments):
    """What a function returns, without the remarks on columns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ColumnWarning)
        return call(*arguments)


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("name", STYLES)
def test_inputs_and_targets_of_files_and_frames_are_the_same_numbers(name, separator, tmp_path):
    texts = [STYLES[name](x) for x in VALUES]
    frame = pd.DataFrame({"x": texts, "z": range(6), "y": texts})
    frame.to_csv(tmp_path / "t.csv", index=False, sep=separator)
    table, rows = read_table(tmp_path / "t.csv"), np.ones(6, dtype=bool)
    assert read(task_of, table, "y", rows) == "regression"
    found = {
        "inputs of the file": read(Columns().learn, table.frame).numbers[:, 0],
        "inputs of the frame": read(Columns().learn, as_frame(frame)).numbers[:, 0],
        "targets of the file": read(numbers_of, table, ["y"], rows),
        "a series": read(numbers_in_targets, frame["y"]),
        "a list": read(numbers_in_targets, texts),
        "an array": read(numbers_in_targets, np.asarray(texts)),
        "an array of objects": read(numbers_in_targets, np.asarray(texts, dtype=object)),
        "two targets": read(numbers_in_targets, np.asarray([texts, texts]).T)[:, 1],
        "two lists": read(numbers_in_targets, [[text, text] for text in texts])[:, 0],
    }
    for what, numbers in found.items():
        assert np.asarray(numbers, dtype=float).tolist() == VALUES, what


X = np.linspace(0.0, 1.0, 12)[:, None]
SINE = np.round(np.sin(6.0 * X[:, 0]), 3)


@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
@pytest.mark.parametrize("unit", ["%", " kg", ""])
def test_estimators_take_lists_and_arrays_of_texts(unit):
    plain = GPRegressor(kernel="rbf", max_steps=3, random_state=0).fit(X, SINE)
    texts = [f"{y}{unit}" for y in SINE.tolist()]
    for y in (texts, np.asarray(texts), np.asarray(texts, dtype=object), pd.Series(texts)):
        with pytest.warns(ColumnWarning, match="y holds .*as text.*, wh(ich are used as numbers|ere .* is read as)"):
            model = GPRegressor(kernel="rbf", max_steps=3, random_state=0).fit(X, y)
        assert model.bound_ == plain.bound_
        with pytest.warns(ColumnWarning, match="y holds"):
            assert model.score(X, y) == plain.score(X, SINE)


DOUBTFUL = {
    "two units": ["3 kg", "200 g"] * 6,
    "units missing": ["3 kg", "4"] * 6,
    "approximate": [f"approx. {i}" for i in range(12)],
    "some approximate": [f"~{i}" if i % 3 else f"{i}" for i in range(12)],
    "limits": [f"<{i}" for i in range(12)],
    "words": ["low", "high"] * 6,
}
SAID = {
    "two units": "holds numbers with the units 'kg' and 'g'; write all of them in one unit",
    "units missing": "holds numbers with the unit 'kg' and no unit; write all of them in one unit",
    "approximate": "holds approximate numbers such as 'approx. 0'; write each as one number",
    "some approximate": "holds approximate numbers such as '~1'; write each as one number",
    "limits": "holds limits such as '<0'; write each as one number",
    "words": "holds text; convert it to numbers",
}


@pytest.mark.parametrize("name", DOUBTFUL)
def test_targets_that_look_like_numbers_are_refused_by_what_they_look_like(name):
    for y in (DOUBTFUL[name], np.asarray(DOUBTFUL[name]), pd.Series(DOUBTFUL[name])):
        with pytest.raises(ValueError, match=f"^y {SAID[name]}"):
            GPRegressor().fit(X, y)


@pytest.mark.parametrize("name", [name for name in DOUBTFUL if name != "words"])
def test_inputs_that_look_like_numbers_are_told_by_what_they_look_like(name):
    frame = pd.DataFrame({"x": DOUBTFUL[name], "z": range(12)})
    what, _, remedy = SAID[name].removeprefix("holds ").partition("; ")
    with pytest.warns(ColumnWarning, match=f"column 'x' (holds|is left out, because .*it holds) {what}.*; {remedy}"):
        Columns().learn(as_frame(frame))


def test_stray_cells_name_the_approximate_number():
    cells = [*(f"{i}" for i in range(20)), "approx. 3"]
    with pytest.raises(
        ValueError,
        match=r"has 'approx\. 3' in row 20 .counted from 0., which is an approximate number, not a number; wri",
    ):
        Columns().learn(as_frame(pd.DataFrame({"x": cells})))


@pytest.mark.parametrize(
    "cells", [["0012a", "0013a"], ["row 1", "row 2"], ["12 Main St", "13 Main St"], ["1a2", "2a3"]]
)
def test_codes_and_names_are_no_numbers_with_units(cells):
    assert read(Columns(keep=["x"]).learn, as_frame(pd.DataFrame({"x": cells, "z": [1, 2]}))).codes.shape == (2, 1)


def test_units_of_new_rows_must_be_those_of_training():
    columns, z = Columns(), [1, 2]
    read(columns.learn, as_frame(pd.DataFrame({"x": ["3 kg", "4.5 kg"], "z": z})))
    assert columns.read(as_frame(pd.DataFrame({"x": ["5 kg", "6 kg"], "z": z}))).numbers[:, 0].tolist() == [5.0, 6.0]
    for cells, what in (
        (["5 g", "6 g"], "with the unit 'g'"),
        (["5%", "6%"], "percentages"),
        (["$5", "$6"], "amounts in"),
    ):
        with pytest.raises(
            ValueError, match=f"column 'x' holds .*{what}.*, but held numbers with the unit 'kg' in traini"
        ):
            columns.read(as_frame(pd.DataFrame({"x": cells, "z": z})))
    plain = Columns()
    plain.learn(as_frame(pd.DataFrame({"x": [3.0, 4.0], "z": [5.0, 7.0]})))
    with pytest.raises(
        ValueError, match="holds numbers with the unit 'kg', but held plain numbers in training; remove"
    ):
        plain.read(as_frame(pd.DataFrame({"x": ["3 kg", "4 kg"], "z": [5.0, 7.0]})))


@pytest.mark.parametrize(
    ("values", "task"),
    [
        ((0.25, 0.75), "regression"),
        ((0.5, 1.0), "regression"),
        ((-1e-300, 1.0), "regression"),
        ((1.0, 2.0), "classification"),
        ((-5, 1000), "classification"),
        ((True, False), "classification"),
    ],
)
def test_two_numbers_are_classes_if_they_can_be_labels(values, task, tmp_path):
    pd.DataFrame({"x": range(8), "y": values * 4}).to_csv(tmp_path / "t.csv", index=False)
    table, rows = read_table(tmp_path / "t.csv"), np.ones(8, dtype=bool)
    assert task_of(table, "y", rows) == task
    found = numbers_of(table, ["y"], rows) if task == "regression" else labels_of(table, "y", rows)
    assert len(found) == 8


def test_two_levels_with_one_ending_are_classes(tmp_path):
    pd.DataFrame({"x": range(8), "y": ["2WD", "4WD"] * 4}).to_csv(tmp_path / "t.csv", index=False)
    assert task_of(read_table(tmp_path / "t.csv"), "y", np.ones(8, dtype=bool)) == "classification"
