"""Support for former names, which work for one more minor release with a warning."""

import importlib
import inspect
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

C = TypeVar("C", bound=type)


def _warn(old: str, new: str, level: int) -> None:
    msg = f"{old} is now called {new}; the former name will be removed in the next minor release."
    warnings.warn(msg, DeprecationWarning, stacklevel=level + 1)


def former_names(module: str, /, **names: str) -> Callable[[str], Any]:
    """Return a `__getattr__` that supports the former names of a module, given as ``old="new"``.

    If a name has moved to another module, its new name includes this module.
    """

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name not in names:
            msg = f"module {module!r} has no attribute {name!r}"
            raise AttributeError(msg)
        home, _, new = names[name].rpartition(".")
        _warn(f"{module}.{name}", f"{home or module}.{new}", 2)
        return getattr(importlib.import_module(home or module), new)

    return __getattr__


def former_methods(**names: str) -> Callable[[C], C]:
    """Return a class decorator that supports former names of methods and properties, given as ``old="new"``.

    If you use a former name, agp issues a warning and uses the new name. A subclass that was written for an earlier
    release may define a method under its former name only. Defining the subclass then issues a warning, and the method
    is also stored under its new name.
    """

    def decorate(cls: C) -> C:
        own = vars(cls).get("__init_subclass__")

        def __init_subclass__(sub: type, **kwargs: Any) -> None:  # noqa: N807
            if own is None:
                super(cls, sub).__init_subclass__(**kwargs)
            else:
                own.__func__(sub, **kwargs)
            for old, new in names.items():
                if old in vars(sub) and new not in vars(sub):
                    _warn(f"{sub.__name__}.{old}", new, 2)
                    setattr(sub, new, vars(sub)[old])

        for old, new in names.items():
            setattr(cls, old, _forward(cls, old, new))
        cls.__init_subclass__ = classmethod(__init_subclass__)  # type: ignore[method-assign]
        return cls

    return decorate


def _forward(cls: type, old: str, new: str) -> Any:
    found = inspect.getattr_static(cls, new)
    if isinstance(found, property) or not callable(found):

        def read(self: Any) -> Any:
            """Deprecated."""
            _warn(f"{cls.__name__}.{old}", new, 2)
            return getattr(self, new)

        return property(read)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Deprecated."""
        _warn(f"{cls.__name__}.{old}", new, 2)
        method = getattr(type(self), new)
        if method.__name__ == old:  # a subclass defines the former name, and calls its base class
            method = getattr(cls, new)
        return method(self, *args, **kwargs)

    return call
