"""The sample for choosing a transform lacks some targets, which the transform must be able to take."""

import numpy as np
import pytest
from helpers import assert_close
from tables import WAYS, table

from agp.likelihoods import Log
from agp.selection import fit_regression
from agp.selection._targets import POWER_ROWS, transform_of

pytestmark = pytest.mark.filterwarnings("ignore::agp.errors.NoSignalWarning")


@pytest.mark.parametrize("way", ["exact", "collapsed", "near", "both"])
@pytest.mark.parametrize("rare", [0.0, -3.0])
def test_one_target_that_has_no_logarithm(way, rare):
    rows, method = WAYS[way]
    X, f = table(rows)
    for seed in range(3):
        y = np.exp(2.0 * f)
        y[seed] = rare
        found = fit_regression(X, y, method=method, transforms="auto", hyperparameters="mode", seed=seed)
        assert not isinstance(found.transform, Log)
        assert np.isfinite([found.bound, found.log_density]).all()


@pytest.mark.parametrize("way", ["exact", "collapsed", "near", "both"])
def test_one_target_at_the_end_of_an_interval(way):
    rows, method = WAYS[way]
    X, f = table(rows)
    for seed in range(3):
        y = 1.0 / (1.0 + np.exp(-3.0 * f))
        y[seed] = 0.0
        found = fit_regression(X, y, method=method, transforms=["logit"], hyperparameters="mode", seed=seed)
        assert found.transform is None or found.transform.support == (-0.005, 1.005)
        assert np.isfinite([found.bound, found.log_density]).all()


def test_the_power_of_many_targets_is_that_of_a_part_of_them():
    y = np.random.default_rng(0).standard_normal(3 * POWER_ROWS) ** 3
    every, some = transform_of("yeo-johnson", y), transform_of("yeo-johnson", y[:POWER_ROWS])
    assert abs(every.power - some.power) < 0.05
    again = transform_of("yeo-johnson", np.random.default_rng(1).permutation(y))
    assert_close((again.power, again.scale), (every.power, every.scale), 1e-12)
