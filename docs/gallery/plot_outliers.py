"""Outliers
========

One row in ten is an outlier. With ``Gaussian``, the outliers increase the noise variance of all rows. ``StudentT``
allows a few large errors, so the outliers hardly change the curve.
"""

import matplotlib.pyplot as plt
import numpy as np

import agp

rng = np.random.default_rng(0)
X = np.sort(rng.uniform(0.0, 6.0, (120, 1)), axis=0)
truth = np.sin(2.0 * X)
y = truth + 0.1 * rng.standard_normal(X.shape)
wrong = rng.uniform(size=X.shape) < 0.1
y[wrong] += rng.choice([-1.0, 1.0], wrong.sum()) * rng.uniform(2.0, 4.0, wrong.sum())

fig, axes = plt.subplots(1, 2, figsize=(9, 4), sharey=True, layout="constrained")
for ax, likelihood in zip(axes, (agp.Gaussian(), agp.StudentT()), strict=True):
    model = agp.SVGP.from_data(X, y, likelihood=likelihood, posterior="whitened", num_inducing=20)
    model = agp.train(model, X, y, steps=500).model
    mean, variance = model.predict(X)
    spread = 1.96 * np.sqrt(variance[:, 0])
    ax.fill_between(X[:, 0], mean[:, 0] - spread, mean[:, 0] + spread, color="C0", alpha=0.3, label="function, 95 %")
    ax.plot(X, mean, color="C0", label="mean")
    ax.plot(X, truth, "--", color="C1", label="truth")
    ax.plot(X, y, ".", color="0.3", markersize=4, label="data")
    error = agp.metrics.rmse(mean, truth)
    ax.set(title=f"{type(likelihood).__name__}: RMSE {error:.2f}", xlabel="x", ylim=(-3.5, 3.5))
axes[0].legend(loc="lower left", fontsize=8)
plt.show()
