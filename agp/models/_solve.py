"""SOLVE-GP: sparse variational GPs with two orthogonal groups of inducing inputs, for any likelihood."""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Self

from agp import tree
from agp.backend import Array, backend_of
from agp.checks import check_inputs, check_like, check_whole
from agp.inducing import NUM_INDUCING, How
from agp.kernels import Kernel
from agp.likelihoods import Likelihood
from agp.linalg import groups_of
from agp.means import Mean
from agp.models._start import observed, started_model
from agp.models._variational import Variational
from agp.posteriors import GroupPosterior, Orthogonal, Whitened, WhitePosterior, posterior_named
from agp.priors import Prior, Priors, as_priors
from agp.processes import Sparse

__all__ = ["SOLVEGP", "check_groups", "check_part"]


@tree.model
class SOLVEGP(Variational):
    """A sparse variational GP whose inducing inputs Z come in two groups, the second orthogonal to the first.

    The posterior is an `Orthogonal` one: a full covariance within each group, none between what the first explains and
    what the second adds. With M + M2 inducing inputs it predicts nearly like an SVGP with all of them, at less cost.

    Parameters
    ----------
    process
        A `Sparse` process, whose inducing inputs stand group after group.
    likelihood, priors
        As `SVGP`.

    Source: Shi, Titsias & Mnih, "Sparse orthogonal variational inference for Gaussian processes", AISTATS 2020.
    """

    process: Sparse  # type: ignore[assignment]
    likelihood: Likelihood
    priors: Priors = ()

    stochastic: ClassVar[bool] = True

    @classmethod
    def from_data(
        cls,
        X: Array,
        y: Array,
        /,
        *,
        posterior: Any = Whitened,
        second: Any = None,
        kernel: Kernel | None = None,
        likelihood: Likelihood | None = None,
        mean_function: Mean | None = None,
        num_inducing: int | None = None,
        num_orthogonal: int | None = None,
        Z: Array | None = None,
        O: Array | None = None,  # noqa: E741 - the name that the field uses
        inducing: How = "kmeans",
        priors: Mapping[str, Prior] | None = None,
        seed: int = 0,
        jitter: float | None = None,
    ) -> Self:
        """A model ready to be trained; arguments and errors as `SVGP.from_data`, and these.

        Parameters
        ----------
        X, y, kernel, likelihood, mean_function, inducing, priors, seed, jitter
            As `SVGP.from_data`.
        posterior
            The class of q of both groups: `Whitened` (default), `Marginal` or any other of one group that is an
            `agp.posteriors.WhitePosterior`; or one that is made for groups, such as `RelaxedOrthogonal`.
        second
            The class of q of the second group, if it is another: `PriorSpread` gives the orthogonally decoupled GP.
        num_inducing, num_orthogonal
            M and M2 (default: 128, or half of N if that is less; and as many again). M2 = 0 is an ordinary SVGP. All
            are chosen together, by k-means++ or as `inducing` says; the first M become the first group.
        Z, O
            The inducing inputs [M, D] and [M2, D] themselves, both or neither; O may have no rows.

        Raises
        ------
        TypeError, ValueError
            Also if only one of Z and O is given, M + M2 exceeds N, a class of q is not made for groups, or one that
            needs two groups gets one.
        """
        data = observed(X, y, kernel, likelihood, mean_function)
        union, sizes = check_groups(data.X, Z, O, num_inducing, num_orthogonal)
        start = _start(posterior_named(posterior), posterior_named(second), sizes)
        parts: dict[str, Any] = {"kernel": kernel, "mean_function": data.mean_function, "level": data.level}
        choice = {"inducing": inducing, "Z": union, "num_inducing": sum(sizes), "seed": seed, "jitter": jitter}
        targets = {"outputs": data.outputs, "variance": data.variance}
        process = Sparse.from_data(data.X, posterior=start, **parts, **choice, **targets)
        return started_model(cls(process, data.likelihood, as_priors(priors)))

    @property
    def groups(self) -> tuple[Array, ...]:
        """The inducing inputs of each group, Z [M, D] and O [M2, D]."""
        posterior: Any = self.process.posterior
        points: Any = self.process.inducing
        return tuple(points.Z[rows, :] for rows in groups_of(posterior.sizes))

    def structured_posterior(self) -> tuple[Array, Array]:
        """Mean [M + M2, P] and covariances [P, M + M2, M + M2] of f - h at Z and O (`Sparse.inducing_moments`)."""
        return self.process.inducing_moments()


def _start(posterior: Any, second: Any, sizes: tuple[int, ...]) -> Any:
    """What makes the first q from Kuu and the number of latent functions."""
    if _is_part(posterior):
        parts = posterior, posterior if second is None else check_part("second", second)
        return partial(Orthogonal.from_prior, sizes=sizes, parts=parts[: len(sizes)])
    if isinstance(posterior, type) and not issubclass(posterior, GroupPosterior):
        check_part("posterior", posterior)
    if not callable(posterior):
        msg = f"posterior is {posterior!r}, but must be a class of q, or a function of Kuu and the outputs."
        raise TypeError(msg)
    if second is not None:
        name = posterior.__name__ if isinstance(posterior, type) else repr(posterior)
        msg = f"second is given, but {name} is made for both groups; leave it out."
        raise ValueError(msg)
    return partial(posterior.from_prior if isinstance(posterior, type) else posterior, sizes=sizes)


def _is_part(kind: Any) -> bool:
    """Whether it is a class of q of one group: any that factorises its covariance."""
    return isinstance(kind, type) and issubclass(kind, WhitePosterior) and not issubclass(kind, GroupPosterior)


def check_part(name: str, kind: Any) -> Any:
    """The class of q of one group. TypeError if it is not made for that."""
    if not _is_part(kind):
        found = kind.__name__ if isinstance(kind, type) else repr(kind)
        msg = (
            f"{name} is {found}, but must be a q of one of two groups (a WhitePosterior, such as Whitened, Marginal, "
            "Dual or PriorSpread), or of both, as RelaxedOrthogonal."
        )
        raise TypeError(msg)
    return kind


def check_groups(
    X: Array,
    Z: Array | None,
    O: Array | None,  # noqa: E741
    num_inducing: int | None,
    num_orthogonal: int | None,
) -> tuple[Array | None, tuple[int, ...]]:
    """The given groups of inducing inputs, one after the other, and the sizes; an empty second group is left out."""
    if (Z is None) != (O is None):
        msg = f"{'O' if Z is None else 'Z'} is given without {'Z' if Z is None else 'O'}; give both, or neither."
        raise ValueError(msg)
    if Z is not None and O is not None:
        check_inputs("Z", Z)
        check_like("Z", Z, "X", X)
        check_like("O", O, "X", X)
        if O.ndim != 2 or O.shape[1] != Z.shape[1]:
            msg = f"O has shape {tuple(O.shape)}, Z has {tuple(Z.shape)}; both need as many columns as X."
            raise ValueError(msg)
        if O.shape[0]:
            check_inputs("O", O)
        union = backend_of(X).xp.concat([Z, O], axis=0) if O.shape[0] else Z
        sizes = Z.shape[0], O.shape[0]
    else:
        if num_inducing is None and X.shape[0] < 2:
            msg = "X has 1 row, but two groups of inducing inputs need at least 2; use SVGP, or give more data."
            raise ValueError(msg)
        usual = min(NUM_INDUCING, X.shape[0] // 2)
        M = usual if num_inducing is None else check_whole("num_inducing", num_inducing)
        M2 = M if num_orthogonal is None else check_whole("num_orthogonal", num_orthogonal, least=0)
        if X.shape[0] < M + M2:
            msg = f"num_inducing + num_orthogonal is {M + M2}, but there are only {X.shape[0]} rows; use fewer."
            raise ValueError(msg)
        union, sizes = None, (M, M2)
    return union, sizes if sizes[1] else sizes[:1]
