"""Sample the hyperparameters of an exact GP with blackjax's NUTS, and compare the draws with the MAP estimate.

usage: python nuts.py --warmup 500 --draws 1000
"""

import argparse

import blackjax
import jax
import numpy as np

import agp
from agp import tree
from agp.priors import LogNormal, Relative, log_prior

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--warmup", type=int, default=500)
parser.add_argument("--draws", type=int, default=1000)
given = parser.parse_args()

jax.config.update("jax_enable_x64", True)
rng = np.random.default_rng(0)
X = rng.uniform(-3.0, 3.0, (30, 1))
y = np.sin(2.0 * X) + 0.2 * rng.standard_normal(X.shape)
X, y = (agp.to_backend(x, "jax") for x in (X, y))

priors = {
    "kernel.*": Relative(LogNormal(0.0, 1.0)),
    "likelihood.noise_variance": Relative(LogNormal(-2.0, 1.5)),
}
model = agp.GPR.from_data(X, y, priors=priors, mean_function=agp.ZeroMean())
model = agp.fit_lbfgs(model, X, y).model  # the MAP estimate, at which the chain starts
start, unflatten = agp.flatten(model)


def log_density(vector):
    """log p(y | values) + log p(values) + log |d values / d vector|."""
    model = unflatten(vector)
    return model.bound(X, y)[0] + log_prior(model)[0] + unflatten.log_jacobian(vector)[0]


key, run = jax.random.split(jax.random.key(0))
warmup = blackjax.window_adaptation(blackjax.nuts, log_density)
(state, settings), _ = warmup.run(key, start, num_steps=given.warmup)
step = blackjax.nuts(log_density, **settings).step


@jax.jit
def sampled(state, keys):
    """Return the chain of vectors [S, n], and the sampler's information about each step."""

    def moved(state, key):
        state, info = step(key, state)
        return state, (state.position, info)

    return jax.lax.scan(moved, state, keys)[1]


vectors, info = sampled(state, jax.random.split(run, given.draws))
values = jax.vmap(lambda vector: tree.leaves(unflatten(vector), "parameter"))(vectors)

print(f"{'':26s} {'MAP':>7s} {'mean':>7s} {'5 %':>7s} {'95 %':>7s}")
for name, best in tree.leaves(model, "parameter").items():
    draws = np.asarray(values[name]).ravel()
    low, high = np.quantile(draws, (0.05, 0.95))
    print(f"{name:26s} {best.item():7.3f} {draws.mean():7.3f} {low:7.3f} {high:7.3f}")
print(f"divergent steps: {int(info.is_divergent.sum())}")

at = agp.to_backend(np.asarray([[0.5], [4.0]]), "jax")
several = [unflatten(vector).predict(at) for vector in vectors[:: max(1, given.draws // 50)]]
means, variances = (np.stack([np.asarray(x[i])[:, 0] for x in several]) for i in range(2))
plugin = np.sqrt(np.asarray(model.predict(at).variance)[:, 0])
averaged = np.sqrt(variances.mean(axis=0) + means.var(axis=0))
print(f"deviations of f at 0.5 and 4.0: MAP {plugin.round(3)}, averaged over draws {averaged.round(3)}")
