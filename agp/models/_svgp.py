"""Sparse variational GPs with any process and any parameterisation of q(u)."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

from agp import tree
from agp.backend import Array
from agp.inducing import How, Inducing
from agp.kernels import Kernel
from agp.likelihoods import Likelihood
from agp.means import Mean
from agp.models._several_outputs import Outputs, initialise_process
from agp.models._start import initialise_model, prepare_data
from agp.models._variational import Variational
from agp.priors import Prior, Priors, as_priors
from agp.processes import Process


@tree.model
class SVGP(Variational):
    """A sparse variational GP with any likelihood.

    `SVGP.from_data` builds a model from data. The constructor takes any process, such as independent processes
    (`agp.processes.Stack`), mixtures of processes (`LinearMixing`) or layers of processes (`Deep`).

    Parameters
    ----------
    process
        The approximate posterior of f. In a `Sparse` process, the class of q(u) determines the method. The classes are
        `Marginal` (M-SVGP), `Whitened` (W-SVGP), `LikelihoodForm` (L-SVGP), the inverse-free `Relaxed` (R-SVGP) and
        `InverseFree` (A-SVGP), the site-based `Dual` and `DualInverseFree`, and variants such as `DiagonalWhitened`.
    likelihood
        The likelihood p(y | f).
    priors
        Pairs of a leaf-name pattern and an `agp.priors.Prior`. With priors, training maximises the posterior density.

    Source: Hensman, Fusi & Lawrence, "Gaussian processes for big data", UAI 2013; Hensman, Matthews & Ghahramani,
    "Scalable variational Gaussian process classification", AISTATS 2015. See the class of q(u) for the source of the
    parameterisation.
    """

    process: Process
    likelihood: Likelihood
    priors: Priors = ()

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
        """Build a model that is ready for training on inputs X [N, D] and targets y [N] or [N, K].

        Parameters
        ----------
        X, y
            Floating-point arrays with the same library, dtype and device, which are also used for all arrays of the
            model. The likelihood defines the columns of y, by default one for each latent function.
        outputs
            The model for several outputs. "shared", the default, uses one kernel, one set of inducing inputs, and a
            scale for each output. If the variance of the kernel is given, it is in squared units of y, and outputs have
            no further scales. "separate" uses a kernel and inducing inputs for each output. "coregionalised" uses
            mixtures W g of latent functions g with trained weights W. Each latent function has its own kernel and
            inducing inputs. "intrinsic" uses one kernel and one set of inducing inputs for all latent functions. The
            kernels of latent functions start with variance 1. Pass an `agp.Coregionalised` to set the number of latent
            functions or the initial W.
        posterior
            The class of q(u) or its name, such as "whitened". The default is the inverse-free `Relaxed`. `posterior`
            may also be a function of Kuu and the number of latent functions, such as
            ``functools.partial(Relaxed.from_prior, preconditioned=False)``.
        kernel, likelihood, mean_function
            The defaults are `RBF` with a lengthscale for each column, `Gaussian`, and a trained `ConstantMean`. If the
            targets are not real numbers, the default mean function is `ZeroMean`. The leaves of these parts may be
            numbers. Missing leaves start at values computed from the data. With separate or coregionalised outputs,
            `kernel` may be a sequence with a kernel for each latent function. Each separate output has its own copy of
            the mean function.
        num_inducing
            The number of inducing inputs M, at most N. The default is 128, or N if N is less than 128.
        Z
            The inducing inputs [M, D].
        inducing
            The method that chooses inducing inputs if Z is not given: "kmeans", "random", "greedy-variance", or a
            function of (X, kernel, M, seed). `inducing` may also be an object that defines other inducing variables,
            such as ``Patches((28, 28), (5, 5))``.
        priors
            Priors on hyperparameters. The keys are leaf-name patterns, as in
            ``{"kernel.lengthscale": Gamma(2.0, 1.0)}``.
        seed
            Seed for choosing the inducing inputs.
        jitter
            The number added to the diagonal of Kuu. By default, it is 1e-6 (float64) or 1e-4 (float32) times the mean
            of the diagonal.

        Raises
        ------
        TypeError, ValueError
            If X and y are not finite floating-point arrays with matching shapes and the same library, dtype and device,
            if a target is outside the support of the likelihood, if a parameter violates its constraint, or if M
            exceeds N. These errors are also raised if `outputs` is unknown or does not fit the number of columns,
            kernels or weights, or if the likelihood couples latent functions that a mixture makes dependent.
        """
        data = prepare_data(X, y, None, likelihood, mean_function)
        choice = {"inducing": inducing, "Z": Z, "num_inducing": num_inducing, "seed": seed, "jitter": jitter}
        process = initialise_process(data, outputs, kernel, posterior=posterior, **choice)
        return initialise_model(cls(process, data.likelihood, as_priors(priors)))
