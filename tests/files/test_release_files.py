"""Files that releases have written are read by this version, and predict what they predicted there.

`data/v0_2/write.py` wrote those of 0.2.0, at the commit f67f3f8, with the numbers of `predictions.json` beside them.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers import assert_close

import agp

DATA = Path(__file__).parent / "data" / "v0_2"
FOUND = json.loads((DATA / "predictions.json").read_text(encoding="utf-8"))
NEW = np.asarray(FOUND["inputs"])
BEST = 1e-12


def load(name):
    return agp.load(DATA / f"{name}.safetensors")


def test_every_file_is_looked_at():
    assert {file.stem for file in DATA.glob("*.safetensors")} == {*FOUND["models"], *FOUND["estimators"]}


@pytest.mark.parametrize("name", FOUND["models"])
def test_models_predict_what_they_did(name):
    model = load(name)
    for answers in (model, model.predictor()):
        mean, variance = answers.predict(NEW)
        assert_close(mean, np.asarray(FOUND["models"][name]["mean"]), BEST)
        assert_close(variance, np.asarray(FOUND["models"][name]["variance"]), BEST)


@pytest.mark.parametrize("name", FOUND["models"])
def test_models_are_written_anew_without_loss(name, tmp_path):
    model = load(name)
    agp.save(model, tmp_path / "again.safetensors")
    again = agp.load(tmp_path / "again.safetensors")
    for leaf, x in agp.tree.leaves(model).items():
        np.testing.assert_array_equal(agp.tree.leaves(again)[leaf], x)


@pytest.mark.parametrize("name", FOUND["estimators"])
def test_estimators_predict_what_they_did(name):
    pytest.importorskip("sklearn")
    pd = pytest.importorskip("pandas")
    estimator, told = load(name), FOUND["estimators"][name]
    frame = pd.DataFrame({"size": NEW[:, 0], "kind": np.where(NEW[:, 1] > 0.0, "round", "square")})
    if "labels" in told:
        assert estimator.predict(frame).tolist() == told["labels"]
        assert_close(estimator.predict_proba(frame), np.asarray(told["probabilities"]), BEST)
    else:
        mean, deviation = estimator.predict(frame, return_std=True)
        assert_close(mean, np.asarray(told["mean"]), BEST)
        assert_close(deviation, np.asarray(told["deviation"]), BEST)
    assert "training" in estimator.facts()
    assert estimator.learned_  # which 0.2.0 did not judge
    assert ("growth_" in vars(estimator)) == name.endswith("grown")
