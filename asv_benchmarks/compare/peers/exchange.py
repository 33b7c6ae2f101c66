"""The protocol between programs that time steps and their workers, for any interpreter with NumPy."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def serve(work: dict[str, Callable[[], float]], versions: dict[str, str]) -> None:
    """Answer requests ``NAME COUNT`` on standard input: repeat the named work and return values and CPU seconds."""
    print(json.dumps(versions), flush=True)
    for line in sys.stdin:
        name, count = line.split()
        values, seconds = [], []
        for _ in range(int(count)):
            began = time.process_time()
            values.append(work[name]())
            seconds.append(time.process_time() - began)
        print(json.dumps({"values": values, "seconds": seconds}), flush=True)


class Worker:
    """Context manager for the worker of one side, a process with one thread."""

    def __init__(self, python: str, script: str, problem: str | Path, *arguments: str) -> None:
        command = [python, str(Path(__file__).parent / script), str(problem), *arguments]
        environment = os.environ | ONE_THREAD
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.versions: dict[str, str] = self._reply()

    def _reply(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(
                f"{' '.join(map(str, self.process.args))} ended without a reply; its error message is above."
            )
        return json.loads(line)

    def ask(self, name: str, count: int) -> tuple[list[float], list[float]]:
        """Return the values and CPU seconds of `count` repetitions of the named work."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{name} {count}\n")
        self.process.stdin.flush()
        answer = self._reply()
        return answer["values"], answer["seconds"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
