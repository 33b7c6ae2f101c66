"""Gradient checks for your own kernels, likelihoods and other parts of models."""

from agp.testing._pullbacks import check_pullback

__all__ = ["check_pullback"]
