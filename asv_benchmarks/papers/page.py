"""Write docs/papers.json from the results, and from it the tables of docs/papers.md.

    python asv_benchmarks/papers/page.py --out OUT

Results in OUT are added to docs/papers.json; they replace results of the same cell and seed. Without ``--out``, the
tables are written from the existing JSON file.
"""

import argparse
import inspect
import re
import sys
import textwrap
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import cagp
import rsvgp
import solve_gp
import tsvgp
from cells import ROOT, Figure, Paper, Table
from figures import (
    DIVERGED,
    FEW_RUNS,
    MIN_RUNS,
    OUTSIDE,
    WITHIN_1,
    WITHIN_2,
    Comparison,
    Results,
    collect,
    comparisons,
    mean_of,
    merge,
    runs_of,
)
from results import read_result, write_result
from rows import InputError

PAPERS = (solve_gp.PAPER, tsvgp.PAPER, cagp.PAPER, rsvgp.PAPER)
SCORES = {"log_density": "log density", "nlpd": "NLPD", "rmse": "RMSE"}
PLACE = re.compile(r"(<!-- papers -->\n).*?(<!-- /papers -->)", re.DOTALL)
NOTHING = "Nothing is measured yet."
UNKNOWN = "The reason is unknown."


def replace_tables(text: str, inside: str) -> str:
    """Return the page with the text `inside` between its two comments."""
    if not PLACE.search(text):
        raise InputError(
            "docs/papers.md has no comments <!-- papers --> and <!-- /papers -->; add them around the tables."
        )
    return PLACE.sub(lambda match: f"{match[1]}\n{inside}\n\n{match[2]}", text)


def tables(runs: Results, papers: Sequence[Paper]) -> str:
    """The summary, a section for each paper, and the section on figures outside."""
    if not runs:
        return NOTHING
    found = {paper.name: comparisons(runs, paper) for paper in papers}
    parts = [summary(runs, papers, found)]
    parts += [section(paper, found[paper.name], runs_of(runs, paper)) for paper in papers]
    outside = [line for paper in papers for line in reasons(paper, found[paper.name])]
    if outside:
        parts += ["## Figures outside", "These figures differ by more than two combined standard errors:"]
        parts.append("\n".join(outside))
    return "\n\n".join(parts)


def summary(runs: Results, papers: Sequence[Paper], found: dict[str, list[Comparison]]) -> str:
    """The number of figures by mark and the CPU hours of each script, with the machine and the versions."""
    rows = [["script", "figures", "with runs", "within 2", "outside", "few runs", "diverged", "runs", "CPU hours"]]
    total, measured, near = 0, 0, 0
    for paper in papers:
        marks = [one.mark for one in found[paper.name] if one.cell.full]
        figures = sum(len(cell.theirs) for cell in paper.cells if cell.full)
        within, own = marks.count(WITHIN_1) + marks.count(WITHIN_2), runs_of(runs, paper)
        others = [marks.count(mark) for mark in (OUTSIDE, FEW_RUNS, DIVERGED)]
        rows.append([f"`{paper.name}.py`", *map(str, [figures, len(marks), within, *others, len(own)]), hours(own)])
        total, measured, near = total + figures, measured + within + marks.count(OUTSIDE), near + within
    count = f"The scripts have {total} figures at the papers' sizes. {measured} of them are measured in at least "
    count += f"{MIN_RUNS} runs, and {near} of these are within two combined standard errors. All runs took "
    count += f"{hours(runs)} hours of CPU time."
    return f"{wrap(count)}\n\n{markdown(rows)}\n\n{wrap(machine(runs))}"


def hours(runs: Results) -> str:
    """The CPU hours of runs."""
    return f"{sum(run['cpu_seconds'] for run in runs) / 3600.0:,.1f}"


def machine(runs: Results) -> str:
    """Sentences on the processors and the versions."""
    processors = dict.fromkeys(run["processor"] for run in runs)
    versions: dict[str, set[str]] = {}
    for run in runs:
        for library, version in run["versions"].items():
            versions.setdefault(library, set()).add(version)
    named = ", ".join(f"{library} {' and '.join(sorted(found))}" for library, found in versions.items())
    return f"The processor type is {' or '.join(processors)}. Versions: {named}."


def section(paper: Paper, found: list[Comparison], runs: Results) -> str:
    """The section of a paper: its source, its protocol, the differences and the tables."""
    protocol = inspect.cleandoc(paper.protocol or "").split("\n\n", 2)[-1]
    parts = [f"## {paper.title}", wrap(paper.source), protocol, "Differences from the paper:"]
    parts += ["\n".join(wrap(difference, "- ") for difference in paper.differences)]
    if found:
        parts.append(comparison_table(found, runs))
    for table in paper.tables:
        parts += score_table(table, paper, runs)
    return "\n\n".join(parts if runs else [*parts, NOTHING])


def comparison_table(found: list[Comparison], runs: Results) -> str:
    """A Markdown table with a row for each figure."""
    rows = [["cell", "score", "paper", "agp", "runs", "distance", "mark", "CPU s"]]
    for one in found:
        distance = "" if one.distance is None else f"{one.distance:.2f}"
        ours = "" if one.ours is None else format_figure(one.ours)
        figures = [SCORES[one.score], format_figure(one.theirs), ours, count_runs(one.runs, one.diverged)]
        seconds = cpu_seconds([run for run in runs if run["cell"] == one.cell.name])
        rows.append([one.cell.name, *figures, distance, one.mark, seconds])
    return markdown(rows)


def score_table(table: Table, paper: Paper, runs: Results) -> list[str]:
    """The heading and the Markdown table of scores without figures in the paper; nothing if no run has them."""
    rows = [["cell", *table.columns.values(), "runs"]]
    if table.cpu:
        rows[0].append("CPU s")
    for cell in paper.cells:
        measured = [run for run in runs if run["cell"] == cell.name and fnmatchcase(cell.name, table.cells)]
        own = [run["scores"] for run in measured if run["scores"]]
        if own and table.columns.keys() <= own[0].keys():
            scores = [format_figure(mean_of([run[score] for run in own])) for score in table.columns]
            rows.append([cell.name, *scores, count_runs(len(own), len(measured) - len(own))])
            if table.cpu:
                rows[-1].append(cpu_seconds(measured))
    return [f"### {table.title}", markdown(rows)] if len(rows) > 1 else []


def cpu_seconds(runs: Results) -> str:
    """The mean CPU seconds of runs."""
    return f"{mean_of([run['cpu_seconds'] for run in runs]).value:,.0f}"


def count_runs(runs: int, diverged: int) -> str:
    """The number of runs with scores, and of those that diverged if there are any."""
    return f"{runs}" + (f", {diverged} diverged" if diverged else "")


def reasons(paper: Paper, found: list[Comparison]) -> list[str]:
    """An item for each reason, with the figures outside to which it applies."""
    groups: dict[str, list[str]] = {}
    for one in found:
        if one.mark == OUTSIDE:
            known = [reason for pattern, reason in paper.reasons.items() if fnmatchcase(one.cell.name, pattern)]
            groups.setdefault((known or [UNKNOWN])[0], []).append(f"{one.cell.name} ({SCORES[one.score]})")
    return [wrap(f"{paper.title}, {', '.join(figures)}: {reason}", "- ") for reason, figures in groups.items()]


def format_figure(figure: Figure) -> str:
    """Format a figure with its standard error in brackets, if it has one that is not zero."""
    digits = 0 if figure.value == round(figure.value) else 3 if abs(figure.value) < 10.0 else 1
    return f"{figure.value:,.{digits}f}" + (f" ({figure.error:,.{digits + 1}f})" if figure.error else "")


def wrap(text: str, item: str = "") -> str:
    """Wrap a text at the width of the pages, as a paragraph or as the item of a list."""
    whole = textwrap.TextWrapper(120, initial_indent=item, subsequent_indent=" " * len(item))
    whole.break_long_words = whole.break_on_hyphens = False
    return whole.fill(text)


def markdown(rows: list[list[str]]) -> str:
    """A Markdown table; the first row is its head."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:]))


def write(root: Path, out: Path | None, papers: Sequence[Paper] = PAPERS) -> str:
    """Write the JSON file, if results are given, and the tables; return a sentence on what was done."""
    document, page = root / "docs" / "papers.json", root / "docs" / "papers.md"
    old: dict[str, Any] | None = read_result(document)
    if old is None and out is None:
        raise InputError(f"{document} does not exist; pass --out OUT with the results of the scripts.")
    known = old["runs"] if old else []
    runs = merge(known, collect(out, papers) if out else [], papers)
    text = replace_tables(page.read_text("utf-8"), tables(runs, papers))
    write_result(document, {"runs": runs})
    page.write_text(text, encoding="utf-8")
    return f"{document} has {len(runs)} runs; {sum(run not in known for run in runs)} of them are new."


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="OUT", help="results to add to docs/papers.json first")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder of docs (default: this checkout)")
    a = parser.parse_args(arguments)
    try:
        print(write(a.root, a.out))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
