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
parser.add_argument("--steps", type=int, default=1000)
steps = parser.parse_args().steps

rows, keys = 2000, jax.random.split(jax.random.key(0), 4)
X = jax.random.uniform(keys[0], (rows + 500, 6), minval=-1.0)
f = jnp.sin(4.0 * X[:, 0] * X[:, 1]) + X[:, 2] ** 2
y = f + 0.1 * jax.random.normal(keys[1], f.shape)
X, y, X_test, f_test = X[:rows], y[:rows], X[rows:], f[rows:]


def train(params, loss, batches):
    """Minimise loss(params, X, y) by Adam with a cosine schedule, one step for each batch of row numbers."""
    optimiser = optax.adam(optax.cosine_decay_schedule(0.01, len(batches)))
    state = optimiser.init(eqx.filter(params, eqx.is_array))

    @eqx.filter_jit
    def step(params, state, X, y):
        gradient = eqx.filter_grad(loss)(params, X, y)
        changes, state = optimiser.update(gradient, state)
        return eqx.apply_updates(params, changes), state

    for batch in batches:
        params, state = step(params, state, X[batch], y[batch])
    return params


def score(name, mean):
    """Print the RMSE of predicted means [N, 1], relative to the spread of the function."""
    print(f"{name}: RMSE {float(jnp.sqrt(jnp.mean((mean[:, 0] - f_test) ** 2)) / jnp.std(f_test)):.3f}")


network = eqx.nn.MLP(6, 2, width_size=32, depth=2, key=keys[2])
features = jax.vmap(network)
start = {"kernel": agp.RBF(1.0, [1.0, 1.0]), "likelihood": agp.Gaussian(0.5)}
sparse = agp.SVGP.from_data(features(X), y, num_inducing=64, posterior="whitened", **start)
exact = agp.GPR.from_data(features(X[:500]), y[:500], **start)


def sparse_loss(params, X, y):
    """Return the loss per row, estimated from a minibatch."""
    network, raw = params
    model = tree.constrain(sparse, raw)
    return -model.bound(jax.vmap(network)(X), y, scale=rows / len(y))[0] / rows


def exact_model(params, X, y):
    """Return the exact GP whose data are the present features of the rows."""
    network, raw = params
    return tree.with_leaves(tree.constrain(exact, raw), {"X": jax.vmap(network)(X), "y": y[:, None]})


def exact_loss(params, X, y):
    """Return the loss per row of all rows of the exact GP."""
    model = exact_model(params, X, y)
    return -model.bound(model.X, model.y)[0] / len(y)


batches = jax.random.randint(keys[3], (steps, 256), 0, rows)
trained, raw = train((network, tree.unconstrain(sparse)), sparse_loss, batches)
score("sparse head, 2,000 rows", tree.constrain(sparse, raw).predict(jax.vmap(trained)(X_test)).mean)

few = jnp.arange(500)
params = train((network, tree.unconstrain(exact)), exact_loss, [few] * (steps // 4))
score("exact head, 500 rows", exact_model(params, X[few], y[few]).predict(jax.vmap(params[0])(X_test)).mean)
