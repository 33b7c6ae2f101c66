"""Adapters to other libraries.

`agp.interop.botorch` is for Bayesian optimisation with BoTorch, and `agp.interop.torch` for models inside torch
modules. `agp.interop.autogluon` and `agp.interop.scoringbench` enter agp on the public boards TabArena and
ScoringBench. Each module requires the library of the same name, and is imported on first use.
"""

import importlib
from typing import Any

__all__: list[str] = []


def __getattr__(name: str) -> Any:
    if name in ("autogluon", "botorch", "scoringbench", "torch"):
        return importlib.import_module(f"agp.interop.{name}")
    raise AttributeError(f"module 'agp.interop' has no attribute {name!r}")
