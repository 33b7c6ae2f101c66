"""A process that measures entries, and is replaced after a failure or a timeout."""

import gc
import multiprocessing
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Self

from accelerator_parts.part import Settings

LONGEST = 300
"""Maximum number of characters in an error message."""


class EntryError(Exception):
    """The error of an entry, in one line."""


class Workplace:
    """One process at a time, with a new process for each array library and after each failure.

    The new process resets a device that ran out of memory or is in an undefined state.
    """

    def __init__(self) -> None:
        self.process: Any = None
        self.library: str | None = None

    def ask(self, work: Callable[..., dict], settings: Settings, *, limit: float) -> dict:
        """Compute ``work(**settings)`` in the process.

        Raises
        ------
        TimeoutError
            If the start of the process and `work` take longer than `limit` seconds, or `work` raises a TimeoutError.
        EntryError
            If `work` raises another error, or the process dies.
        """
        library = settings.get("library")
        if library != self.library:
            self.stop()
        if self.process is None:
            self._start(library)
        self.pipe.send((work, settings))
        if not self.pipe.poll(limit):
            self.stop()
            raise TimeoutError
        try:
            good, found = self.pipe.recv()
        except EOFError:
            self.process.join()
            good, found = False, f"the process ended with code {self.process.exitcode}"
        if not good:
            self.stop()
        if found is None:
            raise TimeoutError
        if not good:
            raise EntryError(found)
        return found

    def _start(self, library: str | None) -> None:
        context = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self.pipe, theirs = context.Pipe()
        self.process, self.library = context.Process(target=_serve, args=(theirs,)), library
        self.process.start()
        theirs.close()

    def stop(self) -> None:
        """Kill the process, if there is one."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
        self.process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _serve(pipe: Connection) -> None:
    warnings.simplefilter("ignore")  # repaired factorisations are not reported here
    while True:
        try:
            work, settings = pipe.recv()
        except EOFError:  # the command has ended
            return
        try:
            answer = True, work(**settings)
        except TimeoutError:
            answer = False, None
        except Exception as error:  # libraries may raise any error; it is the result of this entry
            answer = False, _sentence(error)
        gc.collect()
        pipe.send(answer)


def _sentence(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}"[:LONGEST]
