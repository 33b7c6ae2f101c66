"""Deep processes, in which samples from each layer are the inputs of the next layer."""

from typing import Any, ClassVar

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.checks import check_whole
from agp.errors import count_of
from agp.posteriors import SiteHolder
from agp.processes._base import Composite, Process, SitePull, check_processes
from agp.processes._outputs import Chained
from agp.processes._paths import DeepPaths, Paths
from agp.random import Draws, common_normals, draws_with_prefix, merge_draws, prefix_draws, row_normals

NESTED_MESSAGE = "a Deep process cannot be a layer; put all layers into a single Deep."


@tree.model
class Deep(Chained, Composite):
    """A deep Gaussian process f = f_L(... f_2(f_1(x))), with sampled inner layers and marginals of the last layer.

    The bound is an average over S samples of the inner layers, drawn independently for each row (doubly stochastic
    inference). The samples are functions of a noise array, which is drawn on the host and passed as an argument, like X
    and y. The gradient is exact for this noise.

    Parameters
    ----------
    layers
        The processes, from first to last. The number of input columns of each layer must equal the number of outputs of
        the previous layer. Deep models train best if the mean functions of inner layers are identities or projections.
    samples
        The number of samples S.
    noise
        Standard normal noise [S, N, latents] for the rows of one evaluation. The columns for the inner layers are side
        by side.

    Source: Salimbeni & Deisenroth, "Doubly stochastic variational inference for deep Gaussian processes", NeurIPS 2017.
    """

    layers: tuple[Process, ...]
    samples: int = 1  # type: ignore[override]
    noise: Array | None = tree.constant(default=None, optional=True)

    children: ClassVar[str] = "layers"

    def __post_init__(self) -> None:
        check_processes("layers of a Deep", self.layers)
        check_whole("samples", self.samples)
        if any(tree.nodes(layer, Deep) for layer in self.layers):
            raise TypeError(NESTED_MESSAGE)

    @property
    def floats_per_row(self) -> int:
        return self.samples * sum(layer.floats_per_row + layer.latents for layer in self.layers)

    @property
    def depth(self) -> int:
        return len(self.layers)

    @property
    def correlated(self) -> bool:
        return self.layers[-1].correlated

    @property
    def mixing(self) -> Array | None:
        return self.layers[-1].mixing

    def _inner(self, factor: Any, X: Array) -> tuple[Array, list[Pullback]]:
        """Return the inputs [S N, .] of the last layer, and the pullbacks of the inner layers."""
        xp = backend_of(X).xp
        H, pulls, start = X, [], 0
        for layer, one in zip(self.layers[:-1], factor, strict=False):
            eps = self._noise[:, :, start : start + layer.latents]
            if pulls:  # from the second layer on, there are S N rows
                eps = xp.reshape(eps, (1, -1, layer.latents))
            H, pull = layer.sample_marginals(one, H, eps)
            pulls.append(pull)
            start += layer.latents
        return H, pulls

    @property
    def _noise(self) -> Array:
        if self.noise is None:
            raise ValueError(
                "a Deep process needs noise for its inner layers; call `with_draws` before you evaluate it."
            )
        return self.noise

    def project(self, factor: Any, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        H, pulls = self._inner(factor, X)
        moments, pull_last = self.layers[-1].project(factor[-1], H)

        def pullback(mu_bar, var_bar):
            last_bar, last_factor_bar, H_bar = pull_last(mu_bar, var_bar)
            layers, factors = [last_bar], [last_factor_bar]
            for pull in reversed(pulls):
                layer_bar, factor_bar, H_bar = pull(H_bar)
                layers.insert(0, layer_bar)
                factors.insert(0, factor_bar)
            return tree.cotangent(self, layers=tuple(layers)), tuple(factors), H_bar

        return moments, pullback

    def sample_marginals(self, factor: Any, X: Array, noise: Array, /) -> tuple[Array, Pullback]:
        raise TypeError(NESTED_MESSAGE)

    # -- prediction -------------------------------------------------------------------------------------------------

    def project_mean(self, factor: Any, X: Array, /) -> Array:
        return self.layers[-1].project_mean(factor[-1], self._inner(factor, X)[0])

    def project_covariance(self, factor: Any, X: Array, /) -> Array:
        raise TypeError(
            "a deep model is not a Gaussian process, so it has no joint covariances to sample from; call `predict` for "
            "marginals and `sample_functions` for functions."
        )

    def paths(self, factor: Any, rng: Any, count: int, features: int, /) -> Paths:
        """Draw function samples from all layers. The bound instead samples inner layers separately for each row."""
        layers = zip(self.layers, factor, strict=True)
        return DeepPaths(tuple(layer.paths(one, rng, count, features) for layer, one in layers))

    # -- updates ----------------------------------------------------------------------------------------------------

    def project_to_sites(self, factor: Any, X: Array, /) -> tuple[tuple[Array, Array], SitePull]:
        # only the last layer has sites, because only its marginals enter the likelihood
        last = len(self.layers) - 1
        moments, pull = self.layers[last].project_to_sites(factor[last], self._inner(factor, X)[0])

        def to_sites(mu_bar: Array, var_bar: Array) -> dict[str, Any]:
            return {f"layers.{last}.{path}": x for path, x in pull(mu_bar, var_bar).items()}

        return moments, to_sites

    @property
    def site_paths(self) -> tuple[str, ...]:
        last = len(self.layers) - 1
        return tuple(f"layers.{last}.{path}" for path in self.layers[last].site_paths)

    def site_factors(self, factor: Any, /) -> dict[str, Any]:
        last = len(self.layers) - 1
        return {f"layers.{last}.{path}": x for path, x in self.layers[last].site_factors(factor[last]).items()}

    def check(self) -> None:
        for i, layer in enumerate(self.layers):
            try:
                layer.check()
            except ValueError as error:
                raise ValueError(f"in layer {i}, {error}") from None
        for i, (layer, following) in enumerate(zip(self.layers[:-1], self.layers[1:], strict=True)):
            if following.width != layer.outputs:
                raise ValueError(
                    f"layer {i} has {count_of(layer.outputs, 'output')}, but layer {i + 1} takes {following.width} "
                    "input "
                    "columns; make these numbers equal."
                )
            if any(node._has_sites for node in tree.nodes(layer, SiteHolder).values()):
                raise ValueError(
                    f"layer {i} has sites, but only the last layer can have sites; choose another posterior for inner "
                    "layers."
                )

    def draws(self, rng: Any, rows: int, /) -> Draws:
        noise = rng.standard_normal((self.samples, rows, self._latents))
        layers = merge_draws(prefix_draws(f"layers.{i}", layer.draws(rng, rows)) for i, layer in enumerate(self.layers))
        return merge_draws([Draws({"noise": noise}, {}), layers])

    def row_draws(self, seed: int, start: int, rows: int, /) -> Draws:
        noise = row_normals(seed, start, rows, self.samples * self._latents)
        by_sample = noise.reshape(rows, self.samples, self._latents).transpose(1, 0, 2)
        return Draws({"noise": by_sample}, {})

    def common_draws(self, seed: int, rows: int, /) -> Draws:
        return Draws({"noise": common_normals(seed, self.samples, rows, self._latents)}, {})

    @property
    def _latents(self) -> int:
        return sum(layer.latents for layer in self.layers[:-1])

    def with_draws(self, draws: Draws, /) -> "Deep":
        layers = tuple(layer.with_draws(draws_with_prefix(f"layers.{i}", draws)) for i, layer in enumerate(self.layers))
        return Deep(layers, self.samples, draws.by_row.get("noise", self.noise))
