"""The parts of the accelerator report, by name, in the order of the report."""

from accelerator_parts import cagp, card, linalg, profile, sgpr, steps, suite
from accelerator_parts.part import Part

PARTS: dict[str, Part] = {
    "card": card.PART,
    "tests": suite.PART,
    "linalg": linalg.PART,
    "steps": steps.PART,
    "sgpr": sgpr.PART,
    "cagp": cagp.PART,
    "profile": profile.PART,
}
