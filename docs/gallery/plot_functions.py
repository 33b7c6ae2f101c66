"""Function samples
================

``sample_functions`` draws functions from the posterior, which you can evaluate at any inputs. The plot marks the
maximum of each function, as used in Thompson sampling.
"""

import matplotlib.pyplot as plt
import numpy as np

import agp

rng = np.random.default_rng(0)
X = np.concatenate([rng.uniform(0.0, 2.0, (12, 1)), rng.uniform(4.0, 5.0, (6, 1))])
y = np.sin(2.0 * X) + 0.05 * rng.standard_normal(X.shape)

kernel = agp.RBF(variance=1.0, lengthscale=0.7)
model = agp.GPR.from_data(X, y, kernel=kernel, likelihood=agp.Gaussian(0.0025))
functions = model.sample_functions(12, seed=1)
grid = np.linspace(-0.5, 6.0, 261)[:, None]
values = functions(grid)[:, :, 0]  # [S, N]

fig, ax = plt.subplots(figsize=(7.5, 4), layout="constrained")
mean, variance = model.predict(grid)
spread = 1.96 * np.sqrt(variance[:, 0])
ax.fill_between(grid[:, 0], mean[:, 0] - spread, mean[:, 0] + spread, color="C0", alpha=0.15, label="95 %")
ax.plot(grid, values.T, color="C0", linewidth=0.8, alpha=0.7)
best = np.argmax(values, axis=1)
ax.plot(grid[best, 0], values[np.arange(len(values)), best], "v", color="C1", label="maximum of each sample")
ax.plot(X, y, "o", color="black", markersize=4, label="data")
ax.set(title="Twelve sampled functions, which agree only near the data", xlabel="x")
ax.legend(fontsize=8)
plt.show()
