"""Checks for what you write yourself: closed forms against differences and against automatic differentiation."""

from agp.testing._pullbacks import check_pullback

__all__ = ["check_pullback"]
