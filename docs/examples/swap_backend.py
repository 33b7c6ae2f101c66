"""Train one model on NumPy and on torch, and print the two bounds."""

import numpy as np

import agp

rng = np.random.default_rng(0)
X = rng.uniform(-3.0, 3.0, (500, 2))
y = np.sin(X[:, :1]) * X[:, 1:] + 0.1 * rng.standard_normal((500, 1))

for name in ("numpy", "torch"):
    inputs, targets = agp.to_backend(X, name), agp.to_backend(y, name)
    model = agp.SVGP.from_data(inputs, targets, num_inducing=40)
    result = agp.train(model, inputs, targets, steps=100, batch_size=100)
    bound, _ = result.model.bound(inputs, targets)
    print(f"{name:6s} {float(bound):.12f}")
