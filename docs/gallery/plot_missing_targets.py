"""Missing targets of related outputs
==================================

The second of two related outputs has only ten measurements, and its missing targets are NaN. With coregionalisation,
the model predicts the second output from the shape of the first.
"""

import matplotlib.pyplot as plt
import numpy as np

import agp

rng = np.random.default_rng(0)
X = np.sort(rng.uniform(-3.0, 3.0, (150, 1)), axis=0)
wave = np.sin(2.0 * X) + 0.3 * X
truth = np.concatenate([wave, 3.0 - wave], axis=1)
y = truth + 0.1 * rng.standard_normal(truth.shape)
y[rng.permutation(150)[10:], 1] = np.nan

fig, axes = plt.subplots(1, 2, figsize=(9, 4), sharey=True, layout="constrained")
for ax, outputs in zip(axes, ("separate", "coregionalised"), strict=True):
    model = agp.SVGP.from_data(
        X, y, outputs=outputs, likelihood=agp.Gaussian(missing=True), posterior="whitened", num_inducing=10
    )
    model = agp.train(model, X, y, steps=400).model
    mean, variance = model.predict(X)
    for p, (colour, marker) in enumerate((("C0", "."), ("C1", "s"))):
        spread = 1.96 * np.sqrt(variance[:, p])
        ax.fill_between(X[:, 0], mean[:, p] - spread, mean[:, p] + spread, color=colour, alpha=0.25)
        ax.plot(X, mean[:, p], color=colour, label=f"output {p + 1}")
        ax.plot(X, truth[:, p], "--", color="black", linewidth=0.8)
        ax.plot(X, y[:, p], marker, color=colour, markersize=4)
    error = agp.metrics.rmse(mean[:, 1:], truth[:, 1:])
    ax.set(title=f"{outputs}: RMSE of the second output {error:.2f}", xlabel="x")
axes[0].legend(fontsize=8)
plt.show()
