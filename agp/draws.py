"""Deprecated: the name of `agp.random` in version 0.2."""

from agp import random
from agp._deprecated import former_names

NAMES = {name: f"agp.random.{name}" for name in random.__all__} | {
    "below": "agp.random.draws_with_prefix",
    "under": "agp.random.prefix_draws",
    "union": "agp.random.merge_draws",
}

__getattr__ = former_names(__name__, **NAMES)
