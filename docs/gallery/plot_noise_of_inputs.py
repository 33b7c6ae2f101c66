"""Noise that depends on the inputs
================================

``LatentNoiseGaussian`` has one latent function for the mean and one for the logarithm of the noise. ``Gaussian`` has
constant noise, so its band is too wide where the noise is small, and too narrow where the noise is large.
"""

import matplotlib.pyplot as plt
import numpy as np

import agp

rng = np.random.default_rng(0)
X = np.sort(rng.uniform(-2.0, 2.0, (300, 1)), axis=0)
y = np.sin(3.0 * X) + np.exp(0.8 * X - 1.5) * rng.standard_normal(X.shape)

fig, axes = plt.subplots(1, 2, figsize=(9, 4), sharey=True, layout="constrained")
for ax, likelihood in zip(axes, (agp.Gaussian(), agp.LatentNoiseGaussian()), strict=True):
    model = agp.SVGP.from_data(X, y, likelihood=likelihood, posterior="whitened", num_inducing=20)
    model = agp.train(model, X, y, steps=400).model
    mean, variance = model.predict(X, observed=True)
    spread = 1.96 * np.sqrt(variance[:, 0])
    ax.fill_between(X[:, 0], mean[:, 0] - spread, mean[:, 0] + spread, color="C0", alpha=0.25, label="95 %")
    ax.plot(X, mean, color="C0", label="mean")
    ax.plot(X, y, ".", color="0.3", markersize=3, label="data")
    nlpd = agp.metrics.nlpd(model.log_density(X, y))
    ax.set(title=f"{type(likelihood).__name__}: NLPD {nlpd:.2f}", xlabel="x")
axes[0].legend()
plt.show()
