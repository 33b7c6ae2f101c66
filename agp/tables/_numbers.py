"""Numbers as people write them: percentages, money, units, decimal commas, and separators of thousands."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from agp.errors import join_words, quote

PLAIN_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
TRUTHS = {"true": 1.0, "false": 0.0}
GAPS_IN_TEXT = frozenset(("na", "n/a", "nan", "nil", "none", "null", "missing", "-", "--", "?", "."))
"""Texts that mark missing cells in columns of numbers, in lower case."""
PERCENT = "%"
CURRENCY = r"[$¢-¥฿\u20a0-\u20c0]"
"""Matches the signs of currencies in Unicode that are in use."""
SIGN = r"[-+\u2212]"
WORD = r"(?![eE][-+]?\d)[^\W\d_]{1,12}[²³]?"
UNIT = rf"°\s?[CFK]?|{WORD}\.?(?:[/*·]{WORD})?(?:\^-?\d|-?[1-4])?"
"""Matches units such as "kg", "km/h", "°C" and "m^2"."""
MONTHS = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
NO_UNIT = re.compile(rf"[dDxX][-+]?\d+|[aApP]\.?[mM]\.?|[A-Z][a-z]{{2,}}.*|(?i:{MONTHS})[a-z]*\.?")
"""Matches what follows numbers but is no unit, as in "1.5D-3", "4x4", "7 am", "3 Series" and "12 mar"."""
PARTS = re.compile(
    rf"(\()?({SIGN})?\s*({CURRENCY})?\s*({SIGN})?"  # an opening parenthesis, a sign, a unit, a sign
    rf"([.,]?\d(?:[\d.,'’\s]*[\d.,])?(?:[eE][-+]?\d+)?)\s*({PERCENT}|{CURRENCY}|{UNIT})?(\))?"  # digits, a unit
)
"""Matches a number with a sign, a unit or parentheses; `BODIES` check the digits."""
GAPS = r"(?P<gap>[\s'’])\d{3}(?:(?P=gap)\d{3})*"
BODIES = {
    ".": re.compile(
        rf"(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|[1-9]\d{{0,2}}(?:(?:,\d{{2,3}})*,\d{{3}}|{GAPS})(?:\.\d*)?"
    ),
    ",": re.compile(rf"(?:\d+(?:,\d+)?|,\d+)(?:[eE][-+]?\d+)?|[1-9]\d{{0,2}}(?:(?:\.\d{{3}})+|{GAPS})(?:,\d+)?"),
}
"""Match the digits of a number without a sign, by decimal mark. Zeros do not begin a number with several groups."""
LIMIT = re.compile(r"[<>≤≥]=?\s*[-+]?[.,]?\d.*")
"""Matches text such as "< 5", which is a limit of detection."""
ABOUT = re.compile(r"(?:~|≈|(?:approx(?:imately)?|about|around|ca|circa)\b\.?)\s*(?=[-+\u2212.,\d])", re.IGNORECASE)
"""Matches what says that a number is approximate, as in "approx. 3"."""
MAX_UNITS = 3
"""Maximum number of units that a message lists."""


class Style(NamedTuple):
    """How the numbers of a column are written as text."""

    decimal: str
    """The decimal mark: a point or a comma."""
    unit: str
    """ "%", the sign of a currency, a unit such as "kg", or nothing."""

    @property
    def noun(self) -> str:
        """What a cell is called, such as "a percentage"."""
        mark = " with a decimal comma" if self.decimal == "," else ""
        what = "a percentage" if self.unit == PERCENT else f"an amount in {self.unit}" if self.is_money else "a number"
        return what + mark + (f" with the unit {self.unit!r}" if self.is_measure else "")

    @property
    def plural(self) -> str:
        """What the cells are called, such as "percentages"."""
        what = "percentages" if self.unit == PERCENT else f"amounts in {self.unit}" if self.is_money else "numbers"
        return what + (f" with the unit {self.unit!r}" if self.is_measure else "")

    @property
    def is_money(self) -> bool:
        """Whether numbers are amounts of money."""
        return re.fullmatch(CURRENCY, self.unit) is not None

    @property
    def is_measure(self) -> bool:
        """Whether numbers have a unit such as "kg"."""
        return self.unit not in ("", PERCENT) and not self.is_money


class Reading(NamedTuple):
    """What texts say as numbers."""

    numbers: list[float | None]
    """The number in each text; None if it contains something else."""
    style: Style | None
    """The style of the numbers; None if all of them are plain, as "-1.5e3"."""
    is_ambiguous: bool = False
    """Whether commas may be decimal marks, but are read as separators of thousands."""

    @property
    def is_complete(self) -> bool:
        """Whether every text is a number."""
        return None not in self.numbers


def read_numbers(texts: Sequence[str], style: Style | None = None) -> Reading:
    """Read texts without surrounding blanks as numbers of one style: the given one, or the one that fits most texts.

    If points and commas fit equally many texts as decimal marks, it is the point, and commas separate thousands. Beside
    numbers, `GAPS_IN_TEXT` are missing, with the number NaN.
    """
    gaps = [text.lower() in GAPS_IN_TEXT for text in texts]
    if any(gaps) and not all(gaps):
        rest = read_numbers([text for text, gap in zip(texts, gaps, strict=True) if not gap], style)
        numbers = iter(rest.numbers)
        return rest._replace(numbers=[math.nan if gap else next(numbers) for gap in gaps])
    if style is not None:
        return Reading(_numbers([_parts(text) for text in texts], style), style)
    plain = [plain_number(text) for text in texts]
    if None not in plain:
        return Reading(plain, None)
    parts = [_parts(text) for text in texts]
    unit = _usual_unit([part[1] for part in parts if part is not None])
    found = Reading(_numbers(parts, Style(".", unit)), Style(".", unit))
    if not found.is_complete:
        other = Reading(_numbers(parts, Style(",", unit)), Style(",", unit))
        found = max(Reading(plain, None), found, other, key=_count)
    if found.style is None or found.style.decimal == "," or found.style.is_money:  # money has no three decimal places
        return found
    doubtful = found.is_complete and any("," in text for text in texts)
    return found._replace(
        is_ambiguous=doubtful and all(part is not None and BODIES[","].fullmatch(part[2]) for part in parts)
    )


def _count(reading: Reading) -> int:
    return sum(number is not None for number in reading.numbers)


def plain_number(text: str) -> float | None:
    """Return the number in a text without surrounding blanks, 1 or 0 for "true" or "false", and None otherwise."""
    number = float(text) if PLAIN_NUMBER.fullmatch(text) else TRUTHS.get(text.lower())
    return None if number is None or math.isinf(number) else number  # such as "1e400"


def describe_numbers(texts: Sequence[str], reading: Reading) -> str:
    """Describe texts that are numbers: what they hold, and how they are read."""
    style = reading.style
    what = "numbers" if style is None else style.plural
    cells = [(text, x) for text, x in zip(texts, reading.numbers, strict=True) if text.lower() not in GAPS_IN_TEXT]
    unusual = [(text, x) for text, x in cells if style is not None and plain_number(text) is None]
    examples = [*unusual[:1], *[cell for cell in unusual[1:] if cell[0].startswith("(")][:1]]
    read = [f"{quote(text)} is read as {x:.15g}" for text, x in examples]
    read += [f"{quote(text)} counts as a missing cell" for text in texts if text.lower() in GAPS_IN_TEXT][:1]
    used = "" if examples else ", which are used as numbers"
    return f"holds {what} as text{used}{', where ' * bool(read)}{join_words(read) if read else ''}"


def suspicion_of(texts: Sequence[str]) -> str | None:
    """Say which numbers texts seem to hold that `read_numbers` refuses: approximate ones, limits, and several units.

    Return None if fewer than half of them seem to be numbers.
    """
    bare = [ABOUT.sub("", text) for text in texts]
    about = [text for text, rest in zip(texts, bare, strict=True) if text != rest]
    limits = [text for text in texts if LIMIT.fullmatch(text)]
    parts = [_parts(text.lstrip("<>≤≥= ")) for text in bare]
    numbers = [part for part in parts if part is not None]
    units = [unit for unit, _ in Counter(part[1] for part in numbers if part[1]).most_common()]
    if 2 * len(numbers) < len(texts) or len(numbers) < 2:
        return None
    if len(units) > 1 or (units and len(numbers) > sum(part[1] != "" for part in numbers)):
        if len(units) > MAX_UNITS:
            return None  # rather names
        shown = " and ".join([*map(repr, units), *(["no unit"] * any(not part[1] for part in numbers))])
        return f"numbers with the unit{'s' * (len(units) > 1)} {shown}; write all of them in one unit"
    for found, what in ((about, "approximate numbers"), (limits, "limits")):
        if found:
            return f"{what} such as {quote(found[0])}; write each as one number, or empty the cell"
    return None


def _parts(text: str) -> tuple[bool, str, str] | None:
    """Return whether a number is negative, its unit, and its digits; None if a text is no number."""
    found = PARTS.fullmatch(text)
    if found is None:
        return None
    opened, sign, before, inner, digits, after, closed = found.groups()
    if (opened or sign or inner) is None and (before or after) is None:
        return None if closed else (False, "", digits)
    signs, units = [x for x in (opened, sign, inner) if x], [x for x in (before, after) if x]
    if after and digits[:2].isdecimal() and digits[0] == "0" and Style(".", after).is_measure:
        return None  # a code, such as "0012a"
    if len(signs) > 1 or len(units) > 1 or (opened is None) != (closed is None) or any(map(NO_UNIT.fullmatch, units)):
        return None
    return bool(signs) and signs[0] != "+", "".join(units), digits


def _numbers(parts: Sequence[tuple[bool, str, str] | None], style: Style) -> list[float | None]:
    body, between = BODIES[style.decimal], "," if style.decimal == "." else "."
    allowed = {style.unit, ""} if style.is_money else {style.unit}
    found: list[float | None] = []
    for part in parts:
        if part is None or part[1] not in allowed or (match := body.fullmatch(part[2])) is None:
            found.append(None)
            continue
        digits = part[2].replace(match["gap"] or between, "")
        number = float(digits.replace(",", "."))
        found.append(None if math.isinf(number) else -number if part[0] else number)
    return found


def _usual_unit(units: list[str]) -> str:
    """Return the unit of most numbers; amounts of money may lack it, but percentages and measurements may not."""
    counts = Counter(units)
    without = counts.pop("", 0)
    unit, count = max(counts.items(), key=lambda item: item[1], default=("", 0))
    return unit if count >= without or Style(".", unit).is_money else ""
