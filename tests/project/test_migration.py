"""The pages that move from other libraries: both sides run, and the same model gives the same numbers.

Libraries are looked for in this interpreter, and in those that ``AGP_PEERS`` names.
"""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import blocks
import numpy as np
import pytest

PAGES = {
    "gpytorch": "gpytorch.md",
    "gpflow": "gpflow.md",
    "gpjax": "gpjax.md",
    "sklearn": "scikit-learn.md",
}
"""The page of each library, by the name under which it is imported."""
FOLDER = Path(__file__).parents[2] / "docs" / "migration"
PYTHONS = [sys.executable, *filter(None, os.environ.get("AGP_PEERS", "").split(os.pathsep))]
LOOK = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"


def interpreter_with(library):
    for python in PYTHONS:
        if subprocess.run([python, "-c", LOOK, library], check=False).returncode == 0:
            return python
    pytest.skip(f"{library} is not installed for {', '.join(PYTHONS)}")


def test_every_page_is_tested():
    assert {page.name for page in FOLDER.glob("*.md")} == {*PAGES.values()}


@pytest.mark.long
@pytest.mark.parametrize("library", PAGES)
def test_both_sides_give_the_same_numbers(library):
    python, page = interpreter_with(library), FOLDER / PAGES[library]
    pytest.importorskip("torch")  # to which our blocks move a model
    pytest.importorskip("sklearn")
    command = [python, blocks.__file__, str(page), "theirs"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    theirs, ours = json.loads(done.stdout), blocks.results(page, "ours")
    assert {heading: set(values) for heading, values in theirs.items()} == {h: set(v) for h, v in ours.items()}
    assert len(ours) >= 7
    for heading, values in ours.items():
        for name, value in values.items():
            text = f"{library}, {heading}: {name}"
            if name in blocks.NEARLY:
                np.testing.assert_allclose(theirs[heading][name], value, atol=0.05, err_msg=text)
            else:
                np.testing.assert_allclose(theirs[heading][name], value, rtol=1e-4, atol=1e-6, err_msg=text)


@pytest.mark.parametrize("page", PAGES.values())
def test_both_sides_of_a_section_name_the_same_numbers(page):
    """Without the other library: a number on one side alone would be compared with nothing."""
    for heading, found in blocks.sections((FOLDER / page).read_text(encoding="utf-8")):
        if len(found) == 2:
            assert [fence for fence, _ in found] == ["{code-block} python", "python"], heading
            theirs, ours = (named(code) for _, code in found)
            assert theirs == ours, heading


def named(code):
    """The compared names to which code gives values, but for those inside functions and classes."""
    tree = ast.parse(code)
    bodies = [tree.body, *(part.body for part in tree.body if isinstance(part, ast.With))]
    given = [target for body in bodies for part in body if isinstance(part, ast.Assign) for target in part.targets]
    names = {x.id for target in given for x in ast.walk(target) if isinstance(x, ast.Name)}
    return names & {*blocks.COMPARED, *blocks.NEARLY}


def test_a_section_without_an_equal_is_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nN = 2\n```\n## A\n```{code-block} python\n:caption: Other\n\nbound = N + 1\n```\n"
        "```python\nbound = N + 2\n```\n"
    )
    assert blocks.results(page, "theirs") == {"A": {"bound": [3.0]}}
    assert blocks.results(page, "ours") == {"A": {"bound": [4.0]}}
