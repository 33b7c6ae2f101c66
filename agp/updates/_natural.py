"""Natural gradients for q(u): the step of conjugate-computation variational inference, in two coordinates."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from agp import tree
from agp.backend import Array, backend_of
from agp.batch import Batch
from agp.linalg import identity, lower_of, phi, symmetric_from_lower
from agp.posteriors import factorise
from agp.repairs import report
from agp.updates._base import Info, State
from agp.updates._schedules import Rate, rate_at

__all__ = ["HALVINGS", "NaturalGradient", "SiteGradients", "check_step", "site_gradients"]

HALVINGS = 10
"""How often a step whose precision is not positive definite is halved before it is given up."""


@dataclass(frozen=True)
class NaturalGradient:
    """A step of q(u) along the natural gradient of the bound, with mean m and covariance S = C C^T for each output.

    With alpha and beta = -2 (d/dvar) the derivatives of the expected log density at the marginals (scaled by N / B),
    Q = Kuu^-1 Kuf and prior precision Kuu^-1 (M-SVGP), or Q = Lu^-1 Kuf and I (W-SVGP), and the step size rho,

        S_new^-1       = (1 - rho) S^-1 + rho (prior precision + Q diag(beta) Q^T)
        S_new^-1 m_new = (1 - rho) S^-1 m + rho Q (alpha + beta * (mu - h))

    in natural coordinates: rho = 1 with a Gaussian likelihood and all data gives the optimal q(u) at once. The root
    coordinates (m, C) take the first-order step of the same direction, which needs no inverse of S.

    Use it beside `Adam` with ``frozen=("posterior.*",)``; it is for the posteriors `Whitened` and `Marginal`.

    Parameters
    ----------
    rate
        rho in (0, 1], or a function of the count of steps. A step to a precision that is not positive definite
        (possible where the likelihood is not log-concave) is halved until it is.
    coordinates
        "natural" or "root".

    Raises
    ------
    ValueError
        For a rate outside (0, 1], or unknown coordinates.

    Source: Salimbeni, Eleftheriadis & Hensman, "Natural gradients in practice", AISTATS 2018.
    """

    rate: Rate = 1.0
    coordinates: Literal["natural", "root"] = "natural"

    def __post_init__(self) -> None:
        check_step(self.rate, "a natural-gradient")
        if self.coordinates not in ("natural", "root"):
            msg = f"unknown coordinates {self.coordinates!r}; known are 'natural' and 'root'."
            raise ValueError(msg)

    def init(self, model: Any, /) -> State:
        """The count of steps. TypeError if the posterior has no full covariance factor of its own."""
        if not hasattr(model.posterior, "natural_features"):
            msg = f"natural gradients need the posterior Whitened or Marginal, not {type(model.posterior).__name__}."
            raise TypeError(msg)
        return {"count": backend_of(model.Z).xp.zeros_like(model.Z[0, 0])}

    def __call__(self, model: Any, batch: Batch, state: State, /) -> tuple[Any, State, Info]:
        """The model with the new q(u); the info is the largest number of halvings."""
        xp = backend_of(batch.X).xp
        rho = rate_at(self.rate, state["count"])
        factor, Kuf, alpha, beta, mu = site_gradients(model, batch, batch.scale)
        Q, prior = model.posterior.natural_features(factor, Kuf)
        means, scales, halvings = [], [], []
        for p in range(model.posterior.outputs):
            m, C = model.posterior.mean[:, p : p + 1], model.posterior.scale[p, ...]
            site = (Q * beta[:, p]) @ Q.mT + prior
            pull = Q @ (alpha[:, p : p + 1] + beta[:, p : p + 1] * mu[:, p : p + 1])
            if self.coordinates == "natural":
                m, C, tried = _natural_step(m, C, site, pull, rho)
            else:
                m, C = _root_step(m, C, site, Q @ alpha[:, p : p + 1] - prior @ m, rho)
                tried = xp.zeros_like(state["count"])
            means.append(m)
            scales.append(C)
            halvings.append(tried)
        new = {"posterior.mean": xp.concat(means, axis=1), "posterior.scale": xp.stack(scales, axis=0)}
        tried = xp.stack(halvings)
        info = {"halvings": xp.max(tried)}
        report(
            "a natural-gradient step would have left no positive definite precision; its rate was halved (at most "
            f"{{0:.0f}} times; {HALVINGS} are the last attempt). Try a smaller rate.",
            info["halvings"],
            count=xp.count_nonzero(tried),
        )
        return tree.with_leaves(model, new), {"count": state["count"] + 1.0}, info


class SiteGradients(NamedTuple):
    """What a natural-gradient step needs of the data, at the current q(u)."""

    factor: Any
    """The posterior's factor of Kuu."""
    Kuf: Array
    """[M, B]."""
    alpha: Array
    """E[d/df log p(y | f)] [B, P], times the scale."""
    beta: Array
    """-E[d^2/df^2 log p(y | f)] [B, P], times the scale."""
    mu: Array
    """The means of f - h [B, P]."""


def site_gradients(process: Any, batch: Batch, scale: float | Array, /) -> SiteGradients:
    """The derivatives of `scale` times the expected log density at the marginals of a process, for a batch."""
    factor = factorise(process)[0]
    Kuf, kff = process.kernel(process.Z, batch.X)[0], process.kernel.diag(batch.X)[0]
    mu, var = process.posterior.project(factor, Kuf, kff)[0]
    h = process.mean_function(batch.X)[0]
    alpha, beta = process.likelihood.site_gradients(mu + h, var, batch.y, batch.draws)
    return SiteGradients(factor, Kuf, scale * alpha, scale * beta, mu)


def check_step(rate: Any, what: str) -> None:
    """ValueError unless the rate is a function, or a number in (0, 1]."""
    if not callable(rate) and not 0.0 < rate <= 1.0:
        msg = f"the rate of {what} step is {rate!r}, but must be in (0, 1]."
        raise ValueError(msg)


def _natural_step(m: Array, C: Array, site: Array, pull: Array, rho: Any) -> tuple[Array, Array, Array]:
    B = backend_of(m)
    eye = identity(C)
    root = B.solve_triangular(C, eye)
    precision = root.mT @ root  # S^-1 = C^-T C^-1
    shift = precision @ m

    def attempt(rho: Any, halvings: int) -> tuple[Array, Array, Array]:
        L = B.cholesky((1.0 - rho) * precision + rho * site)
        inverse = B.solve_triangular(L, eye)
        new_C = B.cholesky(inverse.mT @ inverse)
        new_m = inverse.mT @ (inverse @ ((1.0 - rho) * shift + rho * pull))
        good = B.xp.all(B.xp.isfinite(new_C)) & B.xp.all(B.xp.isfinite(new_m))
        count = B.xp.full_like(m[0, 0], float(halvings))
        if halvings == HALVINGS:
            return B.xp.where(good, new_m, m), B.xp.where(good, new_C, C), count
        return B.cond(good, lambda: (new_m, new_C, count), lambda: attempt(0.5 * rho, halvings + 1))

    return attempt(rho, 0)


def _root_step(m: Array, C: Array, site: Array, gradient: Array, rho: Array | float) -> tuple[Array, Array]:
    # C^T G_S C = 1/2 (I - C^T site C), since C^T S^-1 C = I
    inner = identity(C) - symmetric_from_lower(lower_of(C.mT @ site, C))
    return m + rho * (C @ (C.mT @ gradient)), C + rho * (C @ phi(inner))
