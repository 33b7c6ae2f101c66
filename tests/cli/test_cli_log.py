"""The progress of `agp fit` and `agp compare`: lines on standard error, a log file, and the names of limits."""

import re

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("tqdm", reason="the command line needs the extra cli")

import agp
from agp.errors import Interrupted

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d agp: .+")
RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 2))
TABLE = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": np.exp(X[:, 0] + 0.1 * RNG.standard_normal(40))})


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    TABLE.to_csv("t.csv", index=False)


FIT = ["fit", "t.csv", "--target", "y", "--out", "m.safetensors", "--hyperparameters", "mode"]
COMPARE = ["compare", "t.csv", "--target", "y", "--method", "gpr", "wsvgp", "--max-steps", "30"]


@pytest.mark.parametrize(
    ("call", "ending"),
    [(FIT, "ended: converged"), (COMPARE, "ended: 2 trainings compared"), ([*FIT, "-q"], "ended")],
)
def test_a_log_file_is_appended_to(call, ending, tmp_path, status_of):
    log = tmp_path / "fit.log"
    log.write_text("before\n")
    assert status_of(*call, "--log", log) == 0
    lines = log.read_text().splitlines()
    assert lines[0] == "before"
    assert all(LINE.fullmatch(line) for line in lines[1:])
    assert ending in lines[-1]
    assert "typical error" in lines[-1]


def test_a_redirected_long_fit_writes_lines_unless_it_is_quiet(status_of, capfd, monkeypatch):
    monkeypatch.setattr("agp.training._progress.FIRST", 0.0)
    assert status_of(*FIT) == 0
    err = capfd.readouterr().err.splitlines()
    assert err
    assert all(LINE.fullmatch(line) for line in err)
    assert status_of(*FIT, "-q") == 0
    assert capfd.readouterr() == ("", "")


def test_a_short_fit_writes_no_lines(status_of, capfd):
    assert status_of(*FIT) == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("t.csv", "--log is t.csv, which is the table itself; name another file."),
        ("m.safetensors", "--log is m.safetensors, which is the output itself; name another file."),
        ("none/fit.log", "the log file 'none/fit.log' cannot be written (No such file or directory); name a file"),
    ],
)
def test_log_files_that_cannot_be_used(log, message, status_of, capfd):
    assert status_of(*FIT, "--log", log) == 2
    assert message in capfd.readouterr().err
    assert len(pd.read_csv("t.csv")) == len(TABLE)


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (["--max-steps", "3"], "the limit of 3 steps (--max-steps) was reached"),
        (["--max-seconds", "1e-9"], "the limit of 1e-09 s (--max-seconds) was reached"),
        (["--method", "wsvgp", "--max-steps", "3"], "the limit of 3 steps (--max-steps) was reached"),
    ],
)
def test_limits_have_the_names_of_options(limit, words, status_of, capfd):
    assert status_of(*FIT[:-2], *limit) == 0
    shown = capfd.readouterr()
    assert words in shown.out
    assert words in shown.err
    assert status_of("describe", "m.safetensors") == 0
    assert words.replace("--max-s", "max_s") in capfd.readouterr().out


def test_scores_of_transformed_targets_are_in_their_units(status_of, capfd):
    assert status_of(*FIT, "--transform", "log", "--test-share", "0.25") == 0
    out = capfd.readouterr().out
    assert "these scores, and the NLPD, are those of 'y' itself, not of its transform (log)" in out
    rmse, nlpd = (float(re.search(rf"{name} (-?[\d.]+)", out)[1]) for name in ("RMSE", "NLPD"))
    test = np.zeros(40, dtype=bool)
    test[np.random.default_rng(0).permutation(40)[:10]] = True
    rows, y = TABLE[test].drop(columns="y"), TABLE["y"][test].to_numpy()
    model = agp.load("m.safetensors")
    assert rmse == pytest.approx(np.sqrt(np.mean((model.predict(rows) - y) ** 2)), rel=1e-3)
    assert nlpd == pytest.approx(-np.mean(model.log_density(rows, y)), rel=1e-3)
    lower, upper = model.predict_quantiles(rows, [0.5 - 1e-3, 0.5 + 1e-3]).T  # the density around the medians
    middle = 0.5 * (lower + upper)
    assert np.exp(model.log_density(rows, middle)) == pytest.approx(2e-3 / (upper - lower), rel=1e-3)


def test_an_interrupt_is_told_in_the_log(status_of, tmp_path, monkeypatch):
    def interrupt(*_args, **_kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("agp.selection._stages.Fit.search", interrupt)
    assert status_of(*FIT, "--log", "fit.log") == 130
    assert "interrupted" in (tmp_path / "fit.log").read_text().splitlines()[-1]
    with pytest.raises(Interrupted):
        agp.fit_regression(X, X[:, 0], hyperparameters="mode")
