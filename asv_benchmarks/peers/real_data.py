"""Data sets of the baselines: standardised by their training rows, and results written as they come."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from agp.data import Dataset, load


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """What every baseline is told."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument(
        "data", nargs="+", metavar="FILE[:COLUMNS]", help=".npz files; bike.npz:15,16 leaves out columns 15 and 16"
    )
    parser.add_argument("--split", type=int, default=0, metavar="S", help="column of test_masks")
    parser.add_argument("--out", type=Path, required=True, help="a .json file, which keeps what others wrote there")
    return parser


def datasets(a: argparse.Namespace) -> Iterator[tuple[str, Dataset, list[int]]]:
    """Name, rows and the columns that were left out, one set after the other."""
    for given in a.data:
        path, _, columns = given.partition(":")
        left_out = [int(i) for i in columns.split(",") if i]
        data = load(path, split=a.split, task="regression")
        X, X_test = (np.ascontiguousarray(np.delete(x, left_out, axis=1)) for x in (data.X, data.X_test))
        yield Path(path).stem, Dataset(data.name, X, data.y, X_test, data.y_test), left_out


def keep(out: Path, name: str, facts: dict[str, Any]) -> None:
    """Write the facts about a data set beside what the file holds already."""
    held = json.loads(out.read_text()) if out.exists() else {}
    part = out.with_suffix(".part")
    part.write_text(json.dumps({**held, name: facts}, indent=1))
    part.replace(out)
    print(name, {key: value for key, value in facts.items() if not isinstance(value, list)}, flush=True)
