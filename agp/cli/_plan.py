"""What a comparison consists of: settings, and one task for each row of its table."""

from dataclasses import asdict, dataclass
from typing import Any

from agp.cli._likelihoods import takes_own_unit
from agp.data import Dataset, TaskName, load

__all__ = ["Settings", "Task"]


@dataclass(frozen=True)
class Settings:
    """What all rows share."""

    data: str
    target: str | None
    split: int
    task: TaskName
    likelihood: str
    kernel: str
    num_inducing: int
    batch_size: int
    iterations: int
    rate: float
    seed: int
    device: str
    num_orthogonal: int | None = None
    storage: str | None = None
    num_actions: int | None = None
    support: int | None = None
    fall: float = 0.1
    q_steps: str = "natural"
    mean: str = "constant"
    layers: int | None = None

    def json(self) -> dict[str, Any]:
        """For `results.json`."""
        return asdict(self)

    def load(self) -> Dataset:
        """The data, split and standardised."""
        counts = takes_own_unit(self.likelihood)
        return load(self.data, target=self.target, split=self.split, seed=self.seed, task=self.task, counts=counts)


@dataclass(frozen=True)
class Task:
    """One row: a method trained on one backend, in one gradient mode and precision."""

    method: str
    backend: str
    gradient: str
    dtype: str
    device: str

    @property
    def is_reference(self) -> bool:
        """Whether the other rows of the method are measured against this one."""
        return (self.backend, self.gradient, self.dtype) == ("numpy", "closed-form", "float64")

    @property
    def label(self) -> str:
        """For people."""
        where = self.backend if self.device == "cpu" else f"{self.backend} ({self.device})"
        return f"{self.method} {where} {self.gradient} {self.dtype}"

    @property
    def stem(self) -> str:
        """For file names."""
        return "-".join((self.method, self.backend, self.device.replace(":", ""), self.gradient, self.dtype))
