"""A posterior as users name it: a class, the name of one, or a function that makes one."""

from collections.abc import Callable
from typing import Any

from agp.backend import Array
from agp.posteriors._base import Posterior
from agp.posteriors._diagonal import DiagonalMarginal, DiagonalWhitened
from agp.posteriors._dual import Dual
from agp.posteriors._dual_inverse_free import DualInverseFree
from agp.posteriors._inverse_free import InverseFree
from agp.posteriors._likelihood import FullSiteLikelihoodForm, LikelihoodForm
from agp.posteriors._marginal import Marginal
from agp.posteriors._orthogonal import Orthogonal, PriorSpread
from agp.posteriors._relaxed import FullSiteRelaxed, Relaxed
from agp.posteriors._relaxed_orthogonal import RelaxedOrthogonal, RelaxedUnion
from agp.posteriors._whitened import Whitened

__all__ = ["posterior_named", "start_of"]

CLASSES = (
    DiagonalMarginal, DiagonalWhitened, Dual, DualInverseFree, FullSiteLikelihoodForm, FullSiteRelaxed, InverseFree,
    LikelihoodForm, Marginal, Orthogonal, PriorSpread, Relaxed, RelaxedOrthogonal, RelaxedUnion, Whitened,
)  # fmt: skip


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")


_BY_NAME: dict[str, type[Posterior]] = {_plain(cls.__name__): cls for cls in CLASSES}


def posterior_named(name: Any, /) -> Any:
    """The class of q(u) of that name, such as "whitened" or "likelihood-form"; anything but a string as it is.

    Raises
    ------
    ValueError
        If there is none (the known ones are listed).
    """
    if not isinstance(name, str):
        return name
    if _plain(name) not in _BY_NAME:
        known = ", ".join(sorted(cls.__name__ for cls in CLASSES))
        msg = f"unknown posterior {name!r}; known are {known}."
        raise ValueError(msg)
    return _BY_NAME[_plain(name)]


def start_of(posterior: Any, /) -> Callable[[Array, int], Any]:
    """The function of Kuu [M, M] and the number of outputs that gives the first q(u).

    Parameters
    ----------
    posterior
        A subclass of `Posterior`, the name of one, or such a function itself, as
        ``functools.partial(Relaxed.from_prior, preconditioned=False)``.

    Raises
    ------
    TypeError, ValueError
        If it is none of these.
    """
    found = posterior_named(posterior)
    if isinstance(found, type) and issubclass(found, Posterior):
        return found.from_prior
    if isinstance(found, type) or not callable(found):
        name = found.__name__ if isinstance(found, type) else repr(found)
        msg = f"posterior is {name}, but must be a class of q(u), its name, or a function of Kuu and the outputs."
        raise TypeError(msg)
    return found
