"""Compare maps of the globe: agp with unit vectors and with plain degrees, boosting, and GPBoost.

    python docs/examples/map.py
    python docs/examples/map.py --models gpboost

The rows are the synthetic gravity anomalies of docs/tutorials/map.md. Every tenth revolution of the satellite is held
out. For each model, the script prints the CPU time of the fit and of the predictions, the RMSE of the mean from the
anomalies without noise in several regions, and the NLPD of the held-out rows. `gpboost` needs the package of that name:
nearest rows ("vecchia") in the three columns of unit vectors, with a Matern kernel of smoothness 3/2, and the defaults.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.append(str(Path(__file__).parents[1] / "tutorials"))
from tutorial_data import gravity, gravity_along_tracks

COLUMNS = ["longitude", "latitude"]


def unit_vectors(X):
    """Return unit vectors [N, 3]."""
    longitude, latitude = np.deg2rad(X[COLUMNS].to_numpy().T)
    flat = np.cos(latitude)
    return np.stack([flat * np.cos(longitude), flat * np.sin(longitude), np.sin(latitude)], axis=1)


def by_agp(kernel, **options):
    """Return a function that fits GPRegressor."""

    def fit(X, y):
        from agp.estimators import GPRegressor

        model = GPRegressor(kernel=kernel, random_state=0, **options).fit(X, y)
        return lambda new: model.predict(new, return_std=True)

    return fit


def by_boosting(inputs):
    """Return a function that fits boosted trees, whose noise is the error of threefold cross-validation."""

    def fit(X, y):
        from sklearn.ensemble import HistGradientBoostingRegressor
        from sklearn.model_selection import cross_val_predict

        trees = HistGradientBoostingRegressor(max_iter=2000, early_stopping=True, random_state=0)
        noise = np.std(y - cross_val_predict(trees, inputs(X), y, cv=3))
        model = trees.fit(inputs(X), y)
        return lambda new: (model.predict(inputs(new)), np.full(len(new), noise))

    return fit


def by_gpboost(X, y):
    """Fit GPBoost's nearest-neighbour GP."""
    import gpboost

    model = gpboost.GPModel(
        gp_coords=unit_vectors(X), cov_function="matern", cov_fct_shape=1.5, likelihood="gaussian", gp_approx="vecchia"
    )
    centre = y.mean()
    model.fit(y=y - centre)

    def predict(new):
        found = model.predict(gp_coords_pred=unit_vectors(new), predict_var=True, predict_response=True)
        return centre + found["mu"], np.sqrt(found["var"])

    return predict


MODELS = {
    "sphere": by_agp("matern32.on_sphere(longitude, latitude)"),
    "degrees": by_agp("matern32.on(longitude, latitude)"),
    "sphere-vif": by_agp("matern32.on_sphere(longitude, latitude)", method="vif"),
    "boosting": by_boosting(unit_vectors),
    "boosting-degrees": by_boosting(lambda X: X[COLUMNS].to_numpy()),
    "gpboost": by_gpboost,
}


def regions(X):
    """Return masks of the rows in each region."""
    date_line, high = X.longitude.abs() > 178.0, X.latitude.abs() > 75.0
    return {"all": date_line | True, "near the date line": date_line, "beyond 75 degrees": high}


def compare(rows, names):
    """Fit the models, and print a line for each."""
    data = gravity_along_tracks(rows)
    X, held = pd.DataFrame({"longitude": data.longitude, "latitude": data.latitude}), data.revolution % 10 == 9
    new, y_new, truth = X[held], data.anomaly[held], gravity(data.longitude[held], data.latitude[held])
    rng = np.random.default_rng(0)
    gaps = pd.DataFrame({"longitude": rng.uniform(-180.0, 180.0, 1000), "latitude": rng.uniform(84.0, 90.0, 1000)})
    gaps["latitude"] *= np.where(np.arange(1000) % 2, 1.0, -1.0)
    print(f"{(~held).sum():,} rows to train, {held.sum():,} held out")
    for name in names:
        start = time.process_time()
        predict = MODELS[name](X[~held], data.anomaly[~held])
        fitted = time.process_time()
        mean, deviation = predict(new)
        seconds = f"{fitted - start:.0f} + {time.process_time() - fitted:.1f} CPU s"
        nlpd = np.mean(0.5 * np.log(2.0 * np.pi * deviation**2) + 0.5 * ((y_new - mean) / deviation) ** 2)
        errors = {where: np.sqrt(np.mean((mean - truth)[mask] ** 2)) for where, mask in regions(new).items()}
        errors["gaps about the poles"] = np.sqrt(np.mean((predict(gaps)[0] - gravity(*gaps.to_numpy().T)) ** 2))
        text = ", ".join(f"{where} {error:.2f}" for where, error in errors.items())
        print(f"{name}: {seconds}, NLPD {nlpd:.3f}, RMSE [mGal]: {text}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=111_000)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["sphere", "degrees", "boosting"])
    options = parser.parse_args()
    compare(options.rows, options.models)
