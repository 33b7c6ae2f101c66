"""`agp fit` for tables that are split across several files or read by a cluster, and never loaded as a whole."""

import argparse
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from agp.cli._notes import Notes, write_model
from agp.cli._terminal import check_outputs, say
from agp.errors import require
from agp.tables import TABLES, is_many, open_rows, several_files

CHUNK_ROWS = 100_000
"""Maximum number of rows that a worker reads at a time."""


def fit_elsewhere(a: argparse.Namespace, trained: Callable[..., Any], shown: Callable[..., Any]) -> int:
    """Train and save a model. Raise a ValueError if an option requires all rows at once, or no scheduler answers."""
    import pandas as pd

    _check(a)
    with _cluster(a.scheduler):
        found = open_rows(a.table, target=a.target[0], without=[name for name in a.drop if name not in a.target])
        if is_many(a.table):
            check_outputs([a.out], table=several_files(a.table, TABLES))
        X, y = _in_chunks(found.X), _in_chunks(found.y)
        name = Path(a.table).name
        say(a, f"{name}: {X.shape[0]:,} rows in {len(X.chunks[0]):,} chunks, {X.shape[1]} input columns; regression")
        with shown(a) as tracker:
            estimator, lines = trained(a, tracker, "regression", X, y)
    estimator.name_columns(pd.DataFrame(np.zeros((1, len(found.columns))), columns=found.columns))
    write_model(a, estimator, Notes(name, a.target, "regression", int(X.shape[0])))
    say(a, *lines, f"written: {a.out}")
    return 0


def _in_chunks(x: Any) -> Any:
    """Split a dask array into chunks of at most `CHUNK_ROWS` rows."""
    return x if max(x.chunks[0]) <= CHUNK_ROWS else x.rechunk({0: CHUNK_ROWS})


def _check(a: argparse.Namespace) -> None:
    given = {
        "--task classification": a.task == "classification",
        "--likelihood": a.likelihood is not None,
        "--transform": a.transform is not None,
        "--exposure": a.exposure is not None,
        "--weights": a.weights is not None,
        "--noise": bool(a.noise),
        "--noise-by": a.noise_by is not None,
        "--missing impute": a.missing == "impute",
        "--keep": bool(a.keep),
        "--test-share": a.test_share > 0.0,
        "several targets": len(a.target) > 1,
    }
    if refused := [name for name, asked in given.items() if asked]:
        raise ValueError(
            f"{refused[0]} cannot be used with --scheduler or with a table split across several files; leave it out."
        )
    if not is_many(a.table) and Path(a.table).suffix != ".parquet":
        raise ValueError(
            f"--scheduler requires .parquet files, but the table is {a.table}; save the table as .parquet."
        )


def _cluster(address: str | None) -> Any:
    """Connect to the Dask scheduler at an address. Without an address, Dask runs in threads of this process."""
    if address is None:
        return contextlib.nullcontext()
    distributed = require("distributed", "a scheduler needs", "dask")
    try:
        return distributed.Client(address, timeout=10)
    except (OSError, TimeoutError, ValueError) as error:
        raise ValueError(
            f"--scheduler is {address}, but no Dask scheduler answers there; start one with `dask scheduler`."
        ) from error
