"""Kernels described by text, such as "matern32 + seasonal(365.25) * rbf"."""

import re
from functools import reduce
from operator import add, mul
from typing import Any

from agp import kernels
from agp.checks import check_instance
from agp.errors import name_remedy
from agp.kernels._base import Kernel
from agp.kernels._centred import centre
from agp.kernels._linear import Linear

exported = (vars(kernels)[name] for name in kernels.__all__)
KERNELS: dict[str, type[Kernel]] = {
    x.short_name: x for x in exported if isinstance(x, type) and "short_name" in vars(x)
}
"""The exported kernels that have a short name."""
VALUE = r"(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
QUOTED = r"'[^']*'|\"[^\"]*\""
PART = re.compile(
    rf"""\s*(?P<kind>[^\s()*+.]+)\s*
    (?:\(\s*(?P<value>{VALUE})\s*\)\s*)?
    (?:\.\s*(?P<method>on|on_sphere)\s*\(\s*(?P<columns>(?:{QUOTED}|[^()'"])*)\)\s*)?
    (?P<operation>[+*)]|$)""",
    re.VERBOSE,
)
"""Matches a kernel with its lengthscale or period and its columns, such as "rbf(2.0).on(width, 'unit price') *"."""
OPEN = re.compile(r"\s*centred\s*\(")
"""Matches the beginning of a centred kernel."""
END = re.compile(
    rf"""\s*(?:\.\s*(?P<method>on|on_sphere)\s*\(\s*(?P<columns>(?:{QUOTED}|[^()'"])*)\)\s*)?
    (?P<operation>[+*)]|$)""",
    re.VERBOSE,
)
"""Matches what follows the parentheses of a centred kernel."""
KIND = re.compile(r"\w+")
"""Matches the name of a kernel."""
COLUMN = re.compile(r"'([^']*)'|\"([^\"]*)\"|([^,'\"]*[^,'\"\s][^,'\"]*)")
"""Matches the name of a column, which is in quotes if it contains commas, quotes or parentheses."""


def kernel_or_auto(kernel: Any) -> Any:
    """Return the kernel with this name; return "auto" and kernels unchanged. Raise TypeError for anything else."""
    if isinstance(kernel, str):
        return kernel if kernel == "auto" else parse_kernel(kernel, "auto")
    check_instance("kernel", kernel, Kernel, other="'auto', a text such as 'rbf*linear', or ")
    return kernel


def parse_kernel(name: str, *others: str) -> Kernel:
    """Return the kernel described by names joined by ``+`` and ``*``.

    A number in parentheses is the initial lengthscale, or the period, in the units of the inputs:
    ``"matern32(3000) + seasonal(365.25) * rbf"``. A part may act on some columns of a table:
    ``"rbf.on(width, height) + linear.on('unit price')"``, or on a longitude and a latitude in degrees:
    ``"matern32.on_sphere(longitude, latitude)"``. Centred kernels are written as ``"centred(seasonal(365.25)) * rbf"``.
    Linear functions vanish at the mean of the data (``Linear(at_mean=True)``). An unknown name raises a ValueError that
    lists the known names.
    """
    return _parse_sum(name, 0, others, inside=False)[0]


def _parse_sum(name: str, at: int, others: tuple[str, ...], *, inside: bool) -> tuple[Kernel, int]:
    """Return the sum that begins at a place of the text, and the place behind it.

    Inside parentheses, the sum ends with the closing one.
    """
    terms: list[list[Kernel]] = [[]]
    start, operation = at, "*"
    while operation in ("+", "*"):
        if operation == "+":
            terms.append([])
        kernel, operation, end = _parse_factor(name, at, others)
        if operation == ("" if inside else ")"):
            fault = (
                _message_of_unclosed(name[start:])
                if inside
                else _fault_behind(name[end - 1 :], name[at : end - 1].strip())
            )
            raise ValueError(f"the kernel {name!r} {fault}")
        terms[-1].append(kernel)
        at = end
    return reduce(add, [reduce(mul, term) for term in terms]), at


def _parse_factor(name: str, at: int, others: tuple[str, ...]) -> tuple[Kernel, str, int]:
    """Return the kernel that begins at a place of the text, the operation behind it, and the place behind both."""
    opening = OPEN.match(name, at)
    if opening is None:
        part = PART.match(name, at)
        if part is None:
            raise ValueError(f"the kernel {name!r} {_fault_at(name, at, others)}")
        return _single_kernel(part, name, others), part["operation"], part.end()
    inner, end = _parse_sum(name, opening.end(), others, inside=True)
    rest = END.match(name, end)
    if rest is None:
        raise ValueError(f"the kernel {name!r} {_fault_behind(name[end:].strip(), name[at:end].strip())}")
    return _on_columns(centre(inner), rest), rest["operation"], rest.end()


def _single_kernel(part: re.Match[str], name: str, others: tuple[str, ...]) -> Kernel:
    """Return the kernel of a part, such as ``rbf(2.0).on(width)``."""
    kind, value = part["kind"], part["value"]
    head = KIND.match(kind)
    if head is not None and head[0] in KERNELS and head[0] != kind:  # such as rbf-linear
        raise ValueError(f"the kernel {name!r} {_fault_at(name, part.start('kind'), others)}")
    if kind not in KERNELS:
        raise ValueError(_unknown_kernel_message(kind, name, others))
    kernel = Linear(at_mean=True) if KERNELS[kind] is Linear else KERNELS[kind]()
    if value is not None:
        takes = _number_of(kind)
        if takes is None:
            raise ValueError(f"the kernel {name!r} has the number {value} after {kind!r}; {_remedy_for_number(kind)}")
        kernel = KERNELS[kind](**{takes: float(value)})
    return _on_columns(kernel, part)


def _on_columns(kernel: Kernel, part: re.Match[str]) -> Kernel:
    if part["columns"] is None:
        return kernel
    columns = [x for found in COLUMN.finditer(part["columns"]) for x in found.groups() if x is not None]
    select = kernel.on_sphere if part["method"] == "on_sphere" else kernel.on
    return select(tuple(map(str.strip, columns)))


def _number_of(kind: str) -> str | None:
    """Return the name of the parameter that the number in parentheses sets, or None if the kernel takes no number."""
    return next((field for field in ("period", "lengthscale") if field in vars(KERNELS[kind]())), None)


def _remedy_for_number(kind: str) -> str:
    takes = _number_of(kind)
    if takes is not None:
        return f"write one positive number there, the {takes}, as in '{kind}(2.0)'."
    numbers = ", ".join(one for one in KERNELS if _number_of(one))
    return f"leave out the parentheses, because only {numbers} take a number."


def _unknown_kernel_message(kind: str, name: str, others: tuple[str, ...]) -> str:
    where = f" in {name!r}" if kind != name else ""
    if kind == "centred":
        return f"{kind!r}{where} centres another kernel; write a kernel in parentheses, as in 'centred(rbf)'."
    if kind == "additive":
        each = "'constant + centred(rbf).on(width) + centred(rbf).on(height)'"
        return f"the text of an additive kernel{where} names its columns; write {each}, or use agp.kernels.additive."
    if kind in others:
        return f"the kernel {name!r} combines {kind!r} with other kernels; write {kind!r} alone, or leave it out."
    if re.fullmatch(r"[\d.,]+", kind):
        remedy = "leave the number out, because variances are learned"
        return f"the kernel {name!r} has the number {kind} where a kernel should be; {remedy}."
    remedy = name_remedy(kind, [*others, *KERNELS])
    also = "" if remedy.endswith("?") else ", or sums and products such as rbf*linear+white."
    return f"unknown kernel {kind!r}{where}; {remedy.removesuffix('.') if also else remedy}{also}"


def _fault_at(name: str, at: int, others: tuple[str, ...]) -> str:
    """Describe what is wrong with the text of a kernel, of which the part that begins at `at` is not valid."""
    before, rest = name[:at].strip(), name[at:].strip()
    if not rest:
        wrong = f"ends with {before[-1]!r}" if before else "is an empty text"
        return f"{wrong}; write the name of a kernel there, as in 'rbf*linear + white'."
    if rest[0] in "+*":
        place = f"after {before[-1]!r}" if before else "at its beginning"
        return f"has {rest[0]!r} {place}, where a kernel should be; leave it out, or write a kernel before it."
    if rest[0] == "(":
        return "has parentheses around kernels; write out the products, as in 'rbf*white + linear*white'."
    found = KIND.match(rest)
    kind, tail = (found[0], rest[found.end() :].strip()) if found else (rest, "")
    if kind not in KERNELS:
        return f"has {rest!r} where a kernel should be; {_unknown_kernel_message(kind, name, others)}"
    inner, end, after = tail[1:].partition(")")
    if tail.startswith("(") and not (end and re.fullmatch(VALUE, inner.strip())):
        held = repr(inner.strip()) if inner.strip() else "nothing"
        left_open = "" if end else ", which are not closed"
        return f"has {held} in parentheses after {kind!r}{left_open}; {_remedy_for_number(kind)}"
    return _fault_behind(after.strip() if tail.startswith("(") else tail, kind)


def _fault_behind(tail: str, kind: str) -> str:
    """Describe what is wrong with the text behind a kernel."""
    if tail.startswith("."):
        return f"has {tail!r} after {kind!r}; columns are written as in '{kind}.on(width, height)'."
    return f"has {tail!r} after {kind!r}; join kernels by + or *, as in 'rbf*linear + white'."


def _message_of_unclosed(rest: str) -> str:
    return f"has parentheses after 'centred' that are not closed; write ')' behind {rest.strip()!r}."
