"""The table of the page on performance is the one of its file, which asv's results make."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "asv_benchmarks"))

import performance

ROOT = Path(performance.__file__).parents[1]


def test_the_page_shows_what_its_file_holds():
    document = json.loads((ROOT / "docs" / "performance.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert performance.table(document) in page
    assert document["processor"] in page


def test_the_table_is_made_of_results_of_asv():
    params = [["'gpr'", "'sgpr'"], ["'numpy'"], ["128", "512"]]
    values = [0.012, float("nan"), None, 0.34567]
    results = {name: [values, params] for name in performance.KINDS}
    found = performance.kept({"results": results, "commit_hash": "0123456789"}, {"cpu": "abacus"})
    assert found["processor"] == "abacus"
    assert [tuple(row.values()) for row in found["milliseconds"]] == [
        ("gpr", "numpy", 128, 12.0, 12.0, "01234567"),
        ("sgpr", "numpy", 512, 345.67, 345.67, "01234567"),
    ]
    assert performance.table(found).splitlines()[2:] == [
        "| `gpr` | numpy | 12 | 12 |  |  |",
        "| `sgpr` | numpy |  |  | 346 | 346 |",
    ]


def test_results_of_some_benchmarks_replace_theirs_alone():
    old, new = (
        {"processor": "abacus", "milliseconds": [{"method": m, "backend": "numpy", "num_inducing": 128, "step": x}]}
        for m, x in (("gpr", 1.0), ("sgpr", 2.0))
    )
    both = performance.merged(old, new)
    assert [row["step"] for row in both["milliseconds"]] == [1.0, 2.0]
    again = {"processor": "abacus", "milliseconds": [{**old["milliseconds"][0], "step": 3.0}]}
    assert [row["step"] for row in performance.merged(both, again)["milliseconds"]] == [3.0, 2.0]
    with pytest.raises(ValueError, match="results of abacus, the new results are of soroban"):
        performance.merged(old, {**new, "processor": "soroban"})
