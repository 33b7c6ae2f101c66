"""Names of models that the documentation of 0.2 told users to call, with what to write instead."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from agp.models._growth import grown
from agp.repairs import outside

__all__ = ["FormerNames"]

FORMER: dict[str, tuple[Callable[[Any], Any], str]] = {
    "batch": (lambda model: model._batch, "agp.batch.Batch(X, y), or model.bound(X, y)"),
    "draws": (lambda model: model._draws, "agp.train, which draws"),
    "grown": (lambda model: partial(grown, model), "agp.models.grown(model, Z)"),
    "objective": (lambda model: model._objective, 'model.bound(X, y, gradient="autodiff")'),
    "without_rows": (lambda model: model._without_rows, "model.predictor()"),
}


class FormerNames:
    """What has them: they are found, but not listed, and warn."""

    def _absent(self, name: str) -> str:
        """What to say of a name that there is not."""
        return f"{type(self).__name__!r} object has no attribute {name!r}"

    if not TYPE_CHECKING:  # types are told of no such names

        def __getattr__(self, name: str) -> Any:
            if name not in FORMER:
                raise AttributeError(self._absent(name), name=name, obj=self)
            found, instead = FORMER[name]
            msg = f"model.{name} is no longer public; write {instead}."
            warnings.warn(msg, DeprecationWarning, stacklevel=outside())
            return found(self)
