"""The JSON of a part: what was found so far, written anew after each entry."""

import json
import os
from pathlib import Path
from typing import Any

from accelerator_parts.part import Figures, Settings

CUT = "cut short"
"""The figure of an entry that the end of a call stopped: what it has is kept until the next call measures it whole."""
FAILED = {"error", "absent", "unfinished"}
"""The figures of entries that are measured again when asked."""


class Results:
    """The entries of one part on one device.

    Parameters
    ----------
    path
        The file; what it holds is taken over.
    facts
        The device, the card's name, and whether sizes are small: results of others do not go into the same file.
    """

    def __init__(self, path: Path, facts: dict[str, Any]) -> None:
        self.path, self.facts = path, facts
        held = read(path) if path.exists() else {"facts": facts, "entries": []}
        if held["facts"] != facts:
            there = ", ".join(f"{name} {value}" for name, value in held["facts"].items())
            msg = f"{path} holds results of another run ({there}); name another folder."
            raise SystemExit(msg)
        self.entries: list[dict[str, Any]] = held["entries"]

    def lacks(self, settings: Settings, *, again: bool) -> bool:
        """Whether an entry is to be measured: it is not there, was cut short, or failed and is tried again."""
        found = [entry["figures"] for entry in self.entries if entry["settings"] == settings]
        return not found or CUT in found[0] or (again and not FAILED.isdisjoint(found[0]))

    def means(self) -> dict[str, float]:
        """The mean time of an entry, by library, of those that have entries here."""
        times: dict[str, list[float]] = {}
        for entry in self.entries:
            if "seconds" in entry["figures"]:
                times.setdefault(entry["settings"]["library"], []).append(entry["figures"]["seconds"])
        return {library: sum(own) / len(own) for library, own in times.items()}

    def add(self, settings: Settings, figures: Figures) -> None:
        """Keep an entry, in the place of one with the same settings."""
        others = [entry for entry in self.entries if entry["settings"] != settings]
        self.entries = [*others, {"settings": settings, "figures": figures}]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({"facts": self.facts, "entries": self.entries}, indent=1), encoding="utf-8")
        os.replace(new, self.path)  # a run killed at any moment leaves a whole file


def read(path: Path) -> dict[str, Any]:
    """What such a file holds."""
    return json.loads(path.read_text(encoding="utf-8"))
