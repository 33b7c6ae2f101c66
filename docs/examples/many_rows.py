"""Fit a model to millions of rows in memory; print CPU seconds, the peak of the memory, and scores of other rows.

    OMP_NUM_THREADS=1 python docs/examples/many_rows.py --rows 10_000_000
    OMP_NUM_THREADS=1 python docs/examples/many_rows.py --rows 10_000_000 --method sgpr

The rows have four columns, and a noise of 0.1. Scores are in standard deviations of the targets.
"""

import argparse
import resource
import time

import numpy as np

import agp

NOISE = 0.1


def made(rows):
    """Draw inputs [N, 4] and noisy targets [N]."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(rows, 4))
    f = np.sin(12.0 * X[:, 0]) * np.cos(9.0 * X[:, 1]) + np.sin(8.0 * (X[:, 2] + X[:, 3]))
    return X, f + NOISE * rng.normal(size=rows)


def measured(name, f):
    """Return f(), after printing its CPU seconds and the peak of the memory so far."""
    began = time.process_time()
    found = f()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"{name}: {time.process_time() - began:.1f} CPU seconds, peak {peak:,.0f} MiB", flush=True)
    return found


def main():
    """Fit, predict and score."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--new", type=int, default=10_000)
    parser.add_argument("--method", default="auto")
    given = parser.parse_args()
    X, y = measured("data", lambda: made(given.rows + given.new))
    N, spread = given.rows, float(np.std(y))
    result = measured("fit", lambda: agp.fit_regression(X[:N], y[:N], method=given.method))
    print(result.describe())
    predictor = measured("predictor", result.predictor)
    mean, variance = measured("predictions", lambda: predictor.predict(X[N:], observed=True))
    errors = (y[N:, None] - mean) ** 2
    nlpd = 0.5 * np.mean(np.log(2.0 * np.pi * variance / spread**2) + errors / variance)
    least = 0.5 * np.log(2.0 * np.pi * np.e * (NOISE / spread) ** 2)
    rmse = np.sqrt(np.mean(errors)) / spread
    print(f"NLPD {nlpd:.4f} and RMSE {rmse:.4f}; of the true function, {least:.4f} and {NOISE / spread:.4f}")


if __name__ == "__main__":
    main()
