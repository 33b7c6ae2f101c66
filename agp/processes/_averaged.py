"""Weighted averages of processes that were fitted to the same data."""

from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any, NoReturn

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.checks import check_equal, check_like, check_positive
from agp.processes._base import Parallel, Process, SitePull, WithoutSites, check_processes
from agp.processes._outputs import Alike
from agp.processes._paths import Paths
from agp.processes._terms import Moments, Term, common_terms

TOLERANCE = 1e-5
"""The largest difference between the sum of the weights and 1."""


def check_average(what: str, weights: Array, spread: float, count: int, reference: tuple[str, Array]) -> None:
    """Raise an error unless `weights` has `count` positive entries with the sum 1, and `spread` is a positive number.

    The weights must have the library, dtype and device of the reference, which is a name and an array.
    """
    check_positive("spread", spread)
    check_shares("weights", what, weights, count, reference)


def check_shares(name: str, what: str, weights: Array, count: int, reference: tuple[str, Array]) -> None:
    """Raise an error unless an array has `count` positive entries with the sum 1, one for each of what it weights."""
    check_like(name, weights, *reference)
    if tuple(weights.shape) != (count,):
        raise ValueError(
            f"{name} has shape {tuple(weights.shape)}, but must have shape ({count},); pass one weight for each {what}."
        )
    B = backend_of(weights)
    if B.is_concrete(weights):
        least, total = float(B.xp.min(weights)), float(B.xp.sum(weights))
        if not (least > 0.0 and abs(total - 1.0) <= TOLERANCE):
            raise ValueError(
                f"{name} must be positive with the sum 1, but the smallest is {least:g} and the sum is {total:g}; "
                "divide them by their sum."
            )


@tree.model
class Averaged(Alike, Parallel, WithoutSites):
    """A weighted average of Gaussian processes with the same inputs and outputs, for predictions.

    If the parts have the means m_k and the covariances C_k, the average has the mean sum_k w_k m_k and the covariance
    spread sum_k w_k C_k. It is the process m + sum_k sqrt(spread w_k) (f_k - m_k), where m is this mean and the parts
    f_k are independent. The errors of models that were fitted to the same data are alike, so an average does not have
    smaller variances. The average of independent errors would have the covariance sum_k w_k^2 C_k.

    Parameters
    ----------
    parts
        The K processes. Each output must be an independent function.
    weights
        The weights w [K], which are positive with the sum 1. They have no gradient.
    spread
        The factor by which variances are multiplied.
    """

    parts: tuple[Process, ...]
    weights: Array = tree.constant()
    spread: float = 1.0

    def __post_init__(self) -> None:
        check_processes("parts of an Averaged", self.parts)

    @property
    def rows_share_work(self) -> bool:  # type: ignore[override]
        return any(part.rows_share_work for part in self.parts)

    @property
    def floats_per_row(self) -> int:
        return sum(part.floats_per_row for part in self.parts) + 2 * self.outputs

    def project(self, factor: Any, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        found = [part.project(one, X) for part, one in self._with(factor)]

        def pullback(mu_bar, var_bar):
            pulls = enumerate(pull for _, pull in found)
            return self._join_cotangents(
                pull(self.weights[k] * mu_bar, self.spread * self.weights[k] * var_bar) for k, pull in pulls
            )

        mean = self._average(mu for (mu, _), _ in found)
        return (mean, self.spread * self._average(var for (_, var), _ in found)), pullback

    def sample_marginals(self, factor: Any, X: Array, noise: Array, /) -> tuple[Array, Pullback]:
        xp = backend_of(X).xp
        (mu, var), pull = self.project(factor, X)
        above, zero = var > 0.0, xp.zeros_like(var)
        root = xp.sqrt(xp.where(above, var, 1.0 + zero))
        samples = mu[None, :, :] + xp.where(above, root, zero)[None, :, :] * noise

        def pullback(bar):
            bars = xp.reshape(bar, noise.shape)
            slope = xp.where(above, 0.5 / root, zero)
            return pull(xp.sum(bars, axis=0), slope * xp.sum(bars * noise, axis=0))

        return xp.reshape(samples, (-1, self.outputs)), pullback

    def project_mean(self, factor: Any, X: Array, /) -> Array:
        return self._average(part.project_mean(one, X) for part, one in self._with(factor))

    def project_covariance(self, factor: Any, X: Array, /) -> Array:
        return self.spread * self._average(part.project_covariance(one, X) for part, one in self._with(factor))

    def terms(self, names: Sequence[str] = (), /) -> tuple[Term, ...]:
        return common_terms("the functions of an average", [part.terms(names) for part in self.parts])

    def project_terms(self, factor: Any, X: Array, /) -> Moments:
        self.terms()  # raises if the terms do not correspond
        found = [part.project_terms(one, X) for part, one in self._with(factor)]
        mean, covariance = (self._average(several) for several in zip(*found, strict=True))
        return mean, self.spread * covariance

    def paths(self, factor: Any, rng: Any, count: int, features: int, /) -> Paths:
        parts = tuple(part.paths(one, rng, count, features) for part, one in self._with(factor))
        return AveragedPaths(parts, self, factor)

    def check(self) -> None:
        differ = "the parts of an Averaged have different numbers of"
        check_equal(f"{differ} outputs", (part.outputs for part in self.parts))
        check_equal(f"{differ} input columns", (part.width for part in self.parts))
        for part in self.parts:
            if part.samples > 1 or part.depth > 1:
                raise ValueError(
                    f"{type(part).__name__} is not Gaussian, so Averaged cannot average it; use other parts."
                )
            if part.mixing is not None or part.latents != part.outputs:
                raise ValueError(
                    f"the outputs of {type(part).__name__} are mixtures of functions, which Averaged cannot average; "
                    "use parts with a function for each output."
                )
            part.check()
        check_average("part", self.weights, self.spread, len(self.parts), self.reference)

    # -- steps of a variational bound --------------------------------------------------------------------------------

    def kl_divergence(self, factor: Any, /) -> tuple[Array, Pullback]:
        self._refuse("KL divergence")

    def project_to_sites(self, factor: Any, X: Array, /) -> tuple[tuple[Array, Array], SitePull]:
        self._refuse("sites")

    def _refuse(self, what: str) -> NoReturn:
        raise TypeError(f"{type(self).__name__} has no {what}; train the models whose processes it averages.")

    def _average(self, several: Iterable[Array]) -> Array:
        """Compute sum_k w_k x_k for arrays x_k of equal shapes."""
        return reduce(tree.add, (self.weights[k] * x for k, x in enumerate(several)))


@tree.model
class AveragedPaths(Alike, Paths):
    """Sample paths m + sum_k a_k (f_k - m_k) of an average, with a_k = sqrt(spread w_k), given sample paths of f_k."""

    parts: tuple[Paths, ...]
    process: Averaged
    factor: Any
    """The factor of the average, from which the means m_k are computed."""

    @property
    def count(self) -> int:
        return self.parts[0].count

    @property
    def floats_per_row(self) -> int:
        samples = (len(self.parts) + 2) * self.count * self.outputs
        return sum(part.floats_per_row for part in self.parts) + self.process.floats_per_row + samples

    def evaluate(self, X: Array, /) -> tuple[Array, Pullback]:
        xp, groups = backend_of(X).xp, X.shape[:-2]  # (S,) if each sample has its own inputs
        rows, weights = xp.reshape(X, (-1, X.shape[-1])), self.process.weights
        scales = xp.sqrt(self.process.spread * weights)
        of_means = weights - scales
        found = [part.evaluate(X) for part in self.parts]
        processes = self.process._with(self.factor)
        means = [xp.reshape(part.project_mean(one, rows), (*groups, -1, self.outputs)) for part, one in processes]
        values = (scales[k] * f + of_means[k] * m for k, ((f, _), m) in enumerate(zip(found, means, strict=True)))

        def pullback(bar):
            total = xp.reshape(bar if groups else xp.sum(bar, axis=0), (-1, self.outputs))
            X_bar = reduce(tree.add, (pull(scales[k] * bar) for k, (_, pull) in enumerate(found)))
            pulls = enumerate(part.project(one, rows)[1] for part, one in processes)
            rows_bar = reduce(tree.add, (pull(of_means[k] * total, xp.zeros_like(total))[-1] for k, pull in pulls))
            return tree.add(X_bar, None if rows_bar is None else xp.reshape(rows_bar, X.shape))

        return reduce(tree.add, values), pullback
