"""Train a network and a GP on its outputs with Equinox and optax: a sparse head on minibatches, then an exact head.

Run it with ``python docs/examples/deep_kernels_jax.py``.
"""

import argparse

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import agp
from agp import tree

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=640)
steps = parser.parse_args().steps

rows, keys = 4000, jax.random.split(jax.random.key(0), 5)
X = jax.random.uniform(keys[0], (rows + 500, 10), minval=-1.0)
first, second = (X @ jnp.linalg.qr(jax.random.normal(keys[1], (10, 2)))[0]).T
y = jnp.sin(3.0 * first) + second**2 + 0.1 * jax.random.normal(keys[2], first.shape)
X, y, X_test, y_test = X[:rows], y[:rows], X[rows:], y[rows:]

network = eqx.nn.MLP(10, 2, width_size=32, depth=1, activation=jnp.tanh, key=keys[3])
spread = jnp.std(jax.vmap(network)(X), axis=0)


def features(network, X):
    """Return the features [N, 2], with standard deviation 1 before training."""
    return jax.vmap(network)(X) / spread


start = {"kernel": agp.RBF(1.0, [1.5, 1.5]), "likelihood": agp.Gaussian(0.5)}
sparse = agp.SVGP.from_data(features(network, X), y, num_inducing=64, posterior="whitened", **start)
exact = agp.GPR.from_data(features(network, X[:500]), y[:500], **start)


def sparse_loss(params, X, y):
    """Return the loss per row, estimated from a minibatch."""
    network, raw = params
    return -tree.constrain(sparse, raw).bound(features(network, X), y, scale=rows / len(y))[0] / rows


def exact_model(params, X, y):
    """Return the exact GP whose data are the present features of the rows."""
    network, raw = params
    return tree.with_leaves(tree.constrain(exact, raw), {"X": features(network, X), "y": y[:, None]})


def exact_loss(params, X, y):
    """Return the loss per row of all rows."""
    model = exact_model(params, X, y)
    return -model.bound(model.X, model.y)[0] / len(y)


def train(params, loss, batches, rate):
    """Minimise loss(params, X, y) by Adam with a cosine schedule, one step for each batch of row numbers."""
    optimiser = optax.adam(optax.cosine_decay_schedule(rate, len(batches)))
    state = optimiser.init(eqx.filter(params, eqx.is_array))

    @eqx.filter_jit
    def step(params, state, X, y):
        changes, state = optimiser.update(eqx.filter_grad(loss)(params, X, y), state)
        return eqx.apply_updates(params, changes), state

    for batch in batches:
        params, state = step(params, state, X[batch], y[batch])
    return params


def rmse(mean):
    """Return the RMSE of predicted means [N, 1] of the test rows."""
    return float(jnp.sqrt(jnp.mean((mean[:, 0] - y_test) ** 2)))


batches = jax.random.randint(keys[4], (steps, 256), 0, rows)
trained, raw = train((network, tree.unconstrain(sparse)), sparse_loss, batches, 0.02)
print(f"sparse, 4,000 rows: RMSE {rmse(tree.constrain(sparse, raw).predict(features(trained, X_test)).mean):.3f}")

few = jnp.arange(500)
params = train((network, tree.unconstrain(exact)), exact_loss, [few] * (steps // 4), 0.04)
mean = exact_model(params, X[few], y[few]).predict(features(params[0], X_test)).mean
print(f"exact, 500 rows:    RMSE {rmse(mean):.3f}")
