"""Two groups of inducing inputs
=============================

SOLVE-GP adds a second group of inducing inputs, whose part of the model is orthogonal to that of the first group. Two
groups of twelve are almost as accurate as one group of twenty-four, but use only matrices of size twelve.
"""

import matplotlib.pyplot as plt
import numpy as np

import agp

rng = np.random.default_rng(0)
X = np.sort(rng.uniform(0.0, 10.0, (400, 1)), axis=0)
y = np.sin(4.0 * X) * np.exp(-0.1 * X) + 0.1 * rng.standard_normal(X.shape)

common = {"posterior": "whitened", "seed": 0, "kernel": agp.RBF(lengthscale=0.5)}
models = {
    "one group, M = 12": agp.SVGP.from_data(X, y, num_inducing=12, **common),
    "two groups, 12 + 12": agp.SOLVEGP.from_data(X, y, num_inducing=12, num_orthogonal=12, **common),
    "one group, M = 24": agp.SVGP.from_data(X, y, num_inducing=24, **common),
}

fig, axes = plt.subplots(3, 1, figsize=(8, 7), sharex=True, sharey=True, layout="constrained")
for ax, (name, model) in zip(axes, models.items(), strict=True):
    model = agp.train(model, X, y, steps=800).model
    mean, variance = model.predict(X)
    spread = 1.96 * np.sqrt(variance[:, 0])
    ax.plot(X, y, ".", color="0.6", markersize=3)
    ax.fill_between(X[:, 0], mean[:, 0] - spread, mean[:, 0] + spread, color="C0", alpha=0.35)
    ax.plot(X, mean, color="C0")
    for i, Z in enumerate(agp.inspection.inducing_inputs(model).values()):
        ax.plot(Z[:, 0], np.full(len(Z), -1.4 - 0.15 * i), "^s"[i], color=("C1", "C2")[i], markersize=5)
    ax.set_title(f"{name}: bound {float(model.bound(X, y)[0]):.0f} nats")
axes[-1].set_xlabel("x")
plt.show()
