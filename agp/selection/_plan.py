"""The arguments of `fit_regression` that describe the model, and the kernels to compare."""

import re
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from agp import tree
from agp.backend import to_numpy
from agp.kernels import RBF, Kernel, Matern32, Matern52, Sum
from agp.likelihoods import Gaussian, Likelihood
from agp.means import ConstantMean, Mean
from agp.priors import LogNormal, Relative
from agp.selection._rows import Data
from agp.training import strip_addresses

KERNELS: dict[str, type[Kernel]] = {"rbf": RBF, "matern52": Matern52, "matern32": Matern32}
"""The kernels that "auto" compares, in addition to the sum of the best of them and a linear kernel."""


ROWS_PER_COLUMN = 5
"""Lengthscales have a prior if there are fewer observations per column than this."""
LENGTHSCALE = Relative(LogNormal(2.66, 3.0**0.5))
"""The prior for lengthscales, in units of the column's spread times the square root of the number of columns.

Its mode is 0.7, and 95 % of its mass lies between 0.5 and 430. In the source, inputs fill an interval of length 1,
whose spread is 0.29.

Source: Hvarfner, Hellsten & Nardi, "Vanilla Bayesian optimization performs great in high dimensions", ICML 2024.
"""


def default_priors(rows: float, kernel: Kernel, columns: int) -> dict[str, Any]:
    """Return a dictionary of priors for a kernel's lengthscales, which is empty for at least five rows per column."""
    some = any(name.endswith("lengthscale") for name in (*tree.missing(kernel), *tree.leaves(kernel)))
    return {"kernel.*lengthscale": LENGTHSCALE} if some and rows < ROWS_PER_COLUMN * columns else {}


class Plan(NamedTuple):
    """The arguments of `fit_regression` that describe the model."""

    kernel: Any
    likelihood: Gaussian
    mean_function: Any
    priors: Any
    memory: float | None
    tolerance: float

    @property
    def is_plain(self) -> bool:
        """Whether a shift of the data changes nothing: with the usual kernels and means, and without priors by name."""
        plain = self.mean_function is None or isinstance(self.mean_function, ConstantMean)
        return plain and isinstance(self.kernel, str) and isinstance(self.priors, str)

    def facts(self) -> dict[str, Any]:
        """Return the arguments as strings, by name. A fit resumes only if the checkpoint stores the same strings."""
        return {name: describe_part(part) for name, part in self._asdict().items()}

    def kernels(self) -> dict[str, Kernel]:
        """Return the kernels to compare, by name."""
        if isinstance(self.kernel, str):
            return {name: kind() for name, kind in KERNELS.items()}
        return {type(self.kernel).__name__.lower(): self.kernel}

    def parts(self, kernel: Kernel, data: Data) -> dict[str, Any]:
        """Return the arguments of `GPR.from_data` other than the data and the kernel."""
        priors = self.priors
        if isinstance(priors, str):
            priors = default_priors(data.observations, kernel, data.X.shape[1])
        if isinstance(self.kernel, str) and isinstance(kernel, Sum):  # the kernel is now the first part of a sum
            priors = {
                re.sub(r"^kernel\.(?![*?])", "kernel.parts.0.", name): one for name, one in (priors or {}).items()
            }
        return {"likelihood": self.likelihood, "mean_function": self.mean_function, "priors": priors}


def describe_part(part: Any) -> str:
    """Return an argument as text that depends on every bit of its leaves."""
    text = strip_addresses(f"{part!r}")
    text = f"{text[:2000]} {zlib.crc32(text.encode()):08x}" if len(text) > 2000 else text
    return f"{text} {checksum_of(part)}" if isinstance(part, Kernel | Likelihood | Mean) else text


def check_kernel(kernel: Any) -> None:
    """Raise TypeError unless an argument is "auto" or a kernel."""
    if not isinstance(kernel, Kernel) and not (isinstance(kernel, str) and kernel == "auto"):
        msg = f"kernel is {kernel!r}, but must be 'auto' or an instance of agp's Kernel."
        raise TypeError(msg)


def check_priors_or_auto(priors: Any) -> None:
    """Raise TypeError unless an argument is "auto", None or a dictionary."""
    if priors is not None and not isinstance(priors, Mapping) and not (isinstance(priors, str) and priors == "auto"):
        msg = f"priors is {priors!r}, but must be 'auto', None or a dictionary of priors."
        raise TypeError(msg)


def checksum_of(part: Any) -> str:
    """Return a checksum of all leaves."""
    found = 0
    for x in tree.leaves(part).values():
        found = zlib.crc32(np.asarray(x if isinstance(x, int | float) else to_numpy(x)).tobytes(), found)
    return f"{found:08x}"
