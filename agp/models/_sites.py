"""Models that keep a Gaussian site for each datum, which `agp.updates.SiteStep` moves."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from agp import tree
from agp.backend import Array, backend_of, like
from agp.batch import Batch
from agp.checks import check_like
from agp.kernels import Kernel
from agp.likelihoods import Gaussian
from agp.means import Mean
from agp.models._base import Model

__all__ = ["SiteModel", "SiteView", "scattered"]


class SiteView(NamedTuple):
    """The current q(f) at the rows of a batch."""

    mu: Array
    """Means of f - h [B, P]."""
    var: Array
    """Variances [B, P]."""
    allowed: Callable[[Array], Array] | None
    """Whether q stays proper, Boolean [P], if the sites' precisions at these rows change by so much [B, P].

    None for models whose sites must not be negative.
    """


class SiteModel(Model):
    """A model with a site exp(lam1 (f - h) - lam2 (f - h)^2 / 2) for each of its data and outputs.

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

    def check(self, X: Array, y: Array, /) -> None:
        super().check(X, y)
        self._check_same_inputs(X)

    def _check_same_inputs(self, X: Array) -> None:
        if X.shape != self.X.shape or not bool(backend_of(X).xp.all(X == self.X)):
            msg = (
                f"the sites of {type(self).__name__} belong to other inputs, or to the same in another order; give it "
                "the data that it was built with, or build a new model for these with from_data."
            )
            raise ValueError(msg)

    def draws(self, rng: Any, rows: int, /) -> dict[str, Any]:
        return self.likelihood.draws(rng, rows, self.outputs)

    @abstractmethod
    def site_view(self, batch: Batch, /) -> SiteView:
        """The current q(f) at the rows of a batch."""

    def with_sites(self, shift: Array, precision: Array, rows: Array | None = None, /) -> Self:
        """The model with new sites [B, P] for the data at these rows [B], or for all data.

        Raises
        ------
        ValueError
            If there are not as many sites as rows.
        """
        wanted = (self.X.shape[0] if rows is None else rows.shape[0], self.outputs)
        for name, x in (("shift", shift), ("precision", precision)):
            check_like(f"the sites' {name}", x, "X", self.X)
            if tuple(x.shape) != wanted:
                msg = (
                    f"the sites' {name} has shape {tuple(x.shape)}, but must be {wanted}: sites belong to the rows of "
                    "the data that the model was built with; give a batch of those its rows."
                )
                raise ValueError(msg)
        new = {"site_shift": shift, "site_precision": precision}
        if rows is not None:
            new = {name: scattered(getattr(self, name), rows, x) for name, x in new.items()}
        return tree.with_leaves(self, new)

    def with_gaussian_sites(self, y: Array, /) -> Self:
        """The model whose sites are those of Gaussian noise: (y - h) / sigma^2 and 1 / sigma^2, for all y [N, P].

        With them the bound is the collapsed one for every kernel and, done again after each change of the noise or the
        mean function, for these, too.

        Raises
        ------
        TypeError
            If the likelihood is not `Gaussian`.
        """
        if not isinstance(self.likelihood, Gaussian):
            msg = f"only Gaussian noise has sites in closed form, not {type(self.likelihood).__name__}; use SiteStep."
            raise TypeError(msg)
        y = self.batch(self.X, y).y
        noise = self.likelihood.noise_variance
        residual = y - self.mean_function(self.X)[0]
        return self.with_sites(residual / noise, backend_of(y).xp.zeros_like(y) + 1.0 / noise)


def scattered(old: Array, rows: Array, new: Array) -> Array:
    """A copy of old [N, P] in which the given rows [B] are new [B, P]; without mutation or data-dependent shapes."""
    xp = backend_of(old).xp
    order = xp.argsort(rows)
    placed = xp.take(rows, order)
    every = xp.arange(old.shape[0], **like(rows))
    at = xp.searchsorted(placed, every)
    at = xp.where(at < rows.shape[0], at, xp.zeros_like(at))
    hit = xp.take(placed, at) == every
    return xp.where(hit[:, None], xp.take(new, xp.take(order, at), axis=0), old)
