"""The files around the package: make's list of targets, hooks of commits, forms of issues."""

import re
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def test_make_lists_every_target():
    phony = {target for line in re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.M) for target in line.split()}
    assert phony == set(re.findall(r"^([a-z-]+):.*## \S", MAKEFILE, re.M))
    assert {"help", "test", "lint"} <= phony


def test_contributing_names_targets_that_exist():
    named = set(re.findall(r"`make ([a-z-]+)", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    assert {"test-quick", "lint", "docs"} <= named
    assert [target for target in named if not re.search(rf"^{target}:", MAKEFILE, re.M)] == []


def test_commits_and_make_lint_use_the_same_ruff():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    (ruff,) = [repository["rev"] for repository in hooks if repository["repo"].endswith("/ruff-pre-commit")]
    assert f"ruff=={ruff.removeprefix('v')}" in (ROOT / "constraints.txt").read_text(encoding="utf-8").split()


@pytest.mark.parametrize("file", FORMS, ids=lambda file: file.stem)
def test_an_issue_form_has_what_github_asks_for(file):
    form = yaml.safe_load(file.read_text(encoding="utf-8"))
    if file.stem == "config":
        assert form.keys() == {"blank_issues_enabled"}
        return
    assert form.keys() == {"name", "description", "labels", "body"}
    identifiers = [field["id"] for field in form["body"] if field["type"] != "markdown"]
    assert identifiers
    assert len(identifiers) == len(set(identifiers))
    for field in form["body"]:
        assert field["type"] in {"markdown", "textarea", "input", "dropdown", "checkboxes"}
        assert field["attributes"]["value" if field["type"] == "markdown" else "label"]
