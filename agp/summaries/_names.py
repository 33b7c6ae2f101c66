"""The columns of a table that the kernels of a model see."""

from typing import Any

from agp import tree
from agp.kernels import ActiveDims, Kernel
from agp.processes import Deep

__all__ = ["columns_seen"]


def columns_seen(model: Any, columns: tuple[str, ...], /) -> dict[str, tuple[str, ...]]:
    """The columns that each kernel sees, by its path; those of inner layers see none."""
    inner = [
        f"{tree.joined(path, 'layers', str(i))}."
        for path, deep in tree.nodes(model, Deep).items()
        for i in range(1, len(deep.layers))
    ]
    found, narrowed = {}, {"": columns}
    for path, kernel in tree.nodes(model, Kernel).items():
        if path.startswith(tuple(inner)):
            continue
        found[path] = narrowed[max((above for above in narrowed if _is_below(path, above)), key=len)]
        if isinstance(kernel, ActiveDims):
            named = dict(enumerate(found[path]))
            narrowed[tree.joined(path, "kernel")] = tuple(named[i] for i in kernel.columns if i in named)
    return found


def _is_below(path: str, above: str) -> bool:
    return not above or path == above or path.startswith(f"{above}.")
