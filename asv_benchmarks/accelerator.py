"""Measure agp on one device, the most informative entries first.

``python asv_benchmarks/accelerator.py --out FOLDER --call 1`` measures the entries of the first of two calls until all
are done or `--seconds` have passed. Results are stored in FOLDER after each entry. Run the same command again to
continue. ``--page PAGE`` writes a page from the results in FOLDER, without measuring. ``--rehearse`` runs both calls in
small sizes on the CPU, from wheels in an empty folder. See docs/accelerator.md.
"""

import argparse
import itertools
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from accelerator_parts import PARTS
from accelerator_parts.order import CALLS, Stage, expected, stages
from accelerator_parts.page import FIGURES, collected, page, restore, table
from accelerator_parts.part import Figures, Part, Plan, Settings
from accelerator_parts.places import device_facts, has_device
from accelerator_parts.rehearsal import rehearsed
from accelerator_parts.results import CUT, Results
from accelerator_parts.worker import EntryError, Workplace
from results import read_given, write_result

LEAST = 5.0
"""Remaining seconds below which no further entry is started."""
START = 60.0
"""Time limit in seconds for listing the devices."""


def main() -> int:
    """Run the command; return the exit code, which is 0 even if entries failed."""
    a = arguments()
    if a.rehearse:
        return rehearsed(a)
    if a.resume:
        restore(read_given(a.resume, FIGURES), a.out)
    if a.page:
        found = collected(a.out)
        if not found.keys() & PARTS:
            raise SystemExit(f"{a.out} has no results, so {a.page} stays as it is; name the folder of an earlier call.")
        write_result(a.page.with_suffix(".json"), found)
        a.page.write_text(page(found), encoding="utf-8")
        return 0
    waiting = Report(a).worked()
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
    """

    def __init__(self, a: argparse.Namespace) -> None:
        self.a = a
        self.until = time.monotonic() + a.seconds
        try:
            with Workplace() as workplace:
                facts = workplace.ask(device_facts, {"device": a.device}, limit=max(a.seconds, START))
        except (EntryError, TimeoutError) as error:
            raise SystemExit(f"no device found: {error or 'the libraries took too long to start'}") from error
        facts["small"] = facts["device"] == "cpu" if a.small is None else a.small
        print(", ".join(f"{name} {value}" for name, value in facts.items()), flush=True)
        libraries = tuple(a.libraries or libraries_of(facts["device"]))
        self.plan = Plan(facts["small"], facts["device"], libraries, tuple(a.methods), tuple(a.sizes))
        self.results = {name: Results(a.out / f"{name}.json", facts) for name in a.parts}
        self.absent: dict[str, str] = {}
        self.lock = threading.Lock()

    def left(self) -> float:
        """Remaining seconds of this call."""
        return self.until - time.monotonic()

    def worked(self) -> str:
        """Measure missing entries until the time is up, and then print a table for each stage.

        Returns a description of the entries that are left, by part.
        """
        ordered = self.ordered()
        for stage, entries in ordered:
            if todo := self.lacking(stage, entries):
                print(
                    f"- {stage.question} ({stage.part}): {len(todo)} entries, {self.estimate(stage, todo)}", flush=True
                )
        left = dict.fromkeys(self.a.parts, 0)
        for stage, entries in ordered:
            left[stage.part] += self.measured(stage, entries)
        for stage, entries in ordered:
            self.show(stage, entries)
        return ", ".join(f"{name} ({count} entries)" for name, count in left.items() if count)

    def ordered(self) -> list[tuple[Stage, list[Settings]]]:
        """The stages of this call; with `--retry`, what earlier calls have left comes first."""
        found = []
        for stage, entries in stages(self.plan, self.a.parts):
            if stage.call < (self.a.call or 0) and self.a.retry:
                found.append((stage, self.lacking(stage, entries)))
            elif self.a.call in (None, stage.call):
                found.append((stage, entries))
        return [(stage, entries) for stage, entries in found if entries]

    def lacking(self, stage: Stage, entries: list[Settings]) -> list[Settings]:
        """List the entries of a stage that this call must measure."""
        return [entry for entry in entries if self.results[stage.part].lacks(entry, again=self.a.retry)]

    def estimate(self, stage: Stage, entries: list[Settings]) -> str:
        """Describe how long the entries will take."""
        means = self.results[stage.part].means()
        part = PARTS[stage.part]
        total = expected(part, entries, small=self.plan.small, means=means) / part.processes
        guessed = any(entry["library"] not in means for entry in entries)
        return f"about {total:.0f} s{' (rough estimate)' if guessed else ''}"

    def measured(self, stage: Stage, entries: list[Settings]) -> int:
        """Measure the entries of a stage until its time or that of the call is up; return how many are left."""
        todo = self.lacking(stage, entries)
        until = min(self.until, time.monotonic() + stage.seconds)
        queues = self.queues(PARTS[stage.part], todo)
        with ThreadPoolExecutor(max(1, len(queues))) as pool:
            done = sum(pool.map(lambda queue: self.work(stage.part, queue, until), queues))
        return len(todo) - done

    def queues(self, part: Part, entries: list[Settings]) -> list[Iterator[Settings]]:
        """One queue of entries for each process; processes with the same library share their queue."""
        processes = min(part.processes, os.cpu_count() or 1)
        if processes == 1 or not entries:
            return [iter(entries)] if entries else []
        seconds: dict[str, float] = {}
        for entry in entries:
            library = entry["library"]
            seconds[library] = seconds.get(library, 0.0) + part.expected(library, small=self.plan.small)
        found: list[Iterator[Settings]] = []
        for library, own in seconds.items():
            queue = Queue([entry for entry in entries if entry["library"] == library])
            found += [queue] * max(1, round(processes * own / sum(seconds.values())))
        return found

    def work(self, name: str, queue: Iterator[Settings], until: float) -> int:
        """Measure the entries of a queue of a part in one process; return how many were measured."""
        done = 0
        with Workplace() as workplace:
            for entry in itertools.takewhile(lambda _: until - time.monotonic() > LEAST, queue):
                figures = self.outcome(workplace, PARTS[name], entry, until)
                if figures is None:
                    break
                with self.lock:
                    self.results[name].add(entry, figures)
                    done += CUT not in figures
                    print(*entry.values(), "-", _in_a_word(figures), flush=True)
        return done

    def show(self, stage: Stage, entries: list[Settings]) -> None:
        """Print the table of a stage."""
        shown = [entry for entry in self.results[stage.part].entries if entry["settings"] in entries]
        if shown:
            print(f"\n{PARTS[stage.part].title}: {stage.question}\n\n{table(shown)}", flush=True)

    def outcome(self, workplace: Workplace, part: Part, entry: Settings, until: float) -> Figures | None:
        """Measure an entry; return its figures or its error, or None if only the time left was too short for it."""
        own = min(self.a.entry_seconds or part.limit(entry["library"]), self.a.seconds - LEAST)
        allowed = min(own, until - time.monotonic())
        enough = allowed == own
        began = time.monotonic()
        try:
            self._open(workplace, entry["library"], allowed)
            allowed -= time.monotonic() - began
            settings = {"device": self.plan.device, "small": self.plan.small, "seconds": allowed} | entry
            figures = workplace.ask(part.measured, settings, limit=allowed)
        except TimeoutError:
            return {"error": f"not finished within {own:g} s"} if enough else None
        except EntryError as failure:
            return {"error": str(failure)}
        if "unfinished" in figures and not enough:
            figures[CUT] = "by the end of the call"
        return figures | {"seconds": round(time.monotonic() - began, 1)}

    def _open(self, workplace: Workplace, library: str, seconds: float) -> None:
        """Raise an EntryError if a library is unavailable on the device; each library is tried once."""
        if library not in self.absent:
            device = "cpu" if library == "numpy" else self.plan.device
            try:
                workplace.ask(has_device, {"library": library, "device": device}, limit=seconds)
                self.absent[library] = ""
            except EntryError as failure:
                self.absent[library] = str(failure)
        if self.absent[library]:
            raise EntryError(self.absent[library])


class Queue:
    """An iterator that several threads may share."""

    def __init__(self, entries: list[Settings]) -> None:
        self.entries, self.lock = iter(entries), threading.Lock()

    def __iter__(self) -> "Queue":
        return self

    def __next__(self) -> Settings:
        with self.lock:
            return next(self.entries)


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
    resume = "continue from the figures of a page, a JSON file"
    parser.add_argument("--resume", type=Path, metavar="FILE", help=resume)
    small = "use small sizes, which take about a minute on a CPU (default on a CPU)"
    parser.add_argument("--small", action=argparse.BooleanOptionalAction, help=small)
    parser.add_argument("--call", type=int, choices=CALLS, help="measure the entries of this call (default: of both)")
    parser.add_argument("--seconds", type=float, default=300.0, help="time limit (default: 300); 0 prints the plan")
    parser.add_argument("--entry-seconds", type=float, metavar="S", help="time limit for one entry (default: by part)")
    parser.add_argument(
        "--retry", action="store_true", help="also repeat failed entries, and measure what earlier calls have left"
    )
    parser.add_argument(
        "--page", type=Path, metavar="PAGE", help="write this page, and its figures, from FOLDER instead of measuring"
    )
    rehearse = "build wheels, install them in an empty folder, and run both calls from there in small sizes on the CPU"
    parser.add_argument("--rehearse", action="store_true", help=rehearse)
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="existing wheels for the rehearsal")
    a = parser.parse_args()
    if a.out is None and not a.rehearse:
        parser.error("the following arguments are required: --out")
    return a


if __name__ == "__main__":
    sys.exit(main())
