"""Regression with error bars
==========================

A sparse GP on 200 noisy points. The dark band is the 95 % interval of the function, the light one that of new
observations. Outside the data the function returns to its mean and the bands widen.
"""

import matplotlib.pyplot as plt
import numpy as np

import agp

rng = np.random.default_rng(0)
X = np.sort(rng.uniform(0.0, 10.0, (200, 1)), axis=0)
y = np.sin(X) + 0.1 * X + 0.2 * rng.standard_normal(X.shape)

# %%
# ``fit`` trains to convergence. The number of inducing inputs is the only choice.

result = agp.fit(agp.SVGP.from_data(X, y, num_inducing=15), X, y)
print(result.converged, result.message)

fig, ax = plt.subplots(figsize=(7, 4), layout="constrained")
agp.plot.plot_fit(result.model, X, y, ax=ax, margin=0.3)
fig.suptitle("A wave through noisy points, with bands that widen beyond the data")
plt.show()
