"""The sizes, values and initial q of two groups of inducing inputs, for SOLVE-GPs and deep SOLVE-GPs."""

from functools import partial
from typing import Any

from agp import tree
from agp.backend import Array, backend_of
from agp.checks import check_inputs, check_like, check_whole
from agp.inducing import NUM_INDUCING, Inducing
from agp.models._start import Observed
from agp.posteriors import GroupPosterior, Orthogonal, WhitePosterior


def start_of_groups(posterior: Any, second: Any, sizes: tuple[int, ...]) -> Any:
    """Return a function that builds the initial q for one or two groups.

    The returned function takes Kuu and the number of outputs.

    `posterior` is the posterior class of each group (see `check_part`), or one class for both groups together. `second`
    is the class of the second group, by default that of the first. Raises TypeError or ValueError if a class does not
    support groups.
    """
    if _is_part(posterior):
        parts = posterior, posterior if second is None else check_part("second", second)
        return partial(Orthogonal.from_prior, sizes=sizes, parts=parts[: len(sizes)])
    if isinstance(posterior, type) and not issubclass(posterior, GroupPosterior):
        check_part("posterior", posterior)
    if not callable(posterior):
        raise TypeError(
            f"posterior is {posterior!r}, but must be a class, or a function of Kuu and the number of outputs."
        )
    if second is not None:
        name = posterior.__name__ if isinstance(posterior, type) else repr(posterior)
        raise ValueError(f"second is given, but the posterior {name} is for both groups together; omit second=.")
    return partial(posterior.from_prior if isinstance(posterior, type) else posterior, sizes=sizes)


def _is_part(kind: Any) -> bool:
    """Whether `kind` is a posterior class for a single group: a class that factorises the covariance of q."""
    return isinstance(kind, type) and issubclass(kind, WhitePosterior) and not issubclass(kind, GroupPosterior)


def check_part(name: str, kind: Any) -> Any:
    """Return `kind` if it is a posterior class for a single group; raise TypeError otherwise."""
    if not _is_part(kind):
        found = kind.__name__ if isinstance(kind, type) else repr(kind)
        raise TypeError(
            f"{name} is {found}, but must be a posterior class for a single group, such as Whitened, Marginal, Dual or "
            "PriorSpread; to use one posterior for both groups, pass posterior=RelaxedOrthogonal."
        )
    return kind


def resolve_groups(data: Observed) -> tuple[Observed, tuple[int, ...]]:
    """Replace the options of `GroupParts` by options for all inducing inputs; return the sizes of the groups, too.

    An empty second group is omitted. Raises TypeError or ValueError if the options contradict each other.
    """
    options = dict(data.options)
    first, M, M2 = options["Z"], options["num_inducing"], options.pop("num_orthogonal")
    if isinstance(given := options.get("inducing"), Inducing) and not tree.missing(given):
        M, M2 = _sizes_of_given(given, M, M2)
    union, sizes = _check_groups(data.X, first, options.pop("O"), M, M2)
    return data._replace(options=options | {"Z": union, "num_inducing": sum(sizes)}), sizes


def _sizes_of_given(inducing: Inducing, num_inducing: Any, num_orthogonal: Any) -> tuple[int, int]:
    """Return the sizes of the groups into which given inducing variables are divided."""
    total, name = inducing.count, type(inducing).__name__
    M = None if num_inducing is None else check_whole("num_inducing", num_inducing)
    M2 = None if num_orthogonal is None else check_whole("num_orthogonal", num_orthogonal, least=0)
    if M is None and M2 is not None:
        M = total - M2
    M2 = total - M if M2 is None and M is not None else M2
    if M is None or M2 is None or M < 1 or M2 < 0 or total != M + M2:
        given = "" if M is None or M2 is None else f", but num_inducing + num_orthogonal is {M + M2}"
        raise ValueError(
            f"inducing={name} holds {total} inducing inputs{given}; pass num_orthogonal=, the size of the second "
            f"group, which is the last of the {total}."
        )
    return M, M2


def _check_groups(
    X: Array,
    Z: Array | None,
    O: Array | None,  # noqa: E741
    num_inducing: int | None,
    num_orthogonal: int | None,
) -> tuple[Array | None, tuple[int, ...]]:
    """Concatenate the given groups of inducing inputs; return the result and the sizes. Omit an empty second group."""
    if (Z is None) != (O is None):
        raise ValueError(
            f"{'O' if Z is None else 'Z'} is given without {'Z' if Z is None else 'O'}; pass both or neither."
        )
    if Z is not None and O is not None:
        check_inputs("Z", Z)
        check_like("Z", Z, "X", X)
        check_like("O", O, "X", X)
        if O.ndim != 2 or O.shape[1] != Z.shape[1]:
            raise ValueError(
                f"O has shape {tuple(O.shape)}, and Z has {tuple(Z.shape)}; both must have as many columns as X."
            )
        if O.shape[0]:
            check_inputs("O", O)
        union = backend_of(X).xp.concat([Z, O], axis=0) if O.shape[0] else Z
        sizes = Z.shape[0], O.shape[0]
    else:
        union, sizes = None, group_sizes(X.shape[0], num_inducing, num_orthogonal)
    return union, sizes if sizes[1] else sizes[:1]


def group_sizes(rows: int, num_inducing: int | None, num_orthogonal: int | None) -> tuple[int, int]:
    """Check and return the sizes M and M2 of the two groups.

    By default, M is 128, or half the number of rows if that is less. M2 is M by default.
    """
    if num_inducing is None and rows < 2:
        raise ValueError("X has 1 row, but two groups of inducing inputs need at least 2; use SVGP, or pass more data.")
    M = min(NUM_INDUCING, rows // 2) if num_inducing is None else check_whole("num_inducing", num_inducing)
    M2 = M if num_orthogonal is None else check_whole("num_orthogonal", num_orthogonal, least=0)
    if rows < M + M2:
        raise ValueError(
            f"num_inducing + num_orthogonal is {M + M2}, but there are only {rows} rows; use fewer inducing inputs."
        )
    return M, M2
