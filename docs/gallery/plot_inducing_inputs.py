"""Initial inducing inputs
=======================

This example compares three ways to choose initial inducing inputs for data that lie mostly in one corner. A random
choice places most inducing inputs there, k-means places fewer there, and the greedy choice covers the plane.
"""

import matplotlib.pyplot as plt
import numpy as np

import agp

rng = np.random.default_rng(0)
X = np.concatenate([0.15 * rng.standard_normal((800, 2)), rng.uniform(-0.5, 2.0, (200, 2))])
y = np.sin(4.0 * X[:, :1]) + X[:, 1:] + 0.1 * rng.standard_normal((1000, 1))

fig, axes = plt.subplots(1, 3, figsize=(11, 4), sharey=True, layout="constrained")
for ax, way in zip(axes, ("kmeans", "random", "greedy-variance"), strict=True):
    model = agp.SVGP.from_data(X, y, num_inducing=30, inducing=way, seed=0)
    ax.plot(*X.T, ".", color="0.7", markersize=3, label="data")
    ax.plot(*model.inducing.Z.T, "o", color="C1", markeredgecolor="white", label="inducing inputs")
    bound = float(agp.SGPR.from_data(X, y, num_inducing=30, inducing=way, seed=0).bound(X, y)[0])
    ax.set(title=f"{way}: bound {bound:.0f} nats", xlabel="first input")
axes[0].set_ylabel("second input")
axes[2].legend(loc="upper right", fontsize=8)
plt.show()
