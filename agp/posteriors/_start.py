"""Conversion of the argument `posterior`, which is a class, the name of a class, or a function that builds q(u)."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from agp.backend import Array
from agp.errors import unknown_name_message
from agp.posteriors._base import Posterior


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")


@cache
def _public_classes() -> dict[str, type[Posterior]]:
    """Return the exported concrete classes without data, keyed by name in lower case without separators."""
    from agp import posteriors

    exported = (vars(posteriors)[name] for name in posteriors.__all__)
    classes = (cls for cls in exported if issubclass(cls, Posterior) and not inspect.isabstract(cls))
    classes = (cls for cls in classes if not cls.holds_data)
    return {_plain(cls.__name__): cls for cls in classes}


def find_posterior(name: Any, /) -> Any:
    """Return the posterior class with this name, such as "whitened" or "likelihood-form".

    Arguments that are not strings are returned unchanged. Raise ValueError if no class has this name.
    """
    if not isinstance(name, str):
        return name
    if _plain(name) not in _public_classes():
        known = sorted(cls.__name__ for cls in _public_classes().values())
        raise ValueError(unknown_name_message("posterior", name, known))
    return _public_classes()[_plain(name)]


def start_of(posterior: Any, /) -> Callable[[Array, int], Any]:
    """Return a function that makes the initial q(u) from Kuu [M, M] and the number of outputs.

    `posterior` is a subclass of `Posterior`, its name, or a function such as ``functools.partial(Relaxed.from_prior,
    preconditioned=False)``. Raise TypeError for any other type, and ValueError if no class has this name.
    """
    found = find_posterior(posterior)
    if isinstance(found, type) and issubclass(found, Posterior):
        return found.from_prior
    if isinstance(found, type) or not callable(found):
        name = found.__name__ if isinstance(found, type) else repr(found)
        raise TypeError(
            f"posterior is {name}, but must be a subclass of Posterior, the name of a subclass, or a function of Kuu "
            "and the number of outputs."
        )
    return found
