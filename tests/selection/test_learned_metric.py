"""Learned metrics in `fit_regression`: when they are chosen, and that turning the axes changes nothing else."""

import numpy as np
import pytest
from helpers import as_arrays
from tables import bits
from test_selection_checkpoints import Killed

import agp
from agp import tree
from agp.backend import to_numpy
from agp.kernels import RBF, ActiveDims, Linear, Matern52, OnSphere, Overlap, Product, Projected, Sum, Warped
from agp.processes import near_search
from agp.selection._climb import Climber, columns_of, exact_gp, narrow, widen
from agp.selection._given import KERNELS, Columns, Data, Plan, with_base
from agp.selection._learned_metric import SUFFIX, learn_metric, turn_axes
from agp.selection._trial import Candidate, Trial
from agp.selection._watch import Pieces, Watch

ROWS, TEST = 4500, 1000


def inputs(N, columns=5, seed=0):
    return np.random.default_rng(seed).uniform(-1.0, 1.0, (N, columns))


def oblique(X, seed=1):
    """Targets that depend on two oblique directions."""
    a, b = X[:, :5] @ [1.0, -1.0, 0.8, 0.0, 0.6], X[:, :5] @ [0.5, 1.0, 0.3, -1.0, 0.0]
    return np.sin(2.0 * a) * np.cos(1.5 * b) + 0.05 * np.random.default_rng(seed).standard_normal(len(X))


def additive(X, seed=1):
    return np.sin(4.0 * X).sum(1) + 0.1 * np.random.default_rng(seed).standard_normal(len(X))


def fit(X, y, **settings):
    return agp.fit_regression(X[:ROWS], y[:ROWS], method="nngp", **settings)


def density(found, X, y):
    return found.model.predictor().log_density(X[ROWS:], y[ROWS:]).mean()


def scores(found, *, learned):
    """The best density of held-out rows for each metric."""
    of = [one.held_out for one in found.candidates if one.kernel.endswith(SUFFIX) == learned]
    return max(x for x in of if np.isfinite(x))


def test_oblique_directions_are_found_and_predictions_are_better(full_size):
    X = inputs(ROWS + TEST)
    y = oblique(X)
    found = fit(X, y)
    assert found.kernel == f"rbf{SUFFIX}"
    assert any(one.kernel == found.kernel and one.rows == 2000 for one in found.candidates)
    assert scores(found, learned=True) > scores(found, learned=False) + 0.1
    ours = density(found, X, y)
    assert abs(ours - -0.5 * np.log(2 * np.pi * np.e * 0.05**2)) < 0.05  # the density given the function


def test_sums_of_functions_of_the_columns_keep_the_usual_metric(full_size):
    X = inputs(ROWS, 4)
    found = fit(X, additive(X))
    assert not found.kernel.endswith(SUFFIX)
    assert "metric" in {stage.name for stage in found.stages}
    assert not any(one.kernel.endswith(SUFFIX) for one in found.candidates)  # it was given up on few rows


@pytest.fixture
def always(monkeypatch) -> None:
    """A metric is learned from few rows, whatever is gained, and used."""
    monkeypatch.setattr("agp.selection._many_rows.LARGER", 150)
    monkeypatch.setattr("agp.selection._learned_metric.LEAST_ROWS", 30)
    monkeypatch.setattr("agp.selection._learned_metric.GAIN", -np.inf)
    monkeypatch.setattr("agp.selection._near.NearCandidates.is_better", lambda *_: True)


def smooth(X):
    return np.sin(2.0 * X @ [1.0, -1.0, 0.5, 0.2]) + 0.1 * np.random.default_rng(1).standard_normal(len(X))


def small(X, y, **settings):
    return agp.fit_regression(X, y, method="nngp", hyperparameters="mode", **settings)


def test_units_change_nothing(always):
    X = inputs(260, 4)
    y = smooth(X)
    found = small(X, y)
    again = small(X * [1e3, 1.0, 0.2, 7.0] + [5e3, 0.0, 1.0, -3.0], 10.0 * y + 3.0)
    assert again.kernel == found.kernel
    assert found.kernel.endswith(SUFFIX)
    np.testing.assert_allclose(again.log_density, found.log_density - np.log(10.0), atol=1e-3)


def test_a_checkpoint_is_resumed_to_the_bit(always, tmp_path, monkeypatch):
    X = inputs(260, 4)
    y = smooth(X)
    expected = bits(small(X, y))
    usual, written = Pieces._write, []

    def write(self, to):
        usual(self, to)
        written.append(0)
        if any(name.startswith("metric") for name in self.done):
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Pieces, "_write", write)
        with pytest.raises(Killed):
            small(X, y, checkpoint=tmp_path / "run.agp")
    assert written
    assert bits(small(X, y, checkpoint=tmp_path / "run.agp")) == expected


# -- the new axes -----------------------------------------------------------------------------------------------------


def trial_of(X, y, kernel):
    model = exact_gp(Data(X, y[:, None]), kernel=kernel, likelihood=agp.Gaussian(0.01))
    return Trial(model, Candidate("rbf", len(X), -9.0, -9.0), 0.0)


def plan_of(columns=5, **more):
    more = {"kernel": "auto", "priors": "auto"} | more
    return Plan(likelihood=agp.Gaussian(), mean_function=None, memory=None, tolerance=1e-3, columns=columns, **more)


@pytest.fixture
def climb():
    watch = Watch(None, (), progress=False)
    return Climber(plan_of(Columns(5)), Pieces(None, {}, watch), watch, exact=False)


def mixed(X):
    """A kernel of numbers, a column of codes and a linear part."""
    ready = (RBF(1.0, 0.7) + Linear.centred(X)).with_categories(X.shape[1], (1,))
    return ready.from_data(X, 1.0)


def rows_with_codes(N=200, seed=0):
    X = inputs(N, 6, seed)
    X[:, 1] = np.random.default_rng(seed).integers(0, 3, N)
    return X, oblique(np.delete(X, 1, axis=1))


def test_turned_kernels_are_the_same_functions():
    X, y = rows_with_codes()
    Z = rows_with_codes(30, seed=3)[0]
    for kernel in (mixed(X), Warped(Matern52(1.2, 0.9)).from_data(X, 1.0), RBF(1.0, 0.5).from_data(X, 1.0)):
        model = exact_gp(Data(X, y[:, None]), kernel=kernel, likelihood=agp.Gaussian(0.01))
        turned = turn_axes(model)
        np.testing.assert_allclose(turned(Z, X)[0], kernel(Z, X)[0], rtol=1e-9, atol=1e-12)
        again = turn_axes(tree.replace(model, {"kernel": turned}))
        np.testing.assert_allclose(again(Z, X)[0], kernel(Z, X)[0], rtol=1e-9, atol=1e-12)
        assert tree.outline(again) == tree.outline(turned)


def test_the_first_axes_are_the_directions_of_the_function_in_units_of_the_lengthscales():
    X = inputs(400)
    y = np.sin(2.0 * X @ [1.0, 2.0, 0.0, -1.0, 0.5])
    scales = np.asarray([1.0, 0.5, 2.0, 1.5, 1.0])
    model = exact_gp(Data(X, y[:, None]), kernel=RBF(1.0, scales), likelihood=agp.Gaussian(1e-4))
    first = turn_axes(model).weights[:, 0] * scales
    expected = np.asarray([1.0, 2.0, 0.0, -1.0, 0.5]) * scales
    assert abs(first @ expected) / np.linalg.norm(expected) > 0.999
    np.testing.assert_allclose(np.linalg.norm(first), 1.0)


def test_columns_of_codes_and_times_remain_axes():
    X, y = rows_with_codes()
    model = exact_gp(Data(X, y[:, None]), kernel=mixed(X), likelihood=agp.Gaussian(0.01))
    turned = turn_axes(model, fixed=(3,))
    assert isinstance(turned, Sum)
    (projected,) = tree.nodes(turned, Projected).values()
    assert projected.weights.shape == (5, 5)  # without the codes
    place = 2  # of column 3 among the numbers
    others = np.delete(np.arange(5), place)
    np.testing.assert_array_equal(projected.weights[place, others], 0.0)
    np.testing.assert_array_equal(projected.weights[others, place], 0.0)
    assert np.count_nonzero(projected.weights[np.ix_(others, others)]) == 16
    relabelled = X.copy()
    relabelled[:, 1] = np.asarray([2.0, 0.0, 1.0])[X[:, 1].astype(int)]
    np.testing.assert_array_equal(turned(relabelled)[0], turned(X)[0])
    assert turn_axes(model, fixed=(2, 3, 4)) is None
    assert turn_axes(exact_gp(Data(X, y[:, None]), kernel=agp.Periodic(), likelihood=agp.Gaussian(0.01))) is None


def test_weights_of_rows_count(climb):
    X, y = inputs(120), oblique(inputs(120))
    repeated = Data(np.repeat(X, 2, axis=0), np.repeat(y, 2)[:, None])
    found = [
        turn_axes(exact_gp(data, kernel=RBF(1.0, 0.8), likelihood=agp.Gaussian(0.1), mean_function=agp.ZeroMean()))
        for data in (Data(X, y[:, None], 2.0 * np.ones(120)), repeated)
    ]
    np.testing.assert_allclose(*(np.abs(one.weights) for one in found), rtol=1e-6, atol=1e-9)


def test_a_metric_is_learned_only_from_enough_rows_and_with_the_default_arguments(climb):
    X = inputs(1100)
    one = trial_of(X, oblique(X), RBF(1.0, 0.8 * np.ones(5)))
    assert learn_metric(plan_of(Columns(5)), climb, one).kernel == f"rbf{SUFFIX}"
    few = trial_of(X[:900], oblique(X[:900]), RBF(1.0, 0.8 * np.ones(5)))
    assert learn_metric(plan_of(Columns(5)), climb, few) is None
    for plan in (plan_of(Columns(5), kernel=RBF()), plan_of(Columns(5), priors={})):
        assert learn_metric(plan, climb, one) is None
    hopeless = one._replace(scores=one.scores._replace(evidence=9.0, log_density=9.0))
    assert learn_metric(plan_of(Columns(5)), climb, hopeless) is None


# -- what looks at the parts of kernels -------------------------------------------------------------------------------


def test_the_origin_of_float32_moves_the_centres_inside():
    X = inputs(80) + np.asarray([0.0, 1e4, 0.0, -3e3, 0.0])
    W = np.random.default_rng(0).standard_normal((5, 3))
    kernel = Projected(Matern52() + Linear(centre=(X @ W).mean(0)), W).from_data(X, 1.0)
    model = exact_gp(Data(X, X[:, :1]), kernel=kernel)
    thin = narrow(model)
    np.testing.assert_allclose(thin.kernel(thin.X)[0], kernel(X)[0], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(widen(model, thin, thin).kernel(X)[0], kernel(X)[0], rtol=1e-4, atol=1e-6)
    row = np.arange(5.0)
    np.testing.assert_array_equal(columns_of(model, "kernel.kernel.parts.1", row), row @ W)
    np.testing.assert_array_equal(columns_of(model, "kernel", row), row)


@tree.model
class Inner(agp.kernels.Kernel):
    """The inner products of inputs, of a user."""

    def __call__(self, X, Z=None, /):
        return X @ (X if Z is None else Z).T, None

    def diag(self, X, /):
        return np.sum(X * X, axis=1), None

    def from_data(self, X, variance, /):
        return self

    def check(self, width, /):
        pass


FAR = np.asarray([30.0, 40.0, 0.0, -3e3, 10.0])
MOVED = {
    "sphere": (lambda X: RBF().on_sphere((0, 1)) * RBF().on((2, 3, 4)), None, [0.0, 0.0, 0.0, -3e3, 10.0]),
    "on-sphere": (
        lambda X: OnSphere(RBF() + Linear(centre=[0.1, 0.2, 0.3])).on((1, 0)) + Linear(centre=FAR),
        None,
        [0.0, 0.0, 0.0, -3e3, 10.0],
    ),
    "nested": (lambda X: RBF() * (RBF().on_sphere((1, 0)) + RBF()).on((4, 0)), None, [0.0, 40.0, 0.0, -3e3, 0.0]),
    "linear": (lambda X: Linear().on(0) + RBF(), None, [0.0, *FAR[1:]]),
    "own": (lambda X: Inner().on((0, 4)) * RBF(), None, [0.0, *FAR[1:4], 0.0]),
    "own-everywhere": (lambda X: Inner() * RBF(), None, 5 * [0.0]),
    "linear-mean": (lambda X: RBF(), agp.LinearMean(), 5 * [0.0]),
    "constant-mean": (lambda X: RBF(), agp.ConstantMean(), FAR),
}


@pytest.mark.parametrize("name", MOVED)
def test_float32_moves_only_columns_whose_shift_changes_nothing(name):
    build, mean, expected = MOVED[name]
    X = inputs(80) + FAR
    kernel = build(X).from_data(X, 1.0)
    model = exact_gp(Data(X, X[:, :1]), kernel=kernel)
    if mean is not None:
        model = agp.GPR.from_data(X, X[:, :1], kernel=kernel, mean_function=mean)
    thin = narrow(model)
    np.testing.assert_allclose((X - thin.X).mean(0), expected * (np.asarray(expected) != 0.0), rtol=0, atol=0.5)
    np.testing.assert_allclose(thin.kernel(thin.X)[0], kernel(X)[0], rtol=1e-3, atol=1e-3)


def test_another_base_kernel_keeps_the_weights():
    X = inputs(20, 4)
    kernel = Product((ActiveDims(Projected(RBF(), np.eye(3)), (0, 1, 2)), Overlap().on(3))).from_data(X, 1.0)
    other = with_base(kernel, KERNELS["matern32"])
    assert type(other.parts[0].kernel.kernel) is KERNELS["matern32"]
    np.testing.assert_array_equal(other.parts[0].kernel.weights, np.eye(3))


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("build", [lambda inner: inner, lambda inner: inner.on((0, 1, 2, 3)) + 0.1 * RBF(0.1, 9.0)])
def test_near_rows_are_those_with_the_largest_correlations(build, count, backend):
    X, Q = inputs(300, 4), inputs(20, 4, seed=1)
    W = np.random.default_rng(2).standard_normal((4, count))
    inner = as_arrays(Projected(RBF(1.0, [0.5, 2.0, 1.0, 0.7][:count]), W))
    search = near_search(backend.move(as_arrays(build(inner))), backend.array(X))
    K = inner(Q, X)[0]
    np.testing.assert_array_equal(to_numpy(search.nearest(backend.array(Q), 5)), np.argsort(-K, axis=1)[:, :5])


def test_more_combinations_than_columns_have_correlations_instead_of_factors():
    X = inputs(60, 2)
    kernel = as_arrays(Projected(RBF(1.0, 0.6), np.asarray([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])))
    assert kernel.inverse_scales(2) is None
    np.testing.assert_array_equal(
        near_search(kernel, X).nearest(X[:9], 4), np.argsort(-kernel(X[:9], X)[0], axis=1)[:, :4]
    )


@pytest.mark.parametrize("weights", [[1.0, 2.0, 3.0], [[1.0], [2.0]], [[1.0, 2.0, 3.0]]])
def test_weights_of_a_wrong_shape_are_named(weights):
    with pytest.raises(ValueError, match=r"Projected has weights of shape \(.*\), but the inputs have 3 columns; pass"):
        Projected(RBF(), weights).from_data(inputs(9, 3), 1.0)
