"""Measure the calibration of the default estimator on simulated targets of several likelihoods.

    python asv_benchmarks/targets.py [--likelihoods NAME ...] [--rows 1000] [--seeds 3] [--out FILE]

For each likelihood, 1,000 training rows and 4,000 test rows are drawn from a known function of two inputs. The columns
"behind" and "gaussian" show by how many nats per test row the log density of the estimator, and of an estimator with
Gaussian noise, is below that of the true distribution. The other columns show the percentage of test rows inside
intervals of 50, 90 and 99 %, and its distance from these levels in standard errors. Intervals of counts contain more
than their nominal percentage, so the percentages are computed from randomised probability integral transforms.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.stats

from agp.estimators import GPRegressor

LEVELS = (0.5, 0.9, 0.99)
NEW_ROWS = 4000


class Simulation(NamedTuple):
    """A distribution p(y | f) from SciPy, and the settings of the estimator."""

    truth: Callable[[Any, Any], Any]
    """A function from inputs [N, 2] and f [N] to a frozen SciPy distribution of N observations."""
    settings: dict[str, Any]


def _outliers(f: Any, size: float = 0.1, share: float = 0.05) -> "_Mixture":
    return _Mixture(scipy.stats.norm(f, size), scipy.stats.norm(f, 20.0 * size), share)


class _Mixture:
    """A mixture of two distributions; `share` is the weight of the second."""

    def __init__(self, usual: Any, other: Any, share: float):
        self.usual, self.other, self.share = usual, other, share

    def rvs(self, random_state: Any) -> Any:
        usual, other = self.usual.rvs(random_state=random_state), self.other.rvs(random_state=random_state)
        return np.where(random_state.uniform(size=usual.shape) < self.share, other, usual)

    def logpdf(self, y: Any) -> Any:
        return np.logaddexp(self.usual.logpdf(y) + np.log1p(-self.share), self.other.logpdf(y) + np.log(self.share))


SIMULATIONS = {
    "gaussian": Simulation(lambda _, f: scipy.stats.norm(f, 0.2), {}),
    "log-gaussian": Simulation(lambda _, f: scipy.stats.lognorm(0.4, scale=np.exp(f)), {"target_transform": "log"}),
    "student-t": Simulation(lambda _, f: scipy.stats.t(3.0, f, 0.2), {"likelihood": "student-t"}),
    "outliers": Simulation(lambda _, f: _outliers(f), {"likelihood": "student-t"}),
    "latent-noise": Simulation(
        lambda X, f: scipy.stats.norm(f, np.exp(0.5 * X[:, 0] - 1.5)), {"likelihood": "latent-noise"}
    ),
    "poisson": Simulation(lambda _, f: scipy.stats.poisson(2.0 * np.exp(f - 0.25)), {"likelihood": "poisson"}),
    "negative-binomial": Simulation(
        lambda _, f: scipy.stats.nbinom(2.0, 1.0 / (1.0 + np.exp(f))), {"likelihood": "negative-binomial"}
    ),
    "gamma": Simulation(lambda _, f: scipy.stats.gamma(1.5, scale=np.exp(f)), {"likelihood": "gamma"}),
    "exponential": Simulation(lambda _, f: scipy.stats.expon(scale=np.exp(f)), {"likelihood": "exponential"}),
    "beta": Simulation(
        lambda _, f: scipy.stats.beta(8.0 * scipy.stats.norm.cdf(f), 8.0 * scipy.stats.norm.cdf(-f)),
        {"likelihood": "beta"},
    ),
}


def _function(X: Any) -> Any:
    return np.sin(2.0 * X[:, 0]) + 0.5 * np.cos(3.0 * X[:, 1])


def _log_density(truth: Any, y: Any) -> Any:
    discrete = isinstance(getattr(truth, "dist", None), scipy.stats.rv_discrete)
    return truth.logpmf(y) if discrete else truth.logpdf(y)


def simulated(name: str, rows: int, seed: int) -> dict[str, Any]:
    """Run one simulation; return nats per row below the truth, fractions inside the intervals, and CPU seconds."""
    rng, simulation = np.random.default_rng(seed), SIMULATIONS[name]
    X = rng.uniform(-2.0, 2.0, (rows + NEW_ROWS, 2))
    truth = simulation.truth(X, _function(X))
    y = np.asarray(truth.rvs(random_state=rng), dtype=float)
    if name == "beta":
        y = y.clip(1e-12, 1.0 - 1e-12)
    train, new = slice(rows), slice(rows, None)
    known = _log_density(truth, y)[new]
    began = time.process_time()
    found = GPRegressor(random_state=seed, **simulation.settings).fit(X[train], y[train])
    seconds = time.process_time() - began
    gaussian = GPRegressor(random_state=seed).fit(X[train], y[train])
    pit = found.predictor_.pit(X[new], y[new, None], seed=seed)[:, 0]
    inside = {level: float(np.mean(np.abs(pit - 0.5) <= 0.5 * level)) for level in LEVELS}
    return {
        "name": name,
        "seed": seed,
        "behind": float(np.mean(known - found.log_density(X[new], y[new]))),
        "behind, gaussian": float(np.mean(known - gaussian.log_density(X[new], y[new]))),
        "inside": list(inside.values()),
        "errors": [(x - level) / (level * (1.0 - level) / NEW_ROWS) ** 0.5 for level, x in inside.items()],
        "seconds": seconds,
        "steps": found.n_iter_,
        "method": found.method_,
    }


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--likelihoods", nargs="+", choices=SIMULATIONS, default=[*SIMULATIONS])
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    if a.rows < 10 or a.seeds < 1:
        parser.error(f"--rows is {a.rows} and --seeds is {a.seeds}, but must be at least 10 and 1.")
    if a.out is not None and not a.out.absolute().parent.is_dir():
        parser.error(f"--out is {a.out}, but there is no folder {a.out.parent}.")
    print("likelihood         seed behind  gaussian  inside 50, 90, 99 %    standard errors       CPU s  method")
    found = []
    for name in a.likelihoods:
        for seed in range(a.seeds):
            one = simulated(name, a.rows, seed)
            found.append(one)
            inside = " ".join(f"{100.0 * x:5.1f}" for x in one["inside"])
            errors = " ".join(f"{x:+5.1f}" for x in one["errors"])
            print(
                f"{name:18} {seed:4} {one['behind']:6.3f} {one['behind, gaussian']:9.3f}  {inside}     {errors}   "
                f"{one['seconds']:6.1f}  {one['method']}, {one['steps']} steps",
                flush=True,
            )
    if a.out is not None:
        a.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    _main()
