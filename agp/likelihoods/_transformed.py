"""Likelihoods of targets that have Gaussian noise after a transform."""

from abc import abstractmethod
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.distributions import Mixture
from agp.likelihoods._base import Drawn, Likelihood, Prediction, forward
from agp.likelihoods._gaussian import Gaussian
from agp.likelihoods._quadrature import check_points, nodes_and_weights
from agp.likelihoods._range import exp_in_range
from agp.likelihoods._transforms import Log, Logit, Transform, YeoJohnson


class Transformed(Likelihood):
    """Base class for likelihoods g(y_np) ~ N(f_np, noise_variance_p) of targets y with an increasing transform g.

    p(y | f) = N(g(y); f, noise_variance) g'(y).
    """

    gaussian_name: ClassVar[str]
    """The name of the field that holds the Gaussian likelihood of z = g(y)."""

    bounded_curvature: ClassVar[bool] = True
    log_concave: ClassVar[bool] = True
    quadratic: ClassVar[bool] = True

    @property
    @abstractmethod
    def gaussian(self) -> Gaussian:
        """The Gaussian likelihood of z = g(y)."""

    transform: Transform
    """The transform g."""

    support = forward("transform.support")  # type: ignore[assignment]
    missing = forward("gaussian.missing")
    check_outputs = forward("gaussian.check_outputs")
    check_targets = forward("transform.check_targets")
    variance_cost = forward("gaussian.variance_cost")

    @property
    def differs_by_sample(self) -> bool:
        return self.gaussian.differs_by_sample

    def check_parameters(self) -> None:
        self.gaussian.check_parameters()

    def expected_log_density(self, mu: Array, var: Array, y: Array, /, draws: Drawn = None) -> tuple[Array, Pullback]:
        value, pull = self.gaussian.expected_log_density(mu, var, self.transform.forward(y), draws)

        def pullback(bar):
            gaussian_bar, mu_bar, var_bar = pull(bar)
            return tree.cotangent(self, **{self.gaussian_name: gaussian_bar}), mu_bar, var_bar

        return value + self._log_jacobian(y), pullback

    def predictive_log_density(self, mu: Array, var: Array, y: Array, /) -> Array:
        z = self.transform.forward(y)
        return self.gaussian.predictive_log_density(mu, var, z) + self._log_jacobian(y)

    def _log_jacobian(self, y: Array) -> Array:
        """Compute the sum of log g'(y_nk) over observed targets [N]."""
        xp = backend_of(y).xp
        logs = self.transform.log_slope(y)
        return xp.sum(xp.where(xp.isnan(y), xp.zeros_like(logs), logs), axis=-1)

    def _quantiles(self, mu: Array, var: Array, levels: tuple[float, ...], shares: Array | None) -> Array:
        return self.transform.inverse(self.gaussian._quantiles(mu, var, levels, shares))

    def mixture(self, mu: Any, var: Any, /, shares: Any = None) -> Mixture:
        return self.gaussian.mixture(mu, var, shares)._replace(value=self.transform.inverse)

    def _sample(self, f: Any, rng: Any) -> Any:
        return self.transform.inverse(self.gaussian._sample(f, rng))

    def log_density_alone(self, y: Array, /, weights: Array | None = None) -> float:
        xp = backend_of(y).xp
        jacobian = self._log_jacobian(y)
        counted = jacobian if weights is None else weights * jacobian
        return self.gaussian.log_density_alone(self.transform.forward(y), weights) + float(xp.mean(counted))

    def __post_init__(self) -> None:
        if not isinstance(self.gaussian, Gaussian):
            name, what = self.gaussian_name, "log y" if self.gaussian_name == "logs" else "the transformed targets"
            raise TypeError(f"{name} is {self.gaussian!r}, but must be Gaussian(...), the likelihood of {what}.")

    def from_data(self, variance: float, /) -> Self:
        return tree.replace(self, {self.gaussian_name: self.gaussian.from_data(variance)})

    def from_outputs(self, variances: Array, /) -> Self:
        return tree.replace(self, {self.gaussian_name: self.gaussian.from_outputs(variances)})

    def observations(self, y: Array, /) -> Array:
        return self.transform.forward(y)


@tree.model
class TransformedGaussian(Transformed):
    """The likelihood g(y_np) ~ N(f_np, noise_variance_p) of targets y with an increasing transform g.

    p(y | f) = N(g(y); f, noise_variance) g'(y). Predictions are for y: quantiles and draws are those of z = g(y),
    transformed back, densities have the factor g'(y), and means and variances are computed by quadrature. For
    logarithms, use `LogNormal`, whose moments have a closed form.

    Parameters
    ----------
    transformed
        The Gaussian likelihood of z = g(y).
    transform
        The transform g: `YeoJohnson` or `Logit`.
    limit
        A distance of y from the centre of `YeoJohnson` [P]. For predicted moments, distances above the limit L approach
        2 L. By default, there is no limit. `GPRegressor` uses ten times the largest distance of a target.
    points
        The number of Gauss-Hermite nodes for means and variances.

    Examples
    --------
    Predicted proportions are between 0 and 1.

    >>> import numpy as np
    >>> from agp.likelihoods import Gaussian, Logit, TransformedGaussian
    >>> likelihood = TransformedGaussian(Gaussian(np.asarray(1.0)), Logit())
    >>> mu, var = np.asarray([[2.0]]), np.asarray([[0.5]])
    >>> print(likelihood.predictive_quantiles(mu, var, (0.05, 0.5, 0.95))[:, 0, 0].round(2))
    [0.5  0.88 0.98]
    >>> print(likelihood.predict(mu, var).mean.round(2))
    [[0.83]]
    """

    transformed: Gaussian = Gaussian()
    transform: Transform = Logit()
    limit: Array | None = tree.constant(default=None, optional=True)
    points: int = 64

    gaussian_name: ClassVar[str] = "transformed"

    @property
    def gaussian(self) -> Gaussian:
        return self.transformed

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.transform, Transform) or isinstance(self.transform, Log):
            raise TypeError(
                f"transform is {self.transform!r}, but must be YeoJohnson(...) or Logit(...); for logarithms, use "
                "LogNormal."
            )

    def check_parameters(self) -> None:
        super().check_parameters()
        check_points(self.points)

    def predict(self, mu: Array, var: Array, /) -> Prediction:
        xp = backend_of(mu).xp
        z, _, weights = nodes_and_weights(mu, var + self.gaussian.noise_at(mu), self.points)
        y = self.transform.inverse(z)
        if self.limit is not None:
            y = self._saturate(y, self.limit[..., None] + xp.zeros_like(y))
        mean = xp.sum(weights * y, axis=-1)
        distance = xp.abs(y - mean[..., None])
        least = xp.full_like(mean, float(xp.finfo(mean.dtype).smallest_normal))
        most = xp.maximum(xp.max(distance, axis=-1), least)  # squares may overflow
        share = xp.maximum(xp.sum(weights * (distance / most[..., None]) ** 2, axis=-1), least)
        return Prediction(mean, *exp_in_range(xp.log(share) + 2.0 * xp.log(most)))

    def _saturate(self, y: Array, limit: Array) -> Array:
        """Return targets [N, P, I] whose distance d from the centre is at most twice the limit L: L (2 - L / d)."""
        xp, centre = backend_of(y).xp, self.transform.centre if isinstance(self.transform, YeoJohnson) else 0.0
        away = y - centre
        far = xp.abs(away) > limit
        distance = xp.where(far, xp.abs(away), limit)
        return xp.where(far, centre + xp.sign(away) * limit * (2.0 - limit / distance), y)

    @property
    def floats_per_row(self) -> int:
        return 8 * self.points
