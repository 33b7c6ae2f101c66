"""The ordinal likelihood for ordered categories."""

import math
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.checks import check_whole
from agp.distributions import normal_quantile
from agp.likelihoods._base import Prediction
from agp.likelihoods._categories import OrderedCategories, Tails, are_labels, check_labels
from agp.likelihoods._quadrature import LOG_SQRT_2PI, ByQuadrature
from agp.likelihoods._range import positive_variance
from agp.tree import ORDERED


@tree.model
class Ordinal(OrderedCategories, ByQuadrature):
    """The ordinal likelihood for ordered categories 0 to K-1: y_np is the bin that contains f_np plus normal noise.

    p(y = k | f) = Phi(e_k - f) - Phi(e_(k-1) - f), where e_0 < ... < e_(K-2) are the edges between the bins. The first
    and the last bin are unbounded. The noise has variance 1. Predictions are the mean and the variance of the category
    number, in closed form.

    Parameters
    ----------
    classes
        The number of categories K.
    edges
        The edges between the bins in ascending order, [K-1]. Training moves the first edge freely and keeps the
        distances between edges positive. By default bins start with equal probabilities under f ~ N(0, 1).
    points
        The number of Gauss-Hermite quadrature nodes for computing expectations.

    Source: Chu & Ghahramani, "Gaussian processes for ordinal regression", JMLR 2005.

    Examples
    --------
    The probabilities of three grades at a low, a middle and a high value of f.

    >>> import numpy as np
    >>> import agp
    >>> likelihood = agp.Ordinal(3, edges=[-1.0, 1.0])
    >>> f = np.asarray([[-3.0], [0.0], [3.0]])
    >>> for grade in (0.0, 1.0, 2.0):
    ...     y = np.full((3, 1), grade)
    ...     print(np.exp(likelihood.predictive_log_density(f, np.zeros((3, 1)), y)).round(2))
    [0.98 0.16 0.  ]
    [0.02 0.68 0.02]
    [0.   0.16 0.98]
    """

    classes: int
    edges: Array = tree.param(ORDERED, default=None)
    points: int = 20

    bounded_curvature: ClassVar[bool] = True  # the bound is 1, the precision of the noise
    log_concave: ClassVar[bool] = True

    def _log_density(self, f: Array, y: Array, scale: Array | None = None) -> tuple[Array, Pullback]:
        """Compute log p(y | f) for noise with the standard deviation `scale`, which is 1 by default."""
        B = backend_of(f)
        xp = B.xp
        number = xp.arange(self.classes - 1, **like(y))
        at_top = xp.astype(y[..., None] == number, f.dtype)  # the upper edge of the bin
        at_bottom = xp.astype(y[..., None] == number + 1.0, f.dtype)  # the lower edge
        first, last = y == 0.0, y == self.classes - 1.0
        one = xp.ones_like(f) if scale is None else scale
        top = (xp.sum(at_top * self.edges, axis=-1) - f) / one
        bottom = (xp.sum(at_bottom * self.edges, axis=-1) - f) / one
        value = _log_interval(bottom, top, first, last)

        def pullback(bar):
            # an edge that does not exist has density zero; without this, its quotient might overflow
            none = xp.full_like(f, -math.inf)
            up = bar * xp.exp(xp.where(last, none, -0.5 * top * top - LOG_SQRT_2PI - value))
            down = bar * xp.exp(xp.where(first, none, -0.5 * bottom * bottom - LOG_SQRT_2PI - value))
            axes = tuple(range(f.ndim))
            edges_bar = xp.sum(up[..., None] * at_top - down[..., None] * at_bottom, axis=axes)
            return tree.cotangent(self, edges=edges_bar), down - up

        return value, pullback

    def predict(self, mu: Array, var: Array, /) -> Prediction:
        B = backend_of(mu)
        xp = B.xp
        root = xp.sqrt(1.0 + var)
        mean = xp.zeros_like(mu)
        for k in range(self.classes - 1):  # E[y] = sum_k p(y > k)
            mean = mean + B.special("ndtr", (mu - self.edges[k]) / root)
        variance = xp.zeros_like(mu)
        for k in range(self.classes):
            p = xp.exp(self._log_density(mu, xp.full_like(mu, float(k)), root)[0])
            variance = variance + p * (float(k) - mean) ** 2
        return Prediction(mean, positive_variance(variance))

    def predictive_log_density(self, mu: Array, var: Array, y: Array, /) -> Array:
        xp = backend_of(mu).xp
        return xp.sum(self._log_density(mu, y, xp.sqrt(1.0 + var))[0], axis=-1)

    def _tails(self, mu: Array, var: Array) -> Tails:
        B = backend_of(mu)
        scores = [(self.edges[k] - mu) / B.xp.sqrt(1.0 + var) for k in range(self.classes - 1)]
        return [(B.special("ndtr", x), B.special("ndtr", -x)) for x in scores]

    def _sample(self, f: Any, rng: Any) -> Any:
        x = f + rng.standard_normal(f.shape)
        return (x[..., None] > self.edges).sum(axis=-1) + 0.0

    @property
    def floats_per_row(self) -> int:
        return (8 + 3 * self.classes) * self.points

    def from_data(self, variance: float, /) -> Self:
        K = check_whole("classes", self.classes, least=2)
        spread = math.sqrt(2.0)  # of f ~ N(0, 1) plus the noise
        return tree.with_defaults(self, edges=[spread * normal_quantile(k / K) for k in range(1, K)])

    def check_parameters(self) -> None:
        check_whole("classes", self.classes, least=2)
        if tuple(self.edges.shape) != (self.classes - 1,):
            raise ValueError(
                f"edges has shape {tuple(self.edges.shape)}, but must have shape ({self.classes - 1},) for "
                f"classes={self.classes}."
            )
        super().check_parameters()

    def check_targets(self, y: Array, /) -> None:
        check_labels(y, check_whole("classes", self.classes, least=2), type(self).__name__)

    def in_support(self, y: Array, /) -> Array:
        return are_labels(y, self.classes)


def _log_interval(bottom: Array, top: Array, first: Array, last: Array) -> Array:
    """Compute log(Phi(top) - Phi(bottom)) accurately in both tails; the first and the last bin are unbounded."""
    B = backend_of(top)
    xp = B.xp
    inner = ~(first | last)
    # the right tail uses Phi(-bottom) - Phi(-top); unbounded bins use arbitrary values with bottom < top
    right = bottom > 0.0
    upper = xp.where(inner, xp.where(right, -bottom, top), xp.ones_like(top))
    lower = xp.where(inner, xp.where(right, -top, bottom), -xp.ones_like(top))
    log_upper = B.special("log_ndtr", upper)
    ratio = xp.expm1(B.special("log_ndtr", lower) - log_upper)
    tiny = xp.full_like(ratio, float(xp.finfo(ratio.dtype).smallest_normal))
    closed = log_upper + xp.log(xp.maximum(-ratio, tiny))
    ends = B.special("log_ndtr", xp.where(first, top, -bottom))
    return xp.where(inner, closed, ends)
