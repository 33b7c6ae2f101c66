"""The names on the first page of the reference have examples in their docstrings, which print what they say."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "index.md"
NAMES = re.findall(r"^   ~(agp\.[\w.]+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
NEEDS = {"agp.estimators": ("narwhals", "sklearn")}
"""The optional libraries of modules."""


def example_of(name):
    """The example in the docstring of a name such as "agp.kernels.RBF"; without an example, it has no lines."""
    module, _, short = name.rpartition(".")
    for library in NEEDS.get(module, ()):
        pytest.importorskip(library, reason=f"{module} needs {library}")
    found = vars(importlib.import_module(module))[short]
    return doctest.DocTestParser().get_doctest(found.__doc__ or "", {}, short, name, 0)


@pytest.fixture
def registered(monkeypatch):
    """What an example registers is forgotten after it."""
    monkeypatch.setattr("agp.backend._discovery._REGISTERED", {})
    monkeypatch.setattr("agp.backend._discovery._BY_TYPE", {})


@pytest.mark.slow
@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_name_runs(name):
    example, failures = example_of(name), []
    assert example.examples, f"the docstring of {name} has no example"
    code = "".join(line.source for line in example.examples)
    assert re.search(rf"\b{example.name}\b", code), f"the example of {name} does not use it"
    doctest.DocTestRunner().run(example, out=failures.append)
    assert not failures, "".join(failures)
