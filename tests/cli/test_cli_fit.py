"""`agp fit`, `agp predict`, `agp describe` as a person calls them: a table in, honest answers out."""

import datetime as dt
import runpy
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

import agp
from agp.cli import main

pd = pytest.importorskip("pandas", reason="the command line needs the extra cli")
pytest.importorskip("sklearn", reason="the command line needs the extra cli")

from agp.estimators import GPRegressor  # noqa: E402
from agp.io import save_with_metadata  # noqa: E402

QUICK = ["--max-steps", "8"]
RNG = np.random.default_rng(0)
N = 60
SIZE, KIND = RNG.uniform(-2.0, 2.0, N), RNG.choice(["round", "square"], N)
SOUND = np.sin(2.0 * SIZE) + (KIND == "round") + 0.1 * RNG.normal(size=N)
TABLE = pd.DataFrame({"size": SIZE, "kind": KIND, "chord": RNG.normal(size=N), "sound": SOUND})
DAYS = np.arange(N) % 6 + 2
COUNTS = TABLE[["size", "kind"]].assign(days=DAYS, sound=np.random.default_rng(1).poisson(DAYS * np.exp(SOUND)))
"""Events in so many days."""


@pytest.fixture
def shell(tmp_path, monkeypatch, capsys, status_of):
    """Run a command in an empty folder: its exit status, what it said, and its errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        status = status_of(*arguments)
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


@pytest.fixture
def fit(shell):
    """`agp fit` of a data frame, written as CSV: what it said."""

    def run(frame, *arguments, target="sound"):
        frame.to_csv("t.csv", index=False)
        status, out, err = shell("fit", "t.csv", "--target", target, "--out", "m.safetensors", *QUICK, *arguments)
        assert status == 0, err
        return out

    return run


@pytest.fixture
def refused(shell):
    """The one sentence with which a command is refused; nothing is written."""

    def run(*arguments, out="m.safetensors"):
        status, said, err = shell(*arguments)
        assert status == 2
        assert err.startswith("agp: ")
        assert err.count("\n") == 1
        assert not Path(out).exists()
        return err

    return run


# -- what must hold ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_table_with_a_mark_a_text_and_a_hole_says_which_option_makes_it_work(shell, refused, tmp_path):
    holed = TABLE.copy()
    holed.loc[17, "chord"] = np.nan
    (tmp_path / "t.csv").write_bytes(b"\xef\xbb\xbf" + holed.to_csv(index=False).encode())
    call = ["fit", "t.csv", "--target", "sound", "--out", "m.safetensors", "--max-steps", "25"]
    said = refused(*call)
    assert said == "agp: t.csv: line 19, column 'chord' has a missing cell; fill it in, or fit with --missing impute.\n"
    status, out, _ = shell(*call, "--missing", "impute", "--test-share", "0.2")
    assert status == 0
    assert (
        "t.csv: 48 rows, 3 input columns; regression for 'sound' (inferred from the target; --task overrides it)" in out
    )
    assert "12 rows held out" in out
    assert "written: m.safetensors" in out
    status, out, _ = shell("predict", "m.safetensors", "t.csv", "--out", "p.csv", "--level", "0.5")
    assert status == 0
    assert "60 rows with 'sound': RMSE 0.0" in out
    found = pd.read_csv("p.csv")
    assert list(found) == ["mean", "standard_deviation", "lower", "upper"]
    estimator = agp.load("m.safetensors")
    mean, deviation = estimator.predict(holed.drop(columns="sound"), return_std=True)
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-12)
    np.testing.assert_allclose(
        found[["lower", "upper"]], estimator.predict_interval(holed.drop(columns="sound"), 0.5), rtol=1e-9
    )
    assert np.all(found["upper"] - found["lower"] < 2.0 * deviation)


# -- fit --------------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_target_decides_the_task(fit):
    for target, task in (
        (SOUND, "regression"),
        (np.arange(N) % 7 + 3, "regression"),
        (np.arange(N) % 3, "classification of 3 labels"),
        (np.arange(N) % 2 + 7, "classification of 2 labels"),
        (SOUND > 0, "classification of 2 labels"),
        (np.where(SOUND > 0, "loud", "low"), "classification of 2 labels"),
    ):
        assert f"{task} for 'y'" in fit(TABLE[["size"]].assign(y=target), target="y")


@pytest.mark.slow
def test_deep_models_are_trained_and_read(fit, shell):
    out = fit(TABLE, "--method", "deep-wsvgp", "--layers", "3", "--num-inducing", "8")
    assert "deep-wsvgp: " in out
    estimator = agp.load("m.safetensors")
    assert len(estimator.model_.process.layers) == estimator.layers == 3
    assert shell("predict", "m.safetensors", "t.csv", "--out", "p.csv")[0] == 0
    mean, deviation = estimator.predict(TABLE.drop(columns="sound"), return_std=True)
    found = pd.read_csv("p.csv")
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-12)
    np.testing.assert_allclose(found["standard_deviation"], deviation, rtol=1e-12)


@pytest.mark.slow
def test_classes_get_labels_and_probabilities(fit, shell):
    label = np.where(SIZE > 0.5, "up", np.where(SIZE < -0.5, "down", "level"))
    fit(TABLE[["size", "kind"]].assign(sound=label))
    status, out, _ = shell("predict", "m.safetensors", "t.csv", "--out", "p.parquet")
    assert status == 0
    assert "60 rows with 'sound': error rate " in out
    found = pd.read_parquet("p.parquet")
    assert list(found) == ["label", "probability_down", "probability_level", "probability_up"]
    np.testing.assert_allclose(found.iloc[:, 1:].sum(axis=1), 1.0, rtol=1e-9)
    assert (found["label"] == label).mean() > 0.8
    status, out, _ = shell("describe", "m.safetensors")
    assert "labels     down, level, up" in out


@pytest.mark.long
def test_several_targets_with_gaps_are_predicted_and_scored(fit, shell):
    heat = np.where(np.arange(N) % 3 == 0, np.nan, 100.0 + 50.0 * SOUND)
    frame = TABLE.assign(heat=heat, sound=np.where(np.arange(N) % 6 == 0, np.nan, SOUND))
    out = fit(frame, "--target", "heat", "--outputs", "coregionalised", "--max-steps", "60", "--test-share", "0.2")
    assert "regression for 'sound', 'heat'\n" in out
    assert "rows without a target are left out: 10" in out
    assert "missing values of the target 'heat': 10" in out
    assert "of 'sound'" not in out
    assert "RMSE of sound " in out
    assert "NLPD of heat " in out
    status, out, _ = shell("predict", "m.safetensors", "t.csv", "--out", "p.csv")
    assert status == 0
    assert "50 rows with 'sound', 'heat': RMSE of sound " in out
    assert "left out:" not in out
    found = pd.read_csv("p.csv")
    parts = ("mean", "standard_deviation", "lower", "upper")
    assert list(found) == [f"{part}_{name}" for name in ("sound", "heat") for part in parts]
    estimator = agp.load("m.safetensors")
    mean, deviation = estimator.predict(TABLE.drop(columns="sound"), return_std=True)
    np.testing.assert_allclose(found[["mean_sound", "mean_heat"]], mean, rtol=1e-9)
    np.testing.assert_allclose(found[["standard_deviation_sound", "standard_deviation_heat"]], deviation, rtol=1e-9)
    error = np.sqrt(np.nanmean((found["mean_heat"] - heat) ** 2))
    assert f"RMSE of heat {error:.4g}" in out
    status, out, _ = shell("describe", "m.safetensors")
    assert "targets    sound, heat (regression)" in out
    TABLE.drop(columns="sound").to_csv("new.csv", index=False)
    status, out, _ = shell("predict", "m.safetensors", "new.csv", "--out", "p.csv")
    assert out == "written: p.csv, 60 rows\n"


@pytest.mark.long
def test_error_bars_may_depend_on_the_inputs(fit, shell):
    noisy = np.sin(2.0 * SIZE) + np.exp(SIZE - 1.5) * np.random.default_rng(0).normal(size=N)
    fit(TABLE[["size"]].assign(sound=noisy), "--likelihood", "latent-noise", "--max-steps", "300")
    assert shell("predict", "m.safetensors", "t.csv", "--out", "p.csv")[0] == 0
    deviation = pd.read_csv("p.csv")["standard_deviation"]
    assert deviation[np.argmax(SIZE)] > 3.0 * deviation[np.argmin(SIZE)]
    assert "missing cells: refuse, likelihood: latent-noise\n" in shell("describe", "m.safetensors")[1]


@pytest.mark.slow
def test_classes_may_have_an_order(fit, shell):
    out = fit(TABLE[["size"]].assign(sound=np.digitize(SIZE, [-1.0, 0.0, 1.0]) + 1), "--likelihood", "ordinal")
    assert "classification of 4 labels for 'sound'\n" in out
    assert shell("predict", "m.safetensors", "t.csv", "--out", "p.csv")[0] == 0
    found = pd.read_csv("p.csv")
    assert list(found) == ["label", *(f"probability_{k}" for k in range(1, 5))]
    assert (found["label"] == np.digitize(SIZE, [-1.0, 0.0, 1.0]) + 1).mean() > 0.8
    assert "labels     1 < 2 < 3 < 4\n" in shell("describe", "m.safetensors")[1]


MONTHS = pd.Series(pd.date_range("2020-01-01", periods=N, freq="MS"))
SINCE = "column 'when' holds dates, which become days since 1970-01-01"


# -- targets of other kinds -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_counts_with_exposures_have_intervals_of_whole_numbers(fit, shell):
    out = fit(COUNTS, "--likelihood", "poisson", "--exposure", "days", "--test-share", "0.2", "--max-steps", "60")
    assert "48 rows, 2 input columns; regression for 'sound'\n" in out
    assert "--likelihood" not in out
    status, out, err = shell("predict", "m.safetensors", "t.csv", "--out", "p.csv", "--quantiles", "0.05,0.5,0.95")
    assert status == 0, err
    found = pd.read_csv("p.csv")
    quantiles = found[["quantile_0.05", "quantile_0.5", "quantile_0.95"]].to_numpy()
    np.testing.assert_array_equal(quantiles, np.floor(quantiles))
    estimator, inputs = agp.load("m.safetensors"), COUNTS[["size", "kind"]]
    np.testing.assert_allclose(found["mean"], estimator.predict(inputs, exposure=DAYS), rtol=1e-10)
    assert np.mean((quantiles[:, 0] <= COUNTS["sound"]) & (COUNTS["sound"] <= quantiles[:, 2])) > 0.85
    density = estimator.log_density(inputs, COUNTS["sound"], exposure=DAYS)
    assert f"NLPD {-np.mean(density):.4g}," in out
    inputs.to_csv("rates.csv", index=False)
    status, out, _ = shell("predict", "m.safetensors", "rates.csv", "--out", "p.csv")
    assert "rates.csv: no column 'days', so predictions are for an exposure of 1\n" in out
    np.testing.assert_allclose(pd.read_csv("p.csv")["mean"], estimator.predict(inputs), rtol=1e-10)
    COUNTS.assign(days=DAYS - 2).to_csv("none.csv", index=False)
    for command in ("predict", "describe"):
        status, _, err = shell(command, "m.safetensors", "none.csv")
        assert status == 2
        assert err == "agp: none.csv: line 2, column 'days' is 0; exposures must be positive.\n"


@pytest.mark.long
def test_counts_with_exposures_are_described_as_rates(fit, shell):
    fit(COUNTS, "--likelihood", "negative-binomial", "--exposure", "days", "--max-steps", "60")
    status, out, err = shell("describe", "m.safetensors", "t.csv")
    assert status == 0, err
    assert "scores are computed on rates, 'sound' divided by 'days'" in out
    assert "likelihood: negative-binomial" in out
    start = float(out.partition("(from ")[2].partition(")")[0])
    estimator = agp.load("m.safetensors")
    rates = COUNTS["sound"] / DAYS
    expected = np.sqrt(np.mean((estimator.predict(COUNTS[["size", "kind"]]) - rates) ** 2))
    assert start == pytest.approx(expected, rel=1e-3)
    COUNTS.drop(columns="days").to_csv("other.csv", index=False)
    status, _, err = shell("describe", "m.safetensors", "other.csv")
    assert status == 2
    assert "which the model needs as its exposure;" in err


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
def test_weights_are_no_input(fit):
    fit(TABLE.assign(times=DAYS), "--weights", "times", "--kernel", "rbf")
    estimator = agp.load("m.safetensors")
    assert list(estimator.feature_names_in_) == ["size", "kind", "chord"]
    inputs = TABLE.drop(columns="sound")
    settings = {"kernel": "rbf", "tolerance": 1e-3, "max_steps": 8, "random_state": 0}
    by_hand = GPRegressor(**settings).fit(inputs, SOUND, sample_weight=DAYS)
    np.testing.assert_allclose(estimator.predict(inputs), by_hand.predict(inputs), rtol=1e-9)
    without = GPRegressor(**settings).fit(inputs, SOUND)
    assert np.abs(estimator.predict(inputs) - without.predict(inputs)).max() > 1e-4


@pytest.mark.slow
def test_logarithms_of_targets_are_predicted_as_targets(fit, shell):
    fit(TABLE.assign(sound=np.exp(SOUND)), "--transform", "log", "--kernel", "rbf", "--hyperparameters", "mode")
    status, out, err = shell("predict", "m.safetensors", "t.csv", "--out", "p.csv", "--quantiles", "0.1,0.5")
    assert status == 0, err
    found = pd.read_csv("p.csv")
    assert list(found) == ["mean", "standard_deviation", "lower", "upper", "quantile_0.1", "quantile_0.5"]
    assert (found["lower"] > 0.0).all()
    assert (found["mean"] > found["quantile_0.5"]).all()
    np.testing.assert_allclose(np.sqrt(found["lower"] * found["upper"]), found["quantile_0.5"], rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "words"),
    [
        (
            COUNTS["sound"],
            "non-negative whole numbers; if they are counts, use --likelihood negative-binomial or poisson",
        ),
        (1.0 / (1.0 + np.exp(-SOUND)), "numbers between 0 and 1; if they are proportions, use --likelihood beta"),
        (np.exp(2.0 * SOUND), None),  # the logarithms are compared
        (np.round(1000.0 * np.exp(2.0 * SOUND)), None),  # money, whose variance is far above its mean
        (np.arange(N) % 5, "whole numbers; if they are counts rather than labels, use --likelihood negative-binomial"),
        (SOUND, None),
        (np.arange(N) % 2, None),
    ],
)
def test_another_family_is_suggested_where_it_suits_the_targets(target, words, fit):
    out = fit(TABLE[["size"]].assign(sound=target), "--kernel", "rbf", "--max-steps", "1")
    assert "--likelihood" not in out if words is None else f"t.csv: 'sound' has {words}" in out


def test_logarithms_are_suggested_where_they_are_not_compared(fit):
    out = fit(TABLE[["size"]].assign(sound=np.exp(2.0 * SOUND)), "--transform", "none", "--kernel", "rbf")
    assert "positive numbers with a long tail; --transform log or --likelihood gamma may fit better" in out


@pytest.mark.long
def test_labels_have_no_quantiles(fit, shell):
    fit(TABLE.assign(sound=KIND))
    status, _, err = shell("predict", "m.safetensors", "t.csv", "--quantiles", "0.5")
    assert status == 2
    assert err == "agp: --quantiles is for numeric targets, but m.safetensors predicts labels; leave it out.\n"


@pytest.mark.parametrize("text", ["0.05,2", "0.05;0.5", "0"])
def test_quantiles_lie_between_0_and_1(text, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["predict", "m.safetensors", "t.csv", "--quantiles", text])
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert f"must be numbers between 0 and 1 such as 0.05,0.5,0.95, not {text!r}" in err
    assert err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("form", ["%Y-%m-%d", "%d.%m.%Y", "%Y-%m", "%Y-%m-%dT00:00:00+00:00"])
def test_dates_become_days(fit, shell, form):
    out = fit(TABLE[["sound"]].assign(when=MONTHS.dt.strftime(form)))
    zone = " UTC" if "+" in form else ""
    assert f"t.csv: {SINCE}{zone}\n" in out
    found = agp.load("m.safetensors")
    np.testing.assert_array_equal(found.model_.X[:, 0], (MONTHS - pd.Timestamp(0)).dt.days)
    days = f"2020-01-01 to 2024-12-01; days since 1970-01-01{zone}"
    assert f"columns    when: date ({days})\n" in shell("describe", "m.safetensors")[1]
    assert shell("predict", "m.safetensors", "t.csv", "-q", "--out", "p.csv")[0] == 0
    frame = pd.DataFrame({"when": MONTHS.dt.tz_localize("UTC") if zone else MONTHS})
    np.testing.assert_allclose(pd.read_csv("p.csv")["mean"], found.predict(frame))


@pytest.mark.parametrize(
    ("cells", "more", "words"),
    [
        (
            [f"0{i % 9 + 1}/05/2020" for i in range(N)],
            [],
            "ambiguous dates such as '01/05/2020'; write them as in 2020-12",
        ),
        (
            ["2020-01-01T00:00:00Z", "2020-01-02"] * (N // 2),
            [],
            "line 3, column 'when' has a time without a time zone, but other",
        ),
        (["1.2.3", "1.2.33"] * (N // 2), [], "column 'when' has dates in several formats, such as '1.2.3'"),
        (
            [None, *MONTHS.astype(str)[1:]],
            [],
            "line 2, column 'when' has a missing cell; fill it in, or fit with --missing",
        ),
    ],
)
def test_dates_that_are_not_clear_are_refused(refused, cells, more, words):
    TABLE[["sound"]].assign(when=cells).to_csv("t.csv", index=False)
    assert words in refused("fit", "t.csv", "--target", "sound", "--out", "n", *more, out="n")


@pytest.mark.slow
def test_dates_may_be_missing_and_years_are_numbers(fit, shell):
    table = TABLE[["sound"]].assign(when=[None, *MONTHS.astype(str)[1:]], year=MONTHS.dt.year)
    assert "'year'" not in fit(table, "--missing", "impute")
    assert "when is missing" in shell("describe", "m.safetensors")[1]
    table.assign(when=None).to_csv("t.csv", index=False)
    assert shell("predict", "m.safetensors", "t.csv", "-q", "--out", "p.csv")[0] == 0


@pytest.mark.slow
def test_columns_of_typed_tables_are_taken(shell, refused, tmp_path):
    pytest.importorskip("pyarrow", reason="Parquet needs the extra cli")
    table = TABLE[["sound"]].assign(
        price=[Decimal(i) / 4 for i in range(N)],
        flag=[None if i == 5 else i % 3 == 0 for i in range(N)],
        kind=pd.Categorical(KIND),
        day=[dt.date(2020, 1, 1 + i % 28) for i in range(N)],
        span=pd.to_timedelta(SIZE, unit="D"),
    )
    table.to_parquet("t.parquet")
    call = ["fit", "t.parquet", "--target", "sound", "--out", "m.safetensors", *QUICK]
    assert "t.parquet: row 5, column 'flag' has a missing cell" in refused(*call)
    assert shell(*call, "--missing", "impute")[0] == 0
    out = shell("describe", "m.safetensors")[1]
    for word in (
        "price: number",
        "flag: Boolean (False, True)",
        "kind: text (round, square)",
        "day: date (2020-01-01 to 2020-01-28; days since",
        "span: duration",
    ):
        assert word in out
    assert shell("predict", "m.safetensors", "t.parquet", "-q", "--out", "p.csv")[0] == 0
    table.assign(span=dt.time(12)).to_parquet("t.parquet")
    said = refused(
        "fit", "t.parquet", "--target", "sound", "--out", "n", "--missing", "impute", "--drop", "day", out="n"
    )
    assert "column 'span' holds" in said


@pytest.mark.slow
def test_what_is_left_out_is_told(shell):
    table = TABLE.assign(nothing=np.nan)
    table.insert(0, "", range(N))
    table.loc[3, "sound"] = np.nan
    table.to_csv("t.csv", index=False)
    call = ["fit", "t.csv", "--target", "sound", "--out", "m.safetensors", *QUICK, "--drop", "kind", "chord"]
    status, out, err = shell(*call)
    assert status == 0
    assert "t.csv: 59 rows, 1 input column; regression" in out
    assert err.splitlines() == [
        "agp: warning: column 'Unnamed: 0' is left out, because it has no name, and contains row numbers.",
        "agp: warning: column 'nothing' is left out, because all its cells are empty.",
    ]
    assert "rows without a target are left out: 1" in out


@pytest.mark.slow
def test_quiet_means_quiet_and_an_old_model_is_replaced(fit, shell):
    fit(TABLE)
    before = Path("m.safetensors").read_bytes()
    status, out, err = shell(
        "fit",
        "t.csv",
        "--target",
        "sound",
        "--out",
        "m.safetensors",
        "-q",
        "--method",
        "gpr",
        "--kernel",
        "rbf + linear",
    )
    assert (status, out, err) == (0, "", "")
    assert Path("m.safetensors").read_bytes() != before
    status, out, err = shell("predict", "m.safetensors", "t.csv", "-q", "--out", "p.csv")
    assert (status, out, err) == (0, "", "")


@pytest.mark.long
@pytest.mark.parametrize("command", [("describe", "m.safetensors"), ("predict", "m.safetensors", "t.csv")])
def test_a_reader_that_has_seen_enough_is_no_error(command, fit):
    fit(TABLE)
    run = [sys.executable, "-m", "agp", *command]
    with subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.close()  # as `| head` does
        assert "pipe" not in process.stderr.read()
    assert process.returncode == 141


BAD = {
    "no file": (None, [], "there is no file t.csv"),
    "no target": (TABLE.rename(columns={"sound": "Sound level"}), [], "no column 'sound'; did you mean 'Sound level'?"),
    "close": (TABLE.rename(columns={"sound": "sounds"}), [], "no column 'sound'; did you mean 'sounds'?"),
    "case": (TABLE.rename(columns={"sound": "SOUND"}), [], "did you mean 'SOUND'?"),
    "one row": (TABLE.head(1), [], "has 1 row with a target; at least two are needed for training"),
    "constant": (TABLE.assign(sound=3.0), [], "every value of the target 'sound' is 3; there is nothing to predict"),
    "one label": (TABLE.assign(sound="a"), [], "every label in 'sound' is a; there is nothing to predict"),
    "no target at all": (TABLE.assign(sound=np.nan), [], "has 0 rows with a target"),
    "text": (
        TABLE.assign(sound=KIND),
        ["--task", "regression"],
        "the target 'sound' is text, such as 'square'; use --task",
    ),
    "numbers": (TABLE, ["--task", "classification"], "labels must be text or whole numbers, but 'sound' has"),
    "labels": (
        TABLE.assign(sound=range(N)),
        ["--task", "classification"],
        "has 60 different labels, but at most 50 are allowed; merge",
    ),
    "bad cell": (
        TABLE.assign(chord=["x" if i == 17 else i for i in range(N)]),
        [],
        "t.csv: line 19, column 'chord' has 'x', which is not a number; correct it",
    ),
    "bad target": (
        TABLE.assign(sound=["?!" if i == 2 else i / 7 for i in range(N)]),
        [],
        "line 4, column 'sound' has '?!', which is not a number",
    ),
    "infinite": (TABLE.assign(chord=[np.inf, *range(N - 1)]), [], "line 2, column 'chord' has an infinite number"),
    "only names": (
        TABLE[["sound"]].assign(kind=[f"name {i}" for i in range(N)]),
        [],
        "no column is left for inputs: column 'kind' is left out, because most rows have a value",
    ),
    "keep": (TABLE, ["--keep", "sound"], "--keep is 'sound', which is not an input"),
    "keep nothing": (TABLE, ["--keep", "kinds"], "it has no column 'kinds'; did you mean 'kind'?"),
    "nothing left": (TABLE[["sound", "kind"]], ["--drop", "kind"], "has no input columns left; add one"),
    "drop": (TABLE, ["--drop", "kinds"], "it has no column 'kinds'; did you mean 'kind'?"),
    "kernel": (TABLE, ["--kernel", "cubic"], "unknown kernel 'cubic'; choose from auto, rbf, constant"),
    "method of regression": (
        TABLE.assign(sound=KIND),
        ["--method", "gpr"],
        "the method gpr is only for regression; use",
    ),
    "method": (TABLE, ["--method", "svgpp"], "argument --method: unknown method 'svgpp'; did you mean"),
    "layers": (TABLE, ["--layers", "0"], "--layers: must be a whole number of at least 1, not '0'"),
    "layers of auto": (TABLE, ["--layers", "2"], "which auto selects, has no layers; leave it out, or use deep-msvgp"),
    "no layers": (
        TABLE,
        ["--layers", "2", "--method", "wsvgp"],
        "layers is 2, but the method wsvgp has no layers; leave it out, or use deep-msvgp, deep-wsvgp, deep-lsvgp",
    ),
    "share": (TABLE, ["--test-share", "1.5"], "--test-share: must be at least 0 and less than 1, not '1.5'"),
    "large share": (TABLE, ["--test-share", "0.99"], "which leaves 1 of 60 rows for training"),
    "steps": (TABLE, ["--max-steps", "0"], "--max-steps: must be a whole number of at least 1, not '0'"),
    "tolerance": (TABLE, ["--tolerance", "nan"], "--tolerance: must be a finite number above zero, not 'nan'"),
    "backend": (TABLE, ["--backend", "numpi"], "unknown backend 'numpi'; did you mean 'numpy'?"),
    "alone": (TABLE[["sound"]], [], "has only the target column"),
    "all alone": (TABLE[["sound", "size"]], ["--target", "size"], "has only target columns"),
    "twice": (TABLE, ["--target", "sound"], "--target names 'sound' twice; name each column once"),
    "one of two": (TABLE, ["--target", "kind"], "the target 'kind' is text, such as"),
    "two labels": (TABLE, ["--target", "size", "--task", "classification"], "classification supports only one"),
    "empty target": (TABLE.assign(size=np.nan), ["--target", "size"], "the target 'size' has no value; leave it out"),
    "outputs": (TABLE, ["--outputs", "separate"], "--outputs is separate, but this option is only for several"),
    "mixed noise": (
        TABLE,
        ["--target", "size", "--outputs", "coregionalised", "--likelihood", "latent-noise"],
        "must be 'shared' or 'separate' for likelihood='latent-noise'",
    ),
    "gaps": (
        TABLE.assign(size=np.where(SIZE > 1.0, np.nan, SIZE)),
        ["--target", "size", "--method", "gpr"],
        "y has rows with some targets missing, but the method gpr needs all targets of a row; use auto, or",
    ),
    "no classes": (TABLE, ["--likelihood", "ordinal"], "labels must be text or whole numbers, but 'sound' has"),
    "no order": (
        TABLE.assign(sound=KIND),
        ["--likelihood", "ordinal"],
        "in 'sound' have no order, but --likelihood ordinal requires one; replace them with whole numbers",
    ),
    "no noise": (
        TABLE,
        ["--likelihood", "latent-noise", "--task", "classification"],
        "--likelihood latent-noise is for regression, but --task is classification; leave one of them out",
    ),
}


BAD |= {
    "exposure of zero": (
        COUNTS.assign(days=np.where(np.arange(N) == 3, 0.0, DAYS)),
        ["--likelihood", "poisson", "--exposure", "days"],
        "t.csv: line 5, column 'days' is 0; exposures must be positive.",
    ),
    "no exposure": (
        COUNTS.assign(days=np.where(np.arange(N) == 3, np.nan, DAYS)),
        ["--likelihood", "poisson", "--exposure", "days"],
        "t.csv: line 5, column 'days' is empty; exposures must be known in every row.",
    ),
    "negative weight": (
        COUNTS.assign(days=-DAYS),
        ["--task", "regression", "--weights", "days"],
        "column 'days' is -2; weights must be zero or more",
    ),
    "exposure of text": (
        COUNTS.assign(days=KIND),
        ["--likelihood", "poisson", "--exposure", "days"],
        "column 'days' is text, such as 'square'; exposures must be numbers.",
    ),
    "exposure of numbers": (
        COUNTS,
        ["--likelihood", "gaussian", "--exposure", "days"],
        "exposure is given, but likelihood='gaussian' does not use it; use one of 'exponential', 'gamma'",
    ),
    "exposure of classes": (
        COUNTS.assign(sound=KIND),
        ["--exposure", "days"],
        "--exposure is for numeric targets, but the task is classification; use --task regression",
    ),
    "no such exposure": (COUNTS, ["--likelihood", "poisson", "--exposure", "day"], "'day'; did you mean 'days'?"),
    "exposure is target": (
        COUNTS,
        ["--likelihood", "poisson", "--exposure", "sound"],
        "--exposure is 'sound', which is the target; name another column",
    ),
    "no counts": (TABLE, ["--likelihood", "poisson"], "counts must be whole numbers of at least 0"),
    "no logarithm": (TABLE, ["--transform", "log"], "the transform 'log' needs positive targets, but y has -"),
    "transform of another": (
        COUNTS.assign(sound=DAYS),
        ["--transform", "log", "--likelihood", "gamma"],
        "target_transform='log' is for likelihood='gaussian', not 'gamma'",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_told_in_one_sentence(name, refused, tmp_path):
    frame, arguments, message = BAD[name]
    if frame is not None:
        frame.to_csv(tmp_path / "t.csv", index=False)
    assert message in refused("fit", "t.csv", "--target", "sound", "--out", "m.safetensors", *arguments)


def test_names_of_outputs_that_would_hurt_are_refused(refused, tmp_path):
    TABLE.to_csv(tmp_path / "t.csv", index=False)
    call = ["fit", "t.csv", "--target", "sound", "--out"]
    assert "--out is t2.csv, but .csv files are tables" in refused(*call, "t2.csv", out="t2.csv")
    assert "not a folder; name a file" in refused(*call, "deep/m.safetensors")
    assert "a folder; name a file" in refused(*call, ".")


def test_debug_shows_where_an_error_comes_from(shell):
    status, _, err = shell("fit", "t.csv", "--target", "y", "--out", "m", "--debug")
    assert status == 2
    assert err.startswith("Traceback")
    assert "there is no file t.csv" in err


# -- predict ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_another_table_may_have_more_columns_but_not_fewer(fit, shell, refused, tmp_path):
    fit(TABLE)
    new = TABLE.drop(columns="sound").assign(more=1, kind=["oval", *KIND[1:]])
    new.to_csv("n.csv", index=False)
    status, out, err = shell("predict", "m.safetensors", "n.csv")
    assert status == 0
    assert len(out.splitlines()) == N + 1
    assert "n.csv: columns that the model does not use: more" in err
    assert (
        "column 'kind' has 'oval', unseen in training; predictions are those for a new value, with wider error bars"
        in err
    )
    new.drop(columns="chord").to_csv("n.csv", index=False)
    said = refused("predict", "m.safetensors", "n.csv", "--out", "p.csv", out="p.csv")
    assert "n.csv: it has no column 'chord'" in said
    assert "which the model needs" in said
    new.assign(chord=["x" if i == 3 else 1.5 for i in range(N)]).to_csv("n.csv", index=False)
    said = refused("predict", "m.safetensors", "n.csv", "--out", "p.csv", out="p.csv")
    assert "n.csv: line 5, column 'chord' has 'x', which is not a number" in said
    new.assign(chord=[None if i == 3 else 1.5 for i in range(N)]).to_csv("n.csv", index=False)
    said = refused("predict", "m.safetensors", "n.csv", "--out", "p.csv", out="p.csv")
    assert "n.csv: line 5, column 'chord' has a missing cell" in said


@pytest.mark.long
def test_targets_that_the_model_does_not_predict_are_said(fit, shell, refused, tmp_path):
    fit(TABLE)
    TABLE.assign(sound=KIND).to_csv(tmp_path / "n.csv", index=False)
    said = refused("predict", "m.safetensors", "n.csv", "--out", "p.csv", out="p.csv")
    assert "the target 'sound' is text, such as" in said
    assert "the model predicts numbers, so remove the column from the table or rename it" in said
    fit(TABLE.assign(sound=np.where(SOUND > 0.5, "loud", "soft")))
    said = refused("predict", "m.safetensors", "t.csv", "--level", "95", "--out", "p.csv", out="p.csv")
    assert "--level: must be a number between 0 and 1, such as 0.95, not '95'" in said
    TABLE.to_csv(tmp_path / "n.csv", index=False)
    said = refused("predict", "m.safetensors", "n.csv", "--out", "p.csv", out="p.csv")
    assert "the model predicts labels, so remove the column from the table or rename it" in said
    TABLE.assign(sound=np.where(SOUND > 0.5, "loud", "faint")).to_csv(tmp_path / "n.csv", index=False)
    status, out, _ = shell("predict", "m.safetensors", "n.csv", "--out", "p.csv")
    assert status == 0
    assert "column 'sound' has 'faint', unseen in training; such rows count as errors" in out


TRUE = SIZE > 0.0
ZERO_ONE = TRUE.astype(int).astype(object)
GAP = np.arange(N) == 3
LABELS = {
    "truths": TRUE,
    "truths and a gap": np.where(GAP, None, TRUE.astype(object)),
    "numbers": ZERO_ONE,
    "numbers and a gap": np.where(GAP, None, ZERO_ONE),
    "numbers and an error": np.where(GAP, "O", ZERO_ONE),
}


@pytest.mark.long
@pytest.mark.parametrize("name", LABELS)
@pytest.mark.parametrize("trained", list(LABELS)[:3])
def test_labels_are_the_same_whatever_type_a_table_gives_them(name, trained, fit, shell):
    out = fit(TABLE[["size"]].assign(sound=LABELS[trained]), "--max-steps", "30", "--task", "classification")
    assert "classification of 2 labels" in out
    TABLE[["size"]].assign(sound=LABELS[name]).to_csv("n.csv", index=False)
    status, out, _ = shell("predict", "m.safetensors", "n.csv", "--out", "p.csv")
    assert status == 0
    assert ("NLPD inf" in out) == ("unseen" in out) == ("error" in name)
    assert "error" not in name or "column 'sound' has 'O', unseen in training; such rows count" in out
    right = pd.read_csv("p.csv")["label"].astype(int) == TRUE
    assert right.mean() > 0.8
    scored = ~GAP if "gap" in name else GAP | True
    error = np.mean(~(right & ~GAP if "error" in name else right)[scored])
    assert f"{scored.sum()} rows with 'sound': error rate {error:.4g}, " in out


@pytest.mark.slow
def test_a_target_of_truth_values_with_a_gap_is_numbers_where_that_is_asked_for(fit, shell):
    fit(TABLE[["size"]].assign(sound=LABELS["truths and a gap"]), "--task", "regression")
    status, out, _ = shell("predict", "m.safetensors", "t.csv", "--out", "p.csv")
    assert status == 0
    assert "59 rows with 'sound': RMSE " in out


@pytest.mark.slow
def test_texts_that_are_numbers_in_another_table_are_the_same_labels(fit, shell):
    pytest.importorskip("pyarrow", reason="Parquet needs the extra cli")
    label = np.asarray(["1", "2", "x"], dtype=object)[np.digitize(SIZE, [-0.7, 0.7])]
    table = TABLE[["size"]].assign(sound=label)
    fit(table, "--max-steps", "30", "--task", "classification")
    some = table[label != "x"]
    some.to_csv("n.csv", index=False)
    some.assign(sound=some["sound"].astype(float)).to_parquet("n.parquet")
    for name in ("n.csv", "n.parquet"):
        status, out, _ = shell("predict", "m.safetensors", name, "--out", "p.csv")
        assert status == 0
        assert "unseen" not in out
        assert "inf" not in out
        error = np.mean(pd.read_csv("p.csv", dtype=str)["label"].to_numpy() != some["sound"].to_numpy())
        assert error < 0.3
        assert f"error rate {error:.4g}, " in out


@pytest.mark.slow
def test_an_input_that_happens_to_number_the_rows_of_another_table_is_no_index(fit, shell):
    table = TABLE[["sound"]]
    table.insert(0, "NO", np.arange(N) % 7)
    fit(table)
    for first in ([1], [0, 1, 2]):
        pd.DataFrame({"NO": first, "more": 1.5}).to_csv("n.csv", index=False)
        assert shell("predict", "m.safetensors", "n.csv", "--out", "p.csv")[0] == 0
        assert len(pd.read_csv("p.csv")) == len(first)


@pytest.mark.slow
@pytest.mark.parametrize("code", ["007", "7", "1.0", "True"])
def test_a_text_is_the_same_whatever_the_other_cells_are(code, fit, shell):
    table = TABLE.assign(kind=np.where(KIND == "round", code, "XA"))
    fit(table)
    assert shell("predict", "m.safetensors", "t.csv", "--out", "all.csv")[0] == 0
    expected = pd.read_csv("all.csv")["mean"][KIND == "round"]
    table[KIND == "round"].to_csv("n.csv", index=False)
    status, out, _ = shell("predict", "m.safetensors", "n.csv", "--out", "p.csv")
    assert status == 0
    assert "unseen" not in out
    np.testing.assert_allclose(pd.read_csv("p.csv")["mean"], expected, rtol=1e-9)


@pytest.mark.slow
def test_a_text_is_the_same_beside_an_empty_cell(fit, shell):
    pytest.importorskip("pyarrow", reason="Parquet needs the extra cli")
    fit(TABLE.assign(kind=np.where(KIND == "round", "7", "XA")), "--missing", "impute")
    assert shell("predict", "m.safetensors", "t.csv", "--out", "all.csv")[0] == 0
    rows = np.flatnonzero(KIND == "round")
    holed = TABLE.iloc[rows].assign(kind=[np.nan, *[7.0] * (len(rows) - 1)])
    holed.to_parquet("n.parquet")
    holed.assign(kind=[None, *["7"] * (len(rows) - 1)]).to_csv("n.csv", index=False)
    for name in ("n.parquet", "n.csv"):
        status, out, _ = shell("predict", "m.safetensors", name, "--out", "p.csv")
        assert status == 0
        assert "unseen" not in out
        np.testing.assert_allclose(
            pd.read_csv("p.csv")["mean"][1:], pd.read_csv("all.csv")["mean"][rows[1:]], rtol=1e-9
        )


@pytest.mark.long
def test_labels_that_are_texts_keep_their_zeros(fit, shell):
    label = np.where(SIZE > 0.0, "007", "x")
    table = TABLE[["size"]].assign(sound=label)
    fit(table, "--max-steps", "30", "--task", "classification")
    table[label == "007"].to_csv("n.csv", index=False)
    status, out, _ = shell("predict", "m.safetensors", "n.csv", "--out", "p.csv")
    assert status == 0
    assert "unseen" not in out
    wrong = np.mean(pd.read_csv("p.csv", dtype=str)["label"] != "007")
    assert wrong < 0.2
    assert f"error rate {wrong:.4g}, " in out


@pytest.mark.slow
def test_predictions_do_not_overwrite_their_table(fit, refused):
    fit(TABLE)
    call = ["predict", "m.safetensors", "t.csv", "--out"]
    assert "--out is t.csv, which is the table itself; name another file" in refused(*call, "t.csv", out="none")
    assert "--out is p.xlsx, but must end with .csv or .parquet" in refused(*call, "p.xlsx", out="p.xlsx")
    assert "--level: must be a number between 0 and 1" in refused(*call, "p.csv", "--level", "95", out="p.csv")
    assert "is not a model of agp" in refused("predict", "t.csv", "t.csv", "--out", "p.csv", out="p.csv")


@pytest.mark.slow
def test_models_of_python_predict_tables_too(shell, refused, tmp_path):
    from agp.estimators import GPRegressor

    inputs = TABLE[["size", "kind"]]
    TABLE.to_csv(tmp_path / "t.csv", index=False)
    with pytest.warns(agp.errors.ConvergenceWarning):
        estimator = GPRegressor(max_steps=5, hyperparameters="mode").fit(inputs, SOUND)
    agp.save(estimator, tmp_path / "m.safetensors")
    status, out, _ = shell("predict", "m.safetensors", "t.csv")
    assert status == 0
    assert float(out.splitlines()[1].split(",")[0]) == pytest.approx(estimator.predict(inputs)[0], rel=1e-9)
    assert "size: number" in shell("describe", "m.safetensors")[1]
    agp.save(estimator.model_, tmp_path / "m.safetensors")
    assert "holds a model without column names" in refused("predict", "m.safetensors", "t.csv", out="none")
    assert "kernel.lengthscale" in shell("describe", "m.safetensors")[1]


@pytest.mark.slow
def test_edited_notes_are_refused_in_one_sentence(fit, refused):
    fit(TABLE)
    estimator, notes = agp.io.load_with_metadata("m.safetensors")
    for change in (
        {"columns": {"a": ["number", []]}},
        {"columns": 3},
        {"task": 3},
        {"targets": "y"},
        {"targets": [3]},
        {"rows": "x"},
        {"more": 1},
    ):
        save_with_metadata("m.safetensors", estimator, notes | change)
        for command in (["predict", "m.safetensors", "t.csv"], ["describe", "m.safetensors"]):
            assert "do not match its model" in refused(*command, out="none")


# -- describe, help ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_model_is_described(fit, shell):
    fit(TABLE, "--test-share", "0.2", "--method", "sgpr", "--num-inducing", "10")
    status, out, _ = shell("describe", "m.safetensors")
    assert status == 0
    for word in (
        "table      t.csv: 48 training rows",
        "target     sound (regression)",
        "kind: text (round, square)",
        "held out   RMSE ",
        "estimator  GPRegressor, method sgpr, missing cells: refuse",
        "training   not converged after 8 steps, bound ",
        "kernel.lengthscale ",
    ):
        assert word in out


@pytest.mark.slow
def test_dates_orders_and_texts_of_numbers_are_described_and_predicted(fit, shell):
    pytest.importorskip("pyarrow", reason="Parquet needs the extra cli")
    sizes = pd.Categorical(TABLE["kind"], ["square", "round", "flat"], ordered=True)
    day = pd.Timestamp("2020-02-28 23:00") + pd.to_timedelta(np.arange(N), unit="D")
    table = TABLE.assign(kind=sizes, chord=[f"{x:.2f}%" for x in TABLE["chord"]], day=day)
    table.to_parquet("t.parquet")
    call = ["t.parquet", "--target", "sound", "--out", "m.safetensors", "--kernel", "rbf", "--max-steps", "8"]
    status, out, err = shell("fit", *call)
    assert status == 0, err
    assert "column 'kind' holds ordered categories, which become 0, 1, ...: square < round < flat\n" in out
    assert "column 'chord' holds percentages as text, where" in err
    status, out, err = shell("describe", "m.safetensors")
    assert status == 0, err
    assert "kind: ordered (square < round < flat)\n" in out
    assert "chord: number (written as a percentage)\n" in out
    assert f"day: date (2020-02-28 to {day[-1]:%Y-%m-%d}; days since 1970-01-01)\n" in out
    new = table.head(3).assign(kind=["flat", "round", "square"])
    new.to_csv("new.csv", index=False)
    assert shell("predict", "m.safetensors", "new.csv", "--out", "p.parquet", "-q")[0] == 0
    expected = agp.load("m.safetensors").predict(new.drop(columns="sound"))
    np.testing.assert_array_equal(pd.read_parquet("p.parquet")["mean"], expected)
    new.assign(kind="oval").to_csv("new.csv", index=False)
    status, _, err = shell("predict", "m.safetensors", "new.csv")
    assert status == 2
    assert "new.csv: line 2, column 'kind' has 'oval', which is not one of the ordered levels 'square', 'round'" in err


@pytest.mark.slow
def test_what_matters_is_told_in_the_names_and_units_of_the_table(fit, shell):
    day = pd.Timestamp("2020-01-01") + pd.to_timedelta(RNG.integers(0, 900, N), unit="D")
    chord = TABLE["chord"].where(np.arange(N) % 9 > 0)
    table = TABLE.assign(day=day.strftime("%Y-%m-%d"), chord=chord)
    fit(table, "--missing", "impute", "--kernel", "rbf", "--max-steps", "300")
    status, out, err = shell("describe", "m.safetensors")
    assert status == 0, err
    lines = out.partition("Relevance\n")[2].splitlines()
    assert lines[0].split() == ["column", "RMSE", "+", "kernel", "lengthscale"]
    named = {line.split()[0]: line for line in lines[1:5]}
    assert [*named][:2] in (["size", "kind"], ["kind", "size"])
    assert {*named} == {"size", "kind", "day", "chord"}
    assert [name for name, line in named.items() if line.endswith(" days")] == ["day"]
    assert all(line.count(" ± ") == 2 and " to " in line for line in named.values())
    assert f"10 shuffles, {N} training rows" in out
    status, out, err = shell("describe", "m.safetensors", "t.csv")
    assert status == 0, err
    assert lines[:5] == out.partition("Relevance\n")[2].splitlines()[:5]
    assert f"10 shuffles, {N} rows of t.csv" in out


@pytest.mark.long
def test_a_file_without_rows_says_how_to_get_error_bars(fit, shell):
    fit(TABLE, "--method", "sgpr", "--num-inducing", "20")
    _, out, _ = shell("describe", "m.safetensors")
    assert " ± " not in out
    assert "error bars  not available for the kernel: the model does not contain its training data; name the" in out
    assert (
        "shuffled    not available: the model holds no rows with targets; name a table: agp describe MODEL TABLE" in out
    )
    _, out, _ = shell("describe", "m.safetensors", "t.csv")
    assert out.count(" ± ") == 6


@pytest.mark.long
def test_targets_and_classes_are_told_by_name(fit, shell):
    fit(TABLE.assign(flow=SIZE), "--target", "flow")
    assert "RMSE + of sound" in (out := shell("describe", "m.safetensors", "t.csv")[1])
    assert "RMSE + of flow" in out
    fit(TABLE.assign(sound=np.where(SOUND > 0.0, "loud", "low")))
    frame = pd.read_csv("t.csv").replace("loud", "new").head(40)
    frame.to_csv("new.csv", index=False)
    _, out, _ = shell("describe", "m.safetensors", "new.csv")
    assert "log loss +" in out
    assert f"10 shuffles, {int((frame['sound'] == 'low').sum())} rows of new.csv" in out


@pytest.mark.slow
def test_a_table_that_does_not_fit_is_refused(fit, shell):
    fit(TABLE)
    for name, frame, said in (
        ("a.csv", TABLE.drop(columns="chord"), "'chord'"),
        ("b.csv", TABLE.drop(columns="sound"), "has no column 'sound', which the model needs as its target;"),
        ("c.csv", TABLE.assign(sound=np.nan), "c.csv has 0 rows with 'sound'; at least 2 rows are needed."),
    ):
        frame.to_csv(name, index=False)
        status, _, err = shell("describe", "m.safetensors", name)
        assert status == 2
        assert len(err.splitlines()) == 1
        assert said in err


@pytest.mark.slow
def test_of_layers_there_is_importance_alone(fit, shell):
    fit(TABLE, "--method", "deep-rsvgp", "--num-inducing", "8")
    _, out, _ = shell("describe", "m.safetensors", "t.csv")
    assert "kernel      not available: the model has layers, whose lengthscales do not refer to columns\n" in out
    assert out.count(" ± ") == 3


COMMANDS = ("fit", "predict", "describe", "compare", "methods", "backends")


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)], ids=str)
def test_help_fits_one_screen_and_names_every_option(command, capsys, monkeypatch):
    from agp.cli import _terminal

    made = {}
    real = _terminal.Parser.add_argument

    def seen(self, *names, **settings):
        made.setdefault(self.prog, set()).update(name for name in names if name.startswith("--"))
        return real(self, *names, **settings)

    monkeypatch.setattr(_terminal.Parser, "add_argument", seen)
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    options = made[" ".join(["agp", *command])]
    assert options
    missing = {name for name in options if not any(name in line for line in lines)}
    assert not missing
    assert any(line.startswith("example") for line in lines)


FIT = ["fit", "t.csv", "--target", "y", "--out", "m"]


@pytest.mark.slow
def test_the_largest_seed_is_taken(fit):
    assert "written: m.safetensors" in fit(TABLE, "--seed", str(2**32 - 1), "--test-share", "0.2")


def test_wrong_arguments_are_one_sentence(capsys):
    for arguments, said in (
        (["fit", "t.csv"], "agp: the following arguments are required: --target, --out; see agp fit --help.\n"),
        (
            ["train"],
            "agp: unknown command 'train'; choose from fit, predict, describe, compare, methods",
        ),
        (["fitt", "t.csv"], "agp: unknown command 'fitt'; did you mean 'fit'?\n"),
        (["fit", "t.csv", "--traget", "y"], "agp: unknown option --traget; did you mean '--target'?\n"),
        ([*FIT, "--kernal=rbf"], "agp: unknown option --kernal; did you mean '--kernel'?\n"),
        ([*FIT, "--likelihood", "gausian"], "agp: argument --likelihood: unknown likelihood 'gausian'; did you mean"),
        (["--versoin"], "agp: unknown option --versoin; did you mean '--version'?\n"),
        (["backends", "all"], "agp: unrecognized arguments: all; see agp backends --help.\n"),
        (
            [*FIT, "--seed", "x"],
            "agp: argument --seed: must be a whole number from 0 to 4294967295, not 'x'; see agp fit",
        ),
        ([*FIT, "--seed", "4294967296"], "agp: argument --seed: must be a whole number from 0 to 4294967295, not '429"),
        ([*FIT, "--seed", "-1"], "agp: argument --seed: must be a whole number from 0 to 4294967295, not '-1'"),
        (
            [*FIT, "--num-inducing", "ten"],
            "agp: argument --num-inducing: must be a whole number of at least 1, or 'auto', not 'ten'; see",
        ),
        ([*FIT, "--layers", "2.5"], "agp: argument --layers: must be a whole number of at least 1, not '2.5'; see"),
        ([*FIT, "--tolerance", "0,1"], "agp: argument --tolerance: must be a finite number above zero, not '0,1'; see"),
        (
            ["compare", "--tolerance", "0"],
            "agp: argument --tolerance: must be a finite number above zero, not '0'; see",
        ),
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        err = capsys.readouterr().err
        assert ended.value.code == 2
        assert err.startswith(said)
        assert err.count("\n") == 1


def test_the_package_is_a_command(capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "agp.__main__", raising=False)
    monkeypatch.setattr(sys, "argv", ["agp", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("agp", run_name="__main__")
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"agp {agp.__version__}\n"


ROOMS = ("agp.estimators", "agp.tables", "agp.cli._")


@pytest.mark.parametrize("package", ["pandas", "sklearn", "narwhals"])
def test_what_is_not_installed_names_one_extra(package, shell, monkeypatch, tmp_path):
    TABLE.to_csv(tmp_path / "t.csv", index=False)
    monkeypatch.setattr("agp.io._model._KINDS", {})  # the room, loaded anew, registers classes of its own
    for name in [name for name in sys.modules if name.startswith((*ROOMS, f"{package}."))]:
        parent, _, child = name.rpartition(".")
        if parent in ("agp", "agp.cli"):  # an import stores a module there, too
            monkeypatch.delattr(sys.modules[parent], child, raising=False)
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    status, _, err = shell("fit", "t.csv", "--target", "sound", "--out", "m.safetensors")
    assert status == 2
    assert f'{package}, which is not installed: pip install "array-gp[cli]"' in err


@pytest.mark.long
def test_interruption_writes_nothing(tmp_path):
    program = (
        "import sys\nfrom agp.cli import main, _fit\n"
        "def stop(*_): raise KeyboardInterrupt\n_fit.write_model = stop\nsys.exit(main(sys.argv[1:]))"
    )
    TABLE.to_csv(tmp_path / "t.csv", index=False)
    call = [sys.executable, "-c", program, "fit", "t.csv", "--target", "sound", "--out", "m", "-q", *QUICK]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr.endswith("agp: interrupted; nothing was written.\n")
    assert not (tmp_path / "m").exists()


@pytest.mark.slow
def test_the_number_of_inducing_inputs_can_be_left_to_it(tmp_path, capsys):
    rng = np.random.default_rng(0)
    x = rng.uniform(-2.0, 2.0, 150)
    path, out = tmp_path / "waves.csv", tmp_path / "m.safetensors"
    pd.DataFrame({"x": x, "y": np.sin(3.0 * x) + 0.1 * rng.standard_normal(150)}).to_csv(path, index=False)
    settings = ["--target", "y", "--out", str(out), "--method", "sgpr", "--num-inducing", "auto"]
    assert main(["fit", str(path), *settings]) == 0
    assert "(compared: rbf, " in capsys.readouterr().out
    assert main(["describe", str(out)]) == 0
