"""Coregionalisation: outputs that are mixtures of latent processes."""

from typing import Any, Self

from agp import tree
from agp.backend import Array, Pullback, check_array_type
from agp.draws import Draws, below, under
from agp.processes._base import Process, SitePull, check_process
from agp.processes._paths import MixedPaths, Paths

__all__ = ["Mixed"]


@tree.model
class Mixed(Process):
    """f = W g: P outputs as linear combinations of the L outputs of a process g, independent of each other.

    The linear model of coregionalisation: with a `Stack` of processes, each latent function has a kernel of its own;
    with one `Sparse` of L outputs (and one shared kernel) it is the intrinsic model. A sum of processes is the mixture
    with W = 1, whose weights stay frozen. Marginals are mu W^T and var (W * W)^T.

    Parameters
    ----------
    process
        g.
    weights
        W [P, L], in units of f per unit of g.
    """

    process: Process
    weights: Array = tree.param()

    def __post_init__(self) -> None:
        check_process("the process of a Mixed", self.process)

    @property
    def outputs(self) -> int:
        return self.weights.shape[0]

    @property
    def width(self) -> int:
        return self.process.width

    @property
    def reference(self) -> tuple[str, Array]:
        return self.process.reference

    @property
    def floats_per_row(self) -> int:
        return self.process.floats_per_row + 4 * self.outputs

    @property
    def samples(self) -> int:
        return self.process.samples

    @property
    def correlated(self) -> bool:
        return self.outputs > 1 or self.process.correlated

    @property
    def latents(self) -> int:
        return self.process.latents

    @property
    def mixing(self) -> Array:
        inner = self.process.mixing
        return self.weights if inner is None else self.weights @ inner

    def factorise(self) -> tuple[Any, Pullback]:
        factor, pull = self.process.factorise()
        return factor, lambda factor_bar: tree.cotangent(self, process=pull(factor_bar))

    def project(self, factor: Any, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        (mu, var), pull = self.process.project(factor, X)
        W = self.weights
        squares = W * W

        def pullback(mu_bar, var_bar):
            process_bar, factor_bar, X_bar = pull(mu_bar @ W, var_bar @ squares)
            weights_bar = mu_bar.mT @ mu + 2.0 * W * (var_bar.mT @ var)
            return tree.cotangent(self, process=process_bar, weights=weights_bar), factor_bar, X_bar

        return (mu @ W.mT, var @ squares.mT), pullback

    def kl_divergence(self, factor: Any, /) -> tuple[Array, Pullback]:
        kl, pull = self.process.kl_divergence(factor)

        def pullback(bar):
            process_bar, factor_bar = pull(bar)
            return tree.cotangent(self, process=process_bar), factor_bar

        return kl, pullback

    def sampled(self, factor: Any, X: Array, noise: Array, /) -> tuple[Array, Pullback]:
        latent, pull = self.process.sampled(factor, X, noise)

        def pullback(bar):
            process_bar, factor_bar, X_bar = pull(bar @ self.weights)
            return tree.cotangent(self, process=process_bar, weights=bar.mT @ latent), factor_bar, X_bar

        return latent @ self.weights.mT, pullback

    def project_mean(self, factor: Any, X: Array, /) -> Array:
        return self.process.project_mean(factor, X) @ self.weights.mT

    def joint(self, factor: Any, X: Array, /) -> Array:
        return self.process.joint(factor, X)

    def paths(self, factor: Any, rng: Any, count: int, features: int, /) -> Paths:
        return MixedPaths(self.process.paths(factor, rng, count, features), self.weights)

    def project_to_sites(self, factor: Any, X: Array, /) -> tuple[tuple[Array, Array], SitePull]:
        (mu, var), pull = self.process.project_to_sites(factor, X)
        W = self.weights

        def to_sites(mu_bar: Array, var_bar: Array) -> dict[str, Any]:
            return {f"process.{path}": x for path, x in pull(mu_bar @ W, var_bar @ (W * W)).items()}

        return (mu @ W.mT, var @ (W * W).mT), to_sites

    @property
    def site_paths(self) -> tuple[str, ...]:
        return tuple(f"process.{path}" for path in self.process.site_paths)

    def site_factors(self, factor: Any, /) -> dict[str, Any]:
        return {f"process.{path}": x for path, x in self.process.site_factors(factor).items()}

    def refreshed(self) -> Self:
        process = self.process.refreshed()
        return self if process is self.process else type(self)(process, self.weights)

    def check(self) -> None:
        check_array_type("weights", self.weights)
        if self.weights.ndim != 2 or self.weights.shape[1] != self.process.outputs:
            msg = (
                f"weights has shape {tuple(self.weights.shape)}, but needs a row for each output and a column for each "
                f"of the {self.process.outputs} latent functions."
            )
            raise ValueError(msg)
        if self.process.correlated:
            msg = (
                "the outputs of the process of a Mixed depend on each other, which marginals do not tell; multiply the "
                "weights into those of one Mixed."
            )
            raise ValueError(msg)
        self.process.check()

    def draws(self, rng: Any, rows: int, /) -> Draws:
        return under("process", self.process.draws(rng, rows))

    def drawn(self, draws: Draws, /) -> "Mixed":
        return Mixed(self.process.drawn(below("process", draws)), self.weights)

    def row_draws(self, seed: int, start: int, rows: int, /) -> Draws:
        return under("process", self.process.row_draws(seed, start, rows))
