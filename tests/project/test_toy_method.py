"""A class and a record are all that a method needs to be in the estimators, the shell, files and the documentation."""

import importlib
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import agp
from agp.cli import main
from agp.methods import METHODS, Method, register

pytest.importorskip("sklearn", reason="estimators need scikit-learn")
pytest.importorskip("rich", reason="the command line needs the extra cli")
pytest.importorskip("tqdm", reason="the command line needs the extra cli")

from agp.estimators import GPClassifier, GPRegressor

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, (60, 2))
Y = np.sin(2.0 * X[:, 0]) + 0.1 * RNG.normal(size=60)
QUICK = {"method": "toy", "kernel": "rbf", "num_inducing": 10, "max_steps": 150, "random_state": 0}

pytestmark = pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")


@pytest.fixture
def toy(monkeypatch):
    """The module that registers the method; the method is removed afterwards."""
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.delitem(sys.modules, "toy_package", raising=False)
    yield importlib.import_module("toy_package")
    METHODS.pop("toy", None)


@pytest.fixture
def installed(toy, tmp_path, monkeypatch):
    """A folder with a table and with the metadata of an installed package, which names the module."""
    METHODS.pop("toy")
    sys.modules.pop("toy_package")
    site = tmp_path / "site"
    metadata = site / "toy_package-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[agp.methods]\ntoy = toy_package\n")
    monkeypatch.syspath_prepend(site)
    path = os.pathsep.join([str(site), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.chdir(tmp_path)
    lines = [",".join(f"{value:.6f}" for value in row) for row in np.column_stack([X, Y])]
    Path("t.csv").write_text("\n".join(["a,b,y", *lines]) + "\n")
    return tmp_path


def test_estimators_train_predict_save_and_load(toy, tmp_path):
    model = GPRegressor(**QUICK).fit(X, Y)
    assert type(model.model_) is toy.ToyGP
    assert model.score(X, Y) > 0.9
    agp.save(model, tmp_path / "m.safetensors")
    loaded = agp.load(tmp_path / "m.safetensors")
    assert loaded.method_ == "toy"
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    agp.save(model.model_, tmp_path / "model.safetensors")
    assert type(agp.load(tmp_path / "model.safetensors")) is toy.ToyGP
    parts = GPRegressor(**QUICK).partial_fit(X[:30], Y[:30]).partial_fit(X[30:], Y[30:])
    assert parts.n_rows_seen_ == 60
    assert GPClassifier(**QUICK).fit(X, Y > 0.0).score(X, Y > 0.0) > 0.9


def test_messages_ask_the_record(toy):
    with pytest.raises(ValueError, match="layers is 2, but the method toy has no layers"):
        GPRegressor(**QUICK, layers=2).fit(X, Y)
    with pytest.raises(ValueError, match="the method toy cannot choose the number"):
        GPRegressor(**QUICK | {"num_inducing": "auto"}).fit(X, Y)
    with pytest.raises(ValueError, match="outputs is 'separate', but the method toy does not support it"):
        GPRegressor(**QUICK, outputs="separate").fit(X, np.stack([Y, Y], axis=1))
    with pytest.raises(ValueError, match=r"unknown method 'nothing'; choose from auto, gpr, .*, toy\."):
        GPRegressor(method="nothing").fit(X, Y)


def test_commands_know_the_method_of_a_package(installed, capsys):
    assert main(["fit", "t.csv", "--target", "y", "--method", "toy", "--out", "m.st", "--max-steps", "50"]) == 0
    assert "toy: not converged after 50 steps" in capsys.readouterr().out
    assert main(["predict", "m.st", "t.csv", "--out", "p.csv"]) == 0
    assert len(Path("p.csv").read_text().splitlines()) == 61
    assert main(["describe", "m.st"]) == 0
    assert "toy" in capsys.readouterr().out
    assert main(["methods"]) == 0
    assert "GP of a test" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["fit", "t.csv", "--target", "y", "--method", "tor", "--out", "m.st"])
    assert "toy" in capsys.readouterr().err


@pytest.mark.slow
def test_comparisons_know_the_method_of_a_package(installed):
    options = ["--target", "y", "--method", "toy", "--num-inducing", "8", "--max-steps", "5", "--out", "out.csv"]
    command = [sys.executable, "-m", "agp", "compare", "t.csv", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert Path("out.csv").read_text().splitlines()[1].startswith("toy,toy,numpy,float64,")


def test_a_package_that_cannot_be_imported_is_named(installed, capsys):
    (installed / "site" / "toy_package-1.0.dist-info" / "entry_points.txt").write_text("[agp.methods]\ntoy = no_such\n")
    assert main(["methods"]) == 0
    out, err = capsys.readouterr()
    assert "wsvgp" in out
    assert err == "agp: warning: the method 'toy' cannot be used: ModuleNotFoundError: No module named 'no_such'\n"


def test_the_table_of_the_documentation_has_the_method(toy):
    table = runpy.run_path(str(ROOT / "docs" / "_ext" / "features.py"))["lists"]()["methods"]
    assert "| `toy` | GP of a test | `ToyGP` | minibatch | any | `num_inducing` | `partial_fit` |" in table


def test_records_that_cannot_be_are_refused(toy):
    with pytest.raises(ValueError, match="there is a method with the name 'toy' already; choose another name"):
        register(toy.TOY)
    with pytest.raises(ValueError, match="name is 'Two words', but must be lower-case letters, digits and hyphens"):
        Method(name="Two words", description="", model=agp.GPR)
    with pytest.raises(ValueError, match="takes of the method new contains 'inducing'; did you mean 'num_inducing'"):
        Method(name="new", description="", model=agp.GPR, takes=("inducing",))
    with pytest.raises(TypeError, match="register takes an agp.methods.Method, not str"):
        register("toy")
    with pytest.raises(TypeError, match="classes contains .*, which is not a model class"):
        register(Method(name="new", description="", model=agp.GPR, parts=(int,)))
    assert "new" not in METHODS


def test_every_method_of_agp_has_a_page():
    for method in METHODS.values():
        assert (ROOT / "docs" / f"{method.page}.md").is_file(), method.name


def test_records_agree_with_their_constructors():
    """What a record takes, its constructor takes; methods with storages take the argument `storage`."""
    import inspect

    for method in METHODS.values():
        names = inspect.signature(method.build or method.model.from_data).parameters
        if "parts" not in names:  # **parts are passed on
            assert set(method.takes) <= set(names), method.name
        assert bool(method.storages) == ("storage" in method.takes)
        assert method.can_grow <= ("num_inducing" in method.takes)
        assert bool(method.min_orthogonal) <= ("num_orthogonal" in method.takes)
