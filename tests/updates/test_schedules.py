"""Learning rates as functions of the count of steps."""

import numpy as np
import pytest
from helpers import toy_data
from hypothesis import given
from hypothesis import strategies as st

from agp import SVGP, train
from agp.backend import get_backend
from agp.updates import NaturalGradient, Plateau, delayed, exponential, linear, stepped
from agp.updates._schedules import rate_at

THIRD = 10.0 ** (-1.0 / 3.0)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (delayed(0.5, 4), {0: 0.0, 3: 0.0, 4: 0.5, 100: 0.5}),
        (delayed(0.5, 0), {0: 0.5}),
        (delayed(linear(1.0, 0.0, 10), 5), {4: 0.0, 5: 1.0, 10: 0.5, 15: 0.0, 40: 0.0}),
        (linear(0.1, 0.5, 8), {0: 0.1, 2: 0.2, 4: 0.3, 8: 0.5, 9: 0.5, 1e6: 0.5}),
        (linear(0.5, 0.1, 8), {0: 0.5, 6: 0.2, 8: 0.1, 20: 0.1}),
        (exponential(0.8, 0.25, 10), {0: 0.8, 5: 0.4, 10: 0.2, 20: 0.05}),
        (exponential(0.8, 0.5), {0: 0.8, 1: 0.4, 3: 0.1}),
        (exponential(0.8, 0.25, 10, floor=0.1), {10: 0.2, 15: 0.1, 30: 0.1}),
        (exponential(0.8, 1.0, 10), {0: 0.8, 33: 0.8}),
        (
            stepped(1e-3, THIRD, 30_000),
            {0: 1e-3, 29_999: 1e-3, 30_000: 1e-3 * THIRD, 89_999: 1e-3 * THIRD**2, 9e4: 1e-4},
        ),
        (stepped(0.8, 0.5, 3, floor=0.15), {2: 0.8, 3: 0.4, 6: 0.2, 9: 0.15, 300: 0.15}),
    ],
    ids=repr,
)
def test_rates_at_some_counts(rate, expected, dtype, backend):
    at = get_backend(backend.name).compile(lambda count: rate_at(rate, count))
    for count, value in expected.items():
        found = at(backend.array(float(count), dtype))
        assert found.shape == ()
        assert float(backend.numpy(found, dtype)) == pytest.approx(value, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(("dtype", "every"), [("float32", 41), ("float64", 49)])
def test_steps_are_taken_at_the_right_count(dtype, every, backend):
    # every * (1 / every) is below 1 in that dtype: a division that was compiled to a product would be a step late
    rate = stepped(1.0, 0.5, every)
    at = get_backend(backend.name).compile(lambda count: rate_at(rate, count))
    for k in (1, 2, 3, 7, 10):
        before, after = (float(at(backend.array(float(count), dtype))) for count in (every * k - 1, every * k))
        # powers on a device need not be exact
        assert (before, after) == pytest.approx((0.5 ** (k - 1), 0.5**k), rel=1e-6)


def test_a_number_is_a_rate_for_every_step():
    assert rate_at(0.25, np.asarray(7.0)) == 0.25


def test_natural_gradient_steps_count_for_their_schedule():
    X, y = toy_data(20)
    model = SVGP.from_data(X, y, num_inducing=4, posterior="whitened")
    counts = []
    update = NaturalGradient(lambda count: counts.append(float(count)) or 0.5)
    train(model, X, y, steps=3, updates=[update])
    assert counts == [0.0, 1.0, 2.0]


@pytest.mark.slow
@given(
    count=st.integers(0, 10_000),
    start=st.floats(0.0, 1.0),
    end=st.floats(0.0, 1.0),
    steps=st.integers(1, 5_000),
    factor=st.floats(0.01, 1.0),
)
def test_rates_stay_between_their_ends_and_never_turn_back(count, start, end, steps, factor):
    now, later = np.asarray(float(count)), np.asarray(float(count + 1))
    low, high = min(start, end), max(start, end)
    for schedule, sign in (
        (linear(start, end, steps), np.sign(end - start)),
        (exponential(high, factor, steps, low), -1.0),
        (stepped(high, factor, steps, low), -1.0),
    ):
        assert low - 1e-15 <= schedule(now) <= high + 1e-15
        assert sign * (schedule(later) - schedule(now)) >= -1e-15
    assert stepped(high, factor, steps)(now) >= exponential(high, factor, steps)(now) * (1.0 - 1e-12)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: delayed(-0.1, 3), "the delayed rate is -0.1, but must be a finite number, 0 or greater"),
        (lambda: delayed(0.1, -3), "start is -3, but must be a whole number of at least 0"),
        (lambda: delayed(0.1, 2.5), "start is 2.5"),
        (lambda: linear(-0.1, 0.1, 3), "start is -0.1"),
        (lambda: linear(0.1, float("inf"), 3), "end is inf"),
        (lambda: linear(0.1, 0.2, 0), "steps is 0, but must be a whole number of at least 1"),
        (lambda: exponential(float("nan"), 0.5), "rate is nan"),
        (lambda: exponential("0.1", 0.5), "rate is '0.1'"),
        (lambda: exponential(0.1, 0.0), "factor is 0.0, but must be above 0 and at most 1"),
        (lambda: exponential(0.1, 1.5), "factor is 1.5"),
        (lambda: exponential(0.1, 0.5, 1.5), "every is 1.5"),
        (lambda: exponential(0.1, 0.5, floor=-1.0), "floor is -1.0"),
        (
            lambda: stepped(0.1, 0.5, 5, floor=0.2),
            "floor is 0.2, but must be at most the rate 0.1; choose a lower floor",
        ),
        (lambda: stepped(0.1, -0.5, 5), "factor is -0.5"),
        (lambda: stepped(0.1, 0.5, -5), "every is -5"),
        (lambda: Plateau(1.0, 5), "factor is 1.0, but must be above 0 and below 1"),
        (lambda: Plateau(0.0, 5), "factor is 0.0"),
        (lambda: Plateau(float("nan"), 5), "factor is nan"),
        (lambda: Plateau(0.5, 0), "patience is 0, but must be a whole number of at least 1"),
        (lambda: Plateau(0.5, 2.5), "patience is 2.5"),
        (lambda: Plateau(0.5, 5, -1e-6), "floor is -1e-06, but must be a finite number, 0 or greater"),
    ],
)
def test_bad_settings_are_refused_at_once(build, message):
    with pytest.raises(ValueError, match=message):
        build()
