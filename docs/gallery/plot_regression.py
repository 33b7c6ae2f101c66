"""Regression with error bars
==========================

This example fits a sparse GP to 200 noisy observations. The dark band is the 95 % interval of the function, and the
light band is that of new observations. Outside the data, the function returns to its mean and the bands widen.
"""

import matplotlib.pyplot as plt
import numpy as np

import agp

rng = np.random.default_rng(0)
X = np.sort(rng.uniform(0.0, 10.0, (200, 1)), axis=0)
y = np.sin(X) + 0.1 * X + 0.2 * rng.standard_normal(X.shape)

# %%
# ``fit`` trains to convergence. You choose only the number of inducing inputs.

result = agp.fit(agp.SVGP.from_data(X, y, num_inducing=15), X, y)
print(result.converged, result.message)

fig, ax = plt.subplots(figsize=(7, 4), layout="constrained")
agp.plot.plot_fit(result.model, X, y, ax=ax, margin=0.3)
fig.suptitle("A sparse GP whose bands widen outside the data")
plt.show()
