"""Forecasting with a sum of kernels
=================================

The data are ten years of monthly values with a trend and a season. With a sum of kernels, the model extrapolates both
trend and season. With a single RBF kernel, the forecast returns to the mean.
"""

import matplotlib.pyplot as plt
import numpy as np

import agp

rng = np.random.default_rng(0)
years = np.arange(0.0, 14.0, 1.0 / 12.0)[:, None]
season = np.sin(2.0 * np.pi * years) + 0.4 * np.cos(4.0 * np.pi * years)
y = 0.25 * years + season + 0.2 * rng.standard_normal(years.shape)
seen = years[:, 0] < 10.0

kernels = {
    "RBF": agp.RBF(),
    "periodic + linear + RBF": agp.Periodic(lengthscale=1.0, period=1.0) + agp.Linear() + agp.RBF(lengthscale=3.0),
}

fig, axes = plt.subplots(2, 1, figsize=(8, 5.5), sharex=True, sharey=True, layout="constrained")
for ax, (name, kernel) in zip(axes, kernels.items(), strict=True):
    model = agp.fit(agp.GPR.from_data(years[seen], y[seen], kernel=kernel), years[seen], y[seen]).model
    mean, variance = model.predict(years, observed=True)
    spread = 1.96 * np.sqrt(variance[:, 0])
    ax.fill_between(years[:, 0], mean[:, 0] - spread, mean[:, 0] + spread, color="C0", alpha=0.25, label="95 %")
    ax.plot(years, mean, color="C0", label="mean")
    ax.plot(years[seen], y[seen], ".", color="black", markersize=3, label="training data")
    ax.plot(years[~seen], y[~seen], ".", color="C1", markersize=4, label="test data")
    error = agp.metrics.rmse(mean[~seen], y[~seen])
    ax.axvline(10.0, color="0.5", linewidth=0.8)
    ax.set_title(f"{name}: RMSE of the four-year forecast {error:.2f}")
axes[0].legend(fontsize=8, ncols=4, loc="upper left")
axes[1].set_xlabel("years")
plt.show()
