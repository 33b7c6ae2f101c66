"""Compute on which GPUs, and for which M, a training step of R-SVGP takes less time than one of W-SVGP.

    python asv_benchmarks/break_even.py measure --data DIR --tables kin40k elevators bike
    python asv_benchmarks/break_even.py count
    python asv_benchmarks/break_even.py compute [--times FILE]
    python asv_benchmarks/break_even.py page [--times FILE]

The command measure trains R-SVGP on a CPU and counts the steps of its inversion; count counts the operations of a
training step by kind. Both write to docs/break-even.json, and leave out what is there already. The command compute
prints step times and break-even from the counts and the rates of cards, and page writes docs/break-even.md. A file
--times has milliseconds that were measured on a card, {card: {precision: {M: {"gemm": ms, "potrf": ms, "trsm": ms}}}};
they replace the assumed rates. A file --steps-of has the training steps that asv_benchmarks/accelerator.py measured on
a card; the page compares them with the model. The command page keeps both in the JSON file.
"""

import argparse
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

from break_even_parts import page
from break_even_parts.cards import CARDS, read_times
from break_even_parts.model import SIZES, WAYS, Model
from options import ROOT
from results import commit, machine, read_given, read_result, write_result

DOCUMENT = Path("docs") / "break-even.json"
PAGE = DOCUMENT.with_suffix(".md")


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return the exit status."""
    a = parsed(arguments)
    document = read_result(a.root / DOCUMENT) or {}
    return {"measure": measure, "count": count, "compute": compute, "page": make_page}[a.command](a, document)


def measure(a: argparse.Namespace, document: dict[str, Any]) -> int:
    """Measure the training runs that have no results yet."""
    from break_even_parts import iterations

    found = document.setdefault("iterations", [])
    for cell in iterations.cells([*a.tables, iterations.SYNTHETIC], a.sizes, a.steps, a.large_steps):
        if any(asdict(cell).items() <= run.items() for run in found):
            continue
        found.append(iterations.measured(cell, a.data) | {"commit": commit(ROOT)})
        document["machine"] = machine()
        write_result(a.root / DOCUMENT, document)
        run = found[-1]
        print(*asdict(cell).values(), run["first"], run["middle"], run["last"], run["residual"], flush=True)
    return 0


def count(a: argparse.Namespace, document: dict[str, Any]) -> int:
    """Count the operations of all methods and sizes."""
    from break_even_parts.counts import all_counts

    document["counts"] = all_counts(SIZES)
    write_result(a.root / DOCUMENT, document)
    return 0


def compute(a: argparse.Namespace, document: dict[str, Any]) -> int:
    """Print step times and break-even for all cards and precisions."""
    model = Model(counts_of(document), read_times(a.times) or document.get("times", {}))
    typical = page.Typical(document.get("iterations", []))
    print("Milliseconds of a step of W-SVGP, L-SVGP and R-SVGP, with CUDA graphs:\n")
    print(page.step_table(model, typical, WAYS))
    for other, name in page.NAMES.items():
        for graphs in (True, False) if other != "rsvgp" else ():
            print(f"\nBreak-even with {name}, {'with' if graphs else 'without'} CUDA graphs:\n")
            print(page.break_even_table(model, other, typical, graphs=graphs, ways=WAYS))
    return 0


def make_page(a: argparse.Namespace, document: dict[str, Any]) -> int:
    """Write the page, after adding measured times to the JSON file, if they are given."""
    counts_of(document)
    if times := read_times(a.times):
        document["times"] = document.get("times", {}) | times
    if a.steps_of:
        document["measured steps"] = steps_of_card(read_given(a.steps_of, "the figures of docs/accelerator.md"))
    if times or a.steps_of:
        write_result(a.root / DOCUMENT, document)
    (a.root / PAGE).write_text(page.written(document), encoding="utf-8")
    return 0


def steps_of_card(results: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Milliseconds of steps with CUDA graphs, by the name of a known card; raise SystemExit if there are none."""
    part = results.get("steps", {"facts": {"card": ""}, "entries": []})
    card = next((name for name in CARDS if name in part["facts"]["card"]), None)
    found = [
        {name: entry["settings"][name] for name in ("method", "M", "dtype")}
        | {"ms": entry["figures"]["ms"], "inverse steps": entry["figures"].get("inverse_steps", 0.0)}
        for entry in part["entries"]
        if entry["settings"]["graphs"] and not entry["settings"]["inverse"] and "ms" in entry["figures"]
    ]
    if card is None or not found:
        raise SystemExit("--steps-of has no training steps with graphs on a known card.")
    return {card: found}


def counts_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The counts; raise SystemExit if there are none."""
    if "counts" not in document:
        raise SystemExit(f"{DOCUMENT} has no counts; run the command count first.")
    return document["counts"]


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the arguments of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("measure", help="train R-SVGP, and count the steps of its inversion")
    one.add_argument("--data", type=Path, metavar="DIR", help="folder of .npz files with X and y")
    one.add_argument("--tables", nargs="*", default=[], metavar="NAME", help="files of DIR, without .npz")
    one.add_argument("--sizes", nargs="+", type=int, default=[64, 128, 256, 512, 1024], metavar="M")
    one.add_argument("--steps", type=int, default=1000, help="training steps for M up to 512")
    one.add_argument("--large-steps", type=int, default=300, help="training steps for larger M")
    commands.add_parser("count", help="count the operations of a training step")
    for name, text in (("compute", "print step times and break-even"), ("page", "write the page")):
        one = commands.add_parser(name, help=text)
        one.add_argument("--times", type=Path, metavar="FILE", help="JSON file of milliseconds measured on cards")
    one.add_argument("--steps-of", type=Path, metavar="FILE", help="figures of docs/accelerator.md")
    for one in commands.choices.values():
        one.add_argument("--root", type=Path, default=ROOT, help="folder of docs (default: this checkout)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
