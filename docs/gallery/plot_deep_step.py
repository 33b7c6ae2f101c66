"""A step with one layer and with two
==================================

A GP with a smooth kernel needs a short lengthscale to fit a step, and overshoots. In a deep GP, the first layer
stretches the axis near the step.
"""

import matplotlib.pyplot as plt
import numpy as np

import agp

rng = np.random.default_rng(0)
X = np.sort(rng.uniform(-2.0, 2.0, (150, 1)), axis=0)
y = np.where(X > 0.0, 1.0, -1.0) + 0.1 * rng.standard_normal(X.shape)
grid = np.linspace(-2.0, 2.0, 200)[:, None]

fig, axes = plt.subplots(1, 2, figsize=(9, 4), sharey=True, layout="constrained")
for ax, layers in zip(axes, (1, 2), strict=True):
    model = agp.DeepGP.from_data(X, y, layers=layers, posterior="whitened", num_inducing=15, prediction_samples=100)
    model = agp.train(model, X, y, steps=800, seed=0).model
    mean, variance = model.predict(grid)
    spread = 1.96 * np.sqrt(variance[:, 0])
    ax.fill_between(grid[:, 0], mean[:, 0] - spread, mean[:, 0] + spread, color="C0", alpha=0.3, label="95 %")
    ax.plot(grid, mean, color="C0", label="mean")
    ax.plot(X, y, ".", color="0.3", markersize=4, label="data")
    ax.set(title=f"A step fitted with {layers} layer{'s' if layers > 1 else ''}", xlabel="x")
axes[0].legend(fontsize=8)
plt.show()
