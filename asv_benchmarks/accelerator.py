"""The accelerator report: what this library does on one device, the most telling first.

``python asv_benchmarks/accelerator.py --out FOLDER`` measures, entry by entry, until all is done or `--seconds` are
spent; what FOLDER holds is not measured again, so the same command goes on where the last one stopped.
``--page PAGE`` writes a page from FOLDER instead; ``--rehearse`` does all of it in small on the CPU, from wheels that
lie in a folder of their own. See docs/accelerator.md.
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
"""Seconds below which no further entry is begun."""
START = 60.0
"""Seconds that libraries have to say what devices they see."""


def main() -> int:
    """The command; the exit code, which is 0 also where the report says that something failed."""
    a = arguments()
    if a.rehearse:
        return rehearsed(a)
    if a.page:
        a.page.write_text(page(a.out), encoding="utf-8")
        return 0
    with Workplace() as workplace:
        waiting = Report(a, workplace).worked()
    print(f"left: {waiting}; the same command goes on." if waiting else "done.")
    return 0


def libraries_of(device: str) -> list[str]:
    """The array libraries that may have arrays there."""
    return ["numpy", "torch", "jax"] if device == "cpu" else ["torch", "cupy", "jax"]


class Report:
    """One call of the command: what is measured where, and until when.

    Parameters
    ----------
    a
        The arguments.
    workplace
        Where the work is done.
    """

    def __init__(self, a: argparse.Namespace, workplace: Workplace) -> None:
        self.a, self.workplace = a, workplace
        self.until = time.monotonic() + a.seconds
        try:
            facts = workplace.ask(device_facts, {"device": a.device}, limit=max(a.seconds, START))
        except (EntryError, TimeoutError) as error:
            msg = f"no device: {error or 'the libraries took too long to start'}"
            raise SystemExit(msg) from error
        facts["small"] = facts["device"] == "cpu" if a.small is None else a.small
        print(", ".join(f"{name} {value}" for name, value in facts.items()), flush=True)
        libraries = tuple(a.libraries or libraries_of(facts["device"]))
        self.plan = Plan(facts["small"], facts["device"], libraries, tuple(a.methods), tuple(a.sizes))
        self.results = {name: Results(a.out / f"{name}.json", facts) for name in a.parts}
        self.absent: dict[str, str] = {}

    def left(self) -> float:
        """Seconds that this call still has."""
        return self.until - time.monotonic()

    def worked(self) -> str:
        """Measure what lacks while there is time, and print a table for each stage; what is left, by parts."""
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
        """Those of a stage's entries that are to be measured in this call."""
        return [entry for entry in entries if self.results[stage.part].lacks(entry, again=self.a.retry)]

    def estimate(self, stage: Stage, entries: list[Settings]) -> str:
        """How long entries take, in words."""
        means = self.results[stage.part].means()
        total = expected(PARTS[stage.part], entries, small=self.plan.small, means=means)
        guessed = any(entry["library"] not in means for entry in entries)
        return f"about {total / 60:.1f} min{' (a guess)' if guessed else ''}"

    def measured(self, stage: Stage, entries: list[Settings]) -> int:
        """Measure a stage's entries while there is time, and print its table; the number of entries that are left."""
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
        """The figures of an entry, or its error; None where only the time of this call was too short for it."""
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
            return {"error": f"not done within {own:g} s"} if enough else None
        except EntryError as failure:
            return {"error": str(failure)}
        if "unfinished" in figures and not enough:
            figures[CUT] = "by the end of the call"
        return figures | {"seconds": round(time.monotonic() - began, 1)}

    def _open(self, library: str, seconds: float) -> None:
        """EntryError, the second time without a try, if a library is not there."""
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
    """What the command was given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where a JSON for each part lies")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--device", help="such as cuda:0 or cpu; by default the first accelerator, else the CPU")
    parser.add_argument("--libraries", nargs="+", metavar="LIBRARY", help="torch cupy jax; on a CPU numpy torch jax")
    parser.add_argument("--methods", nargs="+", default=[], metavar="METHOD", help="of training steps, such as rsvgp")
    parser.add_argument("--sizes", nargs="+", type=int, default=[], metavar="M", help="where an entry has a size M")
    small = "sizes that a CPU does in about a minute; the default there"
    parser.add_argument("--small", action=argparse.BooleanOptionalAction, help=small)
    parser.add_argument("--seconds", type=float, default=540.0, help="stop then, cleanly (default: 540); 0: the plan")
    parser.add_argument("--entry-seconds", type=float, metavar="S", help="the most for one entry (default: its part's)")
    parser.add_argument("--retry", action="store_true", help="measure again what failed")
    parser.add_argument("--page", type=Path, metavar="PAGE", help="write this page from FOLDER, and measure nothing")
    rehearse = "build wheels, install them in an empty folder, and do every part from there in small on the CPU"
    parser.add_argument("--rehearse", action="store_true", help=rehearse)
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="wheels that a rehearsal need not build or fetch")
    a = parser.parse_args()
    if a.out is None and not a.rehearse:
        parser.error("the following arguments are required: --out")
    return a


if __name__ == "__main__":
    sys.exit(main())
