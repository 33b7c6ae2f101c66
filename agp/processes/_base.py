"""The base class of processes: from inputs to the marginals of P latent functions, with its pullback."""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, Pullback
from agp.processes._outputs import MultiOutput
from agp.processes._paths import Paths
from agp.random import NO_DRAWS, Draws, below

SitePull = Callable[[Array, Array], dict[str, Any]]
"""``(mu_bar, var_bar) -> {path of a posterior: its sums}``, see `Process.project_to_sites`."""


class Process(MultiOutput):
    """An approximate posterior process f, from X [N, D] to marginals of P latent functions.

    `factorise` computes everything that depends on the parameters alone. Its factor is opaque to callers, and so is the
    cotangent of the factor: the sum of those from the other pullbacks goes to the pullback of `factorise`. Gradients
    have the class of the process. A sampled process returns S marginals for each input, stacked as rows, sample after
    sample [S N, P]; S = 1 for most.
    """

    @property
    def samples(self) -> int:
        """S."""
        return 1

    @property
    def depth(self) -> int:
        """The number of successive layers."""
        return 1

    @property
    def correlated(self) -> bool:
        """Whether the outputs are dependent, so that marginals do not determine their joint distribution."""
        return False

    @property
    def latents(self) -> int:
        """L, the number of independent functions in a sample; usually P."""
        return self.outputs

    @property
    def mixing(self) -> Array | None:
        """A [P, L] if the outputs are mixtures A g of the L functions; None if they are these functions."""
        return None

    @abstractmethod
    def factorise(self) -> tuple[Any, Pullback]:
        """The factor, which depends on the parameters alone, and ``factor_bar -> process_bar``."""

    @abstractmethod
    def project(self, factor: Any, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        """Marginal means and variances [S N, P] at X [N, D].

        The pullback is ``(mu_bar, var_bar) -> (process_bar, factor_bar, X_bar)``.
        """

    @abstractmethod
    def kl_divergence(self, factor: Any, /) -> tuple[Array, Pullback]:
        """KL[q || p] of all uncertain parts, 0-d (or an upper bound), and ``bar -> (process_bar, factor_bar)``."""

    @abstractmethod
    def sampled(self, factor: Any, X: Array, noise: Array, /) -> tuple[Array, Pullback]:
        """Samples [S N, P] of f at each row of X [N, D], from standard normal noise [S, N, latents].

        Rows are independent of each other. The pullback is ``bar -> (process_bar, factor_bar, X_bar)``.
        """

    @abstractmethod
    def project_mean(self, factor: Any, X: Array, /) -> Array:
        """The means [S N, P] alone, at X [N, D]."""

    @abstractmethod
    def joint(self, factor: Any, X: Array, /) -> Array:
        """The joint covariances [L, N, N] at X [N, D] of the independent functions that `mixing` mixes.

        TypeError if the process is not Gaussian.
        """

    def paths(self, factor: Any, rng: Any, count: int, features: int, /) -> Paths:
        """`count` samples of the process as functions, drawn from a NumPy generator on the host.

        `features` is the number of frequencies for each stationary kernel. TypeError if the kernel, the inducing
        variables or the posterior do not support samples of functions.
        """
        msg = f"{type(self).__name__} has no samples of functions; define paths, or use sample at given inputs."
        raise TypeError(msg)

    @abstractmethod
    def project_to_sites(self, factor: Any, X: Array, /) -> tuple[tuple[Array, Array], SitePull]:
        """The marginals [S N, P], and a pullback to the sums that steps of sites need, by the path of each posterior.

        The sums are `Posterior.site_sums` of the cotangents alpha = mu_bar and beta = -2 var_bar of its marginals.
        """

    @property
    @abstractmethod
    def site_paths(self) -> tuple[str, ...]:
        """The paths of the posteriors that `project_to_sites` reaches."""

    @abstractmethod
    def site_factors(self, factor: Any, /) -> dict[str, Any]:
        """The factors of these posteriors, by path."""

    @abstractmethod
    def refreshed(self) -> Self:
        """The process with auxiliary arrays that fit its parameters for predictions; usually itself."""

    @abstractmethod
    def check(self) -> None:
        """Raise ValueError unless the parts fit together."""

    def draws(self, rng: Any, rows: int, /) -> Draws:
        """The noise for an evaluation on this number of rows, from a NumPy generator or an `agp.random.Noise`."""
        return NO_DRAWS

    def drawn(self, draws: Draws, /) -> "Process":
        """The process that uses these draws: those of the whole before `factorise`, those by row before `project`."""
        return self

    def row_draws(self, seed: int, start: int, rows: int, /) -> Draws:
        """Draws by row that depend only on the seed and the number of each row, from `start` on; usually none."""
        return NO_DRAWS

    def common_draws(self, seed: int, rows: int, /) -> Draws:
        """The same draws for every row, so that predictions do not depend on other rows; usually none."""
        return NO_DRAWS


class Transformed(Process):
    """A deterministic transformation of another process, `process`, which holds all uncertainty."""

    process: Process

    @property
    def reference(self) -> tuple[str, Array]:
        return self.process.reference

    def factorise(self) -> tuple[Any, Pullback]:
        factor, pull = self.process.factorise()
        return factor, lambda factor_bar: tree.cotangent(self, process=pull(factor_bar))

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

    def refreshed(self) -> Self:
        process = self.process.refreshed()
        return self if process is self.process else tree.replaced(self, {"process": process})

    def drawn(self, draws: Draws, /) -> Self:
        return tree.replaced(self, {"process": self.process.drawn(below("process", draws))})


class Composite(Process):
    """A process made of several others, in the field named `children`."""

    children: ClassVar[str]

    @property
    def _children(self) -> tuple[Process, ...]:
        return vars(self)[self.children]

    def factorise(self) -> tuple[Any, Pullback]:
        found = [child.factorise() for child in self._children]

        def pullback(factor_bar):
            bars = zip(found, factor_bar, strict=True)
            own = tuple(None if bar is None else pull(bar) for (_, pull), bar in bars)
            return tree.cotangent(self, **{self.children: own})

        return tuple(factor for factor, _ in found), pullback

    def kl_divergence(self, factor: Any, /) -> tuple[Array, Pullback]:
        found = [child.kl_divergence(one) for child, one in zip(self._children, factor, strict=True)]

        def pullback(bar):
            own, factors = zip(*(pull(bar) for _, pull in found), strict=True)
            return tree.cotangent(self, **{self.children: own}), factors

        return sum((kl for kl, _ in found[1:]), start=found[0][0]), pullback

    def refreshed(self) -> Self:
        new = tuple(child.refreshed() for child in self._children)
        same = all(a is b for a, b in zip(new, self._children, strict=True))
        return self if same else dataclasses.replace(self, **{self.children: new})  # type: ignore[type-var]


def check_process(what: str, x: Any) -> None:
    """TypeError unless x is a process."""
    if not isinstance(x, Process):
        kinds = "agp.processes.Sparse, Stack, Mixed, Patchwise or Deep"
        msg = f"{what} is {x!r}, but must be a process ({kinds}); from_data builds one."
        raise TypeError(msg)


def check_processes(what: str, several: Any) -> None:
    """TypeError unless there is a tuple of processes; ValueError if it is empty."""
    if not isinstance(several, tuple):
        msg = f"the {what} are a {type(several).__name__}, but must be a tuple of processes."
        raise TypeError(msg)
    if not several:
        msg = f"there are no {what}; give at least one process."
        raise ValueError(msg)
    for i, one in enumerate(several):
        check_process(f"number {i} of the {what}", one)
