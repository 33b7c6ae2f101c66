"""The process of one cell: ``python -m board_parts.cell TABLE --split S --side SIDE --limit L --out CELL.json``."""

import argparse
import json
import math
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from processes import check_agp, end_with_parent, limit_cpu, peak_memory, versions

from board_parts.predictions import INTERVAL, class_scores, scores
from board_parts.sides import side_of
from board_parts.splits import Job, job_of
from board_parts.tables import TABLES

LIBRARIES = ("agp", "numpy", "scipy", "pandas", "sklearn", "skrub", "catboost", "lightgbm", "ngboost")
LONGEST, MOST = 200, 5
"""Maximum number of characters in a warning, and maximum number of warnings."""
PREDICTED = 1000
"""The number of predictions that are timed."""


def measured(job: Job, side: str, seed: int) -> dict[str, Any]:
    """Fit a side; return its scores, CPU seconds and peak memory."""
    fit = side_of(side).fit()  # its imports are not timed
    np.random.seed(seed)  # noqa: NPY002, encoders of other libraries draw from the global generator
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        began = time.process_time()
        predict, facts = fit(job, seed)
        seconds = time.process_time() - began
        figures = {"seconds": seconds, "prediction_seconds": seconds_of_predictions(predict, job)}
        found = predict(job.X_test)
        figures |= (
            class_scores(found, job.y_test) if job.classes else scores(found, job.y_test, job.spread, whole=job.whole)
        )
    main = "log_loss" if job.classes else "crps"
    if not math.isfinite(figures[main]):
        raise ValueError(f"the predictions are not finite: {main} is {figures[main]}")
    texts = list(dict.fromkeys(f"{one.category.__name__}: {one.message}"[:LONGEST] for one in said))
    own = {"facts": facts, "warnings": texts[:MOST], "versions": versions(LIBRARIES)}
    figures = {name: x if math.isfinite(x) else None for name, x in figures.items()}  # as a mean may overflow
    return {**figures, "mebibytes": peak_memory(), **own}


def seconds_of_predictions(predict: Any, job: Job) -> float:
    """CPU seconds of means and intervals, or of probabilities, for `PREDICTED` test rows, which may repeat."""
    X = job.X_test.iloc[np.arange(PREDICTED) % len(job.X_test)].reset_index(drop=True)
    began = time.process_time()
    found = predict(X)
    if not job.classes:
        found.quantiles(INTERVAL)
    return time.process_time() - began


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table")
    parser.add_argument("--split", type=int, required=True)
    parser.add_argument("--side", required=True)
    parser.add_argument("--limit", type=int, required=True, help="CPU seconds")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--checkout", type=Path, help="where agp must come from")
    a = parser.parse_args()
    end_with_parent()
    limit_cpu(a.limit)
    if a.checkout:
        check_agp(a.checkout)
    job = job_of(TABLES[a.table], a.split, small=a.small)
    facts = {"rows": len(job.y), "test_rows": len(job.y_test), "columns": job.X.shape[1], "classes": job.classes}
    a.out.write_text(json.dumps(facts | measured(job, a.side, seed=a.split)), encoding="utf-8")


if __name__ == "__main__":
    main()
