"""`agp.fit`: training that knows when to stop."""

import warnings
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest

import agp
from agp.errors import ConvergenceWarning, Interrupted, NoSignalWarning
from agp.training._fit import _Slope
from agp.training._lbfgs import Gain
from agp.training._result import Progress

RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, size=(200, 1))
Y = np.sin(3.0 * X) + 0.1 * RNG.normal(size=X.shape)


@pytest.mark.slow
@pytest.mark.parametrize("build", [agp.GPR.from_data, lambda X, y: agp.SGPR.from_data(X, y, num_inducing=15)])
def test_deterministic_bounds_are_fitted_by_lbfgs(build):
    model = build(X, Y)
    found = agp.fit(model, X, Y)
    assert found.converged
    assert found.message
    best = agp.fit_lbfgs(model, X, Y, tolerance=1e-8).model.bound(X, Y)[0]
    assert float(best - found.model.bound(X, Y)[0]) / len(X) < 1e-4


@pytest.mark.long
@pytest.mark.parametrize("posterior", ["whitened", "relaxed", "dual"])
def test_steps_end_when_the_bound_rises_no_more(posterior):
    model = agp.SVGP.from_data(X, Y, num_inducing=15, posterior=posterior)
    found = agp.fit(model, X, Y, tolerance=5e-3, batch_size=len(X))
    assert found.converged
    assert "less than 0.005" in found.message
    assert found.steps < 5_000
    rising = int(found.steps / 1.2) if found.steps > 600 else found.steps - 100  # then rates fell
    last = np.asarray(found.trace["bound"])[rising - 100 : rising]
    slope = np.polynomial.polynomial.polyfit(np.arange(100), last, 1)[1]
    assert slope * 100 / len(X) < 5e-3  # an epoch has one step here, so that 100 steps are meant
    best = float(agp.fit(agp.SGPR.from_data(X, Y, num_inducing=15), X, Y).model.bound(X, Y)[0])
    assert float(found.model.bound(X, Y)[0]) > best - 0.1 * len(X)


@pytest.mark.parametrize(("gain", "converged"), [(4e-3, True), (6e-3, False)])
def test_the_slope_is_in_nats_per_datum_and_epoch(gain, converged):
    slope = _Slope(300, 100, 5e-3, noisy=True)  # an epoch has 100 steps
    slope.resume((3.0 * gain * np.arange(500)).tolist())
    assert slope.converged == converged
    assert f"100 steps gain {gain:.1e} nats per datum" in slope.message


@pytest.mark.long
def test_callbacks_count_on_while_rates_fall():
    seen = []
    model = agp.SVGP.from_data(X, Y, num_inducing=5, posterior="whitened")
    found = agp.fit(
        model, X, Y, tolerance=5e-2, batch_size=len(X), callbacks=[lambda progress: seen.append(progress.step)]
    )
    assert seen == list(range(1, found.steps + 1))
    assert len(found.trace["bound"]) == found.steps


@pytest.mark.long
def test_an_interruption_while_rates_fall_loses_nothing():
    model = agp.SVGP.from_data(X, Y, num_inducing=5, posterior="whitened")
    steps = agp.fit(model, X, Y, tolerance=5e-2, batch_size=len(X)).steps

    def interrupt(progress):
        if progress.step == steps - 10:
            raise KeyboardInterrupt

    with pytest.raises(agp.errors.Interrupted) as caught:
        agp.fit(model, X, Y, tolerance=5e-2, batch_size=len(X), callbacks=[interrupt])
    assert caught.value.result.steps == steps - 10
    assert len(caught.value.result.trace["bound"]) == steps - 10


@pytest.mark.slow
def test_lbfgs_ends_when_iterations_gain_little():
    model = agp.SGPR.from_data(X, Y, num_inducing=40)
    found = agp.fit(model, X, Y)
    assert found.converged
    gained = np.asarray(found.trace["bound"])[-1] - np.asarray(found.trace["bound"])[-21]
    assert "iterations gained less" not in found.message or gained < 1e-3 * len(X)


@pytest.mark.long
def test_minibatches_are_drawn_and_their_noise_does_not_end_it_at_once():
    many = RNG.uniform(-2.0, 2.0, size=(3000, 1))
    targets = np.sin(3.0 * many) + 0.1 * RNG.normal(size=many.shape)
    model = agp.SVGP.from_data(many, targets, num_inducing=15)
    found = agp.fit(model, many, targets, batch_size=100, tolerance=1e-2)
    assert found.converged
    gained = float(found.model.bound(many, targets)[0] - model.bound(many, targets)[0]) / len(many)
    assert gained > 1.0


@pytest.mark.slow
def test_a_spent_budget_warns_and_says_which():
    model = agp.SVGP.from_data(X, Y, num_inducing=5)
    with pytest.warns(
        ConvergenceWarning, match=r"has not converged after 20 steps: the limit of 20 steps \(max_steps\) was reached"
    ):
        found = agp.fit(model, X, Y, max_steps=20)
    assert (found.converged, found.steps) == (False, 20)
    with pytest.warns(ConvergenceWarning, match=r"after 1 steps: the limit of 1e-09 s \(max_seconds\) was reached"):
        assert agp.fit(model, X, Y, max_seconds=1e-9).steps == 1
    with pytest.warns(ConvergenceWarning, match="the limit of 1e-09 s"):
        assert not agp.fit(agp.GPR.from_data(X, Y), X, Y, max_seconds=1e-9).converged
    with pytest.warns(ConvergenceWarning, match="after 1 steps"):
        assert not agp.fit(agp.GPR.from_data(X, Y), X, Y, max_steps=1).converged


def test_a_callback_can_end_it():
    model = agp.SVGP.from_data(X, Y, num_inducing=5)
    with pytest.warns(ConvergenceWarning, match="after 3 steps: a callback ended the training"):
        found = agp.fit(model, X, Y, callbacks=[lambda seen: seen.step == 3])
    assert found.steps == 3


@pytest.mark.slow
def test_checkpoints_are_written_by_steps_and_refused_by_lbfgs(tmp_path):
    model = agp.SVGP.from_data(X, Y, num_inducing=5)
    path = tmp_path / "run.safetensors"
    with pytest.warns(ConvergenceWarning):
        first = agp.fit(model, X, Y, max_steps=20, checkpoint=path)
    with pytest.warns(ConvergenceWarning):
        again = agp.fit(model, X, Y, max_steps=20, checkpoint=path)
    assert again.steps == first.steps
    for name, x in agp.tree.leaves(first.model).items():
        np.testing.assert_array_equal(x, agp.tree.leaves(again.model)[name])
    with pytest.raises(ValueError, match=r"checkpoint cannot be used with the optimiser .*; omit checkpoint"):
        agp.fit(agp.GPR.from_data(X, Y), X, Y, checkpoint=path)


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("stop", [None, 113, 120, "last"])
def test_a_training_with_a_checkpoint_goes_on_to_the_same_numbers(stop, tmp_path):
    # None: it has ended; in the last steps, at falling rates; within and between looks at the slope
    x, y = X[:40], Y[:40]
    model = agp.SVGP.from_data(x, y, num_inducing=5, likelihood=agp.StudentT())
    settings = {"tolerance": 0.02, "batch_size": 40}
    whole = agp.fit(model, x, y, **settings)
    assert whole.converged
    assert whole.steps > 200
    path = tmp_path / "run.safetensors"
    at = whole.steps - 10 if stop == "last" else stop

    def interrupt(progress):
        if progress.step == at:
            raise KeyboardInterrupt

    with nullcontext() if stop is None else pytest.raises(Interrupted):
        agp.fit(model, x, y, checkpoint=path, callbacks=[interrupt], **settings)
    again = agp.fit(model, x, y, checkpoint=path, **settings)
    assert (again.steps, again.converged, again.message) == (whole.steps, True, whole.message)
    assert again.trace["bound"] == whole.trace["bound"]
    for name, x in agp.tree.leaves(whole.model).items():
        np.testing.assert_array_equal(x, agp.tree.leaves(again.model)[name])


@pytest.mark.long
def test_last_steps_of_another_training_are_not_taken(tmp_path):
    x, y = X[:40], Y[:40]
    settings = {"tolerance": 0.1, "batch_size": 40}
    model, other = (agp.SVGP.from_data(x, y, num_inducing=5, likelihood=agp.StudentT(), seed=seed) for seed in (0, 3))
    path, last = tmp_path / "run.safetensors", tmp_path / "run-last.safetensors"
    agp.fit(model, x, y, checkpoint=path, **settings)
    assert last.exists()
    path.unlink()
    found = agp.fit(other, x, y, checkpoint=path, **settings)
    assert found.trace["bound"] == agp.fit(other, x, y, **settings).trace["bound"]
    path.unlink()
    last.write_text("of somebody else")
    with pytest.raises(ValueError, match=r"run-last\.safetensors"):
        agp.fit(model, x, y, checkpoint=path, **settings)
    assert last.read_text() == "of somebody else"


@pytest.mark.parametrize("training", [agp.fit, agp.fit_growing, partial(agp.train, steps=3), agp.fit_lbfgs])
def test_what_cannot_be_trained_or_called_is_named(training):
    model = agp.SGPR.from_data(X, Y, num_inducing=5)
    for wrong, said in ((agp.SGPR, "is the class SGPR"), ("sgpr", "has the class str")):
        with pytest.raises(TypeError, match=said):
            training(wrong, X, Y)
    for callbacks, said in (
        (print, r"write callbacks=\[print\]"),
        (3, "callbacks is 3"),
        ([3], r"callbacks\[0\] is 3"),
    ):
        with pytest.raises(TypeError, match=said):
            training(model, X, Y, callbacks=callbacks)


@pytest.mark.parametrize("training", [agp.fit, agp.fit_growing])
def test_updates_are_planned_by_a_function(training):
    for updates in (agp.updates.Adam(0.01), agp.updates.Adam):
        with pytest.raises(TypeError, match=r"such as agp\.recipe"):
            training(agp.SVGP.from_data(X, Y, num_inducing=5), X, Y, updates=updates)


@pytest.mark.parametrize(
    ("name", "value"),
    [("tolerance", 0.0), ("tolerance", np.nan), ("max_seconds", -1.0), ("tolerance", None), ("max_seconds", "x")],
)
def test_limits_that_mean_nothing_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} is .*, but must be a finite number above zero"):
        agp.fit(agp.GPR.from_data(X, Y), X, Y, **{name: value})


@pytest.mark.long
@pytest.mark.parametrize("library", ["torch", "array_api_strict"])
def test_other_libraries_stop_at_the_same_step(library):
    pytest.importorskip(library, reason=f"{library} is not installed: not executed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        here = agp.fit(agp.SVGP.from_data(X, Y, num_inducing=5), X, Y, max_steps=700, tolerance=0.5)
        A, b = agp.to_backend(X, library), agp.to_backend(Y, library)
        there = agp.fit(agp.SVGP.from_data(A, b, num_inducing=5), A, b, max_steps=700, tolerance=0.5)
    assert (here.converged, here.steps) == (there.converged, there.steps)
    # rounding grows along the way: the step at which it ends is the same
    np.testing.assert_allclose(here.trace["bound"], there.trace["bound"], rtol=1e-5)


@pytest.mark.parametrize("targets", [lambda X: 0.5 * X, lambda X: 1.0 + 0.0 * X], ids=["line", "constant"])
def test_noise_that_is_not_there_keeps_a_variance(targets):
    inputs = X[:30]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", agp.errors.RepairWarning)
        found = agp.fit(agp.GPR.from_data(inputs, targets(inputs)), inputs, targets(inputs))
    assert found.converged
    assert float(found.model.likelihood.noise_variance) > 0.0
    assert np.allclose(found.model.predict(inputs).mean, targets(inputs), atol=1e-4)


class Still:
    """An update that changes nothing."""

    def init(self, model):
        return {}

    def __call__(self, model, batch, state):
        return model, state, {"bound": np.zeros(())}


@pytest.mark.filterwarnings("ignore::agp.errors.NoSignalWarning")
@pytest.mark.parametrize(("rows", "cooling"), [(4, 12), (20, 20)])
def test_rates_fall_during_a_fifth_of_the_steps_but_not_less_than_a_minimum(rows, cooling, monkeypatch):
    # five epochs of minibatches of one row, or 50 steps, show that the bound rises no more
    monkeypatch.setattr("agp.training._fit.WINDOW_STEPS", 50)
    monkeypatch.setattr("agp.training._fit.COOLING_STEPS", 12)
    planned = []

    def updates(model, steps, **settings):
        planned.append(steps)
        return [Still()]

    model = agp.SVGP.from_data(X[:4], Y[:4], num_inducing=2)
    found = agp.fit(model, X[:rows], Y[:rows], batch_size=1, updates=updates)
    assert found.steps == max(50, 5 * rows) + cooling
    assert planned[1:] == [cooling]


@pytest.mark.parametrize("scale", [0.02, 0.05, "trained", None])
def test_known_noise_that_is_too_small_is_not_called_a_lack_of_signal(scale):
    rng = np.random.default_rng(1)
    X, noise = rng.uniform(0.0, 10.0, size=(150, 1)), rng.normal(size=(150, 1))
    if scale in (None, "trained"):  # without any signal
        y, known, said = noise, {"noise": np.full(150, 0.01)} if scale else {}, "the model has learned nothing"
    else:
        y, said = np.sin(X) + 0.4 * noise, "the known noise variances may be too small"
        known = {"likelihood": agp.Gaussian(0.0), "noise": np.full(150, scale**2)}
    with pytest.warns(NoSignalWarning, match=said):
        found = agp.fit(agp.SGPR.from_data(X, y, num_inducing=8, **known), X, y)
    assert not found.learned


def test_a_pause_does_not_end_slow_training():
    """After many iterations, the average gain decides: 20 that gain little are not the end."""
    rule, bound = Gain(0.3), 0.0
    for gain in [*np.full(200, 0.03), *np.full(20, 0.001)]:
        bound += gain
        assert not rule(Progress(0, None, {"bound": bound}, 0.0))
    while not rule(Progress(0, None, {"bound": bound}, 0.0)):
        bound += 0.001
    last = int(0.3 * len(rule.bounds))
    assert 220 < len(rule.bounds) < 300
    assert rule.message == f"the last {last} iterations gained less than {0.3 * last / 20:.2g} nats"
