"""Listed public names, parameters and attributes still work, or warn.

`public_names.json` lists those of the last minor release, or, before the first release, the present ones.
"""

import importlib
import json
import types
import warnings
from pathlib import Path

import pytest
from public_names import attributes, parameters

import agp

MADE_BY_AGP = {"agp.backend.BackendStatus"}
"""Records that users read and do not construct; parameters may change."""

RELEASE = json.loads(Path(__file__).with_name("public_names.json").read_text(encoding="utf-8"))
NAMES = RELEASE["names"]


def problems(owner, name, details):
    """What is missing of a name that a release had, as sentences."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            x = getattr(owner, name)
        except AttributeError:
            return [f"{name} was removed without a DeprecationWarning"]
    if name not in getattr(owner, "__all__", ()) and not any(w.category is DeprecationWarning for w in caught):
        return [f"{name} left __all__ without a DeprecationWarning"]
    if f"{getattr(owner, '__name__', None)}.{name}" in MADE_BY_AGP:
        details = {"attributes": details["attributes"]}
    now = {"parameters": parameters(x), "attributes": attributes(x) if isinstance(x, type) else []}
    lost = [(kind, one) for kind, before in details.items() for one in before if one not in now[kind]]
    return [f"{name} lost the {kind.removesuffix('s')} {one}" for kind, one in lost]


def all_problems(owner):
    """What is missing of the names of a module."""
    names = {full.rpartition(".")[2]: x for full, x in NAMES.items() if full.rpartition(".")[0] == owner.__name__}
    return [problem for name, details in names.items() for problem in problems(owner, name, details)]


@pytest.mark.parametrize("module", sorted({name.rpartition(".")[0] for name in NAMES}))
def test_listed_names_work_or_warn(module):
    try:
        owner = importlib.import_module(module)
    except ImportError as error:
        if error.name == module:
            raise
        pytest.skip(str(error))
    assert not all_problems(owner)


def test_the_list_is_of_this_minor_release_or_the_one_before():
    listed, current = (tuple(map(int, version.split(".")[:2])) for version in (RELEASE["version"], agp.__version__))
    assert listed[0] == current[0]
    assert current[1] - listed[1] in (0, 1), "run tests/project/public_names.py for the last release"


class Renamed:
    __all__ = ("train",)

    @property
    def teach(self):
        warnings.warn("teach is now called train", DeprecationWarning, stacklevel=2)


def test_what_is_missing_is_found():
    def train(model, steps): ...

    owner = types.SimpleNamespace(__all__=["train"], train=train, hidden=train)
    assert problems(owner, "train", {"parameters": ["model", "steps"]}) == []
    assert problems(owner, "train", {"parameters": ["rate"]}) == ["train lost the parameter rate"]
    assert problems(owner, "hidden", {}) == ["hidden left __all__ without a DeprecationWarning"]
    assert problems(owner, "teach", {}) == ["teach was removed without a DeprecationWarning"]
    assert problems(Renamed(), "teach", {}) == []  # warns
    lost = problems(agp, "GPR", {"attributes": ["predict", "foresee"]})
    assert lost == ["GPR lost the attribute foresee"]
