"""Candidates: hyperparameters with their scores, and the choice among them."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from agp.models import GPR, SVGP
from agp.selection._collapse import Collapse
from agp.selection._exact import Tuned
from agp.selection._rows import Data

CLOSE, ALIKE, FAR = 0.02, 0.01, 0.3
"""Differences in nats per row. Kernels within `CLOSE` of the best are trained further. Kernels within `ALIKE` of it are
considered equally good. A difference above `FAR` cannot be due to the choice of the sample."""


class Chosen(NamedTuple):
    """Hyperparameters, and their scores on the held-out rows."""

    name: str
    tuned: Tuned
    passed: Collapse | None = None
    settings: tuple[tuple[float, float], ...] = ()
    """Pairs of a kernel factor and a noise variance, the best first."""
    log_density: float = -float("inf")
    """The log density of the held-out rows with the first setting; for exact GPs, their score."""
    gain: float = float("inf")
    """The gain from the last doubling of the inducing inputs, or the lead of the exact GP if it exceeds `FAR`."""
    seconds: float = 0.0
    """The duration of the pass over the rows, in seconds per row."""


class Found(NamedTuple):
    """A posterior, and its entries in the result."""

    model: GPR | SVGP
    kernel: str
    kind: str
    bound: float
    """The bound for the posterior's rows, in nats."""
    targets: Data
    """The targets of these rows."""
    log_density: float
    held_out: bool
    """True if the log density is that of the held-out rows."""


def sort_by_density(found: Iterable[Chosen]) -> list[Chosen]:
    """Sort candidates by their log density, the best first."""
    return sorted(found, key=lambda one: -one.log_density)


def select_best(found: list[Chosen]) -> Chosen:
    """Return the candidate whose exact GP predicts best, among those with a log density within `ALIKE` of the first."""
    as_good = [one for one in found if one.log_density >= found[0].log_density - ALIKE]
    return max(as_good, key=lambda one: one.tuned.log_density)


def close_to_best(found: list[Chosen]) -> list[Chosen]:
    """Return the best candidate, and also the second best if its log density is within `CLOSE` of the best."""
    return [one for one in found if one.log_density >= found[0].log_density - CLOSE][:2]


def best_setting(passed: Collapse, settings: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], float]:
    """Return the kernel factor and noise variance that predict the held-out rows best, and their log density.

    The settings, which were found with fewer inducing inputs, are compared with each other and with their geometric
    mean.
    """
    middle = tuple(float(np.exp(np.mean(np.log(column)))) for column in zip(*settings, strict=True))
    density, setting = max((passed.log_density(*at), at) for at in {*settings, middle})
    return setting, density
