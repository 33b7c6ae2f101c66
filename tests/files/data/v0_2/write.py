"""What wrote the files beside it: run at the commit of a release (0.2.0: f67f3f8) by its package, in an empty folder.

python write.py FOLDER
"""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd

import agp
from agp.estimators import GPClassifier, GPRegressor

FOLDER = Path(sys.argv[1])
RNG = np.random.default_rng(5)
X = RNG.uniform(-2.0, 2.0, (12, 2))
Y = np.sin(X[:, :1]) + 0.2 * X[:, 1:] + 0.1 * RNG.standard_normal((12, 1))
NEW = RNG.uniform(-2.0, 2.0, (3, 2))
FEW = {"num_inducing": 3, "seed": 0}
KERNEL = {"kernel": agp.RBF() + agp.Matern32().on((1,))}


def trained(model, y=Y):
    """A few steps on, so that nothing stands where it started."""
    return agp.train(model, X, y, steps=3).model


def frame(rows):
    """A data frame with a column of texts."""
    return pd.DataFrame({"size": rows[:, 0], "kind": np.where(rows[:, 1] > 0.0, "round", "square")})


both = np.concatenate([Y, 30.0 - 2.0 * Y], axis=1)
labels = np.where(Y[:, 0] > 0.0, "yes", "no")
counts = np.round(Y + 2.0)
MODELS = {
    "gpr": trained(agp.GPR.from_data(X, Y, **KERNEL)),
    "sgpr": trained(agp.SGPR.from_data(X, Y, **KERNEL, **FEW)),
    "cggp": trained(agp.CGGP.from_data(X, Y)),
    "svgp-whitened": trained(agp.SVGP.from_data(X, Y, posterior="whitened", **KERNEL, **FEW)),
    "svgp-relaxed": trained(agp.SVGP.from_data(X, Y, posterior="relaxed", **FEW)),
    "svgp-counts": trained(agp.SVGP.from_data(X, counts, likelihood=agp.Poisson(), **FEW), counts),
    "svgp-coregionalised": trained(agp.SVGP.from_data(X, both, outputs="coregionalised", **FEW), both),
    "tsvgp": trained(agp.TSVGP.from_data(X, Y, **FEW)),
    "tvgp": trained(agp.TVGP.from_data(X, 1.0 * (Y > 0.0), likelihood=agp.Bernoulli()), 1.0 * (Y > 0.0)),
    "solve": trained(agp.SOLVEGP.from_data(X, Y, **FEW)),
    "deep": trained(agp.DeepGP.from_data(X, Y, **FEW)),
}
QUICK = {"max_steps": 3, "random_state": 0}
ESTIMATORS = {
    "regressor": GPRegressor(method="wsvgp", num_inducing=3, **QUICK).fit(frame(X), Y[:, 0]),
    "regressor-gpr": GPRegressor(method="gpr", kernel="rbf", **QUICK).fit(frame(X), Y[:, 0]),
    "regressor-grown": GPRegressor(method="sgpr", num_inducing="auto", **QUICK).fit(frame(X), Y[:, 0]),
    "classifier": GPClassifier(method="rsvgp", num_inducing=3, **QUICK).fit(frame(X), labels),
    "classifier-ordinal": GPClassifier(method="wsvgp", num_inducing=3, likelihood="ordinal", **QUICK).fit(
        frame(X), counts[:, 0]
    ),
}

found = {"inputs": NEW.tolist(), "models": {}, "estimators": {}}
for name, model in MODELS.items():
    agp.save(model, FOLDER / f"{name}.safetensors")
    mean, variance = model.predict(NEW)
    found["models"][name] = {"mean": mean.tolist(), "variance": variance.tolist()}
for name, estimator in ESTIMATORS.items():
    agp.save(estimator, FOLDER / f"{name}.safetensors")
    if name.startswith("classifier"):
        told = {"labels": estimator.predict(frame(NEW)), "probabilities": estimator.predict_proba(frame(NEW))}
    else:
        told = dict(zip(("mean", "deviation"), estimator.predict(frame(NEW), return_std=True), strict=True))
    found["estimators"][name] = {key: value.tolist() for key, value in told.items()}
(FOLDER / "predictions.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
