"""The callbacks and the results of training."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Generic, NamedTuple, TypeVar

from agp import tree
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
    info: dict[str, Any]
    """The values that the updates logged, by name, such as "bound"; `NaturalGradient` alone does not log it.
    `agp.train` passes 0-d arrays, and other functions arrays or numbers; `fit_lbfgs` adds "gain" and "unfinished".
    ``float(value)`` takes all of them."""
    seconds: float
    """The time in seconds spent in steps so far, without callbacks."""


Callback = Callable[[Progress], bool | str | None]
"""A function that ends the training if it returns True, or a text: the reason, which `Result.message` then gives."""


def call_all(callbacks: Iterable[Callback], seen: Progress, /) -> str:
    """Call every callback; return the name and the reason of the first that ended the training, or an empty string."""
    answers = [(callback, callback(seen)) for callback in callbacks]
    for callback, answer in answers:
        if answer:
            return _name_callback(callback) + (f" ({answer})" if isinstance(answer, str) else "")
    return ""


def _name_callback(callback: Callback) -> str:
    """Return "the callback f" for a function that has a name, its class for another object, or "a callback"."""
    if isinstance(callback, (FunctionType, MethodType)):
        return f"the callback {callback.__name__}" if callback.__name__ != "<lambda>" else "a callback"
    return "a callback" if isinstance(callback, partial) else f"the callback {type(callback).__name__}"


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
    message: str = field(default="", kw_only=True)
    """Why the training ended."""

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
