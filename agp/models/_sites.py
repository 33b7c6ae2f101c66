"""Models with a Gaussian site for each row and output. `agp.updates.SiteStep` trains the sites."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, backend_of, like
from agp.bounds import Batch, row_site_gradients, with_row_noise
from agp.checks import check_inputs, check_like
from agp.chunking import row_ranges, tile_rows
from agp.kernels import Kernel
from agp.likelihoods import Gaussian
from agp.means import Mean
from agp.models._base import Model
from agp.posteriors import GuardedSums, SiteGradients, SiteHolder, Sums, safeguarded_step
from agp.random import draws_with_prefix


class SiteModel(Model, SiteHolder):
    """Base class of models with a site exp(lam1 (f - h) - lam2 (f - h)^2 / 2) for each row and output.

    The leaves are `X` (the inputs [N, D]), `site_shift` (lam1 [N, P]) and `site_precision` (lam2 [N, P], or [N, 1] if
    the outputs share the precision of each row).
    """

    kernel: Kernel
    mean_function: Mean
    X: Array
    site_shift: Array
    site_precision: Array

    posterior: ClassVar[None] = None
    _holds_data: ClassVar[bool] = True

    @property
    def outputs(self) -> int:
        return self.site_shift.shape[1]

    @property
    def _shares_precision(self) -> bool:
        """Whether several outputs share the precision of each site."""
        return self.site_precision.shape[1] < self.outputs

    def _check(self, batch: Batch, /) -> None:
        super()._check(batch)
        self._check_missing()

    def _check_missing(self) -> None:
        """Raise ValueError if a row may have a target of one output only, but the outputs share its precision."""
        if self._shares_precision and self.likelihood.missing:
            raise ValueError(
                f"{type(self).__name__} with one precision for all outputs does not support missing targets, but the "
                "likelihood has missing=True; use SVGP, or drop rows with missing targets and omit missing=."
            )

    def _check_same_data(self, batch: Batch, /) -> None:
        if not backend_of(batch.X).same_rows(batch.X, self.X):
            raise ValueError(
                f"X differs from the inputs with which {type(self).__name__} was built; pass the same data in the same "
                "order, or build a new model with from_data."
            )

    def _on_first_datum(self) -> Self:
        check_inputs("X", self.X, finite=False)
        self._with_sites(self.site_shift, self.site_precision)
        return tree.with_leaves(
            self, {name: getattr(self, name)[:1, :] for name in ("X", "site_shift", "site_precision")}
        )

    @abstractmethod
    def _site_moments(
        self, batch: Batch, memory: float | None, /
    ) -> tuple[Array, Array, Callable[[Array], Array] | None]:
        """Return the means and variances [B, P] of q(f - h) at the rows of a batch, and a test for new sites.

        Given a change [B, P] of the site precisions at these rows, the test returns P Booleans, which are True if q
        stays a proper distribution. Models that do not allow negative site precisions return None instead of a test.
        """

    @property
    def _site_paths(self) -> tuple[str, ...]:
        return ("",)

    def _site_gradients(self, batch: Batch, /, *, memory: float | None = None) -> dict[str, SiteGradients]:
        mu, var, allowed = self._site_moments(batch, memory)
        h = self.mean_function(batch.X)[0]
        draws = draws_with_prefix("likelihood", batch.draws).by_row or None
        alpha, beta = self._gradients_of_sites(mu + h, var, batch, draws, memory)
        return {"": SiteGradients(allowed, (alpha, beta, mu))}

    def _gradients_of_sites(
        self, f: Array, var: Array, batch: Batch, draws: Any, memory: float | None
    ) -> tuple[Array, Array]:
        """Return alpha [B, P] and beta [B, P], or [B, 1] if outputs share it, at the marginals of q(f)."""
        if not self._shares_precision:
            return row_site_gradients(self.likelihood, f, var, batch, draws)
        xp = backend_of(f).xp
        rows = tile_rows(memory, self.likelihood.floats_per_row * self.outputs, f)
        parts = []
        for start, stop in row_ranges(f.shape[0], rows):
            some = batch.take(lambda x: x[start:stop, ...])  # noqa: B023 - called at once
            own = None if draws is None else {name: x[:, start:stop, ...] for name, x in draws.items()}
            at = f[start:stop, :], var[start:stop, :]
            parts.append(row_site_gradients(self.likelihood, *at, some, own, shared=True))
        alpha, beta = (xp.concat(list(column), axis=0) for column in zip(*parts, strict=True))
        return alpha, beta

    def _densities(self, mean: Array, variance: Array, batch: Batch) -> Array:
        """Return the log densities [B] of the targets of a batch, for f with means and variances [B, P]."""
        mean = mean if batch.offset is None else mean + batch.offset
        return with_row_noise(self.likelihood, batch.noise).predictive_log_density(mean, variance, batch.y)

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
        """Return the model after a step of the sites at the rows of a batch.

        `found.sums` contains alpha and beta [B, P] (`Likelihood.site_gradients`), and the means [B, P] of f - h. The
        step does not depend on the scale of the batch. Raises ValueError for a minibatch without row numbers.
        """
        alpha, beta, mu = found.sums
        if rows is None and beta.shape[0] != self.X.shape[0]:
            raise ValueError(
                f"the batch has {beta.shape[0]} of the {self.X.shape[0]} rows, but no row numbers; pass rows= to Batch "
                "to select the sites."
            )
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
        """Return the model with new sites [B, P] at the given rows [B], or at all rows.

        Raises ValueError unless there is one site for each row.
        """
        count = self.X.shape[0] if rows is None else rows.shape[0]
        for name, x, columns in (
            ("shift", shift, self.outputs),
            ("precision", precision, 1 if self._shares_precision else self.outputs),
        ):
            wanted = (count, columns)
            check_like(f"the sites' {name}", x, "X", self.X)
            if tuple(x.shape) != wanted:
                raise ValueError(
                    f"the sites' {name} has shape {tuple(x.shape)}, but must have shape {wanted}; pass one site for "
                    "each row, or rows= to Batch."
                )
        new = {"site_shift": shift, "site_precision": precision}
        if rows is not None:
            held = (self.site_shift, self.site_precision)
            new = dict(zip(new, scatter_rows(held, rows, (shift, precision)), strict=True))
        return tree.with_leaves(self, new)

    def with_gaussian_sites(
        self,
        y: Array,
        /,
        *,
        weights: Array | None = None,
        offset: Array | None = None,
        noise: Array | None = None,
    ) -> Self:
        """Return the model with the sites of Gaussian noise, (y - h) / sigma^2 and 1 / sigma^2, for targets y [N, P].

        These sites are optimal for every kernel, so the bound is the collapsed bound. Call this method again after each
        change of the noise variance or the mean function. See `bound` for the other arguments.

        Raises
        ------
        TypeError
            If the likelihood is not `Gaussian`.
        """
        if not isinstance(self.likelihood, Gaussian):
            found = type(self.likelihood).__name__
            raise TypeError(f"the likelihood is {found}, but with_gaussian_sites needs Gaussian; use SiteStep.")
        batch = self._batch(self.X, y, weights=weights, offset=offset, noise=noise)
        none = backend_of(y).xp.zeros_like(batch.y)
        # at mean h and variance 0, alpha is (y - h) / sigma^2
        f = self.mean_function(self.X)[0] + none
        return self._with_sites(*row_site_gradients(self.likelihood, f, none, batch, shared=self._shares_precision))


def zero_sites(X: Array, outputs: int, *, shared_precision: bool = False) -> dict[str, Array]:
    """Return the sites [N, P] of a model before training, which are zero, for inputs X [N, D].

    If `shared_precision` is true, there is one precision for each row.
    """
    columns = {"site_shift": outputs, "site_precision": 1 if shared_precision else outputs}
    return {name: backend_of(X).xp.zeros((X.shape[0], count), **like(X)) for name, count in columns.items()}


def scatter_rows(old: tuple[Array, ...], rows: Array, new: tuple[Array, ...]) -> tuple[Array, ...]:
    """Copy old arrays [N, P], with the given rows [B] replaced by the rows of new arrays [B, P].

    The function mutates no array and has no data-dependent shapes. If a row number occurs twice, the values of its
    first occurrence are used.
    """
    xp = backend_of(rows).xp
    order = xp.argsort(rows)
    placed = xp.take(rows, order)
    every = xp.arange(old[0].shape[0], **like(rows))
    at = xp.searchsorted(placed, every)
    at = xp.where(at < rows.shape[0], at, xp.zeros_like(at))
    hit, source = (xp.take(placed, at) == every)[:, None], xp.take(order, at)
    return tuple(xp.where(hit, xp.take(y, source, axis=0), x) for x, y in zip(old, new, strict=True))
