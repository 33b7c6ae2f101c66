"""Models with a Gaussian site for each datum, which `agp.updates.SiteStep` moves."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from agp import tree
from agp.backend import Array, backend_of, like
from agp.batch import Batch
from agp.checks import check_inputs, check_like
from agp.kernels import Kernel
from agp.likelihoods import Gaussian
from agp.means import Mean
from agp.models._base import Model, WithoutPosterior
from agp.posteriors import GuardedSums, SiteGradients, SiteHolder, Sums, safeguarded_step
from agp.random import draws_with_prefix

__all__ = ["DatumGradients", "SiteModel", "scatter_rows"]


class DatumGradients(NamedTuple):
    """Derivatives for the sites of a batch; each is [B, P]."""

    alpha: Array
    """The derivative d/dmu of the expected log density."""
    beta: Array
    """The derivative -2 d/dvar of the expected log density."""
    mu: Array
    """The means of f - h."""


class SiteModel(Model, SiteHolder, WithoutPosterior):
    """A model with a site exp(lam1 (f - h) - lam2 (f - h)^2 / 2) for each datum and output.

    Leaves: the inputs `X` [N, D], `site_shift` lam1 [N, P] and `site_precision` lam2 [N, P].
    """

    kernel: Kernel
    mean_function: Mean
    X: Array
    site_shift: Array
    site_precision: Array

    @property
    def outputs(self) -> int:
        return self.site_shift.shape[1]

    def _check(self, X: Array, y: Array, /) -> None:
        super()._check(X, y)
        self._check_same_inputs(X)

    def _on_first_datum(self) -> Self:
        check_inputs("X", self.X, finite=False)
        self._with_sites(self.site_shift, self.site_precision)
        return tree.with_leaves(
            self, {name: getattr(self, name)[:1, :] for name in ("X", "site_shift", "site_precision")}
        )

    def _check_same_inputs(self, X: Array) -> None:
        if X.shape != self.X.shape or not bool(backend_of(X).xp.all(X == self.X)):
            msg = (
                f"the sites of {type(self).__name__} belong to other inputs, or to these in another order; pass "
                "the data with which it was built, or build a new model with from_data."
            )
            raise ValueError(msg)

    @abstractmethod
    def _site_moments(
        self, batch: Batch, memory: float | None, /
    ) -> tuple[Array, Array, Callable[[Array], Array] | None]:
        """Return means and variances [B, P] of the current q(f - h) at the rows of a batch, and a test of changes.

        The test takes a change [B, P] of the site precisions at these rows, and tells whether q stays proper, Boolean
        [P]. It is None for models whose sites must not be negative.
        """

    @property
    def _site_paths(self) -> tuple[str, ...]:
        return ("",)

    def _site_gradients(self, batch: Batch, /, *, memory: float | None = None) -> dict[str, SiteGradients]:
        mu, var, allowed = self._site_moments(batch, memory)
        h = self.mean_function(batch.X)[0]
        draws = draws_with_prefix("likelihood", batch.draws).by_row or None
        alpha, beta = self.likelihood.site_gradients(mu + h, var, batch.y, draws)
        return {"": SiteGradients(allowed, DatumGradients(alpha, beta, mu))}

    def _site_step(
        self,
        found: SiteGradients,
        rate: Any,
        /,
        *,
        clip: bool,
        groups: Any = None,  # noqa: ARG002
        rows: Array | None = None,
    ) -> tuple[Self, dict[str, Array]]:
        """Return the model after a step of the sites at the rows of a batch; the step ignores the batch's scale.

        Raises ValueError if the batch lacks some rows of the data and has no row numbers.
        """
        alpha, beta, mu = found.sums
        if rows is None and beta.shape[0] != self.X.shape[0]:
            msg = (
                f"a step on {beta.shape[0]} of the {self.X.shape[0]} data needs their row numbers to find their sites; "
                "pass rows= to Batch."
            )
            raise ValueError(msg)
        xp = backend_of(beta).xp
        old = Sums(self.site_shift, self.site_precision)
        if rows is not None:
            old = Sums(*(xp.take(x, rows, axis=0) for x in old))
        clipped = xp.maximum(beta, xp.zeros_like(beta))
        negative = xp.sum(xp.astype(beta < 0.0, beta.dtype), axis=0)
        target = GuardedSums(Sums(alpha + beta * mu, beta), Sums(alpha + clipped * mu, clipped), negative)
        allowed = None if clip else found.factor
        proper = None if allowed is None else lambda precision: allowed(precision - old.precision)
        moved, info = safeguarded_step(rate, old, target, proper)
        return self._with_sites(*moved, rows), info

    def _with_sites(self, shift: Array, precision: Array, rows: Array | None = None, /) -> Self:
        """Return the model with new sites [B, P] for the data at these rows [B], or for all data.

        Raises ValueError unless there is one site for each row.
        """
        wanted = (self.X.shape[0] if rows is None else rows.shape[0], self.outputs)
        for name, x in (("shift", shift), ("precision", precision)):
            check_like(f"the sites' {name}", x, "X", self.X)
            if tuple(x.shape) != wanted:
                msg = (
                    f"the sites' {name} has shape {tuple(x.shape)}, but must be {wanted}: sites belong to rows of "
                    "the data with which the model was built; pass rows= to a Batch of them."
                )
                raise ValueError(msg)
        new = {"site_shift": shift, "site_precision": precision}
        if rows is not None:
            held = (self.site_shift, self.site_precision)
            new = dict(zip(new, scatter_rows(held, rows, (shift, precision)), strict=True))
        return tree.with_leaves(self, new)

    def with_gaussian_sites(self, y: Array, /) -> Self:
        """Return the model with the sites of Gaussian noise, (y - h) / sigma^2 and 1 / sigma^2, for all y [N, P].

        With these sites, the bound is the collapsed bound for every kernel. Call this method again after each change of
        the noise or the mean function.

        Raises
        ------
        TypeError
            If the likelihood is not `Gaussian`.
        """
        if not isinstance(self.likelihood, Gaussian):
            msg = f"only Gaussian noise has sites in closed form, not {type(self.likelihood).__name__}; use SiteStep."
            raise TypeError(msg)
        y = self._batch(self.X, y).y
        none = backend_of(y).xp.zeros_like(y)
        # at f = h, where alpha is (y - h) / sigma^2
        return self._with_sites(*self.likelihood.site_gradients(self.mean_function(self.X)[0] + none, none, y))


def scatter_rows(old: tuple[Array, ...], rows: Array, new: tuple[Array, ...]) -> tuple[Array, ...]:
    """Copy old arrays [N, P] with the given rows [B] replaced by the rows of new arrays [B, P].

    It needs no mutation and no data-dependent shapes. If a row is given twice, the first one counts.
    """
    xp = backend_of(rows).xp
    order = xp.argsort(rows)
    placed = xp.take(rows, order)
    every = xp.arange(old[0].shape[0], **like(rows))
    at = xp.searchsorted(placed, every)
    at = xp.where(at < rows.shape[0], at, xp.zeros_like(at))
    hit, source = (xp.take(placed, at) == every)[:, None], xp.take(order, at)
    return tuple(xp.where(hit, xp.take(y, source, axis=0), x) for x, y in zip(old, new, strict=True))
