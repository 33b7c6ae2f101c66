"""The pages for beginners print what they show: their blocks and commands run in order, and are compared."""

import runpy
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
PAGES = [page for folder in ("start", "guide") for page in sorted((ROOT / "docs" / folder).glob("*.md"))]
PAGES.append(ROOT / "docs" / "shell.md")
NEEDS = {"ecosystem": ("mapie", "optuna", "shap")}
"""Libraries of pages that the extras for tests do not bring."""
NOTHING_SHOWN = {"install", "watching"}
"""Pages whose blocks print nothing, or what depends on the machine."""
PRINTED = runpy.run_path(str(ROOT / "docs" / "printed.py"))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:X does not have valid feature names:UserWarning")  # the row of zeros of MAPIE
@pytest.mark.parametrize(
    "page", [p for p in PAGES if PRINTED["blocks"](p.read_text(encoding="utf-8"))], ids=lambda p: p.stem
)
def test_a_page_prints_what_it_shows(page, tmp_path, monkeypatch):
    for library in NEEDS.get(page.stem, ()):
        pytest.importorskip(library, reason=f"{library} is not installed: not executed")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("agp.backend._discovery._REGISTERED", {})  # what a page registers stays on the page
    monkeypatch.setattr("agp.backend._discovery._BY_TYPE", {})
    compared = 0
    for block, printed in PRINTED["outputs"](page, tmp_path):
        if block.shown is not None:
            found = PRINTED["differences"](block.shown, printed)
            assert not found, f"{page.name}, line {block.line}:\n" + "\n".join(found)
            compared += 1
        else:
            assert not printed.strip() or block.language == "sh", f"{page.name}, line {block.line} prints {printed}"
    assert compared or page.stem in NOTHING_SHOWN


def test_a_number_a_word_and_a_line_that_differ_are_found():
    differences = PRINTED["differences"]
    assert not differences("error 51.3, 0.8 s\n", "error 51.4, 2.1 s\n")
    assert not differences("1,000 rows\n", "1,001 rows   \n\n")
    assert differences("error 51.3\n", "error 55.3\n")
    assert differences("0.10\n", "0.13\n")
    assert differences("converged: True\n", "converged: False\n")
    assert differences("one\n", "one\ntwo\n")
    assert not differences("...\ntwo\n3\n", "one\ntwo\n3\n")
    assert differences("...\ntwo\n3\n", "one\ntwo\n4\n")
    assert differences("...\nthree\n", "one\ntwo\n")
