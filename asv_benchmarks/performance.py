"""Print the table of docs/performance.md from asv's results for the benchmarks in `benchmarks/table.py`.

``python performance.py FILE --results RESULTS --machine MACHINE`` adds the results in two files under ``.asv/results``
to FILE. Results in FILE from the same processor are kept if there are no new ones. ``python performance.py FILE``
prints the table.
"""

import argparse
import itertools
import json
import math
from pathlib import Path

KINDS = {"table.Table.time_step": "step", "table.Table.time_predict": "prediction"}
WAY = ("method", "backend", "num_inducing")


def kept(results, machine):
    """Extract the processor, and medians in milliseconds with their commit, from a results file of asv."""
    rows = {}
    for name, kind in KINDS.items():
        values, params = results["results"][name][:2]
        for way, seconds in zip(itertools.product(*params), values, strict=True):
            if seconds is not None and math.isfinite(seconds):
                method, backend, size = (part.strip("'") for part in way)
                rows.setdefault((method, backend, int(size)), {})[kind] = round(1e3 * seconds, 2)
    commit = {"commit": results["commit_hash"][:8]}
    found = [dict(zip(WAY, way, strict=True)) | row | commit for way, row in rows.items()]
    return {"processor": machine["cpu"], "milliseconds": found}


def merged(old, new):
    """Merge old and new rows, in the order of the old ones; new rows replace old ones."""
    if old["processor"] != new["processor"]:
        raise ValueError(
            f"the file has results of {old['processor']}, the new results are of {new['processor']}; name another file."
        )
    rows = {tuple(row[key] for key in WAY): row for row in old["milliseconds"] + new["milliseconds"]}
    return {**new, "milliseconds": list(rows.values())}


def table(document):
    """Format a Markdown table with a row for each method and library, and columns for steps and predictions by size."""
    cells = {tuple(row[key] for key in WAY): row for row in document["milliseconds"]}
    sizes = sorted({size for *_, size in cells})
    heads = [f"{kind}, M = {size}" for size in sizes for kind in KINDS.values()]
    lines = ["| method | library | " + " | ".join(heads) + " |", "|" + "---|" * (2 + len(heads))]
    for method, backend in dict.fromkeys(way[:2] for way in cells):
        shown = [cells.get((method, backend, size), {}).get(kind) for size in sizes for kind in KINDS.values()]
        texts = ["" if x is None else f"{x:.0f}" if x >= 99.5 else f"{x:.2g}" for x in shown]
        lines.append(f"| `{method}` | {backend} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def main():
    """Add results to the file, if they are given, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="JSON file of the results in the table")
    parser.add_argument("--results", type=Path, help="file of one commit under .asv/results/MACHINE")
    parser.add_argument("--machine", type=Path, help=".asv/results/MACHINE/machine.json")
    a = parser.parse_args()
    if (a.results is None) != (a.machine is None):
        parser.error("--results and --machine must be given together")
    if a.results:
        found = kept(json.loads(a.results.read_text("utf-8")), json.loads(a.machine.read_text("utf-8")))
        if a.file.exists():
            found = merged(json.loads(a.file.read_text("utf-8")), found)
        a.file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(table(json.loads(a.file.read_text("utf-8"))))


if __name__ == "__main__":
    main()
