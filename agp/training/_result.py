"""The progress and the results of training."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from agp import tree
from agp.backend import Array
from agp.errors import require
from agp.models import Model
from agp.summaries import html_with_fallback, summary_html, table_html

ModelType = TypeVar("ModelType", bound=Model)

SHOWN = 12
"""The maximum number of entries shown in notebooks for a list or a dictionary."""
MAX_LISTED = 3
"""The maximum number of entries in the text of a list."""
FIRST = ("message", "converged", "learned", "bound", "kernel")
"""Fields that notebooks show first."""


class Progress(NamedTuple):
    """The argument that callbacks receive after each step."""

    step: int
    """The number of finished steps."""
    model: Any
    info: dict[str, Array]
    """The values that the updates logged, as 0-d arrays by name; "bound" is one of them."""
    seconds: float
    """The time in seconds spent in steps so far, without callbacks."""


Callback = Callable[[Progress], bool | None]


def call_all(callbacks: Iterable[Callback], seen: Progress, /) -> bool:
    """Call every callback; return whether any of them returned True."""
    return sum(bool(callback(seen)) for callback in callbacks) > 0


# -- results ----------------------------------------------------------------------------------------------------------


@dataclass(repr=False)
class Result(Generic[ModelType]):
    """The result of training. The trained model has the class of the given model."""

    model: ModelType
    """The trained model."""
    steps: int
    """The number of finished steps, including those before a resumption."""
    seconds: float
    """The time in seconds spent in steps, without callbacks."""
    trace: dict[str, list[float]] = field(default_factory=dict)
    """The values that the updates logged, by name. Each is a list with one number per step."""
    repairs: Counter[str] = field(default_factory=Counter)
    """The number of numerical repairs of each kind, by the message about the first repair of that kind."""
    frozen: tuple[str, ...] = field(default=(), kw_only=True)
    """The names of the parameters that no update moved; incomplete if an update does not declare what it moves."""
    launched_singly: str = field(default="", kw_only=True)
    """The reason why no step was launched as a device graph; empty if any step was, or if the device has no graphs."""

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={_short(value)}" for name, value in vars(self).items())
        return f"{type(self).__name__}({fields})"

    def _repr_html_(self) -> str:
        return html_with_fallback(lambda: _result_html(self), self)


@dataclass(repr=False)
class LBFGSResult(Result[ModelType]):
    """The result of `fit_lbfgs` or `fit_newton`; `steps` and `trace` are those of the best start.

    The trace contains "bound", "gradient" and "gain" after each iteration. "gradient" is the largest absolute entry of
    the gradient with respect to the vector that moves, per datum. "gain" is the gain in nats that a Newton step
    promises. For a model with `priors`, "bound" and `bounds` include the log prior, because training maximises the sum
    of the bound and the log prior.
    """

    message: str = ""
    """The reason why the optimiser stopped; for `fit_lbfgs`, as reported by SciPy."""
    converged: bool = False
    """True if the optimiser met a tolerance, False if it reached a limit."""
    evaluations: int = 0
    """How often the bound and its gradient were evaluated, over all starts."""
    rejections: dict[str, int] = field(default_factory=dict)
    """The number of trial points without a finite bound or gradient, by reason, over all starts."""
    bounds: list[float] = field(default_factory=list)
    """The final bound of each start; -inf for a start that failed."""


def _short(value: Any) -> str:
    """Return a field as text, with only the lengths of long lists."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name!r}: {_short(one)}' for name, one in value.items())}}}"
    return f"[{len(value)} entries]" if isinstance(value, list) and len(value) > MAX_LISTED else repr(value)


def _result_html(result: Result[Any]) -> str:
    """Return a result as HTML: a table of its fields, a table for each list of named tuples, and the model."""
    fields = dict(vars(result))
    trained, trace, frozen = fields.pop("model", None), fields.pop("trace", {}), fields.pop("frozen", ())
    bounds = {} if "bound" in fields else {"last bound": trace.get("bound", [])[-1:]}
    ordered = {name: fields[name] for name in FIRST if name in fields} | bounds | fields
    tables = {name: x for name, x in ordered.items() if isinstance(x, list) and x and isinstance(x[0], tuple)}
    facts = [(name.replace("_", " "), _cell(value)) for name, value in ordered.items() if name not in tables]
    html = [table_html(type(result).__name__, (fact for fact in facts if fact[1] not in ("", [], None)))]
    html += [table_html(name.capitalize(), rows, rows[0]._fields) for name, rows in tables.items()]
    return "".join([*html, summary_html(trained, frozen=frozen)] if tree.is_model(trained) else html)


def _cell(value: Any) -> Any:
    """Return a field as a table cell, with only the first entries of a long field."""
    if isinstance(value, Mapping):
        value = [f"{name}: {one}" for name, one in value.items()]
    if not isinstance(value, list):
        return value
    return value if len(value) <= SHOWN else [*value[:SHOWN], f"and {len(value) - SHOWN:,} more"]


# -- progress bars ----------------------------------------------------------------------------------------------------


class _Bar:
    """A tqdm progress bar."""

    def __init__(self, bar: Any) -> None:
        self.bar = bar

    def begin(self, name: str, left: float) -> None:
        """Show the name of a stage and, if the time is limited, how many seconds are left."""
        self.bar.set_description(name if left == float("inf") else f"{name}, {max(left, 0.0):.0f} s left")

    def show(self, step: int, latest: dict[str, float], repairs: int) -> None:
        """Show the step, the latest logged numbers and the number of repairs."""
        shown = {name: f"{latest[name]:.4g}" for name in ("bound", "residual") if name in latest}
        if repairs:
            shown["repairs"] = str(repairs)
        self.bar.set_postfix(shown, refresh=False)
        self.bar.update(step - self.bar.n)


@contextlib.contextmanager
def progress_bar(total: int | None, start: int = 0) -> Iterator[_Bar]:
    """Yield a bar from `start` to `total` steps (None if unknown); raise ImportError if tqdm is not installed."""
    tqdm = require("tqdm.auto", "progress=True needs", "cli").tqdm
    with tqdm(total=total, initial=start, unit="step", dynamic_ncols=True, leave=False) as bar:
        yield _Bar(bar)
