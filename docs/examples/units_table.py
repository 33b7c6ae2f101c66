"""Measure how much the test scores of every method depend on the units of the data, on real data sets.

    python docs/examples/units_table.py energy.npz concrete.npz airfoil.npz bike.npz:15,16 elevators.npz --out FILE

This takes hours on one core. The script writes each result when it is ready, and does not repeat stored results.
`--print` only prints the table. All methods run on NumPy in float64, with the default model, M = 100, and 1,000 steps
of the default recipe. Methods that support minibatches use minibatches of 500 rows. Methods whose steps cost N^2 or
more use 1,000 rows, and the exact methods take only 100 steps. The standardised NLPD is the NLPD of the test rows of
split 0 minus the logarithm of the targets' standard deviation. "defaults" is `fit_regression` on all rows without
further arguments. Its initial score is that of a normal distribution with the mean and variance of the targets.
"""

import argparse
import json
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np

import agp
from agp.methods import METHODS, build, updates_of
from agp.selection import fit_regression
from agp.training import RATE

STEPS, BATCH, INDUCING = 1000, 500, 100
EXACT_STEPS, DENSE_ROWS = 100, 1000
EXACT = [name for name, method in METHODS.items() if "num_inducing" not in method.takes and method.uses_all_rows]
DENSE = [name for name, method in METHODS.items() if "num_inducing" not in method.takes]
"""Methods whose steps take at least N^2 operations."""
CHANGES = {
    "raw": (1.0, 1.0, 0.0),
    "X 1e-6": (1e-6, 1.0, 0.0),
    "X 1e6": (1e6, 1.0, 0.0),
    "X mixed": (None, 1.0, 0.0),
    "y 1e-6": (1.0, 1e-6, 0.0),
    "y 1e6": (1.0, 1e6, 0.0),
    "y + 1e6 deviations": (1.0, 1.0, 1e6),
}
"""Factors for X (None: 1e-6, 1 and 1e6 for the columns in turn) and y, and an offset of y in standard deviations."""
DEFAULTS = "defaults"
SLOW = {*DENSE, *(name for name, method in METHODS.items() if method.uses_all_rows)}
# Fast methods come first.
ORDER = sorted((*METHODS, DEFAULTS), key=lambda name: (name in SLOW, name))


def rows_of(given):
    """Return the name, X, y, X_test and y_test of a data set in raw units. Without a file, the data are synthetic."""
    if given is None:
        X = np.random.default_rng(0).standard_normal((150, 3))
        y = np.sin(X[:, 0]) + X[:, 1]
        return "synthetic", X[:120], y[:120], X[120:], y[120:]
    path, _, columns = given.partition(":")
    with np.load(path) as file:
        test = file["test_masks"][:, 0]
        X, y = file["X"].astype(np.float64), file["y"].astype(np.float64)
    X = np.ascontiguousarray(np.delete(X, [int(i) for i in columns.split(",") if i], axis=1))
    return Path(path).stem, X[~test], y[~test], X[test], y[test]


def scores(method, change, X, y, X_test, y_test, *, steps=STEPS):
    """Return the scores before and after training, the seconds, and the number of numerical repairs."""
    a, c, d = CHANGES[change]
    a = np.resize([1e-6, 1.0, 1e6], X.shape[1]) if a is None else a
    if method in DENSE:
        steps = min(steps, EXACT_STEPS) if method in EXACT else steps
        chosen = np.sort(np.random.default_rng(0).permutation(len(X))[:DENSE_ROWS])
        X, y = X[chosen], y[chosen]
    scale = c * y.std()
    X, y, X_test, y_test = a * X, c * y + d * scale, a * X_test, c * y_test + d * scale
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        score = _scores_of_defaults if method == DEFAULTS else partial(_scores_of_method, method, steps)
        facts = score(X, y, lambda model: -float(np.mean(model.log_density(X_test, y_test))) - float(np.log(scale)))
    return facts | {"seconds": round(time.perf_counter() - began, 1)}


def _scores_of_defaults(X, y, score):
    result = fit_regression(X, y)
    start = -float(result.baseline) - float(np.log(y.std()))
    return {"start": start, "end": score(result.model), "kernel": result.kernel, "repairs": 0}


def _scores_of_method(method, steps, X, y, score):
    num_inducing = INDUCING // 2 if "num_orthogonal" in METHODS[method].takes else INDUCING
    sizes = {"num_inducing": num_inducing, "num_orthogonal": INDUCING // 2, "num_actions": INDUCING, "seed": 0}
    model = build(method, X, y, likelihood=agp.Gaussian(), kernel="rbf", **sizes)
    updates = updates_of(method, model, steps, rate=RATE, gradient="closed-form")
    size = min(BATCH, len(X)) if model.stochastic else None
    result = agp.train(model, X, y, steps=steps, updates=updates, batch_size=size)
    return {"start": score(model), "end": score(result.model), "repairs": sum(result.repairs.values())}


def measure(sets, out, chosen, steps):
    """Measure all results that are not in the file, and write them to it."""
    for given in sets:
        name, *rows = rows_of(given)
        for method in chosen:
            for change in CHANGES:
                held = json.loads(out.read_text()) if out.exists() else {}
                key = f"{name}/{method}/{change}"
                if key in held:
                    continue
                try:
                    found = scores(method, change, *rows, steps=steps)
                except (ArithmeticError, ValueError) as error:
                    found = {"error": f"{type(error).__name__}: {error}"}
                part = out.with_suffix(".part")
                part.write_text(json.dumps({**held, key: found}, indent=1))
                part.replace(out)
                print(key, found, flush=True)


def table(held):
    """Return a Markdown table of the largest difference from the raw data, before and after training."""
    names = list(dict.fromkeys(key.split("/")[0] for key in held))
    lines = ["| | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for method in (*METHODS, DEFAULTS):
        cells = [_cell(held, name, method) for name in names]
        if any(cells):
            lines.append(f"| `{method}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(held, name, method):
    found = {change: held[key] for change in CHANGES if (key := f"{name}/{method}/{change}") in held}
    if "raw" not in found or len(found) < 2:
        return ""
    if errors := [change for change, facts in found.items() if "error" in facts]:
        return f"error: {', '.join(errors)}"
    raw = found.pop("raw")
    start = max(abs(facts["start"] - raw["start"]) for facts in found.values())
    worst = max(found, key=lambda change: abs(found[change]["end"] - raw["end"]))
    end = abs(found[worst]["end"] - raw["end"])
    where = f" ({worst})" if end > 1e-3 else ""
    missing = "" if len(found) == len(CHANGES) - 1 else f", {len(found)} of {len(CHANGES) - 1}"
    return f"{start:.0e}, {end:.0e}{where}; {raw['end']:.3f}{missing}"


def main():
    """Measure the results and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", metavar="FILE[:COLUMNS]", help="bike.npz:15,16 leaves out columns 15 and 16")
    parser.add_argument("--out", type=Path, required=True, help=".json file for the results")
    parser.add_argument("--methods", nargs="+", choices=ORDER, default=ORDER)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--print", action="store_true", help="only print the table of the stored results")
    a = parser.parse_args()
    if not a.print:
        measure(a.data or [None], a.out, a.methods, a.steps)
    print(table(json.loads(a.out.read_text())))


if __name__ == "__main__":
    main()
