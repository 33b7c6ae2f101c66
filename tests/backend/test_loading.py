"""Which plug-in an array finds, what loading one changes, and plug-ins that are broken or strangely named."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import assert_close, problem

import agp
from agp.backend import Backend
from agp.errors import BackendError


def _announce(folder: Path, distribution: str, entry_points: str = "") -> None:
    info = folder / f"{distribution}-0.7.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.7\n")
    (info / "entry_points.txt").write_text(entry_points)


def _run(program: str, *folders: Path) -> str:
    paths = [*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {k: v for k, v in os.environ.items() if k != "JAX_ENABLE_X64"}
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_numpy_arrays_load_no_other_plug_in_and_change_nothing_in_jax():
    pytest.importorskip("jax")
    _run("""
import sys, jax, torch, numpy as np, agp
for x in (np.ones(3), np.float64(1.0)):
    assert agp.backend_of(x).name == "numpy"
for refused in ([1.0], 1.0, None, np.ma.ones(3)):
    try:
        agp.backend_of(refused)
    except TypeError:
        continue
    raise AssertionError(refused)
assert agp.backend_of(torch.ones(2)).name == "torch"
assert "agp_backends._jax" not in sys.modules
assert jax.numpy.ones(3).dtype == "float32" and not jax.config.jax_enable_x64
""")


def test_jax_in_32_bits_stays_so_and_works():
    pytest.importorskip("jax")
    _run("""
import jax, jax.numpy as jnp, numpy as np, agp
X = jnp.linspace(0.0, 3.0, 24)[:, None]
y = jnp.sin(X)
for model in (
    # a constant mean starts where its gradient is rounding, whose sign decides on the first step of Adam
    agp.SVGP.from_data(X, y, posterior=agp.posteriors.Whitened, num_inducing=4, mean_function=agp.ZeroMean()),
    agp.CaGP.from_data(X, y, num_actions=4),
):
    result = agp.train(model, X, y, steps=2)
    mean, variance = result.model.predict(X)
    assert mean.dtype == variance.dtype == "float32"
    host = agp.tree.with_leaves(model, {k: np.asarray(v) for k, v in agp.tree.leaves(model).items()})
    expected = agp.train(host, np.asarray(X), np.asarray(y), steps=2).trace["bound"]
    assert np.allclose(result.trace["bound"], expected, rtol=1e-4)
assert not jax.config.jax_enable_x64
assert agp.to_backend(np.ones(2), "jax", dtype="float32").dtype == "float32"
for host, dtype in ((np.ones(2), None), (np.ones(2, "float32"), "float64")):
    try:
        agp.to_backend(host, "jax", dtype=dtype)
    except agp.errors.BackendError as error:
        assert 'jax.config.update("jax_enable_x64", True), or use dtype="float32"' in str(error)
    else:
        raise AssertionError
jax.config.update("jax_enable_x64", True)
assert agp.to_backend(np.ones(2), "jax").dtype == "float64"
""")


STRANGE = """
[agp.backends]
nowhere.arrays = nowhere_agp:Plugin
broken = broken_agp:Plugin
half.arrays = half_agp:Plugin
tiny = tiny_agp:Plugin
"""

TINY = """
import agp
import numpy as np
import tinycore

class Plugin(type(agp.get_backend("numpy"))):
    name = "tiny"
    array_types = (tinycore.Array,)
    def from_numpy(self, x, /, *, dtype=None, device=None):
        return np.array(x, dtype=dtype).view(tinycore.Array)
"""


@pytest.fixture
def strange(tmp_path) -> Path:
    """Plug-ins with names with dots, for a library that is not installed, that raise, of types defined elsewhere."""
    _announce(tmp_path, "strange", STRANGE)
    (tmp_path / "broken.py").write_text("")
    (tmp_path / "broken_agp.py").write_text("raise AttributeError('renamed in version 3')")
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "__init__.py").write_text("")
    (tmp_path / "tiny.py").write_text("from tinycore import Array")
    (tmp_path / "tinycore.py").write_text("import numpy\nclass Array(numpy.ndarray):\n    pass\n")
    (tmp_path / "tiny_agp.py").write_text(TINY)
    return tmp_path


@pytest.mark.long
def test_strange_plug_ins_are_listed_with_the_reason_and_break_nothing(strange):
    _run(
        """
import agp, broken, numpy as np
found = {status.name: status for status in agp.known_backends()}
assert found["numpy"].usable and found["tiny"].usable
assert found["nowhere.arrays"].reason == (
    "backend 'nowhere.arrays' needs the package nowhere.arrays, which is not installed."
)
assert "not installed" in found["half.arrays"].reason
assert "cannot be used: AttributeError: renamed in version 3" in found["broken"].reason
assert agp.backend_of(np.ones(2)).name == "numpy"
""",
        strange,
    )


@pytest.mark.slow
def test_a_type_defined_elsewhere_than_its_library_finds_the_plug_in(strange):
    _run(
        """
import agp, numpy as np, tiny
x = np.ones(2).view(tiny.Array)
assert type(x).__module__ == "tinycore"
B = agp.get_backend("tiny")
assert type(B.from_numpy([1.0])) is tiny.Array
""",
        strange,
    )


@pytest.mark.slow
def test_a_broken_plug_in_is_named_where_its_arrays_are_met(strange):
    program = """
import agp, broken
class Array:
    pass
Array.__module__ = "broken"
try:
    agp.backend_of(Array())
except TypeError as error:
    print(error)
"""
    assert "renamed in version 3" in _run(program, strange)


NumpyBackend: Any = type(agp.get_backend("numpy"))


class Counted(np.ndarray):
    """Arrays whose factorisations are counted."""


class CountedBackend(NumpyBackend):
    name = "counted"
    array_types = (Counted,)

    def __init__(self):
        self.factorisations = 0

    def from_numpy(self, x, /, *, dtype=None, device=None):
        return super().from_numpy(x, dtype=dtype, device=device).view(Counted)

    def cholesky(self, A, /):
        self.factorisations += 1
        return super().cholesky(A).view(Counted)


@pytest.fixture
def registry(monkeypatch):
    """What is registered is forgotten afterwards."""
    monkeypatch.setattr("agp.backend._discovery._REGISTERED", {})
    monkeypatch.setattr("agp.backend._discovery._BY_TYPE", {})


@pytest.mark.long
def test_a_variant_of_a_backend_is_registered_without_an_entry_point(registry):
    plugin = CountedBackend()
    agp.register_backend(plugin)
    assert agp.get_backend("counted") is plugin
    host, X, y = problem(posterior="whitened")
    model, X_here, y_here = (agp.to_backend(x, "counted") for x in (host, X, y))
    assert agp.backend_of(X_here) is plugin
    assert agp.backend_of(X) is agp.get_backend("numpy")
    assert_close(np.asarray(model.bound(X_here, y_here)[0]), host.bound(X, y)[0], 1e-12)
    assert plugin.factorisations == 1
    assert "counted" in [status.name for status in agp.known_backends()]
    with pytest.raises(TypeError, match="X is a numpy array, but Z is a counted array"):
        model.bound(X, y)


def test_a_registered_plug_in_takes_no_name_of_an_installed_one(registry):
    class Pretender(CountedBackend):
        name = "numpy"

    with pytest.raises(BackendError, match="'numpy' is installed already; choose another name"):
        agp.register_backend(Pretender())
    agp.register_backend(CountedBackend())
    agp.register_backend(second := CountedBackend())  # a cell that is run again
    assert agp.get_backend("counted") is second


def test_the_version_comes_from_whatever_distribution_has_the_library(monkeypatch):
    class Elsewhere(CountedBackend):
        name = "yaml_of_mine"

    monkeypatch.setattr("importlib.metadata.packages_distributions", lambda: {"yaml_of_mine": ["numpy"]})
    assert Backend.version(Elsewhere()) == np.__version__
    monkeypatch.setattr("importlib.metadata.packages_distributions", dict)
    assert Backend.version(Elsewhere()) == ""
