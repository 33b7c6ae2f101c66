"""The accelerator report: small on the CPU, resumed, its page; what it would say of failures and of a GPU's plan."""

import itertools
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from agp.backend import get_backend

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "asv_benchmarks" / "accelerator.py"
sys.path.append(str(SCRIPT.parent))

from accelerator_parts import PARTS, card, steps, suite  # noqa: E402
from accelerator_parts.page import INTRODUCTION, page, table  # noqa: E402
from accelerator_parts.part import Plan  # noqa: E402
from accelerator_parts.places import Stamps, timed  # noqa: E402
from accelerator_parts.worker import EntryError, Workplace  # noqa: E402

pytestmark = pytest.mark.slow

GPU = Plan(small=False, device="cuda:0", libraries=("torch", "cupy", "jax"))
NOWHERE = "abacus"
"""A library that does not exist."""


def run(folder, *options, device="cpu"):
    """What the command prints."""
    command = [sys.executable, SCRIPT, "--out", folder, "--device", device, *options]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=ROOT, timeout=250)
    if done.returncode:
        raise ValueError(done.stderr)
    return done.stdout


def held(folder, part):
    """The figures of a part by the values of their settings, such as "numpy 32 wsvgp closed-form float64"."""
    entries = json.loads((folder / f"{part}.json").read_text())["entries"]
    return {" ".join(map(str, entry["settings"].values())): entry["figures"] for entry in entries}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The report of NumPy, and of a library that is missing."""
    folder = tmp_path_factory.mktemp("report")
    printed = run(folder, "--libraries", "numpy", NOWHERE)
    assert printed.endswith("done.\n")
    return folder


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [part for part in PARTS if part not in ("tests", "profile")])
def test_every_part_has_figures_and_a_sentence_where_a_library_is_missing(folder, part):
    found = held(folder, part)
    there = {name: figures for name, figures in found.items() if name.startswith("numpy")}
    assert there
    if part != "card":  # where products are those that a library is known to have
        assert len(there) == len(found) - len(there)
    assert not [name for name, figures in there.items() if "error" in figures]
    missing = {figures.get("error") for name, figures in found.items() if name.startswith(NOWHERE)}
    (sentence,) = missing
    assert f"unknown backend '{NOWHERE}'" in sentence


def test_the_tests_run(folder):
    (figures,) = held(folder, "tests").values()
    assert figures["passed"] > 100
    assert figures["failed"] == figures["skipped"] == 0


def test_no_failing_factorisation_is_missed(folder):
    cases = [figures for name, figures in held(folder, "card").items() if name.startswith("numpy failing")]
    assert all(figures["missed"] == figures["false alarms"] == 0 < figures["cases"] for figures in cases)
    assert len(cases) == 8


def test_a_profile_counts_operators():
    pytest.importorskip("torch")
    settings = {"library": "torch", "M": 8, "method": "wsvgp", "gradient": "closed-form", "dtype": "float64"}
    with Workplace() as workplace:  # the profiler writes to the standard output of its process
        work = {"device": "cpu", "small": True, "seconds": 1.0} | settings
        figures = workplace.ask(PARTS["profile"].measured, work, limit=100)
    assert figures["operators"] > 100
    assert figures["launches"] == 0


def test_what_is_there_is_not_measured_again(folder, tmp_path):
    text = json.loads((folder / "steps.json").read_text())
    kept, left_out = text["entries"][0], text["entries"][1]
    kept["figures"]["ms"] = "as it was"
    text["entries"] = [kept, *text["entries"][2:]]
    (tmp_path / "steps.json").write_text(json.dumps(text))
    options = ("--parts", "steps", "--libraries", "numpy", NOWHERE)
    printed = run(tmp_path, *options)
    assert printed.count(" s\n") == 1
    name = " ".join(map(str, left_out["settings"].values()))
    assert held(tmp_path, "steps")[name]["ms"] > 0
    first = " ".join(map(str, kept["settings"].values()))
    assert held(tmp_path, "steps")[first]["ms"] == "as it was"
    assert "as it was" in printed.split(PARTS["steps"].title)[1]
    with pytest.raises(ValueError, match="holds results of another run.*name another folder"):
        run(tmp_path, *options, "--no-small")


def test_a_call_without_time_says_what_is_left(tmp_path):
    printed = run(tmp_path, "--parts", "linalg", "--libraries", "numpy", "--seconds", "5")
    assert printed.endswith("left: linalg (2 entries); the same command goes on.\n")
    assert not (tmp_path / "linalg.json").exists()


def test_an_entry_that_takes_too_long_is_said_and_tried_again_when_asked(tmp_path):
    options = ("--parts", "linalg", "--libraries", "numpy")
    run(tmp_path, *options, "--entry-seconds", "0.01")
    assert [figures["error"] for figures in held(tmp_path, "linalg").values()] == ["not done within 0.01 s"] * 2
    assert "0.01 s" in run(tmp_path, *options)
    printed = run(tmp_path, *options, "--retry")
    assert "0.01 s" not in printed
    assert not [figures for figures in held(tmp_path, "linalg").values() if "error" in figures]


def test_a_device_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="no library here has a device 'cuda:77'") as error:
        run(tmp_path, device="cuda:77")
    assert "Traceback" not in str(error.value)


# -- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_has_tables_and_the_sentences_of_what_failed(folder, tmp_path):
    run(folder, "--page", tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "## cpu in small sizes: a rehearsal\n" in text
    for name, part in PARTS.items():
        assert (f"### {part.title}\n" in text) == (folder / f"{name}.json").exists()
    assert "| numpy | 32 | wsvgp | closed-form | float64 | 32 |" in text
    assert f"unknown backend '{NOWHERE}'" in text


def test_the_page_of_the_guide_is_made_by_the_script(tmp_path):
    intended = page(tmp_path)
    assert "No figures from a GPU exist yet" in intended
    introduction = intended[: intended.index("\nNo figures")]
    assert introduction.startswith(INTRODUCTION[:100])
    assert (ROOT / "docs" / "accelerator.md").read_text(encoding="utf-8").startswith(introduction)


def test_entries_with_other_columns_stand_in_another_table():
    entries = [
        {"settings": {"library": "torch", "M": 8}, "figures": {"ms": 1.23456}},
        {"settings": {"library": "torch", "M": 9}, "figures": {"error": "OutOfMemoryError: too much"}},
        {"settings": {"library": "torch"}, "figures": {"version": "2"}},
    ]
    assert "| torch | 8 | 1.23 |\n" in table(entries)
    assert "| torch | 2 |\n" in table(entries)
    assert table(entries).endswith("- OutOfMemoryError: too much (torch 9)\n")


# -- the parts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("plan", [GPU, Plan(small=True, device="cpu", libraries=("numpy", "torch", "jax"))])
def test_entries_are_told_apart_and_those_of_a_library_follow_each_other(part, plan):
    entries = PARTS[part].entries(plan)
    assert entries
    assert json.loads(json.dumps(entries)) == entries
    assert len({json.dumps(entry, sort_keys=True) for entry in entries}) == len(entries)
    libraries = [entry.get("library") for entry in entries]
    assert len([1 for a, b in itertools.pairwise(libraries) if a != b]) == len(set(libraries)) - 1


def test_the_plan_for_a_gpu_has_the_steps_that_are_asked_for():
    entries = PARTS["steps"].entries(GPU)
    for library in GPU.libraries:
        own = [entry for entry in entries if entry["library"] == library]
        assert {entry["M"] for entry in own} == {256, 1024, 4096, 8192}
        assert {entry["method"] for entry in own} >= set(steps.METHODS)
        assert {entry["dtype"] for entry in own} == {"float64", "float32"}
    assert {entry["gradient"] for entry in entries if entry["library"] == "cupy"} == {"closed-form"}


def test_the_groups_of_tests_exist():
    for paths in (*suite.GROUPS.values(), *suite.SMALL.values()):
        assert paths
        assert all((ROOT / "tests" / path).exists() for path in paths)


def test_the_report_of_the_tests_is_counted():
    cases = '<testcase name="a"/><testcase name="b"><skipped/></testcase><testcase name="c"><failure/></testcase>'
    figures = suite.counts(ET.fromstring(f"<r><s>{cases}<testcase name='d'><error/></testcase></s></r>"))
    assert figures == {"passed": 1, "failed": 2, "skipped": 1, "first failures": "c, d"}


def test_a_factorisation_that_notices_nothing_is_counted_as_missed():
    B = get_backend("numpy")
    blind = SimpleNamespace(from_numpy=B.from_numpy, to_numpy=B.to_numpy, cholesky=lambda A: np.ones_like(A))
    for batch in (0, 3):
        figures = card.failing_factorisations(blind, "cpu", "float64", 5, batch)
        assert figures["missed"] == figures["cases"] == 18
    frightened = SimpleNamespace(from_numpy=B.from_numpy, to_numpy=B.to_numpy, cholesky=lambda A: A * np.nan)
    figures = card.failing_factorisations(frightened, "cpu", "float64", 5, 3)
    assert figures["missed"] == 0
    assert figures["false alarms"] == 21  # the good matrices alone, and those beside each bad one


@pytest.mark.parametrize("place", [0, 3, 6])
def test_only_the_pivot_that_is_named_is_bad(place):
    A = card.with_pivot(7, place, -1e-3)
    assert np.linalg.cholesky(A[:place, :place]).shape == (place, place)
    assert np.linalg.slogdet(A[: place + 1, : place + 1])[0] == -1


def test_first_calls_are_not_counted_and_the_device_is_waited_for():
    pauses, waited = iter([0.2, 0.1]), []
    B = SimpleNamespace(synchronise=waited.append)
    times = timed(B, lambda: time.sleep(next(pauses, 0.001)), small=True)
    assert times["first_ms"] >= 200
    assert 1 <= times["ms"] < 90
    assert len(waited) >= 3


def test_training_is_ended_after_enough_steps_and_first_ones_are_not_counted():
    stamps, seconds, done = Stamps(small=True), iter([2.0, 3.0, *(3.0 + 0.004 * i for i in range(1, 100))]), False
    while not done:
        done = stamps(SimpleNamespace(seconds=next(seconds)))
    assert stamps.figures() == pytest.approx({"first_ms": 2000.0, "ms": 4.0, "spread": 0.0}, abs=1e-9)
    assert len(stamps.steps) == 2 + 13  # the first of more than 50 ms together


def test_a_process_that_dies_and_one_that_fails_are_sentences_and_the_next_works():
    with Workplace() as workplace:
        with pytest.raises(EntryError, match="the process ended with code 3"):
            workplace.ask(os._exit, {"status": 3}, limit=100)
        with pytest.raises(EntryError, match="^JSONDecodeError: Expecting value"):
            workplace.ask(json.loads, {"s": "nonsense"}, limit=100)
        assert workplace.ask(json.loads, {"s": "{}"}, limit=100) == {}
