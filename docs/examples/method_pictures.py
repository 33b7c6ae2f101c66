"""Draw the plots for the pages in docs/methods, from synthetic data.

python docs/examples/method_pictures.py docs/pictures
"""

import sys
import warnings
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import agp
from agp.linalg import inverse_factor

POSTERIORS = (
    agp.posteriors.Marginal,
    agp.posteriors.Whitened,
    agp.posteriors.LikelihoodForm,
    agp.posteriors.Relaxed,
    agp.posteriors.InverseFree,
)


def waves(rows, seed=0):
    """Draw inputs from 0 to 6 and noisy values of a sine wave."""
    rng = np.random.default_rng(seed)
    X = np.sort(rng.uniform(0.0, 6.0, (rows, 1)), axis=0)
    return X, np.sin(3.0 * X) + 0.2 * rng.standard_normal(X.shape)


def panels(count, **options):
    """Create a figure with `count` panels side by side."""
    return plt.subplots(1, count, figsize=(9.0, 3.0), layout="constrained", **options)


def band(ax, at, moments, label="function, 95 %"):
    """Plot the mean and the 95 % interval of a function at inputs [G, 1]."""
    mean, spread = moments.mean[:, 0], 1.96 * np.sqrt(moments.variance[:, 0])
    ax.fill_between(at[:, 0], mean - spread, mean + spread, alpha=0.3, label=label)
    ax.plot(at[:, 0], mean, color="C0")


def prior_and_posterior():
    """Plot samples of a Gaussian process prior and of its posterior."""
    X, y = waves(12, seed=3)
    at = np.linspace(0.0, 6.0, 200)[:, None]
    model = agp.fit(agp.GPR.from_data(X, y), X, y).model
    prior = np.linalg.cholesky(model.kernel(at)[0] + 1e-8 * np.eye(200)) @ np.random.default_rng(1).normal(
        size=(200, 4)
    )
    figure, (left, right) = panels(2, sharey=True)
    left.plot(at, prior)
    deviation = 1.96 * np.sqrt(model.kernel.diag(at)[0])
    left.fill_between(at[:, 0], -deviation, deviation, alpha=0.15)
    right.plot(at, model.sample(at, 4, seed=0)[:, :, 0].T, linewidth=0.9)
    band(right, at, model.predict(at))
    right.plot(X, y, "k.")
    left.set(title="prior", xlabel="x", ylabel="f")
    right.set(title="posterior, and the data", xlabel="x")
    return figure


def fewer_inducing_inputs():
    """Plot the sparse posterior and its bound for several numbers of inducing inputs."""
    X, y = waves(200)
    at = np.linspace(-0.5, 6.5, 300)[:, None]
    exact = agp.fit(agp.GPR.from_data(X, y), X, y).model
    evidence, truth = float(exact.bound(X, y)[0]), exact.predict(at)
    figure, axes = panels(3, sharey=True)
    for ax, M in zip(axes, (4, 8, 16), strict=True):
        model = agp.SVGP.from_data(X, y, num_inducing=M, posterior="whitened")
        model = agp.fit(model, X, y).model
        band(ax, at, model.predict(at), "q(f), 95 %")
        ends = truth.mean + 1.96 * np.sqrt(truth.variance) * [-1.0, 1.0]
        ax.plot(at, ends, "k--", linewidth=0.8, label=["exact GP, 95 %", None])
        ax.plot(X, y, ".", color="0.6", markersize=2)
        ax.plot(model.process.inducing.Z, np.full(M, -1.9), "^", color="C1", markersize=4, label="inducing inputs")
        behind = evidence - float(model.bound(X, y)[0])
        text = f"{behind:.0f}" if behind > 10.0 else f"{behind:.2g}"
        ax.set(title=f"M = {M}: {text} nats below", xlabel="x")
    axes[0].legend(fontsize=7, loc="upper right")
    return figure


def without_inverses():
    """Plot the residuals of the inversion by products, and the variances after only a few inversion steps."""
    X, y = waves(200)
    at = np.linspace(0.0, 6.0, 300)[:, None]
    model = agp.fit(agp.SVGP.from_data(X, y, num_inducing=40), X, y).model
    process = model.process
    K = process.kernel(process.inducing.Z)[0]
    figure, (left, right) = panels(2)
    for noise in (1.0, 1e-2, 1e-4):
        Kt = K + noise * np.mean(np.diagonal(K)) * np.eye(len(K))
        steps = np.arange(40)
        residuals = [float(inverse_factor(Kt, tolerance=1e-14, max_steps=int(i)).residual) for i in steps]
        left.semilogy(steps, residuals, ".-", label=f"condition number {np.linalg.cond(Kt):.0e}")
    left.set(xlabel="natural-gradient steps from a cold start", ylabel="residual", ylim=(1e-15, 2.0))
    left.legend(fontsize=8)
    Kt = K + np.diag(process.posterior.site)
    for max_steps, style in ((0, "C2--"), (6, "C1--"), (60, "C0-")):
        found = inverse_factor(Kt, tolerance=1e-10, max_steps=max_steps)
        inexact = replace(process, posterior=replace(process.posterior, inverse_factor=found.factor))
        _, variance = inexact.project(inexact.factorise()[0], at)[0]
        text = f"after {max_steps} steps: residual {float(found.residual):.0e}"
        right.plot(at, np.sqrt(variance), style, label=text)
    right.set(xlabel="x", ylabel="deviation of f", ylim=(0.0, None))
    right.legend(fontsize=8)
    return figure


def sites():
    """Plot counts, their rate, and the sites: the Gaussian observations that would give the same posterior q(f)."""
    rng = np.random.default_rng(0)
    X = np.sort(rng.uniform(0.0, 6.0, (40, 1)), axis=0)
    y = rng.poisson(np.exp(1.0 + np.sin(2.0 * X))).astype(float)
    at = np.linspace(0.0, 6.0, 300)[:, None]
    model = agp.fit(agp.TVGP.from_data(X, y, likelihood=agp.Poisson()), X, y).model
    level = model.mean_function(X)[0]
    shift, precision = model.site_shift, model.site_precision
    figure, (left, right) = panels(2)
    left.plot(X, y, "k.", label="counts")
    observed = model.predict(at, observed=True)
    left.plot(at, observed.mean, label="predicted mean")
    left.set(xlabel="x", ylabel="y")
    band(right, at, model.predict(at), "q(f), 95 %")
    where, spread = (level + shift / precision)[:, 0], 1.0 / np.sqrt(precision[:, 0])
    bars = {"fmt": "k.", "elinewidth": 0.6, "markersize": 4}
    right.errorbar(X[:, 0], where, yerr=spread, label="sites, one deviation", **bars)
    right.set(xlabel="x", ylabel="f: logarithm of the rate")
    for ax in (left, right):
        ax.legend(fontsize=8)
    return figure


def family():
    """Plot how the bounds of all parameterisations of q(u) approach the evidence during training at the same rate."""
    X, y = waves(300)
    figure, ax = plt.subplots(figsize=(6.0, 3.6), layout="constrained")
    exact = agp.fit(agp.GPR.from_data(X, y), X, y).model
    evidence = float(exact.bound(X, y)[0])
    for posterior in POSTERIORS:
        model = agp.SVGP.from_data(X, y, posterior=posterior, num_inducing=20)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", agp.errors.RepairWarning)  # InverseFree sometimes recomputes its factor
            bounds = np.asarray(agp.train(model, X, y, steps=600).trace["bound"])
        ax.loglog(np.arange(1, len(bounds) + 1), evidence - bounds, label=posterior.__name__, linewidth=1.3)
    ax.set(xlabel="steps", ylabel="nats below the log evidence")
    ax.legend(fontsize=8)
    return figure


def two_groups():
    """Plot the bounds with one group of M inducing inputs, and with two orthogonal groups of M / 2 each."""
    X, y = waves(400)
    exact = agp.fit(agp.GPR.from_data(X, y), X, y).model
    evidence = float(exact.bound(X, y)[0])
    sizes = (4, 6, 8, 10, 12, 16, 20, 24)
    one, two = [], []
    for M in sizes:
        single = agp.SGPR.from_data(X, y, num_inducing=M)
        one.append(evidence - float(agp.fit(single, X, y).model.bound(X, y)[0]))
        double = agp.SOLVEGPR.from_data(X, y, num_inducing=M // 2, num_orthogonal=M // 2)
        two.append(evidence - float(agp.fit(double, X, y).model.bound(X, y)[0]))
    figure, ax = plt.subplots(figsize=(5.0, 3.2), layout="constrained")
    ax.semilogy(sizes, one, "o-", markersize=4, label="one group of M")
    ax.semilogy(sizes, two, "s-", markersize=4, label="two groups of M / 2")
    ax.set(xlabel="total number of inducing inputs M", ylabel="nats below the log evidence")
    ax.legend(fontsize=8)
    return figure


def near_rows():
    """Plot predictions from few and from more neighbours, with the hyperparameters of the exact GP."""
    X, y = waves(200)
    at = np.linspace(0.0, 6.0, 1500)[:, None]
    exact = agp.fit(agp.GPR.from_data(X, y), X, y).model
    truth = exact.predict(at)
    figure, axes = panels(3, sharey=True)
    for ax, k in zip(axes, (3, 10, 40), strict=True):
        near = agp.NNGP(exact.kernel, exact.likelihood, X=X, y=y, mean_function=exact.mean_function, neighbours=k)
        moments = near.predict(at)
        band(ax, at, moments, "nearest rows, 95 %")
        ends = truth.mean + 1.96 * np.sqrt(truth.variance) * [-1.0, 1.0]
        ax.plot(at, ends, "k--", linewidth=0.8, label=["exact GP, 95 %", None])
        ax.plot(X, y, ".", color="0.6", markersize=2)
        apart = np.abs(moments.mean - truth.mean) / np.sqrt(truth.variance)
        ax.set(title=f"k = {k}: mean off by up to {np.max(apart):.1g} deviations", xlabel="x")
        ax.title.set_fontsize(9)
    axes[0].legend(fontsize=7, loc="upper right")
    return figure


def residuals():
    """Plot a trend with details by models that treat the residual differently, with the same hyperparameters."""
    rng = np.random.default_rng(1)
    X = np.sort(rng.uniform(0.0, 6.0, (200, 1)), axis=0)
    y = 1.5 * np.sin(0.8 * X) + 0.5 * np.sin(9.0 * X) * (X > 3.0) + 0.15 * rng.standard_normal(X.shape)
    at = np.linspace(0.0, 6.0, 600)[:, None]
    kernel = agp.RBF(1.5, 2.5) + agp.RBF(0.15, 0.25)
    parts = {"kernel": kernel, "likelihood": agp.Gaussian(0.15**2), "mean_function": agp.ZeroMean()}
    Z, more = (np.linspace(0.1, 5.9, M)[:, None] for M in (8, 9))
    models = {
        "SGPR, 8: the prior": agp.SGPR.from_data(X, y, Z=Z, **parts),
        "SOLVE-GP, 8 + 9: q": agp.SOLVEGPR.from_data(X, y, Z=Z, O=more, **parts),
        "NNGP: 5 neighbours": agp.NNGP.from_data(X, y, neighbours=5, **parts),
        "VIF, 8: 5 neighbours": agp.VIF.from_data(X, y, Z=Z, neighbours=5, **parts),
    }
    truth = agp.GPR.from_data(X, y, **parts).predict(at)
    figure, axes = panels(4, sharey=True)
    for ax, (name, model) in zip(axes, models.items(), strict=True):
        moments = model.predict(at)
        band(ax, at, moments, "model, 95 %")
        ends = truth.mean + 1.96 * np.sqrt(truth.variance) * [-1.0, 1.0]
        ax.plot(at, ends, "k--", linewidth=0.7, label=["exact GP, 95 %", None])
        ax.plot(X, y, ".", color="0.6", markersize=2)
        ax.set(title=name, xlabel="x")
        ax.title.set_fontsize(9)
    axes[0].legend(fontsize=7, loc="lower left")
    return figure


PICTURES = {
    "method-gpr": prior_and_posterior,
    "method-wsvgp": fewer_inducing_inputs,
    "method-rsvgp": without_inverses,
    "method-dual": sites,
    "method-family": family,
    "method-solve": two_groups,
    "method-neighbours": near_rows,
    "method-residual": residuals,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        draw().savefig(Path(sys.argv[1]) / f"{name}.png", dpi=90)
