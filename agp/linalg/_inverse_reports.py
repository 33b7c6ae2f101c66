"""What of an inversion by products is reported as a repair."""

from agp.backend import Array, backend_of
from agp.linalg._inverse import InverseFactor
from agp.repairs import report

__all__ = ["report_fallbacks", "report_restarts"]


def report_restarts(found: InverseFactor, name: str, /, *, among: Array | None = None) -> InverseFactor:
    """The same; that the given factor of this name was thrown away is reported as a repair.

    Unless `among`, 0-d, is false: where there was no factor yet.
    """
    xp = backend_of(found.restarts).xp
    restarts = found.restarts
    report(
        f"the {name.replace('_', ' ')} was too far from the inverse to start from; it was thrown away and found anew "
        "in {0:.0f} steps (residual {1:.2g}). Slower changes of the parameters keep it close: try a smaller rate.",
        found.steps,
        found.residual,
        count=restarts if among is None else restarts * xp.astype(among, restarts.dtype),
    )
    return found


def report_fallbacks(found: InverseFactor, name: str, precision: str, /) -> InverseFactor:
    """The same; that products in a lower precision were not good enough for the factor of this name is reported."""
    report(
        f"products in {precision} were too coarse to bring the {name.replace('_', ' ')} up to date (they leave a "
        "residual of about {0:.2g}); steps were taken in the precision of the model. Leave the precision out, or raise "
        "the jitter or the tolerance.",
        found.rounding,
        count=found.fallbacks,
    )
    return found
