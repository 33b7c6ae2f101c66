"""Constructors that share arguments: one signature, complete documentation, and errors for unknown names.

A constructor ``from_data(cls, X, y, /, *, own=None, **parts: Unpack[Parts])`` declares its own arguments, and takes the
shared arguments as a `TypedDict` (PEP 692), which type checkers read. Each entry of the `TypedDict` is annotated with
an `Argument`. `Model` passes such constructors to `complete_constructor`, which adds the shared arguments to the
signature and to the docstring.
"""

import inspect
import re
import textwrap
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple, Unpack, get_args, get_origin, get_type_hints

from agp.errors import check_call_of

SECTION = re.compile(r"\n\n(Parameters|Raises)\n-+\n")
SOURCE = re.compile(r"\n\nSource:")
WIDTH = 112
"""The maximum length of lines in docstrings."""
DATA = (
    "Inputs [N, D] and targets [N] or [N, K]: floating-point arrays with the same library, dtype and device, which are "
    "also used for all arrays of the model. The likelihood defines the columns of y, by default one for each latent "
    "function."
)
DATA_ERRORS = (
    "if X and y are not finite floating-point arrays with matching shapes and the same library, dtype and device",
    "if a parameter violates its constraint",
)


class Argument(NamedTuple):
    """The documentation and the default value of a shared argument, in the annotation of its `TypedDict` entry."""

    text: str
    error: str = ""
    """The condition under which the argument is an error, as a clause that begins with "if"."""
    default: Any = None


def takes_shared_arguments(f: Any, /) -> bool:
    """Whether a constructor has a parameter ``**parts: Unpack[...]``."""
    return _shared_arguments(f) is not None


def complete_constructor(f: Callable[..., Any], /) -> Callable[..., Any]:
    """Return a constructor that fills in the defaults of shared arguments and raises TypeError for unknown arguments.

    The signature of the result lists all arguments, and its docstring describes them.
    """
    shared = _shared_arguments(f)
    if shared is None:
        return f
    own = [p for p in inspect.signature(f).parameters.values() if p.kind is not p.VAR_KEYWORD]
    options = {p.name for p in own if p.kind is p.KEYWORD_ONLY} | shared.keys()
    defaults = {name: argument.default for name, (_, argument) in shared.items()}

    @wraps(f)
    def construct(cls: type, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.keys() <= options:
            check_call_of(construct, (cls, *args), kwargs)
        return f(cls, *args, **defaults | kwargs)

    del construct.__wrapped__  # tools would read the source of f, which lacks arguments
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [inspect.Parameter(name, keyword, default=x.default, annotation=kind) for name, (kind, x) in shared.items()]
    construct.__signature__ = inspect.signature(f).replace(parameters=own + added)  # type: ignore[attr-defined]
    construct.__doc__ = _complete_docstring(inspect.cleandoc(f.__doc__ or ""), shared)
    return construct


def _shared_arguments(f: Any) -> dict[str, tuple[Any, Argument]] | None:
    """Return the type and the `Argument` of each shared argument, or None if the constructor has none."""
    *_, last = inspect.signature(f).parameters.values()
    if last.kind is not last.VAR_KEYWORD or get_origin(last.annotation) is not Unpack:
        return None
    entries = get_type_hints(get_args(last.annotation)[0], include_extras=True)
    return {name: (hint.__origin__, hint.__metadata__[0]) for name, hint in entries.items()}


def _complete_docstring(text: str, shared: dict[str, tuple[Any, Argument]]) -> str:
    """Add the shared arguments and errors to the sections of a docstring. Its own entries take precedence."""
    text, *source = SOURCE.split(text)
    lead, *parts = SECTION.split(text)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    own = _entries(sections.get("Parameters", ""))
    known = {name for entry in own for name in entry.partition("\n")[0].split(", ")}
    data = [] if "X" in known else [f"X, y\n{_indent(DATA)}"]
    general = [f"{name}\n{_indent(x.text)}" for name, (_, x) in shared.items() if name not in known]
    clauses = [*DATA_ERRORS, *(x.error for _, x in shared.values() if x.error)]
    errors = _indent(f"I{', '.join(clauses[:-1])[1:]}, or {clauses[-1]}.")
    raised = [f"TypeError, ValueError\n{errors}", *_entries(sections.get("Raises", ""))]
    listed = "\n".join([*data, *own, *general])
    text = f"{lead}\n\nParameters\n----------\n{listed}\n\nRaises\n------\n" + "\n".join(raised)
    return text + "".join(f"\n\nSource:{one}" for one in source) + "\n"


def _entries(section: str) -> list[str]:
    """Split a section into entries, which begin with a line that is not indented."""
    return re.split(r"\n(?=\S)", section.strip("\n")) if section else []


def _indent(text: str) -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent="    ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )
