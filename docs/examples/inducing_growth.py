"""Draw the growth plot for docs/selection.md, from synthetic data.

python docs/examples/inducing_growth.py docs/pictures
"""

import sys
from pathlib import Path

import numpy as np

import agp

rng = np.random.default_rng(0)
X = rng.uniform(-3.0, 3.0, (2000, 2))
y = np.sin(2.0 * X[:, :1]) * np.cos(2.0 * X[:, 1:]) + 0.2 * rng.standard_normal((2000, 1))
result = agp.fit_growing(agp.SGPR.from_data(X, y, num_inducing=16), X, y)
print(result.describe())
agp.plot.plot_growth(result).savefig(Path(sys.argv[1]) / "inducing-growth.png", dpi=70)
