"""Data sets: bundled, split, standardised."""

import numpy as np
import pytest

from agp.data import bundled, load


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
    ("name", "shape", "binary"), [("diabetes", (442, 10), False), ("breast_cancer", (569, 30), True)]
)
def test_small_sets_are_there(name, shape, binary):
    pytest.importorskip("sklearn", reason="the extra data is not installed")
    table = bundled(name)
    assert table.X.shape == shape
    assert len(table.columns) == shape[1]
    assert load(name).binary is binary


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
