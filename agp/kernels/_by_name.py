"""Kernels described by text, such as "matern32 + seasonal(365.25) * rbf"."""

import re
from functools import reduce
from operator import add, mul
from typing import Any

from agp import kernels
from agp.kernels._base import Kernel

exported = (vars(kernels)[name] for name in kernels.__all__)
KERNELS: dict[str, type[Kernel]] = {
    x.short_name: x for x in exported if isinstance(x, type) and "short_name" in vars(x)
}
"""The exported kernels that have a short name."""
QUOTED = r"'[^']*'|\"[^\"]*\""
PART = re.compile(
    rf"""\s*(?P<kind>[^\s()*+.]+)\s*
    (?:\(\s*(?P<value>\d+\.?\d*(?:e[-+]?\d+)?|\.\d+(?:e[-+]?\d+)?)\s*\)\s*)?
    (?:\.\s*on\s*\(\s*(?P<columns>(?:{QUOTED}|[^()'"])*)\)\s*)?
    (?P<operation>[+*]|$)""",
    re.VERBOSE,
)
"""Matches a kernel with its lengthscale or period and its columns, such as "rbf(2.0).on(width, 'unit price') *"."""
COLUMN = re.compile(r"'([^']*)'|\"([^\"]*)\"|([^,'\"]*[^,'\"\s][^,'\"]*)")
"""Matches the name of a column, which is in quotes if it contains commas, quotes or parentheses."""


def kernel_or_auto(kernel: Any) -> Any:
    """Return the kernel with this name; return "auto" and kernels unchanged."""
    return parse_kernel(kernel, "auto") if isinstance(kernel, str) and kernel != "auto" else kernel


def parse_kernel(name: str, *others: str) -> Kernel:
    """Return the kernel described by names joined by ``+`` and ``*``.

    A number in parentheses is the initial lengthscale, or the period, in the units of the inputs:
    ``"matern32(3000) + seasonal(365.25) * rbf"``. A part may act on some columns of a table:
    ``"rbf.on(width, height) + linear.on('unit price')"``. An unknown name raises a ValueError that lists the known
    names.
    """
    terms: list[list[Kernel]] = [[]]
    at, operation = 0, "*"
    while operation:
        part = PART.match(name, at)
        if part is None:
            rest = repr(name[at:].strip()) if name[at:].strip() else "nothing"
            raise ValueError(
                f"the kernel {name!r} has {rest} where a kernel should be; write it as in 'rbf*linear + white'."
            )
        if operation == "+":
            terms.append([])
        terms[-1].append(_single_kernel(part, name, others))
        at, operation = part.end(), part["operation"]
    return reduce(add, [reduce(mul, term) for term in terms])


def _single_kernel(part: re.Match[str], name: str, others: tuple[str, ...]) -> Kernel:
    """Return the kernel of a part, such as ``rbf(2.0).on(width)``."""
    kind, value = part["kind"], part["value"]
    if kind not in KERNELS:
        where = f" in {name!r}" if kind != name else ""
        known = ", ".join((*others, *KERNELS))
        raise ValueError(
            f"unknown kernel {kind!r}{where}; choose from {known}, or sums and products such as rbf*linear+white."
        )
    kernel = KERNELS[kind]()
    if value is not None:
        takes = next((field for field in ("period", "lengthscale") if field in vars(kernel)), None)
        if takes is None:
            raise ValueError(f"the kernel {kind!r} in {name!r} takes no number; leave the number out.")
        kernel = KERNELS[kind](**{takes: float(value)})
    if part["columns"] is None:
        return kernel
    columns = [x for found in COLUMN.finditer(part["columns"]) for x in found.groups() if x is not None]
    return kernel.on(tuple(map(str.strip, columns)))
