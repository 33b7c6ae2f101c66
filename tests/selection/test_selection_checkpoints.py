"""A fit that was killed goes on from its checkpoint to the same bits; a file of anything else is refused."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tables import WAYS, assert_predicts, bits, table

import agp
from agp import io, selection
from agp.priors import LogNormal
from agp.selection._watch import Pieces

fit_regression = partial(selection.fit_regression, hyperparameters="mode")
"""The search for one setting; `test_few_rows.py` tests the integration over settings."""

PROGRAM = Path(__file__).with_name("killed_selections.py")


def fit(way, path=None, **options):
    rows, method = WAYS[way]
    return fit_regression(*table(rows), method=method, checkpoint=path, **options)


class Killed(BaseException):
    """What nothing catches."""


def killed(way, path, pieces, monkeypatch, **options):
    """Whether the fit was stopped after the checkpoint was written so many times."""
    usual, written = Pieces._write, []

    def write(self, to):
        usual(self, to)
        written.append(0)
        if len(written) == pieces:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Pieces, "_write", write)
        try:
            fit(way, path, **options)
        except Killed:
            return True
    return False


# -- resumed -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("way", WAYS)
def test_a_checkpoint_changes_nothing(way, tmp_path):
    assert bits(fit(way, tmp_path / "run.agp")) == bits(fit(way))


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_killed_at_any_piece(way, tmp_path, monkeypatch):
    expected, pieces = bits(fit(way)), 1
    while killed(way, path := tmp_path / f"{pieces}.agp", pieces, monkeypatch):
        assert bits(fit(way, path)) == expected
        pieces += 1
    assert pieces > 4
    assert sorted(tmp_path.iterdir()) == sorted(tmp_path / f"{i + 1}.agp" for i in range(pieces))  # nothing beside them


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("way", WAYS)
def test_killed_at_every_piece(way, tmp_path, monkeypatch):
    path, kills = tmp_path / "run.agp", 0
    while killed(way, path, 2 if kills == 0 else 1, monkeypatch):
        kills += 1
    assert kills >= 3
    assert bits(fit(way, path)) == bits(fit(way))


@pytest.mark.slow
def test_what_is_done_is_not_done_again(tmp_path, monkeypatch):
    fit("exact", path := tmp_path / "run.agp")
    monkeypatch.setattr("agp.selection._climb.ascend", None)
    again = fit("exact", path)
    assert again.steps > 0
    assert again.seconds > 0.0


@pytest.mark.long
@pytest.mark.parametrize("library", ["torch", "array_api_strict"])
def test_other_libraries_resume(library, tmp_path, monkeypatch):
    pytest.importorskip(library)
    X, y = (agp.to_backend(x, library) for x in table(36))
    expected = bits(fit_regression(X, y))
    for end in (2, 4):
        usual, written = Pieces._write, []

        def write(self, to, usual=usual, written=written, end=end):
            usual(self, to)
            written.append(0)
            if len(written) == end:
                raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(Pieces, "_write", write)
            with pytest.raises(Killed):
                fit_regression(X, y, checkpoint=tmp_path / f"{end}.agp")
        assert bits(fit_regression(X, y, checkpoint=tmp_path / f"{end}.agp")) == expected


@pytest.mark.slow
def test_the_limit_may_differ(tmp_path, monkeypatch):
    path = tmp_path / "run.agp"
    assert killed("collapsed", path, 3, monkeypatch, max_seconds=500.0)
    assert bits(fit("collapsed", path)) == bits(fit("collapsed"))
    assert_predicts(fit("collapsed", path, max_seconds=1000.0).model, table(9)[0])


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning", "ignore::agp.errors.NoSignalWarning")
@pytest.mark.parametrize("limit", [3.0, 30.0, 100.0, 200.0, 300.0])
def test_what_a_deadline_cut_short_is_done_anew(limit, tmp_path, monkeypatch):
    class Clock:
        now = 0.0

        def __call__(self):
            self.now += 1.0
            return self.now

    path = tmp_path / "run.agp"
    with monkeypatch.context() as patched:
        patched.setattr("agp.selection._watch.time.perf_counter", Clock())
        fit("larger", path, max_seconds=limit)
    found, expected = fit("larger", path), fit("larger")
    assert bits(found)[:4] == bits(expected)[:4]


@pytest.mark.skipif(os.name != "posix", reason="needs fork and SIGKILL")
@pytest.mark.long
@pytest.mark.parametrize("way", ["exact", "collapsed"])
def test_killed_at_random_moments(way, tmp_path):
    seed = int.from_bytes(os.urandom(4), "little")
    arguments = [way, tmp_path / "run.agp", 6, seed]
    path = os.pathsep.join([str(PROGRAM.parent), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, PROGRAM, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert done.returncode == 0, f"seed {seed}: {done.stderr}"
    found = json.loads(done.stdout)
    assert found["same"], (seed, found)
    assert found["pieces"] == sorted(found["pieces"]), (seed, found)
    assert {file.name[:7] for file in tmp_path.iterdir()} == {
        "run.agp"
    }  # a last run that writes nothing clears nothing


# -- refused -----------------------------------------------------------------------------------------------------------

OTHERS = {
    "kernel": {"kernel": agp.RBF(lengthscale=0.5)},
    "likelihood": {"likelihood": agp.Gaussian(0.1)},
    "mean_function": {"mean_function": agp.ZeroMean()},
    "priors": {"priors": None},
    "memory": {"memory": 32.0},
    "most": {"most": 10},
    "tolerance": {"tolerance": 1e-2},
    "seed": {"seed": 1},
    "method": {"method": "sgpr"},
}
REMEDY = "; name another file, or remove it to start afresh."


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize(("name", "options"), OTHERS.items(), ids=OTHERS)
def test_other_arguments_are_refused(name, options, tmp_path):
    X, y = table(20)
    fit_regression(X, y, checkpoint=(path := tmp_path / "run.agp"))
    before = path.read_bytes()
    expected = re.escape(f"{path} was written by a fit with other values of {name}{REMEDY}")
    with pytest.raises(ValueError, match=f"^{expected}$"):
        fit_regression(X, y, checkpoint=path, **options)
    assert path.read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("part", ["kernel", "likelihood", "priors"])
def test_the_last_bit_of_an_argument_counts(part, tmp_path):
    X, y = table(20)
    one, two = 0.5, np.nextafter(0.5, 1.0)
    options = {
        "kernel": lambda x: {"kernel": agp.RBF(lengthscale=np.array([1.0, x]))},
        "likelihood": lambda x: {"likelihood": agp.Gaussian(np.asarray(x))},
        "priors": lambda x: {"priors": {"kernel.variance": LogNormal(0.0, float(x))}},
    }[part]
    fit_regression(X, y, checkpoint=(path := tmp_path / "run.agp"), **options(one))
    with pytest.raises(ValueError, match=f"other values of {part};"):
        fit_regression(X, y, checkpoint=path, **options(two))
    fit_regression(X, y, checkpoint=path, **options(one))


@pytest.mark.slow
def test_other_data_are_refused(tmp_path):
    X, y = table(20)
    fit_regression(X, y, checkpoint=(path := tmp_path / "run.agp"))
    for other in ((X, -y), (X[::-1].copy(), y), (X[1:], y[1:]), (X.astype("float32"), y.astype("float32"))):
        with pytest.raises(ValueError, match=f"other values of data{REMEDY}"):
            fit_regression(*other, checkpoint=path)


@pytest.mark.slow
def test_another_library_is_refused(tmp_path):
    pytest.importorskip("torch")
    fit("sample", path := tmp_path / "run.agp")
    with pytest.raises(ValueError, match="other values of library"):
        fit_regression(*(agp.to_backend(x, "torch") for x in table(20)), checkpoint=path)


@pytest.mark.parametrize("content", [b"", b"garbage", b"\x00" * 1000])
def test_garbage_is_refused(content, tmp_path):
    path = tmp_path / "run.agp"
    path.write_bytes(content)
    with pytest.raises(agp.errors.FileError, match=r"run\.agp is not a checkpoint of agp"):
        fit("sample", path)
    assert path.read_bytes() == content


@pytest.mark.slow
def test_a_damaged_file_is_refused(tmp_path):
    fit("sample", path := tmp_path / "run.agp")
    whole = path.read_bytes()
    for cut in (len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(agp.errors.FileError):
            fit("sample", path)


def test_the_checkpoint_of_a_training_is_refused(tmp_path):
    X, y = table(20)
    path = tmp_path / "run.agp"
    agp.train(agp.SVGP.from_data(X, y, num_inducing=4), X, y, steps=2, checkpoint=path)
    with pytest.raises(ValueError, match=r"run\.agp is not a checkpoint of fit_regression; name another file"):
        fit_regression(X, y, checkpoint=path)


def first_piece(arrays):
    """The first stored result of a training."""
    return next(piece for name, piece in arrays.items() if name != "watch")


GARBLED = {
    "no clock": lambda arrays: arrays.pop("watch"),
    "half a clock": lambda arrays: arrays["watch"].pop("bounds"),
    "a clock of arrays": lambda arrays: arrays["watch"].update(steps=np.zeros(3)),
    "other leaves": lambda arrays: first_piece(arrays).pop("kernel.variance"),
    "other shapes": lambda arrays: first_piece(arrays).update({"kernel.lengthscale": np.ones(7)}),
    "an array for a piece": lambda arrays: arrays.update({min(arrays.keys() - {"watch"}): np.ones(3)}),
}


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize("change", GARBLED.values(), ids=GARBLED)
def test_garbled_contents_are_refused(change, tmp_path):
    fit("sample", path := tmp_path / "run.agp")
    arrays, facts = io.load_checkpoint(path)
    change(arrays)
    io.save_checkpoint(path, arrays, facts)
    with pytest.raises(ValueError, match=r"run\.agp cannot be resumed: .*; name another file"):
        fit("sample", path)


@pytest.mark.parametrize("path", [5, b"run", ["run"]])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(TypeError, match="must be the path of a file"):
        fit("sample", path)


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(ValueError, match="the folder of the checkpoint .* does not exist; create it first"):
        fit("sample", tmp_path / "none" / "run.agp")
