"""Parameters of which one number serves all outputs, or each output has its own."""

import numbers
from typing import Any

__all__ = ["check_by_output"]


def check_by_output(name: str, value: Any, outputs: int | None = None, /) -> None:
    """ValueError unless a parameter is one number, or there is one for each output; None, which starts later, passes.

    Without the number of outputs, any will do.
    """
    if value is None or isinstance(value, numbers.Real):
        return
    shape = (len(value),) if isinstance(value, (list, tuple)) else tuple(value.shape)
    if len(shape) > 1:
        msg = f"{name} has shape {shape}, but must be one number, or one for each output."
        raise ValueError(msg)
    if shape and outputs not in (None, shape[0]):
        msg = f"{name} has {shape[0]} entries, but there are {outputs} outputs; give one for each, or one for all."
        raise ValueError(msg)
