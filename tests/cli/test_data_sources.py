"""Data sets: bundled, split, standardised."""

import re

import numpy as np
import pytest
from agp.data import load, load_bundled


def test_the_elevation_model_is_there():
    pytest.importorskip("matplotlib", reason="the extra data is not installed")
    data = load("elevation")
    assert len(data.X) + len(data.X_test) == 344 * 403 == 138_632
    assert data.X.shape[1] == 2
    assert data.grid == (344, 403)
    assert not data.binary
    np.testing.assert_allclose(data.X.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(data.X.std(axis=0), 1.0)
    np.testing.assert_allclose([data.y.mean(), data.y.std()], [0.0, 1.0], atol=1e-12)


@pytest.mark.parametrize(
    ("name", "shape", "classes"),
    [("diabetes", (442, 10), 0), ("breast_cancer", (569, 30), 2), ("digits", (1797, 64), 10)],
)
def test_small_sets_are_there(name, shape, classes):
    pytest.importorskip("sklearn", reason="the extra data is not installed")
    table = load_bundled(name)
    assert table.X.shape == shape
    assert len(table.columns) == shape[1]
    data = load(name)
    assert data.classes == classes
    assert data.binary is (classes == 2)


def test_the_split_depends_on_the_seed_and_covers_all_rows():
    pytest.importorskip("sklearn", reason="the extra data is not installed")
    a, b, c = load("diabetes"), load("diabetes"), load("diabetes", seed=1)
    np.testing.assert_array_equal(a.X_test, b.X_test)
    assert not np.array_equal(a.y_test, c.y_test)
    assert len(a.X_test) == 44


def test_masks_choose_the_test_rows(tmp_path):
    X, y = np.arange(12.0)[:, None], np.arange(12.0)
    masks = np.arange(12)[:, None] % np.array([2, 3]) == 0
    for name, mask in (("test_masks", masks), ("test_mask", masks[:, 1]), ("train_mask", ~masks[:, 1])):
        np.savez(tmp_path / "m.npz", X=X, y=y, **{name: mask})
        data = load(str(tmp_path / "m.npz"), split=1)
        assert len(data.X_test) == 4
        training = np.delete(np.arange(12.0), np.arange(0, 12, 3))
        np.testing.assert_allclose(data.X_test[:, 0], (np.arange(0, 12, 3) - training.mean()) / training.std())


def test_constant_columns_and_targets_are_not_divided_by_zero(tmp_path):
    np.savez(tmp_path / "c.npz", X=np.full((10, 2), 0.1), y=np.full(10, 0.3))
    data = load(str(tmp_path / "c.npz"))
    assert np.abs(data.X).max() < 1e-12
    assert np.abs(data.y).max() < 1e-12


def saved(folder, y, **more):
    path = folder / "d.npz"
    np.savez(path, X=np.arange(float(len(y)))[:, None], y=y, **more)
    return str(path)


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        (np.arange(40) % 2, 2),
        (np.arange(40) % 2 == 0, 2),
        (np.arange(40.0) % 3, 3),
        (np.arange(400) % 20, 20),
        (np.arange(400.0) % 21, 0),
        (np.arange(40.0) % 3 + 1, 0),
        (np.arange(40.0) % 3 * 2, 0),
        (np.arange(40.0) % 3 / 2, 0),
        (np.zeros(40), 0),
        (np.arange(12.0), 0),
    ],
)
def test_the_targets_decide_the_task(tmp_path, y, classes):
    data = load(saved(tmp_path, y))
    assert data.classes == classes
    assert data.describe()["classes"] == classes
    if classes:
        assert set(data.y[:, 0]) == set(range(classes))
        assert data.task == f"classification, {classes} classes"
    else:
        assert abs(data.y.mean()) < 1e-12
        assert data.task == "regression"


def test_the_task_can_be_chosen(tmp_path):
    assert load(saved(tmp_path, np.arange(400) % 25), task="classification").classes == 25
    path = saved(tmp_path, np.arange(400) % 3)
    assert load(path, task="regression").classes == 0
    counts = load(path, counts=True)
    assert counts.classes == 0
    assert counts.task == "regression of counts"
    assert set(counts.y[:, 0]) == {0.0, 1.0, 2.0}


@pytest.mark.parametrize(
    ("y", "task", "message"),
    [
        (np.arange(40) + 18, "auto", "(40 different values from 18 to 57), so the task is unclear"),
        (
            np.arange(40) % 3 + 1,
            "classification",
            "0 to C - 1 without gaps, but y has 3 different values from 1",
        ),
        (np.arange(40) % 3 * 2, "classification", "without gaps, but y has 3 different values from 0 to 4"),
        (np.arange(40) / 2, "classification", "labels must be whole numbers, but y has 0.5"),
        (np.zeros(40), "classification", "all labels are 0; classification needs at least two classes"),
        (np.zeros(40), "guess", "unknown task 'guess'"),
        (np.array(["a", "b"] * 20), "auto", "y has dtype <U1"),
    ],
)
def test_targets_that_do_not_fit_the_task_are_refused(tmp_path, y, task, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        load(saved(tmp_path, y), task=task)


def test_every_class_needs_training_rows(tmp_path):
    y = np.arange(40) % 2
    y[7:9] = 2
    with pytest.raises(ValueError, match="class 2 has test rows but no training rows"):
        load(saved(tmp_path, y, test_mask=np.arange(40) < 10))
