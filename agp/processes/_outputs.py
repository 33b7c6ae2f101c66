"""Base classes for the shapes of inputs and outputs of processes and sample paths."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from agp.backend import Array
from agp.means import Projection


class MultiOutput(ABC):
    """P functions of inputs with D columns."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """The number of outputs P."""

    @property
    @abstractmethod
    def width(self) -> int:
        """The number of columns D of the inputs."""

    @property
    @abstractmethod
    def reference(self) -> tuple[str, Array]:
        """The name and value of an array whose library, dtype and device the inputs must share."""

    @property
    @abstractmethod
    def floats_per_row(self) -> int:
        """The number of floats that an evaluation and its pullback store per input row, for memory budgets."""


class InputsOf(MultiOutput):
    """A MultiOutput that takes the inputs of one of its fields."""

    takes_inputs_of: ClassVar[str]
    """The name of this field."""

    @property
    def width(self) -> int:
        return vars(self)[self.takes_inputs_of].width

    @property
    def reference(self) -> tuple[str, Array]:
        return vars(self)[self.takes_inputs_of].reference


class Alike(MultiOutput):
    """Several parts that have the same inputs and the same number of outputs as the whole."""

    parts: tuple[Any, ...]

    @property
    def outputs(self) -> int:
        return self.parts[0].outputs

    @property
    def width(self) -> int:
        return self.parts[0].width

    @property
    def reference(self) -> tuple[str, Array]:
        return self.parts[0].reference


class SideBySide(Alike):
    """Several parts that share their inputs and place their outputs side by side."""

    @property
    def outputs(self) -> int:
        return sum(part.outputs for part in self.parts)

    @property
    def floats_per_row(self) -> int:
        return sum(part.floats_per_row for part in self.parts)


class Chained(MultiOutput):
    """A sequence of layers. Each layer takes the outputs of the previous layer as inputs."""

    layers: tuple[Any, ...]

    @property
    def outputs(self) -> int:
        return self.layers[-1].outputs

    @property
    def width(self) -> int:
        return self.layers[0].width

    @property
    def reference(self) -> tuple[str, Array]:
        return self.layers[0].reference


class Mapped(MultiOutput):
    """The outputs of a fixed map."""

    mean_function: Projection

    @property
    def outputs(self) -> int:
        return self.mean_function.weights.shape[1]

    @property
    def width(self) -> int:
        return self.mean_function.weights.shape[0]

    @property
    def reference(self) -> tuple[str, Array]:
        return "mean_function.weights", self.mean_function.weights
