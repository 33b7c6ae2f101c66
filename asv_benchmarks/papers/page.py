"""Write docs/papers.json from the results, and from it the tables of docs/papers.md.

    python asv_benchmarks/papers/page.py --out OUT

Without ``--out``, the tables are written from the existing JSON file.
"""

import argparse
import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import cagp
import numpy as np
import rsvgp
import solve_gp
import tsvgp
from cells import Cell, Figure

ROOT = Path(__file__).parents[2]
PAPERS = {"solve_gp": solve_gp.cells(), "tsvgp": tsvgp.cells(), "cagp": cagp.cells(), "rsvgp": rsvgp.cells()}
NAMES = {"log_density": "log density", "nlpd": "NLPD", "rmse": "RMSE", "nlpd_of_mixture": "NLPD of the mixture"}
HEAD = ["cell", "score", "theirs", "ours", "runs", "distance", "CPU s"]


def collected(paths: list[Path]) -> dict[str, Any]:
    """Collect the scores of all runs by paper and cell; leave out rehearsals."""
    runs: dict[str, Any] = defaultdict(lambda: defaultdict(list))
    facts: list[dict[str, Any]] = []
    for path in sorted(paths):
        run = json.loads(path.read_text("utf-8"))
        if not run["small"]:
            runs[run["paper"]][run["cell"]].append({"seed": run["seed"], **run["scores"]})
            facts += [fact for fact in [{name: run[name] for name in ("versions", "processor")}] if fact not in facts]
    return {"facts": facts, "papers": runs}


def table(cells: list[Cell], runs: dict[str, list[dict[str, float]]]) -> str:
    """A Markdown table with a row for each score of each measured cell of a paper."""
    rows = [HEAD, ["---"] * len(HEAD)]
    for cell in cells:
        for score, theirs in cell.theirs.items() if cell.name in runs else ():
            values = np.asarray([run[score] for run in runs[cell.name]])
            seconds = np.mean([run["seconds"] for run in runs[cell.name]])
            size = "" if cell.full else " (fewer steps)"
            found = [cell.name + size, NAMES.get(score, score), shown(theirs.value, theirs.error)]
            rows.append(
                [*found, shown(*mean_and_error(values)), str(len(values)), mark(theirs, values), f"{seconds:,.0f}"]
            )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def mean_and_error(values: Any) -> tuple[float, float | None]:
    """The mean of the runs and its standard error."""
    error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else None
    return float(np.mean(values)), None if error is None else float(error)


def mark(theirs: Figure, values: Any) -> str:
    """The distance of ours from theirs in combined standard errors.

    If the paper has no standard error, that of ours is taken twice.
    """
    mean, error = mean_and_error(values)
    known = [x for x in (error, theirs.error) if x is not None]
    if not known:
        return "no standard error"
    both = (known[0] ** 2 + known[-1] ** 2) ** 0.5
    distance = abs(mean - theirs.value) / both
    return f"{distance:.1f}, " + ("within 1" if distance <= 1.0 else "within 2" if distance <= 2.0 else "outside")


def shown(value: float, error: float | None) -> str:
    """Format a figure with its standard error in brackets."""
    return f"{value:.3f}" + ("" if error is None else f" ({error:.3f})")


def written(text: str, name: str, inside: str) -> str:
    """Return the page with `inside` between the comments of a paper."""
    place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not place.search(text):
        msg = f"the page has no comments <!-- {name} --> and <!-- /{name} -->."
        raise SystemExit(msg)
    return place.sub(lambda match: f"{match[1]}\n{inside}\n\n{match[2]}", text)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="OUT", help="results to write to docs/papers.json first")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder of docs (default: this checkout)")
    a = parser.parse_args()
    document, page = a.root / "docs" / "papers.json", a.root / "docs" / "papers.md"
    if a.out:
        found = collected(list(a.out.glob("*.json")))
        document.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    found = json.loads(document.read_text("utf-8"))
    text = page.read_text("utf-8")
    for name, cells in PAPERS.items():
        text = written(text, name, table(cells, found["papers"].get(name, {})))
    page.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
