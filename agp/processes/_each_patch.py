"""Convolutional layers, which apply a process to each patch of an image."""

from typing import Any

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.errors import count_of
from agp.inducing import PatchGrid
from agp.processes._base import Process, SitePull, Transformed, check_process
from agp.processes._paths import EachPatchPaths, Paths
from agp.random import Draws, prefix_draws


@tree.model
class Patchwise(Transformed):
    """A convolutional layer f(x)[q, c] = g_c(patch_q(x)), which applies a process g to each patch of an image.

    The layer maps images of H x W pixels with C channels, stored as rows [N, H W C], to images of H' x W' pixels with
    C' channels, stored as rows [N, H' W' C']. C' is the number of outputs of g. Use a `Patchwise` as a layer of a
    `Deep` process. The last layer of such a process often has inducing `Patches`.

    All patches are mapped by the same g. However, the marginals and `sample_marginals` treat the patches of an image as
    independent given q(u), as in the source. Bounds for deep models use these marginals. A function sample (see
    `paths`), by contrast, applies the same sample of g to all patches.

    Parameters
    ----------
    process
        The process g, whose inputs are patches [., h w C]. g must not be a sampled process.
    grid
        The patches of the images.

    Source: Blomqvist, Kaski & Heinonen, "Deep convolutional Gaussian processes", ECML PKDD 2019.
    """

    process: Process
    grid: PatchGrid

    def __post_init__(self) -> None:
        check_process("the process of a Patchwise", self.process)
        if not isinstance(self.grid, PatchGrid):
            raise TypeError(f"the grid of a Patchwise is {self.grid!r}, but must be a PatchGrid.")
        if self.process.samples > 1 or self.process.row_draws(0, 0, 1).by_row:
            raise TypeError(
                "the process of a Patchwise must not be a sampled process; apply Patchwise to each layer of a Deep "
                "process instead."
            )

    @property
    def outputs(self) -> int:
        return self.grid.number * self.process.outputs

    @property
    def width(self) -> int:
        return self.grid.width

    @property
    def floats_per_row(self) -> int:
        # each patch is a row of the process, and patches and moments are stored twice
        return self.grid.number * (self.process.floats_per_row + 2 * self.grid.columns + 4 * self.process.outputs)

    @property
    def correlated(self) -> bool:
        return self.grid.number > 1 or self.process.correlated

    @property
    def latents(self) -> int:
        return self.grid.number * self.process.latents

    @property
    def mixing(self) -> Array | None:
        """The matrix of the inner process if the image is a single patch, and None otherwise."""
        return self.process.mixing if self.grid.number == 1 else None

    def _by_image(self, x: Array) -> Array:
        """Reshape outputs [N Q, C'], with one row for each patch, to [N, Q C'], with one row for each image."""
        return backend_of(x).xp.reshape(x, (-1, self.outputs))

    def _by_patch(self, x: Array) -> Array:
        return backend_of(x).xp.reshape(x, (-1, self.process.outputs))

    def project(self, factor: Any, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        rows, pull_rows = self.grid.rows(X)
        (mu, var), pull = self.process.project(factor, rows)

        def pullback(mu_bar, var_bar):
            process_bar, factor_bar, rows_bar = pull(self._by_patch(mu_bar), self._by_patch(var_bar))
            return tree.cotangent(self, process=process_bar), factor_bar, pull_rows(rows_bar)

        return (self._by_image(mu), self._by_image(var)), pullback

    def sample_marginals(self, factor: Any, X: Array, noise: Array, /) -> tuple[Array, Pullback]:
        xp = backend_of(X).xp
        rows, pull_rows = self.grid.rows(X)
        eps = xp.reshape(noise, (noise.shape[0], rows.shape[0], self.process.latents))
        samples, pull = self.process.sample_marginals(factor, rows, eps)

        def pullback(bar):
            process_bar, factor_bar, rows_bar = pull(self._by_patch(bar))
            return tree.cotangent(self, process=process_bar), factor_bar, pull_rows(rows_bar)

        return self._by_image(samples), pullback

    def project_mean(self, factor: Any, X: Array, /) -> Array:
        return self._by_image(self.process.project_mean(factor, self.grid.rows(X)[0]))

    def project_covariance(self, factor: Any, X: Array, /) -> Array:
        if self.grid.number == 1:
            return self.process.project_covariance(factor, self.grid.rows(X)[0])
        raise TypeError(
            "a Patchwise has no joint covariances, because its outputs are values of one function at several patches; "
            "call `predict` for marginals and `sample_functions` for joint samples."
        )

    def paths(self, factor: Any, rng: Any, count: int, features: int, /) -> Paths:
        return EachPatchPaths(self.process.paths(factor, rng, count, features), self.grid)

    def project_to_sites(self, factor: Any, X: Array, /) -> tuple[tuple[Array, Array], SitePull]:
        (mu, var), pull = self.process.project_to_sites(factor, self.grid.rows(X)[0])

        def to_sites(mu_bar: Array, var_bar: Array) -> dict[str, Any]:
            found = pull(self._by_patch(mu_bar), self._by_patch(var_bar))
            return {f"process.{path}": x for path, x in found.items()}

        return (self._by_image(mu), self._by_image(var)), to_sites

    def check(self) -> None:
        self.grid.check()
        if self.process.width != self.grid.columns:
            raise ValueError(
                f"the process of a Patchwise takes inputs with {self.process.width} columns, but "
                f"{self.grid.describe()} have {count_of(self.grid.columns, 'column')}; make these numbers equal."
            )
        self.process.check()

    def draws(self, rng: Any, rows: int, /) -> Draws:
        return prefix_draws("process", self.process.draws(rng, rows * self.grid.number))
