"""Scores, on numbers that a person can check."""

import numpy as np
import pytest
import scipy.stats

from agp.metrics import coverage, error_rate, interval_coverage, interval_score, nlpd, reliability, rmse


def test_nlpd_is_the_mean_of_negated_log_densities():
    assert nlpd(np.array([-1.0, -2.0, 0.0])) == 1.0


def test_rmse_of_three_and_four():
    assert rmse(np.array([[3.0], [4.0]]), np.zeros((2, 1))) == pytest.approx(np.sqrt(12.5))


def test_rmse_is_zero_for_perfect_means():
    y = np.arange(6.0).reshape(3, 2)
    assert rmse(y, y) == 0.0


@pytest.mark.parametrize(("offset", "expected"), [(1.9599, 1.0), (1.9600, 0.0), (-1.9599, 1.0), (-1.9600, 0.0)])
def test_coverage_counts_the_central_interval(offset, expected):
    mean = np.array([[5.0], [7.0]])
    assert coverage(mean, np.full((2, 1), 4.0), mean + 2 * offset) == expected


def test_coverage_of_calibrated_predictions_is_its_level():
    rng = np.random.default_rng(0)
    mean, variance = rng.normal(size=(40_000, 1)), rng.uniform(0.1, 3, size=(40_000, 1))
    y = mean + np.sqrt(variance) * rng.normal(size=mean.shape)
    assert coverage(mean, variance, y) == pytest.approx(0.95, abs=0.005)
    assert scipy.stats.norm.cdf(1.959963984540054) == pytest.approx(0.975, abs=1e-12)


def test_intervals_hold_their_ends_and_what_was_not_observed_counts_for_nothing():
    lower, upper, y = np.zeros(5), np.ones(5), np.array([0.0, 1.0, -0.5, 2.0, np.nan])
    assert interval_coverage(lower, upper, y) == 0.5
    assert interval_score(lower, upper, y, 0.8) == pytest.approx(1.0 + 15.0 / 4)


def test_the_score_of_intervals_is_least_for_the_true_quantiles():
    y = np.random.default_rng(0).standard_normal(100_000)
    scores = [interval_score(np.full_like(y, -z), np.full_like(y, z), y, 0.9) for z in (1.5, 1.645, 1.8)]
    assert scores[1] == min(scores)
    with pytest.raises(ValueError, match="level is 90, but must lie between 0 and 1"):
        interval_score(y, y, y, 90)


def test_error_rate_counts_missed_labels():
    probability = np.array([[0.9], [0.2], [0.6], [0.1]])
    assert error_rate(probability, np.array([[1.0], [0.0], [0.0], [1.0]])) == 0.5
    assert error_rate(probability, (probability > 0.5) * 1.0) == 0.0
    assert error_rate(np.array([[0.5]]), np.array([[0.0]])) == 0.0


def test_error_rate_of_many_classes_counts_the_most_probable_one():
    probability = np.array([[0.2, 0.5, 0.3], [0.4, 0.35, 0.25], [0.1, 0.1, 0.8], [0.3, 0.4, 0.3]])
    assert error_rate(probability, np.array([[1.0], [0.0], [0.0], [2.0]])) == 0.5
    assert error_rate(probability, np.array([[1.0], [0.0], [2.0], [1.0]])) == 0.0
    two = np.array([[0.3, 0.7], [0.9, 0.1], [0.4, 0.6]])
    y = np.array([[1.0], [1.0], [1.0]])
    assert error_rate(two, y) == error_rate(two[:, 1:], y) == pytest.approx(1 / 3)


@pytest.mark.parametrize("label", [-1.0, 3.0, 0.5])
def test_error_rate_refuses_labels_that_are_no_class(label):
    with pytest.raises(ValueError, match="a whole number from 0 to 2"):
        error_rate(np.full((2, 3), 1 / 3), np.array([[0.0], [label]]))


@pytest.mark.parametrize("score", ["rmse", "coverage", "error_rate"])
def test_targets_without_their_column_are_scored_right_or_refused(score):
    # [N, 1] against [N] would broadcast to N x N silently; models accept targets [N]
    rng = np.random.default_rng(0)
    mean, y = rng.uniform(size=(50, 1)), (rng.uniform(size=50) > 0.5) * 1.0
    scores = {
        "rmse": lambda t: rmse(mean, t),
        "coverage": lambda t: coverage(mean, np.full((50, 1), 0.1), t),
        "error_rate": lambda t: error_rate(mean, t),
    }
    try:
        found = scores[score](y)
    except ValueError:
        return
    assert found == pytest.approx(scores[score](y[:, None]))


@pytest.mark.parametrize(
    "result",
    [nlpd(np.zeros(2)), rmse(np.zeros((2, 1)), np.ones((2, 1))), error_rate(np.ones((2, 1)), np.ones((2, 1)))],
)
def test_scores_are_floats(result):
    assert type(result) is float


def test_coverage_at_any_level():
    y = np.random.default_rng(0).standard_normal((100_000, 1))
    for level in (0.1, 0.5, 0.9):
        assert coverage(0.0 * y, 0.0 * y + 1.0, y, level) == pytest.approx(level, abs=0.005)
    for wrong in (0.0, 1.0, 95):
        with pytest.raises(ValueError, match="must lie between 0 and 1"):
            coverage(y, y**2, y, wrong)


def test_reliability_by_hand():
    probability = np.asarray([0.1, 0.15, 0.9, 0.8, 1.0, 0.85])[:, None]
    y = np.asarray([0.0, 1.0, 1.0, 0.0, 1.0, 1.0])[:, None]
    found = reliability(probability, y, 5)
    np.testing.assert_allclose(found.predicted, [0.125, 0.8875])
    np.testing.assert_allclose(found.observed, [0.5, 0.75])
    assert found.counts.tolist() == [2, 4]
    assert found.error == pytest.approx((2 * 0.375 + 4 * 0.1375) / 6)


def test_reliability_of_two_classes_is_that_of_scikit_learn():
    calibration = pytest.importorskip("sklearn.calibration")
    rng = np.random.default_rng(0)
    probability = rng.uniform(size=500)
    y = (rng.uniform(size=500) < probability**2).astype(float)
    observed, predicted = calibration.calibration_curve(y, probability, n_bins=8)
    found = reliability(probability, y, 8)
    np.testing.assert_allclose(found.observed, observed)
    np.testing.assert_allclose(found.predicted, predicted)


def test_reliability_of_more_classes_is_that_of_the_most_probable_one():
    probability = np.asarray([[0.7, 0.2, 0.1], [0.1, 0.75, 0.15], [0.3, 0.3, 0.4]])
    found = reliability(probability, np.asarray([[0.0], [2.0], [2.0]]), 2)
    np.testing.assert_allclose(found.predicted, [0.4, 0.725])
    np.testing.assert_allclose(found.observed, [1.0, 0.5])
    with pytest.raises(ValueError, match="must be a whole number from 0 to 2"):
        reliability(probability, np.full((3, 1), 7.0))
    with pytest.raises(ValueError, match="bins is 0"):
        reliability(probability, np.zeros((3, 1)), 0)
