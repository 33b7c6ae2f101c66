"""What every likelihood offers."""

from abc import ABC, abstractmethod
from typing import NamedTuple, Self

from agp.backend import Array, Pullback

__all__ = ["Likelihood", "Prediction"]


class Prediction(NamedTuple):
    """Means and variances, each [N, P]; the variance is None where only the mean was asked for."""

    mean: Array
    variance: Array | None


class Likelihood(ABC):
    """p(y | f), independent for each datum given the latent functions there."""

    @abstractmethod
    def expected_log_density(self, mu: Array, var: Array, y: Array, /) -> tuple[Array, Pullback]:
        """E[log p(y_n | f_n)] under f_np ~ N(mu_np, var_np), with its pullback.

        Parameters
        ----------
        mu, var
            Marginals [N, P].
        y
            Targets [N, P].

        Returns
        -------
        value
            [N], summed over the outputs of a datum.
        pullback
            ``bar [N] -> (likelihood_bar, mu_bar [N, P], var_bar [N, P])``.
        """

    @abstractmethod
    def predict(self, mu: Array, var: Array, /) -> Prediction:
        """Mean and variance of the observations y [N, P] for marginals [N, P]."""

    @abstractmethod
    def predictive_log_density(self, mu: Array, var: Array, y: Array, /) -> Array:
        """Log of the integral of p(y_n | f) N(f; mu_n, var_n) df [N], for marginals and targets [N, P]."""

    @property
    def floats_per_row(self) -> int:
        """Numbers that an evaluation holds for each row and output, for memory budgets."""
        return 8

    @abstractmethod
    def from_data(self, variance: float, /) -> Self:
        """A likelihood whose missing leaves start at values that suit a variance of the targets."""

    @abstractmethod
    def latent_variance(self, variance: float, /) -> float:
        """A starting value for the variance of the latent functions, from the variance of the targets."""

    def check_parameters(self) -> None:  # noqa: B027 - most likelihoods have nothing to check
        """Raise ValueError for parameters of a shape that the likelihood cannot take."""

    @abstractmethod
    def check_targets(self, y: Array, /) -> None:
        """Raise ValueError if a target lies outside the support of y."""
