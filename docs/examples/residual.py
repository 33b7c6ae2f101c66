"""Compare what sparse GPs, SOLVE-GP and nearest rows make of the residual, at the same hyperparameters.

    python docs/examples/residual.py --data FILE.npz --split 0 --num-inducing 512

The hyperparameters are those of an exact GP with a Matern-3/2 kernel with one lengthscale for each column, on a random
sample of the training rows. All models have the same inducing inputs Z; the
second group O of SOLVE-GP is as large. No model trains anything else. The script prints a line for each model: the
NLPD and the RMSE of test rows, in standard deviations of the targets, and the CPU seconds of building the model and
predicting.
"""

import argparse
import time

import numpy as np
from long_runs import read_split
from scipy.linalg import solve_triangular

import agp

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", default="diabetes")
parser.add_argument("--split", type=int, default=0)
parser.add_argument("--without", type=int, nargs="*", default=[], help="columns to leave out")
parser.add_argument("--sample", type=int, default=2000)
parser.add_argument("--num-inducing", type=int, default=16)
parser.add_argument("--neighbours", type=int, nargs="+", default=[10, 50])
given = parser.parse_args()

data = read_split(given.data, given.split)
X, X_test = (np.delete(x, given.without, axis=1) for x in (data.X, data.X_test))
y, M = data.y, given.num_inducing
chosen = np.random.default_rng(given.split).permutation(len(X))[: given.sample]
start = agp.GPR.from_data(X[chosen], y[chosen], kernel=agp.Matern32(), mean_function=agp.ZeroMean())
trained = agp.fit(start, X[chosen], y[chosen]).model
settings = {"kernel": trained.kernel, "likelihood": trained.likelihood, "mean_function": agp.ZeroMean()}
both = agp.SGPR.from_data(X, y, num_inducing=2 * M, seed=given.split, **settings).inducing.Z
Z, more = both[:M], both[M:]


def fitc(X_test):
    """Return means and variances [T, 1] of observations by FITC, which keeps the variances of the residual alone."""
    L = np.linalg.cholesky(trained.kernel(Z)[0] + 1e-6 * np.eye(M))
    noise = float(trained.likelihood.noise_variance)
    A, At = (solve_triangular(L, trained.kernel(Z, x)[0], lower=True) for x in (X, X_test))
    rest = trained.kernel.diag(X)[0] - np.sum(A * A, axis=0) + noise
    P = np.linalg.cholesky(np.eye(M) + (A / rest) @ A.T)
    m, h = (solve_triangular(P, x, lower=True) for x in (A @ (y / rest[:, None]), At))
    variance = trained.kernel.diag(X_test)[0] - np.sum(At * At, axis=0) + np.sum(h * h, axis=0) + noise
    return h.T @ m, variance[:, None]


def by(cls, **options):
    """Return a function of test inputs that builds a model and predicts observations."""
    return lambda X_test: cls.from_data(X, y, **settings, **options).predictor().predict(X_test, observed=True)


models = {
    f"SGPR, {M}": by(agp.SGPR, Z=Z),
    f"FITC, {M}": fitc,
    f"SOLVE-GP, {M} + {M}": by(agp.SOLVEGPR, Z=Z, O=more),
    f"SGPR, {2 * M}": by(agp.SGPR, Z=both),
    **{f"NNGP, {k} neighbours": by(agp.NNGP, neighbours=k) for k in given.neighbours},
    **{f"VIF, {M} and {k} neighbours": by(agp.VIF, Z=Z, neighbours=k) for k in given.neighbours},
}
print(f"{len(X):,} rows, {X.shape[1]} columns; noise variance {float(trained.likelihood.noise_variance):.3g}")
for name, predict in models.items():
    began = time.process_time()
    mean, variance = predict(X_test)
    seconds = time.process_time() - began
    apart = data.y_test - mean
    nlpd = np.mean(0.5 * np.log(2.0 * np.pi * variance) + 0.5 * apart**2 / variance)
    print(f"{name:28s} NLPD {nlpd:7.3f}  RMSE {np.sqrt(np.mean(apart**2)):.3f}  {seconds:6.1f} CPU s", flush=True)
