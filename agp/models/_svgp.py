"""Sparse variational GPs: one model for every parameterisation of q(u)."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback
from agp.batch import Batch
from agp.bounds import blocked_elbo, elbo
from agp.inducing import How
from agp.kernels import Kernel
from agp.likelihoods import Likelihood
from agp.means import Mean, ZeroMean
from agp.models._base import Conditioned, Model
from agp.models._start import checked_jitter, chosen_inducing, started, started_model
from agp.posteriors import (
    Posterior,
    Relaxed,
    factorise,
    inducing_covariance,
    project,
    project_covariance,
    project_mean,
)
from agp.priors import Prior, Priors, as_priors
from agp.rows import MEMORY, rows_within, tile_rows
from agp.units import column_spreads

__all__ = ["SVGP"]


@tree.model
class SVGP(Model):
    """A sparse variational GP with M inducing inputs, for any likelihood; its P latent functions share kernel and Z.

    Built from data by `SVGP.from_data`; the plain constructor takes arrays as they are.

    Parameters
    ----------
    kernel, likelihood
        The prior covariance of f, and p(y | f).
    posterior
        q(u), whose class is the method: `Marginal` (M-SVGP), `Whitened` (W), `LikelihoodForm` (L), the inverse-free
        `Relaxed` (R) and `InverseFree` (A), or the sites of `Dual` and `DualInverseFree`.
    Z
        Inducing inputs [M, D].
    jitter
        Added to the diagonal of Kuu: absolute if given; by default 1e-6 (float64) or 1e-4 (float32) of its mean.
    mean_function
        The prior mean h of f; q(u) is that of f - h.
    priors
        Pairs of a pattern of leaf names and an `agp.priors.Prior`: training then finds the largest posterior density.

    Source: Hensman, Fusi & Lawrence, "Gaussian processes for big data", UAI 2013; Hensman, Matthews & Ghahramani,
    "Scalable variational Gaussian process classification", AISTATS 2015; each q(u) names its own.
    """

    kernel: Kernel
    likelihood: Likelihood
    posterior: Posterior
    Z: Array = tree.param(unit="Z_unit")
    jitter: float | None = None
    mean_function: Mean = ZeroMean()
    priors: Priors = ()
    Z_unit: Array | None = tree.unit(default=None)

    stochastic: ClassVar[bool] = True

    @classmethod
    def from_data(
        cls,
        X: Array,
        y: Array,
        /,
        *,
        posterior: type[Posterior] | Callable[[Array, int], Posterior] = Relaxed,
        kernel: Kernel | None = None,
        likelihood: Likelihood | None = None,
        mean_function: Mean | None = None,
        num_inducing: int | None = None,
        Z: Array | None = None,
        inducing: How = "kmeans",
        priors: Mapping[str, Prior] | None = None,
        seed: int = 0,
        jitter: float | None = None,
    ) -> Self:
        """A model ready to be trained on inputs X [N, D] and targets y [N] or [N, K].

        Parameters
        ----------
        X, y
            Floating-point arrays of one library, dtype and device, which become those of the model. The likelihood says
            which columns y has; by default one for each latent function.
        posterior
            The class of q(u): the inverse-free `Relaxed` by default, or `Whitened`; or a function of Kuu and the number
            of latent functions, such as ``functools.partial(Relaxed.from_prior, preconditioned=False)``.
        kernel, likelihood, mean_function
            `RBF` with a lengthscale for each column, `Gaussian` and `ZeroMean` by default. Leaves may be numbers; those
            left None start at values that suit the data.
        num_inducing
            M, at most N (default: 128, or N if that is less).
        Z
            The inducing inputs themselves [M, D].
        inducing
            How inducing inputs are chosen where Z is not given: "kmeans", "random", "greedy-variance", or a function of
            (X, kernel, M, seed).
        priors
            Priors of hyperparameters by pattern of leaf names, such as ``{"kernel.lengthscale": Gamma(2.0, 1.0)}``.
        seed
            Of the choice of inducing inputs.
        jitter
            See the class.

        Raises
        ------
        TypeError, ValueError
            If the data are not finite floating-point arrays of one kind and of fitting shapes, a label lies outside
            the support of the likelihood, a parameter violates its constraint, or M exceeds N.
        """
        X, y, kernel, likelihood, mean_function = started(X, y, kernel, likelihood, mean_function)
        Z = chosen_inducing(X, Z, kernel, num_inducing, how=inducing, seed=seed)
        settings = checked_jitter(jitter), mean_function, as_priors(priors)
        prior = cls(kernel, likelihood, None, Z, *settings, Z_unit=column_spreads(X))  # type: ignore[arg-type]
        start = posterior.from_prior if isinstance(posterior, type) else posterior
        q = start(inducing_covariance(prior)[0], likelihood.latents(y.shape[1]))
        return started_model(dataclasses.replace(prior, posterior=q))

    @property
    def outputs(self) -> int:
        return self.posterior.outputs

    def refreshed(self) -> Self:
        """The model whose auxiliary arrays fit its parameters, as far as predictions need it; usually itself."""
        posterior = self.posterior.refreshed(inducing_covariance(self)[0])
        return self if posterior is self.posterior else dataclasses.replace(self, posterior=posterior)

    def draws(self, rng: Any, rows: int, /) -> dict[str, Any]:
        return self.likelihood.draws(rng, rows, self.outputs) | self.posterior.draws(rng)

    def objective(self, batch: Batch, /, *, memory: float = MEMORY) -> tuple[Array, Pullback]:
        X, y, scale = batch.X, batch.y, batch.scale
        posterior, draws = self.posterior.drawn(batch.draws)
        self = self if posterior is self.posterior else dataclasses.replace(self, posterior=posterior)
        if rows_within(memory, self._floats_per_row, X) < X.shape[0]:
            rows = tile_rows(memory, self._floats_per_row, X)
            return blocked_elbo(self, X, y, block_rows=rows, scale=scale, draws=draws)
        return elbo(self, X, y, scale=scale, draws=draws)

    @property
    def _floats_per_row(self) -> int:
        # the kernel's own arrays, projections of Kuf and their temporaries, the scale's projection for each output
        per_inducing = self.kernel.floats_per_entry + 4 + 2 * self.outputs
        return self.Z.shape[0] * per_inducing + self.likelihood.floats_per_row * self.outputs

    def conditioned(self) -> Conditioned:
        self = self.refreshed()
        factor = factorise(self)[0]

        def mean(X: Array) -> Array:
            return project_mean(self, factor, X)

        def moments(X: Array) -> tuple[Array, Array]:
            return project(self, factor, X)[0]

        def covariance(X: Array) -> Array:
            return project_covariance(self, factor, X)

        return Conditioned(mean, moments, covariance, floats_per_row=self._floats_per_row)

    def _reference(self) -> tuple[str, Array]:
        return "Z", self.Z
