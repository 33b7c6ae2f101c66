"""`agp compare --peers`: a fake library in another interpreter, what is refused, and real libraries, if any."""

import json
import os
import sys

import numpy as np
import pytest

from agp.cli import _peering, main

pytestmark = pytest.mark.slow

pytest.importorskip("rich", reason="the command line needs the extra cli")
pytest.importorskip("tqdm", reason="the command line needs the extra cli")

QUICK = [
    "--method", "wsvgp", "--backend", "numpy", "--dtype", "float64", "--num-inducing", "8", "--batch-size", "20",
    "--iterations", "30", "--kernel", "rbf",
]  # fmt: skip
PYTHONS = os.environ.get("AGP_PEERS", sys.executable).split(os.pathsep)
"""Interpreters that may have the real libraries."""
FAKE = '''
"""A library whose whitened SVGP is agp's, built from what it was handed alone."""
import dataclasses, os
import numpy as np
import agp
from agp.bounds import Batch
from agp.updates import Adam, Group


class Peer:
    versions = {"fake": "1.0"}

    def __init__(self, start):
        s = start
        assert s.kernel == "rbf" and os.environ["OMP_NUM_THREADS"] == "1"
        process = agp.processes.Sparse(
            kernel=agp.RBF(np.asarray(s.variance), s.lengthscale), inducing=agp.inducing.Points(s.Z), jitter=s.jitter,
            posterior=agp.posteriors.Whitened(s.q_mean[:, None], s.q_scale[None]),
            mean_function=agp.ConstantMean(np.asarray(s.mean), value_unit=np.asarray(1.0)),
        )
        self.model = agp.SVGP(process, agp.Gaussian(np.asarray(s.noise)))
        self.adam = Adam(1e-2, {"process.inducing.Z": Group(1e-2, beta1=s.Z_beta1)}, epsilon=s.epsilon)
        self.state, self.rows = self.adam.init(self.model), s.rows

    def batch(self, X, y):
        return Batch(X, y[:, None], self.rows / len(X))

    def bound(self, X, y):
        return WRONG * float(self.model._objective(self.batch(X, y))[0])

    def kl(self):
        process = self.model.process
        return float(process.kl_divergence(process.factorise()[0])[0])

    def step(self, X, y, rate, Z_rate):
        group = Group(Z_rate, beta1=self.adam.groups["process.inducing.Z"].beta1)
        self.adam = dataclasses.replace(self.adam, rate=rate, groups={"process.inducing.Z": group})
        self.model, self.state, info = self.adam(self.model, self.batch(X, y), self.state)
        return float(info["bound"])

    def predict(self, X):
        mean, variance = self.model.predict(X)
        return mean[:, 0], variance[:, 0]

    def noise(self):
        return float(self.model.likelihood.noise_variance)
'''


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Put a library where the interpreter of the tests finds it."""

    def put(text):
        folder = tmp_path / "libraries"
        folder.mkdir()
        (folder / "fake_peer.py").write_text(text)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]))

    monkeypatch.setattr(_peering, "LIBRARIES", ("fake_peer",))
    return put


def compared(regression, out, *arguments):
    status = main(["compare", "--data", str(regression), "--out", str(out), *QUICK, *arguments])
    return status, json.loads((out / "results.json").read_text())["rows"]


@pytest.mark.long
def test_a_peer_has_the_same_start_minibatches_and_rates(regression, tmp_path, fake, capsys):
    fake(FAKE.replace("WRONG", "1.0"))
    status, (ours, theirs) = compared(regression, tmp_path / "out", "--q-steps", "adam", "--peers", sys.executable)
    said = capsys.readouterr().out
    assert status == 0, said
    assert (theirs["method"], theirs["backend"], theirs["dtype"]) == ("wsvgp", "fake_peer", "float64")
    assert theirs["peer"] == "fake 1.0"
    assert theirs["max_rel_diff_bound"] < 1e-12
    for name in ("bound", "nlpd", "rmse", "coverage95"):
        assert theirs[name] == pytest.approx(ours[name], rel=1e-6), name
    assert len(theirs["curve"]) == len(ours["curve"])
    np.testing.assert_allclose([y for _, y in theirs["curve"]], [y for _, y in ours["curve"]], rtol=1e-6)
    assert "fake_peer" in said.split("diff bound")[1]
    assert sorted(path.name for path in (tmp_path / "out").glob("peer-*")) == []


@pytest.mark.long
def test_a_peer_with_another_bound_fails(regression, tmp_path, fake, capsys):
    fake(FAKE.replace("WRONG", "1.01"))
    assert compared(regression, tmp_path / "out", "--peers", sys.executable)[0] == 1
    assert "FAILED wsvgp fake_peer autodiff float64: its bound for the same model differs" in capsys.readouterr().out


@pytest.mark.long
def test_a_peer_that_breaks_is_a_failed_row(regression, tmp_path, fake, capsys):
    fake("raise ImportError('no such symbol')")
    status, rows = compared(regression, tmp_path / "out", "--peers", sys.executable)
    assert status == 1
    assert rows[1]["error"] == "ImportError: no such symbol"
    assert "no such symbol" in capsys.readouterr().out


def test_a_peer_that_is_not_there_is_said(regression, tmp_path, fake, capsys):
    status, rows = compared(regression, tmp_path / "out", "--peers", sys.executable)
    assert status == 0
    assert len(rows) == 1
    assert f"not run: fake_peer: not installed for {sys.executable}" in capsys.readouterr().out


def test_the_first_interpreter_that_has_a_library_trains_it(fake, tmp_path):
    fake(FAKE)
    link = tmp_path / "python-of-others"
    link.symlink_to(sys.executable)
    assert _peering.find_peers([sys.executable, str(link)]) == ({"fake_peer": sys.executable}, [])


@pytest.mark.parametrize("python", ["no/such/python", "/bin/true", "."])
def test_what_is_no_interpreter_is_refused(regression, not_compared, python):
    said = not_compared(regression, *QUICK, "--peers", python)
    assert f"--peers is {python}, which is not a Python interpreter" in said


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ("--method", "rsvgp"),
            "--peers trains wsvgp in other libraries, but --method does not include wsvgp; add wsvgp",
        ),
        (("--method", "wsvgp", "--kernel", "rbf+linear"), "--kernel is rbf+linear, but with --peers it must be one of"),
        (("--method", "wsvgp", "--likelihood", "studentt"), "--peers requires the gaussian likelihood"),
    ],
)
def test_what_peers_cannot_train_is_refused(regression, not_compared, arguments, expected):
    assert expected in not_compared(regression, *QUICK[2:], *arguments, "--peers", sys.executable)


@pytest.mark.parametrize("library", ["gpytorch", "gpflow", "gpjax"])
def test_a_real_library(regression, tmp_path, monkeypatch, library):
    there, _ = _peering.find_peers(PYTHONS)
    if library not in there:
        pytest.skip(f"{library} is not installed for {', '.join(PYTHONS)}")
    monkeypatch.setattr(_peering, "LIBRARIES", (library,))
    status, (ours, theirs) = compared(
        regression, tmp_path / "out", "--q-steps", "adam", "--mean", "zero", "--peers", there[library]
    )
    assert status == 0
    assert theirs["max_rel_diff_bound"] < 1e-4
    # GPJax trains the standard deviation of the noise and q(u) in other raw numbers, so its path is its own
    assert theirs["nlpd"] == pytest.approx(ours["nlpd"], abs=0.5 if library == "gpjax" else 1e-3)


def test_the_libraries_are_known():
    """A name without a library would be a peer that no one finds."""
    assert {path.stem for path in _peering.HERE.glob("*_peer.py")} == {f"{name}_peer" for name in _peering.LIBRARIES}
