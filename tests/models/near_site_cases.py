"""Nearest-neighbour models with sites off their optima, on small problems, for every likelihood of numbers."""

import dataclasses

import numpy as np
from helpers import as_arrays

from agp import TNNGP, TVGP, tree
from agp.kernels import RBF, Constant, Linear, Matern32, Matern52
from agp.likelihoods import (
    Bernoulli,
    Beta,
    Exponential,
    Gamma,
    Gaussian,
    NegativeBinomial,
    Ordinal,
    Poisson,
    Softmax,
    StudentT,
)
from agp.means import ConstantMean, LinearMean
from agp.updates import SiteStep

ROWS, NEAR = 24, 6
KERNELS = {
    "rbf-ard": lambda: RBF(0.8, (0.7, 1.1)),
    "sum": lambda: Matern32(0.8, (0.7, 1.1)) + Linear((0.3, 0.2)) + Constant(0.5),
    "product": lambda: Matern52(0.8, 1.3) * RBF(0.7, 2.0).on((0,)),
}
LIKELIHOODS = {
    "gaussian": (lambda: Gaussian(0.2), lambda f: f),
    "bernoulli": (lambda: Bernoulli(), lambda f: 1.0 * (f > 0.0)),
    "logit": (lambda: Bernoulli(link="logit"), lambda f: 1.0 * (f > 0.0)),
    "poisson": (lambda: Poisson(), lambda f: np.floor(np.exp(np.clip(f, -1.0, 2.0)))),
    "gamma": (lambda: Gamma(1.7), np.exp),
    "exponential": (lambda: Exponential(), np.exp),
    "negative-binomial": (lambda: NegativeBinomial(0.5), lambda f: np.floor(np.exp(np.clip(f, -1.0, 2.0)))),
    "beta": (lambda: Beta(6.0), lambda f: 1.0 / (1.0 + np.exp(-f))),
    "ordinal": (lambda: Ordinal(3, np.asarray([-0.6, 0.7])), lambda f: np.clip(np.rint(f + 1.0), 0.0, 2.0)),
    "student-t": (lambda: StudentT(0.3, degrees_of_freedom=3.0), lambda f: f + 3.0 * (f > 1.0)),
    "softmax": (lambda: Softmax(3, fixed_samples=20), lambda f: np.clip(np.rint(f[:, :1] + 1.0), 0.0, 2.0)),
}
OF_NUMBERS = [name for name in LIKELIHOODS if name != "softmax"]


def data(likelihood, rows=ROWS, seed=0):
    """Inputs [N, 2] and targets [N, 1] that suit a likelihood."""
    rng = np.random.default_rng([seed, rows])
    X = rng.uniform(-2.0, 2.0, size=(rows, 2))
    f = np.sin(1.5 * X[:, :1]) + 0.5 * X[:, 1:2] + 0.2 * rng.normal(size=(rows, 1))
    return X, LIKELIHOODS[likelihood][1](f)


def known_of(what, likelihood="bernoulli", rows=ROWS):
    """What is known of rows."""
    rng = np.random.default_rng(7)
    outputs = LIKELIHOODS[likelihood][0]().latents(1)
    found = {"weights": rng.uniform(0.5, 3.0, size=rows), "offset": 0.4 * rng.normal(size=(rows, outputs))}
    found |= {"noise": rng.uniform(0.05, 0.3, size=(rows, 1))}
    chosen = {"weights": ["weights"], "offset": ["offset"], "noise": ["noise"], "both": ["weights", "offset"]}
    return {name: found[name] for name in chosen.get(what, [])}


def blank(likelihood, X, kernel="rbf-ard", mean="constant", *, neighbours=NEAR, exact=False, shared=True):
    """A model without sites; the exact one is TVGP."""
    given = LIKELIHOODS[likelihood][0]()
    P = given.latents(1)
    h = ConstantMean(0.2 - 0.1 * np.arange(float(P)))
    h = LinearMean(0.1 * np.ones((2, P)), np.linspace(-0.3, 0.4, P)) if mean == "linear" else h
    sites = {"site_shift": np.zeros((len(X), P)), "site_precision": np.zeros((len(X), 1 if shared else P))}
    parts = {"X": X, "mean_function": h} | sites
    if exact:
        return as_arrays(TVGP(KERNELS[kernel](), given, **parts))
    return as_arrays(TNNGP(KERNELS[kernel](), given, neighbours=neighbours, **parts)).renew_neighbours()


def stepped(model, X, y, times=2, rate=0.7, **known):
    """The model after some site steps on all rows."""
    update = SiteStep(rate)
    state, batch = update.init(model), model._batch(X, y, **known)
    for _ in range(times):
        model, state, _ = update(model, batch, state)
    return model


def case(likelihood="bernoulli", kernel="rbf-ard", mean="constant", what="nothing", rows=ROWS, times=2, **options):
    """A model with sites that mean something, and the batch of its rows."""
    X, y = data(likelihood, rows)
    known = known_of(what, likelihood, rows)
    model = stepped(blank(likelihood, X, kernel, mean, **options), X, y, times=times, **known)
    return model, model._batch(X, y, **known)


def moved(place, model, batch):
    """The model and the batch in another library."""
    taken = batch.take(place.array)
    return place.move(model), taken


def value_of(model, batch, **options):
    return model._objective(batch, **options)[0]


def gradient_of(model, batch, **options):
    """The gradient by parameters, zeros where there is none."""
    bars = tree.leaves(model._objective(batch, **options)[1](1.0)[0])
    values = tree.leaves(model, "parameter")
    return {name: np.zeros_like(x) if bars.get(name) is None else bars[name] for name, x in values.items()}


def with_all_neighbours(model):
    """The model each of whose predictions depends on all rows."""
    return dataclasses.replace(model, neighbours=len(model.X))
