"""Train every parameterisation of q(u) from the same initial values, and compare their bounds with the collapsed bound.

    python docs/examples/loss_traces.py snelson.npz --picture traces.png

The file has inputs X with one column and targets y. Without a file, the script generates a noisy sine wave.
"""

import argparse
from functools import partial

import numpy as np

import agp
from agp.posteriors import InverseFree, LikelihoodForm, Marginal, Relaxed, Whitened

VARIANTS = {
    "M-SVGP": Marginal,
    "W-SVGP": Whitened,
    "A-SVGP": InverseFree,
    "L-SVGP": LikelihoodForm,
    "L-SVGP, no preconditioner": partial(LikelihoodForm.from_prior, preconditioned=False),
    "R-SVGP": Relaxed,
    "R-SVGP, no preconditioner": partial(Relaxed.from_prior, preconditioned=False),
}


def load(path):
    """Load inputs [N, 1] and standardised targets [N, 1]."""
    if path is None:
        rng = np.random.default_rng(0)
        X = rng.uniform(0.0, 6.0, size=(60, 1))
        y = np.sin(2.0 * X) + 0.3 * rng.normal(size=X.shape)
    else:
        with np.load(path) as file:
            X, y = (np.asarray(file[name], dtype=np.float64).reshape(-1, 1) for name in ("X", "y"))
    return X, (y - y.mean()) / y.std()


def draw(traces, best, path):
    """Plot the differences from the best bound against the steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, trace in traces.items():
        dashes = "--" if name.startswith("R") else "-"  # the curves of L-SVGP lie below these
        axes.semilogy(np.maximum(best - trace, 1e-2), dashes, label=name, linewidth=1.5)
    axes.set(xlabel="step", ylabel="collapsed bound - bound, in nats")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


def main():
    """Train the models, print the bounds and plot them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--picture", help="where to save the curves")
    a = parser.parse_args()
    X, y = load(a.file)
    Z = np.linspace(X.min(), X.max(), 10)[:, None]
    best = float(agp.fit_lbfgs(agp.SGPR.from_data(X, y, Z=Z, mean_function=agp.ZeroMean()), X, y).model.bound(X, y)[0])
    traces = {}
    for name, posterior in VARIANTS.items():
        model = agp.SVGP.from_data(X, y, posterior=posterior, Z=Z, mean_function=agp.ZeroMean())
        plain = agp.recipe(model, a.steps, rate=0.01, fall=1.0, natural=None)
        traces[name] = np.asarray(agp.train(model, X, y, steps=a.steps, updates=plain).trace["bound"])
        last = traces[name][-1]
        print(f"{name:28s} bound {last:9.3f}, {best - last:7.3f} below the collapsed bound {best:.3f}", flush=True)
    if a.picture:
        draw(traces, best, a.picture)


if __name__ == "__main__":
    main()
