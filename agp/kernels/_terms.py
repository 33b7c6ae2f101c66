"""The terms of sums of kernels, and kernels as text."""

import dataclasses
import math
import numbers
from collections.abc import Sequence
from typing import Any

from agp.backend import to_numpy
from agp.kernels._active_dims import ActiveDims
from agp.kernels._base import Kernel
from agp.kernels._composites import Product, Scaled, Sum
from agp.kernels._constant import Constant, White
from agp.kernels._of_inputs import OfInputs
from agp.kernels._periodic import Seasonal, Winding
from agp.kernels._projected import Projected


def terms_of(kernel: Kernel, /) -> tuple[Kernel, ...]:
    """Return kernels whose sum is the kernel: the terms of a sum, also of a multiple of a sum or of its inputs.

    A product is a single term, also if one of its factors is a sum.
    """
    if isinstance(kernel, Sum):
        return tuple(term for part in kernel.parts for term in terms_of(part))
    if isinstance(kernel, (Scaled, OfInputs)):
        inner = terms_of(kernel.kernel)
        return (kernel,) if len(inner) == 1 else tuple(dataclasses.replace(kernel, kernel=term) for term in inner)
    return (kernel,)


def kernel_text(kernel: Kernel, columns: Sequence[str] = (), /) -> str:
    """Return a kernel as text, such as ``"seasonal(365.25) * rbf.on(month)"``.

    Multiples are left out. `columns` are the names of the D columns of the inputs, by default their numbers. Columns of
    the same name, such as a number and the mark of its missing cells, are listed once.
    """
    return _text(kernel, dict(enumerate(columns)), None)


def columns_of(kernel: Kernel, width: int, /) -> tuple[int, ...]:
    """Return the numbers of the columns of inputs with `width` columns on which a kernel acts, in increasing order."""
    return tuple(sorted(_columns(kernel, tuple(range(width)))))


def _text(kernel: Any, names: dict[int, Any], at: tuple[int, ...] | None) -> str:
    """Return the text of a kernel of the columns with the numbers `at`; None means all columns."""
    if isinstance(kernel, (Sum, Product)):
        parts = [_text(part, names, at) for part in kernel.parts]
        if isinstance(kernel, Sum):
            return " + ".join(parts)
        pairs = zip(kernel.parts, parts, strict=True)
        return " * ".join(f"({text})" if len(terms_of(part)) > 1 else text for part, text in pairs)
    if isinstance(kernel, ActiveDims):
        if kernel.columns == tuple(range(len(names))):  # all of them
            return _text(kernel.kernel, names, at)
        inner = kernel.columns if at is None else tuple(at[d] for d in kernel.columns)  # type: ignore[index]
        return _text(kernel.kernel, names, inner)  # type: ignore[arg-type]
    if isinstance(kernel, Scaled):
        return _text(kernel.kernel, names, at)
    kind = vars(type(kernel)).get("short_name", type(kernel).__name__.lower())
    inside = vars(kernel).get("kernel")
    if inside is not None:
        own = names if at is None else {i: names.get(d, d) for i, d in enumerate(at)}
        kind = f"{kind}({_text(inside, {} if isinstance(kernel, Projected) else own, None)})"
    if isinstance(kernel, Seasonal):
        kind += _period(kernel.period)
    if isinstance(kernel, Winding) and kernel.centred:
        kind = f"centred({kind})"
    if not at:
        return kind
    return f"{kind}.on({', '.join(dict.fromkeys(str(names.get(d, d)) for d in at))})"


def _period(period: Any) -> str:
    """Return a period in parentheses; nothing if it is unknown, or differs between columns."""
    if isinstance(period, numbers.Real):
        return f"({period:g})"
    if period is None or isinstance(period, Sequence) or math.prod(period.shape) != 1:
        return ""
    return f"({to_numpy(period).item():g})"


def _columns(kernel: Any, at: tuple[int, ...]) -> set[int]:
    if isinstance(kernel, (Sum, Product)):
        return set().union(*(_columns(part, at) for part in kernel.parts))
    if isinstance(kernel, ActiveDims):
        return _columns(kernel.kernel, tuple(at[d] for d in kernel.columns))  # type: ignore[index]
    if isinstance(kernel, Scaled):
        return _columns(kernel.kernel, at)
    return set() if isinstance(kernel, (Constant, White)) else set(at)
