"""The order of the report: the most informative entries first, from any part, in two calls of five minutes."""

from collections.abc import Callable
from dataclasses import dataclass

from accelerator_parts import PARTS, steps
from accelerator_parts.part import Part, Plan, Settings

CALLS = (1, 2)
"""Numbers of the calls."""
SIZES = (32, 256, 1024, 4096)
"""Numbers of inducing inputs in the steps that are timed first; 32 is the small size."""


@dataclass(frozen=True)
class Stage:
    """The entries of a part that together answer one question.

    Parameters
    ----------
    question, part
        The question, and the name of the part.
    chosen
        A function that returns True for entries of this stage, unless they are in an earlier stage.
    call
        The number of the call that measures these entries.
    seconds
        The time limit of the stage in a call.
    """

    question: str
    part: str
    chosen: Callable[[Settings], bool]
    call: int
    seconds: float


def _first_of_card(entry: Settings) -> bool:
    """Versions, copies, large products, and detection of failures, for libraries that do not compile for long."""
    what = entry["measured"]
    large = what == "product" and entry["M"] in (64, 4096)
    return entry["library"] != "jax" and (what in ("version", "copy", "failing Cholesky") or large)


def _compiled_on_call(entry: Settings) -> bool:
    return entry["library"] != "jax"


def _beside_peer(entry: Settings) -> bool:
    """Steps of W, R, L and GPyTorch in the precision of the model."""
    ours = entry["method"] in ("wsvgp", "rsvgp", "lsvgp") and entry["gradient"] == "closed-form"
    recorded = entry["graphs"] or entry["library"] != "torch" or entry["method"] == steps.PEER or entry["M"] == 1024
    return (
        (ours or entry["method"] == steps.PEER)
        and not entry["inverse"]
        and entry["M"] in SIZES
        and recorded
        and entry["library"] != "jax"
    )


def _relaxed(entry: Settings) -> bool:
    """Steps of R on torch in all precisions and sizes, and of GPyTorch and W beside them."""
    return entry["library"] == "torch" and (
        entry["method"] == steps.PEER
        or (entry["method"] in ("rsvgp", "wsvgp") and entry["graphs"] and entry["gradient"] == "closed-form")
    )


def _factorisations(entry: Settings) -> bool:
    return entry["library"] != "jax" and entry["block"] in (entry["M"], 1024) and entry["M"] > 256


def _rest(entry: Settings) -> bool:
    return True


STAGES = (
    Stage("The card", "card", _first_of_card, 1, 25),
    Stage("Differences of every method from NumPy", "methods", _rest, 1, 120),
    Stage("Failing tests", "tests", _compiled_on_call, 1, 100),
    Stage("Steps compared with GPyTorch", "steps", _beside_peer, 1, 100),
    Stage("Steps of R-SVGP in every precision and size", "steps", _relaxed, 2, 70),
    Stage("GPRegressor with its defaults", "default", _compiled_on_call, 2, 50),
    Stage("Profile of a step", "profile", _rest, 2, 25),
    Stage("A million rows", "rows", _compiled_on_call, 2, 50),
    Stage("Factorisations and products", "operations", _factorisations, 2, 40),
    Stage("Failing tests with JAX", "tests", _rest, 2, 65),
    Stage("The rest", "steps", _compiled_on_call, 2, 60),
    Stage("The rest", "operations", _compiled_on_call, 2, 30),
    Stage("The rest", "card", _compiled_on_call, 2, 20),
    Stage("JAX", "steps", _rest, 2, 60),
    Stage("JAX", "default", _rest, 2, 60),
    Stage("JAX", "rows", _rest, 2, 60),
    Stage("JAX", "operations", _rest, 2, 30),
    Stage("JAX", "card", _rest, 2, 20),
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
