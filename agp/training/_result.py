"""What training shows while it runs, and what it returns."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agp import tree
from agp.backend import Array
from agp.errors import not_installed
from agp.markup import guarded, table_html
from agp.summaries import summary_html

__all__ = ["Callback", "LBFGSResult", "Progress", "Result", "call_all", "progress_bar"]

SHOWN = 12
"""How many entries of a list or a dictionary notebooks show."""
FIRST = ("message", "converged", "learned", "bound", "kernel")
"""Fields that notebooks show first."""


class Progress(NamedTuple):
    """What a callback receives after a step."""

    step: int
    """Steps finished."""
    model: Any
    info: dict[str, Array]
    """What the updates logged: 0-d arrays by name, "bound" among them."""
    seconds: float
    """Time spent in steps so far, callbacks excluded."""


Callback = Callable[[Progress], bool | None]


def call_all(callbacks: Iterable[Callback], seen: Progress, /) -> bool:
    """Call every callback; whether any of them returned True."""
    return sum(bool(callback(seen)) for callback in callbacks) > 0


# -- results ----------------------------------------------------------------------------------------------------------


@dataclass
class Result:
    """What training returns."""

    model: Any
    """The trained model."""
    steps: int
    """Steps finished in all, those before a resumption included."""
    seconds: float
    """Time spent in steps, callbacks excluded."""
    trace: dict[str, list[float]] = field(default_factory=dict)
    """What the updates logged, by name: one number a step."""
    repairs: Counter[str] = field(default_factory=Counter)
    """How often each kind of numerical trouble was repaired, by the message of its first time."""
    frozen: tuple[str, ...] = field(default=(), kw_only=True)
    """The names of the parameters that no update moved, as far as the updates say."""
    launched_singly: str = field(default="", kw_only=True)
    """Why no step was launched as one graph of the device; empty where steps were, or where there are no graphs."""

    def _repr_html_(self) -> str:
        return guarded(lambda: _result_html(self), self)


@dataclass
class LBFGSResult(Result):
    """What `fit_lbfgs` returns; `steps` and `trace` are those of the best start.

    The trace holds "bound" and "gradient" (the largest entry of the raw gradient, per datum) after each iteration. For
    a model with `priors`, "bound" and `bounds` include the log prior: their sum is maximised.
    """

    message: str = ""
    """Why the optimiser stopped, in SciPy's words."""
    converged: bool = False
    """Whether it met a tolerance, rather than a limit."""
    evaluations: int = 0
    """Bounds and gradients computed, over all starts."""
    rejections: dict[str, int] = field(default_factory=dict)
    """Trial points without a finite bound or gradient, counted by reason over all starts."""
    bounds: list[float] = field(default_factory=list)
    """The final bound of each start; -inf for a start that failed."""


def _result_html(result: Result) -> str:
    """The fields of a result as HTML: single ones in a table, lists of named tuples as tables, and the model."""
    fields = dict(vars(result))
    trained, trace, frozen = fields.pop("model", None), fields.pop("trace", {}), fields.pop("frozen", ())
    bounds = {} if "bound" in fields else {"last bound": trace.get("bound", [])[-1:]}
    ordered = {name: fields[name] for name in FIRST if name in fields} | bounds | fields
    tables = {name: value for name, value in ordered.items() if _is_table(value)}
    facts = [(name.replace("_", " "), _cell(value)) for name, value in ordered.items() if name not in tables]
    html = [table_html(type(result).__name__, (fact for fact in facts if fact[1] not in ("", [], None)))]
    html += [table_html(name.capitalize(), rows, rows[0]._fields) for name, rows in tables.items()]
    return "".join([*html, summary_html(trained, frozen=frozen)] if tree.is_model(trained) else html)


def _is_table(value: Any) -> bool:
    """Whether a value is a list of named tuples."""
    return isinstance(value, list) and bool(value) and isinstance(value[0], tuple)


def _cell(value: Any) -> Any:
    """A field as the cell of a table: the first entries of a long one."""
    if isinstance(value, Mapping):
        value = [f"{name}: {one}" for name, one in value.items()]
    if not isinstance(value, list):
        return value
    return value if len(value) <= SHOWN else [*value[:SHOWN], f"and {len(value) - SHOWN:,} more"]


# -- progress bars ----------------------------------------------------------------------------------------------------


class _Bar:
    """A bar of tqdm."""

    def __init__(self, bar: Any) -> None:
        self.bar = bar

    def begin(self, name: str, left: float) -> None:
        """Show the name of a stage, and how many seconds are left if they are limited."""
        self.bar.set_description(name if left == float("inf") else f"{name}, {max(left, 0.0):.0f} s left")

    def show(self, step: int, latest: dict[str, float], repairs: int) -> None:
        """Show the step, the latest numbers and the number of repairs."""
        shown = {name: f"{latest[name]:.4g}" for name in ("bound", "residual") if name in latest}
        if repairs:
            shown["repairs"] = str(repairs)
        self.bar.set_postfix(shown, refresh=False)
        self.bar.update(step - self.bar.n)


@contextlib.contextmanager
def progress_bar(total: int | None, start: int = 0) -> Iterator[_Bar]:
    """A bar from `start` to `total` steps (None if unknown). ImportError, naming the extra, without tqdm."""
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        msg = f"progress=True needs {not_installed('tqdm', 'cli')}."
        raise ImportError(msg) from error
    with tqdm(total=total, initial=start, unit="step", dynamic_ncols=True, leave=False) as bar:
        yield _Bar(bar)
