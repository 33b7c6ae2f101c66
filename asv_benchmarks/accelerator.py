"""Measure agp on one device, the most informative entries first.

``python asv_benchmarks/accelerator.py --out FOLDER`` measures one entry after another until all are done or `--seconds`
have passed. Results are stored in FOLDER. Run the same command again to continue. ``--page PAGE`` writes a page from
the results in FOLDER, without measuring. ``--rehearse`` runs every part in small sizes on the CPU, from wheels in an
empty folder. See docs/accelerator.md.
"""

import argparse
import sys
import time
from pathlib import Path

from accelerator_parts import PARTS
from accelerator_parts.order import Stage, expected, stages
from accelerator_parts.page import page, table
from accelerator_parts.part import Figures, Part, Plan, Settings
from accelerator_parts.places import device_facts, has_device
from accelerator_parts.rehearsal import rehearsed
from accelerator_parts.results import CUT, Results
from accelerator_parts.worker import EntryError, Workplace

LEAST = 5.0
"""Remaining seconds below which no further entry is started."""
START = 60.0
"""Time limit in seconds for listing the devices."""


def main() -> int:
    """Run the command; return the exit code, which is 0 even if entries failed."""
    a = arguments()
    if a.rehearse:
        return rehearsed(a)
    if a.page:
        a.page.write_text(page(a.out), encoding="utf-8")
        return 0
    with Workplace() as workplace:
        waiting = Report(a, workplace).worked()
    print(f"left: {waiting}; run the same command again to continue." if waiting else "done.")
    return 0


def libraries_of(device: str) -> list[str]:
    """The array libraries that support the device."""
    return ["numpy", "torch", "jax"] if device == "cpu" else ["torch", "cupy", "jax"]


class Report:
    """One call of the command, which measures entries until its time is up.

    Parameters
    ----------
    a
        The arguments of the command.
    workplace
        The processes that measure.
    """

    def __init__(self, a: argparse.Namespace, workplace: Workplace) -> None:
        self.a, self.workplace = a, workplace
        self.until = time.monotonic() + a.seconds
        try:
            facts = workplace.ask(device_facts, {"device": a.device}, limit=max(a.seconds, START))
        except (EntryError, TimeoutError) as error:
            raise SystemExit(f"no device found: {error or 'the libraries took too long to start'}") from error
        facts["small"] = facts["device"] == "cpu" if a.small is None else a.small
        print(", ".join(f"{name} {value}" for name, value in facts.items()), flush=True)
        libraries = tuple(a.libraries or libraries_of(facts["device"]))
        self.plan = Plan(facts["small"], facts["device"], libraries, tuple(a.methods), tuple(a.sizes))
        self.results = {name: Results(a.out / f"{name}.json", facts) for name in a.parts}
        self.absent: dict[str, str] = {}

    def left(self) -> float:
        """Remaining seconds of this call."""
        return self.until - time.monotonic()

    def worked(self) -> str:
        """Measure missing entries until the time is up, and print a table for each stage.

        Returns a description of the entries that are left, by part.
        """
        ordered = stages(self.plan, self.a.parts)
        for stage, entries in ordered:
            if todo := self.lacking(stage, entries):
                print(
                    f"- {stage.question} ({stage.part}): {len(todo)} entries, {self.estimate(stage, todo)}", flush=True
                )
        left = dict.fromkeys(self.a.parts, 0)
        for stage, entries in ordered:
            left[stage.part] += self.measured(stage, entries)
        return ", ".join(f"{name} ({count} entries)" for name, count in left.items() if count)

    def lacking(self, stage: Stage, entries: list[Settings]) -> list[Settings]:
        """List the entries of a stage that this call must measure."""
        return [entry for entry in entries if self.results[stage.part].lacks(entry, again=self.a.retry)]

    def estimate(self, stage: Stage, entries: list[Settings]) -> str:
        """Describe how long the entries will take."""
        means = self.results[stage.part].means()
        total = expected(PARTS[stage.part], entries, small=self.plan.small, means=means)
        guessed = any(entry["library"] not in means for entry in entries)
        return f"about {total / 60:.1f} min{' (rough estimate)' if guessed else ''}"

    def measured(self, stage: Stage, entries: list[Settings]) -> int:
        """Measure the entries of a stage until the time is up, and print its table; return how many are left."""
        part, results = PARTS[stage.part], self.results[stage.part]
        todo, done = self.lacking(stage, entries), 0
        for entry in todo:
            figures = self.outcome(part, entry) if self.left() > LEAST else None
            if figures is None:
                break
            results.add(entry, figures)
            done += CUT not in figures
            print(*entry.values(), "-", _in_a_word(figures), flush=True)
        shown = [
            entry
            for entry in results.entries
            if (stage.chosen(entry["settings"]) if stage.whole else entry["settings"] in entries)
        ]
        if shown:
            print(f"\n{part.title}: {stage.question}\n\n{table(shown)}", flush=True)
        return len(todo) - done

    def outcome(self, part: Part, entry: Settings) -> Figures | None:
        """Measure an entry; return its figures or its error, or None if only this call's time was too short for it."""
        own = min(self.a.entry_seconds or part.seconds, self.a.seconds - LEAST)
        allowed = min(own, self.left())
        enough = allowed == own
        began = time.monotonic()
        try:
            self._open(entry["library"], allowed)
            allowed -= time.monotonic() - began
            settings = {"device": self.plan.device, "small": self.plan.small, "seconds": allowed} | entry
            figures = self.workplace.ask(part.measured, settings, limit=allowed, alone=part.alone)
        except TimeoutError:
            return {"error": f"not finished within {own:g} s"} if enough else None
        except EntryError as failure:
            return {"error": str(failure)}
        if "unfinished" in figures and not enough:
            figures[CUT] = "by the end of the call"
        return figures | {"seconds": round(time.monotonic() - began, 1)}

    def _open(self, library: str, seconds: float) -> None:
        """Raise an EntryError if a library is unavailable on the device; each library is tried once."""
        if library not in self.absent:
            try:
                settings = {"library": library, "device": self.plan.device}
                self.workplace.ask(has_device, settings, limit=seconds)
                self.absent[library] = ""
            except EntryError as failure:
                self.absent[library] = str(failure)
        if self.absent[library]:
            raise EntryError(self.absent[library])


def _in_a_word(figures: Figures) -> str:
    return figures.get("error") or figures.get("absent") or f"{figures['seconds']} s"


def arguments() -> argparse.Namespace:
    """Parse the arguments of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="folder for the results, with a JSON file for each part"
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--device", help="such as cuda:0 or cpu (default: the first accelerator, or the CPU)")
    parser.add_argument(
        "--libraries", nargs="+", metavar="LIBRARY", help="(default: torch cupy jax, on a CPU numpy torch jax)"
    )
    parser.add_argument(
        "--methods", nargs="+", default=[], metavar="METHOD", help="methods of training steps, such as rsvgp"
    )
    parser.add_argument("--sizes", nargs="+", type=int, default=[], metavar="M", help="sizes M of entries with a size")
    small = "use small sizes, which take about a minute on a CPU (default on a CPU)"
    parser.add_argument("--small", action=argparse.BooleanOptionalAction, help=small)
    parser.add_argument("--seconds", type=float, default=540.0, help="time limit (default: 540); 0 prints the plan")
    parser.add_argument("--entry-seconds", type=float, metavar="S", help="time limit for one entry (default: by part)")
    parser.add_argument("--retry", action="store_true", help="repeat entries that failed")
    parser.add_argument("--page", type=Path, metavar="PAGE", help="write this page from FOLDER instead of measuring")
    rehearse = "build wheels, install them in an empty folder, and run every part from there in small sizes on the CPU"
    parser.add_argument("--rehearse", action="store_true", help=rehearse)
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="existing wheels for the rehearsal")
    a = parser.parse_args()
    if a.out is None and not a.rehearse:
        parser.error("the following arguments are required: --out")
    return a


if __name__ == "__main__":
    sys.exit(main())
