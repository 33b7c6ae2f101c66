"""Tables, and the page that is made from all of them."""

from pathlib import Path
from typing import Any

from accelerator_parts import PARTS
from accelerator_parts.results import read

INTRODUCTION = """# Accelerators

What a GPU, or another accelerator, does with this library is measured by one script, in parts:

```text
python asv_benchmarks/accelerator.py --out FOLDER
python asv_benchmarks/accelerator.py --out FOLDER --page docs/accelerator.md
```

| part | what it measures |
|---|---|
{parts}

`--parts card steps` runs some of them. Each part prints its table last and keeps a JSON in FOLDER; what is there is not
measured again. A call stops cleanly after `--seconds` (540) and says what is left, and the same command goes on. An
entry that takes too long (`--entry-seconds`), runs out of memory or needs a library that is not installed becomes a
line with the sentence; `--retry` measures those again. `--device cuda:0` chooses where, by default the first
accelerator; `--libraries torch cupy jax` with what. Without an accelerator the same script runs in small sizes on the
CPU, which `--small` asks for elsewhere, too: a rehearsal, not a measurement. The tests need the extra `test`, and
GPyTorch is timed where it is installed.

The second command writes this page from FOLDER.
"""
NOTHING = "\nNo figures from a GPU exist yet: the script has run on CPUs only.\n"


def page(folder: Path) -> str:
    """The page, from what lies in a folder."""
    lines = "\n".join(f"| `{name}` | {part.title} |" for name, part in PARTS.items())
    text = INTRODUCTION.format(parts=lines)
    held = {name: read(folder / f"{name}.json") for name in PARTS if (folder / f"{name}.json").exists()}
    if not held:
        return text + NOTHING
    facts = next(iter(held.values()))["facts"]
    text += f"\n## {facts['card']}{' in small sizes: a rehearsal' if facts['small'] else ''}\n"
    for name, results in held.items():
        part = PARTS[name]
        text += f"\n### {part.title}\n\n{part.note}\n\n{table(results['entries'])}"
    return text


def table(entries: list[dict[str, Any]]) -> str:
    """Markdown tables of the entries, one for each set of columns, and the sentences of those that failed."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    failures: dict[str, list[str]] = {}
    for entry in entries:
        settings, figures = entry["settings"], entry["figures"]
        if sentence := figures.get("error") or figures.get("absent"):
            failures.setdefault(sentence, []).append(" ".join(map(str, settings.values())))
        else:
            groups.setdefault((*settings, str(settings.get("measured"))), []).append(settings | figures)
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
