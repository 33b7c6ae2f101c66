"""The progress bar, from tqdm."""

import contextlib
from collections.abc import Iterator
from typing import Any

from agp.errors import not_installed

__all__ = ["progress_bar", "stage_bar"]


class _Bar:
    def __init__(self, bar: Any) -> None:
        self.bar = bar

    def show(self, step: int, latest: dict[str, float], repairs: int) -> None:
        shown = {name: f"{latest[name]:.4g}" for name in ("bound", "residual") if name in latest}
        if repairs:
            shown["repairs"] = str(repairs)
        self.bar.set_postfix(shown, refresh=False)
        self.bar.update(step - self.bar.n)


class _StageBar:
    """A bar of steps whose number is not known, with the name of the stage."""

    def __init__(self, bar: Any) -> None:
        self.bar = bar

    def begin(self, name: str, left: float) -> None:
        """Show the stage, and how many seconds are left if they are limited."""
        self.bar.set_description(name if left == float("inf") else f"{name}, {max(left, 0.0):.0f} s left")

    def show(self, step: int, latest: dict[str, float], repairs: int) -> None:
        _Bar(self.bar).show(step, latest, repairs)


@contextlib.contextmanager
def stage_bar() -> Iterator[_StageBar]:
    """A bar for a fit in stages. ImportError as `progress_bar`."""
    with _tqdm()(total=None, unit="step", dynamic_ncols=True, leave=False) as bar:
        yield _StageBar(bar)


@contextlib.contextmanager
def progress_bar(total: int, start: int = 0) -> Iterator[_Bar]:
    """A bar from `start` to `total` steps. ImportError, naming the extra, if tqdm is not installed."""
    with _tqdm()(total=total, initial=start, unit="step", dynamic_ncols=True, leave=False) as bar:
        yield _Bar(bar)


def _tqdm() -> Any:
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        msg = f"progress=True needs {not_installed('tqdm', 'cli')}."
        raise ImportError(msg) from error
    return tqdm
