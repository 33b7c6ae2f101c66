"""A process that measures on request, and is ended when it takes too long or has failed."""

import gc
import multiprocessing
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Self

from accelerator_parts.part import Settings

LONGEST = 300
"""Characters of an error message that are kept."""


class EntryError(Exception):
    """What went wrong in an entry, in a line."""


class Workplace:
    """One process at a time, begun where it is needed: for each array library, and after each failure.

    So a device that ran out of memory, or was left unusable, is clean for the next entry.
    """

    def __init__(self) -> None:
        self.process: Any = None
        self.library: str | None = None

    def ask(self, work: Callable[..., dict], settings: Settings, *, limit: float, alone: bool = False) -> dict:
        """``work(**settings)``, computed there.

        Raises
        ------
        TimeoutError
            If it takes longer than `limit` seconds, the start of a process included, or says so itself.
        EntryError
            If it raises, or the process dies.
        """
        library = settings.get("library")
        if alone or library != self.library:
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
        if alone or not good:
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
        """End the process, whatever it does."""
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
    warnings.simplefilter("ignore")  # a repaired factorisation is no news here
    while True:
        try:
            work, settings = pipe.recv()
        except EOFError:  # the command was ended
            return
        try:
            answer = True, work(**settings)
        except TimeoutError:
            answer = False, None
        except Exception as error:  # whatever a library raises is the result of this entry
            answer = False, _sentence(error)
        gc.collect()
        pipe.send(answer)


def _sentence(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first}"[:LONGEST]
