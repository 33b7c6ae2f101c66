"""`agp compare` as a user calls it: small files, every backend, bad input, interruption."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from agp.data import load
from in_process import run

from agp.cli import main
from agp.cli._report import Report
from agp.cli._terminal import console
from agp.kernels import RBF, Linear, Periodic, Product, Sum, White, parse_kernel

pytestmark = pytest.mark.slow

pytest.importorskip("rich", reason="the command line needs the extra cli")
pytest.importorskip("tqdm", reason="the command line needs the extra cli")

QUICK = ["--num-inducing", "8", "--batch-size", "20", "--iterations", "6", "--kernel", "rbf+matern32"]
ROW_KEYS = {
    "method", "backend", "device", "gradient", "dtype", "num_inducing", "steps", "bound", "nlpd", "coverage95",
    "ms_per_step", "seconds", "peak_mib", "max_rel_diff_bound", "max_rel_diff_grad",
}  # fmt: skip


def agp(*arguments, timeout=900):
    return subprocess.run(
        [sys.executable, "-m", "agp", *map(str, arguments)], capture_output=True, text=True, timeout=timeout,
        check=False,
    )  # fmt: skip


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(50, 3))
    path = tmp_path / "table.csv"
    rows = np.column_stack([X, X @ [1.0, -1.0, 0.5]])
    np.savetxt(path, rows, delimiter=",", header="a,b,c,height", comments="")
    return path


def results(folder):
    return json.loads((folder / "results.json").read_text())


def test_all_rows_agree_and_everything_is_written(regression, tmp_path):
    out = tmp_path / "out"
    done = run("compare", "--data", regression, "--out", out, *QUICK)
    assert done.returncode == 0, done.stderr
    found = results(out)
    assert found.keys() == {"data", "settings", "rows"}
    assert found["data"]["rows"] == 48
    rows = found["rows"]
    assert all(row.keys() >= ROW_KEYS | {"rmse"} for row in rows)
    assert {row["method"] for row in rows} == {"wsvgp", "rsvgp"}
    exact = [row for row in rows if row["dtype"] == "float64"]
    assert all(max(row["max_rel_diff_bound"], row["max_rel_diff_grad"]) <= 1e-9 for row in exact)
    assert all(row["steps"] == 6 and np.isfinite(row["nlpd"]) for row in rows)
    for picture in ("nlpd_vs_time.png", "map_wsvgp.png", "map_rsvgp.png"):
        assert (out / picture).read_bytes().startswith(b"\x89PNG")
        assert picture in done.stdout
    assert "results.json" in done.stdout


def test_classes_give_an_error_rate(tmp_path):
    rng = np.random.default_rng(2)
    X = rng.normal(size=(50, 3))
    np.savez(tmp_path / "two.npz", X=X, y=(X[:, 0] > 0).astype(np.uint8))
    done = run(
        "compare", "--data", tmp_path / "two.npz", "--out", tmp_path / "out", "--backend", "numpy", "--dtype",
        "float64", "--method", "rsvgp", *QUICK,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (row,) = results(tmp_path / "out")["rows"]
    assert 0.0 <= row["error_rate"] <= 1.0
    assert "rmse" not in row
    assert not (tmp_path / "out" / "map_rsvgp.png").exists()


@pytest.fixture
def three_classes(tmp_path):
    rng = np.random.default_rng(3)
    y = np.arange(90) % 3
    path = tmp_path / "blobs.npz"
    np.savez(path, X=np.eye(3)[y][:, :2] * 4 + rng.normal(size=(90, 2)), y=y)
    return path


@pytest.mark.long
@pytest.mark.parametrize("likelihood", ["softmax", "robustmax"])
def test_many_classes(three_classes, tmp_path, likelihood):
    done = run(
        "compare", "--data", three_classes, "--out", tmp_path / "out", "--backend", "numpy", "--dtype", "float64",
        "--method", "wsvgp", "--likelihood", likelihood, "--num-inducing", "10", "--iterations", "60", "--rate", "0.1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = results(tmp_path / "out")
    assert found["data"]["classes"] == 3
    assert found["settings"]["likelihood"] == likelihood
    (row,) = found["rows"]
    assert row["error_rate"] < 0.4  # guessing misses two thirds
    assert row["nlpd"] < np.log(3)
    assert row["coverage95"] is None
    assert "blobs: classification, 3 classes" in done.stdout
    assert (tmp_path / "out" / "map_wsvgp.png").read_bytes().startswith(b"\x89PNG")


def test_classes_are_refused_where_they_cannot_be_taken(three_classes, capsys):
    for method in ("gpr", "sgpr"):
        said = refusal(capsys, "--data", three_classes, "--method", method)
        assert f"{method} requires the gaussian likelihood, but the task of blobs is classification, 3 classes" in said
        assert len(said.strip().splitlines()) == 1
    said = refusal(capsys, "--data", three_classes, "--likelihood", "bernoulli")
    assert "bernoulli is for two classes, but blobs has 3; use softmax or robustmax" in said


def test_counts(tmp_path):
    rng = np.random.default_rng(4)
    X = rng.normal(size=(60, 1))
    np.savez(tmp_path / "counts.npz", X=X, y=rng.poisson(np.exp(X[:, 0])))
    done = run(
        "compare", "--data", tmp_path / "counts.npz", "--out", tmp_path / "out", "--backend", "numpy", "--dtype",
        "float64", "--method", "lsvgp", "--likelihood", "poisson", *QUICK,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = results(tmp_path / "out")
    assert found["data"]["task"] == "regression of counts"
    assert found["rows"][0]["coverage95"] is None
    assert found["rows"][0]["rmse"] > 0


@pytest.mark.long
@pytest.mark.parametrize("likelihood", ["ordinal", "latent-noise"])
def test_levels_and_noise_that_varies(tmp_path, likelihood):
    rng = np.random.default_rng(4)
    X = rng.normal(size=(60, 1))
    y = np.clip(np.floor(2.0 + X[:, 0] + 0.5 * rng.normal(size=60)), 0, 4) if likelihood == "ordinal" else X[:, 0] ** 2
    np.savez(tmp_path / "levels.npz", X=X, y=y)
    done = run(
        "compare", "--data", tmp_path / "levels.npz", "--out", tmp_path / "out", "--backend", "numpy", "--dtype",
        "float64", "--method", "wsvgp", "--likelihood", likelihood, *QUICK,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = results(tmp_path / "out")
    assert found["settings"]["likelihood"] == likelihood
    assert np.isfinite(found["rows"][0]["nlpd"])
    assert found["rows"][0]["rmse"] > 0


@pytest.mark.long
def test_what_is_known_about_the_evidence(regression, tmp_path):
    done = run(
        "compare", "--data", regression, "--out", tmp_path / "out", "--backend", "numpy", "--dtype", "float64",
        "--method", "gpr", "sgpr", *QUICK,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    exact, sparse = results(tmp_path / "out")["rows"]
    assert exact["log_evidence_per_datum"] == pytest.approx(exact["bound"] / 48)
    assert sparse["upper_bound"] > sparse["bound"]
    assert sparse["gap_per_datum"] == pytest.approx((sparse["upper_bound"] - sparse["bound"]) / 48)
    assert (
        f"gpr: the bound equals the log evidence, {exact['log_evidence_per_datum']:.4f} nats per datum" in done.stdout
    )
    assert f"and {sparse['upper_bound']:,.1f}, a gap of {sparse['gap_per_datum']:.4g} nats per datum" in done.stdout


def test_kernels_are_sums_of_products():
    kernel = parse_kernel("rbf*linear + white")
    product, white = kernel.parts
    assert isinstance(kernel, Sum)
    assert isinstance(white, White)
    assert [type(part) for part in product.parts] == [RBF, Linear]
    assert isinstance(product, Product)
    assert isinstance(parse_kernel("periodic"), Periodic)
    season = parse_kernel("matern32(3e3) + seasonal( 365.25 )*rbf")
    assert season.parts[0].lengthscale == 3000.0
    assert season.parts[1].parts[0].period == 365.25
    with pytest.raises(ValueError, match="the kernel 'linear' in 'linear\\(2\\)' takes no number"):
        parse_kernel("linear(2)")


@pytest.mark.long
def test_a_csv_file_and_the_exact_gp(table, tmp_path):
    done = run(
        "compare", "--data", table, "--target", "height", "--out", tmp_path / "out", "--method", "gpr", "--dtype",
        "float64", *QUICK,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = results(tmp_path / "out")
    assert found["data"]["inputs"] == 3
    assert all(row["num_inducing"] is None for row in found["rows"])


@pytest.mark.long
def test_the_reference_row_comes_along(regression, tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    done = agp(
        "compare", "--data", regression, "--out", tmp_path / "out", "--method", "wsvgp", "--backend", "torch",
        "--gradient", "autodiff", "--dtype", "float64", *QUICK,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [row["backend"] for row in results(tmp_path / "out")["rows"]] == ["numpy", "torch"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "svgpp"], "argument --method: invalid choice: 'svgpp'"),
        (["--backend", "numpi"], "unknown backend 'numpi'; use one of"),
        (["--dtype", "float16"], "argument --dtype: invalid choice: 'float16'"),
        (["--gradient", "magic"], "argument --gradient: invalid choice: 'magic'"),
        (["--kernel", "rbf+cubic"], "unknown kernel 'cubic' in 'rbf+cubic'; choose from rbf, constant"),
        (["--data", "moon"], "unknown data set 'moon'; choose from elevation"),
        (["--data", "nowhere.csv"], "there is no file nowhere.csv"),
        (["--kernel", "rbf*cubic+white"], "unknown kernel 'cubic' in 'rbf*cubic+white'; choose from rbf, constant"),
        (["--kernel", "rbf+"], "the kernel 'rbf+' has nothing where a kernel should be"),
        (["--likelihood", "normal"], "argument --likelihood: invalid choice: 'normal'"),
        (["--likelihood", "poisson"], "plane: counts must be whole numbers of at least 0"),
        (["--likelihood", "softmax"], "plane: labels must be whole numbers"),
        (["--likelihood", "softmax", "--task", "regression"], "--likelihood softmax is for classification"),
        (["--likelihood", "gaussian", "--task", "classification"], "bernoulli, bernoulli-logit, softmax, robustmax"),
        (["--likelihood", "studentt", "--method", "sgpr", "rsvgp"], "requires the gaussian likelihood"),
        (["--task", "ranking"], "argument --task: invalid choice: 'ranking'"),
        (["--seed", "-1"], "--seed: must be a whole number from 0 to"),
        (["--split", "-1"], "--split: must be a whole number of at least 0, not '-1'"),
        (["--rate", "inf"], "--rate: must be a finite number above zero, not 'inf'"),
        (["--num-inducing", "0"], "--num-inducing: must be a whole number of at least 1"),
        (["--num-inducing", "1000"], "--num-inducing is 1000, but plane has only 48 training rows"),
        (["--iterations", "-1"], "--iterations: must be a whole number of at least 1"),
        (["--rate", "0"], "--rate: must be a finite number above zero, not '0'"),
        (["--device", "cuda:9", "--backend", "numpy"], "--device is 'cuda:9', but no backend of this comparison"),
    ],
)
def test_bad_arguments_give_one_line(regression, not_compared, arguments, message):
    assert message in not_compared(regression, *QUICK[:2], "--iterations", "1", *arguments)


def test_targets_that_are_all_the_same_are_refused(tmp_path, not_compared):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "flat.npz", X=rng.normal(size=(30, 2)), y=np.full(30, 0.5))
    said = not_compared(tmp_path / "flat.npz", *QUICK)
    assert "all 27 training targets of flat are the same; there is nothing to learn from them" in said


def test_a_file_is_no_folder_for_results(regression, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    said = refusal(capsys, "--data", regression, "--out", tmp_path / "file", *QUICK)
    assert "file, which is a file; name a folder" in said


def refusal(capsys, *arguments):
    assert main(["compare", *map(str, arguments)]) == 2
    return capsys.readouterr().err


def test_a_file_without_the_target_column_is_refused(table, capsys):
    said = refusal(capsys, "--data", table, "--target", "depth")
    assert "it has no column 'depth'; its columns are a, b, c, height" in said
    assert "no target column was chosen" in refusal(capsys, "--data", table)


def test_bad_files_are_refused(tmp_path, capsys):
    bad = tmp_path / "bad.npz"
    np.savez(bad, X=np.array([[1.0], [np.nan], [2.0]]), y=np.zeros(3))
    assert "X has NaN or infinite entries, the first in row 1" in refusal(capsys, "--data", bad)
    np.savez(bad, X=np.zeros((3, 1)))
    assert "has no array y; it contains X" in refusal(capsys, "--data", bad)
    np.savez(bad, X=np.zeros((3, 1)), y=np.array([1, 5, 7]))
    assert "y is stored as whole numbers (3 different values from 1 to 7)" in refusal(capsys, "--data", bad)
    np.savez(bad, X=np.zeros((3, 1)), y=np.zeros(3), test_masks=np.zeros((3, 2), bool))
    said = refusal(capsys, "--data", bad, "--split", "5")
    assert "test_masks has shape (3, 2), but must have 3 rows and a column 5" in said
    bad.write_text("not a zip file")
    assert "is not an npz file" in refusal(capsys, "--data", bad)
    text = tmp_path / "bad.csv"
    text.write_text("a,b\n1,2\n3,x\n")
    said = refusal(capsys, "--data", text, "--target", "b")
    assert "bad.csv: line 3, column 'b': 'x' is not a number; convert the column to numbers" in said
    text.write_text("a,b\n1,2\n,3\n")
    assert "bad.csv: line 3, column 'a' is empty" in refusal(capsys, "--data", text, "--target", "b")
    text.write_text("a,b\n")
    assert "header but no rows" in refusal(capsys, "--data", text, "--target", "b")


def test_broken_archives_are_refused(tmp_path, capsys):
    bad = tmp_path / "bad.npz"
    bad.write_bytes(b"")
    assert "is not an npz file" in refusal(capsys, "--data", bad)
    with bad.open("wb") as file:
        np.save(file, np.zeros((3, 2)))  # a single array under the wrong name
    assert "is not an npz file" in refusal(capsys, "--data", bad)
    np.savez_compressed(bad, X=np.random.default_rng(0).normal(size=(50, 2)), y=np.zeros(50))
    data = bytearray(bad.read_bytes())
    data[120:160] = bytes(40)
    bad.write_bytes(data)
    assert "is not an npz file" in refusal(capsys, "--data", bad)
    bad.write_bytes(data[:200])
    assert "is not an npz file" in refusal(capsys, "--data", bad)


@pytest.mark.parametrize("header", ["a,b,b,c", "b,a,c,b"])
def test_two_columns_with_the_name_of_the_target_are_refused(header, tmp_path, capsys):
    text = tmp_path / "twice.csv"
    np.savetxt(text, np.random.default_rng(0).normal(size=(30, 4)), delimiter=",", header=header, comments="")
    said = refusal(capsys, "--data", text, "--target", "b", "--out", tmp_path / "out")
    assert "has 2 columns named 'b'; give each column a different name" in said
    assert not (tmp_path / "out").exists()


@pytest.mark.long
@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_a_pipe_is_refused(suffix, tmp_path):
    pipe = tmp_path / f"pipe{suffix}"
    os.mkfifo(pipe)
    done = agp("compare", "--data", pipe, "--target", "y", timeout=60)
    assert done.returncode == 2
    assert "not a regular file" in done.stderr


def test_results_are_not_overwritten(regression, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    (out / "results.json").write_text("precious")
    said = refusal(capsys, "--data", regression, "--out", out, *QUICK)
    assert f"{out} holds the results of another comparison; remove the folder, or name another with --out" in said
    assert [path.name for path in out.iterdir()] == ["results.json"]
    assert (out / "results.json").read_text() == "precious"


@pytest.mark.long
def test_two_comparisons_do_not_share_a_folder(regression, tmp_path, capsys):
    out = tmp_path / "out"
    options = ["--data", regression, "--out", out, "--method", "wsvgp", "--backend", "numpy", *QUICK[:4]]
    command = [sys.executable, "-m", "agp", "compare", *map(str, options), "--iterations", "100000"]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    first = subprocess.Popen(command, start_new_session=True, **silent)
    try:
        deadline = time.monotonic() + 120
        while not out.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)
        assert "another comparison is writing to" in refusal(capsys, *options, "--iterations", "1")
    finally:
        os.killpg(first.pid, signal.SIGKILL)  # with the process of its row
        first.wait()


# what shells start in the background ignores interruptions, and hands that on
INTERRUPTIBLE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from agp.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.long
def test_interruption_keeps_the_rows_so_far(regression, tmp_path):
    out = tmp_path / "out"
    command = [
        sys.executable, "-c", INTERRUPTIBLE, "compare", "--data", str(regression), "--out", str(out),
        "--method", "wsvgp", "rsvgp", "--backend", "numpy", "--dtype", "float64", "--num-inducing", "8",
        "--batch-size", "20", "--iterations",
    ]  # fmt: skip
    child = subprocess.Popen(
        [*command, "10000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )  # fmt: skip
    first = out / "wsvgp-numpy-cpu-closed-form-float64.json"
    deadline = time.monotonic() + 120
    while not first.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(2.0)  # into the second row, in its interpreter's start or its training
    os.killpg(child.pid, signal.SIGINT)  # as Ctrl-C in a terminal: to the whole group
    stdout, _ = child.communicate(timeout=60)
    assert child.returncode == 130
    assert [row["method"] for row in results(out)["rows"]] == ["wsvgp"]
    assert "interrupted" in stdout
    assert "test NLPD" in stdout


@pytest.mark.long
def test_backends_are_listed():
    done = agp("backends")
    assert done.returncode == 0
    for name in ("numpy", "torch", "array_api_strict"):
        assert name in done.stdout
    assert "closed-form" in done.stdout


@pytest.mark.parametrize(("end", "status"), [(-120.0, 0), (-124.9, 0), (-126.0, 1), (float("nan"), 1)])
def test_a_training_that_ends_elsewhere_fails(end, status, tmp_path, capsys):
    data = load("diabetes")
    report = Report(tmp_path, dataclasses.replace(data, X=data.X[:50], y=data.y[:50]), None)
    same = {"method": "wsvgp", "gradient": "closed-form", "dtype": "float64", "max_rel_diff_bound": 0.0}
    same |= {"max_rel_diff_grad": 0.0, "condition": 1.0}
    report.rows = [same | {"backend": "numpy", "bound": -120.0}, same | {"backend": "jax", "bound": end}]
    assert report._status(console()) == status
    assert ("FAILED wsvgp jax" in capsys.readouterr().out) == bool(status)
