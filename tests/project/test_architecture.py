"""The structure of the library: subpackages in layers, abstract or final classes, and what no subpackage does."""

import ast
import importlib
import inspect
import pkgutil
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import agp
from agp import tree

ROOT = Path(agp.__file__).parent
GUIDE = Path(__file__).parents[2] / "docs" / "architecture.md"

LAYERS = (
    ("distributions", "errors", "random"),
    ("backend",),
    ("chunking", "metrics", "tree"),
    ("checks", "neighbours", "priors", "repairs"),
    ("kernels", "likelihoods", "linalg", "means", "summaries", "tables"),
    ("actions", "bounds", "inducing", "posteriors"),
    ("gradient", "processes", "starts"),
    ("predictors", "testing"),
    ("models",),
    ("io", "updates"),
    ("training",),
    ("inspection", "methods", "selection"),
    ("estimators", "plot"),
    ("cli", "interop"),
)
"""The subpackages by floor, from the lowest up: the imports of each one lie below its floor, one directly below."""
ORDER = [package for layer in LAYERS for package in layer]
FLOORS = {package: floor for floor, layer in enumerate(LAYERS) for package in layer}
MAX_FLOORS, MAX_PACKAGES = 15, 42
"""Limits on the length of chains of imports, and on the number of subpackages."""

MATHEMATICS = (
    *("kernels", "means", "likelihoods", "actions", "posteriors", "processes", "bounds", "updates", "linalg"),
    *("predictors", "models", "priors"),
)
LIBRARIES = {"numpy", "scipy", "torch", "jax", "cupy", "array_api_strict", "array_api_compat", "dask"}
AROUND = ("tree", "checks")
"""Where arrays are looked for in what users wrote."""


def _package(file):
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


def _files(*packages):
    return [file for file in sorted(ROOT.rglob("*.py")) if _package(file) in packages]


def _tree(file):
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def _imports(file):
    """The modules of this library that a file imports, as parts of their names."""
    found = []
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.Import):
            found += [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import"
            module = node.module.split(".")
            found += [[*module, alias.name] for alias in node.names] if module == ["agp"] else [module]
    return [parts[1:] for parts in found if parts[0] == "agp" and parts[1:2] not in ([], ["__version__"])]


# -- subpackages ----------------------------------------------------------------------------------------------------


def test_every_package_has_its_place():
    packages = {_package(file) for file in ROOT.rglob("*.py")} - {"__init__", "__main__"}
    assert packages == set(ORDER)
    assert len(ORDER) == len(set(ORDER))


def test_the_guide_draws_the_same_house():
    table = GUIDE.read_text(encoding="utf-8").split("| Subpackage | Job |")[1].split("\n\n")[0]
    drawn = [re.findall(r"`(\w+)`", line.split("|")[1]) for line in table.splitlines()[2:]]
    assert [package for packages in drawn for package in packages] == ORDER


@pytest.mark.parametrize("package", ORDER)
def test_a_package_imports_from_lower_packages_only(package):
    floor = FLOORS[package]
    allowed = {package for package, below in FLOORS.items() if below < floor} | {package}
    for file in _files(package):
        upward = {parts[0] for parts in _imports(file)} - allowed
        assert not upward, f"{file.relative_to(ROOT)} imports {upward}, which do not lie below {package}"


def test_the_house_is_low_and_has_no_circles():
    below = {package: {parts[0] for file in _files(package) for parts in _imports(file)} for package in ORDER}
    sorter = TopologicalSorter({package: names - {package} for package, names in below.items()})
    heights: dict[str, int] = {}
    for package in sorter.static_order():  # raises an error if there is a circle
        heights[package] = 1 + max((heights[name] for name in below[package] - {package}), default=0)
    assert heights == {package: i for i, layer in enumerate(LAYERS, start=1) for package in layer}
    assert len(LAYERS) <= MAX_FLOORS
    assert len(ORDER) <= MAX_PACKAGES


@pytest.mark.parametrize("package", ORDER)
def test_no_private_module_of_another_package_is_imported(package):
    for file in _files(package):
        others = [parts for parts in _imports(file) if parts[0] != package]
        private = [".".join(parts) for parts in others if any(part[0] == "_" for part in parts[1:])]
        assert not private, f"{file.relative_to(ROOT)} imports {private}"


# -- what the mathematics does not know -------------------------------------------------------------------------------


def _docstrings(module):
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef)
    bodies = [node.body for node in ast.walk(module) if isinstance(node, holders)]
    return {id(statement.value) for body in bodies for statement in body if isinstance(statement, ast.Expr)}


@pytest.mark.slow
@pytest.mark.parametrize("package", MATHEMATICS)
def test_the_mathematics_names_no_array_library(package):
    for file in _files(package):
        module = _tree(file)
        docstrings, named = _docstrings(module), set()
        for node in ast.walk(module):
            if isinstance(node, ast.Import):
                named |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                named.add(node.module.split(".")[0])
            elif isinstance(node, ast.Name):
                named.add(node.id)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                named.add(node.value)
        assert not named & LIBRARIES, f"{file.relative_to(ROOT)} names {named & LIBRARIES}"


def _calls(file, name):
    if name not in file.read_text(encoding="utf-8"):
        return []
    return [
        node
        for node in ast.walk(_tree(file))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
    ]


@pytest.mark.parametrize("package", [package for package in ORDER if package not in AROUND])
def test_nothing_is_asked_for_its_attributes(package):
    for file in _files(package):
        assert not _calls(file, "hasattr"), f"{file.relative_to(ROOT)} asks hasattr"
        for call in _calls(file, "getattr"):
            literal = len(call.args) == 3 or isinstance(call.args[1], ast.Constant)
            assert not literal, f"{file.relative_to(ROOT)}:{call.lineno} asks getattr by a literal name"


# -- classes ----------------------------------------------------------------------------------------------------------


def _model_classes():
    for module in pkgutil.walk_packages(agp.__path__, "agp."):
        if not module.name.startswith(("agp.cli", "agp.plot", "agp.interop.")):  # they define no models
            importlib.import_module(module.name)
    return [cls for cls in tree._fields.FIELDS if cls.__module__.startswith("agp.")]


CLASSES = _model_classes()
CONCRETE = {cls for cls in CLASSES if not inspect.isabstract(cls)}


def test_there_are_classes_to_look_at():
    assert {
        agp.RBF,
        agp.posteriors.Relaxed,
        agp.SVGP,
        agp.Poisson,
        agp.actions.FixedActions,
        agp.processes.Deep,
        agp.ZeroMean,
    } <= CONCRETE


def test_a_class_is_abstract_or_final():
    for cls in CLASSES:
        inherited = CONCRETE & set(cls.__mro__[1:])
        assert not inherited, f"{cls.__name__} inherits from {inherited}, which is concrete"


@pytest.mark.parametrize("package", ["updates", "training", "bounds"])
def test_updates_training_and_bounds_know_no_concrete_class(package):
    names = {cls.__name__ for cls in CONCRETE}
    for file in _files(package):
        for call in _calls(file, "isinstance"):
            asked = {node.id for node in ast.walk(call.args[1]) if isinstance(node, ast.Name)}
            asked |= {node.attr for node in ast.walk(call.args[1]) if isinstance(node, ast.Attribute)}
            assert not asked & names, f"{file.relative_to(ROOT)}:{call.lineno} asks for {asked & names}"
