"""The parts of the accelerator report, by name, in the order of the report."""

from accelerator_parts import card, default, methods, operations, profile, rows, steps, suite
from accelerator_parts.part import Part

PARTS: dict[str, Part] = {
    "card": card.PART,
    "methods": methods.PART,
    "tests": suite.PART,
    "steps": steps.PART,
    "operations": operations.PART,
    "rows": rows.PART,
    "default": default.PART,
    "profile": profile.PART,
}
