"""Models with neighbours off their optima, and their evidence by dense matrices and by loops over the rows."""

import numpy as np
import scipy.stats
from helpers import as_arrays

from agp import NNGP, VIF, tree
from agp.bounds import Batch
from agp.inducing import Points
from agp.kernels import RBF, Constant, Linear, Matern32, Matern52, RationalQuadratic
from agp.likelihoods import Gaussian
from agp.means import ConstantMean, LinearMean, ZeroMean

ROWS, NEAR, WIDTH = 30, 6, 3
KERNELS = {
    "rbf-ard": lambda: RBF(0.8, (0.7, 1.1, 0.9)),
    "rq": lambda: RationalQuadratic(0.8, 1.4, 1.3),
    "sum": lambda: Matern32(0.8, (0.7, 1.1, 0.9)) + Linear((0.3, 0.2, 0.4)) + Constant(0.5),
    "product": lambda: Matern52(0.8, 1.3) * RBF(0.7, (2.0, 1.5)).on((0, 2)),
    "scaled": lambda: 0.7 * (RBF(0.8, 1.3).on((2,)) + Matern52(0.5, (1.0, 2.0, 0.8))),
}
MEANS = {
    "zero": lambda P: ZeroMean(),
    "constant": lambda P: ConstantMean(0.3 + np.arange(float(P))),
    "linear": lambda P: LinearMean(0.1 * np.ones((WIDTH, P)), np.linspace(-0.3, 0.4, P)),
}
KNOWN = ("nothing", "weights", "noise", "squares", "all")
"""What is known of the rows; squares are those of rows with weights."""
AMONG = ("earlier", "others")


def known_of(what, rows, outputs, rng):
    """The known fields of a model, of which some weights are 1."""
    weights = np.where(rng.uniform(size=rows) < 0.3, 1.0, rng.integers(1, 5, size=rows))
    squares = np.where(weights > 1.0, rng.uniform(0.0, 0.3, size=rows), 0.0)
    found = {
        "weights": weights,
        "squares": squares,
        "noise": rng.uniform(0.05, 0.3, size=(rows, 1)),
        "offset": rng.normal(size=(rows, outputs)),
    }
    chosen = {"weights": ["weights"], "noise": ["noise"], "squares": ["weights", "squares"], "all": list(found)}
    return {name: found[name] for name in chosen.get(what, [])}


def case(kernel="rbf-ard", *, mean="constant", outputs=1, known="nothing", rows=ROWS, inducing=0, **options):
    """A host model with its neighbours, VIF with inducing inputs and NNGP without, and the rows of its bound."""
    rng = np.random.default_rng([outputs, rows, inducing])
    X, y = rng.normal(size=(rows, WIDTH)), rng.normal(size=(rows, outputs))
    parts = {"X": X, "y": y, "mean_function": MEANS[mean](outputs), "neighbours": NEAR, "seed": 1}
    parts |= known_of(known, rows, outputs, rng) | options
    if inducing:
        Z = Points(rng.normal(size=(inducing, WIDTH)))
        model = VIF(KERNELS[kernel](), Gaussian(0.2), Z, jitter=1e-3, **parts)
    else:
        model = NNGP(KERNELS[kernel](), Gaussian(0.2), **parts)
    return as_arrays(model).renew_neighbours(), Batch(X, y)


def moved(place, model, batch):
    return place.move(model), Batch(place.array(batch.X), place.array(batch.y))


def value_of(model, **options):
    return model._objective(Batch(model.X, model.y), **options)[0]


def gradient_of(model, **options):
    """The gradient by parameters, zeros where there is none."""
    bars = tree.leaves(model._objective(Batch(model.X, model.y), **options)[1](1.0)[0])
    values = tree.leaves(model, "parameter")
    return {name: np.zeros_like(x) if bars.get(name) is None else bars[name] for name, x in values.items()}


# -- the same by loops ------------------------------------------------------------------------------------------------


def residual_of(model):
    y = model.y if model.offset is None else model.y - model.offset
    return y - model.mean_function(model.X)[0]


def variances_of(model):
    """The noise variances [N] of observations."""
    known = 0.0 if model.noise is None else model.noise[:, 0]
    return np.broadcast_to(model.likelihood.noise_variance + known, len(model.X))


def features_of(model):
    """A [N, M], without columns where there are no inducing inputs."""
    if model.inducing is None:
        return np.zeros((len(model.X), 0))
    Kuu = model.kernel(model.inducing.Z)[0] + model.jitter * np.eye(model.inducing.count)
    return np.linalg.solve(np.linalg.cholesky(Kuu), model.kernel(model.inducing.Z, model.X)[0]).T


def term(model, n, R):
    """The neighbours, the weights and the variance of row n, or of an observation of it, given its neighbours."""
    counts = np.ones(len(model.X)) if model.weights is None else model.weights.copy()
    own = 1.0 if model._left_out else counts[n]
    if model._left_out:
        counts[n] = counts[n] - 1.0
    c = np.array([j for j in model.sets[n] if j >= 0 and counts[j] > 0.0], dtype=int)
    noise = variances_of(model)
    B = np.linalg.solve(R[np.ix_(c, c)] + np.diag(noise[c] / counts[c]), R[c, n])
    return c, B, R[n, n] - B @ R[c, n] + noise[n] / own


def terms(model):
    """B [N, N], V [N], and the residuals without those of the neighbours, e [N, P]."""
    A, N = features_of(model), len(model.X)
    R = model.kernel(model.X)[0] - A @ A.T
    weights, V = np.zeros((N, N)), np.zeros(N)
    for n in range(N):
        c, weights[n, c], V[n] = term(model, n, R)
    residual = residual_of(model)
    return weights, V, residual - weights @ residual


def dense_evidence(model):
    """The log density of normally distributed rows, with a dense covariance, and what weights and squares add."""
    A, (B, V, _) = features_of(model), terms(model)
    inverse = np.linalg.inv(np.eye(len(V)) - B)
    normal = scipy.stats.multivariate_normal(cov=A @ A.T + inverse @ np.diag(V) @ inverse.T)
    value, P = sum(normal.logpdf(column) for column in residual_of(model).T), model.y.shape[1]
    noise = variances_of(model)
    if model.weights is not None:
        logs = (model.weights - 1.0) * np.log(2.0 * np.pi * noise) + np.log(model.weights)
        value -= 0.5 * P * np.sum(logs)
    return value if model.squares is None else value - 0.5 * np.sum(model.squares / noise)


def unmerged(X, y, counts, spread=0.3, seed=5):
    """Rows of which each is repeated `counts` times, and other targets around those given."""
    rng = np.random.default_rng(seed)
    place = np.repeat(np.arange(len(X)), counts)
    return X[place], y[place] + spread * rng.normal(size=(len(place), y.shape[1]))
