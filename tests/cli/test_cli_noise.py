"""`agp fit --noise`: the standard deviations of measurement errors, in a column of the table."""

import numpy as np
import pytest

import agp

pd = pytest.importorskip("pandas", reason="the command line needs the extra cli")
pytest.importorskip("sklearn", reason="the command line needs the extra cli")

from agp.estimators import GPRegressor  # noqa: E402

N = 50
RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, N)
ERROR = np.where(X > 0.0, 1.0, 0.05)
Y = np.sin(2.0 * X) + ERROR * RNG.standard_normal(N)
TABLE = pd.DataFrame({"x": X, "y": Y, "error": ERROR})
TWO = TABLE.assign(z=100.0 * np.cos(X) + 10.0 * ERROR * RNG.standard_normal(N), error_z=10.0 * ERROR)
SETTINGS = {"kernel": "rbf", "tolerance": 1e-3, "max_steps": 12, "random_state": 0}
QUICK = ("--kernel", "rbf", "--max-steps", "12", "--out", "m.safetensors")

pytestmark = pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")


@pytest.fixture
def shell(tmp_path, monkeypatch, capsys, status_of):
    """Run a command in an empty folder: its exit status, what it printed, and its errors."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        status = status_of(*arguments)
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run


@pytest.fixture
def fit(shell):
    """`agp fit` of a data frame, written as CSV: what it printed."""

    def run(frame, *arguments):
        frame.to_csv("t.csv", index=False)
        status, out, err = shell("fit", "t.csv", *arguments, *QUICK)
        assert status == 0, err
        return out

    return run


@pytest.fixture
def predict(shell):
    """`agp predict` of a data frame: the predictions, and what it printed."""

    def run(frame, *arguments):
        frame.to_csv("new.csv", index=False)
        status, out, err = shell("predict", "m.safetensors", "new.csv", "--out", "p.csv", *arguments)
        assert status == 0, err
        return pd.read_csv("p.csv"), out

    return run


def test_standard_deviations_are_squared_and_are_no_input(fit, predict):
    out = fit(TABLE, "--target", "y", "--noise", "error")
    assert "50 rows, 1 input column; regression for 'y'" in out
    estimator = agp.load("m.safetensors")
    by_hand = GPRegressor(**SETTINGS).fit(TABLE[["x"]], Y, noise=ERROR**2)
    expected = by_hand.predict(TABLE[["x"]], return_std=True, noise=ERROR**2)
    for found, value in zip(estimator.predict(TABLE[["x"]], return_std=True, noise=ERROR**2), expected, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-9)
    found, out = predict(TABLE, "--quantiles", "0.1")
    assert "does not use" not in out
    for name, value in zip(("mean", "standard_deviation"), expected, strict=True):
        np.testing.assert_allclose(found[name], value, rtol=1e-9)
    low, high = by_hand.predict_interval(TABLE[["x"]], 0.95, noise=ERROR**2).T
    np.testing.assert_allclose(found[["lower", "upper"]], np.stack([low, high], axis=1), rtol=1e-9)
    quantiles = by_hand.predict_quantiles(TABLE[["x"]], (0.1,), noise=ERROR**2)
    np.testing.assert_allclose(found["quantile_0.1"], quantiles[:, 0], rtol=1e-9)
    density = by_hand.log_density(TABLE[["x"]], Y, noise=ERROR**2)
    assert f"NLPD {-np.mean(density):.4g}," in out


def test_without_the_column_predictions_are_without_measurement_error(fit, predict):
    fit(TABLE, "--target", "y", "--noise", "error")
    estimator = agp.load("m.safetensors")
    found, out = predict(TABLE[["x"]])
    assert "new.csv: no column 'error', so predictions of 'y' are without measurement error\n" in out
    deviation = estimator.predict(TABLE[["x"]], return_std=True)[1]
    np.testing.assert_allclose(found["standard_deviation"], deviation, rtol=1e-9)
    exact, out = predict(TABLE.assign(error=0.0))
    assert "measurement error" not in out
    np.testing.assert_allclose(exact["standard_deviation"], deviation, rtol=1e-9)


def test_held_out_rows_are_scored_with_their_errors(fit):
    out = fit(TABLE, "--target", "y", "--noise", "error", "--test-share", "0.3")
    test = np.zeros(N, dtype=bool)
    test[np.random.default_rng(0).permutation(N)[: round(0.3 * N)]] = True
    estimator = agp.load("m.safetensors")
    density = estimator.log_density(TABLE[["x"]][test], Y[test], noise=ERROR[test] ** 2)
    assert f"NLPD {-np.mean(density):.4g}," in out


def test_each_of_several_targets_has_its_column(fit, predict, shell):
    fit(TWO, "--target", "y", "--target", "z", "--noise", "error", "--noise", "error_z", "--num-inducing", "10")
    estimator = agp.load("m.safetensors")
    noise = np.stack([ERROR, 10.0 * ERROR], axis=1) ** 2
    deviation = estimator.predict(TWO[["x"]], return_std=True, noise=noise)[1]
    found, _ = predict(TWO)
    np.testing.assert_allclose(found[["standard_deviation_y", "standard_deviation_z"]], deviation, rtol=1e-9)
    assert (deviation[:, 1] ** 2 >= noise[:, 1]).all()
    found, out = predict(TWO.drop(columns="error_z"))
    assert "no column 'error_z', so predictions of 'z' are without measurement error\n" in out
    noise[:, 1] = 0.0
    deviation = estimator.predict(TWO[["x"]], return_std=True, noise=noise)[1]
    np.testing.assert_allclose(found[["standard_deviation_y", "standard_deviation_z"]], deviation, rtol=1e-9)
    status, out, err = shell("describe", "m.safetensors")
    assert status == 0, err
    assert "noise      known standard deviations in 'error', 'error_z'\n" in out


def test_exact_measurements_are_allowed(fit):
    fit(TABLE.assign(error=np.where(X > 1.0, 0.0, ERROR)), "--target", "y", "--noise", "error")


def test_a_table_is_described_without_the_column(fit, shell):
    fit(TABLE, "--target", "y", "--noise", "error")
    TABLE.drop(columns="error").to_csv("other.csv", index=False)
    for name in ("t.csv", "other.csv"):
        status, out, err = shell("describe", "m.safetensors", name)
        assert status == 0, err
        assert "noise      known standard deviations in 'error'\n" in out
        assert "RMSE +" in out
        assert "does not use" not in out + err


BAD = {
    "negative": (TABLE.assign(error=-ERROR), (), "is -1; standard deviations must be zero or more."),
    "empty": (
        TABLE.assign(error=np.where(np.arange(N) == 3, np.nan, ERROR)),
        (),
        "t.csv: line 5, column 'error' is empty; standard deviations must be known in every row.",
    ),
    "text": (TABLE.assign(error="large"), (), "is text, such as 'large'; standard deviations must be numbers."),
    "unknown": (TABLE.rename(columns={"error": "errors"}), (), "'error'; did you mean 'errors'?"),
    "target": (TABLE, ("--noise", "y"), "--noise is 'y', which is the target; name another column."),
    "kept": (TABLE, ("--keep", "error"), "--keep is 'error', which is not an input"),
    "two for one": (
        TWO,
        ("--noise", "error_z"),
        "--noise names 2 columns, but --target names 1 column; repeat --noise for each target, in order.",
    ),
    "one for two": (
        TWO,
        ("--target", "z"),
        "--noise names 1 column, but --target names 2 columns; repeat --noise for each target, in order.",
    ),
    "likelihood": (
        TABLE,
        ("--likelihood", "student-t"),
        "--noise is for the gaussian likelihood, and cannot be used with --likelihood student-t; leave one",
    ),
    "transform": (
        TABLE.assign(y=np.exp(Y)),
        ("--transform", "log"),
        "--noise is for the gaussian likelihood, and cannot be used with --transform log; leave one of them out.",
    ),
    "labels": (
        TABLE.assign(y=np.where(Y > 0.0, "high", "low")),
        (),
        "--noise is for numeric targets, but the task is classification; use --task regression.",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_columns_are_refused_in_one_sentence(name, shell):
    frame, arguments, message = BAD[name]
    frame.to_csv("t.csv", index=False)
    status, _, err = shell("fit", "t.csv", "--target", "y", "--noise", "error", *arguments, *QUICK)
    assert status == 2
    assert message in err
    assert len(err.splitlines()) == 1


def test_split_tables_do_not_support_the_option(shell):
    TABLE.to_parquet("part-0.parquet", index=False)
    status, _, err = shell("fit", "part-*.parquet", "--target", "y", "--noise", "error", *QUICK)
    assert status == 2
    assert err.startswith("agp: --noise cannot be used with --scheduler or with a table split across several files")


def test_new_rows_need_an_error_each(fit, shell):
    fit(TABLE, "--target", "y", "--noise", "error")
    TABLE.assign(error=np.where(np.arange(N) == 0, np.nan, ERROR)).to_csv("new.csv", index=False)
    status, _, err = shell("predict", "m.safetensors", "new.csv")
    assert status == 2
    assert err == "agp: new.csv: line 2, column 'error' is empty; standard deviations must be known in every row.\n"


# -- noise by group ---------------------------------------------------------------------------------------------------

GROUPED = TABLE[["x", "y"]].assign(site=np.where(X > 0.0, "rough", "fine"))


def test_noise_by_is_that_of_the_estimator(fit, predict, shell):
    out = fit(GROUPED, "--target", "y", "--noise-by", "site")
    assert "50 rows, 2 input columns; regression for 'y'" in out
    estimator = agp.load("m.safetensors")
    by_hand = GPRegressor(noise_by="site", **SETTINGS).fit(GROUPED[["x", "site"]], Y)
    assert estimator.noise_by_ == by_hand.noise_by_
    first, second = (by_hand.noise_by_[site] ** 0.5 for site in ("fine", "rough"))
    assert f"noise by 'site', standard deviations: fine {first:.4g}, rough {second:.4g}\n" in out
    found, _ = predict(GROUPED)
    mean, deviation = by_hand.predict(GROUPED[["x", "site"]], return_std=True)
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-9)
    np.testing.assert_allclose(found["standard_deviation"], deviation, rtol=1e-9)
    low, high = by_hand.predict_interval(GROUPED[["x", "site"]], 0.95).T
    np.testing.assert_allclose(found[["lower", "upper"]], np.stack([low, high], axis=1), rtol=1e-9)
    status, described, _ = shell("describe", "m.safetensors")
    assert status == 0
    assert f"noise      by 'site', standard deviations: fine {first:.4g}" in described


def test_groups_have_noise_beside_known_standard_deviations(fit, predict, shell):
    table = GROUPED.assign(error=0.5 * ERROR)
    fit(table, "--target", "y", "--noise", "error", "--noise-by", "site")
    by_hand = GPRegressor(noise_by="site", **SETTINGS).fit(GROUPED[["x", "site"]], Y, noise=(0.5 * ERROR) ** 2)
    assert agp.load("m.safetensors").noise_by_ == by_hand.noise_by_
    found, _ = predict(table)
    deviation = by_hand.predict(GROUPED[["x", "site"]], return_std=True, noise=(0.5 * ERROR) ** 2)[1]
    np.testing.assert_allclose(found["standard_deviation"], deviation, rtol=1e-9)
    found, out = predict(GROUPED)
    assert "no column 'error', so predictions of 'y' are without measurement error" in out
    plain = by_hand.predict(GROUPED[["x", "site"]], return_std=True)[1]
    np.testing.assert_allclose(found["standard_deviation"], plain, rtol=1e-9)
    described = shell("describe", "m.safetensors")[1]
    assert "noise      known standard deviations in 'error'\n" in described
    assert "noise      by 'site', standard deviations: fine " in described


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--noise-by", "sight"], "no column 'sight'"),
        (["--noise-by", "y"], "--noise-by is 'y', which is not an input; name an input, or leave --noise-by out."),
        (["--noise-by", "site", "--drop", "site"], "--noise-by is 'site', which is not an input"),
        (["--noise-by", "site", "--task", "classification"], "--noise-by is for numeric targets"),
        (["--noise-by", "site", "--likelihood", "gamma"], "likelihood='gamma' does not use it"),
    ],
)
def test_noise_by_that_does_not_fit_is_refused(shell, options, message):
    GROUPED.to_csv("t.csv", index=False)
    status, _, err = shell("fit", "t.csv", "--target", "y", *options, *QUICK)
    assert status != 0
    assert message in err
