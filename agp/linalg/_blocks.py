"""Matrices whose rows and columns come in consecutive groups."""

from collections.abc import Sequence

from agp.backend import Array, backend_of, like

__all__ = ["block_diagonal", "groups_of"]


def groups_of(sizes: Sequence[int]) -> list[slice]:
    """The rows of each group, for groups of these sizes."""
    stops = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [slice(stop - size, stop) for stop, size in zip(stops, sizes, strict=True)]


def block_diagonal(
    blocks: Sequence[Array | None], sizes: Sequence[int], columns: Sequence[int] | None = None
) -> Array | None:
    """The matrix with these blocks on its diagonal and zeros elsewhere; None is a zero block, or all zero.

    Block i has `sizes[i]` rows, and as many columns, or `columns[i]`.
    """
    there = next((block for block in blocks if block is not None), None)
    if there is None:
        return None
    xp = backend_of(there).xp
    rows = []
    for i, block in enumerate(blocks):
        cells = [xp.zeros((sizes[i], width), **like(there)) for width in columns or sizes]
        cells[i] = cells[i] if block is None else block
        rows.append(xp.concat(cells, axis=1))
    return xp.concat(rows, axis=0)
