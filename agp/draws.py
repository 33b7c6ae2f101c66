"""Deprecated: the name of `agp.random` in version 0.2."""

import warnings
from typing import Any

from agp import random

NAMES = {name: name for name in random.__all__} | {
    "below": "draws_with_prefix",
    "under": "prefix_draws",
    "union": "merge_draws",
}


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        msg = f"module 'agp.draws' has no attribute {name!r}"
        raise AttributeError(msg)
    msg = f"agp.draws.{name} is now agp.random.{NAMES[name]}; agp.draws will be removed in the next minor release."
    warnings.warn(msg, DeprecationWarning, stacklevel=2)
    return vars(random)[NAMES[name]]
