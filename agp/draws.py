"""Deprecated: the names of `agp.random` under the name that this module had in 0.2."""

import warnings
from typing import Any

from agp import random


def __getattr__(name: str) -> Any:
    if name not in random.__all__:
        msg = f"module 'agp.draws' has no attribute {name!r}"
        raise AttributeError(msg)
    warnings.warn(f"agp.draws goes with the next release; write agp.random.{name}.", DeprecationWarning, stacklevel=2)
    return vars(random)[name]
