"""Classes, counts and long tails on 50,000 rows: nearest rows with sites (t-NNGP) and W-SVGP.

    OMP_NUM_THREADS=1 python docs/examples/near_likelihoods.py
    OMP_NUM_THREADS=1 python docs/examples/near_likelihoods.py --data kin40k.npz

Targets are drawn from a known function of four columns or, with `--data`, from that of a file with X [N, D], y [N] and
`test_masks` [N, .]. Methods are run in turn, with their defaults; seconds are CPU seconds of the fit.
"""

import argparse
import time

import numpy as np

import agp

KINDS = ("classes", "counts", "tails")


def waves(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs [N, 4] and a function of them [N]."""
    X = np.random.default_rng(0).uniform(size=(count, 4))
    return X, np.sin(12.0 * X[:, 0]) * np.cos(9.0 * X[:, 1]) + np.sin(8.0 * (X[:, 2] + X[:, 3]))


def draw(kind: str, f: np.ndarray, *, certain: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """Return targets, and their log densities given the function; certain labels are its signs."""
    from scipy import stats

    rng = np.random.default_rng(1)
    if kind == "classes" and certain:
        return (f > np.median(f)) * 1.0, None
    if kind == "classes":
        y = (rng.uniform(size=len(f)) < 1.0 / (1.0 + np.exp(-2.0 * f))) * 1.0
        return y, -np.log1p(np.exp(-2.0 * f * (2.0 * y - 1.0)))
    if kind == "counts":
        y = rng.poisson(np.exp(0.5 + f)) * 1.0
        return y, stats.poisson.logpmf(y, np.exp(0.5 + f))
    y = f + 0.1 * rng.standard_t(3, size=len(f))
    return y, stats.t.logpdf((y - f) / 0.1, 3) - np.log(0.1)


def fit(kind: str, method: str, X: np.ndarray, y: np.ndarray) -> agp.GPRegressor | agp.GPClassifier:
    """Return a trained estimator."""
    settings = {"method": method, "random_state": 0}
    if kind == "classes":
        return agp.GPClassifier(**settings).fit(X, y.astype(int))
    return agp.GPRegressor(likelihood="poisson" if kind == "counts" else "student-t", **settings).fit(X, y)


def density(model: agp.GPRegressor | agp.GPClassifier, X: np.ndarray, y: np.ndarray) -> float:
    """Return the average log density of test rows."""
    if isinstance(model, agp.GPClassifier):
        return float(np.log(model.predict_proba(X)[np.arange(len(y)), y.astype(int)]).mean())
    return float(np.mean(model.log_density(X, y)))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", help="an .npz file with X, y and test_masks")
    parser.add_argument("--rows", type=int, default=50_000, help="training rows")
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    parser.add_argument("--methods", nargs="*", default=("auto", "wsvgp"))
    given = parser.parse_args()
    if given.data:
        file = np.load(given.data)
        X, f, test = file["X"].astype(float), file["y"].reshape(-1).astype(float), file["test_masks"][:, 0]
        f = (f - f.mean()) / f.std()
    else:
        X, f = waves(given.rows + given.rows // 10)
        test = np.arange(len(X)) >= given.rows
    for kind in given.kinds:
        y, true = draw(kind, f, certain=bool(given.data))
        if true is not None:
            print(f"{kind}: the true density {true[test].mean():.3f}")
        for method in given.methods:
            began = time.process_time()
            model = fit(kind, method, X[~test], y[~test])
            seconds = time.process_time() - began
            found = density(model, X[test], y[test])
            print(f"{kind}, {method} ({model.method_}): {found:.3f} in {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
