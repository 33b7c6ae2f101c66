"""Compare t-SVGP with q-SVGP, an SVGP that trains q(u) by natural gradients, in variational EM.

    python docs/examples/dual_against_natural.py banana.npz ionosphere.npz mnist.npz --picture curves.png

Each file has inputs X, classes y and optionally a train_mask. Without a file, the script generates data with two
classes. It first compares the q(u) of all methods at fixed hyperparameters. Then it trains q(u) and the hyperparameters
alternately, from the same initial values, and compares the bounds.
"""

import argparse
import itertools
import time
from functools import partial
from pathlib import Path

import numpy as np

import agp
from agp.training import Batches
from agp.updates import Adam, InverseUpdate, NaturalGradient, SiteStep

# An outer iteration has "e" steps for q(u), then "m" steps for the hyperparameters, each on a new batch. The pairs are
# (number of steps, learning rate).
TWO_CLASSES = {"inducing": 50, "e": (6, 0.75), "m": (14, 0.2), "batch": None, "frozen": ("Z",), "outer": 50}
MORE_CLASSES = {"inducing": 100, "e": (4, 0.03), "m": (1, 0.03), "batch": 200, "frozen": (), "outer": 100}
METHODS = {
    "q-SVGP": partial(agp.SVGP.from_data, posterior=agp.posteriors.Whitened),
    "t-SVGP, a site for each datum": agp.TSVGP.from_data,
    "t-SVGP, natural (A-tied)": partial(agp.SVGP.from_data, posterior=agp.posteriors.Dual),
    "t-SVGP, inverse-free (K-tied)": partial(agp.SVGP.from_data, posterior=agp.posteriors.DualInverseFree),
}


def load(path, rows, rng):
    """Load inputs and classes from a file: at most `rows` training rows, in random order."""
    if path is None:
        X = rng.normal(size=(150, 2))
        return "synthetic", X, (np.sin(2.0 * X[:, :1]) > X[:, 1:]).astype(float)
    with np.load(path) as file:
        X, y = file["X"], file["y"]
        chosen = np.flatnonzero(file["train_mask"]) if "train_mask" in file.files else np.arange(len(y))
        chosen = rng.permutation(chosen)[:rows]
    X = X[chosen].astype(float)
    X = X / 255.0 if X.max() > 100.0 else (X - X.mean(axis=0)) / X.std(axis=0)  # pixels, or columns with other units
    return Path(path).stem, X, y[chosen].astype(float).reshape(-1, 1)


def start(name, X, y, recipe):
    """Return the untrained model of a method, its batches, and its updates for q(u) and the hyperparameters."""
    likelihood = agp.Bernoulli() if y.max() == 1.0 else agp.Softmax(int(y.max()) + 1, fixed_samples=40)
    parts = {"kernel": agp.Matern52(1.0, [1.0] * X.shape[1]), "likelihood": likelihood, "Z": X[: recipe["inducing"]]}
    model = METHODS[name](X, y, **parts)
    stream = map(Batches(X, y, recipe["batch"] or len(X), 0, model._draws).__getitem__, itertools.count())
    natural, datum, _, free = (name == known for known in METHODS)
    rate = recipe["e"][1]
    if datum and recipe["batch"]:  # each epoch updates a site only once
        rate = 1.0 - (1.0 - rate) ** (len(X) / recipe["batch"])
    e_step = NaturalGradient(rate) if natural else SiteStep(rate)
    adam = Adam(recipe["m"][1], frozen=(*recipe["frozen"], "posterior.*") if natural else recipe["frozen"])
    return model, stream, [e_step], [adam, InverseUpdate()] if free else [adam]


def repeated(updates, states, model, stream, times):
    """Apply the updates in turn, `times` times, each time on the next batch, and return the model."""
    for _ in range(times):
        batch = next(stream)
        for i, update in enumerate(updates):
            model, states[i], _ = update(model, batch, states[i])
    return model


def largest_difference(X, y, recipe, steps):
    """Return the largest difference between each method's q(u) and that of q-SVGP, relative to the largest entry."""
    iterates = {name: [] for name in METHODS}
    for name, found in iterates.items():
        model, stream, e_step, _ = start(name, X, y, recipe)
        states = [e_step[0].init(model)]
        for _ in range(steps):
            model = repeated(e_step, states, model, stream, 1)
            Z = X[: recipe["inducing"]]  # the inducing inputs, which do not move
            found += [model.predict_mean(Z), model.predict_covariance(Z)]
    pairs = {name: zip(found, iterates["q-SVGP"], strict=True) for name, found in iterates.items()}
    return {name: max(np.abs(a - b).max() / np.abs(b).max() for a, b in each) for name, each in pairs.items()}


def trained(name, X, y, recipe):
    """Return the bound on all rows after each outer iteration, and the cumulative CPU seconds."""
    model, stream, *steps = start(name, X, y, recipe)
    states = [[update.init(model) for update in updates] for updates in steps]
    curve, seconds = [], 0.0
    for _ in range(recipe["outer"]):
        began = time.process_time()
        for i, times in enumerate((recipe["e"][0], recipe["m"][0])):
            model = repeated(steps[i], states[i], model, stream, times)
        seconds += time.process_time() - began
        curve.append((float(model.bound(X, y)[0]), seconds))
    return np.asarray(curve).T


def report(name, X, y, recipe):
    """Print the table of a data set, and return the curves."""
    differences = largest_difference(X, y, recipe, steps=20)
    curves = {label: trained(label, X, y, recipe) for label in METHODS}
    print(f"\n{name}, {len(X)} rows: {recipe}")
    print("method | difference of q(u) | last bound | iterations: within 1 nat | to the bound | seconds | ms each")
    for label, (bounds, seconds) in curves.items():
        close, there = (np.flatnonzero(bounds >= curves["q-SVGP"][0][-1] - nats) for nats in (1.0, 0.0))
        when = f"{there[0] + 1} | {seconds[there[0]]:.2f}" if there.size else "never |"
        when = f"{close[0] + 1 if close.size else 'never'} | {when} | {1e3 * seconds[-1] / recipe['outer']:.0f}"
        print(f"{label} | {differences[label]:.0e} | {bounds[-1]:.1f} | {when}", flush=True)
    return curves


def draw(results, path):
    """Plot the bounds against outer iterations and CPU seconds, in one column per data set."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6 * len(results), 6.5), layout="constrained")
    panels = figure.subplots(2, len(results), squeeze=False)
    for (name, curves), (upper, lower) in zip(results.items(), panels.T, strict=True):
        for label, (bounds, seconds) in curves.items():
            upper.plot(np.arange(1, len(bounds) + 1), bounds, label=label)
            lower.plot(seconds, bounds)
        upper.set(title=name, xlabel="outer iterations", ylabel="bound")
        lower.set(xlabel="CPU seconds", ylabel="bound", xscale="log")
    panels[0, 0].legend(fontsize=8)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--outer", type=int, help="outer iterations (default: 50, or 100 for more than two classes)")
    parser.add_argument("--rows", type=int, default=10_000, help="maximum number of training rows")
    parser.add_argument("--picture", help="where to save the curves")
    a = parser.parse_args()
    results = {}
    for path in a.files or [None]:
        name, X, y = load(path, a.rows, np.random.default_rng(0))
        recipe = TWO_CLASSES if y.max() == 1.0 else MORE_CLASSES
        results[name] = report(name, X, y, recipe | {"outer": a.outer or recipe["outer"]})
    if a.picture:
        draw(results, a.picture)
