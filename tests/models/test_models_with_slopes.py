"""Models of values and slopes: textbook posteriors, limits of differences, inducing variables, starts and units."""

import dataclasses
import math
from functools import partial

import numpy as np
import pytest
from helpers import TORCH, assert_close

import agp
from agp import CGGP, GPR, NNGP, SGPR, SVGP, TVGP, VIF, CaGP, Gaussian, LinearMean, tree
from agp.kernels import RBF, Linear, Matern52, WithSlopes, stack_slopes, tag_rows
from agp.means import ConstantMean, Mean, MeanWithSlopes, ZeroMean
from agp.testing import check_pullback


def function(X):
    return np.sin(3.0 * X[:, 0]) * np.cos(2.0 * X[:, 1]) + X[:, 0] + 5.0


def slopes(X):
    first = 3.0 * np.cos(3.0 * X[:, 0]) * np.cos(2.0 * X[:, 1]) + 1.0
    return np.stack([first, -2.0 * np.sin(3.0 * X[:, 0]) * np.sin(2.0 * X[:, 1])], axis=1)


def problem(count=12, seed=0):
    X = np.random.default_rng(seed).uniform(-1.0, 1.0, (count, 2))
    return X, *stack_slopes(X, function(X), slopes(X))


NEW = np.random.default_rng(9).uniform(-1.0, 1.0, (40, 2))
LENGTHS = np.asarray([0.6, 0.9])


def textbook(rows, others, variance=1.7):
    """Covariances of the RBF kernel, from Hermite polynomials of the differences."""
    K = np.empty((len(rows), len(others)))
    for n, m in np.ndindex(K.shape):
        u = (rows[n, :2] - others[m, :2]) / LENGTHS
        a, b = int(rows[n, 2]), int(others[m, 2])
        factor = 1.0
        if a:
            factor *= -u[a - 1] / LENGTHS[a - 1]
        if b:
            factor *= u[b - 1] / LENGTHS[b - 1]
        if a and a == b:
            factor += 1.0 / LENGTHS[a - 1] ** 2
        K[n, m] = variance * factor * math.exp(-0.5 * u @ u)
    return K


def fixed(rows, y, cls=GPR, kernel=None, **parts):
    kernel = WithSlopes(RBF(1.7, LENGTHS)) if kernel is None else kernel
    return cls.from_data(rows, y, kernel=kernel, **parts)


# -- exact posteriors -------------------------------------------------------------------------------------------------


def test_the_posterior_is_that_of_a_joint_normal_distribution():
    _, rows, y = problem()
    noise = 0.01 + 0.02 * rows[:, 2]
    mean = LinearMean(np.asarray([[2.0], [-1.0]]), np.asarray([4.0]))
    model = fixed(rows, y, likelihood=Gaussian(0.003), noise=noise[:, None], mean_function=mean)
    new = np.concatenate([tag_rows(NEW, column) for column in (None, 0, 1)])
    h, h_new = (np.where(R[:, 2] == 0.0, 4.0 + R[:, :2] @ [2.0, -1.0], R[:, 2] * -3.0 + 5.0) for R in (rows, new))
    C, K = textbook(rows, rows) + np.diag(0.003 + noise), textbook(rows, new)
    mu, var = model.predict(new)
    np.testing.assert_allclose(mu[:, 0], h_new + K.T @ np.linalg.solve(C, y - h), rtol=1e-9)
    expected = textbook(new, new) - K.T @ np.linalg.solve(C, K)
    np.testing.assert_allclose(var[:, 0], np.diagonal(expected), rtol=1e-7, atol=1e-9)
    joint = model.predictor().predict_covariance(new)
    np.testing.assert_allclose(joint[0], expected, rtol=1e-6, atol=1e-8)
    residual = y - h
    evidence = -0.5 * (residual @ np.linalg.solve(C, residual) + np.linalg.slogdet(2.0 * math.pi * C)[1])
    np.testing.assert_allclose(model.bound(rows, y)[0], evidence, rtol=1e-10)


def test_slopes_are_the_limit_of_differences_of_values():
    # posteriors given values and (f(x + h) - f(x - h)) / 2h: the error falls as h^2
    X, rows, y = problem(6)
    kernel, new, noise = RBF(1.7, LENGTHS), tag_rows(NEW), 1e-4
    model = fixed(rows, y, likelihood=Gaussian(noise), mean_function=ZeroMean())
    errors = []
    for h in (0.1, 0.05, 0.025):
        ends = np.concatenate([X, *(X + s * h * np.eye(2)[d] for d in range(2) for s in (1.0, -1.0))])
        quotient = np.kron(np.eye(2), [[0.5 / h, -0.5 / h]])
        A = np.kron(np.block([[np.ones((1, 1)), np.zeros((1, 4))], [np.zeros((2, 1)), quotient]]), np.eye(len(X)))
        C = A @ kernel(ends)[0] @ A.T + noise * np.eye(len(y))
        mean = kernel(NEW, ends)[0] @ A.T @ np.linalg.solve(C, y)
        errors.append(np.abs(mean - model.predict_mean(new)[:, 0]).max())
    rates = np.log2(np.asarray(errors[:-1]) / errors[1:])
    assert errors[0] < 0.5
    np.testing.assert_allclose(rates, 2.0, atol=0.2)


@pytest.mark.parametrize("kernel", [RBF(1.7, LENGTHS), Matern52(1.7, LENGTHS), RBF(1.0, LENGTHS) + Linear(0.5)])
def test_predicted_slopes_are_those_of_the_predicted_mean(kernel):
    _, rows, y = problem()
    model, h = fixed(rows, y, kernel=WithSlopes(kernel), likelihood=Gaussian(1e-3), mean_function=LinearMean()), 1e-4
    for d in range(2):
        ends = [tag_rows(NEW + s * h * np.eye(2)[d]) for s in (1.0, -1.0)]
        up, down = (model.predict_mean(end)[:, 0] for end in ends)
        found = model.predict_mean(tag_rows(NEW, d))[:, 0]
        np.testing.assert_allclose(found, (up - down) / (2.0 * h), atol=1e-5)
        gradient = model.predictor().gradient(tag_rows(NEW)).mean
        np.testing.assert_allclose(found, np.reshape(gradient, (len(NEW), 3))[:, d], rtol=1e-7, atol=1e-9)


def test_they_are_worth_more_than_values_alone():
    X, rows, y = problem(20)
    both = agp.fit(GPR.from_data(rows, y, kernel=WithSlopes(RBF())), rows, y).model
    alone = agp.fit(GPR.from_data(X, function(X), kernel=RBF(), likelihood=Gaussian(1e-6)), X, function(X)).model
    error = both.predict_mean(tag_rows(NEW))[:, 0] - function(NEW)
    assert np.std(error) < 0.1 * np.std(alone.predict_mean(NEW)[:, 0] - function(NEW))


def test_further_rows():
    _, rows, y = problem()
    start, rest = fixed(rows[:20], y[:20], mean_function=ZeroMean()), (rows[20:], y[20:])
    found = start.predictor().condition_on(*rest).predict_mean(rows)
    whole = dataclasses.replace(start, X=rows, y=y[:, None])
    np.testing.assert_allclose(found, whole.predict_mean(rows), rtol=1e-7)


def test_gradients_of_the_evidence_agree_with_automatic_differentiation():
    pytest.importorskip("torch")
    _, rows, y = problem()
    model = fixed(rows, y, kernel=WithSlopes(RBF(1.7, LENGTHS) * Linear(0.4) + Matern52(0.5, 1.0)))
    there = TORCH.move(model)
    data = TORCH.array(rows), TORCH.array(y)
    closed, auto = (agp.value_and_gradient(there, *data, gradient=mode) for mode in ("closed-form", "autodiff"))
    assert_close(TORCH.numpy(closed[0]), TORCH.numpy(auto[0]), 1e-10, "value")
    for name, x in auto[1].items():
        np.testing.assert_allclose(TORCH.numpy(closed[1][name]), TORCH.numpy(x), rtol=1e-6, atol=1e-8)


def test_all_libraries_give_the_same(backend):
    _, rows, y = problem()
    model = fixed(rows, y, noise=np.full((len(y), 1), 0.01))
    new = np.concatenate([tag_rows(NEW, column) for column in (None, 0, 1)])
    there = backend.move(model)
    np.testing.assert_allclose(
        backend.numpy(there.predict_mean(backend.array(new))), model.predict_mean(new), rtol=1e-9
    )
    value, pull = there.bound(backend.array(rows), backend.array(y))
    np.testing.assert_allclose(backend.numpy(value), model.bound(rows, y)[0], rtol=1e-9)
    expected = tree.leaves(model.bound(rows, y)[1]()[0], "parameter")
    for name, x in tree.leaves(pull()[0], "parameter").items():
        np.testing.assert_allclose(backend.numpy(x), expected[name], rtol=1e-7, atol=1e-9)


# -- starting values, units and files ---------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [(1.0, 1e3), (20.0, 3.0), (1e-3, 1.0)])
@pytest.mark.parametrize("what", ["values and slopes", "slopes"])
def test_results_do_not_depend_on_units(scale, what):
    a, c = scale
    X, *_ = problem(14)
    found = []
    for one, unit in ((1.0, 1.0), (a, c)):
        values = unit * function(X) if what != "slopes" else np.full(len(X), np.nan)
        rows, y = stack_slopes(one * X, values, unit / one * slopes(X))
        known = np.isfinite(values) * 1e-4 * unit**2
        noise = stack_slopes(one * X, np.where(known > 0.0, known, np.nan), np.full(X.shape, 1e-3 * (unit / one) ** 2))
        model = GPR.from_data(rows, y, kernel=WithSlopes(RBF()), likelihood=Gaussian(0.0), noise=noise[1][:, None])
        start = tree.leaves(model)
        trained = agp.fit(model, rows, y).model
        mean = trained.predict_mean(tag_rows(one * NEW))
        found.append((start["kernel.kernel.lengthscale"] / one, start["kernel.kernel.variance"] / unit**2, mean / unit))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_starting_values_are_those_of_the_values():
    X, rows, y = problem(30)
    model, alone = GPR.from_data(rows, y, kernel=WithSlopes(RBF())), GPR.from_data(X, function(X), kernel=RBF())
    expected = {name: x for name, x in tree.leaves(alone, "parameter").items() if not name.startswith(("X", "y"))}
    for name, x in expected.items():
        ours = name.replace("kernel.", "kernel.kernel.").replace("mean_function.", "mean_function.mean.")
        np.testing.assert_allclose(tree.leaves(model)[ours], x, rtol=1e-9)
    assert isinstance(model.mean_function, MeanWithSlopes)
    assert isinstance(model.mean_function.mean, ConstantMean)


def test_slopes_alone_tell_the_function_up_to_a_constant():
    X, rows, y = problem(25)
    rows, y = rows[25:], y[25:]
    model = GPR.from_data(rows, y, kernel=WithSlopes(RBF()))
    assert model.mean_function.mean.value.tolist() == [0.0]
    assert 0.1 < model.kernel.kernel.variance < 10.0
    error = agp.fit(model, rows, y).model.predict_mean(tag_rows(NEW))[:, 0] - function(NEW)
    assert error.std() < 0.02 * function(NEW).std()
    rows, y = np.concatenate([tag_rows(X[:1]), rows]), np.concatenate([function(X[:1]), y])
    anchored = GPR.from_data(rows, y, kernel=WithSlopes(RBF()))
    assert anchored.mean_function.mean.value.tolist() == [y[0]]
    error = agp.fit(anchored, rows, y).model.predict_mean(tag_rows(NEW))[:, 0] - function(NEW)
    assert np.abs(error).max() < 0.1


def test_files(tmp_path):
    _, rows, y = problem()
    model = fixed(rows, y)
    agp.save(model, tmp_path / "model.safetensors")
    loaded = agp.load(tmp_path / "model.safetensors")
    assert (loaded.predict_mean(rows) == model.predict_mean(rows)).all()


def test_the_noise_of_each_kind_can_be_learned():
    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 10.0, (40, 1))
    rows, y = stack_slopes(
        X, np.sin(X[:, 0]) + 0.02 * rng.standard_normal(40), np.cos(X) + 0.3 * rng.standard_normal((40, 1))
    )
    model = agp.GPRegressor(kernel=WithSlopes(RBF()), noise_by=1).fit(rows, y)
    deviations = np.sqrt([model.noise_by_[0.0], model.noise_by_[1.0]])
    np.testing.assert_allclose(deviations, [0.02, 0.3], rtol=0.5)


# -- inducing variables -----------------------------------------------------------------------------------------------


def dense_bound(rows, y, Z, noise):
    """The bound of SGPR, from dense matrices."""
    Kuf = textbook(Z, rows)
    Q = Kuf.T @ np.linalg.solve(textbook(Z, Z), Kuf)
    C = Q + noise * np.eye(len(y))
    log_density = -0.5 * (y @ np.linalg.solve(C, y) + np.linalg.slogdet(2.0 * math.pi * C)[1])
    return log_density - 0.5 / noise * np.trace(textbook(rows, rows) - Q)


def test_slopes_as_inducing_variables():
    X, rows, y = problem(30)
    rows, y, places = rows[:60], y[:60], X[:5]  # values, and slopes along the first column
    parts = {"likelihood": Gaussian(0.05), "mean_function": ZeroMean(), "jitter": 1e-12}
    Z = np.concatenate([tag_rows(places, column) for column in (None, 0, 1)])
    bounds = [float(fixed(rows, y, SGPR, Z=Z[:M], **parts).bound(rows, y)[0]) for M in (5, 10, 15)]
    exact = float(fixed(rows, y, likelihood=Gaussian(0.05), mean_function=ZeroMean()).bound(rows, y)[0])
    assert bounds[0] < bounds[1] < bounds[2] < exact
    assert bounds[2] - bounds[0] > 10.0
    np.testing.assert_allclose(bounds, [dense_bound(rows, y, Z[:M], 0.05) for M in (5, 10, 15)], rtol=1e-7)
    # pairs of values at a small distance, whose difference is a slope
    errors = []
    for h in (0.2, 0.1, 0.05):
        pairs = np.concatenate([tag_rows(places + s * h * np.eye(2)[0]) for s in (1.0, -1.0)])
        errors.append(abs(float(fixed(rows, y, SGPR, Z=pairs, **parts).bound(rows, y)[0]) - bounds[1]))
    np.testing.assert_allclose(np.log2(np.asarray(errors[:-1]) / errors[1:]), 2.0, atol=0.3)


def test_the_optimal_svgp_with_slopes_is_sgpr():
    X, rows, y = problem(30)
    Z = np.concatenate([tag_rows(X[:5], column) for column in (None, 0)])
    parts = {"likelihood": Gaussian(0.05), "Z": Z}
    collapsed, model = fixed(rows, y, SGPR, **parts), fixed(rows, y, SVGP, posterior="whitened", **parts)
    step = agp.updates.OptimalPosterior()
    batch = agp.bounds.Batch(rows, y[:, None])
    model = step(model, batch, step.init(model))[0]
    np.testing.assert_allclose(model.bound(rows, y)[0], collapsed.bound(rows, y)[0], rtol=1e-6)


@pytest.mark.parametrize("cls", [SGPR, SVGP])
@pytest.mark.parametrize("inducing", ["kmeans", "random", "greedy-variance"])
def test_inducing_inputs_keep_their_tags(cls, inducing):
    _, rows, y = problem(20)
    model = cls.from_data(rows, y, kernel=WithSlopes(RBF()), num_inducing=12, inducing=inducing)
    tags = model.inducing.Z[:, -1]
    assert {*tags.tolist()} <= {0.0, 1.0, 2.0}
    trained = agp.train(model, rows, y, steps=30).model if cls is SVGP else agp.fit_lbfgs(model, rows, y).model
    assert np.abs(trained.inducing.Z[:, :-1] - model.inducing.Z[:, :-1]).max() > 1e-4
    np.testing.assert_allclose(trained.inducing.Z[:, -1], tags, rtol=1e-12)


@pytest.mark.parametrize("cls", [NNGP, VIF, TVGP, CGGP, CaGP])
def test_other_models_take_slopes(cls):
    _, rows, y = problem(20)
    options = {CaGP: {"num_actions": 40}, VIF: {"num_inducing": 10}}.get(cls, {})
    kernel = WithSlopes(RBF(8.0, [0.9, 1.2]))
    model = fixed(rows, y, cls, kernel=kernel, likelihood=Gaussian(1e-3), **options)
    if cls is TVGP:
        model = agp.train(model, rows, y, steps=20).model
    error = model.predict_mean(tag_rows(NEW))[:, 0] - function(NEW)
    assert np.sqrt(np.mean(error**2)) < 0.15 * function(NEW).std()


def test_deep_models_refuse_slopes():
    _, rows, y = problem()
    with pytest.raises(TypeError, match="functions of each other, whose slopes cannot be observed; use SVGP"):
        agp.DeepGP.from_data(rows, y, kernel=WithSlopes(RBF()), num_inducing=5)


@pytest.mark.parametrize("outputs", ["shared", "separate", "coregionalised"])
def test_several_outputs(outputs):
    X, rows, y = problem(30)
    both = np.stack([y, -2.0 * y], axis=1)
    model = SVGP.from_data(rows, both, kernel=WithSlopes(RBF()), outputs=outputs, num_inducing=20)
    starts = {name: x for name, x in tree.leaves(model).items() if name.endswith("mean.value")}
    levels = np.concatenate([np.ravel(x) for x in starts.values()])
    np.testing.assert_allclose(levels, function(X).mean() * np.asarray([1.0, -2.0]), rtol=1e-12)


# -- mean functions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mean", [ConstantMean(), LinearMean(), LinearMean(np.ones((2, 2)), np.ones(2)), ZeroMean()])
def test_mean_functions_with_slopes(mean):
    _, rows, _ = problem()
    check_pullback(mean.with_slopes(), X=rows)
    assert (found := mean.with_slopes()).with_slopes() is found


def test_mean_functions_without_slopes_are_refused():
    @tree.model
    class Mine(Mean):
        def __call__(self, X, /):
            return X[:, :1] ** 2, None

        from_data = check = __call__

    _, rows, y = problem()
    with pytest.raises(TypeError, match="the slopes of Mine are not known; use ConstantMean, LinearMean or ZeroMean"):
        GPR.from_data(rows, y, kernel=WithSlopes(RBF()), mean_function=Mine())


def test_models_that_are_built_by_hand_need_mean_functions_with_slopes():
    _, rows, y = problem()
    model = fixed(rows, y)
    sparse = fixed(rows, y, SVGP, num_inducing=5)
    for mean in (ConstantMean(np.ones(1)), LinearMean(np.ones((3, 1)), np.ones(1))):
        for call in (
            lambda mean: dataclasses.replace(model, mean_function=mean).predict(rows),
            lambda mean: dataclasses.replace(model, mean_function=mean).bound(rows, y),
            lambda mean: tree.replace(sparse, {"process.mean_function": mean}).bound(rows, y),
        ):
            with pytest.raises(ValueError, match="but the kernel is WithSlopes; use mean_function.with_slopes"):
                call(mean)


@pytest.mark.parametrize("method", ["gpr", "sgpr", "svgp", "nngp", "estimator"])
def test_tags_between_whole_numbers_are_refused(method):
    X, rows, targets = problem()
    scaled = rows / rows.max(axis=0)  # tags 0, 0.5 and 1
    kernel = WithSlopes(RBF(1.7, LENGTHS))
    said = "contains 0.5, but must contain tags, which are the whole numbers 0 for values and from 1 to 2 for slopes"
    if method == "estimator":
        build = agp.GPRegressor(kernel=kernel, hyperparameters="mode", max_steps=2).fit
        with pytest.warns(agp.errors.ConvergenceWarning):
            model = build(rows, targets)
    else:
        build = partial({"gpr": GPR, "sgpr": SGPR, "svgp": SVGP, "nngp": NNGP}[method].from_data, kernel=kernel)
        model = build(rows, targets)
    with pytest.raises(ValueError, match=said):
        build(scaled, targets)
    for tag in (0.4, 0.6, 1.5):
        with pytest.raises(ValueError, match=f"contains {tag}, but must contain tags"):
            model.predict(np.asarray([[0.1, 0.2, tag]]))


@pytest.mark.parametrize("kernel", [agp.kernels.Overlap(), agp.kernels.RandomEffects()], ids=["overlap", "effects"])
def test_codes_of_levels_between_whole_numbers_are_refused(kernel):
    rng = np.random.default_rng(0)
    X = np.stack([rng.uniform(size=30), 0.5 * rng.integers(0, 3, 30)], axis=1)
    y = rng.standard_normal(30)
    for build in (GPR.from_data, SGPR.from_data, NNGP.from_data):
        with pytest.raises(ValueError, match="column 1 of X contains 0.5, but the kernel reads its numbers as codes"):
            build(X, y, kernel=RBF().on((0,)) + kernel.on((1,)))
        build(X * np.asarray([1.0, 2.0]), y, kernel=RBF().on((0,)) + kernel.on((1,)))


@pytest.mark.parametrize("method", ["gpr", "nngp", "estimator"])
def test_small_known_noise_of_slopes_is_kept_in_all_units(method):
    rng, scale = np.random.default_rng(0), 1e6
    X = rng.uniform(0.0, 10.0, (12, 1))
    rows, targets, noise = stack_slopes(scale * X, np.sin(X[:, 0]), np.cos(X) / scale, noise=(1e-4, 1e-4 / scale**2))
    parts = {"kernel": WithSlopes(RBF(1.0, 1.5 * scale)), "likelihood": Gaussian(0.0)}
    if method == "estimator":
        found = (
            agp.GPRegressor(**parts, hyperparameters="mode", frozen="kernel*").fit(rows, targets, noise=noise).model_
        )
        assert found.noise.shape[0] == 24
    else:
        found = {"gpr": GPR, "nngp": NNGP}[method].from_data(rows, targets, noise=noise, **parts)
    np.testing.assert_allclose(np.sort(found.noise[:, 0]), np.sort(noise), rtol=1e-12)
    zero = np.where(rows[:, 1] == 1.0, 0.0, noise)
    if method == "estimator":
        found = agp.GPRegressor(**parts, hyperparameters="mode", frozen="kernel*").fit(rows, targets, noise=zero).model_
        assert 1e-10 < np.min(found.noise) * scale**2 < 1e-8
        return
    model = type(found).from_data(rows, targets, noise=zero, **parts)
    with pytest.raises(ValueError, match="noise_variance is 0, and so is the known noise of row 12; pass at least"):
        agp.fit(model, rows, targets)
