"""Convert formulas to MathML when pages are built, because browsers render MathML without scripts or fonts."""

import re
from typing import Any

from latex2mathml.converter import convert

__all__ = ["mathml", "setup"]

_ALIGNED = re.compile(r"\\(begin|end)\{aligned\}")
_LETTER = re.compile(r"(\\math[a-z]+)\s+([A-Za-z])")
_FUNCTION = re.compile(r"<m[io]>([a-zA-Z]{2,})</m[io]>(?=(<mo stretchy=\"false\">&#x00028;)?)")
_BAR = re.compile(r'<mo stretchy="false">(&#x0007C;|&#x02016;|\||‖)</mo>')


def mathml(formula: str, *, block: bool) -> str:
    """Return the MathML of a TeX formula.

    Raises
    ------
    ValueError
        If the result still contains TeX commands, which would be visible on the page.
    """
    plain = _LETTER.sub(r"\1{\2}", _ALIGNED.sub(r"\\\1{align*}", formula))  # otherwise, \mathcal has no effect on N
    found = convert(plain, display="block" if block else "inline")
    found = _FUNCTION.sub(_function, _BAR.sub(r'<mo stretchy="false" lspace="0.06em" rspace="0.06em">\1</mo>', found))
    text = re.sub(r"<[^>]*>", "", found)
    if "\\" in text or re.search(r"&(?!#|\w+;)", text):
        msg = f"the formula {formula!r} contains TeX that cannot be converted."
        raise ValueError(msg)
    return found


def _function(match: re.Match[str]) -> str:
    """Return the name of a function, with a thin space before it and, unless a bracket follows, after it."""
    after = "0" if match[2] else "0.167em"
    return f'<mo lspace="0.167em" rspace="{after}">{match[1]}</mo>'


def _inline(self: Any, node: Any) -> None:
    from docutils import nodes

    self.body.append(mathml(node.astext(), block=False))
    raise nodes.SkipNode


def _block(self: Any, node: Any) -> None:
    from docutils import nodes

    self.body.append(self.starttag(node, "div", CLASS="formula", tabindex="0"))  # can be scrolled with the keyboard
    self.body.append(mathml(node.astext(), block=True))
    self.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, Any]:
    """Register the renderer, to which the option `html_math_renderer` refers."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
