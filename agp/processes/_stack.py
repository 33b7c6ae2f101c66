"""Independent processes, side by side."""

from collections.abc import Iterable, Sequence
from typing import Any

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.bounds import Batch
from agp.checks import check_equal
from agp.linalg import block_diagonal, groups_of
from agp.processes._base import Parallel, Process, SitePull, check_processes
from agp.processes._further import Place
from agp.processes._outputs import SideBySide
from agp.processes._paths import Paths, StackedPaths
from agp.processes._terms import Moments, Term, common_terms
from agp.random import Draws, draws_with_prefix, merge_draws, prefix_draws


@tree.model
class Stack(SideBySide, Parallel):
    """Independent processes that share their inputs and place their outputs side by side.

    With one `Sparse` for each output, every output has its own kernel and inducing variables.

    Parameters
    ----------
    parts
        The processes.
    """

    parts: tuple[Process, ...]

    def __post_init__(self) -> None:
        check_processes("parts of a Stack", self.parts)

    @property
    def samples(self) -> int:
        return self.parts[0].samples

    @property
    def latents(self) -> int:
        return sum(part.latents for part in self.parts)

    @property
    def mixing(self) -> Array | None:
        found = [part.mixing for part in self.parts]
        if all(A is None for A in found):
            return None
        place = self.reference[1]
        xp = backend_of(place).xp
        parts = zip(self.parts, found, strict=True)
        blocks = [xp.eye(part.outputs, **like(place)) if A is None else A for part, A in parts]
        return block_diagonal(blocks, [A.shape[0] for A in blocks], [A.shape[1] for A in blocks])

    def project(self, factor: Any, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        found = [part.project(one, X) for part, one in self._with(factor)]

        def pullback(mu_bar, var_bar):
            bars = zip(found, self._split(mu_bar), self._split(var_bar), strict=True)
            return self._join_cotangents(pull(mu, var) for (_, pull), mu, var in bars)

        return (_side_by_side(mu for (mu, _), _ in found), _side_by_side(var for (_, var), _ in found)), pullback

    def sample_marginals(self, factor: Any, X: Array, noise: Array, /) -> tuple[Array, Pullback]:
        shares = [noise[..., columns] for columns in groups_of([part.latents for part in self.parts])]
        parts = zip(self._with(factor), shares, strict=True)
        found = [part.sample_marginals(one, X, eps) for (part, one), eps in parts]

        def pullback(bar):
            return self._join_cotangents(pull(one) for (_, pull), one in zip(found, self._split(bar), strict=True))

        return _side_by_side(samples for samples, _ in found), pullback

    def project_mean(self, factor: Any, X: Array, /) -> Array:
        return _side_by_side(part.project_mean(one, X) for part, one in self._with(factor))

    def project_covariance(self, factor: Any, X: Array, /) -> Array:
        return backend_of(X).xp.concat([part.project_covariance(one, X) for part, one in self._with(factor)], axis=0)

    def terms(self, names: Sequence[str] = (), /) -> tuple[Term, ...]:
        return common_terms("the outputs", [part.terms(names) for part in self.parts])

    def project_terms(self, factor: Any, X: Array, /) -> Moments:
        self.terms()  # raises if the terms do not correspond
        xp, found = backend_of(X).xp, [part.project_terms(one, X) for part, one in self._with(factor)]
        mean, covariance = (xp.concat(list(several), axis=1) for several in zip(*found, strict=True))
        return mean, covariance

    def paths(self, factor: Any, rng: Any, count: int, features: int, /) -> Paths:
        return StackedPaths(tuple(part.paths(one, rng, count, features) for part, one in self._with(factor)))

    def project_to_sites(self, factor: Any, X: Array, /) -> tuple[tuple[Array, Array], SitePull]:
        found = [part.project_to_sites(one, X) for part, one in self._with(factor)]

        def to_sites(mu_bar: Array, var_bar: Array) -> dict[str, Any]:
            bars = enumerate(zip(found, self._split(mu_bar), self._split(var_bar), strict=True))
            return {f"parts.{i}.{path}": x for i, ((_, pull), mu, var) in bars for path, x in pull(mu, var).items()}

        return (_side_by_side(mu for (mu, _), _ in found), _side_by_side(var for (_, var), _ in found)), to_sites

    @property
    def site_paths(self) -> tuple[str, ...]:
        return tuple(f"parts.{i}.{path}" for i, part in enumerate(self.parts) for path in part.site_paths)

    def site_factors(self, factor: Any, /) -> dict[str, Any]:
        found = enumerate(self._with(factor))
        return {f"parts.{i}.{path}": x for i, (part, one) in found for path, x in part.site_factors(one).items()}

    def places(self, factor: Any, batch: Batch, /) -> dict[str, Place]:
        found = enumerate(self._with(factor))
        return {
            tree.join_path(f"parts.{i}", path): x
            for i, (part, one) in found
            for path, x in part.places(one, batch).items()
        }

    def check(self) -> None:
        differ = "the parts of a Stack take inputs with different numbers of columns"
        check_equal(differ, (part.width for part in self.parts), "use parts with the same number of columns")
        check_equal("the parts of a Stack have different numbers of samples", (part.samples for part in self.parts))
        for part in self.parts:
            part.check()

    def draws(self, rng: Any, rows: int, /) -> Draws:
        return merge_draws(prefix_draws(f"parts.{i}", part.draws(rng, rows)) for i, part in enumerate(self.parts))

    def with_draws(self, draws: Draws, /) -> "Stack":
        parts = enumerate(self.parts)
        return Stack(tuple(part.with_draws(draws_with_prefix(f"parts.{i}", draws)) for i, part in parts))

    def row_draws(self, seed: int, start: int, rows: int, /) -> Draws:
        parts = enumerate(self.parts)
        return merge_draws(prefix_draws(f"parts.{i}", part.row_draws(seed, start, rows)) for i, part in parts)

    def common_draws(self, seed: int, rows: int, /) -> Draws:
        parts = enumerate(self.parts)
        return merge_draws(prefix_draws(f"parts.{i}", part.common_draws(seed, rows)) for i, part in parts)

    # -- the parts --------------------------------------------------------------------------------------------------

    def _split(self, bar: Array) -> list[Array]:
        """Split the columns of an array into one array [R, outputs] for each part."""
        return [bar[..., columns] for columns in groups_of([part.outputs for part in self.parts])]


def _side_by_side(columns: Iterable[Array]) -> Array:
    several = list(columns)
    return backend_of(several[0]).xp.concat(several, axis=-1)
