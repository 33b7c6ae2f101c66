"""The base classes for processes, which map inputs to marginals of P latent functions."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any, ClassVar, NoReturn, Self

from agp import tree
from agp.backend import Array, Pullback
from agp.bounds import Batch
from agp.likelihoods import Likelihood
from agp.processes._further import Place, condition_process, refuse_data
from agp.processes._outputs import InputsOf, MultiOutput
from agp.processes._paths import Paths
from agp.processes._terms import Moments, Term
from agp.random import NO_DRAWS, Draws, draws_with_prefix

SitePull = Callable[[Array, Array], dict[str, Any]]
"""A function ``(mu_bar, var_bar) -> {path of a posterior: its sums}``; see `Process.project_to_sites`."""


class MixedPrecision(ABC):  # noqa: B024 - a mark
    """A process, or its factor, in which some leaves are in float64 even if the others are in float32."""

    in_float64: ClassVar[tuple[str, ...]] = ()
    """The names of the leaves that are always in float64."""


class Process(MixedPrecision, MultiOutput):
    """An approximate posterior process f that maps X [N, D] to marginals of P latent functions.

    `factorise` computes a factor, which contains every intermediate result that depends only on the parameters. Callers
    do not look inside the factor or its cotangent: they add up the factor cotangents that the other pullbacks return,
    and pass the sum to the pullback of `factorise`. The cotangent of a process is an object of the same class. A
    sampled process returns S marginals for each input, as rows [S N, P] ordered by sample. Most processes have S = 1.
    """

    rows_share_work: ClassVar[bool] = False
    """Whether most of the work in `project` does not depend on the number of rows. If so, chunks should be large."""

    shares_inputs: ClassVar[bool] = False
    """Whether all processes inside take the inputs of the process itself, and the marginals are not sampled."""

    @property
    def samples(self) -> int:
        """The number of samples S."""
        return 1

    @property
    def shares(self) -> Array | None:
        """The weights [S] of the samples, which sum to 1, or None if they are equal."""
        return None

    @property
    def shares_precision(self) -> bool:
        """Whether several outputs share the precisions of sites."""
        return False

    @property
    def depth(self) -> int:
        """The number of successive layers."""
        return 1

    @property
    def fixed_shapes(self) -> bool:
        """Whether no shape depends on the values of the inputs, which maps such as `torch.func.vmap` require."""
        return True

    @property
    def correlated(self) -> bool:
        """Whether the outputs are dependent, so that their marginals do not determine the joint distribution."""
        return False

    @property
    def latents(self) -> int:
        """The number L of independent functions; by default P."""
        return self.outputs

    @property
    def mixing(self) -> Array | None:
        """The matrix A [P, L] if the outputs are mixtures A g of L functions g, or None if the outputs are g itself."""
        return None

    @abstractmethod
    def factorise(self) -> tuple[Any, Pullback]:
        """Return the factor, which depends only on the parameters, and its pullback ``factor_bar -> process_bar``."""

    def prepare_means(self, factor: Any, /) -> Any:
        """Return the factor with all that `project_mean` needs and that does not depend on X; by default, unchanged."""
        return factor

    @property
    def floats_per_mean(self) -> int:
        """The number of floats that `project_mean` stores per input row, by default `floats_per_row`."""
        return self.floats_per_row

    @abstractmethod
    def project(self, factor: Any, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        """Return marginal means and variances [S N, P] at X [N, D].

        The pullback is ``(mu_bar, var_bar) -> (process_bar, factor_bar, X_bar)``.
        """

    @abstractmethod
    def kl_divergence(self, factor: Any, /) -> tuple[Array, Pullback]:
        """Return the KL divergence of the process from its prior (a scalar), or an upper bound on this divergence.

        The pullback is ``bar -> (process_bar, factor_bar)``.
        """

    @abstractmethod
    def sample_marginals(self, factor: Any, X: Array, noise: Array, /) -> tuple[Array, Pullback]:
        """Return samples [S N, P] of f at each row of X [N, D], computed from standard normal noise [S, N, latents].

        The samples at different rows are independent. The pullback is ``bar -> (process_bar, factor_bar, X_bar)``.
        """

    @abstractmethod
    def project_mean(self, factor: Any, X: Array, /) -> Array:
        """Return the marginal means [S N, P] at X [N, D], without the variances."""

    @abstractmethod
    def project_covariance(self, factor: Any, X: Array, /) -> Array:
        """Return the joint covariances [L, N, N] of the L independent functions at X [N, D], before mixing.

        Raise TypeError if the process is not Gaussian.
        """

    def project_joint(self, factor: Any, X: Array, /) -> tuple[Array, Array, Array]:
        """Return the means and variances of `project` and the covariances of `project_covariance` at X [N, D]."""
        return *self.project(factor, X)[0], self.project_covariance(factor, X)

    def terms(self, names: Sequence[str] = (), /) -> tuple[Term, ...]:
        """Return the terms f_1, f_2, ... of f, of which the last is the mean function, if there is one.

        `names` are the names of the input columns, by default their numbers. Raise TypeError if f is not a sum of
        terms that are Gaussian processes.
        """
        self._refuse_terms()

    def project_terms(self, factor: Any, X: Array, /) -> Moments:
        """Return the means [S N, P, K + 1] and covariances [S N, P, K + 1, K + 1] of the terms of f at X [N, D].

        The last term is the mean function, also if it is zero. The sums of these arrays over all terms are the means
        and variances of `project`. Raise TypeError as `terms` does.
        """
        self._refuse_terms()

    def project_joint_terms(self, factor: Any, X: Array, /) -> Moments:
        """Return the means [N, P, K + 1] and the joint covariances [P, K, N, K, N] of K terms of a Gaussian process.

        The last mean is that of the mean function, which is known. Raise TypeError if they cannot be computed.
        """
        raise TypeError(
            f"joint components of {type(self).__name__} are not known; use a GPR or its mixture, or a model with one "
            "process of inducing inputs, such as SGPR or SVGP."
        )

    def _refuse_terms(self) -> NoReturn:
        raise TypeError(
            f"a function of {type(self).__name__} is no sum of Gaussian processes of the inputs; compare the effects "
            "of columns with agp.inspection.partial_dependence instead."
        )

    def gaussian_parts(self, factor: Any, most: int, /) -> list[tuple[float, "Process", Any]]:
        """Return Gaussian processes of which the process is the mixture: their weights, and their factors.

        A mixture of more than `most` is represented by at most `most` of them.
        """
        return [(1.0, self, factor)]

    def parts_of_draws(self, factor: Any, count: int, rng: Any, /) -> list[tuple["Process", Any, int]]:
        """Return Gaussian processes with their factors, and how many of `count` draws are from each of them.

        By default, all draws are from the process itself. A mixture chooses its components with the NumPy generator.
        """
        return [(self, factor, count)]

    def numbers_of_draws(self, count: int, rng: Any, /) -> list[tuple[int, int]]:
        """Return pairs of a sample and how many of `count` draws are from it, as in `parts_of_draws`."""
        return [(0, count)]

    def paths(self, factor: Any, rng: Any, count: int, features: int, /) -> Paths:
        """Draw `count` function samples from the process, with a NumPy generator on the host.

        `features` is the number of frequencies for each stationary kernel. Raise TypeError if the kernel, the inducing
        variables or the posterior does not support function sampling.
        """
        raise TypeError(
            f"{type(self).__name__} cannot sample functions; implement `paths`, or call `sample` at fixed inputs."
        )

    def condition_on(self, factor: Any, batch: Batch, likelihood: Likelihood, /) -> tuple["Process", Any]:
        """Return the process and its factor given k further rows of data, at the same hyperparameters.

        A Gaussian site is added for each new row and output, and computed by dual steps until convergence. Processes
        stay independent of each other, so each output must depend on one function only. Raise TypeError for processes
        other than `Sparse`, `Stack`, and a `LinearMixing` in which each output is a multiple of one function.
        """
        return condition_process(self, factor, batch, likelihood)

    def places(self, factor: Any, batch: Batch, /) -> dict[str, Place]:
        """Return, by path, the sparse processes at the inputs of k further rows, for `condition_on`."""
        refuse_data(f"a posterior of {type(self).__name__}")

    @abstractmethod
    def project_to_sites(self, factor: Any, X: Array, /) -> tuple[tuple[Array, Array], SitePull]:
        """Return the marginals [S N, P], and a function that computes the sums for site steps.

        The function is ``(mu_bar, var_bar) -> {path: sums}``. Its paths are those in `site_paths`, and its sums are
        those from `Posterior.site_sums` for the derivatives alpha = mu_bar and beta = -2 var_bar.
        """

    @property
    @abstractmethod
    def site_paths(self) -> tuple[str, ...]:
        """The paths of the posteriors for which `project_to_sites` returns sums."""

    @abstractmethod
    def site_factors(self, factor: Any, /) -> dict[str, Any]:
        """Return, by path, the factors of the posteriors listed in `site_paths`."""

    @abstractmethod
    def recompute_factors(self) -> Self:
        """Return the process with auxiliary arrays that are accurate enough for predictions."""

    @abstractmethod
    def check(self) -> None:
        """Raise ValueError if the parts cannot be combined."""

    def draws(self, rng: Any, rows: int, /) -> Draws:
        """Draw the random numbers for a training step; `rows` is the number of rows. By default, no numbers are drawn.

        `rng` is a NumPy generator or an `agp.random.Noise`.
        """
        return NO_DRAWS

    def with_draws(self, draws: Draws, /) -> "Process":
        """Return the process with these draws.

        Set the draws in `Draws.whole` before you call `factorise`, and the draws in `Draws.by_row` before you call
        `project`.
        """
        return self

    def row_draws(self, seed: int, start: int, rows: int, /) -> Draws:
        """Return draws for the rows from `start` on, which depend only on the seed and row number; by default, none."""
        return NO_DRAWS

    def common_draws(self, seed: int, rows: int, /) -> Draws:
        """Return the same draws for every row, so that predictions do not depend on other rows; by default, none."""
        return NO_DRAWS


class WithoutSites(Process):
    """A process without sites. By default, it has no factors that could be out of date."""

    @property
    def site_paths(self) -> tuple[str, ...]:
        return ()

    def site_factors(self, factor: Any, /) -> dict[str, Any]:
        return {}

    def recompute_factors(self) -> Self:
        return self


class Transformed(InputsOf, Process):
    """A deterministic transformation of the process in the field `process`."""

    process: Process

    takes_inputs_of: ClassVar[str] = "process"

    @property
    def fixed_shapes(self) -> bool:
        return self.process.fixed_shapes

    def factorise(self) -> tuple[Any, Pullback]:
        factor, pull = self.process.factorise()
        return factor, lambda factor_bar: tree.cotangent(self, process=pull(factor_bar))

    def prepare_means(self, factor: Any, /) -> Any:
        return self.process.prepare_means(factor)

    def kl_divergence(self, factor: Any, /) -> tuple[Array, Pullback]:
        kl, pull = self.process.kl_divergence(factor)

        def pullback(bar):
            process_bar, factor_bar = pull(bar)
            return tree.cotangent(self, process=process_bar), factor_bar

        return kl, pullback

    @property
    def site_paths(self) -> tuple[str, ...]:
        return tuple(f"process.{path}" for path in self.process.site_paths)

    def site_factors(self, factor: Any, /) -> dict[str, Any]:
        return {f"process.{path}": x for path, x in self.process.site_factors(factor).items()}

    def recompute_factors(self) -> Self:
        process = self.process.recompute_factors()
        return self if process is self.process else tree.replace(self, {"process": process})

    def with_draws(self, draws: Draws, /) -> Self:
        return tree.replace(self, {"process": self.process.with_draws(draws_with_prefix("process", draws))})


class Composite(Process):
    """A process composed of several processes."""

    children: ClassVar[str]
    """The name of the field that contains the parts."""

    @property
    def _children(self) -> tuple[Process, ...]:
        return vars(self)[self.children]

    @property
    def fixed_shapes(self) -> bool:
        return all(child.fixed_shapes for child in self._children)

    def factorise(self) -> tuple[Any, Pullback]:
        found = [child.factorise() for child in self._children]

        def pullback(factor_bar):
            bars = zip(found, factor_bar, strict=True)
            own = tuple(None if bar is None else pull(bar) for (_, pull), bar in bars)
            return tree.cotangent(self, **{self.children: own})

        return tuple(factor for factor, _ in found), pullback

    def prepare_means(self, factor: Any, /) -> Any:
        return tuple(child.prepare_means(one) for child, one in self._with(factor))

    def kl_divergence(self, factor: Any, /) -> tuple[Array, Pullback]:
        found = [child.kl_divergence(one) for child, one in self._with(factor)]

        def pullback(bar):
            own, factors = zip(*(pull(bar) for _, pull in found), strict=True)
            return tree.cotangent(self, **{self.children: own}), factors

        return sum((kl for kl, _ in found[1:]), start=found[0][0]), pullback

    def _with(self, factor: Any) -> list[tuple[Process, Any]]:
        """Return each part with its factor."""
        return list(zip(self._children, factor, strict=True))

    def _join_cotangents(self, bars: Iterable[tuple[Any, Any, Any]]) -> tuple[Any, tuple[Any, ...], Any]:
        """Join the cotangents (part_bar, factor_bar, X_bar) of parts that share their inputs."""
        own, factors, inputs = zip(*bars, strict=True)
        return tree.cotangent(self, **{self.children: own}), factors, reduce(tree.add, inputs)

    def recompute_factors(self) -> Self:
        new = tuple(child.recompute_factors() for child in self._children)
        same = all(a is b for a, b in zip(new, self._children, strict=True))
        return self if same else dataclasses.replace(self, **{self.children: new})  # type: ignore[type-var]


class Parallel(Composite):
    """A process with parts that take the same inputs."""

    parts: tuple[Process, ...]

    children: ClassVar[str] = "parts"
    shares_inputs: ClassVar[bool] = True

    @property
    def correlated(self) -> bool:
        return any(part.correlated for part in self.parts)

    @property
    def floats_per_mean(self) -> int:
        return self.outputs + max(part.floats_per_mean for part in self.parts)


def check_process(what: str, x: Any) -> None:
    """Raise TypeError unless x is a process."""
    if not isinstance(x, Process):
        kinds = "agp.processes.Sparse, Stack, LinearMixing, Patchwise or Deep"
        raise TypeError(f"{what} is {x!r}, but must be a process ({kinds}); build a process with from_data.")


def check_processes(what: str, several: Any) -> None:
    """Raise TypeError unless `several` is a tuple of processes, and ValueError if the tuple is empty."""
    if not isinstance(several, tuple):
        raise TypeError(f"the {what} are a {type(several).__name__}, but must be a tuple of processes.")
    if not several:
        raise ValueError(f"there are no {what}; pass at least one process.")
    for i, one in enumerate(several):
        check_process(f"entry {i} in the {what}", one)
