"""Natural gradients and Adam
==========================

A model of two classes is trained on full batches. *q(u)* is trained either by natural gradients or by Adam. The
hyperparameters are always trained by Adam.
"""

import matplotlib.pyplot as plt
import numpy as np

import agp
from agp.updates import Adam, NaturalGradient

rng = np.random.default_rng(0)
X = rng.uniform(-2.0, 2.0, (300, 2))
labels = (np.sin(2.0 * X[:, :1]) + X[:, 1:] + 0.3 * rng.standard_normal((300, 1)) > 0.0).astype(float)
model = agp.SVGP.from_data(X, labels, likelihood=agp.Bernoulli(), posterior="whitened", num_inducing=30)

STEPS = 200
ways = {
    "Adam only": [Adam(0.02)],
    "natural gradients for q(u)": [NaturalGradient(0.5), Adam(0.02, frozen="posterior.*")],
}
fig, ax = plt.subplots(figsize=(7, 4), layout="constrained")
for (name, updates), style in zip(ways.items(), ("--", "-"), strict=True):
    bound = agp.train(model, X, labels, steps=STEPS, updates=updates).trace["bound"]
    ax.plot(np.arange(STEPS) + 1, bound, style, label=name)
ax.set(xlabel="step", ylabel="bound [nats]", xscale="log", title="Natural gradients raise the bound within a few steps")
ax.legend()
plt.show()
