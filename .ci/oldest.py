"""Print constraints for pip with the oldest versions that pyproject.toml allows."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PINNED = {"sklearn", "cli"}  # the lower bounds of these extras are tested, and those of the core


def oldest() -> list[str]:
    """Return lines such as ``numpy==2.1``, one for each lower bound."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    stated = [*project["dependencies"], *(line for extra in sorted(PINNED) for line in extras[extra])]
    return sorted({re.sub(r"(\[[^]]*])?>=", "==", line) for line in stated})


sys.stdout.write("\n".join(oldest()) + "\n")
