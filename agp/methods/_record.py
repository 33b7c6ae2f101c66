"""The record of a method: its model, how the model is built, and what the method takes."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agp.errors import name_remedy
from agp.models import Model
from agp.updates import Update

OPTIONS = ("num_inducing", "seed", "num_orthogonal", "storage", "num_actions", "support", "layers", "outputs")
"""The arguments that only some methods take."""
OUTPUTS = ("shared", "separate", "coregionalised", "intrinsic")
"""The values of `outputs`, which determines the components that several outputs share."""
LAYERS = 2
"""The default number of layers."""
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method: a class of models, how a model is built, and what the method takes.

    Parameters
    ----------
    name
        The short name, in lower-case letters, digits and hyphens.
    description
        A few words, which `agp methods` and the documentation show.
    model
        The class of the models.
    build
        The function ``build(X, y, *, kernel, likelihood, mean_function, weights, offset, noise, ...)`` that returns an
        untrained model; by default, the method `from_data` of `model`.
    takes
        The further arguments of `build`: "num_inducing" and "seed" for inducing inputs, "num_orthogonal" for a second
        group of them, "storage" for the way to store sites, "num_actions" and "support" for actions, "layers",
        and "outputs" as in `agp.SVGP.from_data`.
    gaussian_only
        Whether the Gaussian likelihood is the only one.
    can_grow
        Whether `agp.fit_growing` can choose the number of inducing inputs.
    all_rows
        The estimators use all distinct rows as inducing inputs by default if there are at most this many rows and
        `agp.fit` solves for q(u) (`agp.updates.OptimalPosterior`).
    min_orthogonal
        The smallest number of inducing inputs in the second group.
    storages
        The values of the argument `storage`, the default first.
    dense_arrays
        The number of N x N arrays that training holds in memory, and of further such arrays per latent function.
    updates
        A function like `agp.recipe`, which returns the updates that train the model; by default `agp.recipe` itself.
    parts
        Classes of your own that the models contain, besides `model`, so that `agp.load` knows them.
    page
        The page of the documentation, without an ending, such as "methods/svgp".

    Raises
    ------
    ValueError
        If `name` has other characters, or `takes` has an unknown argument.
    """

    name: str
    description: str
    model: type[Any]
    build: Callable[..., Model] | None = None
    takes: tuple[str, ...] = ()
    gaussian_only: bool = False
    can_grow: bool = False
    all_rows: int = 0
    min_orthogonal: int = 0
    storages: tuple[str, ...] = ()
    dense_arrays: tuple[int, int] = (0, 0)
    updates: Callable[..., list[Update]] | None = None
    parts: tuple[type[Any], ...] = ()
    page: str = ""

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name) or self.name == "auto":
            raise ValueError(
                f"name is {self.name!r}, but must be lower-case letters, digits and hyphens, such as 'deep-wsvgp'."
            )
        if unknown := [name for name in self.takes if name not in OPTIONS]:
            raise ValueError(
                f"takes of the method {self.name} contains {unknown[0]!r}; {name_remedy(unknown[0], OPTIONS)}"
            )

    def summary(self) -> tuple[str, str, str, str, str]:
        """Return the name, the description, the rows per step, the likelihoods, and the further arguments as text."""
        rows = "all" if self.uses_all_rows else "minibatch"
        likelihoods = "gaussian" if self.gaussian_only else "any"
        arguments = [name for name in self.takes if name != "seed"]
        return self.name, self.description, rows, likelihoods, ", ".join(arguments)

    @property
    def uses_all_rows(self) -> bool:
        """Whether each step uses all rows. Models with actions do so only if their support is all rows."""
        return self.model.stochastic is False

    @property
    def takes_parts(self) -> bool:
        """Whether `partial_fit` can train the model, which must not store anything per row."""
        return not (self.uses_all_rows or self.model._holds_data)
