"""What is chosen, and what is predicted, does not depend on the units of the data."""

from functools import partial

import numpy as np
import pytest
from tables import WAYS, table

import agp
from agp import selection
from agp.selection._climb import on_rows
from agp.selection._given import Data
from agp.selection._kernel import _sample

fit_regression = partial(selection.fit_regression, hyperparameters="mode")
"""The search for one setting; `test_few_rows.py` tests the integration over settings."""

COLUMNS = {"metres": (1.0, 1.0), "large": (1e6, 1e6), "small": (1e-6, 1e-6), "mixed": (1e6, 1e-6)}
TARGETS = {"large": (1e6, 0.0), "small": (1e-6, 0.0), "far": (1.0, 1e6), "all": (1e-6, -1e6)}


def standardised(model, X, scale, level):
    mean, variance = model.predict(X, observed=True)
    return (mean - level) / scale, variance / scale**2


def compare(way, factors, scale, deviations, tolerance, **options):
    rows, method = WAYS[way]
    X, y = table(rows)
    new = table(9, seed=1)[0]
    a, level = np.array(factors), scale * deviations * y.std()
    here = fit_regression(X, y, method=method, **options)
    there = fit_regression(X * a, scale * y + level, method=method, **options)
    assert there.kernel == here.kernel
    assert there.message == here.message
    assert [one[:2] for one in there.candidates] == [one[:2] for one in here.candidates]
    rounding = np.finfo(float).eps * abs(deviations) * rows
    found, expected = standardised(there.model, new * a, scale, level), standardised(here.model, new, 1.0, 0.0)
    for one, two in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, two, rtol=0.0, atol=(tolerance + rounding) * y.std())
    per_row = (there.bound - here.bound) / rows + np.log(scale)
    assert abs(per_row) <= tolerance + rounding


@pytest.mark.long
@pytest.mark.parametrize("factors", COLUMNS.values(), ids=COLUMNS)
@pytest.mark.parametrize("way", WAYS)
def test_units_of_inputs(way, factors):
    compare(way, factors, 1.0, 0.0, 1e-3)


@pytest.mark.long
@pytest.mark.parametrize(("scale", "deviations"), TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("way", WAYS)
def test_units_of_targets(way, scale, deviations):
    compare(way, (1.0, 1.0), scale, deviations, 1e-3)


@pytest.mark.long
def test_units_of_a_column_that_is_constant_in_the_samples():
    X, y = table(5_000)
    X = np.column_stack([X, np.full(len(X), -1.8e-8)])
    X[[17, 4_321], 2] = 1e-4
    here, there = (fit_regression(a * X, y, most=64) for a in (1.0, 1e-6))
    assert there.kernel == here.kernel
    assert abs(there.bound - here.bound) / len(X) < 1e-3


@pytest.mark.long
@pytest.mark.parametrize("factors", [(1e3, 1e3), (1e6, 1e-6)])
@pytest.mark.parametrize(("scale", "deviations"), [(1e6, 0.0), (1e-6, 1e3)])
@pytest.mark.parametrize("way", ["sample", "collapsed"])
def test_nothing_but_rounding_where_nothing_is_trained(way, factors, scale, deviations, monkeypatch):
    for name in ("TRAIN_STEPS", "SAMPLED_STEPS", "REVIVAL_STEPS", "LAST_STEPS", "POLISH_STEPS"):
        monkeypatch.setattr(f"agp.selection._stages.{name}", 1)
    for name in ("HEAT_STEPS", "RACE_STEPS", "STEPS"):
        monkeypatch.setattr(f"agp.selection._race.{name}", 1)
    compare(way, factors, scale, deviations, 1e-6)


def test_a_sample_does_not_depend_on_the_level_of_the_targets():
    # whole numbers in float32: standardised at their level, they would lose all but the first digits
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2)).astype("float32")
    y = np.round(100.0 * np.sin(X[:, :1])).astype("float32")
    here, far = (_sample(Data(X, y + level, None)).y for level in (np.float32(0.0), np.float32(2**23)))
    np.testing.assert_allclose(far, here, rtol=0.0, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_noise_near_zero_becomes_a_share_of_the_variance_of_the_targets(scale):
    X, y = table(20)
    y = scale * y
    model = agp.GPR.from_data(X, y, likelihood=agp.Gaussian(1e-12 * scale**2))
    noise = float(on_rows(model, Data(X, y, None), {}).likelihood.noise_variance)
    np.testing.assert_allclose(noise, 1e-4 * np.var(y), rtol=1e-12)
