"""Checks for your own kernels, likelihoods and so on: gradients against differences and automatic differentiation."""

from agp.testing._pullbacks import check_pullback

__all__ = ["check_pullback"]
