"""Coregionalisation: outputs as mixtures of latent processes."""

from collections.abc import Sequence
from typing import Any, ClassVar

from agp import tree
from agp.backend import Array, Pullback, backend_of, check_array_type, like
from agp.bounds import Batch
from agp.means import Mean, ZeroMean
from agp.processes._base import Process, SitePull, Transformed, check_process
from agp.processes._further import Place, refuse_data
from agp.processes._paths import MixedPaths, Paths, mix_outputs, mix_outputs_pullback, weights_bar
from agp.processes._terms import MEAN, Moments, Term, common_terms, describe_mean
from agp.random import Draws, prefix_draws


@tree.model
class LinearMixing(Transformed):
    """f = h + W g: P outputs as linear combinations of the L independent outputs of a process g.

    `LinearMixing` is the linear model of coregionalisation. If g is a `Stack`, each latent function has its own kernel.
    If g is a single `Sparse`, whose L outputs share a kernel, the model is the intrinsic coregionalisation model.
    Frozen weights W = 1 give a sum of processes. A diagonal W scales each output and keeps the outputs independent. If
    g has the means mu and the variances var, f has the means h + mu W^T and the variances var (W * W)^T.

    Parameters
    ----------
    process
        The process g.
    weights
        W [P, L], or the diagonal [P] of a diagonal W. The unit of the weights is the unit of f divided by the unit of
        g.
    mean_function
        The function h, which is added to the mean of W g.
    """

    process: Process
    weights: Array = tree.param(unit="weights_unit")
    mean_function: Mean = ZeroMean()
    weights_unit: Array | None = tree.unit(default=None)

    shares_inputs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_process("the process of a LinearMixing", self.process)

    @property
    def outputs(self) -> int:
        return self.weights.shape[0]

    @property
    def floats_per_row(self) -> int:
        return self.process.floats_per_row + 4 * self.outputs

    @property
    def floats_per_mean(self) -> int:
        return self.process.floats_per_mean + 4 * self.outputs

    @property
    def samples(self) -> int:
        return self.process.samples

    @property
    def correlated(self) -> bool:
        return self.process.correlated or (self.weights.ndim > 1 and self.outputs > 1)

    @property
    def latents(self) -> int:
        return self.process.latents

    @property
    def mixing(self) -> Array:
        inner, W = self.process.mixing, self.weights
        if W.ndim == 1:
            return W[:, None] * (backend_of(W).xp.eye(W.shape[0], **like(W)) if inner is None else inner)
        return W if inner is None else W @ inner

    def project(self, factor: Any, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        (mu, var), pull = self.process.project(factor, X)
        h, pull_mean = self.mean_function(X)
        W = self.weights
        squares = W * W

        def pullback(mu_bar, var_bar):
            process_bar, factor_bar, X_bar = pull(
                mix_outputs_pullback(mu_bar, W), mix_outputs_pullback(var_bar, squares)
            )
            W_bar = weights_bar(mu_bar, mu, W) + 2.0 * W * weights_bar(var_bar, var, W)
            mean_bar, X_mean_bar = pull_mean(mu_bar)
            bar = tree.cotangent(self, process=process_bar, weights=W_bar, mean_function=mean_bar)
            return bar, factor_bar, tree.add(X_bar, X_mean_bar)

        return (h + mix_outputs(mu, W), mix_outputs(var, squares)), pullback

    def sample_marginals(self, factor: Any, X: Array, noise: Array, /) -> tuple[Array, Pullback]:
        latent, pull = self.process.sample_marginals(factor, X, noise)
        xp, W = backend_of(X).xp, self.weights
        h, pull_mean = self.mean_function(X)
        samples = mix_outputs(latent, W)
        shape = (-1, X.shape[0], self.outputs)

        def pullback(bar):
            process_bar, factor_bar, X_bar = pull(mix_outputs_pullback(bar, W))
            mean_bar, X_mean_bar = pull_mean(xp.sum(xp.reshape(bar, shape), axis=0))
            own = tree.cotangent(self, process=process_bar, weights=weights_bar(bar, latent, W), mean_function=mean_bar)
            return own, factor_bar, tree.add(X_bar, X_mean_bar)

        return xp.reshape(h + xp.reshape(samples, shape), samples.shape), pullback

    def project_mean(self, factor: Any, X: Array, /) -> Array:
        return self.mean_function(X)[0] + mix_outputs(self.process.project_mean(factor, X), self.weights)

    def project_covariance(self, factor: Any, X: Array, /) -> Array:
        return self.process.project_covariance(factor, X)

    def terms(self, names: Sequence[str] = (), /) -> tuple[Term, ...]:
        inner, own = self.process.terms(names), describe_mean(self.mean_function, self.width)
        return common_terms("the functions", [inner, (*(term for term in inner if term.text != MEAN), *own)])

    def project_terms(self, factor: Any, X: Array, /) -> Moments:
        xp, W, h = backend_of(X).xp, self.weights, self.mean_function(X)[0]
        mean, covariance = self.process.project_terms(factor, X)
        mean = _mix_second(mean, W)
        last = mean[:, :, -1] + xp.tile(h, (mean.shape[0] // h.shape[0], 1))
        return xp.concat([mean[:, :, :-1], last[:, :, None]], axis=2), _mix_second(covariance, W * W)

    def paths(self, factor: Any, rng: Any, count: int, features: int, /) -> Paths:
        return MixedPaths(self.process.paths(factor, rng, count, features), self.weights, self.mean_function)

    def project_to_sites(self, factor: Any, X: Array, /) -> tuple[tuple[Array, Array], SitePull]:
        (mu, var), pull = self.process.project_to_sites(factor, X)
        W = self.weights

        def to_sites(mu_bar: Array, var_bar: Array) -> dict[str, Any]:
            found = pull(mix_outputs_pullback(mu_bar, W), mix_outputs_pullback(var_bar, W * W))
            return {f"process.{path}": x for path, x in found.items()}

        return (self.mean_function(X)[0] + mix_outputs(mu, W), mix_outputs(var, W * W)), to_sites

    def places(self, factor: Any, batch: Batch, /) -> dict[str, Place]:
        if self.weights.ndim > 1 and self.process.outputs > 1:
            # data on sums of functions make the functions dependent, but the process has no covariances between them
            refuse_data("a posterior of LinearMixing with outputs that combine several functions")
        return {tree.join_path("process", path): x for path, x in self.process.places(factor, batch).items()}

    def check(self) -> None:
        check_array_type("weights", self.weights)
        if self.weights.ndim not in (1, 2) or self.weights.shape[-1] != self.process.outputs:
            raise ValueError(
                f"weights has shape {tuple(self.weights.shape)}, but must have shape (P, {self.process.outputs}) for P "
                f"outputs, or ({self.process.outputs},) for a diagonal W; pass a column for each latent function."
            )
        self.mean_function.check(self.width, self.outputs)
        if self.process.correlated:
            raise ValueError(
                "the process of a LinearMixing has dependent outputs, but must have independent outputs; replace "
                "nested LinearMixings by a single one, with the product of their weights."
            )
        self.process.check()

    def draws(self, rng: Any, rows: int, /) -> Draws:
        return prefix_draws("process", self.process.draws(rng, rows))

    def row_draws(self, seed: int, start: int, rows: int, /) -> Draws:
        return prefix_draws("process", self.process.row_draws(seed, start, rows))

    def common_draws(self, seed: int, rows: int, /) -> Draws:
        return prefix_draws("process", self.process.common_draws(seed, rows))


def _mix_second(x: Array, W: Array) -> Array:
    """Mix the second axis of an array [R, L, ...] with weights [P, L] or [L]; return [R, P, ...]."""
    xp = backend_of(x).xp
    order = (0, *range(2, x.ndim), 1)
    mixed = mix_outputs(xp.permute_dims(x, order), W)
    return xp.permute_dims(mixed, (0, x.ndim - 1, *range(1, x.ndim - 1)))
