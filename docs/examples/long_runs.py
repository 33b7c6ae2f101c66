"""Do long training runs that can be interrupted, with a checkpoint and a file of scores for each run."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from sklearn.datasets import load_diabetes

import agp


def read_split(path, split=0):
    """Read training and test rows, standardised by the training rows: X, y, X_test and y_test.

    The .npz file has inputs X [N, D], targets y [N] and Boolean test_masks [N, S]. The name "diabetes" means the data
    set of scikit-learn, of which a random tenth of the rows are test rows.
    """
    if path == "diabetes":
        X, y = load_diabetes(return_X_y=True)
        test = np.random.default_rng(split).permutation(len(y)) < len(y) // 10
    else:
        with np.load(path) as file:
            X, y, test = file["X"].astype(float), file["y"].astype(float), file["test_masks"][:, split].astype(bool)
    X, y = ((x - x[~test].mean(axis=0)) / np.maximum(x[~test].std(axis=0), 1e-10) for x in (X, y[:, None]))
    return SimpleNamespace(X=X[~test], y=y[~test], X_test=X[test], y_test=y[test])


def scores(folder, name):
    """Return the stored scores of a run, as a dictionary from step to scores."""
    path = Path(folder) / f"{name}.json"
    return {int(step): facts for step, facts in json.loads(path.read_text()).items()} if path.exists() else {}


def run(folder, name, start, data, score, *, steps, every, batch_size, seed=0):
    """Train the model `start()`, and return its scores after every `every` steps, as a dictionary from step to scores.

    `score` is a function of a model. An interrupted run is resumed, and a complete run is not repeated.
    """
    path = Path(folder) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    found = scores(folder, name)
    if steps in found:
        return found

    def note(progress):
        if progress.step % every and progress.step != steps:
            return
        facts = {"seconds": round(progress.seconds, 1), **score(progress.model)}
        found[progress.step] = facts
        part = path.with_suffix(".part")
        part.write_text(json.dumps(found, indent=1))
        part.replace(path)
        print(name, progress.step, facts, flush=True)

    settings = {"steps": steps, "batch_size": batch_size, "seed": seed, "callbacks": [note]}
    checkpoint = {"checkpoint": path.with_suffix(".safetensors"), "checkpoint_every": max(1, every // 10)}
    agp.train(start(), data.X, data.y, **settings, **checkpoint)
    return found
