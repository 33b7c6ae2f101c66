"""Random inputs at which `check_pullback` checks a part: with as many columns as it takes, and codes for categories."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from agp import tree
from agp.backend import Array, asarray_like, backend_of
from agp.inducing import Inducing
from agp.kernels import ActiveDims, Kernel
from agp.means import Mean
from agp.processes import Process

ROWS, WIDTH, MAX_WIDTH = 8, 2, 32
LEVELS = 3
"""The number of levels of a category for which the kernel gives none."""


def number_names(kernel: Kernel, /) -> Kernel:
    """Replace the names of columns in the parts `ActiveDims` of a kernel by numbers, in the order of their occurrence.

    Columns with names stand after those with numbers.
    """
    parts = dict(sorted(tree.nodes(kernel, ActiveDims).items(), key=lambda item: len(item[0])))
    outer = {path: _enclosing(path, parts) for path in parts}
    outermost = [column for path, part in parts.items() if outer[path] is None for column in part.columns]
    first = 1 + max((column for column in outermost if isinstance(column, int)), default=-1)
    names = dict.fromkeys(column for column in outermost if isinstance(column, str))
    known: dict[str | None, dict[Any, int]] = {None: {name: first + i for i, name in enumerate(names)}}
    known |= {path: {column: i for i, column in enumerate(part.columns)} for path, part in parts.items()}
    for path in sorted(parts, key=len, reverse=True):  # inner parts first
        columns = parts[path].columns
        if any(isinstance(column, str) for column in columns):
            numbers = tuple(known[outer[path]].get(x, x) if isinstance(x, str) else x for x in columns)
            new = replace(tree.nodes(kernel, ActiveDims)[path], columns=numbers)
            kernel = tree.replace(kernel, {path: new}) if path else new
    return kernel


def _enclosing(path: str, parts: Iterable[str]) -> str | None:
    """Return the longest path of a part that contains the part at another path."""
    outer = [at for at in parts if at != path and (not at or path.startswith(f"{at}."))]
    return max(outer, key=len, default=None)


def draw_inputs(part: Any, kernel: Kernel | None, width: int | None, outputs: int, rng: np.random.Generator) -> Any:
    """Draw inputs [8, width]. If `width` is None, it is the number of columns that the part takes, 2 if possible."""
    judge = kernel if isinstance(part, Inducing) and kernel is not None else part
    if width is not None:
        return _with_codes(judge, rng.standard_normal((ROWS, width)), rng)
    if isinstance(part, Process):
        return rng.standard_normal((ROWS, part.width))
    first = None
    for count in (WIDTH, 1, *range(WIDTH + 1, MAX_WIDTH + 1)):
        try:
            X = _with_codes(judge, rng.standard_normal((ROWS, count)), rng)
            _check_width(judge, X, outputs)
        except ValueError as error:
            first = error if first is None else first
        else:
            return X
    assert first is not None
    raise first


def _check_width(part: Any, X: Array, outputs: int) -> None:
    """Raise ValueError unless a kernel or a mean function takes these inputs."""
    if isinstance(part, Kernel):
        tree.place_leaves(part.from_data(X, 1.0), X).check(X.shape[1])
    elif isinstance(part, Mean):
        tree.place_leaves(part.from_data(X, np.ones(outputs), 1.0), X).check(X.shape[1], outputs)


def _with_codes(part: Any, X: Any, rng: np.random.Generator) -> Any:
    """Replace the columns of categories by codes of up to three levels and of an unknown one, -1, which all repeat."""
    if isinstance(part, Kernel):
        tags = {X.shape[1] - 1} if part.reads_tags else set()
        for column, levels in part.category_levels(X.shape[1]).items():
            if column < X.shape[1]:
                some = rng.permutation(levels or LEVELS)[:LEVELS]
                codes = some if column in tags else np.concat([[-1], some])
                X[:, column] = rng.permutation(np.resize(codes, X.shape[0]))
    return X


class Columns:
    """The columns of inputs [N, D] that are numbers; the columns of codes are constant."""

    def __init__(self, kernel: Kernel, width: int) -> None:
        self.coded = set(kernel.category_levels(width)) & set(range(width))
        self.numbers = [d for d in range(width) if d not in self.coded]

    def take(self, X: Array) -> Array:
        """Return the columns of numbers of inputs, or of a cotangent of inputs."""
        xp = backend_of(X).xp
        return X if not self.coded else xp.stack([X[:, d] for d in self.numbers], axis=1)

    def join(self, given: Any, numbers: Array) -> Array:
        """Return the inputs with these columns of numbers, and the columns of codes of the given host array."""
        if not self.coded:
            return numbers
        columns = {d: numbers[:, i] for i, d in enumerate(self.numbers)}
        columns |= {d: asarray_like(given[:, d], numbers) for d in self.coded}
        return backend_of(numbers).xp.stack([columns[d] for d in range(given.shape[1])], axis=1)
