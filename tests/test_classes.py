"""Classes are abstract or final."""

import importlib
import inspect
import pkgutil

import pytest

import agp
from agp import tree


def model_classes():
    """Every model class that the library defines."""
    for module in pkgutil.walk_packages(agp.__path__, "agp."):
        if not module.name.startswith(("agp.cli", "agp.plot")):
            importlib.import_module(module.name)
    found = []
    tree.on_model_class(found.append)
    return [cls for cls in found if cls.__module__.startswith("agp.")]


def test_no_concrete_class_inherits_from_a_concrete_one():
    concrete = {cls for cls in model_classes() if not inspect.isabstract(cls)}
    assert len(concrete) > 40
    assert [(cls.__name__, base.__name__) for cls in concrete for base in cls.__mro__[1:] if base in concrete] == []


@pytest.mark.parametrize("model_class", [agp.GPR, agp.CGGP, agp.CaGP])
def test_constructors_take_keywords_beyond_two_arguments(model_class):
    parameters = list(inspect.signature(model_class).parameters.values())
    assert [p.name for p in parameters if p.kind is not inspect.Parameter.KEYWORD_ONLY] == ["kernel", "likelihood"]
