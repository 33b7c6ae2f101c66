"""The order of the report: the most informative entries first, from any part."""

from collections.abc import Callable
from dataclasses import dataclass

from accelerator_parts import PARTS, steps, suite
from accelerator_parts.part import Part, Plan, Settings

SIZES = (32, 256, 1024, 4096)
"""Numbers of inducing inputs in the steps that are timed first; 32 is the small size."""
MANY = (2000, 1_000_000)
"""Numbers of rows for models that use all data, in small and in normal sizes."""


@dataclass(frozen=True)
class Stage:
    """The entries of a part that together answer one question.

    Parameters
    ----------
    question, part
        The question, and the name of the part.
    chosen
        A function that returns True for entries of this stage, unless they are in an earlier stage.
    whole
        True if the table also shows the chosen entries of earlier stages.
    """

    question: str
    part: str
    chosen: Callable[[Settings], bool]
    whole: bool = False


def _first_tests(entry: Settings) -> bool:
    return entry["tests"] in (suite.COLLECTION, suite.FIRST[0]) or (
        entry["tests"] == suite.FIRST[1] and entry["library"] != "jax"
    )


def _beside_peer(entry: Settings) -> bool:
    """Steps of W, R and GPyTorch; for JAX, which compiles for a long time, a single size and dtype."""
    ours = entry["method"] in ("wsvgp", "rsvgp") and entry["gradient"] == "closed-form" and "inverse" not in entry
    little = entry["library"] != "jax" or (entry["M"] in (32, 1024) and entry["dtype"] == "float64")
    return (ours or entry["method"] == steps.PEER) and entry["M"] in SIZES and little


def _inverse(entry: Settings) -> bool:
    """Steps of R in all precisions; an earlier stage measures float64 and float32."""
    ours = entry["method"] == "rsvgp" and entry["gradient"] == "closed-form" and entry["M"] in SIZES
    return ours and entry["library"] == "torch"


def _many_rows(entry: Settings) -> bool:
    return entry["rows"] in MANY and entry["library"] != "jax"


def _without_jax(entry: Settings) -> bool:
    return entry["library"] != "jax"


def _rest(entry: Settings) -> bool:
    return True


REST = ("card", "profile", "tests", "linalg", "steps", "sgpr", "cagp")
STAGES = (
    Stage("Failing tests", "tests", _first_tests),
    Stage("W-SVGP and R-SVGP compared with GPyTorch", "steps", _beside_peer),
    Stage("The R-SVGP inverse in float64, float32 and TF32", "steps", _inverse, whole=True),
    Stage("A million rows", "sgpr", _many_rows),
    Stage("A million rows", "cagp", _many_rows),
    *(Stage("Other entries", name, _without_jax) for name in REST),
    *(Stage("Other entries with JAX", name, _rest) for name in REST),
)


def stages(plan: Plan, parts: list[str]) -> list[tuple[Stage, list[Settings]]]:
    """The stages with their entries, in order; an entry is in the first stage that chooses it."""
    left = {name: [entry for entry in PARTS[name].entries(plan) if plan.wants(entry)] for name in parts}
    ordered = []
    for stage in STAGES:
        found = [entry for entry in left.get(stage.part, []) if stage.chosen(entry)]
        if found:
            ordered.append((stage, found))
            left[stage.part] = [entry for entry in left[stage.part] if entry not in found]
    return ordered


def expected(part: Part, entries: list[Settings], *, small: bool, means: dict[str, float] | None = None) -> float:
    """Estimate the seconds that entries take, from the mean time of their library so far or from a guess."""
    return sum((means or {}).get(entry["library"]) or part.expected(entry["library"], small=small) for entry in entries)
