"""The accelerator report: what this library does on one device, in parts that can be left out and resumed.

``python asv_benchmarks/accelerator.py --out FOLDER`` measures, entry by entry, until all is done or `--seconds` are
spent; what FOLDER holds is not measured again, so the same command goes on where the last one stopped.
``--page PAGE`` writes a page from FOLDER instead. See docs/accelerator.md.
"""

import argparse
import time
from pathlib import Path

from accelerator_parts import PARTS
from accelerator_parts.page import page, table
from accelerator_parts.part import Figures, Part, Plan, Settings
from accelerator_parts.places import device_facts, has_device
from accelerator_parts.results import Results
from accelerator_parts.worker import EntryError, Workplace

LEAST = 5.0
"""Seconds below which no further entry is begun."""
START = 60.0
"""Seconds that libraries have to say what devices they see."""


def main() -> None:
    """The command."""
    a = arguments()
    if a.page:
        a.page.write_text(page(a.out), encoding="utf-8")
        return
    with Workplace() as workplace:
        report = Report(a, workplace)
        left = {name: report.worked(name) for name in a.parts}
    waiting = ", ".join(f"{name} ({count} entries)" for name, count in left.items() if count)
    print(f"left: {waiting}; the same command goes on." if waiting else "done.")


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
            self.facts = workplace.ask(device_facts, {"device": a.device}, limit=max(a.seconds, START))
        except (EntryError, TimeoutError) as error:
            msg = f"no device: {error or 'the libraries took too long to start'}"
            raise SystemExit(msg) from error
        device = self.facts["device"]
        self.facts["small"] = device == "cpu" if a.small is None else a.small
        self.plan = Plan(self.facts["small"], device, tuple(a.libraries or libraries_of(device)))
        self.absent: dict[str, str] = {}
        print(", ".join(f"{name} {value}" for name, value in self.facts.items()), flush=True)

    def left(self) -> float:
        """Seconds that this call still has."""
        return self.until - time.monotonic()

    def worked(self, name: str) -> int:
        """Measure what a part lacks while there is time, and print its table; the number of entries that are left."""
        part, results = PARTS[name], Results(self.a.out / f"{name}.json", self.facts)
        todo = [entry for entry in part.entries(self.plan) if results.lacks(entry, again=self.a.retry)]
        done = 0
        for entry in todo:
            figures = self.outcome(part, entry) if self.left() > LEAST else None
            if figures is None:
                break
            results.add(entry, figures)
            done += 1
            print(*entry.values(), "-", figures.get("error") or f"{figures['seconds']} s", flush=True)
        print(f"\n{part.title}\n\n{table(results.entries)}", flush=True)
        return len(todo) - done

    def outcome(self, part: Part, entry: Settings) -> Figures | None:
        """The figures of an entry, or its error; None where only the time of this call was too short for it."""
        own = min(self.a.entry_seconds or part.seconds, self.a.seconds - LEAST)
        allowed = min(own, self.left())
        enough = allowed == own
        began = time.monotonic()
        try:
            self._open(entry.get("library"), allowed)
            allowed -= time.monotonic() - began
            settings = {"device": self.plan.device, "small": self.plan.small, "seconds": allowed} | entry
            figures = self.workplace.ask(part.measured, settings, limit=allowed, alone=part.alone)
        except TimeoutError:
            return {"error": f"not done within {own:g} s"} if enough else None
        except EntryError as failure:
            return {"error": str(failure)}
        return figures | {"seconds": round(time.monotonic() - began, 1)}

    def _open(self, library: str | None, seconds: float) -> None:
        """EntryError, the second time without a try, if a library is not there."""
        if library is None:
            return
        if library not in self.absent:
            try:
                settings = {"library": library, "device": self.plan.device}
                self.workplace.ask(has_device, settings, limit=seconds)
                self.absent[library] = ""
            except EntryError as failure:
                self.absent[library] = str(failure)
        if self.absent[library]:
            raise EntryError(self.absent[library])


def arguments() -> argparse.Namespace:
    """What the command was given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where a JSON for each part lies")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--device", help="such as cuda:0 or cpu; by default the first accelerator, else the CPU")
    parser.add_argument("--libraries", nargs="+", metavar="LIBRARY", help="torch cupy jax; on a CPU numpy torch jax")
    small = "sizes that a CPU does in about a minute; the default there"
    parser.add_argument("--small", action=argparse.BooleanOptionalAction, help=small)
    parser.add_argument("--seconds", type=float, default=540.0, help="stop then, cleanly (default: 540)")
    parser.add_argument("--entry-seconds", type=float, metavar="S", help="the most for one entry (default: its part's)")
    parser.add_argument("--retry", action="store_true", help="measure again what failed")
    parser.add_argument("--page", type=Path, metavar="PAGE", help="write this page from FOLDER, and measure nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
