"""Sparse variational GPs with any process and any parameterisation of q(u)."""

from collections.abc import Sequence
from typing import Any, Self, Unpack

from agp import tree
from agp.backend import Array
from agp.kernels import Kernel
from agp.likelihoods import Likelihood
from agp.models._parts import InducingParts
from agp.models._several_outputs import Outputs, initialise_process
from agp.models._start import initialise_model, prepare_data
from agp.models._variational import Variational
from agp.priors import Priors
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

    Examples
    --------
    The bound is a sum over rows, so minibatches give unbiased estimates: the average over the batches is the bound.

    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(0.0, 6.0, 100)[:, None]
    >>> y = np.sin(X[:, 0])
    >>> model = agp.SVGP.from_data(X, y, num_inducing=10, posterior="whitened")
    >>> halves = [model.bound(X[i::2, :], y[i::2], scale=2.0)[0] for i in (0, 1)]
    >>> bool(np.isclose(np.mean(halves), model.bound(X, y)[0]))
    True

    The trained model does not need the data for predictions.

    >>> trained = agp.fit(model, X, y).model
    >>> bool(np.max(np.abs(trained.predict_mean(X)[:, 0] - y)) < 0.05)
    True
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
        **parts: Unpack[InducingParts],
    ) -> Self:
        """Build a model that is ready for training.

        Parameters
        ----------
        outputs
            The model for several outputs. "shared", the default, uses one kernel, one set of inducing inputs, and a
            scale for each output. If the variance of the kernel is given, it is in squared units of y, and outputs have
            no further scales. "separate" uses a kernel, inducing inputs and a copy of the mean function for each
            output. "coregionalised" uses mixtures W g of latent functions g with trained weights W. Each latent
            function has its own kernel and inducing inputs. "intrinsic" uses one kernel and one set of inducing inputs
            for all latent functions. The kernels of latent functions start with variance 1. Pass an
            `agp.Coregionalised` to set the number of latent functions or the initial W.
        posterior
            The class of q(u) or its name, such as "whitened". The default is the inverse-free `Relaxed`. `posterior`
            may also be a function of Kuu and the number of latent functions, such as
            ``functools.partial(Relaxed.from_prior, preconditioned=False)``.
        kernel
            The prior covariance of f. The default is `RBF` with a lengthscale for each column. With separate or
            coregionalised outputs, `kernel` may be a sequence with a kernel for each latent function. Leaves may be
            numbers. Missing leaves start at values computed from the data.

        Raises
        ------
        TypeError, ValueError
            If `outputs` is unknown or does not fit the number of columns, kernels or weights, or if the likelihood
            couples latent functions that a mixture makes dependent.
        """
        data = prepare_data(X, y, parts, kernels=kernel)
        process = initialise_process(data, outputs, kernel, posterior)
        return initialise_model(cls(process, data.likelihood, data.priors), data)
