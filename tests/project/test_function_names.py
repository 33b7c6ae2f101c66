"""Functions are named by verbs or by what they return; a participle alone does not say what happens."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PARTICIPLE = re.compile(
    r"_*([a-z]+ed|taken|given|drawn|grown|shown|seen|known|said|made|held|kept|found|begun|written)"
)
TERMS = {
    "begun": "the posterior from which training starts; public since 0.2",
    "centred": "the linear kernel of centred inputs",
    "correlated": "a property: whether outputs depend on each other",
    "elapsed": "the time since a start",
    "fused": "as in a fused kernel of a GPU",
    "known": "a property: the weights, the offset and the noise of rows",
    "reached": "the last state that a graph left",
    "speed": "a noun",
}


@pytest.mark.slow
def test_no_function_is_named_by_a_participle_alone():
    found = {}
    for path in [*(ROOT / "agp").rglob("*.py"), *(ROOT / "backends").rglob("*.py")]:
        module = ast.parse(path.read_text(encoding="utf-8"))
        classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
        for node in [*module.body, *(each for cls in classes for each in cls.body)]:
            if isinstance(node, ast.FunctionDef) and PARTICIPLE.fullmatch(node.name):
                found[node.name] = str(path.relative_to(ROOT))
    assert {name: path for name, path in found.items() if name.strip("_") not in TERMS} == {}
    assert {name.strip("_") for name in found} == set(TERMS), "a term is no longer used"
