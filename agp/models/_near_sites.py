"""t-NNGP, the dual parameterisation of nearest-neighbour Gaussian processes, for any likelihood."""

import dataclasses
from typing import Any, ClassVar, Self, Unpack

from agp import tree
from agp.backend import Array, Pullback, backend_of, like, row_numbers
from agp.bounds import Batch, Cavity, expected_row_density, near_cavities, near_site_bound, site_noise
from agp.checks import check_whole
from agp.kernels import Kernel
from agp.likelihoods import Gaussian, Likelihood
from agp.means import Mean, ZeroMean
from agp.models._near_regression import NNGP
from agp.models._neighbours import NEIGHBOURS, WithNeighbours
from agp.models._parts import ExactParts
from agp.models._sites import SiteModel, zero_sites
from agp.models._start import exact_parts, held_in_memory, initialise_model, prepare_data
from agp.posteriors import SiteGradients, limit_sites
from agp.priors import Priors
from agp.processes import NearestNeighbours, Process
from agp.random import draws_with_prefix
from agp.repairs import public

LEAST_CURVATURE = 0.25
"""If log p(y | f) is not concave, the precision of a site is at least this multiple of its squared slope, whose mean is
the information. A smaller or negative one would move neighbours without a limit."""
LEAST_OF_LABELS = 0.01
"""The same multiple for labels. It matters only for labels whose probabilities are about 1 % or less."""
MAX_HALVINGS = 4
"""The maximum number of times that the step of a row is halved. If its bound falls even then, its site stays."""
ROUNDING = 1e3
"""Decreases of the bound of a row up to this many units of eps count as rounding errors."""


@tree.model
class TNNGP(WithNeighbours, SiteModel):
    """A nearest-neighbour Gaussian process for any likelihood, with a Gaussian site for each datum.

    The site of a row is a pseudo-observation of its function value, with a noise variance of its own. Each row depends
    on the pseudo-observations of its k nearest other rows, and so do predictions, in O(k^3) time per row plus the
    search. A site step sets the site of each row to the derivatives of its expected log density, where q(f_n) follows
    from the neighbours and from the row's own site. For log-concave likelihoods, and with all other rows as neighbours,
    the fixed point of these steps is that of `TVGP`, the optimum of the variational bound, unless labels have
    probabilities below about 1 %.

    The bound is the sum over rows of lower bounds on the log density of a row given the pseudo-observations of its
    neighbours, which is what predictions use. It is not a bound on the evidence. For Gaussian noise and its sites, it
    is the bound of `NNGP` with ``among="others"``. Since it is a sum over rows, minibatches are unbiased.

    The outputs share the precision of each row. Steps for several outputs use `Likelihood.shared_site_gradients`. A
    row with a weight is left out as a whole: its bound and its site refer to all its observations together.

    Parameters
    ----------
    kernel, likelihood
        The prior covariance of f, and the likelihood p(y | f).
    X
        The training inputs [N, D], which are also used for prediction.
    site_shift, site_precision
        The auxiliary arrays lam1 [N, P] and lam2 [N, 1]. A site with both entries 0 has no effect.
    mean_function
        The prior mean h of f. Sites refer to f - h.
    priors
        See `SVGP`.
    sets
        The numbers [N, k] of the nearest other rows of each row. None means that they are found whenever the bound is
        computed.
    neighbours
        The number of neighbours k.

    Source: the sites of Adam, Chang, Khan & Solin, "Dual parameterization of sparse variational Gaussian processes",
    NeurIPS 2021, with the neighbours of Datta, Banerjee, Finley & Gelfand, "Hierarchical nearest-neighbor Gaussian
    process models for large geostatistical datasets", JASA 2016; see docs/methods/neighbours.md.

    Examples
    --------
    >>> import numpy as np
    >>> import agp
    >>> X = np.random.default_rng(0).uniform(0.0, 10.0, (500, 1))
    >>> counts = np.random.default_rng(1).poisson(np.exp(1.0 + np.sin(X))).astype(float)
    >>> model = agp.TNNGP.from_data(X, counts, likelihood=agp.Poisson())
    >>> trained = agp.fit(model, X, counts).model
    >>> print(trained.predict_mean(np.asarray([[1.5], [4.5]]), observed=True).round(0).ravel())
    [8. 1.]
    """

    kernel: Kernel
    likelihood: Likelihood
    X: Array = tree.constant()
    site_shift: Array = tree.auxiliary()
    site_precision: Array = tree.auxiliary()
    mean_function: Mean = ZeroMean()
    priors: Priors = ()
    sets: Array | None = tree.constant(default=None, optional=True)
    neighbours: int = NEIGHBOURS

    inducing: ClassVar[None] = None
    stochastic: ClassVar[bool] = True
    _guards_steps: ClassVar[bool] = True

    @classmethod
    def from_data(cls, X: Array, y: Array, /, *, neighbours: int = NEIGHBOURS, **parts: Unpack[ExactParts]) -> Self:
        """Build a model that is ready for training, with all sites 0.

        Parameters
        ----------
        neighbours
            The number of neighbours k.

        Raises
        ------
        ValueError
            If the kernel has a `White` part, `neighbours` is not positive, or targets of several outputs may be
            missing.
        """
        data = prepare_data(X, y, parts)
        X = held_in_memory(cls, X, y, data)["X"]
        sites = zero_sites(X, data.outputs, shared_precision=True)
        model = cls(**exact_parts(data), X=X, **sites, neighbours=check_whole("neighbours", neighbours))
        model._check_missing()
        model._check_neighbours()
        return initialise_model(model.renew_neighbours(), data)

    def _find_sets(self, rows: Array | None = None, *, memory: float | None = None) -> Array:
        return self._find_others(rows, memory)[1]

    def _on_first_datum(self) -> Self:
        return dataclasses.replace(super()._on_first_datum(), sets=None)

    # -- bound and sites --------------------------------------------------------------------------------------------

    def _objective(self, batch: Batch, /, *, memory: float | None = None) -> tuple[Array, Pullback]:
        self._check_rows(batch)
        rows, sets = self._sets_of(batch.rows, memory)
        value, pull = near_site_bound(self, batch, rows, sets, block_rows=self._block_rows(memory))
        return batch.scale * value, lambda bar=1.0: (pull(bar * batch.scale), None)

    def _cavities(self, chosen: Array | None, memory: float | None) -> tuple[Array, Cavity]:
        """Return the numbers of the rows, and their distributions given their neighbours."""
        rows, sets = self._sets_of(chosen, memory)
        return rows, near_cavities(self, rows, sets, block_rows=self._block_rows(memory))

    def _sites_at(self, rows: Array) -> tuple[Array, Array]:
        xp = backend_of(rows).xp
        return xp.take(self.site_shift, rows, axis=0), xp.take(self.site_precision, rows, axis=0)

    def _site_moments(self, batch: Batch, memory: float | None, /) -> tuple[Array, Array, Any]:
        """Return the moments [B, P] of q(f - h), and the bounds [B] of rows as a function of their sites."""
        self._check_rows(batch)
        rows, cavity = self._cavities(batch.rows, memory)
        h = self.mean_function(batch.X)[0]
        draws = draws_with_prefix("likelihood", batch.draws).by_row or None
        xp = backend_of(h).xp

        def bounds(*sites: Array) -> Array:
            m, s = cavity.times_site(*sites)
            var = xp.broadcast_to(s[:, None], m.shape)
            return expected_row_density(self.likelihood, m + h, var, batch, draws)[0] - cavity.divergence(*sites)[0]

        m, s = cavity.times_site(*self._sites_at(rows))
        return m, xp.broadcast_to(s[:, None], m.shape), bounds

    def _gradients_of_sites(
        self, f: Array, var: Array, batch: Batch, draws: Any, memory: float | None
    ) -> tuple[Array, Array]:
        alpha, beta = super()._gradients_of_sites(f, var, batch, draws, memory)
        alpha, beta = limit_sites(self.likelihood, alpha, beta, var[:, : beta.shape[1]])
        least = LEAST_OF_LABELS if self.likelihood.labels else LEAST_CURVATURE
        if self._shares_precision or (self.likelihood.log_concave and not self.likelihood.labels):
            return alpha, beta
        return alpha, backend_of(beta).xp.maximum(beta, least * alpha * alpha)

    def _site_step(
        self,
        found: SiteGradients,
        rate: Any,
        /,
        *,
        clip: bool,  # noqa: ARG002 - sites are never negative
        groups: Any = None,  # noqa: ARG002
        rows: Array | None = None,
    ) -> tuple[Self, dict[str, Array]]:
        """Return the model after a step of the sites at the rows of a batch.

        The step of each row is halved until its own bound does not fall, given the present pseudo-observations of its
        neighbours, unless the log density is concave with a bounded curvature.
        """
        alpha, beta, mu = found.sums
        xp = backend_of(beta).xp
        at = row_numbers(self.X.shape[0], self.X) if rows is None else rows
        beta = xp.maximum(beta, xp.zeros_like(beta))  # negative from rounding
        old, target = self._sites_at(at), (alpha + beta * mu, beta)
        rates, halvings = self._rates(found.factor, old, target, rate + xp.zeros_like(beta))
        shift, precision = (x + rates * (y - x) for x, y in zip(old, target, strict=True))
        return self._with_sites(shift, precision, rows), {"halvings": halvings}

    def _rates(self, bounds: Any, old: Any, target: Any, rates: Array) -> tuple[Array, Array]:
        """Return the rates [B, 1] at which the bounds of the rows do not fall, and the largest number of halvings."""
        B, likelihood = backend_of(rates), self.likelihood
        xp, none = B.xp, B.xp.zeros((), **like(rates))
        if likelihood.bounded_curvature and likelihood.log_concave:
            return rates, none
        before = bounds(*old)
        least = before - ROUNDING * float(xp.finfo(before.dtype).eps) * (1.0 + xp.abs(before))

        def is_good(rates: Array) -> Array:
            after = bounds(*(x + rates * (y - x) for x, y in zip(old, target, strict=True)))
            return (xp.isfinite(after) & ((after >= least) | ~xp.isfinite(before)))[:, None]

        def unfinished(_rates: Array, good: Array, count: Array) -> Array:
            return xp.any(~good) & (count < MAX_HALVINGS)

        def halve(rates: Array, good: Array, count: Array) -> tuple[Array, Array, Array]:
            rates = xp.where(good, rates, 0.5 * rates)
            return rates, good | is_good(rates), count + 1.0

        rates, good, count = B.while_loop(unfinished, halve, (rates, is_good(rates), none))
        return xp.where(good, rates, xp.zeros_like(rates)), count

    @public(ignore="underflow")
    def leave_one_out(
        self,
        y: Array,
        /,
        *,
        weights: Array | None = None,
        offset: Array | None = None,
        noise: Array | None = None,
        memory: float | None = None,
    ) -> Array:
        """Compute the log densities log p(y_n | pseudo-observations of the k nearest other rows) [N].

        Parameters
        ----------
        y
            The targets [N] or [N, K] of the training inputs, in the same order.
        weights, offset, noise
            What is known of the rows, as in `bound`. The density of a row is that of a single observation.
        memory
            Memory budget for working arrays, in MiB.
        """
        return self._left_out_densities(self._batch(self.X, y, weights=weights, offset=offset, noise=noise), memory)

    def _left_out_densities(self, batch: Batch, memory: float | None) -> Array:
        """Return the log densities [B] of the rows of a batch, given their neighbours."""
        cavity = self._cavities(batch.rows, memory)[1]
        mean = cavity.mean + self.mean_function(batch.X)[0]
        variance = backend_of(mean).xp.broadcast_to(cavity.variance[:, None], mean.shape)
        return self._densities(mean, variance, batch)

    # -- prediction -------------------------------------------------------------------------------------------------

    def _pseudo_observations(self) -> tuple[Array, Array]:
        """Return pseudo-observations [N, P] of f, and their noise variances [N]."""
        noise = site_noise(self.site_precision, self.kernel.diag(self.X)[0][:, None])
        return self.mean_function(self.X)[0] + self.site_shift * noise, noise[:, 0]

    def as_regression(self) -> NNGP:
        """Return regression on the pseudo-observations, with their noise variances and no other noise.

        It has the same predictions of latent functions. The gradient of its bound with respect to the kernel is that of
        this model's bound, if each site is at its optimum.
        """
        y, noise = self._pseudo_observations()
        xp, parts = backend_of(y).xp, {"sets": self.sets, "neighbours": self.neighbours, "among": "others"}
        none = Gaussian(xp.zeros((), **like(y)))
        names = [name for name in tree.leaves(self, "parameter") if not name.startswith("likelihood.")]
        wholes = [(tree.whole_pattern(pair[0]), pair) for pair in self.priors]
        priors = tuple(pair for whole, pair in wholes if any(tree.matches(name, whole) for name in names))
        known: dict[str, Any] = {"noise": noise[:, None], "mean_function": self.mean_function, "priors": priors}
        return NNGP(self.kernel, none, X=self.X, y=y, **known, **parts)

    def _posterior_process(self, *, memory: float | None = None) -> Process:
        y, noise = self._pseudo_observations()
        parts: dict[str, Any] = {"neighbours": self.neighbours, "memory": memory}
        return NearestNeighbours(self.kernel, self.mean_function, self.X, y, noise, **parts)

    def _reference(self) -> tuple[str, Array]:
        return "the training data", self.X
