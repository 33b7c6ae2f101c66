"""Effects of levels: their order and spacing, what changes nothing, and which categories have them."""

import numpy as np
import pytest

from agp.selection import level_effects
from agp.selection._level_effects import LEAST_LEVELS, ROWS, ROWS_PER_LEVEL

EFFECTS = np.asarray([0.0, 3.0, 1.0, 6.0, 4.5, 2.0])
"""The effects of the codes 0 to 5, in no order."""


def coded(rows=360, effects=EFFECTS, *, seed=0, noise=0.1):
    """A smooth function of a number, plus an effect of the code in the middle column; the last column is noise."""
    rng = np.random.default_rng(seed)
    codes, x = rng.integers(0, len(effects), rows), rng.uniform(-2.0, 2.0, rows)
    y = np.sin(2.0 * x) + effects[codes] + noise * rng.standard_normal(rows)
    return np.column_stack([x, codes, rng.normal(size=rows)]), y[:, None]


def scale_to(found, effects=EFFECTS):
    """The effects after the shift and the factor that bring them nearest to the true ones."""
    slope, shift = np.polyfit(found, effects, 1)
    return slope * found + shift


def quantiles(rows=360):
    """The normal quantiles of ranks; targets with these ranks are their own normal scores."""
    from scipy import stats

    return stats.norm.ppf((np.arange(rows) + 0.5) / rows)


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_effects_have_the_order_and_the_spacing_of_the_levels(seed):
    X, y = coded(seed=seed)
    (found,) = level_effects(X, y, (1,)).values()
    np.testing.assert_array_equal(np.argsort(found), np.argsort(EFFECTS))
    np.testing.assert_allclose(scale_to(found), EFFECTS, atol=0.5)  # normal scores bend a little
    assert abs(found.mean()) < 1e-12


def test_effects_are_those_of_normal_targets():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.uniform(-2.0, 2.0, 600), np.arange(600) % 4, np.zeros(600)])
    effects = np.asarray([-0.2, 0.3, -0.1, 0.0])
    y = effects[X[:, 1].astype(int)] + rng.standard_normal(600)
    scores = np.empty(600)
    scores[np.argsort(y)] = quantiles(600)
    means = np.asarray([scores[X[:, 1] == code].mean() for code in range(4)])
    (found,) = level_effects(X, y[:, None], (1,)).values()
    variance = means.var(ddof=1)
    shrunk = (means - means.mean()) * variance / (variance + 1.0 / 150.0)  # 150 rows per level, noise of variance 1
    np.testing.assert_allclose(found, shrunk, atol=0.05)
    assert np.abs(found).max() < np.abs(means - means.mean()).max()


def test_effects_of_numbers_are_not_those_of_levels():
    # the effects 0, 1 and 2 are hidden: the higher, the smaller x, on which the targets depend more
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 3, 300)
    x = rng.normal(size=300) - 1.5 * codes
    y = 2.0 * x + 1.0 * codes + 0.1 * rng.standard_normal(300)
    X = np.column_stack([x, codes])
    means = np.asarray([y[codes == code].mean() for code in range(3)])
    assert (np.diff(means) < 0.0).all()
    (found,) = level_effects(X, y[:, None], (1,)).values()
    assert (np.diff(found) > 0.0).all()
    np.testing.assert_allclose(scale_to(found, np.arange(3.0)), np.arange(3.0), atol=0.1)


def test_effects_of_rare_levels_are_shrunk():
    rng = np.random.default_rng(0)
    codes = np.concatenate([np.arange(396) % 4, np.full(4, 4)])
    noise = rng.standard_normal(400)
    for code in range(5):
        noise[codes == code] -= noise[codes == code].mean()
    y = noise + np.asarray([1.5, 0.0, 0.0, 0.0, 1.5])[codes]  # a frequent and a rare level with the same mean
    found = level_effects(np.column_stack([rng.normal(size=400), codes]), y[:, None], (1,))[1]
    others = found[1:4].mean()
    assert 0.4 < (found[4] - others) / (found[0] - others) < 0.9


def test_several_categories_have_their_own_effects():
    rng = np.random.default_rng(0)
    one, other = rng.integers(0, 4, 500), rng.integers(0, 3, 500)
    y = np.asarray([2.0, 0.0, 3.0, 1.0])[one] + np.asarray([0.0, 4.0, 2.0])[other] + 0.1 * rng.standard_normal(500)
    found = level_effects(np.column_stack([one, other]).astype(float), y[:, None], (0, 1))
    assert [*found] == [0, 1]
    np.testing.assert_array_equal(np.argsort(found[0]), [1, 3, 0, 2])
    np.testing.assert_array_equal(np.argsort(found[1]), [0, 2, 1])
    ratio = np.ptp(found[1]) / np.ptp(found[0])
    assert abs(ratio - 4.0 / 3.0) < 0.3


# -- invariants -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", [lambda y: 1e6 * y - 3.0, np.exp, lambda y: np.sinh(2.0 * y)])
def test_increasing_functions_of_the_targets_change_nothing(transform):
    X, y = coded()
    np.testing.assert_allclose(level_effects(X, transform(y), (1,))[1], level_effects(X, y, (1,))[1], rtol=1e-9)


def test_effects_of_the_negative_targets_are_the_negative_effects():
    X, y = coded()
    np.testing.assert_allclose(level_effects(X, -y, (1,))[1], -level_effects(X, y, (1,))[1], atol=1e-6)


def test_labels_of_levels_mean_nothing():
    X, y = coded()
    order = np.asarray([3, 5, 0, 4, 1, 2])
    other = X.copy()
    other[:, 1] = order[X[:, 1].astype(int)]
    np.testing.assert_allclose(level_effects(other, y, (1,))[1][order], level_effects(X, y, (1,))[1], atol=1e-6)


def test_units_and_places_of_columns_change_little():
    X, y = coded()
    moved = np.column_stack([X[:, 1], 1e3 * X[:, 0], X[:, 2] + 1e4])
    np.testing.assert_allclose(level_effects(moved, y, (0,))[0], level_effects(X, y, (1,))[1], atol=0.01)


def test_rows_of_little_weight_change_little():
    rng = np.random.default_rng(0)
    codes = np.concatenate([np.arange(196) % 4, np.full(4, 4)])
    X = np.column_stack([rng.normal(size=200), codes])
    y = np.asarray([0.0, 3.0, 1.0, 2.0, 3.0])[codes] + 0.5 * rng.standard_normal(200)
    alone = level_effects(X, y[:, None], (1,))[1]
    both, shuffled = np.concatenate([X, X]), np.concatenate([y, rng.permutation(y)])[:, None]  # the ranks stay
    found = level_effects(both, shuffled, (1,), weights=np.repeat([1.0, 1e-6], 200))[1]
    np.testing.assert_allclose(found, alone, atol=0.02)
    unweighted = level_effects(both, shuffled, (1,))[1]
    np.testing.assert_allclose(level_effects(both, shuffled, (1,), weights=np.ones(400))[1], unweighted, atol=1e-6)
    assert abs(unweighted - alone).max() > 0.2


def test_seeds_choose_rows():
    X, y = coded(ROWS + 100, noise=1.0)
    first, again, other = (level_effects(X, y, (1,), seed=seed)[1] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).all()
    np.testing.assert_allclose(first, other, atol=0.1)


def test_rows_of_torch_have_the_same_effects():
    torch = pytest.importorskip("torch")
    X, y = coded(200, EFFECTS[:3])
    found = level_effects(torch.asarray(X), torch.asarray(y), (1,))
    np.testing.assert_allclose(found[1], level_effects(X, y, (1,))[1], rtol=1e-9)
    assert isinstance(found[1], np.ndarray)


# -- which categories -------------------------------------------------------------------------------------------------


def test_categories_need_levels_and_rows():
    least = ROWS_PER_LEVEL * 4
    X, y = coded(least, EFFECTS[:4])
    X[:4, 1] = np.arange(4)
    assert [*level_effects(X, y, (1,))] == [1]
    assert level_effects(X[:-1], y[:-1], (1,)) == {}
    two = X.copy()
    two[:, 1] = X[:, 1] % 2
    assert LEAST_LEVELS == 3
    assert level_effects(two, y, (1,)) == {}
    assert level_effects(X, y, ()) == {}


def test_some_of_the_categories_have_effects():
    X, y = coded(200, EFFECTS[:4])
    many, two = np.arange(200) % 50, np.arange(200) % 2
    X = np.column_stack([many, X, two])
    found = level_effects(X, y, (0, 2, 4))
    assert [*found] == [2]
    assert found[2].shape == (4,)


def test_many_levels_of_many_rows_have_none_if_a_sample_has_few_rows_of_each():
    levels = ROWS // ROWS_PER_LEVEL + 1
    rng = np.random.default_rng(0)
    codes = np.arange(3 * ROWS) % levels
    X, y = np.column_stack([rng.normal(size=3 * ROWS), codes]), rng.normal(size=(3 * ROWS, 1))
    assert level_effects(X, y, (1,)) == {}
