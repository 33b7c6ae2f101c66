"""A sparse process: a kernel, inducing inputs Z and q(u), from inputs to marginals.

`process` is any model with the fields ``kernel``, ``mean_function``, ``Z``, ``posterior`` and ``jitter``: a
single-layer model, or one layer of a deep one. q(u) is that of f - h, where h is the mean function. Gradients come back
in the class of that model.
"""

from typing import Any

from agp import tree
from agp.backend import Array, Pullback
from agp.linalg import add_jitter

__all__ = [
    "factorise",
    "inducing_covariance",
    "kl_divergence",
    "marginals",
    "project",
    "project_covariance",
    "project_mean",
]


def inducing_covariance(process: Any, /) -> tuple[Array, Pullback]:
    """Kuu = k(Z, Z) + jitter I [M, M], and the pullback ``Kuu_bar -> process_bar``."""
    K, pull = process.kernel(process.Z)

    def pullback(Kuu_bar):
        kernel_bar, Z_bar = pull(Kuu_bar)
        return tree.cotangent(process, kernel=kernel_bar, Z=Z_bar)

    return add_jitter(K, process.jitter), pullback


def factorise(process: Any, /) -> tuple[Any, Pullback]:
    """The factor of the posterior at the current Kuu, and ``factor_bar -> process_bar``."""
    Kuu, pull_Kuu = inducing_covariance(process)
    factor, pull_factor = process.posterior.factorise(Kuu)

    def pullback(factor_bar):
        posterior_bar, Kuu_bar = pull_factor(factor_bar)
        return tree.add(tree.cotangent(process, posterior=posterior_bar), pull_Kuu(Kuu_bar))

    return factor, pullback


def project(process: Any, factor: Any, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
    """Marginals (mu, var) [N, P] of f at X [N, D], and ``(mu_bar, var_bar) -> (process_bar, factor_bar, X_bar)``."""
    Kuf, pull_Kuf = process.kernel(process.Z, X)
    kff, pull_kff = process.kernel.diag(X)
    (residual, var), pull_moments = process.posterior.project(factor, Kuf, kff)
    h, pull_mean = process.mean_function(X)

    def pullback(mu_bar, var_bar):
        posterior_bar, factor_bar, Kuf_bar, kff_bar = pull_moments(mu_bar, var_bar)
        kernel_bar, Z_bar, X_bar = pull_Kuf(Kuf_bar)
        kernel_diag_bar, X_diag_bar = pull_kff(kff_bar)
        mean_bar, X_mean_bar = pull_mean(mu_bar)
        bar = tree.cotangent(
            process,
            kernel=tree.add(kernel_bar, kernel_diag_bar),
            mean_function=mean_bar,
            Z=Z_bar,
            posterior=posterior_bar,
        )
        return bar, factor_bar, tree.add(tree.add(X_bar, X_diag_bar), X_mean_bar)

    return (h + residual, var), pullback


def project_mean(process: Any, factor: Any, X: Array, /) -> Array:
    """The means [N, P] of f at X [N, D] alone, in O(M N P)."""
    return process.mean_function(X)[0] + process.posterior.project_mean(factor, process.kernel(process.Z, X)[0])


def project_covariance(process: Any, factor: Any, X: Array, /) -> Array:
    """The joint covariances [P, N, N] of f at X [N, D]."""
    return process.posterior.project_covariance(factor, process.kernel(process.Z, X)[0], process.kernel(X)[0])


def kl_divergence(process: Any, factor: Any, /) -> tuple[Array, Pullback]:
    """KL[q(u) || p(u)], 0-d, and ``bar -> (process_bar, factor_bar)``."""
    kl, pull = process.posterior.kl_divergence(factor)

    def pullback(bar):
        posterior_bar, factor_bar = pull(bar)
        return tree.cotangent(process, posterior=posterior_bar), factor_bar

    return kl, pullback


def marginals(process: Any, X: Array, /) -> tuple[tuple[Array, Array, Array], Pullback]:
    """(mu [N, P], var [N, P], kl) of f at X [N, D], and ``(mu_bar, var_bar, kl_bar) -> (process_bar, X_bar)``."""
    factor, pull_factor = factorise(process)
    (mu, var), pull_project = project(process, factor, X)
    kl, pull_kl = kl_divergence(process, factor)

    def pullback(mu_bar, var_bar, kl_bar):
        bar, factor_bar, X_bar = pull_project(mu_bar, var_bar)
        prior_bar, prior_factor_bar = pull_kl(kl_bar)
        through_factor = pull_factor(tree.add(factor_bar, prior_factor_bar))
        return tree.add(tree.add(bar, prior_bar), through_factor), X_bar

    return (mu, var, kl), pullback
