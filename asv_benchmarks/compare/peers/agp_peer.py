"""agp's W-SVGP with NumPy, closed-form gradients and Adam."""

import dataclasses
import math
from typing import Any

import numpy as np
from contract import Start

import agp
from agp.bounds import Batch
from agp.gradient import gradient_of_batch
from agp.updates import Adam, Group

Z = "process.inducing.Z"


class Peer:
    """See `contract.Peer`."""

    versions = {"agp": agp.__version__, "numpy": np.__version__}

    def __init__(self, start: Start) -> None:
        s, like = start, {"dtype": start.Z.dtype}
        kernel = type(agp.kernels.parse_kernel(s.kernel))
        process = agp.processes.Sparse(
            kernel=kernel(np.asarray(s.variance, **like), s.lengthscale.copy()),
            inducing=agp.inducing.Points(s.Z.copy()),
            posterior=agp.posteriors.Whitened(s.q_mean[:, None], s.q_scale[None]),
            mean_function=agp.ZeroMean() if math.isnan(s.mean) else _constant(np.asarray(s.mean, **like)),
            jitter=s.jitter,
        )
        likelihood = agp.Bernoulli() if s.likelihood == "bernoulli" else agp.Gaussian(np.asarray(s.noise, **like))
        self.model: Any = agp.SVGP(process, likelihood)
        self.adam = Adam(1e-2, {Z: Group(1e-2, beta1=s.Z_beta1)}, epsilon=s.epsilon)
        self.state, self.rows = self.adam.init(self.model), s.rows

    def _batch(self, X: Any, y: Any) -> Batch:
        return Batch(X, y[:, None], self.rows / len(X))

    def gradient(self, X: Any, y: Any) -> float:
        """See `contract.Peer` for this method and the following ones."""
        return float(gradient_of_batch(self.model, self._batch(X, y), "closed-form")[0])

    bound = gradient

    def kl(self) -> float:
        process = self.model.process
        return float(process.kl_divergence(process.factorise()[0])[0])

    def step(self, X: Any, y: Any, rate: float, Z_rate: float) -> float:
        groups = {Z: dataclasses.replace(self.adam.groups[Z], rate=Z_rate)}
        self.adam = dataclasses.replace(self.adam, rate=rate, groups=groups)
        self.model, self.state, info = self.adam(self.model, self._batch(X, y), self.state)
        return float(info["bound"])

    def predict(self, X: Any) -> tuple[Any, Any]:
        mean, variance = self.model.predict(X)
        return mean[:, 0], variance[:, 0]

    def noise(self) -> float:
        likelihood = self.model.likelihood
        return float(likelihood.noise_variance) if isinstance(likelihood, agp.Gaussian) else 0.0


def _constant(value: Any) -> agp.ConstantMean:
    return agp.ConstantMean(value, value_unit=np.ones_like(value))
