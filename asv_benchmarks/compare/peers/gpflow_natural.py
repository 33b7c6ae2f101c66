"""Worker of `natural_step.py` for GPflow: on request, times natural-gradient steps of its whitened SVGP."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import sys
from itertools import cycle

import gpflow
import numpy as np
import tensorflow as tf
from contract import Problem
from exchange import serve
from natural_step import BATCHES


def probit(f: tf.Tensor) -> tf.Tensor:
    """The standard normal distribution function, limited to [1e-9, 1 - 1e-9]; GPflow's own margin is 1e-3."""
    return 0.5 * (1.0 + tf.math.erf(f / np.sqrt(2.0))) * (1.0 - 2e-9) + 1e-9


class Steps:
    """Steps of q(u) on one minibatch after another, at fixed hyperparameters, compiled by tf.function."""

    def __init__(self, problem: Problem) -> None:
        p = problem
        gpflow.config.set_default_jitter(p.jitter)
        binary = p.likelihood == "bernoulli"
        likelihood = gpflow.likelihoods.Bernoulli(invlink=probit) if binary else gpflow.likelihoods.Gaussian(p.noise)
        kernel = gpflow.kernels.SquaredExponential(variance=p.variance, lengthscales=p.lengthscale)
        self.model = gpflow.models.SVGP(kernel, likelihood, p.Z, num_data=p.rows, whiten=True)
        self.data = tf.constant(p.X), tf.constant(p.y[:, None])
        parts = np.split(np.arange(p.rows), BATCHES)
        self.batches = cycle([tuple(tf.constant(x.numpy()[rows]) for x in self.data) for rows in parts])
        natural = gpflow.optimizers.NaturalGradient(p.rate)
        q = [(self.model.q_mu, self.model.q_sqrt)]

        @tf.function
        def compiled(X: tf.Tensor, y: tf.Tensor) -> None:
            natural.minimize(lambda: self.model.training_loss((X, y)), q)

        self.compiled = compiled

    def step(self) -> float:
        """Run one step."""
        self.compiled(*next(self.batches))
        return 0.0

    def bound(self) -> float:
        """Run a step on each minibatch; return the bound of all rows."""
        for _ in range(BATCHES):
            self.step()
        return float(self.model.elbo(self.data))


if __name__ == "__main__":
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    given = Problem.read(sys.argv[1])
    versions = {"gpflow": gpflow.__version__, "tensorflow": tf.__version__}
    serve({"q-svgp": Steps(given).step, "bound": Steps(given).bound}, versions)
