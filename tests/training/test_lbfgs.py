"""L-BFGS: convergence, restarts, frozen leaves, trouble, interruption; the same on every backend."""

import itertools
import math

import numpy as np
import pytest
from helpers import assert_close, inducing_inputs, named, process, sgpr, toy_data

from agp import GPR, RBF, SGPR, SVGP, Bernoulli, Gaussian, fit_lbfgs, get_backend, train, value_and_gradient
from agp.errors import BackendError, Interrupted, NonFiniteError, NotPositiveDefiniteError, RepairWarning
from agp.posteriors import Relaxed, Whitened
from agp.random import Draws
from agp.training import LBFGSResult, Result
from agp.updates import Adam

BUILDERS = {
    "gpr": lambda X, y: GPR.from_data(X, y),
    "sgpr": lambda X, y: SGPR.from_data(X, y, num_inducing=6),
    "svgp": lambda X, y: SVGP.from_data(X, y, posterior=Whitened, num_inducing=6),
}


def largest_gradient(model, X, y):
    return max(float(np.max(np.abs(g))) for g in value_and_gradient(model, X, y)[1].values()) / len(X)


# -- what it finds ----------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_it_reaches_a_stationary_point_that_adam_does_not_beat():
    X, y = toy_data(40)
    model = GPR.from_data(X, y)
    result = fit_lbfgs(model, X, y)
    assert result.converged
    assert result.message
    assert largest_gradient(result.model, X, y) <= 1e-6
    adam = train(model, X, y, steps=300, updates=[Adam(0.01)]).model
    bound = float(result.model.bound(X, y)[0])
    assert bound > float(adam.bound(X, y)[0])
    assert result.trace["bound"][-1] == pytest.approx(bound, rel=1e-12)
    assert result.bounds == [pytest.approx(bound, rel=1e-12)]


@pytest.mark.slow
@pytest.mark.parametrize("method", BUILDERS)
def test_every_iteration_raises_the_bound(method):
    X, y = toy_data(30, 2)
    model = BUILDERS[method](X, y)
    result = fit_lbfgs(model, X, y, max_iterations=60)
    assert isinstance(result, LBFGSResult)
    assert isinstance(result, Result)
    trace = [float(model.bound(X, y)[0]), *result.trace["bound"]]
    assert all(after >= before - 1e-9 * abs(before) for before, after in itertools.pairwise(trace))
    assert trace[-1] > trace[0] + 5.0
    assert result.steps == len(result.trace["bound"]) == len(result.trace["gradient"])
    assert result.evaluations > result.steps
    assert result.seconds > 0.0
    assert result.rejections == {}


@pytest.mark.parametrize("gradient", ["closed-form", "autodiff"])
@pytest.mark.parametrize("method", BUILDERS)
def test_the_same_iterates_on_every_backend(method, gradient, backend):
    if gradient not in get_backend(backend.name).gradients:
        pytest.skip("no automatic differentiation")
    X, y = toy_data(20)
    model = BUILDERS[method](X, y)
    expected = fit_lbfgs(model, X, y, max_iterations=6)
    here = backend.array(X), backend.array(y)
    found = fit_lbfgs(backend.move(model), *here, max_iterations=6, gradient=gradient)
    np.testing.assert_allclose(found.trace["bound"], expected.trace["bound"], rtol=1e-7)
    for name, leaf in named(expected.model).items():
        assert_close(backend.numpy(named(found.model)[name]), leaf, 1e-5, name)


@pytest.mark.slow
def test_float32_stays_float32(backend):
    X, y = (backend.array(x, "float32") for x in toy_data(30))
    model = SGPR.from_data(X, y, num_inducing=6)
    result = fit_lbfgs(model, X, y, max_iterations=20)
    assert result.trace["bound"][-1] > float(model.bound(X, y)[0]) + 5.0
    for leaf in named(result.model).values():
        backend.check(leaf, "float32")


@pytest.mark.slow
def test_full_batch_svgp_reaches_sgpr():
    # with the hyperparameters held, the optimal q(u) is known
    X, y = toy_data(30)
    model = SVGP.from_data(X, y, posterior=Whitened, num_inducing=6)
    hyper = ("kernel.*", "likelihood.*", "Z", "mean_function.*")
    result = fit_lbfgs(model, X, y, frozen=hyper, tolerance=1e-9, max_iterations=3000)
    parts = process(model)
    collapsed = sgpr(parts.kernel, model.likelihood, inducing_inputs(model), X, y, mean_function=parts.mean_function)
    assert float(result.model.bound(X, y)[0]) == pytest.approx(float(collapsed.bound(X, y)[0]), rel=1e-7)


@pytest.mark.slow
def test_any_deterministic_likelihood():
    X, y = toy_data(30)
    model = SVGP.from_data(X, (y > 0.0) * 1.0, posterior=Whitened, likelihood=Bernoulli(), num_inducing=6)
    result = fit_lbfgs(model, X, (y[:, 0] > 0.0) * 1.0, max_iterations=50)
    assert result.trace["bound"][-1] > result.trace["bound"][0]


def test_no_iterations_give_the_model_back():
    X, y = toy_data(20)
    model = GPR.from_data(X, y)
    result = fit_lbfgs(model, X, y, max_iterations=0)
    assert result.steps == 0
    assert not result.converged
    assert result.message == "max_iterations is 0"
    for name, leaf in named(model).items():
        np.testing.assert_allclose(named(result.model)[name], leaf, rtol=1e-14)


def test_the_model_that_was_given_is_not_changed():
    X, y = toy_data(20)
    model = GPR.from_data(X, y)
    before = {name: np.array(leaf) for name, leaf in named(model).items()}
    fit_lbfgs(model, X, y, max_iterations=5, restarts=1)
    for name, leaf in named(model).items():
        np.testing.assert_array_equal(leaf, before[name])


# -- restarts ---------------------------------------------------------------------------------------------------------


def trapped():
    """A start whose lengthscale explains nothing, so that all is noise."""
    X, y = toy_data(40)
    return GPR.from_data(X, y, kernel=RBF(1.0, 1e-3), likelihood=Gaussian(1.0)), X, y


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*numerical repairs:agp.errors.RepairWarning")  # starts up to e^9 away are wild
def test_restarts_improve_or_equal():
    model, X, y = trapped()
    alone = fit_lbfgs(model, X, y, max_iterations=100)
    several = fit_lbfgs(model, X, y, max_iterations=100, restarts=4, spread=3.0, seed=1)
    assert several.bounds[0] == alone.bounds[0]
    assert len(several.bounds) == 5
    assert several.trace["bound"][-1] == max(several.bounds) > alone.bounds[0] + 1.0
    assert several.evaluations > alone.evaluations
    assert float(several.model.bound(X, y)[0]) == pytest.approx(max(several.bounds), rel=1e-12)


@pytest.mark.slow
def test_restarts_depend_on_the_seed_alone(backend):
    X, y = toy_data(20)
    model = GPR.from_data(X, y)
    options = {"max_iterations": 3, "restarts": 2}
    expected = fit_lbfgs(model, X, y, seed=5, **options).bounds
    here = backend.move(model), backend.array(X), backend.array(y)
    np.testing.assert_allclose(fit_lbfgs(*here, seed=5, **options).bounds, expected, rtol=1e-7)
    assert fit_lbfgs(model, X, y, seed=6, **options).bounds[1:] != expected[1:]


def test_restarts_draw_hyperparameters_only():
    X, y = toy_data(20)
    model = SVGP.from_data(X, y, posterior=Whitened, num_inducing=5)
    result = fit_lbfgs(model, X, y, max_iterations=0, restarts=3, frozen=("kernel.variance",), spread=0.0)
    assert len(set(np.round(result.bounds, 9))) == 1
    drawn = fit_lbfgs(model, X, y, max_iterations=0, restarts=3, frozen=("kernel.*", "likelihood.*"))
    assert len(set(drawn.bounds)) == 1


# -- frozen leaves ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [("Z", "likelihood.*"), "kernel.*"])
def test_frozen_leaves_stay_as_they_are(frozen):
    X, y = toy_data(20)
    model = SGPR.from_data(X, y, num_inducing=5)
    result = fit_lbfgs(model, X, y, frozen=frozen, max_iterations=10, restarts=2)
    before, after = named(model), named(result.model)
    held = {"kernel.variance", "kernel.lengthscale"} if frozen == "kernel.*" else {"Z", "likelihood.noise_variance"}
    for name in named(model, "parameter"):
        assert np.array_equal(before[name], after[name]) == (name in held)


def test_the_triangle_of_a_scale_stays_one():
    X, y = toy_data(20)
    model = SVGP.from_data(X, y, posterior=Whitened, num_inducing=5)
    scale = process(fit_lbfgs(model, X, y, max_iterations=10).model).posterior.scale
    np.testing.assert_array_equal(scale, np.tril(scale))
    assert np.max(np.abs(np.tril(scale, -1))) > 1e-3


# -- callbacks and interruption ---------------------------------------------------------------------------------------


def test_callbacks_see_every_iteration_and_can_end_it():
    X, y = toy_data(20)
    model = GPR.from_data(X, y)
    seen = []
    full = fit_lbfgs(model, X, y, max_iterations=8, restarts=1, callbacks=[seen.append])
    assert [progress.step for progress in seen] == list(range(1, len(seen) + 1))
    first = [float(progress.info["bound"]) for progress in seen[:8]]
    np.testing.assert_allclose(float(seen[3].model.bound(X, y)[0]), first[3], rtol=1e-12)
    assert full.bounds[0] == first[-1]

    short = fit_lbfgs(model, X, y, max_iterations=8, restarts=1, callbacks=[lambda progress: progress.step == 3])
    assert short.steps == 3
    assert short.trace["bound"] == first[:3]
    assert short.message == "a callback ended the optimisation"
    assert not short.converged
    assert len(short.bounds) == 1


@pytest.mark.parametrize("step", [2, 7])
def test_an_interruption_keeps_the_best_so_far(step):
    X, y = toy_data(20)
    model = GPR.from_data(X, y)
    alone = fit_lbfgs(model, X, y, max_iterations=5)

    def interrupt(progress):
        if progress.step == step:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="training was interrupted after") as caught:
        fit_lbfgs(model, X, y, max_iterations=5, restarts=3, callbacks=[interrupt])
    result = caught.value.result
    bound = float(result.model.bound(X, y)[0])
    if step == 2:
        assert result.steps == 2
        assert bound == pytest.approx(alone.trace["bound"][1], rel=1e-12)
    else:
        assert len(result.bounds) == 2
        assert bound == pytest.approx(max(result.bounds), rel=1e-12)
        assert bound >= alone.bounds[0] - 1e-9


def test_an_interruption_before_anything_gives_the_start(monkeypatch):
    X, y = toy_data(20)
    model = GPR.from_data(X, y)

    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("agp.training._objective.gradient_of_batch", interrupt)
    with pytest.raises(Interrupted) as caught:
        fit_lbfgs(model, X, y)
    assert caught.value.result.steps == 0
    assert process(caught.value.result.model).kernel.variance == process(model).kernel.variance


# -- trouble ----------------------------------------------------------------------------------------------------------


def beyond(monkeypatch, trouble, limit):
    """Let the objective fail wherever the noise variance lies below a limit."""
    from agp.training import _objective

    whole = _objective.gradient_of_batch

    def failing(model, batch, mode, **options):
        value, gradient = whole(model, batch, mode)
        return trouble(value, gradient) if float(model.likelihood.noise_variance) < limit else (value, gradient)

    monkeypatch.setattr("agp.training._objective.gradient_of_batch", failing)


def no_factor(value, gradient):
    raise NotPositiveDefiniteError


TROUBLE = {
    "a factorisation failed": no_factor,
    "the bound was not finite": lambda value, gradient: (value * math.nan, gradient),
    "the gradient was not finite": lambda value, gradient: (value, {k: g / 0.0 for k, g in gradient.items()}),
}


@pytest.mark.slow
@pytest.mark.parametrize("reason", TROUBLE)
def test_a_trial_point_that_fails_is_rejected(reason, monkeypatch):
    X, y = toy_data(40)
    model = GPR.from_data(X, y)
    free = fit_lbfgs(model, X, y)
    limit = 1.5 * float(free.model.likelihood.noise_variance)  # the optimum lies behind the cliff
    assert float(model.likelihood.noise_variance) > limit
    beyond(monkeypatch, TROUBLE[reason], limit)
    result = fit_lbfgs(model, X, y)
    assert result.rejections.keys() == {reason}
    assert result.rejections[reason] < result.evaluations
    assert float(result.model.likelihood.noise_variance) >= limit
    assert float(model.bound(X, y)[0]) + 5.0 < result.trace["bound"][-1] < free.trace["bound"][-1]


@pytest.mark.parametrize("reason", TROUBLE)
def test_a_start_that_fails_is_an_error(reason, monkeypatch):
    X, y = toy_data(20)
    model = GPR.from_data(X, y)
    beyond(monkeypatch, TROUBLE[reason], math.inf)
    with pytest.raises(NonFiniteError, match=f"{reason} at the starting model") as caught:
        fit_lbfgs(model, X, y)
    assert caught.value.result.steps == 0


def test_a_restart_that_fails_is_counted(monkeypatch):
    X, y = toy_data(20)
    model = GPR.from_data(X, y)
    noise = float(model.likelihood.noise_variance)
    beyond(monkeypatch, no_factor, 0.999 * noise)
    result = fit_lbfgs(model, X, y, max_iterations=0, restarts=8)
    failed = sum(bound == -math.inf for bound in result.bounds)
    assert 0 < failed < 8
    assert result.rejections == {"a factorisation failed": failed}


def test_repairs_are_reported():
    X, y = toy_data(20)
    Z = np.repeat(X[:3], 2, axis=0)
    model = SGPR.from_data(X, y, Z=Z, kernel=RBF(1.0, 1.0), jitter=0.0)
    with pytest.warns(RepairWarning, match="numerical repairs; the first:"):
        result = fit_lbfgs(model, X, y, max_iterations=2, frozen=("Z",))
    assert result.repairs


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"frozen": ("nothing",)}, ValueError, "no parameter matches 'nothing'"),
        ({"frozen": ("*",)}, ValueError, "every parameter is frozen"),
        ({"gradient": "autodiff"}, BackendError, "has no automatic differentiation"),
        ({"gradient": "symbolic"}, ValueError, "gradient is 'symbolic', but must be"),
        ({"max_iterations": -1}, ValueError, "max_iterations is -1"),
        ({"restarts": 0.5}, ValueError, "restarts is 0.5"),
        ({"seed": -1}, ValueError, "seed is -1"),
        ({"tolerance": -1.0}, ValueError, "tolerance is -1.0"),
        ({"spread": math.nan}, ValueError, "spread is nan"),
    ],
)
def test_bad_options_are_refused(options, error, message):
    X, y = toy_data(20)
    with pytest.raises(error, match=message):
        fit_lbfgs(GPR.from_data(X, y), X, y, **options)


def test_auxiliary_arrays_are_refused():
    X, y = toy_data(20)
    model = SVGP.from_data(X, y, posterior=Relaxed, num_inducing=5)
    with pytest.raises(TypeError, match="L-BFGS would not update process.posterior.inverse_factor; use agp.train"):
        fit_lbfgs(model, X, y)


def test_noisy_objectives_are_refused(monkeypatch):
    X, y = toy_data(20)
    model = SVGP.from_data(X, y, posterior=Whitened, num_inducing=5)
    monkeypatch.setattr(SVGP, "_draws", lambda self, rng, rows: Draws({"noise": rng.normal(size=(1, rows))}, {}))
    with pytest.raises(TypeError, match="this model's objective is noisy, because it uses random draws .noise.;"):
        fit_lbfgs(model, X, y)


def test_data_are_checked():
    X, y = toy_data(20)
    model = GPR.from_data(X, y)
    with pytest.raises(ValueError, match="predicts from the data with which it was built"):
        fit_lbfgs(model, X, y + 1.0)
    y = y.copy()
    y[3] = math.nan
    with pytest.raises(ValueError, match="y has 1 NaN or infinite entries"):
        fit_lbfgs(model, X, y)
