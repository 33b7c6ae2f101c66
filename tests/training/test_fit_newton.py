"""Newton's method for exact GPs: what it finds, what it says, limits, frozen leaves, trouble, units, libraries."""

import itertools
import math

import numpy as np
import pytest
from helpers import assert_close, named, toy_data

import agp
from agp import GPR, RBF, SGPR, ConstantMean, Gaussian, fit_lbfgs, fit_newton, tree
from agp.errors import Interrupted, NonFiniteError, RepairWarning
from agp.kernels import Linear, Matern12, Matern32, Matern52, RationalQuadratic
from agp.means import LinearMean, Mean
from agp.priors import LogNormal, Relative
from agp.training import LBFGSResult

BUILDERS = {
    "rbf": lambda X, y: GPR.from_data(X, y),
    "matern12": lambda X, y: GPR.from_data(X, y, kernel=Matern12()),
    "matern32": lambda X, y: GPR.from_data(X, y, kernel=Matern32(), mean_function=ConstantMean()),
    "matern52": lambda X, y: GPR.from_data(X, y, kernel=Matern52(), mean_function=LinearMean()),
    "rq": lambda X, y: GPR.from_data(X, y, kernel=RationalQuadratic()),
    "linear-part": lambda X, y: GPR.from_data(X, y, kernel=RBF() + Linear(), mean_function=ConstantMean()),
    "on": lambda X, y: GPR.from_data(X, y, kernel=RBF() + Matern32().on([0])),
    "priors": lambda X, y: GPR.from_data(X, y, priors={"kernel.lengthscale": Relative(LogNormal(0.0, 1.0))}),
}
LINE = np.linspace(0.0, 6.0, 50)[:, None]
TABLES = {
    "one": lambda: toy_data(60),
    "two": lambda: toy_data(60, 2),
    "small": lambda: toy_data(12, seed=5),
    "ripple": lambda: (LINE, np.sin(LINE) + 0.1 * np.cos(37.0 * LINE)),
}


# -- what it finds ----------------------------------------------------------------------------------------------------


@pytest.mark.cover(2)
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("method", BUILDERS)
def test_it_reaches_the_optimum_of_lbfgs(method, table):
    X, y = TABLES[table]()
    model = BUILDERS[method](X, y)
    found, expected = fit_newton(model, X, y, tolerance=1e-4), fit_lbfgs(model, X, y)
    assert found.converged
    assert found.bounds[0] > expected.bounds[0] - (2e-3 if (method, table) == ("on", "ripple") else 1e-3)
    assert found.rejections == {}


@pytest.mark.parametrize("method", BUILDERS)
def test_it_takes_fewer_evaluations_than_lbfgs(method):
    X, y = toy_data(60, 2)
    model = BUILDERS[method](X, y)
    assert fit_newton(model, X, y).evaluations < 0.8 * fit_lbfgs(model, X, y).evaluations


@pytest.mark.cover(2)
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("method", BUILDERS)
def test_it_ends_where_another_search_gains_nothing(method, table):
    X, y = TABLES[table]()
    found = fit_newton(BUILDERS[method](X, y), X, y)
    again = fit_newton(found.model, X, y)
    assert found.converged
    assert again.converged
    assert -1e-8 < again.bounds[0] - found.bounds[0] < 1e-3


@pytest.mark.parametrize("method", BUILDERS)
def test_every_iteration_raises_the_bound(method):
    X, y = toy_data(30, 2)
    model = BUILDERS[method](X, y)
    start = float(model.bound(X, y)[0]) + float(agp.priors.log_prior(model)[0])
    found = fit_newton(model, X, y)
    assert isinstance(found, LBFGSResult)
    assert found.trace.keys() == {"bound", "gradient", "gain"}
    trace = [start, *found.trace["bound"]]
    assert all(after > before for before, after in itertools.pairwise(trace))
    assert found.steps == len(found.trace["bound"]) == len(found.trace["gradient"]) == len(found.trace["gain"])
    assert found.steps < found.evaluations
    assert found.bounds == [trace[-1]]
    end = float(found.model.bound(X, y)[0]) + float(agp.priors.log_prior(found.model)[0])
    assert end == pytest.approx(trace[-1], abs=1e-8)
    assert found.message == "further steps gain less than 0.001 nats"
    assert found.seconds > 0.0
    assert found.trace["gradient"][-1] < 1e-2 < found.trace["gradient"][0]
    assert all(gain > 0.0 for gain in found.trace["gain"])


def test_the_bound_with_what_is_known_of_rows():
    X, y = toy_data(30)
    rng = np.random.default_rng(0)
    known = {"weights": rng.uniform(0.5, 2.0, 30), "offset": rng.normal(size=(30, 1)), "noise": 0.1 * np.ones((30, 1))}
    model = GPR.from_data(X, y, **known)
    found, expected = fit_newton(model, X, y, **known), fit_lbfgs(model, X, y, **known)
    assert found.bounds[0] == pytest.approx(expected.bounds[0], abs=2e-3)
    assert float(found.model.bound(X, y, **known)[0]) == pytest.approx(found.bounds[0], abs=1e-8)


def test_the_model_that_was_given_is_not_changed():
    X, y = toy_data(20)
    model = GPR.from_data(X, y)
    before = {name: np.array(leaf) for name, leaf in named(model).items()}
    fit_newton(model, X, y, max_iterations=5)
    for name, leaf in named(model).items():
        np.testing.assert_array_equal(leaf, before[name])


@pytest.mark.parametrize("method", ["rbf", "linear-part", "priors"])
def test_every_library_finds_the_same(method, backend):
    X, y = toy_data(30, 2)
    model = BUILDERS[method](X, y)
    expected = fit_newton(model, X, y)
    found = fit_newton(backend.move(model), backend.array(X), backend.array(y))
    assert found.steps == expected.steps
    np.testing.assert_allclose(found.trace["bound"], expected.trace["bound"], rtol=1e-8)
    for name, leaf in named(expected.model).items():
        if leaf is not None:
            assert_close(backend.numpy(named(found.model)[name]), leaf, 1e-6, name)


def test_float32_stays_float32(backend):
    X, y = (backend.array(x, "float32") for x in toy_data(30))
    found = fit_newton(GPR.from_data(X, y), X, y, tolerance=0.1)
    exact = fit_newton(GPR.from_data(*toy_data(30)), *toy_data(30))
    assert found.bounds[0] > exact.bounds[0] - 0.2
    for leaf in named(found.model).values():
        if leaf is not None:
            backend.check(leaf, "float32")


# -- limits -----------------------------------------------------------------------------------------------------------


def test_no_iterations_give_the_model_back():
    X, y = toy_data(20)
    model = GPR.from_data(X, y)
    found = fit_newton(model, X, y, max_iterations=0)
    assert (found.steps, found.evaluations, found.converged) == (0, 1, False)
    assert found.message == "the limit of 0 iterations (max_iterations) was reached"
    assert found.bounds == [pytest.approx(float(model.bound(X, y)[0]), rel=1e-10)]
    for name, leaf in named(model).items():
        np.testing.assert_allclose(named(found.model)[name], leaf, rtol=1e-14)


@pytest.mark.parametrize("limit", [1, 3])
def test_a_limit_ends_it(limit):
    X, y = toy_data(20)
    found = fit_newton(GPR.from_data(X, y), X, y, max_iterations=limit)
    assert found.steps <= limit
    assert found.evaluations == limit + 1
    assert not found.converged
    assert found.message == f"the limit of {limit} iterations (max_iterations) was reached"


def test_callbacks_see_every_iteration_and_can_end_it():
    X, y = toy_data(20)
    model, seen = GPR.from_data(X, y), []
    full = fit_newton(model, X, y, callbacks=[lambda progress: seen.append(progress)])
    assert [progress.step for progress in seen] == list(range(1, full.steps + 1))
    assert [float(progress.info["bound"]) for progress in seen] == full.trace["bound"]
    assert float(seen[2].model.bound(X, y)[0]) == pytest.approx(full.trace["bound"][2], abs=1e-8)
    short = fit_newton(model, X, y, callbacks=[lambda progress: progress.step == 3])
    assert (short.steps, short.converged) == (3, False)
    assert short.trace["bound"] == full.trace["bound"][:3]
    assert short.message == "a callback ended the optimisation"


def test_an_interruption_keeps_the_best_so_far():
    X, y = toy_data(20)
    model = GPR.from_data(X, y)

    def interrupt(progress):
        if progress.step == 2:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="training was interrupted after") as caught:
        fit_newton(model, X, y, callbacks=[interrupt])
    found = caught.value.result
    assert found.steps == 2
    assert not found.converged
    assert float(found.model.bound(X, y)[0]) == pytest.approx(found.trace["bound"][1], abs=1e-8)


def test_an_interruption_before_anything_gives_the_start(monkeypatch):
    X, y = toy_data(20)
    model = GPR.from_data(X, y)

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(GPR, "_expand", interrupt)
    with pytest.raises(Interrupted) as caught:
        fit_newton(model, X, y)
    assert caught.value.result.steps == 0
    assert caught.value.result.model.kernel.variance == model.kernel.variance


# -- frozen leaves ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("frozen", [("kernel.lengthscale", "mean_function.*"), "kernel.*", "likelihood.*"])
def test_frozen_leaves_stay_as_they_are(frozen):
    X, y = toy_data(20)
    model = GPR.from_data(X, y, mean_function=ConstantMean())
    found = fit_newton(model, X, y, frozen=frozen)
    expected = fit_lbfgs(model, X, y, frozen=frozen)
    before, after = named(model, "parameter"), named(found.model, "parameter")
    held = {name for name in before if any(tree.matches(name, one) for one in tree.patterns(frozen))}
    assert {name for name in before if np.array_equal(before[name], after[name])} == held == set(found.frozen)
    assert found.bounds[0] == pytest.approx(expected.bounds[0], abs=2e-3)


@pytest.mark.parametrize("known", [0.01, np.linspace(0.01, 0.1, 20)[:, None]])
def test_a_noise_variance_of_zero_stays_zero(known):
    X, y = toy_data(20)
    noise = known * np.ones((20, 1))
    model = GPR.from_data(X, y, likelihood=Gaussian(0.0), noise=noise)
    found, expected = fit_newton(model, X, y, noise=noise), fit_lbfgs(model, X, y, noise=noise)
    assert float(found.model.likelihood.noise_variance) == 0.0
    assert found.frozen == ("likelihood.noise_variance",)
    assert found.bounds[0] == pytest.approx(expected.bounds[0], abs=2e-3)


# -- trouble ----------------------------------------------------------------------------------------------------------


@tree.model
class Plain(Matern52):
    """A kernel that has no derivatives for Newton's method."""

    def linearise(self, X, /):
        return None


@tree.model
class Wave(Mean):
    """A mean function that is not linear in its parameter."""

    phase: object = tree.param()

    def __call__(self, X, /):
        h = np.sin(X[:, :1] + self.phase)
        return h, lambda bar: (tree.cotangent(self, phase=np.sum(bar * np.cos(X[:, :1] + self.phase))), None)

    def from_data(self, X, level, spread, /):
        return self

    def check(self, width, outputs, /):
        pass


UNSUPPORTED = {
    "SGPR has no second-order expansion": lambda X, y: SGPR.from_data(X, y, num_inducing=5),
    "Plain or a part of it has no method linearise": lambda X, y: GPR.from_data(X, y, kernel=Plain()),
    "Sum or a part of it has no method linearise": lambda X, y: GPR.from_data(X, y, kernel=RBF() + Plain()),
    "Wave has no method basis": lambda X, y: GPR.from_data(X, y, mean_function=Wave(np.asarray(0.3))),
}


@pytest.mark.parametrize("why", UNSUPPORTED)
def test_models_without_derivatives_are_refused(why):
    X, y = toy_data(20)
    with pytest.raises(TypeError, match=f"does not support this model: {why}.*use agp.fit_lbfgs"):
        fit_newton(UNSUPPORTED[why](X, y), X, y)


@pytest.mark.parametrize("kernel", [Plain, lambda: RBF() + Plain()])
def test_fit_falls_back_to_lbfgs_for_them(kernel):
    X, y = toy_data(20)
    model = GPR.from_data(X, y, kernel=kernel())
    found, expected = agp.fit(model, X, y), fit_lbfgs(model, X, y)
    assert found.converged
    assert "further steps" not in found.message
    assert found.trace["bound"][-1] == pytest.approx(expected.bounds[0], abs=0.1)


def test_fit_takes_newton_steps_for_the_others():
    X, y = toy_data(20)
    model = GPR.from_data(X, y)
    found, expected = agp.fit(model, X, y, tolerance=0.1), fit_newton(model, X, y, tolerance=1e-3)
    assert found.trace == expected.trace
    assert found.message == expected.message


def singular():
    """A start whose covariance matrix cannot be factorised without jitter."""
    X, y = toy_data(30)
    X[1:4] = X[0]
    return GPR.from_data(X, y, kernel=RBF(1.0, 30.0), likelihood=Gaussian(1e-24)), X, y


def test_a_singular_start_is_an_error():
    model, X, y = singular()
    with pytest.raises(NonFiniteError, match="a factorisation failed at the starting model") as caught:
        fit_newton(model, X, y)
    assert caught.value.result.steps == 0
    assert caught.value.result.rejections == {"a factorisation failed": 1}


@pytest.mark.filterwarnings("ignore::agp.errors.RepairWarning")
@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::agp.errors.NoSignalWarning")
def test_fit_leaves_a_singular_start_by_lbfgs():
    model, X, y = singular()
    found = agp.fit(model, X, y, max_steps=20)
    assert found.steps > 0
    assert found.trace["bound"][-1] > found.trace["bound"][0]


def test_no_jitter_is_ever_added(recwarn, monkeypatch):
    # rows that repeat, without noise: trial points whose matrix cannot be factorised are rejected, not repaired
    X, y = toy_data(30)
    X[15:], y[15:] = X[:15], y[:15]
    model = GPR.from_data(X, y)
    least = []
    with monkeypatch.context() as patch:
        patch.setattr("agp.bounds._evidence.noisy_cholesky", None)
        found = fit_newton(model, X, y, callbacks=[lambda seen: least.append(float(seen.info["bound"]))])
    assert found.repairs == {}
    assert not [one for one in recwarn if issubclass(one.category, RepairWarning)]
    assert found.rejections.keys() <= {"a factorisation failed"}
    assert np.isfinite(least).all()


def test_a_trial_point_that_fails_is_rejected(monkeypatch):
    # the optimum lies behind a cliff
    X, y = toy_data(40)
    model = GPR.from_data(X, y)
    free = fit_newton(model, X, y)
    limit = 1.5 * float(free.model.likelihood.noise_variance)
    whole = GPR._expand

    def failing(self, batch, scales):
        found = whole(self, batch, scales)
        below = float(self.likelihood.noise_variance) < limit
        return found._replace(evidence=found.evidence * math.nan) if below else found

    monkeypatch.setattr(GPR, "_expand", failing)
    found = fit_newton(model, X, y)
    assert found.rejections.keys() == {"a factorisation failed"}
    assert float(found.model.likelihood.noise_variance) >= limit
    assert float(model.bound(X, y)[0]) + 5.0 < found.bounds[0] < free.bounds[0]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"frozen": ("nothing",)}, ValueError, "no parameter matches 'nothing'"),
        ({"frozen": ("*",)}, ValueError, "every parameter is frozen"),
        ({"max_iterations": -1}, ValueError, "max_iterations is -1"),
        ({"tolerance": 0.0}, ValueError, "tolerance is 0"),
        ({"tolerance": math.nan}, ValueError, "tolerance is nan"),
        ({"callbacks": [3]}, TypeError, "callbacks"),
    ],
)
def test_bad_options_are_refused(options, error, message):
    X, y = toy_data(20)
    with pytest.raises(error, match=message):
        fit_newton(GPR.from_data(X, y), X, y, **options)


def test_data_are_checked():
    X, y = toy_data(20)
    model = GPR.from_data(X, y)
    with pytest.raises(ValueError, match="predicts from the data with which it was built"):
        fit_newton(model, X, y + 1.0)


@pytest.mark.parametrize("targets", [lambda X: 0.5 * X, lambda X: 1.0 + 0.0 * X, lambda X: 0.0 * X])
def test_targets_without_noise(targets):
    # a residual of zero has no average information at all
    X = toy_data(30)[0][:, :1]
    found = fit_newton(GPR.from_data(X, targets(X), mean_function=ConstantMean()), X, targets(X))
    assert found.converged
    assert float(found.model.likelihood.noise_variance) > 0.0
    assert np.allclose(found.model.predict(X).mean, targets(X), atol=1e-4)


# -- units ------------------------------------------------------------------------------------------------------------


UNITS = [(1e6, 1.0, 0.0), (1.0, 1e-6, 1e6), (1e-6, 1e6, -1e6)]
WITH_LEVEL = ["matern32", "matern52", "linear-part"]
"""The methods whose mean function follows any level of the targets."""


@pytest.mark.parametrize(("method", "units"), [("rbf", UNITS[0]), *itertools.product(WITH_LEVEL, UNITS)])
def test_the_same_predictions_in_any_units(method, units):
    (X, y), (a, c, level) = toy_data(60), units
    new = toy_data(20, seed=8)[0]
    there = c * (y + level * y.std())
    mean, variance = fit_newton(BUILDERS[method](X, y), X, y).model.predict(new)
    found = fit_newton(BUILDERS[method](a * X, there), a * X, there)
    assert found.converged
    mean_there, variance_there = found.model.predict(a * new)
    np.testing.assert_allclose(mean_there / c - level * y.std(), mean, rtol=0, atol=1e-3 * y.std())
    np.testing.assert_allclose(variance_there / c**2, variance, rtol=1e-2)


@pytest.mark.parametrize("method", ["rbf", "matern12", "matern32", "matern52", "rq", "linear-part"])
def test_rounding_of_the_inputs_moves_nothing(method):
    X, y = toy_data(60)
    new = toy_data(20, seed=8)[0]
    mean, variance = fit_newton(BUILDERS[method](X, y), X, y).model.predict(new)
    moved = X * (1.0 + 1e-13)
    there = fit_newton(BUILDERS[method](moved, y), moved, y).model.predict(new).mean
    assert np.max(np.abs(there - mean) / np.sqrt(variance)) < 1e-3


def test_float32_says_when_rounding_errors_end_the_training():
    rng = np.random.default_rng(3)
    X = np.sort(rng.uniform(0.0, 120.0, 80))[:, None]
    error = rng.choice([0.0, 0.1, 0.5, 2.0], 80)
    y = 300.0 + 40.0 * np.sin(X[:, 0] / 12.0) + np.hypot(error, 0.3) * rng.standard_normal(80)
    wide = agp.fit(GPR.from_data(X, y, noise=error**2), X, y)
    assert wide.message.startswith("further steps gain less than 1e-05 nats")
    narrow = [x.astype(np.float32) for x in (X, y, error**2)]
    found = agp.fit(GPR.from_data(*narrow[:2], noise=narrow[2]), *narrow[:2])
    assert found.message.startswith("further steps gain less than rounding errors of float32, about ")
    size = float(found.message.split()[-2])
    model = agp.to_backend(found.model, "numpy", dtype="float64")
    lost = float(wide.model.bound(X, y)[0]) - float(model.bound(model.X, model.y)[0])
    assert lost < 20.0 * size
