"""GPflow's whitened SVGP. `tf.function` compiles steps, bounds and predictions.

XLA (``jit_compile=True``) is not used, because on a CPU a step with 512 inducing inputs took twice as long with XLA.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
import math
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import gpflow
import tensorflow as tf
from contract import Start

KERNELS = {"rbf": "SquaredExponential", "matern12": "Matern12", "matern32": "Matern32", "matern52": "Matern52"}


class Peer:
    """See `contract.Peer`."""

    versions = {"gpflow": gpflow.__version__, "tensorflow": tf.__version__}

    def __init__(self, start: Start) -> None:
        assert start.likelihood == "gaussian", "of the other libraries, only GPyTorch has the likelihood bernoulli here"
        s = start
        threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
        if tf.config.threading.get_intra_op_parallelism_threads() != threads:  # allowed before the first operation only
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(threads)
        gpflow.config.set_default_float(s.Z.dtype.type)
        gpflow.config.set_default_jitter(s.jitter)
        kernel = getattr(gpflow.kernels, KERNELS[s.kernel])(variance=s.variance, lengthscales=s.lengthscale)
        mean = None if math.isnan(s.mean) else gpflow.functions.Constant(s.mean)
        self.model = gpflow.models.SVGP(
            kernel, gpflow.likelihoods.Gaussian(s.noise), s.Z, mean_function=mean, num_data=s.rows, whiten=True,
            q_mu=s.q_mean[:, None], q_sqrt=s.q_scale[None],
        )  # fmt: skip
        Z = self.model.inducing_variable.Z.unconstrained_variable
        variables = [*(x for x in self.model.trainable_variables if x is not Z), Z]
        adams = [tf.optimizers.Adam(0.0, epsilon=s.epsilon), tf.optimizers.Adam(0.0, s.Z_beta1, epsilon=s.epsilon)]
        adams[0].build(variables[:-1])
        adams[1].build(variables[-1:])

        def gradient(X: Any, y: Any) -> tuple[Any, list[Any]]:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(variables)
                loss = self.model.training_loss((X, y))
            return -loss, tape.gradient(loss, variables)

        def step(X: Any, y: Any, rate: Any, Z_rate: Any) -> Any:
            bound, slopes = gradient(X, y)
            for adam, value in zip(adams, (rate, Z_rate), strict=True):
                adam.learning_rate.assign(tf.cast(value, adam.learning_rate.dtype))
            adams[0].apply_gradients(zip(slopes[:-1], variables[:-1], strict=True))
            adams[1].apply_gradients([(slopes[-1], variables[-1])])
            return bound

        self._gradient, self._step = tf.function(gradient), tf.function(step)
        self._bound = tf.function(lambda X, y: self.model.elbo((X, y)))
        self._predict = tf.function(self.model.predict_f)

    def bound(self, X: Any, y: Any) -> float:
        """See `contract.Peer` for this method and the following ones."""
        return float(self._bound(tf.constant(X), tf.constant(y[:, None])))

    def kl(self) -> float:
        return float(self.model.prior_kl())

    def gradient(self, X: Any, y: Any) -> float:
        bound, slopes = self._gradient(tf.constant(X), tf.constant(y[:, None]))
        for slope in slopes:
            tf.convert_to_tensor(slope).numpy()  # wait until the gradient is computed
        return float(bound)

    def step(self, X: Any, y: Any, rate: float, Z_rate: float) -> float:
        rates = tf.constant(rate, X.dtype), tf.constant(Z_rate, X.dtype)
        return float(self._step(tf.constant(X), tf.constant(y[:, None]), *rates))

    def predict(self, X: Any) -> tuple[Any, Any]:
        mean, variance = self._predict(tf.constant(X))
        return mean.numpy()[:, 0], variance.numpy()[:, 0]

    def noise(self) -> float:
        return float(self.model.likelihood.variance.numpy())
