"""A plug-in of somebody else: an array library that agp has never heard of, announced by an entry point alone."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import toy_data

from agp import SVGP, train
from agp.posteriors import Relaxed, Whitened

strict = pytest.importorskip("array_api_strict", reason="array_api_strict is not installed: not executed")

PLUGIN = '''
"""The plug-in: a subclass of Backend with what the standard lacks."""

import numpy as np
import scipy.special
import toyarrays as xp

from agp.backend import Backend


class ToyBackend(Backend):
    name = "toyarrays"
    xp = xp
    array_types = (type(xp.zeros(())),)

    def from_numpy(self, x, /, *, dtype=None, device=None):
        return xp.asarray(np.array(x, dtype=dtype))

    def to_numpy(self, x, /):
        return np.asarray(x)

    def cholesky(self, A, /):
        try:
            return xp.linalg.cholesky(A)
        except np.linalg.LinAlgError:
            return xp.full_like(A, xp.nan)

    def solve_triangular(self, L, B, /, *, transpose=False):
        return xp.linalg.solve(L.mT if transpose else L, B)

    def special(self, name, x, /):
        return xp.asarray(getattr(scipy.special, name)(np.asarray(x)))
'''

METHODS_PROGRAM = """
import json, sys
import numpy as np
import agp

data, found = np.load(sys.argv[1]), {}
X, y = (agp.to_backend(data[name], "toyarrays") for name in ("X", "y"))
for name, build in {
    "GPR": lambda X, y: agp.GPR.from_data(X, y),
    "SGPR": lambda X, y: agp.SGPR.from_data(X, y, num_inducing=6),
    "TVGP": lambda X, y: agp.TVGP.from_data(X, y),
    "SOLVEGP": lambda X, y: agp.SOLVEGP.from_data(X, y, num_inducing=4, num_orthogonal=3),
    "VIF": lambda X, y: agp.VIF.from_data(X, y, num_inducing=4, neighbours=3),
    "CGGP": lambda X, y: agp.CGGP.from_data(X, y),
    "deep": lambda X, y: agp.DeepGP.from_data(X, y, num_inducing=4),
    "StudentT": lambda X, y: agp.SVGP.from_data(X, y, num_inducing=6, likelihood=agp.StudentT()),
}.items():
    model, host = build(X, y), build(data["X"], data["y"])
    bounds = float(model.bound(X, y)[0]), float(host.bound(data["X"], data["y"])[0])
    trained = agp.fit(model, X, y, tolerance=0.5).model
    assert float(trained.bound(X, y)[0]) > bounds[0]
    prediction = trained.predict(X, observed=True)
    assert type(prediction.mean).__module__.startswith("toyarrays")
    agp.save(trained, sys.argv[2])
    again = agp.to_backend(agp.load(sys.argv[2]), "toyarrays").predict(X, observed=True)
    apart = np.max(np.abs(agp.to_numpy(again.mean) - agp.to_numpy(prediction.mean)))
    found[name] = [*bounds, float(apart)]
print(json.dumps(found))
"""

PROGRAM = """
import json, sys
import numpy as np
import agp

data = np.load(sys.argv[1])
X, y = (agp.to_backend(data[name], "toyarrays") for name in ("X", "y"))
found = {}
for posterior in (agp.posteriors.Whitened, agp.posteriors.Relaxed):
    model = agp.SVGP.from_data(X, y, posterior=posterior, num_inducing=6)
    result = agp.train(model, X, y, steps=4, batch_size=10)
    mean, variance = result.model.predict(X)
    assert type(mean).__module__.startswith("toyarrays")
    numbers = {"mean": agp.to_numpy(mean).tolist(), "variance": agp.to_numpy(variance).tolist()}
    found[posterior.__name__] = numbers | {"bound": result.trace["bound"]}
assert "toyarrays_agp" in sys.modules
assert "array_api_strict" not in sys.modules
print(json.dumps(found))
"""


def _announce(folder: Path, distribution: str, entry_points: str = "") -> None:
    info = folder / f"{distribution}-0.7.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.7\n")
    (info / "entry_points.txt").write_text(entry_points)


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    """A process sees a library `toyarrays`, whose arrays are a type of their own, and its plug-in."""
    (tmp_path / "toyarrays").mkdir()
    for source in Path(strict.__file__).parent.glob("*.py"):
        (tmp_path / "toyarrays" / source.name).write_text(source.read_text().replace("array_api_strict", "toyarrays"))
    _announce(tmp_path, "toyarrays")
    (tmp_path / "toyarrays_agp.py").write_text(PLUGIN)
    _announce(tmp_path, "toyarrays_agp", "[agp.backends]\ntoyarrays = toyarrays_agp:ToyBackend\n")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    return dict(os.environ, PYTHONPATH=path, COLUMNS="200")


def _python(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_a_new_library_is_listed(environment):
    lines = _python(environment, "-m", "agp", "backends").splitlines()
    (line,) = [line for line in lines if "toyarrays" in line]
    for word in ("yes", "0.7", "closed-form", "cpu"):
        assert word in line
    assert any("numpy" in line for line in lines)


@pytest.mark.long
def test_a_new_library_trains_and_predicts_with_the_numbers_of_numpy(environment, tmp_path):
    X, y = toy_data(outputs=2)
    np.savez(tmp_path / "data.npz", X=X, y=y)
    found = json.loads(_python(environment, "-c", PROGRAM, str(tmp_path / "data.npz")))
    for posterior in (Whitened, Relaxed):
        result = train(SVGP.from_data(X, y, posterior=posterior, num_inducing=6), X, y, steps=4, batch_size=10)
        mean, variance = result.model.predict(X)
        numbers = found[posterior.__name__]
        np.testing.assert_allclose(numbers["bound"], result.trace["bound"], rtol=1e-9)
        np.testing.assert_allclose(numbers["mean"], mean, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(numbers["variance"], variance, rtol=1e-8, atol=1e-10)


@pytest.mark.slow
def test_without_the_entry_point_nobody_knows_it(environment, tmp_path):
    shutil.rmtree(tmp_path / "toyarrays_agp-0.7.dist-info")
    program = """
import agp
try:
    agp.get_backend("toyarrays")
except agp.errors.BackendError as error:
    print(error)
"""
    assert "unknown backend 'toyarrays'; choose from" in _python(environment, "-c", program)


def _check_methods(environment, folder):
    """Fail unless methods of every kind begin, train, predict and are saved as on NumPy."""
    X, y = toy_data(24)
    np.savez(folder / "data.npz", X=X, y=y)
    arguments = ("-W", "ignore", "-c", METHODS_PROGRAM, str(folder / "data.npz"), str(folder / "model.safetensors"))
    for there, host, apart in json.loads(_python(environment, *arguments)).values():
        assert there == pytest.approx(host, rel=1e-8)
        assert apart < 1e-9


@pytest.mark.long
def test_methods_of_every_kind_begin_train_predict_and_are_saved(environment, tmp_path):
    _check_methods(environment, tmp_path)


@pytest.mark.long
def test_the_plug_in_of_the_page_suffices(environment, tmp_path):
    page = (Path(__file__).parents[2] / "docs/extending/backend.md").read_text()
    code = page.split("```python\n")[1].split("```")[0].replace("arrlib", "toyarrays").replace("Arrlib", "Toy")
    (tmp_path / "toyarrays_agp.py").write_text(code)
    with (tmp_path / "toyarrays/__init__.py").open("a") as library:
        library.write("\nfrom ._array_object import Array\n")
    _check_methods(environment, tmp_path)
