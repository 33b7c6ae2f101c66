"""Compare times with default threads and with one thread, without and with a busy loop on each processor.

    python asv_benchmarks/threads.py [--cases diabetes,friedman] [--repeats 5] [--library numpy]

Each time is the median of several calls, each in a new process. In one environment, no thread variables are set, and in
the other, the usual ones are set to 1; calls in the two environments alternate. The last column is the load average of
the last minute. Rows "as it is" are meaningful only if this load is low.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
BUSY = "while True: pass"


def diabetes(library: str) -> Callable[[], object]:
    from sklearn.datasets import load_diabetes

    X, y = load_diabetes(return_X_y=True)
    return _regression(X, y, library)


def friedman(library: str) -> Callable[[], object]:
    from sklearn.datasets import make_friedman1

    X, y = make_friedman1(1_000, 10, noise=1.0, random_state=0)
    return _regression(X, y, library)


def _regression(X, y, library: str) -> Callable[[], object]:
    from agp import to_backend
    from agp.estimators import GPRegressor

    X, y = (x if library == "numpy" else to_backend(x, library) for x in (X, y))
    return lambda: GPRegressor().fit(X, y)


def _exact(library: str):
    import numpy as np

    import agp

    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 10.0, (4_000, 4))
    y = np.sin(X).sum(axis=1, keepdims=True) + 0.1 * rng.standard_normal((4_000, 1))
    if library != "numpy":
        X, y = agp.to_backend(X, library), agp.to_backend(y, library)
    return agp.GPR.from_data(X, y), X, y


def exact(library: str) -> Callable[[], object]:
    import agp

    model, X, y = _exact(library)
    return lambda: agp.value_and_gradient(model, X, y)


def exact_fit(library: str) -> Callable[[], object]:
    import agp

    model, X, y = _exact(library)
    return lambda: agp.fit_lbfgs(model, X, y, max_iterations=3)


def step(library: str) -> Callable[[], object]:
    return _steps(32, 32, 200, library)


def large_step(library: str) -> Callable[[], object]:
    return _steps(512, 1_024, 20, library)


def _steps(M: int, batch: int, count: int, library: str) -> Callable[[], object]:
    import numpy as np

    import agp

    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 10.0, (4 * batch, 4))
    y = np.sin(X).sum(axis=1, keepdims=True)
    if library != "numpy":
        X, y = agp.to_backend(X, library), agp.to_backend(y, library)
    model = agp.SVGP.from_data(X, y, num_inducing=M)
    return lambda: agp.train(model, X, y, steps=count, batch_size=batch)


CASES = {f.__name__: f for f in (diabetes, friedman, exact, exact_fit, step, large_step)}
LIMITS = {("diabetes", False): 1.1, ("friedman", False): 1.1, ("diabetes", True): 1.1, ("friedman", True): 1.1}
LIMITS |= {("exact", False): 1.0, ("exact_fit", False): 1.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--library", default="numpy")
    parser.add_argument("--machine", choices=("quiet", "busy", "both"), default="both")
    parser.add_argument("--timed", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.timed:
        print(_once(CASES[options.timed](options.library)))
        return
    print("| case | machine | one thread, s | default, s | ratio | at most | load |\n|---|---|---|---|---|---|---|")
    for busy in {"quiet": (False,), "busy": (True,), "both": (False, True)}[options.machine]:
        for case in options.cases.split(","):
            print(_row(case, busy, options), flush=True)


def _row(case: str, busy: bool, options: argparse.Namespace) -> str:
    load = os.getloadavg()[0]
    loops = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range((os.cpu_count() or 1) if busy else 0)]
    try:
        times = [[_timed(case, one, options.library) for one in (True, False)] for _ in range(options.repeats)]
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    one, default = (statistics.median(column) for column in zip(*times, strict=True))
    limit = LIMITS.get((case, busy), "")
    machine = "busy loops" if busy else "as it is"
    return f"| {case} | {machine} | {one:.3f} | {default:.3f} | {default / one:.2f} | {limit} | {load:.1f} |"


def _timed(case: str, one_thread: bool, library: str) -> float:
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environment |= dict.fromkeys(VARIABLES, "1") if one_thread else {}
    path = [str(ROOT), str(ROOT / "backends"), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    command = [sys.executable, __file__, "--timed", case, "--library", library]
    out = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return float(out.stdout.split()[-1])


def _once(call: Callable[[], object]) -> float:
    """Seconds of the second call, because the first call imports modules and starts threads."""
    call()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
