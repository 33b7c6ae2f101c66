"""Compare likelihoods of the estimators on data with input-dependent noise, and on ordered classes.

usage: python estimator_likelihoods.py [--seeds 3] [--tolerance 1e-3]

The script prints two Markdown tables with averages over the seeds. It takes less than a minute on one core.
"""

import argparse

import numpy as np

from agp.estimators import GPClassifier, GPRegressor


def noisy(rng, rows):
    """Draw inputs [N, 1] from -2 to 2, and a sine wave [N] with noise that grows from 5 % to 100 % of its amplitude."""
    X = rng.uniform(-2.0, 2.0, (rows, 1))
    return X, np.sin(3.0 * X[:, 0]) + np.exp(0.8 * X[:, 0] - 1.5) * rng.standard_normal(rows)


def graded(rng, rows):
    """Draw inputs [N, 2], and grades [N] from 0 to 4, which are the bins of a smooth function with noise."""
    X = rng.uniform(-2.0, 2.0, (rows, 2))
    value = np.sin(2.0 * X[:, 0]) + X[:, 1] + 0.3 * rng.standard_normal(rows)
    return X, np.digitize(value, [-1.5, -0.5, 0.5, 1.5])


def of_noise(likelihood, rng, how):
    """Return the NLPD of new observations, and the coverage of 95 % intervals for x < -1 and for x > 1."""
    (X, y), (X_test, y_test) = noisy(rng, 300), noisy(rng, 3000)
    found = GPRegressor(likelihood=likelihood, **how).fit(X, y)
    mean, deviation = found.predict(X_test, return_std=True)
    inside = np.abs(y_test - mean) < 1.96 * deviation
    density = found.model_.log_density(X_test, y_test[:, None])
    return -np.mean(density), inside[X_test[:, 0] < -1.0].mean(), inside[X_test[:, 0] > 1.0].mean()


def of_order(likelihood, rows, rng, how):
    """Return the error rate and the NLPD of new labels."""
    (X, y), (X_test, y_test) = graded(rng, rows), graded(rng, 3000)
    found = GPClassifier(likelihood=likelihood, **how).fit(X, y)
    chosen = found.predict_proba(X_test)[np.arange(len(y_test)), np.searchsorted(found.classes_, y_test)]
    return np.mean(found.predict(X_test) != y_test), -np.mean(np.log(chosen))


def main():
    """Measure the scores and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tolerance", type=float, default=1e-3, help="training tolerance, in nats per row")
    given = parser.parse_args()
    seeds, how = range(given.seeds), {"tolerance": given.tolerance, "random_state": 0}
    print("| likelihood | NLPD | inside, x < -1 | inside, x > 1 |\n|---|---|---|---|")
    for name in ("gaussian", "latent-noise"):
        nlpd, low, high = np.mean([of_noise(name, np.random.default_rng(seed), how) for seed in seeds], axis=0)
        print(f"| `{name}` | {nlpd:.2f} | {low:.0%} | {high:.0%} |")
    print("\n| likelihood | rows | error | NLPD |\n|---|---|---|---|")
    for rows in (60, 150):
        for name in ("auto", "ordinal"):
            error, nlpd = np.mean([of_order(name, rows, np.random.default_rng(seed), how) for seed in seeds], axis=0)
            print(f"| `{name}` | {rows} | {error:.0%} | {nlpd:.2f} |")


if __name__ == "__main__":
    main()
