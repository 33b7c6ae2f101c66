"""The parts of Newton's method: coordinates, the damped step, the profiled mean, the trust region."""

import math
import tracemalloc

import numpy as np
import pytest
from helpers import assert_close, named, toy_data

from agp import GPR, RBF, SGPR, ConstantMean, Gaussian, fit_newton, tree
from agp.bounds import Batch
from agp.kernels import Linear
from agp.means import LinearMean
from agp.training._coordinates import LARGEST, Coordinates
from agp.training._newton import (
    LEAST_RADIUS,
    MANY,
    MOST_RADIUS,
    Ascent,
    Evidence,
    Expanded,
    Information,
    MeanStep,
    ascend,
    damped_step,
    newton_names,
    profile,
    why_not_newton,
)


def positive(n, seed=0, least=0.0):
    """A symmetric positive matrix [n, n]."""
    root = np.random.default_rng(seed).normal(size=(n, n))
    return root @ root.T + least * np.eye(n)


def information_of(H):
    """A positive semi-definite matrix as an `Information`."""
    values, vectors = np.linalg.eigh(H)
    return Information(np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T, np.zeros(len(H)))


# -- coordinates ------------------------------------------------------------------------------------------------------


@pytest.fixture
def model():
    X, y = toy_data(20)
    kernel = RBF(lengthscale=[1.0, 2.0]) + Linear()
    return GPR.from_data(3.0 * X, 5.0 * y, kernel=kernel, mean_function=LinearMean())


def test_coordinates_are_logarithms_in_units_and_invert(model, backend):
    here = backend.move(model)
    coordinates = Coordinates(here, newton_names(here))
    vector = coordinates.vector_of(here)
    assert vector.dtype == np.float64
    assert len(vector) == sum(np.size(x) for x in named(model, "parameter").values())
    for leaf, value in tree.leaves(coordinates.model_at(vector)).items():
        if value is not None:
            assert_close(backend.numpy(value), np.asarray(tree.leaves(model)[leaf]), 1e-14, leaf)
    moved = vector + np.linspace(-0.5, 0.5, len(vector))
    np.testing.assert_allclose(coordinates.vector_of(coordinates.model_at(moved)), moved, rtol=0, atol=1e-12)
    assert coordinates.positive.sum() == len(vector) - 3
    np.testing.assert_array_equal(coordinates.linear, ~coordinates.positive)
    again = Coordinates(here, newton_names(here)[::-1])  # compiled functions of JAX sort dictionaries by name
    np.testing.assert_array_equal(again.vector_of(here), vector)
    assert list(again.scales_at(here)) == sorted(newton_names(here))


def test_scales_are_the_derivatives_of_the_parameters(model):
    coordinates = Coordinates(model, newton_names(model))
    vector = coordinates.vector_of(model)
    scales = np.concatenate([np.reshape(x, -1) for x in coordinates.scales_at(model).values()])

    def parameters(vector):
        leaves = tree.leaves(coordinates.model_at(vector))
        return np.concatenate([np.reshape(leaves[leaf.name], -1) for leaf in coordinates.leaves])

    h = 1e-5
    for i, step in enumerate(h * np.eye(len(vector))):
        slope = (parameters(vector + step) - parameters(vector - step)) / (2.0 * h)
        assert slope[i] == pytest.approx(scales[i], rel=1e-8)
        assert np.count_nonzero(slope) == 1


def test_the_box_contains_the_start_and_bounds_positive_parameters(model):
    coordinates = Coordinates(model, newton_names(model))
    start = coordinates.vector_of(model)
    low, high = coordinates.box(start)
    assert (low < start).all()
    assert (start < high).all()
    np.testing.assert_array_equal(np.isfinite(low), coordinates.positive)
    assert set(high) == {LARGEST, math.inf}
    wild = np.where(coordinates.positive, 40.0, 1e9)
    assert (coordinates.box(wild)[1] >= wild).all()
    assert (coordinates.box(-wild)[0] <= -wild).all()


def test_zeros_do_not_move():
    X, y = toy_data(20)
    model = GPR.from_data(X, y, likelihood=Gaussian(0.0), noise=np.full((20, 1), 0.1))
    assert "likelihood.noise_variance" not in newton_names(model)
    assert "kernel.variance" in newton_names(model)


# -- steps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 6, MANY + 20])
def test_a_short_step_is_newtons(n):
    H, g = positive(n, least=1.0), np.random.default_rng(1).normal(size=n)
    np.testing.assert_allclose(damped_step(g, information_of(H), 1e3), np.linalg.solve(H, g), rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("radius", [1e-3, 0.1, 1.0])
@pytest.mark.parametrize("n", [1, 2, 6, MANY + 20])
def test_a_long_step_ends_near_the_edge(n, radius):
    H, g = positive(n, least=0.1), 100.0 * np.random.default_rng(1).normal(size=n)
    step = damped_step(g, information_of(H), radius)
    assert 0.7 * radius <= np.max(np.abs(step)) <= radius
    # it is (H + lambda I)^-1 g for some lambda
    damping = (g - H @ step) @ step / (step @ step)
    assert damping > 0.0
    np.testing.assert_allclose((H + damping * np.eye(n)) @ step, g, rtol=1e-6, atol=1e-4)


@pytest.mark.parametrize("n", [3, MANY + 20])
@pytest.mark.parametrize("sizes", [0.0, 1e-300, [1.0, 0.0, 0.0], [1.0, 0.0, -1e-16]])
def test_a_flat_direction_is_limited(sizes, n):
    g = np.resize([0.1, 30.0, -0.3], n)
    step = damped_step(g, Information(np.zeros((1, n)), np.resize(sizes, n)), 0.5)
    assert np.isfinite(step).all()
    assert np.max(np.abs(step)) <= 0.5
    assert step @ g > 0.0


@pytest.mark.parametrize("n", [20, MANY + 20])
def test_information_of_few_rows_has_flat_directions(n):
    root, g = np.random.default_rng(0).normal(size=(n, 5)), np.ones(n)
    step = damped_step(g, Information(root.T, np.zeros(n)), 1.0)
    assert 0.5 < np.max(np.abs(step)) <= 1.0
    assert step @ g > 0.0


@pytest.mark.parametrize("rows", [5, MANY + 19, MANY + 40])
@pytest.mark.parametrize("radius", [0.02, 1.0, 1e6])
def test_all_solvers_agree(rows, radius):
    # few rows are solved in the space of the rows, many by the matrix of all parameters
    n = MANY + 20
    rng = np.random.default_rng(3)
    A, g = Information(rng.normal(size=(rows, n)), rng.uniform(0.5, 2.0, size=n)), rng.normal(size=n)
    step = damped_step(g, A, radius)
    assert np.max(np.abs(step)) <= radius
    damping = max(0.0, (g - A.times(step)) @ step / (step @ step))
    np.testing.assert_allclose(step, np.linalg.solve(A.dense() + damping * np.eye(n), g), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("mean", [ConstantMean(), LinearMean()])
def test_thousands_of_parameters_take_no_matrix_of_them(mean):
    rng = np.random.default_rng(4)
    X = rng.normal(size=(20, 2000))
    model = GPR.from_data(X, X[:, 0], mean_function=mean)
    tracemalloc.start()
    found = fit_newton(model, X, X[:, 0], max_iterations=3)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.bounds[-1] > float(model.bound(X, X[:, 0])[0])
    assert most < 8 * 2000 * 2000 / 2


def test_no_slope_no_step():
    for n in (3, MANY + 20):
        for H in (positive(n, least=0.1), np.zeros((n, n))):
            np.testing.assert_array_equal(damped_step(np.zeros(n), information_of(H), 1.0), np.zeros(n))


# -- the mean function ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("priors", [False, True])
@pytest.mark.parametrize("rows", [3, 12])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_profile_is_the_maximum_over_the_mean(count, rows, priors):
    # the model l + s d - d B d / 2, with half of the gram matrix for the others and all of it for the mean
    n = 4 + count
    rng = np.random.default_rng(2)
    whitened, slope, curvature = rng.normal(size=(rows, n)), rng.normal(size=n), priors * rng.uniform(size=n)
    curvature[-1] = 0.0  # a prior on some coefficients
    linear = np.arange(n) % 2 == 1 if count == 3 else np.arange(n) >= 4
    own, mean = np.flatnonzero(~linear), np.flatnonzero(linear)
    found, information, step = profile(slope, whitened, curvature, linear, 1e-16)
    gram = whitened.T @ whitened + np.diag(np.where(linear, 1.0, 2.0) * curvature)
    G, C = gram[np.ix_(mean, mean)], gram[np.ix_(mean, own)]
    inverse = np.linalg.inv(G)
    np.testing.assert_allclose(found, slope[own] - C.T @ inverse @ slope[mean], atol=1e-11)
    dense = 0.5 * (gram[np.ix_(own, own)] - C.T @ inverse @ C)
    np.testing.assert_allclose(information.dense(), dense, atol=1e-11)
    assert np.linalg.eigvalsh(information.dense()).min() > -1e-12
    np.testing.assert_allclose(step.first, inverse @ slope[mean], atol=1e-11)
    change = rng.normal(size=len(own))
    np.testing.assert_allclose(step.after(change), inverse @ (slope[mean] - C @ change), atol=1e-11)
    assert step.gain == pytest.approx(0.5 * slope[mean] @ inverse @ slope[mean])
    x, places = rng.normal(size=len(own)), np.array([3, 0])
    np.testing.assert_allclose(information.times(x), dense @ x, atol=1e-11)
    np.testing.assert_allclose(information.at(places).dense(), dense[np.ix_(places, places)], atol=1e-11)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_column_that_is_a_sum_of_others_has_no_large_coefficient(dtype):
    X, y = toy_data(200)
    X = np.concatenate([X, X.sum(axis=1, keepdims=True)], axis=1).astype(dtype)
    model = GPR.from_data(X, y.astype(dtype), mean_function=LinearMean())
    found = Evidence(model, Batch(X, y.astype(dtype)), newton_names(model))
    step = found(found.coordinates.vector_of(model)).mean.first
    assert np.max(np.abs(step)) < 100.0


def test_columns_that_explain_the_same_are_shared():
    # the offset and a constant column: G is singular
    X, y = toy_data(20)
    X = np.concatenate([X, np.full((20, 1), 2.0)], axis=1)
    model = GPR.from_data(X, y, mean_function=LinearMean())
    found = Evidence(model, Batch(X, y), newton_names(model))
    start = found.coordinates.vector_of(model)
    point = found(start)
    new = start.copy()
    new[found.coordinates.linear] += point.mean.first
    after = found(new)
    assert after.value == pytest.approx(point.value + point.mean.gain, abs=1e-6)
    assert after.mean.gain < 1e-8


@pytest.mark.parametrize("mean", [ConstantMean(np.asarray(3.0)), LinearMean()])
def test_one_step_finds_the_best_mean(mean):
    X, y = toy_data(20)
    model = GPR.from_data(X, y, mean_function=mean)
    evidence = Evidence(model, Batch(X, y), newton_names(model))
    start = evidence.coordinates.vector_of(model)
    first = evidence(start)
    start[evidence.coordinates.linear] += first.mean.first
    there = evidence(start)
    assert there.value == pytest.approx(first.value + first.mean.gain, rel=1e-9)
    assert there.mean.gain == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("mean", [ConstantMean(), LinearMean()])
def test_the_mean_follows_the_other_parameters(mean):
    # to first order: what is left to gain is of fourth order in the change, and of second order if the mean stays
    X, y = toy_data(20)
    model = GPR.from_data(X, y, mean_function=mean)
    evidence = Evidence(model, Batch(X, y), newton_names(model))
    own, linear = ~evidence.coordinates.linear, evidence.coordinates.linear
    start = evidence.coordinates.vector_of(model)
    start[linear] += evidence(start).mean.first
    change = 0.02 * np.cos(np.arange(own.sum()))
    moved = start.copy()
    moved[own] += change
    without = evidence(moved).mean.gain
    at = evidence(start).mean
    moved[linear] += at.after(change) - at.first
    assert evidence(moved).mean.gain < 0.01 * without
    search = Ascent(evidence, evidence(start), evidence.coordinates.box(start), 0.02)
    assert search.advance()
    assert search.point.mean.gain < 0.01 * without


# -- the trust region -------------------------------------------------------------------------------------------------


class Bowl:
    """An objective -|A (x - best)|^2 / 2 whose information is off by a factor; it fails beyond a wall."""

    def __init__(self, best, factor=1.0, wall=math.inf, flat=False):
        self.best, self.factor, self.wall, self.flat = np.asarray(best, dtype=float), factor, wall, flat
        self.H = positive(len(self.best), least=1.0)
        self.coordinates = self
        self.linear = np.zeros(len(self.best), dtype=bool)
        self.seen = []

    def __call__(self, x):
        self.seen.append(x)
        if np.max(x) > self.wall:
            return None
        gap = self.best - x
        nothing = MeanStep(np.zeros(0), np.zeros((0, 0)), np.zeros((0, len(x))), 0.0)
        value = -1.0 if self.flat else -0.5 * gap @ self.H @ gap
        return Expanded(x, None, value, self.H @ gap, information_of(self.factor * self.H), nothing, 0.0)


FREE = (np.full(3, -np.inf), np.full(3, np.inf))


def test_a_quadratic_takes_as_many_steps_as_its_distance():
    bowl = Bowl([0.3, -0.2, 0.5])
    point, converged, stopped = ascend(bowl, np.zeros(3), most=10, tolerance=1e-9, box=FREE)
    assert (converged, stopped) == (True, False)
    assert len(bowl.seen) <= 3
    np.testing.assert_allclose(point.vector, bowl.best, atol=1e-6)


@pytest.mark.parametrize("factor", [0.1, 0.4, 1.0, 5.0, 30.0])
def test_wrong_information_converges_too(factor):
    bowl = Bowl([3.0, -7.0, 5.0], factor)
    point, converged, _ = ascend(bowl, np.zeros(3), most=400, tolerance=1e-8, box=FREE)
    assert converged
    assert point.value > -1e-4


def test_no_step_exceeds_the_radius_and_the_radius_grows():
    bowl = Bowl([30.0, -70.0, 50.0])
    ascend(bowl, np.zeros(3), most=100, tolerance=1e-9, box=FREE, radius=0.5)
    lengths = np.max(np.abs(np.diff(bowl.seen, axis=0)), axis=1)
    assert lengths[0] <= 0.5
    assert lengths.max() <= MOST_RADIUS
    assert lengths.max() > 0.9 * MOST_RADIUS


def test_rejected_steps_shrink_the_radius_to_a_stop():
    bowl = Bowl([1.0, 1.0, 1.0], flat=True)
    search = Ascent(bowl, bowl(np.zeros(3)), FREE, 1.0)
    radii = []
    while search.radius >= LEAST_RADIUS:
        assert not search.advance()
        radii.append(search.radius)
    np.testing.assert_array_equal(search.point.vector, np.zeros(3))
    assert all(after < 0.31 * before for before, after in zip([1.0, *radii], radii, strict=False))
    assert radii[-1] < LEAST_RADIUS <= radii[-2]


def test_a_wall_is_approached():
    bowl = Bowl([2.0, 0.0, 0.0], wall=1.0)
    point, _, _ = ascend(bowl, np.zeros(3), most=60, tolerance=1e-9, box=FREE)
    assert 0.8 < point.vector[0] <= 1.0
    assert all(np.isfinite(x).all() for x in bowl.seen)


def test_a_start_that_fails_gives_none():
    assert ascend(Bowl([0.0] * 3, wall=-1.0), np.zeros(3), most=9, tolerance=1e-3, box=FREE) == (None, False, False)


def test_limits_hold_and_coordinates_at_them_leave_the_step():
    bowl = Bowl([5.0, -5.0, 0.5])
    box = (np.full(3, -1.0), np.full(3, 1.0))
    point, converged, _ = ascend(bowl, np.zeros(3), most=60, tolerance=1e-10, box=box)
    assert converged
    assert (np.abs(bowl.seen) <= 1.0).all()
    # the maximum within the box: no free coordinate has a slope, the others push outwards
    at = np.abs(point.vector) > 1.0 - 1e-9
    assert at.any()
    np.testing.assert_allclose(point.slope[~at], 0.0, atol=1e-4)
    assert (point.slope[at] * point.vector[at] > 0.0).all()


def test_a_start_beyond_the_limits_is_moved_into_them():
    bowl = Bowl([0.0, 0.0, 0.0])
    ascend(bowl, np.full(3, 9.0), most=1, tolerance=1e-3, box=(np.full(3, -1.0), np.full(3, 1.0)))
    np.testing.assert_array_equal(bowl.seen, [np.ones(3)])


@pytest.mark.parametrize("most", [1, 2, 5])
def test_the_number_of_evaluations_is_limited(most):
    bowl = Bowl([300.0, -70.0, 50.0])
    _, converged, _ = ascend(bowl, np.zeros(3), most=most, tolerance=1e-3, box=FREE)
    assert len(bowl.seen) == most
    assert not converged


def test_the_search_reports_each_point_and_ends_when_told():
    bowl, seen = Bowl([30.0, -70.0, 50.0]), []

    def watch(point, hoped):
        seen.append((point.value, hoped))
        return len(seen) == 4

    _, converged, stopped = ascend(bowl, np.zeros(3), most=50, tolerance=1e-3, box=FREE, seen=watch)
    assert (converged, stopped, len(seen)) == (False, True, 4)
    values, hoped = zip(*seen, strict=True)
    assert list(values) == sorted(values)
    assert math.isinf(hoped[0])  # the trust region limits the first step


def test_the_last_prediction_is_below_the_tolerance():
    seen = []
    bowl = Bowl([3.0, -7.0, 5.0], 0.8)
    ascend(bowl, np.zeros(3), most=90, tolerance=1e-3, box=FREE, seen=lambda _, hoped: seen.append(hoped) or False)
    assert seen[-1] < 1e-3 <= min(seen[:-1])


class Shy(Bowl):
    """An objective whose third to seventh evaluations fail."""

    def __call__(self, x):
        found = super().__call__(x)
        return None if 2 < len(self.seen) <= 7 else found


def test_a_thorough_search_does_not_end_for_a_small_radius():
    settings = {"most": 60, "tolerance": 0.1, "box": FREE}
    short, *ending = ascend(Shy([2.0, -2.0, 2.0]), np.zeros(3), **settings)
    assert ending == [True, False]
    assert short.value < -1.0
    long, *ending = ascend(Shy([2.0, -2.0, 2.0]), np.zeros(3), thorough=True, **settings)
    assert ending == [True, False]
    assert long.value > -0.1


# -- the evidence -----------------------------------------------------------------------------------------------------


def test_predicted_gains_come_true():
    # near the optimum the quadratic model is good, with the mean function as well
    X, y = toy_data(40)
    model = GPR.from_data(X, y, mean_function=ConstantMean())
    evidence = Evidence(model, Batch(X, y), newton_names(model))
    start = evidence.coordinates.vector_of(model)
    found = []
    box = evidence.coordinates.box(start)
    ascend(evidence, start, most=40, tolerance=1e-7, box=box, seen=lambda point, _: found.append(point))
    optimum = found[-1].vector
    # a nearby start
    point = evidence(optimum + 0.02 * np.cos(np.arange(len(optimum))))
    search = Ascent(evidence, point, box, 1.0)
    predicted = search.predicted
    assert search.advance()
    assert search.point.value - point.value == pytest.approx(predicted, rel=0.5)
    assert predicted > 1e-4


def test_failures_are_counted_and_no_jitter_is_added():
    X, y = toy_data(20)
    X[1] = X[0]
    model = GPR.from_data(X, y, kernel=RBF(1.0, 50.0))
    evidence = Evidence(model, Batch(X, y), newton_names(model))
    start = evidence.coordinates.vector_of(model)
    place = [leaf.name for leaf in evidence.coordinates.leaves].index("likelihood.noise_variance")
    start[evidence.coordinates.places[place][-1]] = -60.0
    assert evidence(start) is None
    assert evidence.rejections == {"a factorisation failed": 1}
    assert evidence.evaluations == 1
    assert evidence.seconds > 0.0


def test_overflow_is_a_rejection():
    X, y = toy_data(20)
    model = GPR.from_data(X, y)
    evidence = Evidence(model, Batch(X, y), newton_names(model))
    for vector in (np.full(len(evidence.coordinates.positive), x) for x in (800.0, -800.0, np.nan)):
        assert evidence(vector) is None
    assert sum(evidence.rejections.values()) == 3


def test_models_say_why_they_have_no_newton_steps():
    X, y = toy_data(20)
    assert why_not_newton(GPR.from_data(X, y)) == ""
    assert why_not_newton(SGPR.from_data(X, y, num_inducing=5)) == "SGPR has no second-order expansion of its bound"
