"""Adapters to other libraries: `agp.interop.botorch`, for Bayesian optimisation with BoTorch.

Each module requires the library of the same name, and is imported on first use.
"""

import importlib
from typing import Any

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    if name == "botorch":
        return importlib.import_module("agp.interop.botorch")
    msg = f"module 'agp.interop' has no attribute {name!r}"
    raise AttributeError(msg)
