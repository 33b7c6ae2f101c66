"""GPyTorch's whitened SVGP in the curves of R-SVGP, trained on the same batches as agp's models."""

import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from rows import InputError, Rows

from agp import metrics
from agp.cli import _peering
from agp.training import Batches
from agp.updates import Group

sys.path.append(str(_peering.HERE))  # the folder of gpytorch_peer, which does not import agp

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
    """

    def __init__(
        self, model: Any, rows: Rows, *, batch_size: int, seed: int, rate: float, epsilon: float, file: Path, every: int
    ) -> None:
        try:
            library = import_module("gpytorch_peer")
        except ImportError:
            msg = "cells named gpytorch need GPyTorch, which is not installed; install gpytorch, or name other cells."
            raise InputError(msg) from None
        start = _peering.start_of(model, len(rows.y), "rbf", epsilon=epsilon, Z_beta1=Group.beta1)
        self.svgp, self.rows, self.rate, self.file, self.every = library.Peer(start), rows, rate, file, every
        self.batches = Batches(rows.X, rows.y, batch_size, seed)
        self.step, self.seconds = 0, 0.0
        if file.exists():
            self._read()

    def train(self, until: int) -> None:
        """Take Adam steps up to a number of steps in all."""
        for step in range(self.step, until):
            chosen = self.batches.indices(step)
            X, y = self.rows.X[chosen], self.rows.y[chosen, 0]
            began = time.perf_counter()
            self.svgp.step(X, y, self.rate, self.rate)
            self.seconds += time.perf_counter() - began
            self.step = step + 1
            if self.step % self.every == 0 or self.step == until:
                self._write()

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
        new = self.file.with_suffix(".part")
        torch.save({"step": self.step, "seconds": self.seconds, **states}, new)
        new.replace(self.file)

    def _read(self) -> None:
        import torch

        kept = torch.load(self.file)
        self.step, self.seconds = kept["step"], kept["seconds"]
        for name, part in self._parts().items():
            part.load_state_dict(kept[name])
