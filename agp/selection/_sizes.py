"""The numbers of rows and of inducing inputs of posteriors."""

import math
from collections.abc import Callable
from typing import NamedTuple

from agp.backend import Array, backend_of
from agp.selection._watch import Watch

COST, LARGE_COST = 1e13, 2e11
"""The maximum numbers of operations in the last pass, which takes 2 N M^2, if inducing inputs are the method, and if
they are compared with nearest rows."""
MIN_GAIN_PER_ROW = 0.003
"""The minimum gain from doubling the inducing inputs, in nats per held-out row."""
EXACT_ROWS = 4000
"""The maximum number of rows of an exact GP."""
PART, LEAST_SHARE = 0.7, 0.25
"""Constants for a time limit. `PART` is the fraction of the remaining time for the last pass. The last pass over all
rows is omitted unless it can use at least `LEAST_SHARE` of the inducing inputs of a comparison."""


def is_exact(method: str, X: Array) -> bool:
    """Whether this method, or "auto", gives the exact posterior of rows X."""
    return method == "gpr" or (method == "auto" and X.shape[0] <= EXACT_ROWS and not backend_of(X).is_lazy)


class Sizes(NamedTuple):
    """The sizes among which a fit chooses."""

    few: int
    """The number of inducing inputs in a comparison."""
    most: int
    """The maximum number of inducing inputs."""
    drawn: int
    """The maximum number of rows in a sample."""
    total: int
    """The number of all rows."""

    def part(self, cost: float = COST) -> int:
        """Return the number of rows for which the maximum number of inducing inputs takes at most `cost` operations."""
        return min(self.drawn, int(cost / (2.0 * self.most**2)))

    def pays(self, gain: float, rows: int) -> bool:
        """Whether the maximum number of inducing inputs on `rows` rows is better than a smaller number on all rows.

        `gain` is the gain from the last doubling, in nats per row. Each doubling of the number of inducing inputs gains
        about half as much as the previous one. Estimating the weights of M inducing inputs from N rows lowers the log
        density of another row by about M / 2N nats.
        """
        doublings = math.log2(self.most / self.few)
        return gain * 0.5**doublings > self.most / (2.0 * rows)

    def further_gain(self, gain: float, cost: float) -> float:
        """Return the gain from all inducing inputs that take at most `cost` operations, if doublings halve the gain.

        `gain` is the gain from the last doubling, up to `few`.
        """
        return gain * (1.0 - self.few / max(self._most_at(cost), self.few))

    def _most_at(self, cost: float) -> int:
        """Return the number of inducing inputs whose pass over all rows takes at most `cost` operations."""
        return min(self.most, int((cost / (2.0 * self.total)) ** 0.5))

    def affordable(self, gain: float, seconds: float, watch: Watch, cost: float = COST) -> int:
        """Return a number of inducing inputs that is affordable and worth the time; 0 if a pass would take too long.

        `gain` is the gain from the last doubling, and `seconds` the duration of a pass with `few` inducing inputs, both
        per row. `cost` is the maximum number of operations.
        """
        few = self.few
        M = min(few * 2 ** _doublings(gain), self._most_at(cost))
        M = M if 1.25 * few <= M else few
        if watch.limit is None:
            return M
        ratio = PART * max(watch.left(), 0.0) / (seconds * self.total)
        in_time = int(few * ratio**0.5)
        watch.cut = watch.cut or in_time < M
        if in_time >= few:
            return min(M, in_time) if 1.25 * few <= in_time else few
        return in_time if in_time >= LEAST_SHARE * few else 0

    def least(self, M: int, density: float, density_with: Callable[[int], float]) -> int:
        """Halve the number of inducing inputs M as long as the log density of the held-out rows falls little."""
        while 2 * self.few <= M and density - density_with(M // 2) < MIN_GAIN_PER_ROW:
            M //= 2
        return M


def _doublings(gain: float) -> int:
    """Return how many further doublings gain `MIN_GAIN_PER_ROW`, if each gains half as much as the one before.

    `gain` is the gain from the last doubling.
    """
    return 0 if gain < MIN_GAIN_PER_ROW else int(math.log2(min(gain, 1.0) / MIN_GAIN_PER_ROW))
