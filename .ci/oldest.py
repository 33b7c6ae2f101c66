"""Write the oldest supported versions, as pyproject.toml states them, as constraints for pip."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PINNED = {"sklearn", "cli"}  # the extras whose lower bounds are tested, beside what the core needs


def oldest() -> list[str]:
    """Lines such as ``numpy==2.1``, one for each stated lower bound."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    stated = [*project["dependencies"], *(line for extra in sorted(PINNED) for line in extras[extra])]
    return sorted({re.sub(r"(\[[^]]*])?>=", "==", line) for line in stated})


sys.stdout.write("\n".join(oldest()) + "\n")
