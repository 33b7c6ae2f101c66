"""Conditioning processes on further data, by adding a Gaussian site for each new row and output."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, Self

from agp import tree
from agp.backend import Array, backend_of, like
from agp.bounds import Batch, expected_row_density, row_site_gradients
from agp.inducing import Points
from agp.likelihoods import Likelihood
from agp.linalg import (
    add_diagonal,
    cholesky,
    each_cholesky,
    each_inverse,
    each_times,
    identity,
    nonnegative,
    solve_each,
)
from agp.posteriors import Dual, Sums, WhiteFactor, Whitened, WhiteSites, limit_sites, sites_of_moments
from agp.repairs import report

STEPS, RATE, TOLERANCE = 500, 0.5, 1e-13
"""The maximum number of dual steps, their rate, and the relative change of the sites at which they stop."""
MAX_BOUND_DROP, MIN_RATE = 1.0, RATE / 2**20
"""Steps that lower the bound by more than MAX_BOUND_DROP, or to NaN, are halved until their rate is MIN_RATE."""


def refuse_data(what: str) -> NoReturn:
    """Raise TypeError for a posterior that cannot be conditioned on further data."""
    raise TypeError(
        f"{what} cannot be conditioned on further data; train a model on all data, or use GPR, SGPR, or an SVGP in "
        "which each output depends on one latent function."
    )


class _Outputs(NamedTuple):
    """The map f = offset + g A^T [k, P] from independent functions g [k, L]; without A, f = g.

    Each output is a multiple of one function.
    """

    offset: Array | float = 0.0
    A: Array | None = None

    def marginals(self, mean: Array, var: Array) -> tuple[Array, Array]:
        """Compute the means and variances of f from those of g."""
        return (mean, var) if self.A is None else (self.offset + mean @ self.A.mT, var @ (self.A * self.A).mT)

    def sites(self, alpha: Array, beta: Array) -> tuple[Array, Array]:
        """Compute alpha and beta (`Likelihood.site_gradients`) of g from those of f.

        If several outputs are multiples of one function, their contributions are added.
        """
        return (alpha, beta) if self.A is None else (alpha @ self.A, beta @ (self.A * self.A))


def sites_of_new(
    mean: Array, C: Array, rest: Array, batch: Batch, likelihood: Likelihood, outputs: _Outputs | None = None, /
) -> Sums:
    """Compute the sites of k new rows of data by repeating dual steps until convergence.

    A quadratic likelihood requires only one step. Before these rows are added, the independent functions g have means
    `mean` [k, L] and covariances C [L, k, k]. `rest` [k, 1] or [k, L] is a further variance that the sites do not
    change. `outputs` maps g to f; by default, f = g.
    """
    xp = backend_of(mean).xp
    eps = float(xp.finfo(mean.dtype).eps)
    outputs = _Outputs() if outputs is None else outputs

    def state(sites: Sums) -> tuple[Array, Array, float]:
        """Compute the marginals and the bound."""
        mu, var, divergence = _marginals(mean, C, *sites)
        expected = expected_row_density(likelihood, *outputs.marginals(mu, var + rest), batch)[0]
        return mu, var, float(xp.sum(expected)) - float(divergence)

    def aim(mu: Array, var: Array) -> Sums:
        alpha, beta = outputs.sites(*row_site_gradients(likelihood, *outputs.marginals(mu, var + rest), batch))
        alpha, beta = limit_sites(likelihood, alpha, beta, var)
        beta = nonnegative(beta)[0]
        return Sums(alpha + beta * mu, beta)

    sites = Sums(xp.zeros_like(mean), xp.zeros_like(mean))
    if likelihood.quadratic:
        return aim(mean, xp.sum(identity(C) * C, axis=-1).mT)
    mu, var, bound = state(sites)
    rate, change = RATE, None
    for _ in range(STEPS):
        new = aim(mu, var)
        change = _change(new, sites)
        while True:  # a full step may overshoot far from the data
            tried = Sums(*(old + rate * (x - old) for old, x in zip(sites, new, strict=True)))
            mu, var, reached = state(tried)
            if reached >= bound - MAX_BOUND_DROP or rate <= MIN_RATE:
                break
            rate *= 0.5
        sites, bound, rate = tried, reached, min(RATE, 2.0 * rate)
        if bool(change < max(TOLERANCE, 8.0 * eps)):
            return sites
    report(
        f"the sites of further data have not converged after {STEPS} dual steps; their relative change is {{0:.2g}}.",
        change,
        count=change > eps**0.5,  # smaller changes are rounding errors
    )
    return sites


def _change(new: Sums, old: Sums) -> Array:
    xp = backend_of(new.shift).xp
    least = float(xp.finfo(new.shift.dtype).smallest_normal)
    sizes = [xp.max(xp.abs(x - y)) / (least + xp.max(xp.abs(x))) for x, y in zip(new, old, strict=True)]
    return xp.max(xp.stack(sizes))


def _marginals(mean: Array, C: Array, shift: Array, precision: Array) -> tuple[Array, Array, Array]:
    """Compute the marginals [k, L] of q, which is N(mean, C) times the sites, and its KL divergence from N(mean, C).

    Let s be the square roots of the precisions, and W = I + s C s. Then q has the covariance V = C - C s W^-1 s C and
    the mean + V (shift - precision mean).
    """
    xp = backend_of(mean).xp
    s = xp.sqrt(precision).mT  # [L, k]
    roots = each_inverse(each_cholesky(identity(C) + s[:, :, None] * C * s[:, None, :]))
    D = roots @ (s[:, :, None] * C)
    residual = shift - precision * mean
    change = each_times(C, residual) - each_times(D.mT, each_times(D, residual))
    var = nonnegative(xp.sum(identity(C) * C, axis=-1) - xp.sum(D * D, axis=-2))[0].mT
    quadratic = xp.sum(residual * change - precision * (change * change + var))
    return mean + change, var, 0.5 * quadratic - xp.sum(xp.log(xp.sum(identity(C) * roots, axis=-1)))


# -- processes at new inputs ------------------------------------------------------------------------------------------


def condition_process(process: Any, factor: Any, batch: Batch, likelihood: Likelihood, /) -> tuple[Any, Any]:
    """Return the process and its factor given further data; see `agp.processes.Process.condition_on`."""
    places: dict[str, Place] = process.places(factor, batch)
    X, A = batch.X, process.mixing
    xp = backend_of(X).xp
    if likelihood.quadratic and A is None:  # alpha + beta mu does not depend on mu
        zeros = xp.zeros((X.shape[0], process.outputs), **like(X))
        new = Sums(*row_site_gradients(likelihood, zeros, zeros, batch))
    else:
        parts = zip(*(place.marginals() for place in places.values()), strict=True)
        mean, C, rest = (xp.concat(list(part), axis=axis) for part, axis in zip(parts, (1, 0, 1), strict=True))
        outputs = _Outputs() if A is None else _Outputs(process.project_mean(factor, X) - mean @ A.mT, A)
        new = sites_of_new(mean, C, rest, batch, likelihood, outputs)
    found, start = {}, 0
    for path, place in places.items():
        stop = start + place.process.outputs
        found[path] = place.times(Sums(new.shift[:, start:stop], new.precision[:, start:stop]))
        start = stop
    if "" in found and found[""][1] is not None:
        return found[""]
    process = tree.replace(process, {path: part for path, (part, _) in found.items()}).recompute_factors()
    return process, process.factorise()[0]


@dataclass(frozen=True)
class Place(ABC):
    """A sparse process at k new inputs, where its functions are f = g + r with independent parts g and r."""

    process: Any

    @abstractmethod
    def marginals(self) -> tuple[Array, Array, Array]:
        """Compute means [k, P] of f, covariances [P, k, k] of g, and variances [k, P] of r."""

    @abstractmethod
    def times(self, new: Sums) -> tuple[Any, Any]:
        """Multiply the posterior of g by sites of f; return the process and its factor, or None if it is unknown."""


@dataclass(frozen=True)
class DataPlace(Place):
    """A process that holds the data; g = f."""

    factor: Any
    X: Array

    def marginals(self) -> tuple[Array, Array, Array]:
        mean = self.process.project_mean(self.factor, self.X)
        return mean, self.process.project_covariance(self.factor, self.X), backend_of(mean).xp.zeros_like(mean)

    def times(self, new: Sums) -> tuple[Any, Any]:
        process = self.process
        kernel, points = process.kernel, process.inducing
        shift = new.shift - new.precision * process.mean_function(self.X)[0]
        covariances = points.cross(kernel, self.X)[0], points.full(kernel, self.X)[0]
        posterior, factor = process.posterior.add_data(self.factor, *covariances, shift, new.precision)
        X = backend_of(self.X).xp.concat([points.Z, self.X], axis=0)
        return tree.replace(process, {"inducing": Points(X), "posterior": posterior}), factor


@dataclass(frozen=True)
class InducingPlace(Place):
    """A process with inducing variables u: f is the sum of g = h + A^T v, with v = Lu^-1 u, and a part given u."""

    shift: Array
    """t [M, P]. Together with S, the next field, it defines q(v_p) ~ N(0, I) exp(t_p^T v - v^T S_p v / 2)."""
    precision: Array
    """S [P, M, M]."""
    A: Array
    h: Array
    rest: Array

    @classmethod
    def of(cls, process: Any, factor: Any, X: Array) -> Self:
        """Compute the features of the new inputs X [k, D]."""
        B = backend_of(X)
        Lu = factor.Lu if isinstance(factor, WhiteFactor) else cholesky(process.inducing_covariance()[0])
        (Kuf, kff, h), _ = process.features(X)
        A = B.solve_triangular(Lu, Kuf)
        rest = nonnegative(kff - B.xp.sum(A * A, axis=0))[0][:, None]
        return cls(process, *_white_sites(process, factor, Lu), A, h, rest)

    def marginals(self) -> tuple[Array, Array, Array]:
        xp = backend_of(self.A).xp
        roots = each_inverse(each_cholesky(add_diagonal(self.precision, 1.0)))  # the covariances of v are root^T root
        D = roots @ self.A
        mean = self.h + self.A.mT @ each_times(roots.mT, each_times(roots, self.shift))
        return mean, D.mT @ D, xp.broadcast_to(self.rest, mean.shape)

    def times(self, new: Sums) -> tuple[Any, None]:
        more = self.A @ (new.precision.mT[:, :, None] * self.A.mT)
        shift = self.shift + self.A @ (new.shift - new.precision * self.h)
        return tree.replace(self.process, {"posterior": WhiteSites(shift, self.precision + more)}), None


def _white_sites(process: Any, factor: Any, Lu: Array) -> tuple[Array, Array]:
    """Compute t [M, P] and S [P, M, M] of q(v_p) ~ N(0, I) exp(t_p^T v - v^T S_p v / 2)."""
    posterior = process.posterior
    if isinstance(posterior, WhiteSites):
        return posterior.shift, posterior.precision
    if isinstance(posterior, Dual):
        return posterior.white_sites(Lu)
    return sites_of_moments(*_white_moments(process, factor, Lu))


def _white_moments(process: Any, factor: Any, Lu: Array) -> tuple[Array, Array]:
    """Compute the means [M, P] of v, and lower factors of its covariances [P, M, M]."""
    state = factor.state if isinstance(factor, WhiteFactor) else None
    if isinstance(state, Whitened):
        return state.mean, state.scale
    if state is not None:
        return state.white_mean, each_cholesky(state.white_covariance(identity(Lu)))
    mean, covariance = process.inducing_moments()
    half = solve_each(Lu, covariance)
    return backend_of(Lu).solve_triangular(Lu, mean), each_cholesky(solve_each(Lu, half.mT))
