"""Formulas as MathML, made while pages are built: browsers draw it themselves, without a script or a font to fetch."""

import re
from typing import Any

from latex2mathml.converter import convert

__all__ = ["mathml", "setup"]

_ALIGNED = re.compile(r"\\(begin|end)\{aligned\}")
_LETTER = re.compile(r"(\\math[a-z]+)\s+([A-Za-z])")
_FUNCTION = re.compile(r"<m[io]>([a-zA-Z]{2,})</m[io]>(?=(<mo stretchy=\"false\">&#x00028;)?)")
_BAR = re.compile(r'<mo stretchy="false">(&#x0007C;|&#x02016;|\||‖)</mo>')


def mathml(formula: str, *, block: bool) -> str:
    """The MathML of a TeX formula.

    Raises
    ------
    ValueError
        If a part of it was not understood, and would stand on the page as it was written.
    """
    plain = _LETTER.sub(r"\1{\2}", _ALIGNED.sub(r"\\\1{align*}", formula))  # \mathcal N is read as if N stood alone
    found = convert(plain, display="block" if block else "inline")
    found = _FUNCTION.sub(_function, _BAR.sub(r'<mo stretchy="false" lspace="0.06em" rspace="0.06em">\1</mo>', found))
    text = re.sub(r"<[^>]*>", "", found)
    if "\\" in text or re.search(r"&(?!#|\w+;)", text):
        msg = f"the formula {formula!r} has something that is not understood."
        raise ValueError(msg)
    return found


def _function(match: re.Match[str]) -> str:
    """The name of a function, a thin space before and, unless a bracket follows, after it."""
    after = "0" if match[2] else "0.167em"
    return f'<mo lspace="0.167em" rspace="{after}">{match[1]}</mo>'


def _inline(self: Any, node: Any) -> None:
    from docutils import nodes

    self.body.append(mathml(node.astext(), block=False))
    raise nodes.SkipNode


def _block(self: Any, node: Any) -> None:
    from docutils import nodes

    self.body.append(self.starttag(node, "div", CLASS="formula", tabindex="0"))  # scrolls by keys as well
    self.body.append(mathml(node.astext(), block=True))
    self.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, Any]:
    """Register the renderer, which `html_math_renderer` names."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
