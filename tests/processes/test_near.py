"""Predictions from nearest rows: exact limits, joint moments, function samples, gradients and further data."""

import dataclasses

import numpy as np
import pytest
from helpers import JAX, NUMPY, as_arrays, assert_close, autograd, peak

from agp import GPR, NNGP, VIF, train, tree
from agp.bounds import Batch
from agp.inducing import Points
from agp.kernels import RBF, Constant, Linear, Matern32, Matern52, Periodic
from agp.likelihoods import Bernoulli, Gaussian
from agp.means import ConstantMean, LinearMean
from agp.processes import ordered_rows

N, NEAR, WIDTH = 40, 8, 2
KINDS = {"nngp": 0, "vif": 5}
"""The number of inducing inputs."""
KNOWN = ("nothing", "all")


def plain():
    return Matern52(1.2, (0.8, 1.3)) + RBF(0.4, 2.0)


def quadratic():
    """A kernel of rank 9 in two columns, with scales."""
    return (Linear(0.5) + Constant(0.7)) * (Linear((0.4, 0.6)) + Constant(0.5)) + Linear(0.2)


def near(kind="nngp", kernel=None, outputs=1, known="nothing", mean=None, **options):
    """A host model."""
    rng = np.random.default_rng([outputs, KINDS[kind]])
    X = rng.normal(size=(N, WIDTH))
    y = np.sin(2.0 * X[:, :1] + np.arange(outputs)) + 0.1 * rng.normal(size=(N, outputs))
    parts = {"neighbours": NEAR, "seed": 2, "mean_function": ConstantMean(0.3 + np.arange(float(outputs)))}
    if known == "all":
        parts |= {"weights": rng.uniform(0.5, 3.0, size=N), "noise": rng.uniform(0.01, 0.2, size=(N, 1))}
        parts |= {"offset": rng.normal(size=(N, outputs))}
    parts |= {} if mean is None else {"mean_function": mean}
    fields = [plain() if kernel is None else kernel, Gaussian(0.05)]
    if KINDS[kind]:
        fields.append(Points(rng.normal(size=(KINDS[kind], WIDTH))))
        parts["jitter"] = 1e-6
    cls = VIF if KINDS[kind] else NNGP
    return as_arrays(cls(*fields, X=X, y=y, **parts | options)).renew_neighbours()


def grid(rows=9, seed=7):
    return np.random.default_rng(seed).normal(size=(rows, WIDTH))


def exact_model(model):
    fields = ("kernel", "likelihood", "X", "y", "mean_function", "weights", "offset", "noise")
    return GPR(**{name: getattr(model, name) for name in fields})


def assert_predictions_are(found, expected, tolerance, place=NUMPY):
    for x, y, name in zip(found, expected, ("mean", "variance"), strict=True):
        assert_close(place.numpy(x), y, tolerance, name)


# -- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_all_rows_as_neighbours_give_the_exact_posterior(kind, outputs, known, backend):
    model = near(kind, outputs=outputs, known=known, neighbours=N + 3)
    exact, X = exact_model(model), grid()
    there = backend.move(model)
    assert_predictions_are(there.predict(backend.array(X)), exact.predict(X), 1e-8, backend)
    assert_close(backend.numpy(there.predict_covariance(backend.array(X))), exact.predict_covariance(X), 1e-8)


@pytest.mark.parametrize("outputs", [1, 2])
def test_predictions_are_those_of_exact_models_of_the_near_rows(outputs):
    model, X = near(outputs=outputs, known="all", kernel=Matern32(1.1, (0.5, 2.0))), grid()
    for x, mean, variance in zip(X, *model.predict(X), strict=True):
        rows = np.argsort(np.sum(((model.X - x) / model.kernel.lengthscale) ** 2, axis=1))[:NEAR]
        fields = ("X", "y", "weights", "offset", "noise")
        exact = dataclasses.replace(exact_model(model), **{name: getattr(model, name)[rows] for name in fields})
        assert_predictions_are(exact.predict(x[None, :]), (mean[None, :], variance[None, :]), 1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_variances_are_not_negative(kind):
    rows = near(kind)
    X = np.concatenate([rows.X[:20], rows.X[:20] + 1e-9])
    model = dataclasses.replace(rows, X=X, likelihood=Gaussian(np.asarray(1e-9)), sets=None)
    inputs = np.concatenate([X, grid(50)])
    variance = model.predict(inputs).variance
    assert np.min(variance) >= 0.0
    assert np.max(variance[:20]) < 1e-6
    if kind == "nngp":
        assert np.max(variance) <= model.kernel.diag(inputs[:1])[0][0] * (1.0 + 1e-12)


def test_far_from_all_rows_the_prior_is_left():
    model = near(outputs=2)
    found = model.predict(grid() + 100.0)
    assert_predictions_are(found, (np.tile([0.3, 1.3], (9, 1)), np.full((9, 2), 1.6)), 1e-12)


# -- joint moments ----------------------------------------------------------------------------------------------------


def by_order(order):
    """A matrix that puts rows into this order."""
    return np.eye(len(order))[order]


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_joint_covariances_are_those_of_the_errors(kind, outputs, backend):
    model, X = near(kind, outputs=outputs, known="all"), grid(12)
    found = backend.numpy(backend.move(model).predict_covariance(backend.array(X)))
    assert found.shape == (outputs, 12, 12)
    np.testing.assert_array_equal(found, np.swapaxes(found, 1, 2))
    assert np.min(np.linalg.eigvalsh(found)) > -1e-12
    assert_close(np.diagonal(found, axis1=1, axis2=2).T, model.predict(X).variance, 1e-10)
    order = np.random.default_rng(0).permutation(12)
    there = model.predict_covariance(X[order])
    assert_close(there, found[:, order][:, :, order], 1e-9)


class UnitNoise:
    """A generator whose normal numbers are unit vectors along the last axis, the same for all outputs.

    A sample with the k-th number at one, less the sample without noise, is how the k-th number moves the function: the
    covariance of all is the sum of squares.
    """

    def __init__(self, outputs, samples):
        self.used, self.outputs, self.samples = 0, outputs, samples

    def standard_normal(self, shape):
        if len(shape) == 2:
            return self.standard_normal((shape[0], self.outputs, self.samples)).reshape(shape)
        axis = shape.index(self.outputs)
        n = shape[1 - axis]
        assert self.used + n < self.samples
        block = np.expand_dims(np.eye(self.samples)[self.used : self.used + n], axis)
        self.used += n
        return np.broadcast_to(block, shape).copy()


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_functions_have_the_moments_of_the_predictions(kind, outputs, known):
    model, X = near(kind, quadratic(), outputs, known), grid()
    process = model.predictor().processes[0]
    factor = process.factorise()[0]
    values = process.paths(factor, UnitNoise(outputs, 90), 90, 1).evaluate(X)[0]
    moves = np.moveaxis(values - values[-1], 2, 0)
    assert_close(values[-1], process.project_mean(factor, X), 1e-9)
    assert_close(np.swapaxes(moves, 1, 2) @ moves, process.project_covariance(factor, X), 1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_many_functions_have_the_moments_of_the_predictions(kind):
    model, X, S = near(kind, quadratic(), outputs=2), grid(5), 4000
    values = model.sample_functions(S)(X)
    mean, variance = model.predict(X)
    assert np.max(np.abs(values.mean(axis=0) - mean) / np.sqrt(variance / S)) < 3.5
    for p, covariance in enumerate(model.predict_covariance(X)):
        size = np.sqrt((covariance**2 + np.outer(np.diag(covariance), np.diag(covariance))) / S)
        assert np.max(np.abs(np.cov(values[:, :, p].T) - covariance) / size) < 3.5


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_each_function_can_have_its_own_inputs(kind, outputs):
    model = near(kind, outputs=outputs, mean=LinearMean(np.ones((WIDTH, outputs)), np.zeros(outputs)))
    X = np.stack([grid(4, seed) for seed in range(3)])
    functions = model.sample_functions(3, features=20)
    assert_close(functions(X), np.stack([functions(x)[s] for s, x in enumerate(X)]), 1e-10)
    assert_close(functions.gradient(X), np.stack([functions.gradient(x)[s] for s, x in enumerate(X)]), 1e-10)


# -- gradients --------------------------------------------------------------------------------------------------------


def differences(f, X, h=1e-4):
    """The slopes [N, P, D] of f [N, P] by each column, by differences of order four."""
    found = []
    for step in h * np.eye(WIDTH):
        ends = [np.asarray(f(X + k * step)) for k in (-2, -1, 1, 2)]
        found.append((ends[0] - 8.0 * ends[1] + 8.0 * ends[2] - ends[3]) / (12.0 * h))
    return np.stack(found, axis=-1)


def sloped(kind, outputs=2):
    """A model with a linear mean."""
    return near(kind, outputs=outputs, mean=LinearMean(np.ones((WIDTH, outputs)), np.zeros(outputs)))


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_differences(kind, outputs):
    # at these inputs, the sets of neighbours do not change within the steps
    model, X = sloped(kind, outputs), grid(6)
    slopes = model.gradient(X)
    assert_close(slopes.mean, differences(lambda x: model.predict(x).mean, X), 1e-7)
    assert_close(slopes.variance, differences(lambda x: model.predict(x).variance, X), 1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_the_same_on_every_library(kind, backend):
    model, X = near(kind, outputs=2, known="all"), grid()
    assert_predictions_are(backend.move(model).gradient(backend.array(X)), model.gradient(X), 1e-9, backend)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_autograd(kind, torch_place):
    model = sloped(kind)
    here, X = torch_place.move(model), {"X": torch_place.array(grid())}
    for name, slopes in model.gradient(grid())._asdict().items():
        bar = torch_place.array(np.ones((9, 2)))
        total = autograd(lambda x, name=name: ((getattr(here.predict(x["X"]), name),), None), X, (bar,))["X"]
        assert_close(np.sum(slopes, axis=1), torch_place.numpy(total), 1e-9, name)


@pytest.mark.parametrize("kind", KINDS)
def test_slopes_of_functions_are_differences(kind):
    functions, X = sloped(kind).sample_functions(3, features=10), grid(6)
    for s, slopes in enumerate(functions.gradient(X)):
        assert_close(slopes, differences(lambda x, s=s: functions(x)[s], X), 1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_functions_are_the_same_on_every_library(kind, backend):
    model, X = near(kind, outputs=2, known="all"), grid()
    expected, functions = (x.sample_functions(3, features=10) for x in (model, backend.move(model)))
    assert_close(backend.numpy(functions(backend.array(X))), expected(X), 1e-9)
    assert_close(backend.numpy(functions.gradient(backend.array(X))), expected.gradient(X), 1e-9)


# -- further data and the posterior of the inducing variables ---------------------------------------------------------


def rows_of(model, chosen):
    """The model of some rows, and what is known of others as arguments of `condition_on`."""
    names = ("X", "y", "weights", "offset", "noise")
    given = {name: getattr(model, name) for name in names if getattr(model, name) is not None}
    some = dataclasses.replace(model, **{name: x[chosen] for name, x in given.items()}, sets=None)
    return some, {name: x[~chosen] for name, x in given.items()}


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("kind", KINDS)
def test_further_rows_are_neighbours_like_the_others(kind, known, backend):
    neighbours = NEAR if kind == "nngp" else N
    model, X, first = near(kind, outputs=2, known=known, neighbours=neighbours), grid(), np.arange(N) < 30
    some, rest = rows_of(model, first)
    rest = {name: backend.array(x) for name, x in rest.items()}
    grown = backend.move(some).predictor().condition_on(rest.pop("X"), rest.pop("y"), **rest)
    assert_predictions_are(grown.predict(backend.array(X)), model.predict(X), 1e-8, backend)


def test_further_rows_come_last_in_the_order():
    model, first = near("vif", outputs=2), np.arange(N) < 30
    some, rest = rows_of(model, first)
    grown = some.predictor().condition_on(rest["X"], rest["y"])
    process = dataclasses.replace(model.predictor().processes[0], sets=None, added=10)
    assert_close(grown.factors[0].mean, process.factorise()[0].mean, 1e-10)
    twice = some.predictor().condition_on(rest["X"][:4], rest["y"][:4]).condition_on(rest["X"][4:], rest["y"][4:])
    assert_close(twice.factors[0].mean, grown.factors[0].mean, 1e-10)


def test_further_data_of_other_likelihoods_are_refused():
    process = near().predictor().processes[0]
    with pytest.raises(TypeError, match="a likelihood that is not Gaussian"):
        process.condition_on(None, Batch(grid(), np.ones((9, 1))), Bernoulli())


@pytest.mark.parametrize("rows", [1, 12, N, None])
def test_the_posterior_of_the_inducing_variables_is_that_of_the_last_rows(rows):
    model = near("vif", outputs=2, known="all", posterior_rows=rows, kernel=RBF(1.1, 0.9))
    process = model.predictor().processes[0]
    A, order = process.factorise()[0].features, ordered_rows(N, model.seed, model.X)
    R, noise = model.kernel(model.X)[0] - A @ A.T, process.noise
    residual, Q, b = model.y - model.offset - model.mean_function(model.X)[0], np.eye(5), np.zeros((5, 2))
    for i in range(N - (rows or N), N):
        n, before = order[i], order[:i]
        c = before[np.argsort(np.sum((model.X[before] - model.X[n]) ** 2, axis=1))[:NEAR]]
        B = np.linalg.solve(R[np.ix_(c, c)] + np.diag(noise[c]), R[c, n])
        u, V = A[n] - A[c].T @ B, R[n, n] + noise[n] - B @ R[c, n]
        Q, b = Q + np.outer(u, u) / V, b + np.outer(u, residual[n] - residual[c].T @ B) / V
    factor = process.factorise()[0]
    assert_close(factor.mean, np.linalg.solve(Q, b), 1e-9)
    assert_close(factor.root @ factor.root.T, Q, 1e-9)


# -- units, libraries, compiled programs and memory -------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_units_change_nothing(kind):
    model, X, scale, a, shift = near(kind, kernel=Matern32(1.2, (0.8, 1.3))), grid(), 1e3, np.array([1e4, 1e-3]), 7.0
    leaves = {
        "kernel.variance": model.kernel.variance * scale**2,
        "kernel.lengthscale": model.kernel.lengthscale * a,
        "likelihood.noise_variance": model.likelihood.noise_variance * scale**2,
        "mean_function.value": model.mean_function.value * scale + shift,
        "X": model.X * a,
        "y": model.y * scale + shift,
    }
    leaves |= {"inducing.Z": model.inducing.Z * a} if model.inducing is not None else {}
    other = tree.with_leaves(model, leaves)
    if kind == "vif":
        other = dataclasses.replace(other, jitter=model.jitter * scale**2)
    mean, variance = model.predict(X)
    assert_predictions_are(other.predict(X * a), (mean * scale + shift, variance * scale**2), 1e-6)
    evidence = other._objective(Batch(other.X, other.y))[0] + N * np.log(scale)
    assert_close(evidence, model._objective(Batch(model.X, model.y))[0], 1e-6)


@pytest.mark.parametrize("known", KNOWN)
@pytest.mark.parametrize("kind", KINDS)
def test_predictions_are_the_same_on_every_library(kind, known, backend):
    model, X = near(kind, outputs=2, known=known), grid()
    there = backend.move(model)
    assert_predictions_are(there.predict(backend.array(X)), model.predict(X), 1e-9, backend)
    assert_close(backend.numpy(there.predict_mean(backend.array(X))), model.predict_mean(X), 1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_kernels_without_scales_predict(kind, backend):
    model, X = near(kind, kernel=Periodic(1.1, 0.8, 2.3)), grid()
    there = backend.move(model)
    assert_predictions_are(there.predict(backend.array(X)), model.predict(X), 1e-9, backend)


@pytest.mark.parametrize("kind", KINDS)
def test_compiled_predictions_and_bounds_are_the_same(kind, available):
    place = available(JAX)
    import jax

    model, X = near(kind, outputs=2, known="all"), grid()
    there, inputs = place.move(model), place.array(X)
    compiled = jax.jit(lambda x: tuple(there.predict(x)))
    assert_predictions_are(compiled(inputs), model.predict(X), 1e-9, place)
    leaves = tree.leaves(there, "parameter")
    bound = jax.jit(lambda x: tree.with_leaves(there, x)._objective(Batch(there.X, there.y))[0])
    assert_close(bound(leaves), model._objective(Batch(model.X, model.y))[0], 1e-10)


def test_memory_bounds_what_predictions_hold():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, WIDTH))
    model = NNGP(plain(), Gaussian(0.1), X=X, y=X[:, :1], neighbours=30)
    model = as_arrays(model)
    expected = model.predict(X)
    predictor = model.predictor(memory=4.0)
    assert_predictions_are(predictor.predict(X, memory=4.0), expected, 1e-12)
    assert peak(lambda: predictor.predict(X, memory=4.0)) < 8.0
    few = model.predict_covariance(X[:40])
    assert_close(model.predictor(memory=0.1).predict_covariance(X[:40]), few, 1e-10)


LAYOUTS = {
    "rows": np.ascontiguousarray,
    "columns": np.asfortranarray,
    "part": lambda X: np.repeat(X, 2, axis=1)[:, ::2],
}


@pytest.mark.parametrize("known", [None, "noise", "weights"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_predictions_do_not_copy_all_rows(layout, known):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200_000, 2)), rng.normal(size=(200_000, 1))
    of_rows = {} if known is None else {known: rng.uniform(1.0, 2.0, (200_000, 1) if known == "noise" else 200_000)}
    parts = {"kernel": as_arrays(RBF(1.0, 0.1)), "likelihood": as_arrays(Gaussian(0.1)), "neighbours": 5, "y": y}
    model = NNGP(X=LAYOUTS[layout](X), **parts, **of_rows)
    predictor, new = model.predictor(), rng.normal(size=(20, 2))
    assert peak(lambda: predictor.predict(new)) < 0.5 * y.nbytes / 2**20
    assert peak(lambda: predictor.predict_covariance(new)) < 0.5 * y.nbytes / 2**20
    alike = NNGP(X=X, **parts, **of_rows).predict(new)
    for one, two in zip(predictor.predict(new), alike, strict=True):
        np.testing.assert_array_equal(one, two)


def test_float32_is_kept():
    model, X = near("vif", outputs=2, known="all"), grid()
    single = tree.to_backend(model, "numpy", dtype="float32")
    found = single.predict(X.astype(np.float32))
    assert {x.dtype for x in found} == {np.dtype("float32")}
    assert_close(found.mean, model.predict(X).mean, 1e-3)
    assert_close(found.variance, model.predict(X).variance, 1e-2)


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"neighbours": 0}, "neighbours is 0, but must be a whole number of at least 1"),
        ({"among": "all"}, "among is 'all', but must be 'earlier' or 'others'"),
    ],
)
def test_settings_out_of_range_are_refused(options, message):
    model = near()
    with pytest.raises(ValueError, match=message):
        NNGP.from_data(model.X, model.y, **options)
    with pytest.raises(ValueError, match=message):
        train(dataclasses.replace(model, **options), model.X, model.y, steps=1)


def test_a_bound_of_other_rows_is_refused():
    model = near()
    with pytest.raises(ValueError, match=f"for all {N} rows that the model holds, but X has 5"):
        model.bound(model.X[:5], model.y[:5])
