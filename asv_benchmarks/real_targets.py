"""Compare agp's default estimator with scikit-learn's estimators for counts and positive numbers, on real data.

    python asv_benchmarks/real_targets.py [--data FOLDER] [--tables NAME ...] [--rows 4000] [--out FILE]

The tables come from scikit-learn and statsmodels. If FOLDER is given, hourly bike rentals are read from ``bike.npz``,
with ``X`` [17379, 17] and ``y`` from the uci_datasets collection. `--rows` limits the number of rows, which are drawn
at random. A random fifth of the rows is held out. The columns show the mean deviance of the predicted means (Poisson
for counts, gamma for positive numbers), the mean pinball loss of the quantiles at 5, 50 and 95 %, the fraction of rows
between the outer quantiles, and the CPU seconds of training and prediction.
"""

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import numpy as np
import scipy.stats
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_diabetes
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import GammaRegressor, PoissonRegressor
from sklearn.metrics import mean_gamma_deviance, mean_pinball_loss, mean_poisson_deviance
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from agp.estimators import GPRegressor

QUANTILES = (0.05, 0.5, 0.95)
FEW = 24
"""Columns with at most this number of distinct values are categories for the linear models."""


class Table(NamedTuple):
    """A table, and the estimators that are fitted to it."""

    X: Any
    y: Any
    settings: tuple[dict[str, Any], ...]
    """Settings of the GPRegressors; the first has the likelihood that `agp fit` suggests."""
    exposure: Any = None
    counts: bool = True


class Answer(NamedTuple):
    """Predicted means [N] and quantiles [N, 3] of the held-out rows."""

    mean: Any
    quantiles: Any = None


COUNTS: tuple[dict[str, Any], ...] = ({"likelihood": "negative-binomial"}, {"likelihood": "poisson"})
POSITIVE: tuple[dict[str, Any], ...] = ({"target_transform": "log"}, {"likelihood": "gamma"})


def bikes(folder: Path | None) -> Table | None:
    """Hourly bike rentals of two years, by calendar and weather, without the columns whose sum is the target."""
    if folder is None:
        return None
    X = np.load(folder / "bike.npz")["X"].astype(float)
    casual, registered = (X[:, 15:] - X[:, 15:].min(axis=0)).T  # the columns are centred
    inputs = X[:, [0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14]]
    return Table(inputs, np.round(casual + registered), COUNTS)


def doctor_visits(_: Path | None) -> Table:
    """Visits to a doctor in a year, by insurance and health, from the RAND health insurance experiment."""
    return _of_statsmodels("randhie", "mdvis", COUNTS)


def cancer_cases(_: Path | None) -> Table:
    """Cases of breast cancer in 301 counties, with their populations as exposures."""
    found = _of_statsmodels("cancer", "cancer", COUNTS)
    return found._replace(X=np.log(found.X), exposure=found.X[:, 0])


def food(_: Path | None) -> Table:
    """Food expenditure of 235 households, by income."""
    return _of_statsmodels("engel", "foodexp", POSITIVE)._replace(counts=False)


def diabetes(_: Path | None) -> Table:
    """Progression of diabetes in 442 patients, as positive whole numbers."""
    X, y = load_diabetes(return_X_y=True)
    return Table(X, y, ({"likelihood": "negative-binomial"}, {"likelihood": "gamma"}, {}), counts=False)


def _of_statsmodels(name: str, target: str, settings: tuple[dict[str, Any], ...]) -> Table:
    frame = import_module(f"statsmodels.datasets.{name}").load_pandas().data
    return Table(frame.drop(columns=target).to_numpy(dtype=float), frame[target].to_numpy(dtype=float), settings)


TABLES: dict[str, Callable[[Path | None], Table | None]] = {
    "bike rentals": bikes,
    "doctor visits": doctor_visits,
    "cancer cases": cancer_cases,
    "diabetes": diabetes,
    "food": food,
}


def by_agp(table: Table, train: Any, new: Any, settings: dict[str, Any]) -> Answer:
    beside = [{} if table.exposure is None else {"exposure": table.exposure[rows]} for rows in (train, new)]
    found = GPRegressor(random_state=0, **settings).fit(table.X[train], table.y[train], **beside[0])
    return Answer(
        found.predict(table.X[new], **beside[1]), found.predict_quantiles(table.X[new], QUANTILES, **beside[1])
    )


def by_linear(table: Table, train: Any, new: Any) -> Answer:
    """Fit a generalised linear model; for counts, the quantiles are those of a Poisson distribution with its mean."""
    few = np.asarray([len(np.unique(x)) <= FEW for x in table.X.T])
    columns = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), np.flatnonzero(few)), (StandardScaler(), np.flatnonzero(~few))
    )
    kind = PoissonRegressor if table.counts else GammaRegressor
    model = make_pipeline(columns, kind(alpha=1e-4, max_iter=1000))
    mean = _rates(model, table, train, new, f"{kind.__name__.lower()}__sample_weight")
    return Answer(mean, scipy.stats.poisson.ppf(QUANTILES, mean[:, None]) if table.counts else None)


def by_boosting(table: Table, train: Any, new: Any) -> Answer:
    """Fit four ensembles of trees: one for the means, and one for each quantile."""
    mean = HistGradientBoostingRegressor(loss="poisson" if table.counts else "gamma", random_state=0)
    quantiles = [
        HistGradientBoostingRegressor(loss="quantile", quantile=level, random_state=0)
        .fit(table.X[train], table.y[train])
        .predict(table.X[new])
        for level in QUANTILES
    ]
    return Answer(_rates(mean, table, train, new, "sample_weight"), np.sort(np.stack(quantiles, axis=1), axis=1))


def _rates(model: Any, table: Table, train: Any, new: Any, weight: str) -> Any:
    """Fit a model and predict means; with exposures, the model is fitted to rates, weighted by the exposures."""
    if table.exposure is None:
        return model.fit(table.X[train], table.y[train]).predict(table.X[new])
    e = table.exposure
    return e[new] * model.fit(table.X[train], table.y[train] / e[train], **{weight: e[train]}).predict(table.X[new])


def compared(name: str, table: Table, rows: int) -> list[dict[str, Any]]:
    """Scores of each estimator on the same held-out rows of a table."""
    order = np.random.default_rng(0).permutation(len(table.y))[:rows]
    new, train = np.split(order, [len(order) // 5])
    ways: dict[str, Callable[[], Answer]] = {
        f"agp, {' '.join(map(str, one.values())) or 'gaussian'}": lambda one=one: by_agp(table, train, new, one)
        for one in table.settings
    }
    ways["Poisson regression" if table.counts else "gamma regression"] = lambda: by_linear(table, train, new)
    ways["gradient boosting"] = lambda: by_boosting(table, train, new)
    found = []
    for way, answer in ways.items():
        began = time.process_time()
        mean, quantiles = answer()
        seconds = time.process_time() - began
        one: dict[str, Any] = {"table": name, "rows": len(order), "columns": table.X.shape[1], "estimator": way}
        y, deviance = table.y[new], mean_poisson_deviance if table.counts else mean_gamma_deviance
        one["deviance"] = float(deviance(y, np.maximum(mean, 1e-12)))
        if quantiles is not None:
            losses = [mean_pinball_loss(y, q, alpha=a) for q, a in zip(quantiles.T, QUANTILES, strict=True)]
            one["pinball"] = float(np.mean(losses))
            one["inside"] = float(np.mean((quantiles[:, 0] <= y) & (y <= quantiles[:, 2])))
        one["seconds"] = seconds
        found.append(one)
        print(_line(one), flush=True)
    return found


def _line(one: dict[str, Any]) -> str:
    """Format a row of the Markdown table."""
    pinball, inside = (f"{one['pinball']:.4g}", f"{100.0 * one['inside']:.1f} %") if "pinball" in one else ("", "")
    size = f"{one['rows']:,} x {one['columns']}"
    return (
        f"| {one['table']} | {size} | {one['estimator']} | {one['deviance']:.4g} | {pinball} | {inside} | "
        f"{one['seconds']:.1f} |"
    )


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of bike.npz")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=[*TABLES])
    parser.add_argument("--rows", type=int, default=4000, help="maximum number of rows of a table")
    parser.add_argument("--out", type=Path)
    a = parser.parse_args()
    if a.rows < 20:
        parser.error(f"--rows is {a.rows}, but must be at least 20.")
    if a.data is not None and not (a.data / "bike.npz").is_file():
        parser.error(f"--data is {a.data}, but has no bike.npz.")
    if a.out is not None and not a.out.absolute().parent.is_dir():
        parser.error(f"--out is {a.out}, but there is no folder {a.out.parent}.")
    warnings.simplefilter("ignore")
    print("| table | rows x columns | estimator | deviance | pinball loss | inside 90 % | CPU s |")
    print("|---|---|---|---|---|---|---|")
    found = []
    for name in a.tables:
        try:
            table = TABLES[name](a.data)
        except ImportError:
            parser.error(f"table {name} needs statsmodels; pip install statsmodels.")
        if table is None:
            print(f"{name}: left out, because --data is not given", file=sys.stderr)
            continue
        found += compared(name, table, a.rows)
    if a.out is not None:
        a.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    _main()
