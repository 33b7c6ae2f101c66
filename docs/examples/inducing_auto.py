"""Compare automatic growth of the number of inducing inputs with fixed numbers, on real data.

    python docs/examples/inducing_auto.py snelson.npz airfoil.npz elevation elevators.npz --out FILE

This takes hours on one core. The script writes each result when it is ready, and does not repeat stored results.
`--print` only prints the table. The model is `SGPR` on NumPy in float64, with an RBF kernel that has a lengthscale per
column. The test rows are those of split 0 if the file has splits, and a random tenth of the rows otherwise. The
standardised NLPD is the NLPD of the test rows minus the logarithm of the targets' standard deviation. Times are CPU
times. The data set "elevation" has 12,000 heights of the elevation model that comes with matplotlib.
"""

import argparse
import json
import time
import warnings
from pathlib import Path

import numpy as np
from matplotlib import cbook

import agp

SIZES = (64, 128, 256, 512, 1024)
ROWS = 12_000


def rows_of(path):
    """Load X, y, X_test and y_test from a file, or generate a synthetic data set."""
    given = None
    if path is None:
        X = np.random.default_rng(0).uniform(-3.0, 3.0, (100, 1))
        y = np.sin(3.0 * X[:, 0])
    elif path == "elevation":
        with cbook.get_sample_data("jacksboro_fault_dem.npz") as file:
            heights = file["elevation"].astype(np.float64)
        at = np.random.default_rng(0).permutation(heights.size)[:ROWS]
        X, y = np.stack(np.unravel_index(at, heights.shape), axis=1).astype(np.float64), heights.ravel()[at]
    else:
        with np.load(path) as file:
            X, y = file["X"].astype(np.float64), file["y"].astype(np.float64)
            given = file["test_masks"][:, 0] if "test_masks" in file else None
    if given is None:
        given = np.random.default_rng(0).permutation(len(X)) < len(X) // 10
    X = X.reshape(len(X), -1)
    return X[~given], y[~given], X[given], y[given]


def scored(model, X, y, scale):
    """Return the NLPD and RMSE for targets divided by their standard deviation `scale`."""
    density = -float(np.mean(model.log_density(X, y))) - float(np.log(scale))
    error = float(np.sqrt(np.mean((model.predict(X).mean[:, 0] - y.ravel()) ** 2))) / scale
    return {"nlpd": round(density, 4), "rmse": round(error, 4)}


def measured(path, what, tolerance):
    """Return the result for a fixed number of inducing inputs, or for "auto"."""
    X, y, X_test, y_test = rows_of(path)
    began = time.process_time()
    start = min(SIZES[0] if what == "auto" else int(what), len(X))
    model = agp.SGPR.from_data(X, y, num_inducing=start)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if what == "auto":
            found = agp.fit_growing(model, X, y, tolerance=tolerance)
            facts = {"reason": found.reason, "rounds": [list(one) for one in found.rounds]}
        else:
            found, facts = agp.fit(model, X, y), {}
    seconds = time.process_time() - began
    M, N = found.model.inducing.count, len(X)
    gap = float(found.model.upper_bound(X, y) - found.model.bound(X, y)[0]) / N
    facts |= {"M": M, "gap": round(gap, 4), "seconds": round(seconds, 2), "steps": found.steps, "rows": N}
    return (
        facts
        | {"bound": round(float(found.model.bound(X, y)[0]) / N, 4)}
        | scored(found.model, X_test, y_test, y.std())
    )


def measure(paths, out, sizes, tolerance):
    """Measure all results that are not in the file, and write them to it."""
    X = np.linspace(0.0, 1.0, 100)[:, None]
    agp.fit(agp.SGPR.from_data(X, np.sin(9.0 * X), num_inducing=5), X, np.sin(9.0 * X))  # imports all modules
    for path in paths or [None]:
        rows = len(rows_of(path)[0])
        for what in ["auto", *(str(M) for M in sizes if rows >= M)]:
            held = json.loads(out.read_text()) if out.exists() else {}
            key = f"{Path(path or 'synthetic').stem}/{what}" + (f" {tolerance:g}" if what == "auto" else "")
            if key in held:
                continue
            found = measured(path, what, tolerance)
            part = out.with_suffix(".part")
            part.write_text(json.dumps({**held, key: found}))
            part.replace(out)
            print(key, {name: value for name, value in found.items() if name != "rounds"}, flush=True)


def table(held):
    """Return a Markdown table that compares automatic growth with the best fixed M."""
    lines = ["| data | rows | auto: M | reason | gap | NLPD | CPU s | best fixed M | NLPD | CPU s | ratio of times |"]
    lines += ["|" + "---|" * 11]
    for key, auto in held.items():
        name, _, what = key.partition("/")
        fixed = [one for other, one in held.items() if other.partition("/")[0] == name and "reason" not in one]
        if not what.startswith("auto") or not fixed:
            continue
        best = min(fixed, key=lambda one: one["nlpd"])
        cells = [name, f"{auto['rows']:,}", auto["M"], f"{auto['reason']}", f"{auto['gap']:.3f}", f"{auto['nlpd']:.3f}"]
        cells += [f"{auto['seconds']:.1f}", best["M"], f"{best['nlpd']:.3f}", f"{best['seconds']:.1f}"]
        lines.append("| " + " | ".join(map(str, [*cells, f"{auto['seconds'] / best['seconds']:.2f}"])) + " |")
    return "\n".join(lines)


def main():
    """Measure the results and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", metavar="FILE")
    parser.add_argument("--out", type=Path, required=True, help=".json file for the results")
    parser.add_argument("--sizes", nargs="*", type=int, default=SIZES)
    parser.add_argument("--tolerance", type=float, default=agp.training.GROWTH_TOLERANCE)
    parser.add_argument("--print", action="store_true", help="only print the table of the stored results")
    a = parser.parse_args()
    if not a.print:
        measure(a.data, a.out, a.sizes, a.tolerance)
    print(table(json.loads(a.out.read_text())))


if __name__ == "__main__":
    main()
