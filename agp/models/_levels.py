"""Probabilities of classes that have an order."""

from typing import Any

from agp.backend import Array, backend_of, like

__all__ = ["level_probabilities"]


def level_probabilities(model: Any, X: Array, /) -> Array:
    """The probabilities [N, K] of the classes 0 to K - 1 at X [N, D], by a model or predictor with `Ordinal`.

    Those of a sampled process are averages over its samples. Takes a pass over X for each class; errors as
    `agp.models.Model.log_density`.
    """
    xp = backend_of(X).xp
    levels = [xp.full((X.shape[0], 1), float(k), **like(X)) for k in range(model.likelihood.classes)]
    return xp.exp(xp.stack([model.log_density(X, level) for level in levels], axis=1))
