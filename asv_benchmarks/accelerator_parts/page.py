"""Tables of the results, and the page with all tables."""

from pathlib import Path
from typing import Any

from results import read_result, write_result

from accelerator_parts import PARTS
from accelerator_parts.order import stages
from accelerator_parts.part import Plan
from accelerator_parts.rehearsal import ENVIRONMENT, INSTALL, making

GPU = Plan(small=False, device="cuda:0", libraries=("torch", "cupy", "jax"))
"""The machine that the plan on the page assumes."""

INTRODUCTION = """# Accelerators

This page explains how to test and time agp on a GPU or another accelerator, and shows the results. The script
`asv_benchmarks/accelerator.py` takes ten minutes on the GPU, in two calls. It requires Linux, Python 3.12, NumPy,
SciPy, pytest, and at least one of CuPy, JAX, and torch with CUDA. With scikit-learn, it also times the estimators, and
with GPyTorch, it compares training steps. No network access is required.

## Run the script

On a machine with network access, collect the wheels of this project and of its dependencies, and run a rehearsal:

```text
{making}
python3 asv_benchmarks/accelerator.py --rehearse --wheels wheels
```

The rehearsal installs the wheels in an empty folder and runs both calls at small sizes on the CPU, which takes a few
minutes. Run the rehearsal with Python 3.12 and the libraries that are installed on the machine with the GPU. Without
`--wheels`, the rehearsal builds the wheels for its own Python version, as `make rehearse` does. Then copy the checkout
with the wheels to the machine with the GPU, and run the following commands on that machine:

```text
python3 {install}
export {environment}
python3 asv_benchmarks/accelerator.py --out report --seconds 0                 # the card, and the plan
python3 asv_benchmarks/accelerator.py --out report --call 1                    # five minutes
python3 asv_benchmarks/accelerator.py --out report --call 2 --retry            # five minutes
python3 asv_benchmarks/accelerator.py --out report --page docs/accelerator.md  # this page, from what was measured
```

Each call stops after `--seconds` (300 by default), and each question has a time limit of its own. The script stores
each entry in the folder `report` as soon as the entry is complete. Run the same command again to continue. The plan is:

| call | question | part | entries | time limit [s] |
|---|---|---|---|---|
{plan}

The entries of a part that do not fit into its limit are left out. What does not measure times runs in several
processes. To continue on another machine of the same kind, add `--resume docs/accelerator.json` to the first command,
which copies the figures of this page to the folder. A file `remarks.md` in the folder is shown on the page.

## Parts and options

| part | what it measures |
|---|---|
{parts}

`--parts`, `--libraries`, `--methods` and `--sizes` select entries, for example
`--parts steps --libraries torch --methods rsvgp --sizes 1024 4096`. If an entry takes longer than `--entry-seconds`,
runs out of memory or uses a library that is not installed, the report lists the entry with the reason. `--retry`
measures these entries again, and what earlier calls have left. If a test run is stopped, the report contains the
results up to that point. `--device cuda:0` selects the device; the default is the first accelerator. With `--small`, or
without an accelerator, the script runs at small sizes on the CPU, as a rehearsal, not a measurement.
"""
REMARKS = "remarks.md"
"""File of remarks on the results, which stand before the tables."""
FIGURES = "the figures of a page, such as docs/accelerator.json"
LEFT_OUT = ("failures", "seconds", "spread", "first_ms", "first run ms")
"""Figures that are not stored with the page."""
WHEELS, SITE = "wheels", "site"
"""Names of folders in the commands."""


def collected(folder: Path) -> dict[str, Any]:
    """Collect the results in a folder, by part, with the remarks."""
    found: dict[str, Any] = {}
    if (folder / REMARKS).exists():
        found["remarks"] = (folder / REMARKS).read_text(encoding="utf-8")
    for name in PARTS:
        if results := read_result(folder / f"{name}.json"):
            for entry in results["entries"]:
                entry["figures"] = {key: x for key, x in entry["figures"].items() if key not in LEFT_OUT}
            found[name] = results
    return found


def restore(found: dict[str, Any], folder: Path) -> None:
    """Write `collected` results to a folder, except for parts that have results there; raise SystemExit if none are."""
    known = [found[name] for name in PARTS if name in found]
    if not known or not all(isinstance(part, dict) and {"facts", "entries"} <= part.keys() for part in known):
        raise SystemExit(f"the file to resume from has no parts of a report; name a JSON file with {FIGURES}.")
    folder.mkdir(parents=True, exist_ok=True)
    if "remarks" in found and not (folder / REMARKS).exists():
        (folder / REMARKS).write_text(found["remarks"], encoding="utf-8")
    for name in PARTS:
        if name in found and not (folder / f"{name}.json").exists():
            write_result(folder / f"{name}.json", found[name])


def page(found: dict[str, Any]) -> str:
    """Create the page from `collected` results, at least one part."""
    text, parts = introduction(), {name: found[name] for name in PARTS if name in found}
    facts = next(iter(parts.values()))["facts"]
    text += f"\n## {facts['card']}{' in small sizes: a rehearsal' if facts['small'] else ''}\n"
    text += f"\n{found['remarks'].strip()}\n" if "remarks" in found else ""
    for name, results in parts.items():
        part, entries = PARTS[name], results["entries"]
        failed = [entry for entry in entries if entry["figures"].keys() & {"error", "absent"}]
        shown = entries if part.arranged is None else [*part.arranged(entries), *failed]
        text += f"\n### {part.title}\n\n{part.note}\n\n{table(shown)}"
    return text


def introduction() -> str:
    """Create the part of the page before the results: commands, the plan for a GPU, and parts."""
    return INTRODUCTION.format(
        making="\n".join(making(WHEELS)),
        install=f"{INSTALL.format(site=SITE)} {WHEELS}/*.whl",
        environment=" ".join(f"{name}={value.format(site=f'$PWD/{SITE}')}" for name, value in ENVIRONMENT.items()),
        plan="\n".join(_planned()),
        parts="\n".join(f"| `{name}` | {part.title} |" for name, part in PARTS.items()),
    )


def _planned() -> list[str]:
    """Rows of the plan for a GPU."""
    return [
        f"| {stage.call} | {stage.question} | `{stage.part}` | {len(entries)} | {stage.seconds:g} |"
        for stage, entries in stages(GPU, list(PARTS))
    ]


def table(entries: list[dict[str, Any]]) -> str:
    """Format entries as Markdown tables, one for each set of columns, followed by a list of failures."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    failures: dict[str, list[str]] = {}
    for entry in entries:
        settings, figures = entry["settings"], entry["figures"]
        if sentence := figures.get("error") or figures.get("absent"):
            failures.setdefault(sentence, []).append(" ".join(map(str, settings.values())))
        else:
            shown = {name: x for name, x in figures.items() if not isinstance(x, dict)}
            groups.setdefault((*settings, str(settings.get("measured"))), []).append(settings | shown)
    tables = [_rows(rows) for rows in groups.values()]
    if failures:
        tables.append("".join(f"- {text} ({_some(where)})\n" for text, where in failures.items()))
    return "\n".join(tables) or "nothing measured yet\n"


def _rows(rows: list[dict[str, Any]]) -> str:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [columns, ["---"] * len(columns), *([_written(row.get(name, "")) for name in columns] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _written(x: Any) -> str:
    return f"{x:.3g}" if isinstance(x, float) else str(x)


def _some(where: list[str]) -> str:
    return where[0] if len(where) == 1 else f"{where[0]} and {len(where) - 1} more"
