"""`agp.fit_growing`: the number of inducing inputs by itself."""

import math
import warnings
from itertools import pairwise

import numpy as np
import pytest
from helpers import peak

import agp
from agp.errors import ConvergenceWarning, Interrupted, NoSignalWarning
from agp.training import GROWTH_TOLERANCE, FitResult, Round
from agp.training._growth import SQUARES, _Limits

RNG = np.random.default_rng(0)
X = RNG.uniform(-4.0, 4.0, size=(150, 1))
Y = np.sin(3.0 * X) + 0.1 * RNG.normal(size=X.shape)


def few(X=X, y=Y, M=4, **settings):
    return agp.SGPR.from_data(X, y, num_inducing=M, **settings)


def whitened(X=X, y=Y, M=4, **settings):
    return agp.SVGP.from_data(X, y, num_inducing=M, posterior="whitened", **settings)


@pytest.mark.slow
def test_it_grows_until_the_certificate_says_so():
    found = agp.fit_growing(few(), X, Y)
    assert found.reason == "certificate"
    sizes = [one.num_inducing for one in found.rounds]
    assert sizes[:3] == [4, 8, 16]
    assert all(a < b <= 2 * a for a, b in pairwise(sizes[:-1]))
    assert 16 <= found.model.inducing.count == sizes[-1] == sizes[-2] <= 64  # trained to the end
    last = found.rounds[-1]
    assert found.rounds[-2].gap < GROWTH_TOLERANCE <= found.rounds[-3].gap
    assert last.bound > found.rounds[-2].bound - 1e-6
    assert last.bound == pytest.approx(float(found.model.bound(X, Y)[0]) / len(X))
    assert last.upper == pytest.approx(float(found.model.upper_bound(X, Y)) / len(X))
    assert last.gap == pytest.approx(last.upper - last.bound)
    assert found.certified_rows == len(X)
    assert found.converged
    assert found.steps == last.steps == len(found.trace["bound"])
    assert "certificate: further inducing inputs can gain at most" in found.describe()
    assert len(found.describe().splitlines()) == len(sizes) + 2


@pytest.mark.slow
def test_the_exact_evidence_lies_in_each_gap():
    found = agp.fit_growing(few(), X, Y, most=8)
    exact = agp.GPR.from_data(X, Y)
    leaves = agp.tree.leaves(found.model)
    same = agp.tree.with_leaves(exact, {name: leaves[name] for name in agp.tree.leaves(exact) if name in leaves})
    evidence = float(same.bound(X, Y)[0]) / len(X)
    assert found.rounds[-1].bound < evidence < found.rounds[-1].upper


@pytest.mark.slow
def test_it_ends_when_a_doubling_gains_little():
    wide = RNG.uniform(-2.0, 2.0, size=(150, 5))
    rough = np.sin(1.5 * wide).sum(axis=1, keepdims=True) + 0.3 * RNG.normal(size=X.shape)
    found = agp.fit_growing(few(wide, rough, M=8), wide, rough, tolerance=0.05)
    assert found.reason == "gain"
    assert found.rounds[-1].gap > 0.05
    assert found.rounds[-2].bound - found.rounds[-3].bound < 0.05
    assert "gained" in found.message


@pytest.mark.long
def test_a_certificate_of_noise_alone_does_not_end_it():
    rng = np.random.default_rng(0)
    inputs = rng.uniform(-3.0, 3.0, (800, 2))
    waves = np.sin(3.0 * inputs[:, :1]) * np.cos(2.0 * inputs[:, 1:]) + 0.2 * rng.standard_normal((800, 1))
    alone = -0.5 * math.log(2.0 * math.pi * math.e * float(np.var(waves)))
    found = agp.fit_growing(few(inputs, waves, M=8), inputs, waves)
    assert found.rounds[0].gap < GROWTH_TOLERANCE
    assert found.rounds[0].bound < alone + 0.02
    assert found.rounds[-1].bound > alone + 0.5


@pytest.mark.slow
def test_of_noise_alone_it_ends_nevertheless():
    noise = np.random.default_rng(1).normal(size=Y.shape)
    with pytest.warns(NoSignalWarning, match="noise alone"):
        found = agp.fit_growing(few(y=noise), X, noise)
    assert found.reason in ("certificate", "gain", "most")
    assert "noise alone" in found.message
    assert found.rounds[-1].gap < GROWTH_TOLERANCE  # "most": long lengthscales, of which few inputs explain all rows
    assert found.model.inducing.count <= 16


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"most": 10}, "most"),
        ({"memory": 1e-3}, "memory"),
        ({"max_steps": 15}, "steps"),
        ({"max_seconds": 1e-3}, "time"),
    ],
)
def test_budgets_end_it(settings, reason):
    scarce = reason in ("steps", "time")
    if scarce:
        with pytest.warns(ConvergenceWarning, match="the limit of"):
            found = agp.fit_growing(few(), X, Y, tolerance=1e-6, **settings)
    else:
        found = agp.fit_growing(few(), X, Y, tolerance=1e-6, **settings)
    assert found.reason == reason
    assert found.message
    assert found.converged is not scarce
    assert found.model.inducing.count == {"most": 10}.get(reason, 4)
    if reason == "steps":
        assert found.steps <= 15


@pytest.mark.long
def test_where_the_rows_have_no_more_to_give_it_ends():
    model = few(X, 0.5 * X + 0.1 * RNG.normal(size=X.shape), M=1, kernel=agp.kernels.Linear())
    found = agp.fit_growing(model, model.X, model.y, tolerance=1e-12)
    assert found.reason == "most"
    assert "explain the prior variance" in found.message
    assert found.model.inducing.count == 1


@pytest.mark.slow
def test_a_callback_ends_all_and_steps_count_on():
    seen = []

    def last(progress):
        seen.append(progress.step)
        return len(seen) >= 60

    with pytest.warns(ConvergenceWarning):
        found = agp.fit_growing(few(), X, Y, tolerance=1e-9, callbacks=[last])
    assert found.reason == "callback"
    assert seen == list(range(1, len(seen) + 1))
    assert len(found.rounds) > 1


@pytest.mark.long
def test_an_interruption_keeps_what_rounds_before_have_reached():
    before = agp.fit_growing(few(), X, Y, most=8).rounds[0].steps

    def interrupt(progress):
        if progress.step == before + 3:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        agp.fit_growing(few(), X, Y, most=8, callbacks=[interrupt])
    assert caught.value.result.steps >= before
    assert len(caught.value.result.trace["bound"]) == caught.value.result.steps
    assert caught.value.result.model.inducing.count == 8


@pytest.mark.long
def test_nothing_that_was_learned_is_lost_on_the_way():
    seen = []
    found = agp.fit_growing(few(M=10), X, Y, callbacks=[lambda progress: seen.append(float(progress.info["bound"]))])
    for one in found.rounds[:-1]:
        assert seen[min(one.steps, len(seen) - 1)] > len(X) * one.bound - 1e-3 * abs(len(X) * one.bound)


@pytest.mark.long
@pytest.mark.parametrize("posterior", ["whitened", "relaxed"])
def test_variational_models_grow(posterior):
    model = agp.SVGP.from_data(X, Y, num_inducing=4, posterior=posterior)
    found = agp.fit_growing(model, X, Y, most=16, fit_tolerance=3e-3, tolerance=0.02)
    assert found.model.process.inducing.count == 16
    assert found.rounds[-1].bound > found.rounds[0].bound + 0.5
    assert found.rounds[-1].upper > found.rounds[-1].bound
    assert float(np.mean((found.model.predict(X).mean - np.sin(3.0 * X)) ** 2)) < 0.01


@pytest.mark.slow
def test_a_doubling_that_gained_little_in_a_short_training_is_judged_after_a_long_one(monkeypatch):
    # a round that hardly trains gains nothing; the model that was trained to the end thereafter tells that it may grow
    kernel = agp.RBF(lengthscale=X.std(axis=0))  # too long for the signal
    for name in ("MAX_TOLERANCES", "ERROR"):
        monkeypatch.setattr(f"agp.training._growth.{name}", 1e6)
    found = agp.fit_growing(few(M=4, kernel=kernel), X, Y, tolerance=0.05, sample_rows=0)
    sizes = [one.num_inducing for one in found.rounds]
    gains = np.diff([one.bound for one in found.rounds])
    reopened = [k for k in range(1, len(sizes) - 1) if sizes[k - 1] == sizes[k] < sizes[k + 1]]
    assert reopened
    assert all(gains[k - 1] >= 0.05 for k in reopened)
    assert found.rounds[-1].bound > found.rounds[0].bound + 0.5


@pytest.mark.long
@pytest.mark.parametrize("steps", [300, 600, None])
def test_what_was_reached_is_not_given_up_for_more_inducing_inputs(steps):
    # Eight see nothing of the signal, and sixteen begin anew: far below until they have been trained
    x, y = fast_sine()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", ConvergenceWarning)
        model = agp.SVGP.from_data(x, y, num_inducing=8, kernel=agp.RBF(lengthscale=x.std(axis=0)))
        warnings.simplefilter("ignore", NoSignalWarning)
        found = agp.fit_growing(model, x, y, fit_tolerance=0.01, max_steps=steps)
    reached = float(found.model.bound(x, y)[0]) / len(x)
    assert reached == pytest.approx(max(one.bound for one in found.rounds), abs=1e-9)
    assert found.rounds[-1].num_inducing == found.model.process.inducing.count
    assert steps is None or "noise alone" in found.message  # with time enough it may find the signal
    assert bool(told) == (steps is not None) == (found.reason == "steps") == (not found.converged)


# eight inducing inputs are too few for this sine, so that rounding decides whether the training finds it
@pytest.mark.filterwarnings("ignore:.*the bound barely exceeds that of noise alone:agp.errors.NoSignalWarning")
@pytest.mark.long
def test_a_last_training_that_ended_below_does_not_count():
    # the rule of rates begins anew in each training, and may leave a height that was reached by chance
    x, y = fast_sine()
    found = agp.fit_growing(agp.SVGP.from_data(x, y, num_inducing=8), x, y, fit_tolerance=0.01)
    reached = float(found.model.bound(x, y)[0]) / len(x)
    assert reached == pytest.approx(max(one.bound for one in found.rounds), abs=1e-9)
    assert found.rounds[-1].bound == pytest.approx(reached, abs=1e-9)
    assert found.rounds[-1].num_inducing == found.model.process.inducing.count
    assert found.steps == found.rounds[-1].steps == len(found.trace["bound"])


@pytest.mark.long
def test_rows_that_added_nothing_are_asked_again_after_the_last_training():
    x, y = fast_sine()
    found = agp.fit_growing(agp.SGPR.from_data(x, y, num_inducing=8), x, y, fit_tolerance=0.01)
    exact = agp.fit(agp.GPR.from_data(x, y), x, y).model
    assert found.rounds[-1].bound == pytest.approx(float(exact.bound(x, y)[0]) / len(x), abs=0.01)
    assert "noise alone" not in found.message


def fast_sine():
    rng = np.random.default_rng(2)
    x = rng.uniform(-3.0, 3.0, (250, 1))
    return x, np.sin(6.0 * x) + 0.1 * rng.standard_normal(x.shape)


@pytest.mark.slow
def test_growth_of_collapsed_models_begins_with_hyperparameters_of_a_sample():
    x, y = fast_sine()
    models = []
    model = agp.SGPR.from_data(x, y, num_inducing=8, kernel=agp.RBF(lengthscale=0.4 * x.std(axis=0)))
    settings = {"fit_tolerance": 0.01, "callbacks": [lambda seen: models.append(seen.model)]}
    found = agp.fit_growing(model, x, y, sample_rows=100, **settings)
    assert isinstance(models[0], agp.GPR)
    assert models[0].X.shape == (100, 1)
    assert found.rounds[-1].gap < 0.02
    assert found.steps == found.rounds[-1].steps == len(found.trace["bound"]) == len(models)


@pytest.mark.long
def test_other_likelihoods_have_no_certificate():
    label = (Y[:, 0] > 0.0).astype(float)
    model = whitened(X, label, likelihood=agp.Bernoulli())
    found = agp.fit_growing(model, X, label, most=8, fit_tolerance=0.01, tolerance=1.0)
    assert math.isnan(found.rounds[0].upper)
    assert math.isnan(found.rounds[0].gap)
    assert found.certified_rows == 0
    assert found.reason == "gain"


@pytest.mark.slow
def test_of_many_rows_some_are_drawn_for_the_certificate():
    settings = {"most": 8, "max_steps": 300, "tolerance": 0.02, "fit_tolerance": 0.1}
    found = agp.fit_growing(whitened(), X, Y, certified_rows=50, **settings)
    assert found.certified_rows == 50
    assert all(one.gap > 0.0 for one in found.rounds)
    exact = float(found.model.bound(X, Y)[0]) / len(X)
    assert found.rounds[-1].bound == pytest.approx(exact, abs=0.2)


@pytest.mark.long
def test_rows_may_lie_elsewhere():
    da = pytest.importorskip("dask.array", reason="the extra for Dask is not installed")
    Xd, Yd = da.from_array(X, chunks=(50, 1)), da.from_array(Y, chunks=(50, 1))
    found = agp.fit_growing(whitened(Xd, Yd), Xd, Yd, most=8, fit_tolerance=0.1, tolerance=0.02)
    assert isinstance(found.model.process.inducing.Z, np.ndarray)
    assert found.model.process.inducing.count == 8
    assert found.rounds[-1].gap > 0.0


@pytest.mark.long
def test_several_outputs_grow_together():
    both = np.concatenate([Y, 100.0 * np.cos(2.0 * X)], axis=1)
    found = agp.fit_growing(whitened(X, both), X, both, most=8, fit_tolerance=0.02, tolerance=0.02)
    assert found.model.process.process.inducing.count == 8
    assert math.isnan(found.rounds[-1].gap)


@pytest.mark.long
@pytest.mark.parametrize(("a", "c", "d"), [(1e6, 1.0, 0.0), (1.0, 1e-6, 0.0), (1e-3, 1e3, 5e3)])
def test_units_do_not_matter(a, c, d):
    plain = agp.fit_growing(few(), X, Y, tolerance=0.05)
    found = agp.fit_growing(few(a * X, c * Y + d), a * X, c * Y + d, tolerance=0.05)
    assert [one.num_inducing for one in found.rounds] == [one.num_inducing for one in plain.rounds]
    assert found.reason == plain.reason
    assert found.rounds[-1].gap == pytest.approx(plain.rounds[-1].gap, abs=2e-3)
    assert found.rounds[-1].bound + math.log(c) == pytest.approx(plain.rounds[-1].bound, abs=2e-3)


@pytest.mark.long
def test_the_result_is_the_same_everywhere(backend):
    Xb, Yb = backend.array(X), backend.array(Y)
    found = agp.fit_growing(few(Xb, Yb), Xb, Yb, most=8)
    plain = agp.fit_growing(few(), X, Y, most=8)
    backend.check(found.model.inducing.Z)
    assert [one.num_inducing for one in found.rounds] == [one.num_inducing for one in plain.rounds]
    assert found.rounds[-1].bound == pytest.approx(plain.rounds[-1].bound, abs=1e-3)


@pytest.mark.slow
def test_models_that_do_not_grow_say_so():
    for model in (
        agp.GPR.from_data(X, Y),
        agp.TSVGP.from_data(X, Y, num_inducing=5),
        agp.SOLVEGP.from_data(X, Y, num_inducing=5),
        agp.SOLVEGPR.from_data(X, Y, num_inducing=5),
        agp.DeepGP.from_data(X, Y, num_inducing=5),
        agp.SVGP.from_data(X, np.concatenate([Y, Y], axis=1), num_inducing=5, outputs="separate"),
        agp.SVGP.from_data(X, Y, num_inducing=5, posterior=agp.posteriors.DiagonalMarginal),
    ):
        with pytest.raises(
            TypeError,
            match=r"does not support adding inducing inputs|new inducing variables",
        ) as caught:
            agp.fit_growing(model, X, Y if model.outputs == 1 else np.concatenate([Y, Y], axis=1), max_steps=1)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["tolerance", "most", "fit_tolerance", "max_steps", "max_seconds", "memory"])
@pytest.mark.parametrize("value", [0, -1.0, float("nan"), "many"])
def test_settings_are_positive_numbers(name, value):
    with pytest.raises((TypeError, ValueError), match=name):
        agp.fit_growing(few(), X, Y, **{name: value})


def test_from_data_says_where_auto_belongs():
    for build in (agp.SGPR.from_data, agp.SVGP.from_data):
        with pytest.raises(ValueError, match="fit_growing"):
            build(X, Y, num_inducing="auto")


@pytest.mark.parametrize(("bound", "reason"), [(-1.195, "gain"), (-1.1, None), (-1.3, "gain")])
def test_the_gain_of_a_doubling_is_the_difference_of_two_bounds(bound, reason):
    rounds = [Round(M, value, 0.0, -value, 1.0, 10) for M, value in ((4, -1.2), (8, bound))]
    ending = _Limits(0.01, 1000, None, None, None, len(X), ()).assess(rounds)
    assert (ending and ending[0]) == reason


def test_a_gain_as_large_as_the_tolerance_is_not_small():
    limits = _Limits(0.25, 1000, None, None, None, len(X), ())
    for bound, small in ((-0.875, True), (-0.75, False)):
        rounds = [Round(M, value, 0.0, -value, 1.0, 10) for M, value in ((4, -1.0), (8, bound))]
        assert limits.stands(("gain", ""), rounds) is small
        assert (limits.assess(rounds) is not None) is small


def test_rounds_have_names():
    assert Round._fields == ("num_inducing", "bound", "upper", "gap", "seconds", "steps")


@pytest.mark.parametrize("build", [few, whitened])
def test_arrays_of_all_pairs_of_inducing_inputs_must_fit_the_memory(build):
    model, larger = (build(M=M, kernel=agp.RBF(1.0, 0.1)) for M in (40, 80))
    used = peak(lambda: agp.value_and_gradient(larger, X, Y))
    enough = [_Limits(0.01, 1000, None, None, factor * used, len(X), ()).size(model) is None for factor in (0.6, 1.6)]
    assert enough == [False, True]


def test_memory_of_exactly_the_required_size_is_enough():
    needed = sum(SQUARES) * 8**2 * 8 / 2**20
    endings = [_Limits(0.01, 1000, None, None, memory, len(X), ()).size(few()) for memory in (needed, 0.99 * needed)]
    assert endings[0] is None
    assert endings[1][0] == "memory"


def test_the_next_round_is_assumed_to_take_twice_as_long_as_the_last_alone():
    limits, found = _Limits(0.01, 1000, None, 1000.0, None, len(X), ()), FitResult(None, 0, 0.0)
    rounds = [Round(4, 0.0, 0.0, 0.0, 600.0, 5), Round(8, 0.0, 0.0, 0.0, 700.0, 5), Round(16, 0.0, 0.0, 0.0, 1300.0, 5)]
    assert limits.budget(found, rounds[:2]) is None
    for late in (rounds[:1], rounds):
        reason, text = limits.budget(found, late)
        assert reason == "time"
        assert "needs about 1.2e+03 s" in text


def test_hyperparameters_are_reset_twice_at_most():
    # with this tolerance no bound seems to exceed that of noise
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NoSignalWarning)
        found = agp.fit_growing(few(X[:30], Y[:30], M=1), X[:30], Y[:30], tolerance=10.0, fit_tolerance=100.0)
    assert [one.num_inducing for one in found.rounds][:3] == [1, 2, 4]
    assert found.model.inducing.count == 4
