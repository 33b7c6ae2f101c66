"""Counts
======

The data are numbers of events per hour during one week, with more events by day than by night. Their variance is
larger than that of a ``Poisson`` distribution. ``NegativeBinomial`` has a parameter for this variance, so its intervals
are wider and have the right coverage.
"""

import matplotlib.pyplot as plt
import numpy as np

import agp

rng = np.random.default_rng(0)
X = np.arange(168.0)[:, None]
rate = np.exp(1.5 + np.sin(2.0 * np.pi * (X - 8.0) / 24.0))
y = rng.poisson(rate * rng.gamma(3.0, 1.0 / 3.0, X.shape)).astype(float)

fig, axes = plt.subplots(2, 1, figsize=(8, 5.5), sharex=True, sharey=True, layout="constrained")
for ax, likelihood in zip(axes, (agp.Poisson(), agp.NegativeBinomial()), strict=True):
    kernel = agp.Periodic(lengthscale=1.0, period=24.0)
    model = agp.SVGP.from_data(
        X, y, kernel=kernel, likelihood=likelihood, posterior="whitened", num_inducing=30, jitter=1e-6
    )
    model = agp.train(model, X, y, steps=300, updates=agp.recipe(model, 300, frozen="kernel.period")).model
    mean, variance = model.predict(X, observed=True)
    spread = 1.96 * np.sqrt(variance[:, 0])
    ax.fill_between(X[:, 0], np.maximum(mean[:, 0] - spread, 0.0), mean[:, 0] + spread, color="C0", alpha=0.25)
    ax.plot(X, mean, color="C0", label="rate")
    ax.plot(X, rate, "--", color="C1", label="true rate")
    ax.plot(X, y, ".", color="0.3", markersize=4, label="counts")
    inside = agp.metrics.coverage(mean, variance, y)
    ax.set(title=f"{type(likelihood).__name__}: {inside:.0%} inside the band", ylabel="events in an hour")
axes[1].set_xlabel("hour")
axes[0].legend(loc="upper right", fontsize=8, ncols=3)
plt.show()
