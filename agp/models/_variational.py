"""Models that consist of a process and a likelihood."""

from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.bounds import Batch, elbo, site_sums
from agp.chunking import block_rows
from agp.inducing import Inducing
from agp.kernels import Kernel
from agp.likelihoods import Likelihood
from agp.means import Mean
from agp.models._base import Model
from agp.posteriors import Posterior, SiteGradients
from agp.priors import Priors
from agp.processes import LinearMixing, Process, Sparse, check_process
from agp.random import Draws, draws_with_prefix, merge_draws, prefix_draws

SEED = 0
"""Seed for the noise of sampled processes if a batch contains no noise, as in predictions and outside training."""


class Variational(Model):
    """Base class of models with an approximate posterior process, for any likelihood and for minibatches."""

    process: Process
    likelihood: Likelihood
    priors: Priors

    stochastic: ClassVar[bool] = True

    @property
    def kernel(self) -> Kernel:
        """The kernel of the only sparse process. Raises AttributeError if there are several sparse processes."""
        return self._only("kernel").kernel

    @property
    def inducing(self) -> Inducing:
        """The inducing variables of the only sparse process; see `kernel`."""
        return self._only("inducing").inducing

    @property
    def posterior(self) -> Posterior[Any]:
        """The q(u) of the only sparse process; see `kernel`."""
        return self._only("posterior").posterior

    @property
    def mean_function(self) -> Mean:
        """The mean function of the mixture, or else of the only sparse process; see `kernel`."""
        own = self.process
        return own.mean_function if isinstance(own, LinearMixing) else self._only("mean_function").mean_function

    def _only(self, name: str) -> Sparse:
        """Return the only sparse process that has the part `name`."""
        paths, what = list(tree.nodes(self, Sparse)), type(self).__name__
        if not paths:
            msg = f"{what} has no {name}, because its process is a {type(self.process).__name__}; see model.process."
            raise AttributeError(msg, name=name, obj=self)
        if len(paths) > 1:
            first = "".join(f"[{key}]" if key.isdigit() else f".{key}" for key in paths[0].split("."))
            msg = f"{what} has {len(paths)} processes, each with its own {name}; use model{first}.{name}, for example."
            raise AttributeError(msg, name=name, obj=self)
        return tree.nodes(self, Sparse)[paths[0]]

    @property
    def outputs(self) -> int:
        return self.process.outputs

    @property
    def _width(self) -> int:
        return self.process.width

    def __post_init__(self) -> None:
        check_process("the process of a model", self.process)
        super().__post_init__()
        if isinstance(self.likelihood, Likelihood) and self.likelihood.couples_outputs and self.process.correlated:
            raise ValueError(
                f"{type(self.likelihood).__name__} needs independent latent functions, but those of "
                f"{type(self.process).__name__} are dependent; use a process with independent functions, such as Stack."
            )

    def _check_parts(self) -> None:
        self.process.check()

    def _draws(self, rng: Any, rows: int, /) -> Draws:
        return merge_draws([super()._draws(rng, rows), prefix_draws("process", self.process.draws(rng, rows))])

    def _with_draws(self, batch: Batch) -> tuple[Self, Draws]:
        """Return a pair: the model with the draws that all rows share, and the draws for the rows of a batch.

        If the batch has no draws for its rows, they are generated from a fixed seed. The random probes for estimating
        traces are shared by all rows; they have no default, because the bound is exact without probes.
        """
        draws = batch.draws
        if not draws.by_row and self.process.row_draws(SEED, 0, 1).by_row:

            def fixed(start: int, rows: int) -> dict[str, Any]:
                return dict(prefix_draws("process", self.process.row_draws(SEED, start, rows)).by_row)

            draws = Draws(backend_of(batch.X).generate_rows(fixed, batch.X), draws.whole)
        if not draws.whole:
            return self, draws
        process = self.process.with_draws(Draws({}, draws_with_prefix("process", draws).whole))
        return tree.replace(self, {"process": process}), draws

    def _objective(self, batch: Batch, /, *, memory: float | None = None) -> tuple[Array, Pullback]:
        self, draws = self._with_draws(batch)
        return elbo(self, batch._replace(draws=draws), block_rows=self._block_rows(batch.X, memory))

    def _block_rows(self, X: Array, memory: float | None) -> int | None:
        return block_rows(memory, self._floats_per_row, X)

    @property
    def _floats_per_row(self) -> int:
        return self.process.floats_per_row + self.likelihood.floats_per_row * self.process.outputs

    # -- sites ------------------------------------------------------------------------------------------------------

    def _prepare_site_step(self) -> Self:
        new = {
            tree.join_path(path, "posterior"): node.posterior.prepare_site_step(node.inducing_covariance()[0])
            for path, node in tree.nodes(self, Sparse).items()
            if node.posterior.inverse_factors
        }
        return tree.replace(self, new)

    @property
    def _site_paths(self) -> tuple[str, ...]:
        return tuple(map("process.{}".format, self.process.site_paths))

    def _site_gradients(self, batch: Batch, /, *, memory: float | None = None) -> dict[str, SiteGradients]:
        self, draws = self._with_draws(batch)
        factor = self.process.factorise()[0]
        rows = self._block_rows(batch.X, memory) or batch.X.shape[0]
        sums = site_sums(self, factor, batch._replace(draws=draws), block_rows=rows)
        factors = self.process.site_factors(factor)
        return {f"process.{path}": SiteGradients(factors[path], x) for path, x in sums.items()}

    # -- prediction -------------------------------------------------------------------------------------------------

    def _posterior_process(self, *, memory: float | None = None) -> Process:  # noqa: ARG002
        return self.process

    def _reference(self) -> tuple[str, Array]:
        return self.process.reference
