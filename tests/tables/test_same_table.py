"""The same table means the same in every door: files in the shell, and data frames of three libraries in Python."""

import io
import warnings
from pathlib import Path

import numpy as np
import pytest

import agp

pd = pytest.importorskip("pandas", reason="the command line needs the extra cli")
pytest.importorskip("sklearn", reason="the command line needs the extra cli")
pa_csv = pytest.importorskip("pyarrow.csv", reason="the command line needs the extra cli")

import narwhals.stable.v2 as nw  # noqa: E402

from agp.cli import main  # noqa: E402
from agp.errors import ColumnWarning, ConvergenceWarning  # noqa: E402
from agp.estimators import GPRegressor  # noqa: E402

RNG = np.random.default_rng(0)
N = 48
A, KIND = RNG.normal(size=N), RNG.choice(["round", "square", "flat"], N)
DAY = pd.Series(pd.date_range("2021-12-30", periods=N, freq="31h"))
FRAME = pd.DataFrame({"a": A, "kind": KIND, "y": np.sin(A) + (KIND == "flat") + 0.1 * RNG.normal(size=N)})
GAP = RNG.uniform(size=N) < 0.2

TEXTS = {
    "numbers and text": FRAME,
    "dates": FRAME.assign(when=DAY.dt.strftime("%Y-%m-%d")),
    "days first": FRAME.assign(when=DAY.dt.strftime("%d.%m.%Y %H:%M")),
    "times of a zone": FRAME.assign(when=DAY.dt.strftime("%Y-%m-%dT%H:%M:%SZ")),
    "several zones": FRAME.assign(when=[f"{t:%Y-%m-%d %H:%M:%S}+0{1 + i % 2}:00" for i, t in enumerate(DAY)]),
    "durations": FRAME.assign(span=pd.to_timedelta(1e5 * A, unit="s").round("ms")),
    "missing categories": FRAME.assign(kind=np.where(GAP, None, KIND)),
    "missing numbers": FRAME.assign(a=np.where(GAP, np.nan, A), n=np.where(GAP, np.nan, np.arange(N) % 7)),
    "Booleans": FRAME.assign(flag=A > 0.0, maybe=np.where(GAP, None, KIND == "flat")),
    "names of rows": FRAME.assign(name=[f"row {i}" for i in range(N)], nothing=None),
    "wide": pd.DataFrame(RNG.normal(size=(N, 300)), columns=[f"x{i}" for i in range(300)]).assign(y=FRAME["y"]),
    "percentages and money": FRAME.assign(
        a=[f"{x:.3f}%" for x in A.tolist()], price=[f"${1e4 * x:,.2f}" for x in RNG.normal(size=N).tolist()]
    ),
    "decimal commas in quotes": FRAME.assign(a=[f"{x:.3f}".replace(".", ",") for x in A.tolist()]),
    "thousands": FRAME.assign(
        a=[f"{x:,.0f}" for x in (1e4 * A).tolist()], b=[f"{x:_.0f}".replace("_", " ") for x in 1e4 * A]
    ),
    "blanks": FRAME.assign(kind=[f" {kind} " for kind in KIND]),
}
"""Tables that are written as text with commas."""


def typed():
    """A table with the types of columns that text does not have."""
    zone = DAY.dt.tz_localize("UTC").dt.tz_convert("America/New_York")
    return FRAME.assign(
        kind=pd.Categorical(KIND),
        size=pd.Categorical(KIND, ["flat", "square", "round", "other"], ordered=True),
        flag=[None if gap else bool(a > 0.0) for gap, a in zip(GAP, A, strict=True)],
        day=DAY.dt.date,
        when=zone,
        span=pd.to_timedelta(A, unit="D"),
    )


def frames(content, separator=",", decimal="."):
    """The same text, read by three libraries as their users do."""
    found = {"pandas": pd.read_csv(io.BytesIO(content), sep=separator, decimal=decimal)}
    parse = pa_csv.ParseOptions(delimiter=separator)
    options = pa_csv.ConvertOptions(decimal_point=decimal, strings_can_be_null=True)
    found["pyarrow"] = pa_csv.read_csv(io.BytesIO(content), parse_options=parse, convert_options=options)
    try:
        import polars as pl
    except ImportError:
        return found
    return found | {"polars": pl.read_csv(content, separator=separator, decimal_comma=decimal == ",")}


def split(frame):
    """The inputs and the targets of a data frame."""
    frame = nw.from_native(frame)
    inputs = frame.select([name for name in frame.columns if name != "y"]).to_native()
    return inputs, frame.get_column("y").to_numpy()


def trained(inputs, y):
    with warnings.catch_warnings():
        for category in (ColumnWarning, ConvergenceWarning):
            warnings.simplefilter("ignore", category)
        settings = {"kernel": "rbf", "missing": "impute", "max_steps": 4, "tolerance": 1e-3, "random_state": 0}
        return GPRegressor(**settings).fit(inputs, y)


@pytest.fixture
def of_shell(tmp_path, monkeypatch, capsys):
    """The model of `agp fit`, the predictions of `agp predict` and the warnings, for a file."""
    monkeypatch.chdir(tmp_path)

    def run(name):
        call = ["fit", name, "--target", "y", "--out", "m.st", "--kernel", "rbf", "--missing", "impute"]
        assert main([*call, "--max-steps", "4"]) == 0
        told = [line for line in capsys.readouterr().err.splitlines() if "column " in line]
        assert main(["predict", "m.st", name, "--out", "p.parquet", "-q"]) == 0
        return agp.load("m.st"), pd.read_parquet("p.parquet"), told

    return run


def check(model, found, inputs, y):
    """Compare a model and its predictions of a file with those of a data frame, to the bit."""
    other = trained(inputs, y)
    assert other.model_columns() == model.model_columns()
    assert [name or "Unnamed: 0" for name in other.left_out_] == model.left_out_  # not all libraries make up a name
    assert other.bound_ == model.bound_
    mean, deviation = other.predict(inputs, return_std=True)
    np.testing.assert_array_equal(mean, found["mean"])
    np.testing.assert_array_equal(deviation, found["standard_deviation"])


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTS)
def test_files_and_data_frames_give_the_same_model(name, of_shell):
    TEXTS[name].to_csv("t.csv", index=name == "names of rows")
    model, found, told = of_shell("t.csv")
    content = Path("t.csv").read_bytes()
    for library, frame in frames(content).items():
        inputs, y = split(frame)
        check(model, found, inputs, y)
        if library == "pandas":
            with warnings.catch_warnings(record=True) as here:
                warnings.simplefilter("always", ColumnWarning)
                warnings.simplefilter("ignore", ConvergenceWarning)
                GPRegressor(kernel="rbf", missing="impute", max_steps=1).fit(inputs, y)
            assert [f"agp: warning: {one.message}".replace("in keep", "in --keep") for one in here] == told


@pytest.mark.slow
def test_decimal_commas(of_shell):
    FRAME.to_csv("t.csv", index=False, sep=";", decimal=",")
    model, found, _ = of_shell("t.csv")
    for frame in frames(Path("t.csv").read_bytes(), ";", ",").values():
        check(model, found, *split(frame))


@pytest.mark.slow
def test_types_of_parquet_files(of_shell):
    typed().to_parquet("t.parquet")
    model, found, _ = of_shell("t.parquet")
    assert model.columns_.columns.kinds == {
        "a": "number",
        "kind": "category",
        "size": "ordered",
        "flag": "number",
        "day": "days since 1970-01-01",
        "when": "days since 1970-01-01 UTC",
        "span": "days",
    }
    import pyarrow.parquet as pq

    tables = [typed(), pq.read_table("t.parquet")]
    try:
        import polars as pl

        sizes = pl.Enum(typed()["size"].cat.categories.tolist())  # polars forgets the order of other libraries
        tables.append(pl.read_parquet("t.parquet").with_columns(pl.col("size").cast(sizes)))
    except ImportError:
        pass
    for table in tables:
        check(model, found, *split(table))


def test_texts_of_numbers_are_numbers():
    inputs = FRAME[["a", "kind"]]
    plain = trained(inputs, FRAME["y"].to_numpy())
    with pytest.warns(ColumnWarning, match="column 'a' holds numbers as text, which are used as numbers; convert"):
        model = GPRegressor(kernel="rbf", missing="impute", max_steps=4, tolerance=1e-3, random_state=0).fit(
            inputs.assign(a=[f" {a!r}" for a in A.tolist()]), FRAME["y"]
        )
    assert model.bound_ == plain.bound_
    np.testing.assert_array_equal(model.predict(inputs), plain.predict(inputs))


TARGETS = {
    "percentages": (lambda y: f"{y:.2f}%", "percentages as text, where "),
    "decimal commas": (lambda y: f"{y:.3f}".replace(".", ","), "is read as 0."),
    "money": (lambda y: f"€{1e4 * y:,.2f}", "amounts in € as text"),
}


@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
@pytest.mark.parametrize("name", TARGETS)
def test_texts_of_targets_are_numbers(name, tmp_path, capsys):
    write, words = TARGETS[name]
    table = FRAME[["a"]].assign(y=[write(y) for y in FRAME["y"].tolist()])
    table.to_csv(tmp_path / "t.csv", index=False)
    call = ["fit", str(tmp_path / "t.csv"), "--target", "y", "--out", str(tmp_path / "m.st"), "--kernel", "rbf"]
    assert main([*call, "--max-steps", "4"]) == 0
    (told,) = [line for line in capsys.readouterr().err.splitlines() if "the target 'y' holds" in line]
    assert words in told
    model = agp.load(tmp_path / "m.st")
    for frame in frames((tmp_path / "t.csv").read_bytes()).values():
        y = nw.from_native(frame).get_column("y").to_native()
        with pytest.warns(ColumnWarning, match=words):
            found = GPRegressor(kernel="rbf", max_steps=4, random_state=0).fit(
                nw.from_native(frame).select("a").to_native(), y
            )
        assert found.bound_ == model.bound_
        with pytest.warns(ColumnWarning, match=words):
            assert found.score(table[["a"]], table[["y"]]) > 0.1
    both = pd.DataFrame({"y": table["y"], "z": FRAME["y"]})
    with pytest.warns(ColumnWarning, match=f"the target 'y' holds .*{words.split()[-1]}"):
        assert GPRegressor(kernel="rbf", max_steps=2).fit(table[["a"]], both).predict(table[["a"]]).shape == (N, 2)


def test_words_and_stray_texts_of_targets_are_refused():
    words, stray = ["low", "high"] * (N // 2), [*(f"{i}%" for i in range(N - 1)), "x"]
    with pytest.raises(ValueError, match="y holds text; convert it to numbers"):
        GPRegressor().fit(FRAME[["a"]], pd.Series(words))
    with pytest.raises(
        ValueError, match=f"column 'y' has 'x' in row {N - 1} .counted from 0., which is not a percentage; correct it"
    ):
        GPRegressor().fit(FRAME[["a"]], pd.Series(stray, name="y"))


@pytest.mark.slow
def test_a_column_without_a_name_is_not_needed_for_predictions():
    indexed = FRAME[["a", "kind"]].reset_index(names="Unnamed: 0")
    with pytest.warns(ColumnWarning, match="'Unnamed: 0' is left out, because it has no name, and"):
        model = GPRegressor(kernel="rbf", max_steps=4).fit(indexed, FRAME["y"])
    np.testing.assert_array_equal(model.predict(indexed), model.predict(FRAME[["a", "kind"]]))
    kept = GPRegressor(kernel="rbf", max_steps=4, keep=["Unnamed: 0"]).fit(indexed, FRAME["y"])
    assert kept.left_out_ == []
