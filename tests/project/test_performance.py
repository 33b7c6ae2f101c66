"""The table of the page on performance is the one of its file, which asv's results make."""

import json
import sys
from pathlib import Path

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
    assert found["commit"] == "01234567"
    assert [tuple(row.values()) for row in found["milliseconds"]] == [
        ("gpr", "numpy", 128, 12.0, 12.0),
        ("sgpr", "numpy", 512, 345.67, 345.67),
    ]
    assert performance.table(found).splitlines()[2:] == [
        "| `gpr` | numpy | 12 | 12 |  |  |",
        "| `sgpr` | numpy |  |  | 346 | 346 |",
    ]
