"""t-VGP, a variational GP without inducing inputs in the dual parameterisation."""

from typing import Any, ClassVar, Self, Unpack

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.bounds import Batch, expected_row_density
from agp.inducing import Points
from agp.kernels import Kernel
from agp.likelihoods import Likelihood
from agp.means import Mean, ZeroMean
from agp.models._parts import ExactParts
from agp.models._sites import SiteModel, zero_sites
from agp.models._start import exact_parts, held_in_memory, initialise_model, prepare_data
from agp.posteriors import DatumSites, limit_sites, moments_of_sites
from agp.priors import Priors
from agp.processes import Process, Sparse
from agp.random import draws_with_prefix
from agp.repairs import public

LEAST_LEFT = 10.0
"""The smallest 1 - v lam2 of a marginal from which a site is removed, as a multiple of machine precision."""


@tree.model
class TVGP(SiteModel):
    """A variational GP for any likelihood with a Gaussian site for each datum, in O(P N^3) time and O(P N^2) memory.

    q(f_p) ~ N(0, Kff) prod_n exp(lam1_np f_n - lam2_np f_n^2 / 2), with lam2 >= 0. `agp.posteriors.moments_of_sites`
    computes the moments of q(f). For Gaussian noise, after one `agp.updates.SiteStep` with rate 1, the bound equals the
    log evidence for every kernel.

    If the P outputs share the precision of each row, one matrix is factorised for all of them, in O(N^3) time. Site
    steps then use `Likelihood.shared_site_gradients`. The bound is a bound for any sites, but for several outputs,
    these steps lead to a fixed point that does not maximise it.

    Parameters
    ----------
    kernel, likelihood
        The prior covariance of f, and the likelihood p(y | f).
    X
        The training inputs [N, D], which are also used for prediction.
    site_shift, site_precision
        The auxiliary arrays lam1 [N, P] and lam2 [N, P], or lam2 [N, 1] for shared precisions. A site with both entries
        0 has no effect.
    mean_function
        The prior mean h of f. Sites and q(f) refer to f - h.
    priors
        See `SVGP`.

    Source: Adam, Chang, Khan & Solin, "Dual parameterization of sparse variational Gaussian processes", NeurIPS 2021.

    Examples
    --------
    For labels 0 and 1, the predicted means of observations are the probabilities of label 1.

    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(0.0, 6.0, 25)[:, None]
    >>> labels = np.where(X[:, 0] < 3.0, 0.0, 1.0)
    >>> model = agp.TVGP.from_data(X, labels, likelihood=agp.Bernoulli())
    >>> trained = agp.fit(model, X, labels).model
    >>> mean = trained.predict_mean(np.asarray([[1.0], [5.0]]), observed=True)
    >>> bool(mean[0, 0] < 0.1), bool(mean[1, 0] > 0.9)
    (True, True)
    """

    kernel: Kernel
    likelihood: Likelihood
    X: Array = tree.constant()
    site_shift: Array = tree.auxiliary()
    site_precision: Array = tree.auxiliary()
    mean_function: Mean = ZeroMean()
    priors: Priors = ()

    inducing: ClassVar[None] = None
    stochastic: ClassVar[bool] = False

    @classmethod
    def from_data(cls, X: Array, y: Array, /, *, shared_precision: bool = False, **parts: Unpack[ExactParts]) -> Self:
        """Build a model that is ready for training, with all sites 0.

        Parameters
        ----------
        shared_precision
            Whether the outputs share the precision of each row. For many classes, training is then much faster. Then
            rows with missing targets are not supported.
        """
        data = prepare_data(X, y, parts)
        X = held_in_memory(cls, X, y, data)["X"]
        sites = zero_sites(X, data.outputs, shared_precision=shared_precision)
        model = cls(**exact_parts(data), X=X, **sites)
        model._check_missing()
        return initialise_model(model, data)

    # -- bound ------------------------------------------------------------------------------------------------------

    def _objective(self, batch: Batch, /, *, memory: float | None = None) -> tuple[Array, Pullback]:  # noqa: ARG002
        # ignores the budget, because the whole N x N matrix is stored
        X = batch.X
        Kff, pull_kernel = self.kernel(X)
        (mu, var, kl), pull_moments = moments_of_sites(Kff, self.site_shift, self.site_precision)
        h, pull_mean = self.mean_function(X)
        draws = draws_with_prefix("likelihood", batch.draws).by_row or None
        ell, pull_likelihood = expected_row_density(self.likelihood, mu + h, var, batch, draws)
        xp = backend_of(X).xp

        def pullback(bar=1.0):
            likelihood_bar, mu_bar, var_bar = pull_likelihood(bar * batch.scale * xp.ones_like(ell))
            kernel_bar, X_bar = pull_kernel(pull_moments(mu_bar, var_bar, -bar))
            mean_bar, X_mean_bar = pull_mean(mu_bar)
            bars = {"kernel": kernel_bar, "likelihood": likelihood_bar, "mean_function": mean_bar}
            return tree.cotangent(self, **bars), tree.add(X_bar, X_mean_bar)

        return batch.scale * xp.sum(ell) - kl, pullback

    def _site_moments(self, batch: Batch, memory: float | None, /) -> tuple[Array, Array, Any]:  # noqa: ARG002
        (mu, var, _), _ = moments_of_sites(self.kernel(batch.X)[0], self.site_shift, self.site_precision)
        return mu, var, None

    def _gradients_of_sites(
        self, f: Array, var: Array, batch: Batch, draws: Any, memory: float | None
    ) -> tuple[Array, Array]:
        # the sites determine the whole variance, which is that of all outputs if they share the precisions
        alpha, beta = super()._gradients_of_sites(f, var, batch, draws, memory)
        return limit_sites(self.likelihood, alpha, beta, var[:, : beta.shape[1]])

    @public(ignore="underflow")
    def leave_one_out(
        self,
        y: Array,
        /,
        *,
        weights: Array | None = None,
        offset: Array | None = None,
        noise: Array | None = None,
    ) -> Array:
        """Estimate the leave-one-out log densities log p(y_n | all other rows) [N] at the model's sites.

        The site of a row is removed from its marginal q(f_n) = N(mu, v), which leaves the variance v / (1 - v lam2) and
        the mean mu - v' (lam1 - lam2 mu) with that variance v'. The sites of the other rows do not change. For Gaussian
        noise, this is exact. Of a row with a weight w > 1, one observation is left out, by removing 1 / w of its site.

        Parameters
        ----------
        y
            The targets [N] or [N, K] of the training inputs, in the same order.
        weights, offset, noise
            What is known of the rows, as in `bound`. The density of a row is that of a single observation.
        """
        batch = self._batch(self.X, y, weights=weights, offset=offset, noise=noise)
        (mu, var, _), _ = moments_of_sites(self.kernel(self.X)[0], self.site_shift, self.site_precision)
        mean, variance = self._without_own_site(mu, var, batch.weights)
        return self._densities(mean, variance, batch)

    def _without_own_site(self, mu: Array, var: Array, weights: Array | None) -> tuple[Array, Array]:
        """Return the moments [N, P] of f at the rows, each without an observation, given those of q(f - h)."""
        xp = backend_of(mu).xp
        part = 1.0 if weights is None else (1.0 / xp.maximum(weights, xp.ones_like(weights)))[:, None]
        left = xp.maximum(
            1.0 - part * var * self.site_precision, xp.full_like(var, LEAST_LEFT * float(xp.finfo(var.dtype).eps))
        )
        without = var / left
        return self.mean_function(self.X)[0] + mu - part * without * (
            self.site_shift - self.site_precision * mu
        ), without

    # -- prediction -------------------------------------------------------------------------------------------------

    def _posterior_process(self, *, memory: float | None = None) -> Process:  # noqa: ARG002
        sites = DatumSites(self.site_shift, self.site_precision)
        return Sparse(self.kernel, Points(self.X), sites, self.mean_function, jitter=0.0)

    def _reference(self) -> tuple[str, Array]:
        return "the training data", self.X
