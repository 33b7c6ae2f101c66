"""Rehearsal of the report: install wheels in an empty folder, and run both calls from there on the CPU.

It runs the commands of docs/accelerator.md.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from accelerator_parts.order import CALLS
from accelerator_parts.results import COUNTED, FAILED

ROOT = Path(__file__).parents[2]
PROJECT = "array-gp"
CARRIED = ("array-api-compat", "array-api-strict", "hypothesis", "safetensors", "sortedcontainers", "threadpoolctl")
"""Packages that agp and its tests require besides NumPy, SciPy and pytest."""
BUILD = "-m pip wheel --no-deps -w {wheels} {source}"
FETCH = "-m pip download --no-deps -d {wheels} --only-binary=:all: --python-version {python} --platform {platform}"
INSTALL = "-m pip install --no-index --no-deps --target {site}"
"""Arguments of Python that build agp's wheel, download wheels of its dependencies and install them."""
ENVIRONMENT = {
    "PYTHONPATH": "{site}",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "JAX_COMPILATION_CACHE_DIR": "{site}/compiled",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
}
LIBRARIES = ("numpy", "torch", "jax")
LONGEST = 300
"""Time limit in seconds for a pip command."""
ASK = f"""
import agp, importlib.metadata as metadata
plug_ins = metadata.entry_points(group="agp.backends")
print(agp.__file__, metadata.distribution("{PROJECT}").locate_file(""), *(plug_in.name for plug_in in plug_ins))
"""


def rehearsed(a: argparse.Namespace) -> int:
    """Run both calls in small sizes on the CPU from wheels in an empty folder; return 0 if nothing failed.

    Parameters
    ----------
    a
        The arguments of the command. If `out` is None, the results go to a temporary folder. The default `libraries`
        are the installed ones of NumPy, torch and JAX. Packages with wheels in `wheels` are not built or downloaded.

    Raises
    ------
    SystemExit
        If wheels are missing and cannot be built or downloaded. The message shows the commands for another machine.
    """
    began = time.monotonic()
    libraries = a.libraries or [name for name in LIBRARIES if importlib.util.find_spec(name)]
    narrowed = ["--methods", *a.methods] * bool(a.methods) + ["--sizes", *map(str, a.sizes)] * bool(a.sizes)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = installed(folder / "site", packed(folder / "wheels", a.wheels))
        out, failed = a.out or folder / "out", []
        for call in CALLS:
            last = time.monotonic()
            options = ["--libraries", *libraries, *narrowed, "--seconds", f"{a.seconds:.0f}", "--call", str(call)]
            code = _worked([*options, "--out", str(out), "--parts", *a.parts], environment)
            failed += [str(call)] * bool(code)
            print(f"call {call}: rc {code}, {time.monotonic() - last:.0f} s\n", flush=True)
        found = [trouble for part in a.parts for trouble in troubles(out / f"{part}.json")]
    print(*found, sep="\n")
    bad = bool(failed or found)
    print("failed" if bad else f"both calls rc 0, in {time.monotonic() - began:.0f} s")
    return int(bad)


# -- wheels -----------------------------------------------------------------------------------------------------------


def packed(folder: Path, given: Path | None) -> list[Path]:
    """Collect wheels in a folder: copy the given ones, and build or download the others.

    If that fails for a package that is installed, the installed package is used.
    """
    folder.mkdir(parents=True)
    for name in (PROJECT, *CARRIED):
        for wheel in _wheels_of(name, given)[:1]:
            shutil.copy(wheel, folder)
    if not _wheels_of(PROJECT, folder):
        isolated = [] if importlib.util.find_spec("hatchling") is None else ["--no-build-isolation"]
        _pip([*_words(BUILD, wheels=folder, source=ROOT), *isolated])
    wanted = [name for name in CARRIED if not _wheels_of(name, folder)]
    if wanted:
        own = {"python": "{}.{}".format(*sys.version_info), "platform": f"manylinux2014_{platform.machine()}"}
        _pip([*_words(FETCH, wheels=folder, **own), *wanted])
    missing = [name for name in (PROJECT, *CARRIED) if not _wheels_of(name, folder)]
    lost = [name for name in missing if name == PROJECT or not _is_installed(name)]
    if lost:
        commands = "\n".join(making("WHEELS"))
        msg = f"no wheels of {', '.join(lost)}, and pip cannot get them; on a machine with a network, run\n{commands}\n"
        raise SystemExit(msg + "and then pass --rehearse --wheels WHEELS")
    if missing:
        print(f"no wheels of {', '.join(missing)}; the installed packages are used")
    return sorted(folder.glob("*.whl"))


def making(wheels: str) -> tuple[str, str]:
    """The commands that create a folder of wheels for a machine with Python 3.12."""
    fetch = FETCH.format(wheels=wheels, python="3.12", platform="manylinux2014_x86_64")
    return f"python3 {BUILD.format(wheels=wheels, source='.')}", f"python3 {fetch} \\\n  {' '.join(CARRIED)}"


def _words(command: str, **values: object) -> list[str]:
    return [word.format(**values) for word in command.split()]


def _wheels_of(name: str, folder: Path | None) -> list[Path]:
    return sorted(folder.glob(f"{name.replace('-', '_')}-*.whl")) if folder else []


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _pip(words: list[str]) -> bool:
    """Run a pip command; return whether it succeeded, and print the last line of its error if not."""
    command = [sys.executable, *words, "--quiet", "--retries", "1", "--disable-pip-version-check"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        print(f"pip {words[2]}: not finished within {LONGEST} s")
        return False
    if done.returncode:
        print(f"pip {words[2]}: {done.stderr.strip().rpartition(chr(10))[2]}")
    return not done.returncode


# -- the empty folder -------------------------------------------------------------------------------------------------


def installed(site: Path, wheels: list[Path]) -> dict[str, str]:
    """Install wheels in a folder; return environment variables with which programs import agp only from there."""
    if not _pip([*_words(INSTALL, site=site), *map(str, wheels)]):
        raise SystemExit(f"pip cannot install {', '.join(wheel.name for wheel in wheels)}")
    environment = os.environ | {name: value.format(site=site) for name, value in ENVIRONMENT.items()}
    done = subprocess.run([sys.executable, "-P", "-c", ASK], env=environment, capture_output=True, text=True)
    where = done.stdout.split()
    if done.returncode or not all(path.startswith(str(site)) for path in where[:2]) or "numpy" not in where:
        raise SystemExit(f"agp is not imported from the wheels: {done.stdout or done.stderr}")
    print(f"python {platform.python_version()}, {', '.join(wheel.name for wheel in wheels)}: back ends {where[2:]}")
    return environment


def _worked(options: list[str], environment: dict[str, str]) -> int:
    """Run a call; return the command's exit code, or 1 if an entry is left."""
    script = [sys.executable, str(ROOT / "asv_benchmarks" / "accelerator.py"), "--device", "cpu", "--small"]
    done = subprocess.run([*script, *options], env=environment, stdout=subprocess.PIPE, text=True)
    print(done.stdout, flush=True)
    return done.returncode or int(not done.stdout.endswith("done.\n"))


def troubles(path: Path) -> list[str]:
    """List the failures of a part; a library that is not installed does not count."""
    found = []
    for entry in json.loads(path.read_text(encoding="utf-8"))["entries"] if path.exists() else ():
        figures = entry["figures"]
        wrong = [f"{name} {figures[name]}" for name in (FAILED - {"absent"}) & {*figures}]
        wrong += [f"{name} {figures[name]}" for name in COUNTED if figures.get(name)]
        found += [f"{' '.join(map(str, entry['settings'].values()))}: {words}" for words in wrong]
    return found
