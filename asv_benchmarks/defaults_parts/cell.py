"""The process of one cell: ``python -m defaults_parts.cell JOB.npz --side SIDE --seed S --out CELL.json``."""

import argparse
import json
import math
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from processes import check_agp, end_with_parent, peak_memory, versions

from defaults_parts.job import Job
from defaults_parts.sides import side_of

BLOCK = 4000
"""Number of test rows per block of predictions."""
LIBRARIES = ("agp", "numpy", "scipy", "sklearn", "torch", "gpytorch")
LONGEST, MOST = 200, 5
"""Maximum number of characters in a warning, and maximum number of warnings."""


def measured(job: Job, side: str, seed: int) -> dict[str, Any]:
    """Fit a side; return its scores, CPU seconds and peak memory."""
    fit = side_of(side).fit()  # its imports are not timed
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        began = time.process_time()
        predict, facts = fit(job, seed)
        seconds = time.process_time() - began
        found = predicted(predict, job.X_test)
    scores = job.scores(found)
    if not all(map(math.isfinite, scores.values())):
        raise ValueError(f"the predictions are not finite: {scores}")
    texts = list(dict.fromkeys(f"{one.category.__name__}: {one.message}"[:LONGEST] for one in said))
    own = {"facts": facts, "warnings": texts[:MOST], "versions": versions(LIBRARIES)}
    return {**scores, "seconds": round(seconds, 3), "mebibytes": round(peak_memory(), 1), **own}


def predicted(predict: Any, X: Any) -> Any:
    """Predict means and variances [N], or probabilities [N, C], by blocks of rows."""
    blocks = [predict(X[i : i + BLOCK]) for i in range(0, len(X), BLOCK)]
    if isinstance(blocks[0], tuple):
        return tuple(np.concatenate(part) for part in zip(*blocks, strict=True))
    return np.concatenate(blocks)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", type=Path)
    parser.add_argument("--side", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--checkout", type=Path, help="where agp must come from")
    a = parser.parse_args()
    end_with_parent()
    if a.checkout:
        check_agp(a.checkout)
    a.out.write_text(json.dumps(measured(Job.read(a.job), a.side, a.seed)), encoding="utf-8")


if __name__ == "__main__":
    main()
