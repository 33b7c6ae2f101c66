"""Two classes in the plane
========================

The ``Bernoulli`` likelihood maps the latent function to a probability. Far from the data, the probability returns to
the class frequencies.
"""

import matplotlib.pyplot as plt
import numpy as np

import agp

rng = np.random.default_rng(0)
angle, kind = rng.uniform(0.0, np.pi, 300), rng.integers(0, 2, 300)
X = np.stack([np.cos(angle) + kind, np.sin(angle) * (1 - 2 * kind) + 0.3 * kind], axis=1)
X += 0.2 * rng.standard_normal(X.shape)
labels = kind[:, None].astype(float)

model = agp.SVGP.from_data(X, labels, likelihood=agp.Bernoulli(), posterior="whitened", num_inducing=30)
model = agp.fit(model, X, labels, tolerance=0.01).model

# %%
# The plot shows the probability of class 1 on a grid, and the line on which both classes are equally probable.

across, up = np.meshgrid(np.linspace(-2.5, 3.5, 80), np.linspace(-2.5, 2.5, 70))
grid = np.stack([across.ravel(), up.ravel()], axis=1)
probability = model.predict(grid, observed=True).mean.reshape(across.shape)

fig, ax = plt.subplots(figsize=(6.5, 4.5), layout="constrained")
filled = ax.contourf(across, up, probability, levels=np.linspace(0.0, 1.0, 11), cmap="cividis")
ax.contour(across, up, probability, levels=[0.5], colors="white")
for label, marker in ((0, "o"), (1, "s")):
    rows = kind == label
    colour = plt.get_cmap("cividis")(float(label))
    ax.plot(*X[rows].T, marker, color=colour, markeredgecolor="white", markersize=5, label=f"class {label}")
fig.colorbar(filled, label="probability of class 1")
ax.set_title("Probability of one of two crescent-shaped classes")
ax.legend()
plt.show()
