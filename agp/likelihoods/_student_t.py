"""The Student-t likelihood for regression with heavy-tailed noise."""

import math
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Backend, Pullback, backend_of
from agp.chunking import unit_by_column
from agp.distributions import ObservationModel, t_tail
from agp.likelihoods._base import Prediction, check_by_output
from agp.likelihoods._panels import ByPanels, Datum
from agp.likelihoods._quadrature import ByQuadrature
from agp.tree import POSITIVE


# lgamma((nu+1)/2) - lgamma(nu/2) - 1/2 log(nu pi c^2) - (nu+1)/2 log1p((y-f)^2 / (nu c^2))
def _density(
    B: Backend, f: Array, y: Array, scale: Array, nu: float, power: float, constant: float
) -> tuple[Array, Array, Array]:
    residual = y - f
    square = residual * residual
    spread = nu * scale * scale
    return constant - B.xp.log(scale) - power * B.xp.log1p(square / spread), residual, square


def _pull_density(
    _: Backend, bar: Array, residual: Array, square: Array, scale: Array, nu: float, above: float
) -> tuple[Array, Array]:
    """Return the cotangents of log c (one per entry of f) and of f, where c is the scale; `above` is nu + 1."""
    weight = above / (nu * scale * scale + square)
    return bar * (weight * square - 1.0), bar * weight * residual


@tree.model
class StudentT(ByPanels, ByQuadrature):
    """The Student-t likelihood y_np = f_np + scale * e_np, which is robust to outliers.

    The noise e_np has a Student-t distribution with nu degrees of freedom. The variance of scale * e_np is
    scale^2 nu / (nu - 2) for nu > 2, and infinite otherwise. For nu <= 1, where the mean does not exist, predictions
    contain the median instead.

    Parameters
    ----------
    scale
        The scale of the noise in the unit of the targets: one number (0-d) for all outputs, or one per output [P]. By
        default the starting value is the square root of a tenth of the variance of the targets.
    degrees_of_freedom
        The positive number nu, which is not trained.
    points
        The number of Gauss-Hermite quadrature nodes for computing expectations. Predictive densities use a different
        quadrature rule.

    Examples
    --------
    The target 8 is an outlier. With Gaussian noise, it would move the mean there from about 0.1 to above 2.

    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(0.0, 6.0, 25)[:, None]
    >>> y = np.sin(X[:, 0])
    >>> y[12] = 8.0
    >>> step, parts = agp.updates.SiteStep(0.5), {"kernel": agp.RBF(1.0, 1.0)}
    >>> for likelihood in (agp.StudentT(0.1), agp.Gaussian(0.03)):
    ...     model = agp.TVGP.from_data(X, y, likelihood=likelihood, **parts)
    ...     model = agp.train(model, X, y, steps=30, updates=[step]).model
    ...     print(round(float(model.predict_mean(X)[12, 0]), 1))
    0.1
    2.2
    """

    short_name: ClassVar[str] = "student-t"
    scale: Array = tree.param(POSITIVE, default=None, unit="scale_unit")
    scale_unit: Array | None = tree.unit(default=None)
    degrees_of_freedom: float = 3.0
    points: int = 20

    bounded_curvature: ClassVar[bool] = True
    mean_is_latent: ClassVar[bool] = True

    def _log_density(self, f: Array, y: Array) -> tuple[Array, Pullback]:
        B, nu, scale = backend_of(f), self.degrees_of_freedom, self._by_node()
        constant = math.lgamma(0.5 * (nu + 1.0)) - math.lgamma(0.5 * nu) - 0.5 * math.log(nu * math.pi)
        value, residual, square = B.fused(_density, f, y, scale, nu, 0.5 * (nu + 1.0), constant)

        def pullback(bar):
            terms, f_bar = B.fused(_pull_density, bar, residual, square, scale, nu, nu + 1.0)
            scale_bar = B.xp.sum(terms, axis=(0, 2) if self.scale.ndim else None) / self.scale
            return tree.cotangent(self, scale=scale_bar), f_bar

        return value, pullback

    def _by_node(self) -> Array:
        """Return the scale in a shape that broadcasts against latent values [N, P, I]."""
        return self.scale[:, None] if self.scale.ndim else self.scale

    @property
    def infinite_variance(self) -> bool:
        return self.degrees_of_freedom <= 2.0

    def predict(self, mu: Array, var: Array, /) -> Prediction:
        nu = self.degrees_of_freedom
        return Prediction(mu, var + self.scale**2 * (nu / (nu - 2.0) if nu > 2.0 else math.inf))

    def _datum(self, y: Array) -> Datum:
        xp = backend_of(y).xp
        nu = self.degrees_of_freedom
        spread = nu * self.scale * self.scale

        def slopes(f: Array) -> tuple[Array, Array]:
            residual = y - f
            square = residual * residual
            weight = (nu + 1.0) / (spread + square)
            return weight * residual, weight * (spread - square) / (spread + square)

        return Datum(
            log_density=lambda f: self._log_density(f, y[..., None])[0],
            slopes=slopes,
            bend=y,
            width=self.scale + xp.zeros_like(y),
        )

    def observation_model(self) -> ObservationModel:
        nu, scale = self.degrees_of_freedom, self._by_node()
        return ObservationModel(
            tail=lambda y, f, upper: t_tail(nu, (y - f) / scale, upper),
            value=lambda y: y,
            bends=lambda y: ((y, self.scale * min(1.0, math.sqrt(nu))),),
            width=self.scale,
        )

    def _sample(self, f: Any, rng: Any) -> Any:
        return f + self.scale * rng.standard_t(self.degrees_of_freedom, f.shape)

    def from_data(self, variance: float, /) -> Self:
        return tree.with_defaults(self, scale=math.sqrt(0.1 * variance), scale_unit=math.sqrt(variance))

    def from_outputs(self, variances: Array, /) -> Self:
        spreads = backend_of(variances).xp.sqrt(variances)
        return tree.with_defaults(self, scale=math.sqrt(0.1) * spreads, scale_unit=unit_by_column(self.scale, spreads))

    def check_outputs(self, outputs: int, /) -> None:
        check_by_output("scale", self.scale, outputs)

    def observations(self, y: Array, /) -> Array:
        return y

    def check_parameters(self) -> None:
        check_by_output("scale", self.scale)
        if not 0.0 < self.degrees_of_freedom < math.inf:
            raise ValueError(f"degrees_of_freedom is {self.degrees_of_freedom!r}, but must be positive and finite.")
        super().check_parameters()
