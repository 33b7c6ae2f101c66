"""Pullbacks of methods that return none, by the automatic differentiation of the array library."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from agp import tree
from agp.backend import Array, Backend, Pullback, collect_reports, find_backend, has_pullback


def value_of(result: Any) -> Any:
    """Return the value in the result of a method: a pair of the value and its pullback or None, or the value alone."""
    paired = type(result) is tuple and len(result) == 2 and (result[1] is None or callable(result[1]))
    return result[0] if paired else result


def derive_pullbacks(
    cls: type, inputs: dict[str, int], convert: Callable[[tuple[Any, ...], Any], Any] | None = None
) -> None:
    """Let methods of a class return no pullback; `inputs` gives the number of their differentiable arguments by name.

    `convert(args, bars)` is applied to the cotangents that a derived pullback returns. The classes of agp are not
    changed, because their methods return pullbacks.
    """
    if cls.__module__.partition(".")[0] != "agp":
        for name in inputs.keys() & vars(cls).keys():
            setattr(cls, name, _with_derived(vars(cls)[name], inputs[name], convert))


def _with_derived(f: Callable[..., Any], inputs: int, convert: Callable | None) -> Callable[..., Any]:
    @wraps(f)
    def evaluated(self: Any, *args: Any, **named: Any) -> tuple[Any, Pullback]:
        result = f(self, *args, **named)
        if has_pullback(result):
            return result
        pull = derived_pullback(f, self, args, named, inputs)
        return value_of(result), pull if convert is None else _apply_after(pull, convert, args)

    return evaluated


def _apply_after(pull: Pullback, convert: Callable[..., Any], args: tuple[Any, ...]) -> Pullback:
    return lambda *bars: convert(args, pull(*bars))


def derived_pullback(
    f: Callable[..., Any], part: Any, args: tuple[Any, ...], named: dict[str, Any], inputs: int
) -> Pullback:
    """Return the pullback of `f(part, *args, **named)` to the part and to the first `inputs` arguments.

    The pullback evaluates f again. It raises TypeError if the array library cannot differentiate. Leaves of a
    `tree.Part` that are not parameters are constants.
    """

    def pullback(*bars: Any) -> Any:
        own = tree.leaves(part, "parameter") if isinstance(part, tree.Part) else _arrays_in(part)
        given = (own, *(_arrays_in(x) for x in args[:inputs]))
        arrays = {f"{i}.{name}": x for i, group in enumerate(given) for name, x in group.items()}
        B = _differentiating(arrays, f, part, args)

        def total(arrays: dict[str, Array]) -> Array:
            here = [{name: arrays[f"{i}.{name}"] for name in group} for i, group in enumerate(given)]
            inside = [_with_arrays(x, new) for x, new in zip(args[:inputs], here[1:], strict=True)]
            value = value_of(f(tree.with_leaves(part, here[0]), *inside, *args[inputs:], **named))
            pairs = zip((value,) if len(bars) == 1 else value, bars, strict=True)
            zeros = sum(0.0 * B.xp.sum(x) for x in arrays.values())  # the value may depend on none of them
            return sum((_inner(B, *pair) for pair in pairs), zeros)

        with collect_reports():  # repairs were reported with the value
            slopes = B.value_and_grad(total, arrays)[1]
        found = [{name: slopes[f"{i}.{name}"] for name in group} for i, group in enumerate(given)]
        part_bar = _cotangent(part, found[0])
        if not inputs:
            return part_bar
        return part_bar, *(_cotangent(x, new) for x, new in zip(args[:inputs], found[1:], strict=True))

    return pullback


def _differentiating(arrays: dict[str, Array], f: Callable[..., Any], part: Any, args: tuple[Any, ...]) -> Backend:
    known = (find_backend(x) for x in (*arrays.values(), *args))
    B = next(found for found in known if found is not None)
    if "autodiff" not in B.gradients:
        where = f"{type(part).__name__}.{f.__name__}"
        raise TypeError(
            f"{where} returned no pullback, and {B.name} has no automatic differentiation; return a pullback, or "
            "convert the model and the data to an array library that has it, such as agp.to_backend(model, 'torch'), "
            "or pass backend='torch' to an estimator."
        )
    return B


def _arrays_in(x: Any) -> dict[str, Array]:
    """Return the floating-point arrays in an argument: an array, or a model or a tuple of arrays, by name."""
    if tree.is_model(x):
        inside = tree.leaves(x)
    else:
        inside = {str(i): y for i, y in enumerate(x)} if isinstance(x, tuple) else {"": x}
    return {name: y for name, y in inside.items() if _is_real(y)}


def _is_real(x: Any) -> bool:
    B = find_backend(x)
    return B is not None and bool(B.xp.isdtype(x.dtype, "real floating"))


def _with_arrays(x: Any, new: dict[str, Any]) -> Any:
    """Return an argument with other arrays in the places of `_arrays_in`."""
    if tree.is_model(x):
        return tree.with_leaves(x, new)
    if isinstance(x, tuple):
        return _like_tuple(x, [new.get(str(i), y) for i, y in enumerate(x)])
    return new.get("", x)


def _cotangent(x: Any, new: dict[str, Any]) -> Any:
    """Return the cotangent of an argument; the cotangents of other leaves are None."""
    if tree.is_model(x):
        return tree.with_leaves(x, {name: new.get(name) for name in tree.leaves(x)})
    if isinstance(x, tuple):
        return _like_tuple(x, [new.get(str(i)) for i in range(len(x))])
    return new.get("")


def _like_tuple(x: tuple[Any, ...], parts: list[Any]) -> Any:
    return tuple(parts) if type(x) is tuple else type(x)(*parts)


def _inner(B: Backend, value: Any, bar: Any) -> Any:
    """Return the sum of value * bar over all arrays of a value; None is a zero cotangent."""
    if bar is None:
        return 0.0
    if tree.is_model(value):
        leaves = tree.leaves(value)
        return sum(B.xp.sum(leaves[name] * x) for name, x in tree.leaves(bar).items())
    if isinstance(value, tuple):
        return sum(_inner(B, *pair) for pair in zip(value, bar, strict=True))
    return B.xp.sum(value * bar)
