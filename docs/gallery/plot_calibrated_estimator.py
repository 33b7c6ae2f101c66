"""Calibration of an estimator
===========================

The plots show the share of test targets inside intervals of each level. If the model is calibrated, the curve lies on
the diagonal; if the intervals are too narrow, it lies below the diagonal. The left plot uses the standard deviations
that the estimator predicts. The right plot uses half of these standard deviations.
"""

import matplotlib.pyplot as plt
import numpy as np

import agp
from agp.estimators import GPRegressor
from agp.metrics import coverage

rng = np.random.default_rng(0)
X = rng.uniform(-2.0, 2.0, (700, 2))
y = np.sin(2.0 * X[:, 0]) * X[:, 1] + 0.3 * rng.standard_normal(700)
model = GPRegressor().fit(X[:300], y[:300])
mean, deviation = model.predict(X[300:], return_std=True)

fig, axes = plt.subplots(1, 2, figsize=(9, 4.2), sharey=True, layout="constrained")
agp.plot.plot_calibration(model, X[300:], y[300:], ax=axes[0])
axes[0].set_title("GPRegressor: the curve lies on the diagonal")
levels = np.linspace(0.02, 0.98, 49)
shares = [coverage(mean, (0.5 * deviation) ** 2, y[300:], level) for level in levels]
axes[1].plot(levels, shares, color="C1", label="half of the predicted deviations")
axes[1].plot([0.0, 1.0], [0.0, 1.0], "--", color="0.5")
axes[1].set(title="Overconfident: the curve lies below", xlabel="nominal level of the interval")
axes[1].legend()
plt.show()
