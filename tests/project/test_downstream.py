"""Somebody else's program, checked in the strictest mode: the package's annotations leave no type of theirs unknown."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import agp

ROOT = Path(agp.__file__).parents[1]
PROGRAMS = [
    Path(__file__).with_name(f"{name}.py") for name in ("downstream", "downstream_tables", "downstream_networks")
]
HERE = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "backends")])}
"""The package is found as an installed one is, by the interpreter: `py.typed` counts."""

MISTAKES = """
import numpy as np
import agp
from agp.estimators import GPRegressor

X, y = np.zeros((9, 2)), np.zeros((9, 1))
model = agp.SGPR.from_data(X, y, num_inducng=3)
agp.GPR.from_data(X, y, num_inducing=3)
agp.SVGP.from_data(X, y, kernel="rbf")
agp.SGPR.from_data(X, y, seed="one")
agp.SOLVEGP.from_data(X, y, num_orthogonal=[3])
agp.DeepGP.from_data(X, y, Z=X)
agp.TVGP.from_data(X, y, Z=None)
predictor = agp.SGPR.from_data(X, y).predictor()
predictor.predict(X, observd=True)
predictor.predict(X).men
predictor.quantile(X, "median")
predictor.condition_on(X)
agp.fit(model, X, y).mesage
agp.fit(agp.GPR.from_data(X, y), X, y).model.to_svgp()
agp.train("svgp", X, y, steps=2)
agp.posteriors.Whitened.from_prior(X, 1).factorise(X)[0].Lt
GPRegressor(methd="sgpr")
GPRegressor().fit(X, y).bound_ + "nats"
agp.flatten(model)[1].sise
"""

needs_checker = pytest.mark.skipif(
    importlib.util.find_spec("basedpyright") is None, reason="basedpyright is not installed: types are not checked"
)


def strictly(folder, program):
    """The errors that basedpyright finds in a program in a project of its own, as (line, rule)."""
    (folder / "program.py").write_text(program, encoding="utf-8")
    settings = {"include": ["program.py"], "typeCheckingMode": "strict", "pythonVersion": "3.11"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "basedpyright", "-p", str(folder), "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(command, cwd=folder, env=HERE, capture_output=True, text=True, timeout=600, check=False)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == 1, done.stdout + done.stderr
    return [
        (one["range"]["start"]["line"] + 1, one.get("rule", ""), one["message"])
        for one in report["generalDiagnostics"]
        if one["severity"] in ("error", "warning")
    ]


@needs_checker
@pytest.mark.long
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_has_no_unknown_types(tmp_path, program):
    found = strictly(tmp_path, program.read_text(encoding="utf-8"))
    assert not found, "\n".join(f"{program.name}:{line}: {message} ({rule})" for line, rule, message in found)


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
@pytest.mark.long
def test_mypy_finds_no_unknown_types(tmp_path):
    places = os.pathsep.join([str(ROOT), str(ROOT / "backends")])
    options = ["--strict", "--follow-imports=silent", "--cache-dir", str(tmp_path)]
    command = [sys.executable, "-m", "mypy", *options, *map(str, PROGRAMS)]
    here = {**os.environ, "MYPYPATH": places}
    done = subprocess.run(command, cwd=tmp_path, env=here, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_checker
@pytest.mark.long
def test_mistakes_of_a_program_are_found(tmp_path):
    found = {line for line, _, _ in strictly(tmp_path, MISTAKES)}
    lines = MISTAKES.splitlines()
    wrong = [i for i, line in enumerate(lines, 1) if i > lines.index("X, y = np.zeros((9, 2)), np.zeros((9, 1))") + 1]
    assert found == {i for i in wrong if not lines[i - 1].startswith("predictor = ")}


@pytest.mark.long
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_the_program_runs(program):
    pytest.importorskip("torch" if program.stem.endswith("networks") else "sklearn")
    command = [sys.executable, "-W", "error::UserWarning", str(program)]
    done = subprocess.run(command, env=HERE, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
