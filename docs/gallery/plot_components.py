"""Trend and season
================

If the kernel is a sum, the posterior of each of its terms is known, with error bars. In this monthly series of ten
years, trend and season are learned from noisy months, some of which are missing. The season has the average zero over
the data (`agp.kernels.Centred`); otherwise, a constant could move from the trend to the season, and the bands of both
would be wide.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import agp
from agp.estimators import GPRegressor

rng = np.random.default_rng(2)
months = np.arange(120)
trend = 300.0 + np.cumsum(rng.normal(0.3, 1.0, 120))
season = 12.0 * np.sin(2.0 * np.pi * months / 12.0)
table = pd.DataFrame({"month": pd.date_range("2004-01-01", periods=120, freq="MS")})
visitors = trend + season + rng.normal(0.0, 4.0, 120)
seen = (months < 40) | (months > 60)

kernel = agp.Matern32() + agp.kernels.Centred(agp.Seasonal(period=365.25))
model = GPRegressor(kernel=kernel, random_state=0).fit(table[seen], visitors[seen])

groups = {"trend": ["matern32", "mean function"], "season": "centred(seasonal(365.25))"}
fig, axes = plt.subplots(2, 1, figsize=(8, 6), sharex=True, layout="constrained")
agp.plot.plot_components(model, table, groups=groups, ax=axes)
axes[0].plot(table["month"][seen], visitors[seen], ".", color="0.6", markersize=4, label="data")
for ax, truth in zip(axes, (trend, season), strict=True):
    ax.plot(table["month"], truth, "k:", linewidth=1, label="truth")
axes[0].legend()
plt.show()
