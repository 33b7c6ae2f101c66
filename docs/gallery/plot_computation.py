"""Computational uncertainty
=========================

``CaGP`` uses only a few linear combinations (actions) of the targets. Its variance has two parts: the mathematical
uncertainty of the exact model, and the computational uncertainty, which decreases with the number of actions.
"""

import matplotlib.pyplot as plt
import numpy as np

import agp

rng = np.random.default_rng(0)
X = np.sort(rng.uniform(0.0, 10.0, (200, 1)), axis=0)
y = np.sin(2.0 * X) + 0.2 * rng.standard_normal(X.shape)

fig, axes = plt.subplots(3, 1, figsize=(8, 7.5), sharex=True, sharey=True, layout="constrained")
for ax, count in zip(axes, (5, 10, 20), strict=True):
    model = agp.CaGP.from_data(X, y, kernel=agp.RBF(variance=0.5, lengthscale=0.7), num_actions=count)
    mean, _ = model.predict(X)
    combined, mathematical, _ = (np.sqrt(part[:, 0]) for part in model.uncertainty(X))
    at, mean = X[:, 0], mean[:, 0]
    ax.fill_between(at, mean - 1.96 * combined, mean + 1.96 * combined, color="C1", alpha=0.5, label="computational")
    ax.fill_between(
        at, mean - 1.96 * mathematical, mean + 1.96 * mathematical, color="C0", alpha=0.6, label="mathematical"
    )
    ax.plot(at, mean, color="black", linewidth=1)
    ax.plot(X, y, ".", color="0.4", markersize=3)
    ax.set_title(f"{count} actions for 200 rows")
axes[0].legend(fontsize=8, loc="upper right")
axes[-1].set_xlabel("x")
plt.show()
