"""Rates of cards and libraries: published peak rates, assumptions, and measured times that replace both."""

import math
from dataclasses import dataclass
from pathlib import Path

from results import read_given

TERA, MICRO, MILLI = 1e12, 1e-6, 1e-3


@dataclass(frozen=True)
class Card:
    """A card, by its peak rates for dense products."""

    peaks: dict[str, float]
    """10^12 operations per second, for each precision of products."""
    bandwidth: float
    """10^12 bytes per second."""
    blocks: str
    """"fast" or "slow": the block sizes that agp uses in float64 on this card."""


CARDS = {
    "H100": Card({"float64": 67.0, "float32": 67.0, "tf32": 400.0, "bfloat16": 800.0}, 3.35, "fast"),
    "H200": Card({"float64": 67.0, "float32": 67.0, "tf32": 400.0, "bfloat16": 800.0}, 4.8, "fast"),
    "B300": Card({"float64": 1.3, "float32": 75.0, "tf32": 1200.0, "bfloat16": 2500.0}, 8.0, "slow"),
    "RTX 4090": Card({"float64": 1.29, "float32": 82.6, "tf32": 82.6, "bfloat16": 165.0}, 1.0, "slow"),
    "RTX 5090": Card({"float64": 1.64, "float32": 105.0, "tf32": 105.0, "bfloat16": 210.0}, 1.8, "slow"),
}


@dataclass(frozen=True)
class Assumptions:
    """Properties of the libraries that no source of this project gives for these cards."""

    product_share: float = 0.7
    """Rate of large products as a share of the peak rate."""
    triangular_share: float = 0.5
    """Rate of factorisations and triangular solves as a share of the rate of products, apart from their latency."""
    cholesky_row_us: float = 0.7
    """Latency of a factorisation, in microseconds per row of the matrix."""
    solve_row_us: float = 0.25
    """Latency of a triangular solve, in microseconds per row of the factor."""
    memory_share: float = 0.8
    """Rate of passes over memory as a share of the bandwidth."""
    kernel_us: float = 3.0
    """Least time between the starts of two kernels on the card, in microseconds."""
    launch_us: float = 8.0
    """Time of the host for a launch, in microseconds."""


ASSUMED = Assumptions()

Times = dict[str, dict[str, dict[str, dict[str, float]]]]
"""Measured milliseconds by card, precision, M and operation: "gemm" and "trsm" with [M, M] matrices, and "potrf"."""
OPERATIONS = {"gemm": 2.0, "potrf": 1.0 / 3.0, "trsm": 1.0}
"""Additions and multiplications, in units of M^3."""


def read_times(path: Path | None) -> Times:
    """Read measured times; raise SystemExit if a card or an operation is unknown."""
    times: Times = {} if path is None else read_given(path, "milliseconds by card, precision, M and operation")
    for card, precisions in times.items():
        if card not in CARDS:
            raise SystemExit(f"--times has no known card {card!r}; use one of {', '.join(CARDS)}.")
        for name in {name for sizes in precisions.values() for found in sizes.values() for name in found}:
            if name not in OPERATIONS:
                raise SystemExit(f"--times has the operation {name!r}; use one of {', '.join(OPERATIONS)}.")
    return times


@dataclass(frozen=True)
class Speed:
    """Times of operations on a card for one size M of matrices."""

    card: Card
    M: int
    measured: dict[str, dict[str, dict[str, float]]]
    """Measured milliseconds by precision, M and operation."""
    assumed: Assumptions = ASSUMED

    def rate(self, precision: str, operation: str) -> float | None:
        """Measured operations per second, interpolated between the nearest sizes on logarithmic scales, or None.

        Smaller and larger matrices than the measured ones have the rate of the closest.
        """
        found = {int(M): one[operation] for M, one in self.measured.get(precision, {}).items() if operation in one}
        if not found:
            return None
        rates = {M: OPERATIONS[operation] * M**3 / (MILLI * ms) for M, ms in found.items()}
        low = max((M for M in rates if self.M >= M), default=min(rates))
        high = min((M for M in rates if self.M <= M), default=max(rates))
        share = 0.0 if low == high else math.log(self.M / low) / math.log(high / low)
        return rates[low] ** (1.0 - share) * rates[high] ** share

    def product_rate(self, precision: str) -> float:
        """Operations per second in products."""
        return self.rate(precision, "gemm") or self.assumed.product_share * TERA * self.card.peaks[precision]

    def seconds(self, kind: str, precision: str, operations: float, rows: float) -> float:
        """Seconds for operations of one kind; `rows` is the number of rows of all triangular factors."""
        if kind == "product":
            return operations / self.product_rate(precision)
        if rate := self.rate(precision, {"cholesky": "potrf", "solve": "trsm"}[kind]):
            return operations / rate
        latency = self.assumed.cholesky_row_us if kind == "cholesky" else self.assumed.solve_row_us
        return MICRO * latency * rows + operations / (self.assumed.triangular_share * self.product_rate(precision))

    def cholesky_share(self, precision: str) -> float:
        """Rate of a factorisation [M, M] as a share of the rate of products."""
        operations = self.M**3 / 3.0
        return operations / self.seconds("cholesky", precision, operations, self.M) / self.product_rate(precision)
