"""Formulas of the guide are drawn without a script: each becomes MathML that a browser understands."""

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

pytest.importorskip("latex2mathml")
DOCS = Path(__file__).parents[2] / "docs"
mathml = runpy.run_path(str(DOCS / "_ext" / "mathml.py"))["mathml"]

FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$([^$\n]+?)\$", re.DOTALL)
ELEMENTS = """
math mrow mi mo mn mtext mspace mfrac msqrt msub msup msubsup mover munder munderover mstyle mtable mtr mtd mpadded
"""


def formulas():
    for page in sorted(DOCS.rglob("*.md")):
        if "_build" not in page.parts:
            text = re.sub(
                r"^```.*?^```$|`[^`\n]+`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
            )
            yield from ((page.name, block or inline, bool(block)) for block, inline in FORMULA.findall(text))


@pytest.mark.slow
def test_every_formula_is_understood():
    found = list(formulas())
    assert len(found) > 500
    for page, formula, block in found:
        tree = ET.fromstring(mathml(formula, block=block))
        names = {element.tag.rpartition("}")[2] for element in tree.iter()}
        assert names <= set(ELEMENTS.split()), (page, formula, names - set(ELEMENTS.split()))


@pytest.mark.parametrize("formula", [r"\unheardof{x}", r"a & b"])
def test_what_is_not_understood_is_refused(formula):
    with pytest.raises(ValueError, match="cannot be converted"):
        mathml(formula, block=False)


def test_aligned_lines_are_rows_of_a_table():
    found = mathml(r"\begin{aligned} a &= b \\ &= c \end{aligned}", block=True)
    assert found.count("<mtr>") == 2
    assert "&amp;" not in found


def test_names_of_functions_keep_their_distance_but_not_from_brackets():
    found = mathml(r"\log L + \operatorname{tr}(K)", block=False)
    assert 'rspace="0.167em">log' in found
    assert 'rspace="0">tr' in found


@pytest.mark.parametrize("style", ["mathcal", "mathbb", "mathrm"])
def test_a_letter_has_its_style_with_braces_or_without(style):
    assert mathml(rf"\{style} N(0, 1)", block=False) == mathml(rf"\{style}{{N}}(0, 1)", block=False)
