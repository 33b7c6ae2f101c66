"""The model: milliseconds of a training step from its operations, and the number of inverse steps at break-even."""

import math
from dataclasses import dataclass
from typing import Any

from break_even_parts.cards import ASSUMED, CARDS, MICRO, MILLI, TERA, Assumptions, Speed, Times

SIZES = (256, 512, 1024, 2048, 4096, 8192)
WAYS: tuple[tuple[str, str | None], ...] = (
    ("float64", None),
    ("float64", "float32"),
    ("float32", None),
    ("float32", "tf32"),
    ("float32", "bfloat16"),
)
"""Pairs of precisions: that of the model, and that of the products of the inversion."""
COUNTED_AS = {"tf32": "bfloat16"}
"""Precisions whose operations were counted in another precision, because a CPU has no TF32."""


@dataclass(frozen=True)
class Cost:
    """Seconds on the card and on the host."""

    device: float
    host: float

    def total(self, graphs: bool) -> float:
        """Seconds of a step. Launches overlap with computations; a graph is launched by one call."""
        return self.device if graphs else max(self.device, self.host)


@dataclass(frozen=True)
class Model:
    """Counted operations, and times of cards."""

    counts: list[dict[str, Any]]
    times: Times
    assumed: Assumptions = ASSUMED

    def cost(self, card: str, method: str, M: int, dtype: str, inverse: str | None = None) -> dict[str, Cost]:
        """Costs of a training step; for R-SVGP, of a step without inverse steps and of one inverse step."""
        blocks = CARDS[card].blocks if dtype == "float64" else "fast"
        counted = COUNTED_AS.get(inverse or "", inverse)
        wanted = {"method": method, "M": M, "dtype": dtype, "precision": counted, "blocks": blocks}
        for entry in self.counts:
            if wanted.items() <= entry.items():
                break
        else:
            raise ValueError(f"nothing is counted for {wanted}; run the command count.")
        speed = Speed(CARDS[card], M, self.times.get(card, {}), self.assumed)
        names = {counted: inverse} if inverse else {}
        return {part: self._cost(speed, entry[part], names) for part in ("step", "inverse step") if part in entry}

    def _cost(self, speed: Speed, counts: dict[str, float], names: dict[Any, Any]) -> Cost:
        assumed, launches = self.assumed, counts["launches"]
        seconds = MICRO * assumed.kernel_us * launches
        seconds += counts["bytes"] / (assumed.memory_share * TERA * speed.card.bandwidth)
        for name, operations in counts.items():
            kind, _, precision = name.partition(" ")
            if precision not in ("", "rows"):
                rows = counts.get(f"{kind} rows", 0)
                seconds += speed.seconds(kind, names.get(precision, precision), operations, rows)
        return Cost(seconds, MICRO * assumed.launch_us * launches)

    def milliseconds(
        self, card: str, method: str, M: int, dtype: str, inverse: str | None = None, *, steps: float, graphs: bool
    ) -> float:
        """Milliseconds of a training step, for R-SVGP with a number of inverse steps."""
        costs = self.cost(card, method, M, dtype, inverse)
        own, each = costs["step"], costs.get("inverse step", Cost(0.0, 0.0))
        return Cost(own.device + steps * each.device, own.host + steps * each.host).total(graphs) / MILLI

    def break_even(
        self, card: str, other: str, M: int, dtype: str, inverse: str | None = None, *, graphs: bool
    ) -> float:
        """The number of inverse steps per training step with which R-SVGP takes as long as another method.

        R-SVGP takes at least one inverse step per training step, so it is never faster if the number is below 1. The
        number is 0 if R-SVGP takes longer even without inverse steps.
        """
        target = self.cost(card, other, M, dtype)["step"].total(graphs)
        costs = self.cost(card, "rsvgp", M, dtype, inverse)
        own, each = costs["step"], costs["inverse step"]
        host = math.inf if graphs else (target - own.host) / each.host
        return max(0.0, min((target - own.device) / each.device, host))
