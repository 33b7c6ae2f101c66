"""Results files in JSON, and the machine and the commit that they name."""

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write a results file atomically, so that it is never incomplete."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def read_result(path: Path) -> dict[str, Any] | None:
    """Read a results file; None if there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def read_given(path: Path, what: str) -> dict[str, Any]:
    """Read a JSON object from a file that a user names; raise SystemExit if there is none. `what` it should hold."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SystemExit(f"{path} cannot be read ({error}); name a JSON file with {what}.") from error
    if not isinstance(found, dict):
        raise SystemExit(f"{path} is no JSON object; name a JSON file with {what}.")
    return found


def machine() -> dict[str, Any]:
    """Name of the processor and its number of threads."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {"processor": names[0] if names else platform.processor() or platform.machine(), "threads": os.cpu_count()}


def commit(checkout: Path) -> str:
    """The commit of a checkout, with a suffix if files have changed."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude", "*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "no commit"
