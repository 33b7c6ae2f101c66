"""What importing the package loads: none of its rooms, and no library before an array of it is met."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import agp

FOREIGN = {
    *("scipy", "pandas", "matplotlib", "sklearn", "torch", "jax", "cupy"),
    *("safetensors", "array_api_compat", "array_api_strict", "rich", "tqdm"),
}

REPORT = f"""
import sys
loaded = {{name.partition(".")[0] for name in sys.modules}} & {FOREIGN!r}
assert not loaded, loaded
"""

MEET = """
import numpy as np
X = np.linspace(0.0, 1.0, 8)[:, None]
agp.train(agp.SVGP.from_data(X, X, num_inducing=3), X, X, steps=1)
assert "scipy" in sys.modules and "safetensors" not in sys.modules
assert not {"pandas", "matplotlib", "sklearn", "torch", "jax"} & {*sys.modules}
"""


def run(program):
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "program",
    [
        "import agp",
        "import agp; [getattr(agp, name) for name in agp.__all__]",
        "import agp; [getattr(agp, name) for name in dir(agp)]",
        "from agp import *; SVGP, train, kernels",
        "import agp.io, agp.data, agp.testing, agp.cli",
    ],
    ids=["agp", "all names", "all rooms", "star", "rooms"],
)
def test_importing_loads_no_library_but_numpy(program):
    run(program + REPORT)


def test_importing_the_package_loads_none_of_its_rooms():
    run("import agp, sys; loaded = [m for m in sys.modules if m.startswith('agp.')]; assert not loaded, loaded")


def test_a_numpy_array_loads_scipy_and_nothing_else():
    run("import agp" + REPORT + MEET)


def test_names_are_those_of_their_rooms_and_are_listed():
    assert len(set(agp.__all__)) == len(agp.__all__)
    assert {*agp.__all__, "io", "data", "testing", "cli", "backend"} <= set(dir(agp))
    for name in agp.__all__:
        found = getattr(agp, name)
        assert found is getattr(agp, name)
    for name, room in agp._ROOM_OF.items():
        assert getattr(agp, name) is vars(sys.modules[f"agp.{room}"])[name]
        assert name in sys.modules[f"agp.{room}"].__all__
    assert agp.plot is sys.modules["agp.plot"]


def test_checkers_of_types_see_the_same_names():
    module = ast.parse(Path(agp.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in module.body if isinstance(node, ast.If))
    seen = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        seen |= {alias.name: (node.module or "").removeprefix("agp").removeprefix(".") for alias in node.names}
    names = {name for name, room in seen.items() if room}
    assert {name: seen[name] for name in names} == agp._ROOM_OF
    assert set(seen) - {"data", "estimators", "inspection", "io", "plot", "testing"} == set(agp.__all__)


@pytest.mark.parametrize("name", ["SVPG", "_hidden", "numpy"])
def test_a_name_that_does_not_exist_is_an_attribute_error(name):
    with pytest.raises(AttributeError, match=f"module 'agp' has no attribute '{name}'"):
        getattr(agp, name)
    with pytest.raises(ImportError):
        exec(f"from agp import {name}")
