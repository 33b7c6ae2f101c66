"""The model that `fit_regression` gives is the one it says: its posterior, its bound, and the account of the choice."""

import math
import re
import warnings
from functools import partial

import numpy as np
import pytest
import scipy.stats
from helpers import as_arrays, assert_close, inducing_inputs, process
from tables import WAYS, assert_predicts, bits, table

import agp
from agp import selection
from agp.inducing import Points
from agp.priors import LogNormal
from agp.selection import Candidate, RegressionResult, Stage, _race, _stages
from agp.selection._climb import Climber, exact_gp
from agp.selection._collapse import collapse
from agp.selection._given import Columns, Data, Plan
from agp.selection._race import Race
from agp.selection._trial import Trial
from agp.selection._watch import Pieces, Watch
from agp.training import baseline

fit_regression = partial(selection.fit_regression, hyperparameters="mode")
"""The search for one setting; `test_few_rows.py` tests the integration over settings."""

COLUMNS = Columns(2)
KINDS = {"sample": "GPR", "larger": "GPR", "exact": "GPR", "collapsed": "SVGP", "near": "NNGP", "both": "VIF"}
STAGES = {
    "sample": ["search", "train"],
    "larger": ["search", "train"],
    "exact": ["search", "train", "train"],
    "collapsed": ["search", "judge", "train", "train", "judge", "compare", "posterior"],
    "near": ["search", "train", "metric", "neighbours"],
    "both": ["search", "train", "both"],
}


def fit(way, **options):
    rows, method = WAYS[way]
    X, y = table(rows, outputs=options.pop("outputs", None))
    return fit_regression(X, y, method=method, **options), X, y


# -- the posterior ----------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("outputs", [None, 2])
@pytest.mark.parametrize("way", ["sample", "larger", "exact"])
def test_the_exact_posterior_is_that_of_gpr(way, outputs):
    found, X, y = fit(way, outputs=outputs)
    model = found.model
    targets = y.reshape(len(X), -1)
    by_hand = agp.GPR(model.kernel, model.likelihood, X=X, y=targets, mean_function=model.mean_function)
    new = table(7, seed=1)[0]
    for one, two in zip(model.predict(new), by_hand.predict(new), strict=True):
        assert_close(one, two, 1e-8)
    assert_close(found.bound, float(by_hand.bound(X, targets)[0]), 1e-8)
    assert_close(found.log_density, float(np.mean(by_hand.leave_one_out())), 1e-8)


@pytest.mark.long
@pytest.mark.parametrize("most", [5, 16, 99])
@pytest.mark.parametrize("outputs", [None, 2])
def test_the_collapsed_posterior_is_that_of_sgpr(outputs, most):
    found, X, y = fit("collapsed", outputs=outputs, most=most)
    model, Z = process(found.model), inducing_inputs(found.model)
    assert Z.shape[0] <= most
    assert {z.tobytes() for z in Z} <= {x.tobytes() for x in X}
    targets = y.reshape(len(X), -1)
    noise, mean = found.model.likelihood, model.mean_function
    by_hand = agp.SGPR(model.kernel, noise, Points(Z), X, targets, mean_function=mean)
    new = table(7, seed=1)[0]
    for one, two in zip(found.model.predict(new), by_hand.to_svgp().predict(new), strict=True):
        assert_close(one, two, 1e-8)
    assert_close(found.bound, float(by_hand.bound(X, targets)[0]), 1e-8)
    assert_close(found.bound, float(found.model.bound(X, targets)[0]), 1e-6)


@pytest.mark.parametrize("count", [5, 12])
def test_the_log_density_of_held_out_rows_is_that_of_sgpr(count):
    X, y = table(50)
    y = y.reshape(-1, 1)
    kernel, noise = as_arrays(agp.RBF(1.3, 0.8)), as_arrays(agp.Gaussian(0.2))
    model = agp.SGPR(kernel, noise, Points(X[:count]), X[:40], y[:40])
    found = collapse(model, X[:12], Data(X[:40], y[:40]), Data(X[40:], y[40:]), None, inside=False)
    expected = np.mean(model.log_density(X[40:], y[40:]))
    assert found.log_density(1.0, 0.2, count) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("outputs", [1, 2])
def test_the_held_out_log_density_of_collapsed_sums_is_that_of_sgpr(outputs):
    (X, y), (new, targets) = (table(rows, seed=seed, outputs=outputs) for rows, seed in ((40, 0), (15, 1)))
    model = as_arrays(agp.SGPR(agp.RBF(1.2, 0.9), agp.Gaussian(0.1), Points(X[:6]), X, y))
    sums = collapse(model, X[:6], Data(X, y), Data(new, targets), None, inside=False)
    mean, variance = model.predict(new, observed=True)
    expected = scipy.stats.norm(mean, np.sqrt(variance)).logpdf(targets).sum(axis=1).mean()
    assert_close(sums.log_density(1.0, 0.1), expected, 1e-8)


@pytest.mark.slow
def test_a_collapsed_posterior_holds_no_rows():
    found, X, _ = fit("collapsed", most=10)
    assert all(len(X) not in x.shape for x in agp.tree.leaves(found.model).values())


@pytest.mark.slow
def test_more_inducing_inputs_come_where_they_pay(monkeypatch):
    for module, name, size in ((_stages, "SAMPLE", 80), (_race, "SAMPLE", 80), (_stages, "LARGER", 120)):
        monkeypatch.setattr(module, name, size)  # enough to see the waves
    X = np.linspace(0.0, 25.0, 200)[:, None]
    y = np.sin(2.0 * X[:, 0]) + 0.05 * np.random.default_rng(0).normal(size=200)
    kernel = agp.RBF(lengthscale=0.7)
    found = fit_regression(X, y, kernel=kernel, most=64, method="sgpr")
    assert inducing_inputs(found.model).shape[0] == 64
    smooth = fit_regression(X, X[:, 0] + y, kernel=agp.Linear(), most=64, method="sgpr")
    assert inducing_inputs(smooth.model).shape[0] == 8


# -- what is said of it ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_the_account(way):
    found, X, y = fit(way)
    assert isinstance(found, RegressionResult)
    assert type(found.model).__name__ == KINDS[way]
    assert found.converged
    assert found.learned
    assert found.kernel in {one.kernel for one in found.candidates}
    assert {one.kernel for one in found.candidates} >= {"rbf", "matern52", "matern32"}
    assert all(isinstance(one, Candidate) for one in found.candidates)
    assert all(isinstance(one, Stage) and one.seconds >= 0.0 for one in found.stages)
    stages = [stage.name for stage in found.stages]
    assert stages[: len(STAGES[way])] == STAGES[way]
    assert len(stages) == len(STAGES[way]) or way == "near"  # then inducing inputs are compared with nearest rows
    assert sum(stage.seconds for stage in found.stages) <= found.seconds
    assert found.baseline == baseline(agp.Gaussian(), y[:, None])
    assert found.steps == len(found.trace["bound"]) > 0
    kind = {
        "GPR": "the exact posterior of",
        "SVGP": r"a collapsed posterior with \d+ inducing inputs on",
        "NNGP": r"the \d+ nearest of",
        "VIF": r"\d+ inducing inputs and the \d+ nearest of",
    }[KINDS[way]]
    assert re.fullmatch(rf"{re.escape(found.kernel)}, {kind} {len(X)} rows", found.message)
    compared = [one for one in found.candidates if math.isfinite(one.held_out)]
    assert len({one.kernel for one in compared}) >= (3 if way == "collapsed" else 0)
    assert bool(compared) == (KINDS[way] != "GPR")
    assert found.method == {"GPR": "gpr", "SVGP": "sgpr", "NNGP": "nngp", "VIF": "vif"}[KINDS[way]]


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_the_account_as_a_table(way):
    found, _, _ = fit(way)
    lines = found.describe().splitlines()
    assert lines[-1] == found.message
    assert len(lines) == 3 + len(found.candidates) + len(found.stages)
    for line, one in zip(lines[1:], found.candidates, strict=False):
        assert line.startswith(one.kernel)
        assert f"{one.evidence:.4f}" in line


def test_stages_follow_kernels_in_the_table():
    found = RegressionResult(None, 3, 1.5, message="the end", candidates=[Candidate("rbf", 12, -0.5, -0.25)])
    found.stages += [Stage("search", 12, 0.75), Stage("posterior", 34, 0.25)]
    words = [line.split() for line in found.describe().splitlines()]
    assert words[1] == ["rbf", "12", "-0.5000", "-0.2500", "nan", "nan"]
    assert words[2:5] == [["stage", "rows", "seconds"], ["search", "12", "0.8"], ["posterior", "34", "0.2"]]
    assert words[5:] == [["the", "end"]]


@pytest.mark.parametrize("precise", [True, False])
def test_the_evidence_of_a_candidate_includes_its_priors_and_is_in_nats_per_row(precise):
    X, y = table(12)
    kernel = agp.RBF(np.asarray(1.3), np.asarray(0.7))
    model = agp.GPR(
        kernel, agp.Gaussian(np.asarray(0.2)), X=X, y=y[:, None], priors={"kernel.lengthscale": LogNormal(0.3, 0.5)}
    )
    evidence = scipy.stats.multivariate_normal(np.zeros(12), kernel(X, X)[0] + 0.2 * np.eye(12)).logpdf(y)
    prior = scipy.stats.lognorm(0.5, scale=np.exp(0.3)).logpdf(0.7)
    found = climber()("test", "rbf", model, 1, narrowly=not precise)
    assert_close(found.scores.evidence, (evidence + prior) / 12, 1e-10 if precise else 1e-5)
    assert_close(found.scores.log_density, float(np.mean(model.leave_one_out())), 1e-10 if precise else 1e-5)
    assert found.model.X.dtype == "float64"


def climber(plan=None):
    watch = Watch(None, (), progress=False)
    plan = Plan("auto", agp.Gaussian(), None, "auto", None, 1e-3, COLUMNS) if plan is None else plan
    return Climber(plan, Pieces(None, {}, watch), watch)


@pytest.mark.slow
def test_what_was_compared_is_what_the_models_give():
    found, X, y = fit("sample", kernel=agp.RBF())
    one = found.candidates[-1]
    assert one.kernel == "rbf"
    assert one.rows == len(X)
    assert_close(one.evidence * len(X), found.bound, 1e-9)  # no priors: there are rows enough
    assert_close(one.log_density, found.log_density, 1e-9)


@pytest.mark.slow
def test_kernels_are_compared_by_the_rows_that_are_held_out():
    X, y = table(110)
    found = fit_regression(X, y, method="sgpr")
    judged = [one for one in found.candidates if one.rows == 24 and math.isfinite(one.held_out)]
    assert found.kernel == max(judged, key=lambda one: one.held_out).kernel


def test_training_ends_where_a_rival_is_out_of_reach():
    X, y = table(60)
    begun = exact_gp(Data(X, y[:, None]), kernel=agp.RBF(1.0, 0.05))
    free = climber()("test", "rbf", begun, 30)
    ahead = Trial(begun, free.scores._replace(evidence=10.0, log_density=10.0))
    behind = Trial(begun, free.scores._replace(evidence=-10.0, log_density=-10.0))
    stopped, same = (climber()("test", "rbf", begun, 30, rival=rival) for rival in (ahead, behind))
    assert stopped.scores.evidence < free.scores.evidence
    assert same.scores == free.scores


def test_training_ends_near_a_known_optimum():
    X, y = table(60)
    begun = exact_gp(Data(X, y[:, None]), kernel=agp.RBF(1.0, 0.05))
    free = climber()("test", "rbf", begun, 30)
    again = climber()("test", "rbf", begun, 30, until=lambda model: _race.is_near(model, free.model))
    assert again.scores.evidence < free.scores.evidence
    assert _race.is_near(again.model, free.model)
    assert not _race.is_near(begun, free.model)


@pytest.mark.parametrize("shift", [0.0, 1e7])
def test_float32_trains_to_the_optimum_of_float64(shift):
    X, y = table(60)
    begun = exact_gp(Data(X + shift, y[:, None] + shift), kernel=agp.Matern52(1.0, 2.0) + agp.Linear.centred(X + shift))
    wide, narrow = (climber()("test", "rbf", begun, 30, narrowly=narrowly) for narrowly in (False, True))
    assert abs(wide.scores.evidence - narrow.scores.evidence) < 1e-3
    new = table(9, seed=1)[0] + shift
    means = [one.model.predict(new)[0] for one in (wide, narrow)]
    np.testing.assert_allclose(means[1], means[0], rtol=0.0, atol=0.02 * y.std())


# -- a linear part -----------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("rows", [24, 50, 110])
def test_a_trend_far_from_the_origin(rows, monkeypatch):
    # far away X is rounded at 1e-10, and where a training is cut short depends on that: these come to their ends
    for name in ("TRAIN_STEPS", "SAMPLED_STEPS", "LAST_STEPS", "POLISH_STEPS"):
        monkeypatch.setattr(_stages, name, 100)
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, size=(rows, 2))
    y = 8.0 * X[:, 0] - 3.0 * X[:, 1] + np.sin(4.0 * X[:, 0]) + 0.1 * rng.normal(size=rows)
    near, far = (fit_regression(X + offset, y, seed=1) for offset in (0.0, 1e6))
    assert near.kernel == far.kernel
    assert near.kernel.endswith(" + linear") or rows == 110  # of which so few inducing inputs tell little
    assert abs(far.bound - near.bound) <= 1e-3 * rows
    new = rng.uniform(-2.5, 2.5, size=(9, 2))
    (mean, variance), (other, spread) = near.model.predict(new), far.model.predict(new + 1e6)
    np.testing.assert_allclose(other, mean, rtol=0.0, atol=1e-3 * y.std())
    np.testing.assert_allclose(spread, variance, rtol=0.0, atol=1e-3 * y.var())


@pytest.mark.slow
def test_no_linear_part_where_there_is_no_trend():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3.0, 3.0, size=(24, 1))
    assert " + linear" not in fit_regression(X, np.cos(2.0 * X[:, 0]) + 0.1 * rng.normal(size=24)).kernel


@pytest.mark.parametrize(("gain", "added"), [(3.5, False), (4.5, True)])
def test_a_linear_part_gains_more_than_chance(gain, added):
    data = Data(*table(20, outputs=1))
    plan = Plan("auto", agp.Gaussian(), None, None, None, 1e-3, COLUMNS)
    begun = exact_gp(data, kernel=agp.RBF(), **plan.parts(agp.RBF(), data))
    best = Trial(begun, Candidate("rbf", 20, -1.0, -1.0))
    improved = Trial(begun, Candidate("rbf + linear", 20, gain / 20 - 1.0, -1.0))
    found = Race(plan, data, data, lambda *_, **__: improved)._with_linear(best)
    assert [one.kernel for one in found] == ["rbf + linear"] * added


# -- manners -----------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_nothing_outside_is_touched(way):
    rows, method = WAYS[way]
    X, y = table(rows)
    before, state = (X.copy(), y.copy()), np.geterr()
    for array in (X, y):
        array.flags.writeable = False
    fit_regression(X, y, method=method)
    np.testing.assert_array_equal(X, before[0])
    np.testing.assert_array_equal(y, before[1])
    assert np.geterr() == state


@pytest.mark.slow
def test_a_model_does_not_follow_the_caller_s_arrays():
    found, X, y = fit("sample", kernel=agp.RBF())
    new = X[:5].copy()
    before = found.model.predict(new)[0]
    X[:], y[:] = 0.0, 0.0
    np.testing.assert_array_equal(found.model.predict(new)[0], before)


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_the_same_bits_for_the_same_seed(way):
    assert bits(fit(way, seed=3)[0]) == bits(fit(way, seed=3)[0])


@pytest.mark.long
def test_another_seed_draws_other_rows():
    one, two = (fit("collapsed", seed=seed, most=8)[0] for seed in (0, 1))
    assert inducing_inputs(one.model).tobytes() != inducing_inputs(two.model).tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("rows", [20, 110])
def test_trial_points_are_not_warned_of(rows):
    X, y = table(rows, noise=0.0)  # without noise, matrices of trial points are repaired
    X[1::2] = X[::2]
    y[1::2] = y[::2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = fit_regression(X, y)
    assert_predicts(found.model, X)


@pytest.mark.slow
def test_callbacks_see_every_step_in_order():
    seen = []
    found, _, _ = fit("exact", callbacks=[seen.append])
    assert [one.step for one in seen] == [*range(1, found.steps + 1)]
    assert [float(one.info["bound"]) for one in seen] == found.trace["bound"]
    seconds = [one.seconds for one in seen]
    assert seconds == sorted(seconds)


@pytest.mark.long
@pytest.mark.parametrize(("gain", "inducing", "rows"), [(4.0, 32, 64), (0.01, 24, 110)])
def test_of_very_many_rows_some_serve_more_inducing_inputs(gain, inducing, rows, monkeypatch):
    # 2 N M^2 operations: 24 inducing inputs for all 110 rows, or 32 for 64 of them
    monkeypatch.setattr(_stages.Fit.grow, "__defaults__", (2.0 * 110 * 24.5**2,))
    monkeypatch.setattr("agp.selection._sizes.MIN_GAIN_PER_ROW", 1e-9)
    monkeypatch.setattr("agp.selection._sizes.Sizes.least", lambda _, M, *__: M)
    usual = _stages.Fit.pass_over
    monkeypatch.setattr(_stages.Fit, "pass_over", lambda *one: usual(*one)._replace(gain=gain))
    X, y = table(110)
    found = fit_regression(X, y, most=32, method="sgpr")
    assert found.stages[-1].rows == rows
    assert f"with {inducing} inducing inputs" in found.message
    assert found.learned
