"""A process: from inputs to the marginals of P latent functions, with its pullback. Models are made of one."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Self

from agp.backend import Array, Pullback
from agp.processes._outputs import MultiOutput
from agp.processes._paths import Paths
from agp.random import NO_DRAWS, Draws

__all__ = ["Process", "SitePull", "check_process", "check_processes"]

SitePull = Callable[[Array, Array], dict[str, Any]]
"""``(mu_bar, var_bar) -> {path of a posterior: its sums}``, as `Process.project_to_sites` gives it."""


class Process(MultiOutput):
    """An approximate posterior process f, from X [N, D] to marginals of P latent functions.

    `factorise` does what depends on the parameters alone, once; its factor is opaque to the caller, and so is the
    cotangent of the factor: the sum of those that the other pullbacks return goes to the pullback of `factorise`.
    Gradients come back in the class of the process. A process that is sampled gives S marginals for each input, stacked
    as rows, sample after sample [S N, P]; S = 1 for most.
    """

    @property
    def samples(self) -> int:
        """S."""
        return 1

    @property
    def depth(self) -> int:
        """How many layers inputs pass, one after the other."""
        return 1

    @property
    def correlated(self) -> bool:
        """Whether the outputs depend on each other, so that marginals do not tell all."""
        return False

    @property
    def latents(self) -> int:
        """L: how many independent functions a sample is made of; usually P."""
        return self.outputs

    @property
    def mixing(self) -> Array | None:
        """A [P, L], where the outputs are mixtures A g of the L functions; None where they are these functions."""
        return None

    @abstractmethod
    def factorise(self) -> tuple[Any, Pullback]:
        """What depends on the parameters alone, and ``factor_bar -> process_bar``."""

    @abstractmethod
    def project(self, factor: Any, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        """Marginal means and variances [S N, P] at X [N, D].

        The pullback is ``(mu_bar, var_bar) -> (process_bar, factor_bar, X_bar)``.
        """

    @abstractmethod
    def kl_divergence(self, factor: Any, /) -> tuple[Array, Pullback]:
        """KL[q || p] of all that is uncertain, 0-d (or an upper bound), and ``bar -> (process_bar, factor_bar)``."""

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

        Raises
        ------
        TypeError
            If the process is no Gaussian one.
        """

    def paths(self, factor: Any, rng: Any, count: int, features: int, /) -> Paths:
        """So many samples of the process as functions, drawn from a NumPy generator on the host.

        `features` frequencies stand for each stationary kernel.

        Raises
        ------
        TypeError
            If a kernel, a place of inducing variables or a posterior does not offer them.
        """
        msg = f"{type(self).__name__} has no samples of functions; define paths, or use sample at given inputs."
        raise TypeError(msg)

    @abstractmethod
    def project_to_sites(self, factor: Any, X: Array, /) -> tuple[tuple[Array, Array], SitePull]:
        """The marginals [S N, P], and the way back to what moves the sites of each q(u) that has any.

        Of the cotangents alpha = mu_bar and beta = -2 var_bar that reach its own marginals, each posterior keeps the
        sums that it needs (`Posterior.site_sums`), by its path.
        """

    @property
    @abstractmethod
    def site_paths(self) -> tuple[str, ...]:
        """The paths of the posteriors whose marginals meet the likelihood: those that `project_to_sites` reaches."""

    @abstractmethod
    def site_factors(self, factor: Any, /) -> dict[str, Any]:
        """The factor of each posterior that `project_to_sites` reaches, by the same path."""

    @abstractmethod
    def refreshed(self) -> Self:
        """The process whose auxiliary arrays fit its parameters, as far as predictions need it; usually itself."""

    @abstractmethod
    def check(self) -> None:
        """ValueError unless the parts fit each other."""

    def draws(self, rng: Any, rows: int, /) -> Draws:
        """The noise that an evaluation on so many rows needs, from NumPy's generator or an `agp.random.Noise`."""
        return NO_DRAWS

    def drawn(self, draws: Draws, /) -> "Process":
        """The process that uses these draws: of the whole before `factorise`, by row before `project`."""
        return self

    def row_draws(self, seed: int, start: int, rows: int, /) -> Draws:
        """Draws by row that depend on the seed and each row's number, from `start` on, alone; usually none."""
        return NO_DRAWS

    def common_draws(self, seed: int, rows: int, /) -> Draws:
        """Draws by row that are the same for all rows, as predictions take them; usually none.

        What is predicted for a row then does not depend on the rows beside it.
        """
        return NO_DRAWS


def check_process(what: str, x: Any) -> None:
    """TypeError unless x is a process."""
    if not isinstance(x, Process):
        kinds = "agp.processes.Sparse, Stack, Mixed, EachPatch or Deep"
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
