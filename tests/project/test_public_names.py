"""Public names, parameters and attributes of the last minor release still work, or warn, or are listed as removed.

`public_names.json` lists those of 0.2.0, taken at commit a858e66, which completed its changelog.
"""

import importlib
import json
import re
import types
import warnings
from pathlib import Path

import pytest
from public_names import attributes, parameters

import agp

MADE_BY_AGP = {"agp.backend.BackendStatus"}
"""Records that users read and do not construct; parameters may change."""

BOUNDS = (
    *("collapsed_bound", "computation_aware_bound", "elbo", "estimated_evidence", "evidence_upper_bound"),
    *("free_collapsed_bound", "leave_one_out", "log_evidence", "tight_bound"),
)
REMOVED = {
    r"agp(\.likelihoods)?: HeteroscedasticGaussian was removed": "HeteroscedasticGaussian",
    r"agp\.predictors: (Process)?Conditional was removed": "ProcessConditional",
    r"agp\.predictors: Predictor lost the (parameter|attribute) conditionals": "predictor.conditionals",
    r"agp\.processes: \w+ lost the attribute joint": "process.joint(factor, X)",
    r"agp\.data: (Dataset|Table|bundled|from_npz|from_table|load) was removed": "agp.data.load",
    r"agp\.plot: (plot_comparison|plot_map) was removed": "agp.plot.plot_comparison",
    rf"agp\.bounds: ({'|'.join(BOUNDS)}) lost the parameter (X|y|scale|draws)": "agp.bounds.elbo(model, X, y)",
}
"""Names that no longer work, and what the migration notes of the changelog call them."""
CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"

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


@pytest.mark.parametrize("removed", REMOVED)
def test_what_was_removed_is_missing_and_has_a_migration_note(removed):
    modules = [
        importlib.import_module(f"agp{part}") for part in ("", ".bounds", ".data", ".likelihoods", ".predictors")
    ]
    modules.append(importlib.import_module("agp.processes"))
    if "plot" in removed:
        pytest.importorskip("matplotlib", reason="the plots need matplotlib")
        modules.append(importlib.import_module("agp.plot"))
    found = [f"{owner.__name__}: {problem}" for owner in modules for problem in all_problems(owner)]
    assert any(re.match(removed, problem) for problem in found), "it works again: remove it from the list"
    notes = CHANGELOG.read_text(encoding="utf-8").split("\n## ")[1]
    assert notes.startswith(("Unreleased", agp.__version__))
    assert f"`{REMOVED[removed]}`" in notes.partition("### Migration notes")[2]


@pytest.mark.parametrize("module", sorted({name.rpartition(".")[0] for name in NAMES}))
def test_names_of_the_last_release_work_or_warn(module):
    try:
        owner = importlib.import_module(module)
    except ImportError as error:
        if error.name == module:
            raise
        pytest.skip(str(error))
    found = [f"{module}: {problem}" for problem in all_problems(owner)]
    assert not [problem for problem in found if not any(re.match(removed, problem) for removed in REMOVED)]


def test_the_list_is_of_this_minor_release_or_the_one_before():
    listed, current = (tuple(map(int, version.split(".")[:2])) for version in (RELEASE["version"], agp.__version__))
    assert listed[0] == current[0]
    assert current[1] - listed[1] in (0, 1), "run tests/project/public_names.py for the last release"


def test_what_is_missing_is_found():
    def train(model, steps): ...

    owner = types.SimpleNamespace(__all__=["train"], train=train, hidden=train)
    assert problems(owner, "train", {"parameters": ["model", "steps"]}) == []
    assert problems(owner, "train", {"parameters": ["rate"]}) == ["train lost the parameter rate"]
    assert problems(owner, "hidden", {}) == ["hidden left __all__ without a DeprecationWarning"]
    assert problems(owner, "teach", {}) == ["teach was removed without a DeprecationWarning"]
    assert problems(agp, "Whitened", {}) == []  # moved to agp.posteriors, and warns
    lost = problems(agp, "GPR", {"attributes": ["predict", "foresee"]})
    assert lost == ["GPR lost the attribute foresee"]
