"""Tables of the results, and the page with all tables."""

from pathlib import Path
from typing import Any

from results import read_result

from accelerator_parts import PARTS
from accelerator_parts.order import expected, stages
from accelerator_parts.part import Plan
from accelerator_parts.rehearsal import ENVIRONMENT, INSTALL, making

GPU = Plan(small=False, device="cuda:0", libraries=("torch", "cupy", "jax"))
"""The machine that the plan on the page assumes."""

INTRODUCTION = """# Accelerators

This page explains how to test and time agp on a GPU or another accelerator. The script `asv_benchmarks/accelerator.py`
runs the most informative benchmarks first, and takes half an hour. It requires Linux, Python 3.12, NumPy, SciPy,
pytest, and at least one of CuPy, JAX, and torch with CUDA. No network access is required.

## Run the script

On a machine with network access, collect the wheels of this project and of its dependencies, and run a rehearsal:

```text
{making}
python3 asv_benchmarks/accelerator.py --rehearse --wheels wheels
```

The rehearsal installs the wheels in an empty folder and runs every part at small sizes on the CPU, which takes a few
minutes. Run the rehearsal with Python 3.12 and the libraries that are installed on the machine with the GPU. Without
`--wheels`, the rehearsal builds the wheels for its own Python version, as `make rehearse` does. Then copy the checkout
with the wheels to the machine with the GPU, and run the following commands on that machine:

```text
python3 {install}
export {environment}
python3 asv_benchmarks/accelerator.py --out report --seconds 0                 # the card, and the plan
python3 asv_benchmarks/accelerator.py --out report                             # the first nine minutes of the plan
python3 asv_benchmarks/accelerator.py --out report                             # the next nine
python3 asv_benchmarks/accelerator.py --out report                             # and so on, until it prints "done."
python3 asv_benchmarks/accelerator.py --out report --page docs/accelerator.md  # this page, from what was measured
```

Each call stops after `--seconds` (540 by default). Run the same command again to continue. The script stores each entry
in the folder `report` as soon as the entry is complete. The plan is:

| question | parts | entries | minutes, estimated |
|---|---|---|---|
{plan}

## Parts and options

| part | what it measures |
|---|---|
{parts}

`--parts`, `--libraries`, `--methods` and `--sizes` select entries, for example
`--parts steps --libraries torch --methods rsvgp --sizes 1024 4096`. If an entry takes longer than `--entry-seconds`,
runs out of memory or uses a library that is not installed, the report lists the entry with the reason. `--retry`
measures these entries again. If a test run is stopped, the report contains the results up to that point. If GPyTorch is
installed, the script also times GPyTorch on the same card. `--device cuda:0` selects the device; the default is the
first accelerator. With `--small`, or without an accelerator, the script runs at small sizes on the CPU, as a rehearsal,
not a measurement.
"""
NOTHING = "\nNo figures from a GPU exist yet: the script has run on CPUs only.\n"
WHEELS, SITE = "wheels", "site"
"""Names of folders in the commands."""


def page(folder: Path) -> str:
    """Create the page from the results in a folder."""
    text = introduction()
    found = {name: results for name in PARTS if (results := read_result(folder / f"{name}.json"))}
    if not found:
        return text + NOTHING
    facts = next(iter(found.values()))["facts"]
    text += f"\n## {facts['card']}{' in small sizes: a rehearsal' if facts['small'] else ''}\n"
    for name, results in found.items():
        part = PARTS[name]
        text += f"\n### {part.title}\n\n{part.note}\n\n{table(results['entries'])}"
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
    """Rows of the plan for a GPU, one for each question."""
    rows: dict[str, tuple[list[str], int, float]] = {}
    for stage, entries in stages(GPU, list(PARTS)):
        names, number, seconds = rows.get(stage.question, ([], 0, 0.0))
        seconds += expected(PARTS[stage.part], entries, small=False)
        rows[stage.question] = [*names, f"`{stage.part}`"], number + len(entries), seconds
    return [
        f"| {question} | {', '.join(names)} | {number} | {seconds / 60.0:.0f} |"
        for question, (names, number, seconds) in rows.items()
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
