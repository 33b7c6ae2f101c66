"""Settings during calls to public functions: device, precision, threads, ignored floating-point errors, repair reports.

`Backend.context` changes the settings of a library. For example, on most accelerators, JAX rounds the factors of
float32 products to three digits, which are too few for inverse matrices.
"""

from collections.abc import Callable, Iterable
from functools import partial, wraps
from typing import Any, Literal, TypeVar, overload

import numpy as np

from agp import tree
from agp.backend import Array, Backend, backend_of, backend_of_type, collect_reports, current_collector
from agp.repairs import Tally

F = TypeVar("F", bound=Callable[..., Any])
Ignored = Literal["warnings", "underflow"] | None


@overload
def public(f: F, /, *, repairs: bool = ..., context: bool = ..., ignore: Ignored = ...) -> F: ...
@overload
def public(*, repairs: bool = ..., context: bool = ..., ignore: Ignored = ...) -> Callable[[F], F]: ...
def public(
    f: Any = None, /, *, repairs: bool = True, context: bool = True, ignore: Ignored = "warnings"
) -> Callable[..., Any]:
    """Decorate a public function, so that it runs with the settings that its arrays require.

    Parameters
    ----------
    f
        The function.
    repairs
        Issue one warning for all numerical repairs in f, unless a `collect_reports` block collects them.
    context
        Run f in the `Backend.context` of its first array that is not lazy. Arrays nested in tuples or models are
        considered last. If f returns a value and a pullback, the pullback runs in the same context.
    ignore
        The floating-point conditions that NumPy ignores. "underflow" ignores only underflow, even after
        ``np.seterr(under="raise")``, because covariances of distant rows may be zero. "warnings" also ignores all
        conditions for which NumPy would issue a warning; use this value for functions that check their results. With
        None, no conditions are ignored.
    """
    if f is None:
        return partial(public, repairs=repairs, context=context, ignore=ignore)
    if ignore is not None:
        f = _ignoring(f, warnings=ignore == "warnings")
    if context:
        f = _in_context(f)
    return _warning_once(f) if repairs else f


def _warning_once(f: F) -> F:
    @wraps(f)
    def run(*args: Any, **kwargs: Any) -> Any:
        if current_collector() is not None:
            return f(*args, **kwargs)
        with collect_reports() as reports:
            out = f(*args, **kwargs)
        Tally(reports).tell()
        return out

    return run  # type: ignore[return-value]


def _ignoring(f: F, *, warnings: bool) -> F:
    @wraps(f)
    def run(*args: Any, **kwargs: Any) -> Any:
        ignored: Any = {kind: "ignore" for kind, how in np.geterr().items() if how == "warn"} if warnings else {}
        with np.errstate(**ignored | {"under": "ignore"}):
            return f(*args, **kwargs)

    return run  # type: ignore[return-value]


def _in_context(f: F) -> F:
    @wraps(f)
    def run(*args: Any, **kwargs: Any) -> Any:
        for x in args:  # fast: the backend of most types is cached
            B = backend_of_type(type(x))
            if B is not None and not B.is_lazy:
                break
        else:
            B, x = _first_array((*args, *kwargs.values()))
        if B is None or not B.needs_context:  # if there is no array, f usually raises an error
            return f(*args, **kwargs)
        with B.context(x):
            found = f(*args, **kwargs)
        if type(found) is tuple and len(found) == 2 and callable(found[1]):
            return found[0], _within(B, x, found[1])
        return found

    return run  # type: ignore[return-value]


def _within(B: Backend, x: Array, pullback: Callable) -> Callable:
    def run(*args: Any, **kwargs: Any) -> Any:
        with B.context(x):
            return pullback(*args, **kwargs)

    return run


def _first_array(arguments: Iterable[Any]) -> tuple[Backend | None, Array]:
    """Find the first array that is not lazy, and its backend. Arrays nested in tuples or models come last."""
    inside = []
    for x in arguments:
        if x is None or isinstance(x, (type, str, bool, int, list, dict)):
            continue
        if isinstance(x, tuple) or tree.is_model_class(type(x)):
            inside.append(x)
            continue
        try:
            B = backend_of(x)
        except TypeError:
            continue
        if not B.is_lazy:  # lazy rows are evaluated on the device of the leaves
            return B, x
    parts = (x if isinstance(x, tuple) else tree.leaves(x).values() for x in inside)
    return next((found for part in parts if (found := _first_array(part))[0] is not None), (None, None))
