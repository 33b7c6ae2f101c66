"""When the number of inducing inputs grows no more."""

import time
from typing import Any, NamedTuple

from agp.checks import check_positive, check_whole
from agp.chunking import budget, check_memory, mebibytes
from agp.models import growing_part
from agp.training._fit import FitResult

__all__ = ["Limits", "Round", "behind", "highest"]

SQUARES = 8, 6
"""Arrays of M x M numbers that training holds at once, and those for each output besides."""


class Round(NamedTuple):
    """What one number of inducing inputs reached; in nats per datum."""

    num_inducing: int
    bound: float
    """Of the trained model."""
    upper: float
    """On the exact evidence at the same hyperparameters, or bound and gap if rows were drawn; NaN if not Gaussian."""
    gap: float
    """Between the two: what more inducing inputs could gain at the most."""
    seconds: float
    """Since the beginning, at the end of the round."""
    steps: int
    """Of training, likewise."""


def highest(rounds: list[Round]) -> int:
    """Which round reached the highest bound, the last one of several."""
    return max(range(len(rounds)), key=lambda i: (rounds[i].bound, i))


def behind(rounds: list[Round]) -> bool:
    """Whether the last round ended below an earlier one."""
    return highest(rounds) < len(rounds) - 1


class Limits:
    """How far M may grow: each answer is the reason to stop and a sentence, or None."""

    def __init__(
        self,
        tolerance: float,
        most: int,
        max_steps: int | None,
        max_seconds: float | None,
        memory: float | None,
        rows: int,
    ) -> None:
        check_memory(memory)
        self.tolerance, self.memory = check_positive("tolerance", tolerance), memory
        self.most = min(check_whole("most", most), rows)
        self.max_steps = None if max_steps is None else check_whole("max_steps", max_steps)
        self.max_seconds = None if max_seconds is None else check_positive("max_seconds", max_seconds)
        self.start = time.perf_counter()

    def elapsed(self) -> float:
        return time.perf_counter() - self.start

    def spent(self, found: FitResult) -> str:
        """Which budget is used up, in words; empty for none."""
        if self.max_seconds is not None and self.elapsed() >= self.max_seconds:
            return f"the limit of {self.max_seconds:g} s was reached"
        if self.max_steps is not None and found.steps >= self.max_steps:
            return f"the limit of {self.max_steps} steps was reached"
        return ""

    def left(self, found: FitResult) -> dict[str, Any] | None:
        """What a training may still take, or None for nothing."""
        if self.spent(found):
            return None
        steps = None if self.max_steps is None else self.max_steps - found.steps
        seconds = None if self.max_seconds is None else self.max_seconds - self.elapsed()
        return {"max_steps": steps, "max_seconds": seconds}

    def size(self, model: Any) -> tuple[str, str] | None:
        """Whether M may not be larger, known before the training."""
        part = growing_part(model)[1]
        M = part.inducing.count
        if self.most <= M:
            return "most", f"{M} inducing inputs are as many as there may be"
        larger = min(2 * M, self.most)
        floats = (SQUARES[0] + SQUARES[1] * model.outputs) * larger**2
        beside = part.inducing.reference[1]
        needed, allowed = mebibytes(floats, beside), budget(self.memory, beside)
        if needed > allowed:
            return "memory", f"matrices of {larger} inducing inputs take {needed:.0f} MiB, more than {allowed:g}"
        return None

    def judged(self, rounds: list[Round]) -> tuple[str, str] | None:
        """What the bounds say: the certificate, and the gain of the last doubling."""
        last, least = rounds[-1], f"less than {self.tolerance:g}"
        if last.gap < self.tolerance and not behind(rounds):
            text = f"no number of inducing inputs gains more than {last.gap:.2g} nats per datum at present"
            return "certificate", f"{text}, {least}"
        if len(rounds) == 1:
            return None
        before = rounds[highest(rounds[:-1])]
        gain = last.bound - before.bound
        if gain < self.tolerance:
            sizes = f"from {before.num_inducing} to {last.num_inducing} inducing inputs"
            what = (
                f"gained {gain:.2g} nats per datum, {least}" if gain >= 0.0 else f"fell by {-gain:.2g} nats per datum"
            )
            return "gain", f"{sizes} the bound {what}"
        return None

    def stands(self, ending: tuple[str, str] | None, rounds: list[Round]) -> bool:
        """Whether what ended the growth holds after the last round, in which the model was trained to the end."""
        before, last = rounds[-2:]
        closed = ending is not None and ending[0] == "certificate"
        return (last.gap if closed else last.bound - before.bound) < self.tolerance

    def budget(self, found: FitResult, rounds: list[Round]) -> tuple[str, str] | None:
        """Whether what is left is less than a round with more inducing inputs takes, at least twice the last one."""
        if spent := self.spent(found):
            return ("time" if spent.endswith("s was reached") and "steps" not in spent else "steps"), spent
        last = rounds[-1].seconds - (rounds[-2].seconds if len(rounds) > 1 else 0.0)
        if self.max_seconds is not None and self.max_seconds - self.elapsed() < 2.0 * last:
            return "time", f"a round takes twice the {last:.2g} s of the last one, too long for {self.max_seconds:g} s"
        return None
