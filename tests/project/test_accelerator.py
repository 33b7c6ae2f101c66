"""The accelerator report: small on the CPU, resumed, its page; the plan for a GPU, what it says of failures; wheels."""

import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from agp.backend import get_backend

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "asv_benchmarks" / "accelerator.py"
sys.path.append(str(SCRIPT.parent))

from accelerator_parts import PARTS, card, methods, rehearsal, steps, suite  # noqa: E402
from accelerator_parts.order import CALLS, expected, stages  # noqa: E402
from accelerator_parts.page import GPU, collected, introduction, page, restore, table  # noqa: E402
from accelerator_parts.part import Plan  # noqa: E402
from accelerator_parts.places import timed  # noqa: E402
from accelerator_parts.results import CUT, Results  # noqa: E402
from accelerator_parts.worker import EntryError, Workplace  # noqa: E402

pytestmark = pytest.mark.slow

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


@pytest.mark.long
@pytest.mark.parametrize("part", [part for part in PARTS if part not in ("tests", "profile")])
def test_every_part_has_figures_and_a_sentence_where_a_library_is_missing(folder, part):
    found = held(folder, part)
    there = {name: figures for name, figures in found.items() if name.startswith("numpy")}
    assert there
    if part not in ("card", "steps"):  # where products are those that a library is known to have
        assert len(there) == len(found) - len(there)
    assert not [name for name, figures in there.items() if "error" in figures]
    missing = {figures.get("error") for name, figures in found.items() if name.startswith(NOWHERE)}
    (sentence,) = missing
    assert f"unknown backend '{NOWHERE}'" in sentence


@pytest.mark.long
def test_the_tests_run(folder):
    found = held(folder, "tests")
    assert found["numpy triangles"]["passed"] > 30
    assert found["numpy triangles"]["failed"] == found["numpy triangles"]["skipped"] == 0


@pytest.mark.long
def test_no_failing_factorisation_is_missed(folder):
    cases = [figures for name, figures in held(folder, "card").items() if name.startswith("numpy failing")]
    assert all(figures["missed"] == figures["false alarms"] == 0 < figures["cases"] for figures in cases)
    assert len(cases) == 8


@pytest.mark.long
def test_a_profile_counts_operators():
    pytest.importorskip("torch")
    settings = {"library": "torch", "M": 32, "method": "wsvgp", "gradient": "closed-form", "dtype": "float64"}
    with Workplace() as workplace:  # the profiler writes to the standard output of its process
        work = {"device": "cpu", "small": True, "seconds": 1.0} | settings
        figures = workplace.ask(PARTS["profile"].measured, work, limit=100)
    assert figures["operators"] > 100
    assert figures["launches"] == 0


@pytest.mark.long
def test_what_is_there_is_not_measured_again(folder, tmp_path):
    text = json.loads((folder / "steps.json").read_text())
    kept, left_out = text["entries"][0], text["entries"][1]
    kept["figures"]["ms"] = "as it was"
    text["entries"] = [kept, *text["entries"][2:]]
    (tmp_path / "steps.json").write_text(json.dumps(text))
    options = ("--parts", "steps", "--libraries", "numpy", NOWHERE)
    printed = run(tmp_path, *options)
    assert len(re.findall(r" - [0-9.]+ s\n", printed)) == 1
    name = " ".join(map(str, left_out["settings"].values()))
    assert held(tmp_path, "steps")[name]["ms"] > 0
    first = " ".join(map(str, kept["settings"].values()))
    assert held(tmp_path, "steps")[first]["ms"] == "as it was"
    assert "as it was" in printed.split(PARTS["steps"].title)[1]
    with pytest.raises(ValueError, match="has results of another run.*choose another folder"):
        run(tmp_path, *options, "--no-small")


def test_a_call_without_time_says_what_is_left(tmp_path):
    printed = run(tmp_path, "--parts", "operations", "--libraries", "numpy", "--seconds", "5")
    assert printed.endswith("left: operations (2 entries); run the same command again to continue.\n")
    assert not (tmp_path / "operations.json").exists()


@pytest.mark.long
def test_an_entry_that_takes_too_long_is_said_and_tried_again_when_asked(tmp_path):
    options = ("--parts", "operations", "--libraries", "numpy")
    run(tmp_path, *options, "--entry-seconds", "0.01")
    assert [figures["error"] for figures in held(tmp_path, "operations").values()] == ["not finished within 0.01 s"] * 2
    assert "0.01 s" in run(tmp_path, *options)
    printed = run(tmp_path, *options, "--retry")
    assert "0.01 s" not in printed
    assert not [figures for figures in held(tmp_path, "operations").values() if "error" in figures]


@pytest.mark.long
def test_a_device_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="no installed library has a device 'cuda:77'") as error:
        run(tmp_path, device="cuda:77")
    assert "Traceback" not in str(error.value)


# -- the page ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_page_has_tables_and_the_sentences_of_what_failed(folder, tmp_path):
    run(folder, "--page", tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "## cpu in small sizes: a rehearsal\n" in text
    for name, part in PARTS.items():
        assert (f"### {part.title}\n" in text) == (folder / f"{name}.json").exists()
    assert "| 32 | numpy | wsvgp | closed-form |  | False |" in text
    assert f"unknown backend '{NOWHERE}'" in text


def test_the_page_of_the_guide_is_made_by_the_script():
    found = json.loads((ROOT / "docs" / "accelerator.json").read_text(encoding="utf-8"))
    assert (ROOT / "docs" / "accelerator.md").read_text(encoding="utf-8") == page(found)


def test_the_page_shows_remarks_and_failures(tmp_path):
    (tmp_path / "remarks.md").write_text("The fan was loud.\n")
    settings = {"library": "torch", "dtype": "float64", "method": "gpr"}
    figures = {"bound": 1e-15, "gradient": 2e-15, "mean": 3e-15, "variance": 4e-15, "too far": 0, "seconds": 1.0}
    entries = [
        {"settings": settings, "figures": figures},
        {"settings": settings | {"method": "sgpr"}, "figures": {"error": "OutOfMemoryError: too much"}},
    ]
    facts = {"device": "cuda:0", "card": "a card", "small": False}
    (tmp_path / "methods.json").write_text(json.dumps({"facts": facts, "entries": entries}))
    again = tmp_path / "again"
    restore(collected(tmp_path), again)
    assert collected(again) == collected(tmp_path)
    text = page(collected(again))
    assert "## a card\n\nThe fan was loud.\n" in text
    assert "| gpr | 1e-15 | 2e-15 | 4e-15 |" in text
    assert "- OutOfMemoryError: too much (torch float64 sgpr)" in text


def test_the_page_has_the_commands_that_are_rehearsed():
    lines = introduction().splitlines()
    for command in rehearsal.making("wheels"):
        assert {*command.splitlines()} <= {*lines}
    (exported,) = (line for line in lines if line.startswith("export"))
    assert "PYTHONPATH=$PWD/site XLA_PYTHON_CLIENT_PREALLOCATE=false" in exported


def test_files_that_are_no_results_are_refused_and_a_page_is_kept(tmp_path):
    kept = tmp_path / "page.md"
    kept.write_text("as it was")
    with pytest.raises(ValueError, match="has no results, so .*page.md stays as it is"):
        run(tmp_path / "empty", "--page", kept)
    assert kept.read_text() == "as it was"
    for text, said in (("no JSON", "cannot be read"), ("[]", "is no JSON object"), ('{"steps": 3}', "has no parts")):
        (tmp_path / "wrong.json").write_text(text)
        with pytest.raises(ValueError, match=f"{said}.*name a JSON file with the figures of a page") as error:
            run(tmp_path / "out", "--resume", tmp_path / "wrong.json", "--seconds", "0")
        assert "Traceback" not in str(error.value)


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
        assert {entry["M"] for entry in own} == {256, 1024, 2048, 4096, 8192}
        assert {entry["method"] for entry in own} >= set(steps.METHODS)
        assert {entry["dtype"] for entry in own} == {"float64", "float32"}
    assert {entry["gradient"] for entry in entries if entry["library"] == "cupy"} == {"closed-form"}


def test_the_most_telling_comes_first():
    ordered = stages(GPU, list(PARTS))
    assert [stage.call for stage, _ in ordered] == sorted(stage.call for stage, _ in ordered)
    first = {stage.part: entries for stage, entries in ordered if stage.call == 1}
    assert list(first) == ["card", "methods", "tests", "steps"]
    second = [(stage.part, {entry["library"] for entry in entries}) for stage, entries in ordered if stage.call == 2]
    assert ("tests", {"jax"}) in second[:6]
    assert {entry["library"] for entry in first["methods"]} == {*GPU.libraries}
    assert {entry["library"] for entry in first["tests"]} == {"torch", "cupy"}
    for library in ("torch", "cupy"):
        own = [entry for entry in first["steps"] if entry["library"] == library]
        assert {"wsvgp", "rsvgp", "lsvgp"} <= {entry["method"] for entry in own}
        assert {(entry["M"], entry["dtype"]) for entry in own} == {
            (M, dtype) for M in (256, 1024, 4096) for dtype in ("float64", "float32")
        }
    assert steps.PEER in {entry["method"] for entry in first["steps"]}
    precisions = next(entries for stage, entries in ordered if stage.call == 2)
    assert {(entry["dtype"], entry["inverse"]) for entry in precisions if entry["inverse"]} == {*steps.MIXED}
    # the questions of the first call have the time of a call, and so have the first ones of the second
    limits = {call: [stage.seconds for stage, _ in ordered if stage.call == call] for call in CALLS}
    assert sum(limits[1]) <= 345
    assert sum(limits[2][:6]) <= 300


def test_every_entry_is_in_one_stage():
    ordered = stages(GPU, list(PARTS))
    planned = [(stage.part, json.dumps(entry)) for stage, entries in ordered for entry in entries]
    everything = [(name, json.dumps(entry)) for name, part in PARTS.items() for entry in part.entries(GPU)]
    assert sorted(planned) == sorted(everything)


@pytest.mark.long
def test_a_call_measures_its_own_entries_and_with_retry_what_others_left(tmp_path):
    options = ("--parts", "methods", "operations", "--libraries", "numpy", "--seconds", "120")
    printed = run(tmp_path, *options, "--call", "2")
    assert printed.endswith("done.\n")
    assert "methods" not in {path.stem for path in tmp_path.glob("*.json")}
    run(tmp_path, *options, "--call", "2", "--retry")
    assert {entry["too far"] for entry in held(tmp_path, "methods").values()} == {0}


def test_methods_and_sizes_narrow_the_plan():
    narrowed = Plan(small=False, device="cuda:0", libraries=("torch",), methods=("rsvgp",), sizes=(1024,))
    entries = [(stage.part, entry) for stage, found in stages(narrowed, list(PARTS)) for entry in found]
    assert {entry["method"] for part, entry in entries if part in ("steps", "profile")} == {"rsvgp"}
    assert {entry["M"] for _, entry in entries if "M" in entry} == {1024}
    assert {part for part, _ in entries} == {*PARTS}


def test_a_time_is_that_of_the_entries_that_were_measured_or_else_guessed():
    entries = [{"library": "torch"}, {"library": "torch"}, {"library": "jax"}]
    part = PARTS["steps"]
    guess = expected(part, entries, small=False)
    assert guess == part.guess * (2 + part.jax)
    assert expected(part, entries, small=False, means={"torch": 7.0}) == 14.0 + part.guess * part.jax


@pytest.mark.long
def test_tests_are_chosen_by_their_parameters(tmp_path):
    program = """
        import pytest
        @pytest.mark.parametrize("kind", ["a", "b"])
        @pytest.mark.parametrize("place", ["numpy", "torch", "cupy", "torch-cuda", "jax-cuda"])
        def test_torch(place, kind): pass
        @pytest.mark.parametrize("place", ["cupy"])
        def test_jax_cuda(place): pass
        def test_cupy(): pass
    """
    (tmp_path / "test_cupy_and_torch.py").write_text(textwrap.dedent(program))
    for library, device, number in (
        ("cupy", "cuda:0", 3),
        ("torch", "cuda:0", 2),
        ("jax", "cuda:0", 2),
        ("numpy", "cpu", 2),
    ):
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "--collect-only",
            "-k",
            suite.chosen(library, device),
            tmp_path,
        ]
        printed = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=tmp_path).stdout
        assert f"{number}/12 tests collected" in printed


BARE = {
    "array_api_strict",
    "dask",
    "distributed",
    "sklearn",
    "narwhals",
    "pandas",
    "pyarrow",
    "h5py",
    "zarr",
    "matplotlib",
}
BARE |= {"rich", "tqdm", "latex2mathml", "torch", "jax", "cupy", "xdist"}
"""What a machine may lack on which the tests of the report are collected."""

COLLECT = """
import importlib.machinery, os, sys
usual = importlib.machinery.PathFinder.find_spec
def find_spec(cls, name, *where):
    return None if name.partition(".")[0] in {bare!r} else usual(name, *where)
importlib.machinery.PathFinder.find_spec = classmethod(find_spec)
import pytest
code = pytest.main(["-q", "--collect-only", "-p", "no:cacheprovider", *{paths!r}])
assert not {bare!r} & {{name.partition(".")[0] for name in sys.modules}}
assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
sys.exit(code)
"""


@pytest.mark.long
def test_the_groups_are_collected_where_nothing_optional_is_installed():
    program = COLLECT.format(bare=BARE, paths=[str(ROOT / "tests" / name) for name in suite.FOLDERS])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("XLA_")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # plug-ins of libraries that are not there either
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250)
    wrong = [line for line in done.stdout.splitlines() if line.startswith(("ERROR", "E  "))]
    assert done.returncode == 0, wrong or done.stderr


@pytest.mark.long
@pytest.mark.parametrize("processes", [1, 2])
def test_tests_that_take_too_long_say_what_they_did_until_then(processes, tmp_path, monkeypatch):
    program = """
        import time, pytest
        @pytest.mark.parametrize("n", ["numpy-1", "numpy-2", "numpy-3", "numpy-4"])
        def test(n):
            assert n != "numpy-3", "three | is wrong"
            if n == "numpy-4": pytest.skip("not four")
            time.sleep(999.0 if n == "numpy-2" else 0.0)
    """
    if processes > 1:
        pytest.importorskip("xdist")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_long.py").write_text(textwrap.dedent(program))
    monkeypatch.setattr(suite, "ROOT", tmp_path)
    monkeypatch.setattr(suite, "PROCESSES", processes)
    monkeypatch.setitem(suite.PATHS, "long", ["test_long.py"])
    settings = {"library": "numpy", "tests": "long", "device": "cpu", "small": True}
    monkeypatch.setattr(suite, "SEARCHED", SCRIPT.parent)
    figures = suite.measured(**settings, seconds=50.0)
    assert figures["passed"] == 1
    assert figures["unfinished"] == "stopped after 47 s"
    if processes > 1:  # tests in the other process go on
        assert (figures["failed"], figures["skipped"]) == (1, 1)
        assert figures["first failures"] == "test[numpy-3] (AssertionError: three / is wrong)"
        assert "three | is wrong" in figures["failures"]["tests/test_long.py::test[numpy-3]"]


def test_what_the_end_of_a_call_cut_short_is_kept_until_it_is_measured_whole(tmp_path):
    results = Results(tmp_path / "tests.json", {"device": "cpu"})
    figures = {"passed": 3, "unfinished": "stopped after 15 s"}
    for number, more in enumerate(({}, {CUT: "by the end of the call"}, {"passed": 4})):
        results.add({"tests": str(number)}, (figures if number < 2 else {}) | more)
    held = Results(tmp_path / "tests.json", {"device": "cpu"})
    assert [held.lacks({"tests": str(number)}, again=False) for number in range(4)] == [False, True, False, True]
    assert [held.lacks({"tests": str(number)}, again=True) for number in range(4)] == [True, True, False, True]


def test_a_peer_that_is_not_installed_is_said(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    work = {"M": 8, "method": steps.PEER, "gradient": "autodiff", "dtype": "float64", "inverse": "", "graphs": False}
    pytest.importorskip("torch")
    figures = steps.measured(library="torch", device="cpu", small=True, seconds=1.0, **work)
    assert figures == {"absent": "gpytorch is not installed"}
    assert table([{"settings": work, "figures": figures}]).startswith("- gpytorch is not installed (8 gpytorch")


# -- the rehearsal ----------------------------------------------------------------------------------------------------


def test_wheels_that_are_given_are_neither_built_nor_fetched(tmp_path, monkeypatch):
    monkeypatch.setattr(rehearsal, "_pip", lambda words: pytest.fail(f"asked for {words}"))
    given = tmp_path / "given"
    given.mkdir()
    for name in (rehearsal.PROJECT, *rehearsal.CARRIED):
        (given / f"{name.replace('-', '_')}-1.0-py3-none-any.whl").write_text(name)
    (given / "numpy-1.0-py3-none-any.whl").write_text("not asked for")
    found = rehearsal.packed(tmp_path / "wheels", given)
    assert [path.read_text() for path in found] == sorted(
        (rehearsal.PROJECT, *rehearsal.CARRIED), key=lambda name: name.replace("-", "_")
    )


def test_without_a_network_it_is_said_what_is_missing_and_how_to_make_it(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(rehearsal, "_pip", asked.append)
    monkeypatch.setattr(rehearsal, "_is_installed", lambda name: name != "safetensors")
    with pytest.raises(SystemExit) as error:
        rehearsal.packed(tmp_path / "wheels", None)
    said = str(error.value)
    assert said.startswith("no wheels of array-gp, safetensors, and pip cannot get them")
    assert all(command in said for command in rehearsal.making("WHEELS"))
    assert [words[2] for words in asked] == ["wheel", "download"]
    assert asked[1][-len(rehearsal.CARRIED) :] == list(rehearsal.CARRIED)


def test_what_is_installed_needs_no_wheel(tmp_path, monkeypatch, capsys):
    def built(words):
        if "wheel" in words:
            (tmp_path / "wheels" / "array_gp-1.0-py3-none-any.whl").touch()

    monkeypatch.setattr(rehearsal, "_pip", built)
    monkeypatch.setattr(rehearsal, "_is_installed", lambda name: True)
    assert [path.name for path in rehearsal.packed(tmp_path / "wheels", None)] == ["array_gp-1.0-py3-none-any.whl"]
    assert "no wheels of array-api-compat, " in capsys.readouterr().out


def test_the_package_must_come_from_the_wheels(tmp_path, monkeypatch):
    monkeypatch.setattr(rehearsal, "_pip", lambda words: True)  # installs nothing
    monkeypatch.setitem(rehearsal.ENVIRONMENT, "PYTHONPATH", f"{ROOT}{os.pathsep}{{site}}")
    with pytest.raises(SystemExit, match="agp is not imported from the wheels"):
        rehearsal.installed(tmp_path / "site", [])


def test_failures_of_entries_fail_a_rehearsal(tmp_path):
    figures = [
        {"ms": 1.0, "failed": 0, "missed": 0},
        {"absent": "gpytorch is not installed"},
        {"error": "OutOfMemoryError"},
        {"passed": 3, "failed": 2},
        {"missed": 1, "too far": 0},
        {"passed": 1, "unfinished": "stopped after 15 s"},
    ]
    entries = [{"settings": {"n": n}, "figures": each} for n, each in enumerate(figures)]
    (tmp_path / "part.json").write_text(json.dumps({"facts": {}, "entries": entries}))
    assert rehearsal.troubles(tmp_path / "part.json") == [
        "2: error OutOfMemoryError",
        "3: failed 2",
        "4: missed 1",
        "5: unfinished stopped after 15 s",
    ]
    assert rehearsal.troubles(tmp_path / "none.json") == []


def test_the_sets_of_tests_exist():
    for paths in suite.PATHS.values():
        assert paths
        assert all((ROOT / "tests" / path).exists() for path in paths)


def test_outcomes_are_counted():
    failure = {"name": "c", "outcome": "failed", "message": "AssertionError: 1 | 2\nmore", "text": "all of it"}
    others = [
        {"name": name, "outcome": outcome} for name, outcome in (("a", "passed"), ("b", "skipped"), ("c", "passed"))
    ]
    figures = suite.counts([*others, failure])
    assert figures == {
        "passed": 1,
        "skipped": 1,
        "failed": 1,
        "first failures": "c (AssertionError: 1 / 2)",
        "failures": {"c": "all of it"},
    }


def test_a_difference_is_in_units_of_the_largest_entry_and_never_hidden():
    host = np.asarray([1.0, -4.0])
    assert methods._difference(host + 0.1, host) == pytest.approx(0.025)
    assert methods._difference(host * 1e-9, host * 0.0, floor=1e-3) == pytest.approx(4e-6)
    for wrong in ([np.nan, -4.0], [1.0], [np.inf, -4.0]):
        assert methods._difference(np.asarray(wrong), host) == float("inf")


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


def test_time_per_step_is_that_of_further_steps():
    taken = []

    def train(number):
        taken.append(number)
        time.sleep(0.1 + 0.002 * number)
        return {"residual": 1e-5}

    figures = steps._per_step(train, small=True)
    assert 1.8 < figures["ms"] < 3.0
    assert figures["residual"] == 1e-5
    assert {*taken} == {steps.FIRST, steps.FIRST + steps.MORE}


@pytest.mark.long
def test_a_process_that_dies_and_one_that_fails_are_sentences_and_the_next_works():
    with Workplace() as workplace:
        with pytest.raises(EntryError, match="the process ended with code 3"):
            workplace.ask(os._exit, {"status": 3}, limit=100)
        with pytest.raises(EntryError, match="^JSONDecodeError: Expecting value"):
            workplace.ask(json.loads, {"s": "nonsense"}, limit=100)
        assert workplace.ask(json.loads, {"s": "{}"}, limit=100) == {}
