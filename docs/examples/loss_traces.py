"""Train every parameterisation of q(u) from the same start and draw how far each bound is from the collapsed one.

usage: python loss_traces.py DATA.npz PICTURE.png
"""

import sys
from functools import partial

import matplotlib.pyplot as plt
import numpy as np

import agp
from agp.posteriors import InverseFree, LikelihoodForm, Marginal, Relaxed, Whitened

STEPS = 3000
VARIANTS = {
    "M-SVGP": Marginal,
    "W-SVGP": Whitened,
    "A-SVGP": InverseFree,
    "L-SVGP": LikelihoodForm,
    "L-SVGP, no preconditioner": partial(LikelihoodForm.from_prior, preconditioned=False),
    "R-SVGP": Relaxed,
    "R-SVGP, no preconditioner": partial(Relaxed.from_prior, preconditioned=False),
}

source, picture = sys.argv[1:]
with np.load(source) as file:
    X, y = (np.asarray(file[name], dtype=np.float64) for name in ("X", "y"))
X, y = X.reshape(len(y), -1), (y - y.mean()) / y.std()
Z = np.linspace(X.min(), X.max(), 10)[:, None]

collapsed = agp.fit_lbfgs(agp.SGPR.from_data(X, y, Z=Z), X, y).model
best = float(collapsed.bound(X, y)[0])
figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
for name, posterior in VARIANTS.items():
    model = agp.SVGP.from_data(X, y, posterior=posterior, Z=Z)
    updates = agp.recipe(model, STEPS)
    trace = np.asarray(agp.train(model, X, y, steps=STEPS, updates=updates).trace["bound"])
    print(f"{name:28s} bound {trace[-1]:9.3f}, {best - trace[-1]:7.3f} below the collapsed bound {best:.3f}")
    dashes = "--" if name.startswith("R") else "-"  # they lie on the curves of L-SVGP
    axes.semilogy(np.arange(1, STEPS + 1), np.maximum(best - trace, 1e-2), dashes, label=name, linewidth=1.5)
axes.set(xlabel="step", ylabel="collapsed bound - bound, in nats")
axes.legend(frameon=False)
figure.savefig(picture, dpi=150)
