"""The same four names on every model of one process: kernel, inducing variables, q(u) and mean function.

Models that have them as fields need nothing; the others find here those of their process, or None.
"""

from typing import ClassVar

from agp import tree
from agp.inducing import Inducing
from agp.kernels import Kernel
from agp.means import Mean
from agp.models._base import Model
from agp.posteriors import Posterior
from agp.processes import Mixed, Process, Sparse

__all__ = ["OfOneProcess", "WithoutInducing", "WithoutPosterior"]

NAMES = ("kernel", "inducing", "posterior", "mean_function")


class WithoutInducing:
    """An exact model, or one of actions."""

    inducing: ClassVar[None] = None
    """None: it has no inducing variables."""


class WithoutPosterior:
    """A model whose q follows from what it holds."""

    posterior: ClassVar[None] = None
    """None: the posterior follows from the data, or from their sites; ``model.predictor()`` has it."""


class OfOneProcess(Model):
    """A model made of a process, which has the four where they are the only ones of their kind in it."""

    process: Process

    @property
    def kernel(self) -> Kernel:
        """That of the process, or of what a `Mixed` one mixes. AttributeError where there are several."""
        return self._only("kernel").kernel

    @property
    def inducing(self) -> Inducing:
        """That of the process, likewise."""
        return self._only("inducing").inducing

    @property
    def posterior(self) -> Posterior:
        """That of the process, likewise."""
        return self._only("posterior").posterior

    @property
    def mean_function(self) -> Mean:
        """That of the process, or of the mixture. AttributeError where there are several."""
        own = self.process
        return own.mean_function if isinstance(own, Mixed) else self._only("mean_function").mean_function

    def _only(self, name: str) -> Sparse:
        """The one sparse process that there is."""
        found = tree.nodes(self.process, Sparse)
        if len(found) != 1:
            raise AttributeError(self._absent(name), name=name, obj=self)
        return next(iter(found.values()))

    def _absent(self, name: str) -> str:
        if name not in NAMES:
            return super()._absent(name)
        what = type(self).__name__
        paths = list(tree.nodes(self, Sparse))
        if not paths:
            return f"{what} has no {name}: see model.process, which is a {type(self.process).__name__}."
        first = "".join(f"[{key}]" if key.isdigit() else f".{key}" for key in paths[0].split("."))
        return f"{what} has {len(paths)} processes, each with its own {name}; see model{first}.{name} and so on."
