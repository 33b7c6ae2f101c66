"""Sparse variational GPs, with any process and any parameterisation of q(u)."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array
from agp.inducing import How, Inducing
from agp.kernels import Kernel
from agp.likelihoods import Likelihood
from agp.means import Mean
from agp.models._several_outputs import Outputs, started_process
from agp.models._start import observed, started_model
from agp.models._variational import Variational
from agp.priors import Prior, Priors, as_priors
from agp.processes import Process

__all__ = ["SVGP"]


@tree.model
class SVGP(Variational):
    """A sparse variational GP with any likelihood.

    `SVGP.from_data` builds one. The constructor takes any process, such as several side by side
    (`agp.processes.Stack`), mixed (`Mixed`) or in layers (`Deep`).

    Parameters
    ----------
    process
        The approximate posterior of f. The posterior q(u) of `Sparse` is the method: `Marginal` (M-SVGP), `Whitened`
        (W), `LikelihoodForm` (L), the inverse-free `Relaxed` (R) and `InverseFree` (A), the sites of `Dual` and
        `DualInverseFree`, or a variant of these (`DiagonalWhitened`, `FullSiteRelaxed`, ...).
    likelihood
        p(y | f).
    priors
        Pairs of a pattern of leaf names and an `agp.priors.Prior`: training then maximises the posterior density.

    Source: Hensman, Fusi & Lawrence, "Gaussian processes for big data", UAI 2013; Hensman, Matthews & Ghahramani,
    "Scalable variational Gaussian process classification", AISTATS 2015; each q(u) names its own.
    """

    process: Process
    likelihood: Likelihood
    priors: Priors = ()

    stochastic: ClassVar[bool] = True

    @classmethod
    def from_data(
        cls,
        X: Array,
        y: Array,
        /,
        *,
        outputs: Outputs = None,
        posterior: Any = "relaxed",
        kernel: Kernel | Sequence[Kernel] | None = None,
        likelihood: Likelihood | None = None,
        mean_function: Mean | None = None,
        num_inducing: int | None = None,
        Z: Array | None = None,
        inducing: How | Inducing = "kmeans",
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
        outputs
            How several outputs are modelled. "shared" (the default): one kernel and one set of inducing inputs, and a
            scale for each output. "separate": a kernel and inducing inputs for each. "coregionalised": mixtures W g,
            with trained W, of latent functions g that each have a kernel and inducing inputs; "intrinsic": with one
            kernel for all. `agp.Coregionalised` has their number and the first W; their kernels have variance 1 at
            first. A shared kernel whose variance is given has no further scales; it is in squared units of y.
        posterior
            The class of q(u) or its name: the inverse-free `Relaxed` by default, or "whitened"; or a function of Kuu
            and the number of latent functions, such as ``functools.partial(Relaxed.from_prior, preconditioned=False)``.
        kernel, likelihood, mean_function
            By default `RBF` with a lengthscale for each column, `Gaussian`, and a trained `ConstantMean` if targets are
            real numbers (else `ZeroMean`). Leaves may be numbers; missing ones start at values from the data. With
            separate and coregionalised outputs, `kernel` may be a sequence with one for each function; separate outputs
            each have a copy of the mean function.
        num_inducing
            M, at most N (default: 128, or N if that is less).
        Z
            The inducing inputs [M, D].
        inducing
            How to choose inducing inputs if Z is not given: "kmeans", "random", "greedy-variance", or a function of
            (X, kernel, M, seed). Or other inducing variables, such as ``Patches((28, 28), (5, 5))``.
        priors
            Priors of hyperparameters by pattern of leaf names, such as ``{"kernel.lengthscale": Gamma(2.0, 1.0)}``.
        seed
            Of the choice of inducing inputs.
        jitter
            Added to the diagonal of Kuu: absolute if given; by default 1e-6 (float64) or 1e-4 (float32) of its mean.

        Raises
        ------
        TypeError, ValueError
            If the data are not finite floating-point arrays of one kind and of fitting shapes, a label lies outside
            the support of the likelihood, a parameter violates its constraint, or M exceeds N; if `outputs` is unknown,
            or does not fit the number of columns, kernels or weights; if the likelihood couples functions that a
            mixture makes dependent.
        """
        data = observed(X, y, None, likelihood, mean_function)
        choice = {"inducing": inducing, "Z": Z, "num_inducing": num_inducing, "seed": seed, "jitter": jitter}
        process = started_process(data.X, data, outputs, kernel, posterior=posterior, **choice)
        return started_model(cls(process, data.likelihood, as_priors(priors)))
