"""GPJax's whitened SVGP. `jax.jit` compiles steps, bounds and predictions."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false, reportMissingModuleSource=false
import math
import os
from importlib.metadata import version
from typing import Any

import equinox as eqx
import gpjax as gpx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from contract import Start

KERNELS = {"rbf": "RBF", "matern12": "Matern12", "matern32": "Matern32", "matern52": "Matern52"}

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


class Peer:
    """See `contract.Peer`."""

    versions = {"gpjax": version("gpjax"), "jax": jax.__version__}

    def __init__(self, start: Start) -> None:
        assert start.likelihood == "gaussian", "of the other libraries, only GPyTorch has the likelihood bernoulli here"
        jax.config.update("jax_enable_x64", True)  # float32 arrays stay float32
        if os.environ.get("OMP_NUM_THREADS", "1") == "1":  # JAX reads XLA_FLAGS when it creates its first array
            os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {ONE_THREAD}".strip()
        s, like = start, {"dtype": start.Z.dtype}
        kernel = getattr(gpx.kernels, KERNELS[s.kernel])(
            lengthscale=jnp.asarray(s.lengthscale, **like), variance=jnp.asarray(s.variance, **like)
        )
        means = gpx.mean_functions
        mean = means.Zero() if math.isnan(s.mean) else means.Constant(jnp.asarray(s.mean, **like))
        prior = gpx.gps.Prior(mean_function=mean, kernel=kernel, jitter=s.jitter)
        joint = prior * gpx.likelihoods.Gaussian(obs_stddev=jnp.asarray(math.sqrt(s.noise), **like))
        self.q = gpx.variational_families.WhitenedVariationalGaussian(
            model=joint, inducing_inputs=jnp.asarray(s.Z), variational_mean=jnp.asarray(s.q_mean)[:, None],
            variational_root_covariance=jnp.asarray(s.q_scale),
        )  # fmt: skip
        leaves, fixed = eqx.partition(self.q, eqx.is_inexact_array)
        leaves = jax.tree.map(lambda x: jax.device_put(np.asarray(x), jax.devices()[0]), leaves)  # avoids weak types
        self.leaves, self.fixed = leaves, fixed
        labels = jax.tree.map(lambda _: "others", leaves)
        labels = eqx.tree_at(lambda q: q.inducing_inputs, labels, jax.tree.map(lambda _: "Z", leaves.inducing_inputs))
        scaled = {"others": optax.scale_by_adam(eps=s.epsilon), "Z": optax.scale_by_adam(s.Z_beta1, eps=s.epsilon)}
        adam = optax.multi_transform(scaled, lambda _: labels)  # a function: optax would call `labels`, a module
        self.state = jax.device_put(adam.init(leaves), jax.devices()[0])

        def bound(leaves: Any, X: Any, y: Any) -> Any:
            q = eqx.combine(leaves, fixed)
            data = gpx.Dataset(X, y[:, None])
            ell = jnp.sum(gpx.objectives.variational_expectation(q, data))
            return s.rows / X.shape[0] * ell - q.prior_kl()

        def step(leaves: Any, state: Any, X: Any, y: Any, rate: Any, Z_rate: Any) -> tuple[Any, Any, Any]:
            value, slopes = jax.value_and_grad(lambda leaves: -bound(leaves, X, y))(leaves)
            moves, state = adam.update(slopes, state)
            rates = jax.tree.map(lambda label: Z_rate if label == "Z" else rate, labels)
            return -value, jax.tree.map(lambda x, move, r: x - r * move, leaves, moves, rates), state

        def predict(leaves: Any, X: Any) -> tuple[Any, Any]:
            q = eqx.combine(leaves, fixed)
            f = q.condition(gpx.Dataset(X, X[:, :1]))(X, covariance="diagonal")  # the targets are not used
            return f.mean, f.variance

        self._bound, self._step = jax.jit(bound), jax.jit(step, donate_argnums=(0, 1))
        self._gradient, self._predict = jax.jit(jax.value_and_grad(bound)), jax.jit(predict)

    def bound(self, X: Any, y: Any) -> float:
        """See `contract.Peer` for this method and the following ones."""
        return float(self._bound(self.leaves, X, y))

    def kl(self) -> float:
        return float(eqx.combine(self.leaves, self.fixed).prior_kl())

    def gradient(self, X: Any, y: Any) -> float:
        return float(jax.block_until_ready(self._gradient(self.leaves, X, y))[0])

    def step(self, X: Any, y: Any, rate: float, Z_rate: float) -> float:
        rates = np.asarray(rate, X.dtype), np.asarray(Z_rate, X.dtype)
        value, self.leaves, self.state = jax.block_until_ready(self._step(self.leaves, self.state, X, y, *rates))
        return float(value)

    def predict(self, X: Any) -> tuple[Any, Any]:
        mean, variance = self._predict(self.leaves, X)
        return np.asarray(mean), np.asarray(variance)

    def noise(self) -> float:
        return float(gpx.parameters.val(eqx.combine(self.leaves, self.fixed).model.likelihood.obs_stddev)) ** 2
