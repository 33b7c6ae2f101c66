"""Sparse processes at fixed rows, for steps of q(u) that leave the prior unchanged."""

from dataclasses import replace
from typing import Any, ClassVar, NoReturn, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.linalg import add_diagonal, each_inverse, each_times, nonnegative
from agp.posteriors import NaturalState, Sums, WhiteSites, WhiteSteps, sums_of
from agp.processes import Process, SitePull, Sparse


@tree.model
class AtRows(Process):
    """A sparse process at fixed rows [N, D], with everything that does not depend on q(u) computed in advance.

    The methods do not read the inputs that are passed to them, and have no pullbacks. If a precision is not positive
    definite, the factor is NaN instead of repaired.
    """

    posterior: WhiteSites
    """The sites of q(u), with P outputs."""
    A: Array = tree.constant()
    """The whitened features Lu^-1 Kuf [M, N]."""
    residual: Array = tree.constant()
    """The prior variances [N] that the inducing variables do not explain."""
    h: Array = tree.constant()
    """The values [N, P] (or [N, 1]) of the mean function."""
    columns: int = 1
    """The number of columns D of the inputs."""

    shares_inputs: ClassVar[bool] = True

    @property
    def outputs(self) -> int:
        return self.posterior.outputs

    @property
    def width(self) -> int:
        return self.columns

    @property
    def reference(self) -> tuple[str, Array]:
        return "the features", self.A

    @property
    def floats_per_row(self) -> int:
        return self.A.shape[0] * self.posterior.floats_per_inducing

    def factorise(self) -> tuple[NaturalState, Pullback]:
        precision = add_diagonal(self.posterior.precision, 1.0)
        root = each_inverse(backend_of(precision).cholesky(precision))
        mean = each_times(root.mT, each_times(root, self.posterior.shift))
        return NaturalState(mean, root), _refuse

    def project(self, factor: NaturalState, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        return self.project_to_sites(factor, X)[0], _refuse

    def project_to_sites(self, factor: NaturalState, _X: Array, /) -> tuple[tuple[Array, Array], SitePull]:
        (mu, var), A = factor.white_moments(self.A)[0], self.A

        def to_sites(mu_bar: Array, var_bar: Array) -> dict[str, Any]:
            return {"posterior": sums_of(A, mu_bar, -2.0 * var_bar, mu)}

        return (self.h + mu, self.residual[:, None] + var), to_sites

    def kl_divergence(self, factor: NaturalState, /) -> tuple[Array, Pullback]:
        return factor.white_kl()[0], _refuse

    def project_mean(self, factor: NaturalState, _X: Array, /) -> Array:
        return self.h + self.A.mT @ factor.white_mean

    def project_covariance(self, factor: Any, X: Array, /) -> NoReturn:
        _refuse(factor, X)

    def sample_marginals(self, factor: Any, X: Array, noise: Array, /) -> NoReturn:
        _refuse(factor, X, noise)

    @property
    def site_paths(self) -> tuple[str, ...]:
        return ("posterior",)

    def site_factors(self, factor: Any, /) -> dict[str, Any]:
        return {"posterior": factor}

    def recompute_factors(self) -> Self:
        return self

    def check(self) -> None:
        """Do nothing, since the parts come from a process that has been checked."""


def _refuse(*_bars: Any) -> NoReturn:
    raise TypeError("AtRows is only for steps of q(u); use the process from which it was made.")


def can_fix_rows(process: Process, /) -> bool:
    """Return whether `fix_rows` supports the process."""
    parts = tree.nodes(process, Process).values()
    posteriors = (node.posterior for node in tree.nodes(process, Sparse).values())
    return all(part.shares_inputs for part in parts) and all(isinstance(q, WhiteSteps) for q in posteriors)


def fix_rows(process: Process, X: Array, /) -> tuple[Process, dict[str, Array]]:
    """Replace each sparse process in a process by an `AtRows` for X [N, D], with sites for the same q(u).

    Also return Lu [M, M] of each sparse process by path.
    """
    new, roots = {}, {}
    for path, node in tree.nodes(process, Sparse).items():
        (Kuf, kff, h), _ = node.features(X)
        Lu = node.posterior.factorise(node.inducing_covariance()[0])[0].Lu
        A = backend_of(Kuf).solve_triangular(Lu, Kuf)
        residual = nonnegative(kff - backend_of(A).xp.sum(A * A, axis=0))[0]
        sites = WhiteSites(*node.posterior.white_sites(Lu))  # type: ignore[attr-defined]
        new[path], roots[path] = AtRows(sites, A, residual, h, node.width), Lu
    return tree.replace(process, new), roots


def sites_of(process: Process, /) -> dict[str, Sums]:
    """Return the sites of each sparse process in a process from `fix_rows`, by path."""
    found = {path: node.posterior for path, node in tree.nodes(process, AtRows).items()}
    return {path: Sums(sites.shift, sites.precision) for path, sites in found.items()}


def with_sites(process: Process, sites: dict[str, Sums], /) -> Process:
    """Return a process from `fix_rows` with other sites, by the paths of its sparse processes."""
    return tree.replace(process, {tree.join_path(path, "posterior"): WhiteSites(*one) for path, one in sites.items()})


def without_residuals(process: Process, /) -> Process:
    """Return a process from `fix_rows` in which the inducing variables explain the whole prior variance."""
    nodes = tree.nodes(process, AtRows).items()
    zeros = {path: backend_of(node.A).xp.zeros_like(node.residual) for path, node in nodes}
    return tree.replace(process, {path: replace(node, residual=zeros[path]) for path, node in nodes})
