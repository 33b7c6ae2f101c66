"""What importing the package loads: none of its subpackages, and no library before an array of it is met."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import agp

FOREIGN = {
    *("scipy", "pandas", "matplotlib", "sklearn", "torch", "jax", "cupy"),
    *("safetensors", "array_api_compat", "array_api_strict", "rich", "tqdm"),
}

OF_EXTRAS = {"GPClassifier", "GPRegressor", "estimators", "plot"}
"""What needs a library of an extra: it is listed where that is installed, and `from agp import *` leaves it out."""

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


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "program",
    [
        "import agp",
        "import agp; [getattr(agp, name) for name in agp.__all__]",
        f"import agp; [getattr(agp, name) for name in {{*dir(agp)}} - {OF_EXTRAS}]",
        "from agp import *; SVGP, train, kernels",
        "import agp.io, agp.tables, agp.testing, agp.cli",
    ],
    ids=["agp", "all names", "all subpackages", "star", "subpackages"],
)
def test_importing_loads_no_library_but_numpy(program):
    run(program + REPORT)


def test_importing_the_package_loads_none_of_its_subpackages():
    run("import agp, sys; loaded = [m for m in sys.modules if m.startswith('agp.')]; assert not loaded, loaded")


@pytest.mark.slow
def test_a_numpy_array_loads_scipy_and_nothing_else():
    run("import agp" + REPORT + MEET)


def test_names_are_those_of_their_packages_and_are_listed():
    assert len(set(agp.__all__)) == len(agp.__all__) <= 86
    assert not OF_EXTRAS & set(agp.__all__)
    listed = {name for name in dir(agp) if not name.startswith("__")}
    assert listed == {*agp._PACKAGE_OF, *agp._PACKAGES.split()} >= {*agp.__all__, "io", "tables", "testing", "backend"}
    for name in agp.__all__:
        found = getattr(agp, name)
        assert found is getattr(agp, name)
    for name, package in agp._PACKAGE_OF.items():
        assert getattr(agp, name) is vars(sys.modules[f"agp.{package}"])[name]
        assert name in sys.modules[f"agp.{package}"].__all__
    assert agp.plot is sys.modules["agp.plot"]


def test_checkers_of_types_see_the_same_names():
    module = ast.parse(Path(agp.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    seen = {}
    for node in module.body:
        if isinstance(node, ast.ImportFrom):
            assert all(alias.asname == alias.name for alias in node.names), "checkers take other names for private"
            seen |= {alias.name: (node.module or "").removeprefix("agp").removeprefix(".") for alias in node.names}
    names = {name for name, package in seen.items() if package}
    assert {name: seen[name] for name in names} == agp._PACKAGE_OF
    assert seen.keys() - names == set(agp._PACKAGES.split())
    assert set(agp.__all__) <= set(seen)
    assert agp._PACKAGE_OF.keys() - set(agp.__all__) <= OF_EXTRAS


@pytest.mark.slow
def test_what_is_listed_can_be_loaded_where_extras_are_missing():
    run("""
import sys
sys.modules["matplotlib"] = sys.modules["narwhals"] = sys.modules["sklearn"] = None
import agp
assert not {"GPClassifier", "GPRegressor", "estimators", "plot"} & set(dir(agp))
for name in dir(agp):
    getattr(agp, name)
""")


def test_the_top_level_has_every_model_and_mean_and_no_part_beside():
    parts = {name: cls for name in agp.__all__ if isinstance(cls := getattr(agp, name), type)}
    assert {agp._PACKAGE_OF[name] for name in parts} == {"kernels", "likelihoods", "means", "models", "predictors"}
    for package in (agp.means, agp.models):
        found = {name for name in package.__all__ if _is_whole(vars(package)[name])}
        assert found - ABSTRACT <= parts.keys()


ABSTRACT = {"Mean", "MeanWithSlopes", "Variational"}
"""Classes of these packages that are for writers of parts, that models build, or what a part answers."""


def _is_whole(x):
    return isinstance(x, type) and not inspect.isabstract(x)


@pytest.mark.parametrize("name", ["SVPG", "_hidden", "numpy", "GuardedSums"])
def test_a_name_that_does_not_exist_is_an_attribute_error(name):
    with pytest.raises(AttributeError, match=f"module 'agp' has no attribute '{name}'"):
        getattr(agp, name)
    with pytest.raises(ImportError):
        exec(f"from agp import {name}")
