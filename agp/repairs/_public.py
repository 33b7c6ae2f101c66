"""Settings during calls to public functions: device, precision, threads, ignored floating-point errors, repair reports.

`Backend.context` changes the settings of a library. For example, on most accelerators, JAX rounds the factors of
float32 products to three digits, which are too few for inverse matrices.
"""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial, wraps
from typing import Any, Literal, TypeVar, overload

import numpy as np

from agp import tree
from agp.backend import Array, Backend, backend_of_type, collect_reports, current_collector, find_backend, has_pullback
from agp.errors import check_call_of, explain_call, join_words
from agp.repairs._derived import derived_pullback, value_of
from agp.repairs._reports import Tally

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
    call: Callable[..., Any] = f

    @wraps(call)
    def run(*args: Any, **kwargs: Any) -> Any:
        reports, B, x = None, None, None
        with ExitStack() as settings:
            if repairs and current_collector() is None:
                reports = settings.enter_context(collect_reports())
            if context:
                B, x = _array_among(args, kwargs)
                if B is not None and B.needs_context:  # if there is no array, f usually raises an error
                    settings.enter_context(B.context(x))
            if ignore is not None:
                settings.enter_context(np.errstate(**_ignored_conditions(warnings=ignore == "warnings")))
            try:  # without `explain_call`, which would add a frame to each public function
                result = call(*args, **kwargs)
            except TypeError:
                check_call_of(call, args, kwargs)
                raise
        if reports:
            Tally(reports).tell()
        return _in_context(result, B, x)

    return run


def _ignored_conditions(*, warnings: bool) -> Any:
    """Return the arguments of `numpy.errstate` that ignore underflow and, if asked for, what NumPy would warn about."""
    warned = [kind for kind, how in np.geterr().items() if how == "warn"] if warnings else []
    return dict.fromkeys([*warned, "under"], "ignore")


def at_inputs(f: Callable[..., Any], start: str, /) -> Any:
    """Decorate a method that evaluates a kernel or a mean function at X and, optionally, returns the pullback.

    The method runs in the context of X, like a `public` function. The decorator converts leaves that are numbers to
    arrays with the library, dtype and device of X, and raises TypeError if a leaf has no value. Methods for automatic
    differentiation may return no pullback. The decorator then adds the pullback of `derived_pullback`. `start` is the
    call that sets initial values; the TypeError recommends it.
    """

    @wraps(f)
    def evaluated(self: Any, X: Array, *others: Any) -> Any:
        if not tree.holds_arrays(self):
            self = _with_arrays(self, X, start)
        B, x, result = backend_of_type(type(X)), X, None
        if B is None or B.is_lazy or B.needs_context:
            B, x = _array_among((X, *others), {})
        if B is None or not B.needs_context:
            result = f(self, X, *others)
        else:
            with B.context(x):
                result = f(self, X, *others)
        if not has_pullback(result):
            given = (X, *(x for x in others if x is not None))
            result = value_of(result), derived_pullback(f, self, given, {}, len(given))
        return _in_context(result, B, x)

    return evaluated


def on_instance(f: Callable[..., Any], base: type, call: str, /) -> Any:
    """Decorate the method `from_data` of parts, so that a call on the class raises TypeError. `call` is a valid one."""
    f = explain_call(f)

    @wraps(f)
    def checked(*args: Any, **named: Any) -> Any:
        if not args or not isinstance(args[0], base):
            raise TypeError(f"from_data is called on a class, but needs an instance; write {call}.")
        return f(*args, **named)

    return checked


def with_values(f: Callable[..., Any], start: str, inputs: int | None = None, /) -> Any:
    """Decorate a method of an array x, so that leaves that are numbers become arrays like x.

    The method raises TypeError if a leaf has no value. `start` is as for `at_inputs`. With `inputs`, the method returns
    a value and a pullback. If it returns no pullback, the decorator adds the one to the first `inputs` arguments.
    """

    @wraps(f)
    def evaluated(self: Any, x: Array, /, *others: Any, **named: Any) -> Any:
        self = self if tree.holds_arrays(self) else _with_arrays(self, x, start)
        result = f(self, x, *others, **named)
        if inputs is None or has_pullback(result):
            return result
        return value_of(result), derived_pullback(f, self, (x, *others), named, inputs)

    return evaluated


def _with_arrays(model: Any, X: Array, start: str) -> Any:
    """Convert leaves that are numbers to arrays like X; raise TypeError if a leaf has no value."""
    if absent := tree.missing(model):
        raise TypeError(
            f"{type(model).__name__} lacks values of {join_words(absent)}; give numbers when you construct it, or call "
            f"{start}, which chooses them."
        )
    return tree.place_leaves(model, X)


def _array_among(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Backend | None, Any]:
    """Find the first array that is not lazy among the arguments, and its backend."""
    for x in args:  # fast: the backend of most types is cached
        B = backend_of_type(type(x))
        if B is not None and not B.is_lazy:
            return B, x
    return _first_array((*args, *kwargs.values()))


def _in_context(result: Any, B: Backend | None, x: Array) -> Any:
    """Return the result of a function; a pullback in it runs in the context of the array x."""
    if B is None or not B.needs_context or not has_pullback(result):
        return result
    return result[0], _within(B, x, result[1])


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
        B = find_backend(x)
        if B is not None and not B.is_lazy:  # lazy rows are evaluated on the device of the leaves
            return B, x
    parts = (x if isinstance(x, tuple) else tree.leaves(x).values() for x in inside)
    return next((pair for part in parts if (pair := _first_array(part))[0] is not None), (None, None))
