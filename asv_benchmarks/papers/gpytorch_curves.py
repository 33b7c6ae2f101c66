"""GPyTorch's whitened SVGP in the curves of R-SVGP, trained on the same batches as agp's models."""

import math
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from rows import Rows

from agp import metrics
from agp.errors import NonFiniteError
from agp.training import Batches
from agp.updates import Group

sys.path.append(str(Path(__file__).parents[1] / "compare"))

from peering import start_of

BLOCK = 2000
"""Number of rows that are predicted together."""


class GPyTorchSVGP:
    """A model of GPyTorch that continues from its checkpoint.

    Parameters
    ----------
    model
        agp's untrained W-SVGP with an RBF kernel, from which the parameters start.
    rows, batch_size, seed
        Training rows and their batches.
    rate, epsilon
        The rate of Adam, and its epsilon.
    file
        The checkpoint, which is written after each `every` steps and at the end of `train`.
    keep
        Called after each checkpoint.
    """

    def __init__(
        self,
        model: Any,
        rows: Rows,
        *,
        batch_size: int,
        seed: int,
        rate: float,
        epsilon: float,
        file: Path,
        every: int,
        keep: Callable[[], None],
    ) -> None:
        library = import_module("gpytorch_peer")
        start = start_of(model, len(rows.y), "rbf", epsilon=epsilon, Z_beta1=Group.beta1)
        self.svgp, self.versions = library.Peer(start), library.Peer.versions
        self.rows, self.rate, self.file, self.every, self.keep = rows, rate, file, every, keep
        self.batches = Batches(rows.X, rows.y, batch_size, seed)
        self.step, self.seconds = 0, 0.0
        if file.exists():
            self._read()

    def train(self, until: int) -> None:
        """Train until `until` steps have been taken; raise NonFiniteError if the bound is not finite."""
        for step in range(self.step, until):
            chosen = self.batches.indices(step)
            began = time.perf_counter()
            bound = self._step(self.rows.X[chosen], self.rows.y[chosen, 0])
            self.seconds += time.perf_counter() - began
            if not math.isfinite(bound):
                raise NonFiniteError(f"the bound of GPyTorch is {bound} in step {step}")
            self.step = step + 1
            if self.step % self.every == 0 or self.step == until:
                self._write()

    def _step(self, X: Any, y: Any) -> float:
        from linear_operator.utils.errors import NanError, NotPSDError  # pyright: ignore[reportMissingImports]

        try:
            return self.svgp.step(X, y, self.rate, self.rate)
        except (NanError, NotPSDError) as error:
            raise NonFiniteError(str(error)) from error

    def nlpd(self) -> float:
        """The NLPD of the test rows."""
        X, y = self.rows.X_test, self.rows.y_test[:, 0]
        pieces = [self.svgp.predict(X[i : i + BLOCK]) for i in range(0, len(y), BLOCK)]
        mean, variance = (np.concatenate(part) for part in zip(*pieces, strict=True))
        variance = variance + self.svgp.noise()
        return metrics.nlpd(-0.5 * (np.log(2.0 * np.pi * variance) + (y - mean) ** 2 / variance))

    def _parts(self) -> dict[str, Any]:
        return {"model": self.svgp.model, "adam": self.svgp.adam}

    def _write(self) -> None:
        import torch

        states = {name: part.state_dict() for name, part in self._parts().items()}
        new = self.file.with_suffix(".pt.part")
        torch.save({"step": self.step, "seconds": self.seconds, **states}, new)
        new.replace(self.file)
        self.keep()

    def _read(self) -> None:
        import torch

        kept = torch.load(self.file)
        self.step, self.seconds = kept["step"], kept["seconds"]
        for name, part in self._parts().items():
            part.load_state_dict(kept[name])
