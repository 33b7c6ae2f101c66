"""The size of the source: a module fits on ten pages, and a function on one. The guide to the source is short, too."""

import ast
import io
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [file for folder in ("agp", "backends") for file in sorted((ROOT / folder).rglob("*.py"))]

GUIDE = ROOT / "docs" / "architecture.md"

MAX_LINES = 500
"""The maximum number of lines of a module."""
MAX_GUIDE = 350
"""The maximum number of lines of the page on the architecture, which a new contributor reads first."""
MAX_BODY = 40
"""The maximum number of lines of code in the body of a function."""

NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

EXAMPLE = '''
class Class:
    """A class."""

    @decorated
    def outer(
        self,
        a,
    ):
        """One line.

        And a second paragraph.
        """
        # a comment

        text = """of
        two lines"""

        @cache
        def inner(x):
            """A docstring."""
            return x  # with a comment

        return inner(
            a,
        ), text


async def short(): return 1


def empty():
    """Nothing else."""
'''


def lines_of_code(source, module):
    """The numbers of all lines but those of docstrings and comments, and those that are blank."""
    code = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            code |= {*range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(module):
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and ast.get_docstring(node) is not None:
            code -= {*range(node.body[0].lineno, node.body[0].end_lineno + 1)}
    return code


def function_lengths(source):
    """The number of lines of code in the body of each function, by name.

    The signature of a function does not count, but nested functions count as a whole in the outer one.
    """
    module, found = ast.parse(source), {}
    code = lines_of_code(source, module)
    for node in ast.walk(module):
        if isinstance(node, FUNCTIONS):
            first, *_ = node.body
            start = min([first.lineno, *(one.lineno for one in getattr(first, "decorator_list", ()))])
            length = len(code & {*range(start, node.end_lineno + 1)})
            found[node.name] = max(length, found.get(node.name, 0))
    return found


def test_the_counter_counts_code_only():
    # two lines of text, three of the inner function, three of the value
    assert function_lengths(EXAMPLE) == {"outer": 8, "inner": 1, "short": 1, "empty": 0}


def test_there_are_files_to_look_at():
    assert {"agp", "agp_backends", "kernels"} <= {file.parent.name for file in FILES}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_module_and_its_functions_are_short(file):
    source = file.read_text(encoding="utf-8")
    lines = len(source.splitlines())
    assert lines <= MAX_LINES, f"{file.relative_to(ROOT)} has {lines} lines"
    long = {name: length for name, length in function_lengths(source).items() if length > MAX_BODY}
    assert not long, f"{file.relative_to(ROOT)} has functions with more than {MAX_BODY} lines of code: {long}"


def test_the_guide_to_the_source_is_short():
    lines = len(GUIDE.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_GUIDE, f"{GUIDE.relative_to(ROOT)} has {lines} lines; move details to pages of docs/extending"
