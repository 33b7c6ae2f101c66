"""The results file of a part, a JSON file that is rewritten after each entry."""

from pathlib import Path
from typing import Any

from results import read_result, write_result

from accelerator_parts.part import Figures, Settings

CUT = "cut short"
"""Name of the figure that marks an interrupted entry; the next call measures the entry again."""
FAILED = {"error", "absent", "unfinished"}
"""Names of figures that mark failed entries, which `--retry` measures again."""
COUNTED = ("failed", "missed", "false alarms", "too far")
"""Names of figures that mark failed entries unless they are 0."""


def has_failed(figures: Figures) -> bool:
    """Whether figures are those of a failed entry."""
    return not FAILED.isdisjoint(figures) or any(figures.get(name) for name in COUNTED)


class Results:
    """The results of one part on one device.

    Parameters
    ----------
    path
        The file. Existing results are loaded.
    facts
        The device, the name of the card, and whether sizes are small. Results with other facts must be in another file.
    """

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        self.path, self.facts = path, facts
        found = read_result(path) or {"facts": facts, "entries": []}
        if found["facts"] != facts:
            there = ", ".join(f"{name} {value}" for name, value in found["facts"].items())
            raise SystemExit(f"{path} has results of another run ({there}); choose another folder.")
        self.entries: list[dict[str, Any]] = found["entries"]

    def lacks(self, settings: Settings, *, again: bool) -> bool:
        """Whether an entry must be measured, because it is missing, was interrupted, or failed and `again` is True."""
        found = [entry["figures"] for entry in self.entries if entry["settings"] == settings]
        return not found or CUT in found[0] or (again and has_failed(found[0]))

    def means(self) -> dict[str, float]:
        """Mean time of an entry for each library that has entries."""
        times: dict[str, list[float]] = {}
        for entry in self.entries:
            if "seconds" in entry["figures"]:
                times.setdefault(entry["settings"]["library"], []).append(entry["figures"]["seconds"])
        return {library: sum(own) / len(own) for library, own in times.items()}

    def add(self, settings: Settings, figures: Figures) -> None:
        """Store the figures of an entry; they replace figures with the same settings."""
        others = [entry for entry in self.entries if entry["settings"] != settings]
        self.entries = [*others, {"settings": settings, "figures": figures}]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_result(self.path, {"facts": self.facts, "entries": self.entries})
