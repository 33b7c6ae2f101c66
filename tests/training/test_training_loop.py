"""The loop: the same run on every backend, callbacks, interruption, what is refused."""

import itertools
import re
import tracemalloc

import numpy as np
import pytest
from helpers import inducing_inputs, named, process

import agp
from agp import GPR, SVGP, ConstantMean, Gaussian, recipe, to_backend, to_numpy, train
from agp.errors import BackendError, Interrupted
from agp.posteriors import Relaxed, Whitened
from agp.training import Progress
from agp.training._batches import Batches
from agp.training._run import CHECK_EVERY, Run
from agp.updates import Adam, Group, InverseUpdate, delayed

METHODS = [pytest.param(Whitened, id="whitened"), pytest.param(Relaxed, id="relaxed")]


def data(N=40, D=2, P=1, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, D))
    return X, np.sin(2 * X[:, :1]) + 0.1 * rng.normal(size=(N, P))


def sparse(X, y, posterior=Relaxed, **options):
    return SVGP.from_data(X, y, posterior=posterior, num_inducing=6, **options)


# -- one run everywhere ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [None, 8], ids=["full", "minibatch"])
@pytest.mark.parametrize("posterior", METHODS)
@pytest.mark.parametrize("gradient", ["closed-form", "autodiff"])
def test_torch_gives_the_trace_of_numpy(posterior, batch_size, gradient):
    pytest.importorskip("torch")
    X, y = data(P=2)
    # Adam multiplies the rounding of a gradient that is zero, as that of a level is where it starts, and that of a
    # lengthscale while q(u) is the prior: so both start a step later
    model = train(sparse(X, y, posterior, mean_function=ConstantMean(0.3)), X, y, steps=1).model
    expected = train(model, X, y, steps=20, batch_size=batch_size, seed=3)
    on_torch = [to_backend(x, "torch") for x in (model, X, y)]
    found = train(
        *on_torch, steps=20, batch_size=batch_size, seed=3, updates=recipe(on_torch[0], 20, gradient=gradient)
    )
    for name, values in expected.trace.items():
        np.testing.assert_allclose(found.trace[name], values, rtol=1e-9, atol=1e-9 if name == "residual" else 0)
    for name, value in named(expected.model).items():
        np.testing.assert_allclose(to_numpy(named(found.model)[name]), value, rtol=1e-8, atol=1e-9)


@pytest.mark.slow
def test_conformance_library_gives_the_trace_of_numpy():
    X, y = data()
    model = sparse(X, y)
    expected = train(model, X, y, steps=5, batch_size=8)
    found = train(*(to_backend(x, "array_api_strict") for x in (model, X, y)), steps=5, batch_size=8)
    np.testing.assert_allclose(found.trace["bound"], expected.trace["bound"], rtol=1e-9)


def test_batches_depend_on_seed_and_step_alone():
    X, y = data(N=10)
    first, again, other = Batches(X, y, 3, 7), Batches(X, y, 3, 7), Batches(X, y, 3, 8)
    rows = [first.indices(step) for step in range(9)]
    for step in reversed(range(9)):
        np.testing.assert_array_equal(again.indices(step), rows[step])
    assert any(not np.array_equal(other.indices(step), rows[step]) for step in range(9))


def test_an_epoch_visits_no_row_twice_and_epochs_differ():
    X, y = data(N=10)
    batches = Batches(X, y, 3, 0)
    epochs = [np.concatenate([batches.indices(3 * epoch + i) for i in range(3)]) for epoch in range(3)]
    assert all(len(set(epoch.tolist())) == 9 for epoch in epochs)
    assert not np.array_equal(epochs[0], epochs[1])


def test_batches_carry_their_rows_and_scale():
    X, y = data(N=10)
    batch = Batches(X, y, 4, 0)[1]
    rows = Batches(X, y, 4, 0).indices(1)
    np.testing.assert_array_equal(batch.X, X[rows])
    np.testing.assert_array_equal(batch.y, y[rows])
    assert batch.scale == 2.5


@pytest.mark.parametrize("layout", ["columns of a table", "Fortran order"])
def test_a_batch_costs_its_own_rows_in_any_layout(layout):
    table = np.zeros((300_000, 4), order="F" if layout == "Fortran order" else "C")
    batches = Batches(table[:, :3], table[:, 3:], 10, 0)
    batches[0]  # the order of the epoch is made once
    tracemalloc.start()
    batch = batches[1]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert batch.X.shape == (10, 3)
    assert peak < 300_000  # one column would take eight times as much


def test_the_given_model_is_not_changed():
    X, y = data()
    model = sparse(X, y)
    before = {name: np.array(x) for name, x in named(model).items()}
    trained = train(model, X, y, steps=12).model
    for name, value in named(model).items():
        np.testing.assert_array_equal(value, before[name])
    assert not np.array_equal(process(trained).posterior.mean, process(model).posterior.mean)


@pytest.mark.slow
@pytest.mark.parametrize("posterior", METHODS)
def test_training_raises_the_bound(posterior):
    X, y = data()
    trace = train(sparse(X, y, posterior), X, y, steps=100, updates=None).trace["bound"]
    assert trace[-1] > trace[0] + 5


def test_exact_gp_trains_by_the_same_loop():
    X, y = data()
    result = train(GPR.from_data(X, y), X, y, steps=50)
    assert result.trace["bound"][-1] > result.trace["bound"][0] + 1
    np.testing.assert_array_equal(result.model.X, X)


# -- what comes back -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 9, 10, 23])
def test_the_trace_has_one_number_for_each_step(steps):
    X, y = data()
    result = train(sparse(X, y), X, y, steps=steps)
    assert result.steps == steps
    assert {name: len(values) for name, values in result.trace.items()} == (
        dict.fromkeys(["bound", "residual", "inverse_steps", "restarts"], steps) if steps else {}
    )
    assert not result.repairs


def test_callbacks_see_progress_after_each_step():
    X, y = data()
    seen = []
    result = train(sparse(X, y), X, y, steps=13, callbacks=[lambda progress: seen.append(progress)])
    assert [progress.step for progress in seen] == list(range(1, 14))
    assert all(isinstance(progress, Progress) for progress in seen)
    assert [float(progress.info["bound"]) for progress in seen] == result.trace["bound"]
    assert seen[-1].model is result.model
    assert all(a.seconds <= b.seconds for a, b in itertools.pairwise(seen))


def test_a_callback_that_returns_true_stops_after_every_callback_was_called():
    X, y = data()
    late = []
    result = train(sparse(X, y), X, y, steps=30, callbacks=[lambda p: p.step == 7, lambda p: late.append(p.step)])
    assert result.steps == 7
    assert late == list(range(1, 8))
    assert len(result.trace["bound"]) == 7


@pytest.mark.slow
def test_interruption_keeps_everything_up_to_the_last_step():
    X, y = data()

    def interrupt(progress):
        if progress.step == 14:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match=r"interrupted after 14 steps; `\.result` holds") as caught:
        train(sparse(X, y), X, y, steps=30, callbacks=[interrupt])
    result = caught.value.result
    assert result.steps == 14
    assert len(result.trace["bound"]) == 14
    expected = train(sparse(X, y), X, y, steps=30, callbacks=[lambda p: p.step == 14]).model
    for name, value in named(expected).items():
        np.testing.assert_array_equal(named(result.model)[name], value)


class InterruptIn:
    """Ctrl-C in the middle of a step, after other updates have run."""

    def __init__(self, step):
        self.step = step

    def init(self, model):
        return {"count": np.asarray(0.0)}

    def __call__(self, model, batch, state):
        if state["count"] + 1 == self.step:
            raise KeyboardInterrupt
        return model, {"count": state["count"] + 1}, {}


def test_an_interrupted_step_is_as_if_it_had_not_begun():
    X, y = data()
    model = sparse(X, y)
    with pytest.raises(Interrupted) as caught:
        train(model, X, y, steps=30, updates=[Adam(frozen="inverse_factor"), InterruptIn(5)])
    expected = train(model, X, y, steps=4, updates=[Adam(frozen="inverse_factor")])
    result = caught.value.result
    assert result.steps == 4
    assert result.trace == expected.trace
    for name, value in named(expected.model).items():
        np.testing.assert_array_equal(named(result.model)[name], value)


def test_other_exceptions_of_callbacks_pass_through():
    X, y = data()

    def fail(progress):
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        train(sparse(X, y), X, y, steps=3, callbacks=[fail])


def test_an_interrupted_run_is_also_a_keyboard_interrupt():
    assert issubclass(Interrupted, KeyboardInterrupt)


# -- leaves that do not move -----------------------------------------------------------------------------------------


def moved(model, result):
    pairs = ((name, x, named(result.model)[name]) for name, x in named(model, "parameter").items())
    # leaves that a zero rate moves go through their constraint and back, which rounds
    return {name for name, before, after in pairs if not np.allclose(before, after, rtol=1e-13, atol=0)}


def test_frozen_leaves_stay_and_all_others_move():
    X, y = data()
    model = sparse(X, y)
    updates = [Adam(1e-2, frozen=("Z", "kernel.*")), InverseUpdate()]
    everything = set(named(model, "parameter"))
    assert moved(model, train(model, X, y, steps=3, updates=updates)) == everything - {
        "Z",
        "kernel.variance",
        "kernel.lengthscale",
    }


def test_the_recipe_keeps_inducing_inputs_for_a_twentieth_of_the_steps():
    X, y = data()
    model = sparse(X, y)
    changed = {}

    def watch(progress):
        changed[progress.step] = not np.array_equal(inducing_inputs(progress.model), inducing_inputs(model))

    train(model, X, y, steps=100, callbacks=[watch, lambda p: p.step == 8])
    assert changed == {step: step > 5 for step in range(1, 9)}


def test_groups_take_the_first_pattern_that_matches():
    X, y = data()
    model = sparse(X, y)
    groups = {"posterior.*": Group(0.0), "posterior.mean": Group(1.0), "kernel.l*": Group(0.0)}
    result = train(model, X, y, steps=1, updates=[Adam(1e-3, groups=groups, frozen="inverse_factor")])
    assert moved(model, result) == {"kernel.variance", "likelihood.noise_variance", "Z", "mean_function.value"}


@pytest.mark.parametrize("where", ["groups", "frozen"])
def test_patterns_that_match_nothing_are_refused_with_the_names_there_are(where):
    X, y = data()
    options = {"frozen": ("inducing",)} if where == "frozen" else {"groups": {"inducing": Group(1.0)}}
    with pytest.raises(
        ValueError, match=r"no parameter matches 'inducing'; the parameters are process\.kernel\.variance, .*Z"
    ):
        train(sparse(X, y), X, y, steps=1, updates=[Adam(**options)])


# -- what is refused -------------------------------------------------------------------------------------------------


def test_automatic_differentiation_on_numpy_is_refused():
    X, y = data()
    with pytest.raises(BackendError, match="backend 'numpy' has no automatic differentiation; use gradient='closed-"):
        train(sparse(X, y), X, y, steps=1, updates=[Adam(gradient="autodiff")])


def test_unknown_gradient_mode_is_refused():
    X, y = data()
    with pytest.raises(ValueError, match="gradient is 'magic', but must be 'closed-form' or 'autodiff'"):
        train(sparse(X, y), X, y, steps=1, updates=[Adam(gradient="magic")])


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_value_and_gradient_refuses_an_unknown_mode(library):
    pytest.importorskip(library)
    X, y = data()
    model = sparse(X, y)
    with pytest.raises(ValueError, match="gradient is 'closed form', but must be"):
        agp.value_and_gradient(*(to_backend(x, library) for x in (model, X, y)), gradient="closed form")


@pytest.mark.parametrize("steps", [-1, 2.5, True, float("nan"), "10", None], ids=repr)
def test_steps_that_are_no_whole_number_are_refused(steps):
    X, y = data()
    with pytest.raises((TypeError, ValueError), match=f"steps is {re.escape(repr(steps))}, but must be a whole"):
        train(sparse(X, y), X, y, steps=steps)


@pytest.mark.parametrize("steps", [np.int64(3), 3.0])
def test_steps_may_be_any_whole_number(steps):
    X, y = data()
    assert train(sparse(X, y), X, y, steps=steps).steps == 3


@pytest.mark.parametrize("batch_size", [0, -2, 1.5, False], ids=repr)
def test_batch_sizes_that_are_no_whole_number_are_refused(batch_size):
    X, y = data()
    with pytest.raises(ValueError, match=f"batch_size is {batch_size!r}, but must be a whole number of at least 1"):
        train(sparse(X, y), X, y, steps=1, batch_size=batch_size)


def test_batches_larger_than_the_data_are_refused():
    X, y = data()
    with pytest.raises(ValueError, match="batch_size is 41, but there are only 40 rows"):
        train(sparse(X, y), X, y, steps=1, batch_size=41)


def test_minibatches_for_the_exact_gp_are_refused():
    X, y = data()
    with pytest.raises(ValueError, match="the bound of GPR needs all rows at once; omit batch_size"):
        train(GPR.from_data(X, y), X, y, steps=1, batch_size=10)


def test_a_scaled_log_evidence_is_refused():
    X, y = data()
    with pytest.raises(ValueError, match="needs all data at once, but scale is 2.0"):
        GPR.from_data(X, y).bound(X, y, scale=2.0)


@pytest.mark.parametrize("method", [*METHODS, pytest.param(None, id="exact")])
@pytest.mark.parametrize(("built_with", "trained_with"), [(1, 3), (3, 1)])
def test_targets_with_other_outputs_than_the_model_are_refused(built_with, trained_with, method):
    X, y = data(P=1)
    start, target = (np.tile(y, (1, P)) for P in (built_with, trained_with))
    model = GPR.from_data(X, start) if method is None else sparse(X, start, method)
    with pytest.raises(ValueError, match=f"y has {trained_with} .*{built_with}"):
        train(model, X, target, steps=1)


def test_training_the_exact_gp_on_other_data_than_it_predicts_from_is_refused():
    X, y = data()
    model = GPR.from_data(X, y)
    with pytest.raises(ValueError, match="data"):
        train(model, X + 1.0, y, steps=1)


def test_data_of_another_width_are_refused():
    X, y = data()
    with pytest.raises(ValueError, match="X has 3 columns, but the model was built for 2"):
        train(sparse(X, y), np.concatenate([X, X[:, :1]], axis=1), y, steps=1)


@pytest.mark.parametrize("every", [0, -5])
def test_checkpoint_intervals_that_are_not_positive_are_refused(every, tmp_path):
    X, y = data()
    with pytest.raises(ValueError, match=f"checkpoint_every is {every}"):
        train(sparse(X, y), X, y, steps=1, checkpoint=tmp_path / "run.safetensors", checkpoint_every=every)


def test_full_batches_are_the_data_as_they_are():
    X, y = data()
    batch = Batches(X, y, len(X), 0)[3]
    assert batch.X is X
    assert batch.scale == 1.0


def test_frozen_leaves_stay_bitwise():
    X, y = data()
    model = sparse(X, y)
    trained = train(model, X, y, steps=3, updates=[Adam(frozen=("kernel.*", "Z")), InverseUpdate()]).model
    assert process(trained).kernel.lengthscale is process(model).kernel.lengthscale
    assert inducing_inputs(trained) is inducing_inputs(model)


def test_a_delayed_rate_is_zero_before_its_start():
    X, y = data()
    model = sparse(X, y)
    updates = [Adam(delayed(1e-2, 4), frozen="inverse_factor")]
    assert moved(model, train(model, X, y, steps=4, updates=updates)) == set()
    assert moved(model, train(model, X, y, steps=5, updates=updates)) == set(named(model, "parameter"))


@pytest.mark.slow
def test_one_dimensional_targets_are_one_output():
    X, y = data()
    flat, column = (train(sparse(X, t), X, t, steps=5).trace["bound"] for t in (y[:, 0], y))
    assert flat == column


def test_the_default_likelihood_is_gaussian_and_its_noise_is_trained():
    X, y = data()
    model = sparse(X, y)
    assert isinstance(model.likelihood, Gaussian)
    result = train(model, X, y, steps=2)
    assert float(result.model.likelihood.noise_variance) != float(model.likelihood.noise_variance)


# -- what a device does ----------------------------------------------------------------------------------------------


class Still:
    """An update that counts its steps."""

    def init(self, model):
        return {"count": np.zeros(())}

    def __call__(self, model, batch, state):
        return model, {"count": state["count"] + 1.0}, {"bound": state["count"]}


def still_run():
    X, y = data(N=6)
    return Run(GPR.from_data(X, y), [Still()], Batches(X, y, 6, 0), None, {})


def test_after_a_wrong_guess_steps_do_without_guesses_for_a_while(monkeypatch):
    run, guessed = still_run(), []

    def wrong(once, _):
        guessed.append(run.step)
        return once(), False

    monkeypatch.setattr("agp.training._run.speculate", wrong)
    run.advance_to(3 * CHECK_EVERY, [], None, 1000)
    assert guessed == [0, CHECK_EVERY + 1, 2 * (CHECK_EVERY + 1)]


def test_calls_of_many_steps_end_where_a_checkpoint_is_due():
    class Calls(list):
        """What `Epochs` does where loops are compiled: as many steps in one call as are allowed."""

        def to(self, first, last):
            assert first < last
            return last

        def __call__(self, model, states, first, last):
            self.append((first, last))
            return model, states, {"bound": np.zeros(last - first)}

    run = still_run()
    run.epochs = Calls()
    run.advance_to(4, [], None, 3)
    run.advance_to(11, [], None, 3)
    assert run.epochs == [(0, 3), (3, 4), (4, 6), (6, 9), (9, 11)]


def test_steps_of_one_call_are_logged_one_by_one():
    class Calls:
        """What `Epochs` does where loops are compiled: four steps in one call."""

        def to(self, first, last):
            return min(first + 4, last)

        def __call__(self, model, states, first, last):
            return model, states, {"bound": np.arange(first, last) + 0.5}

    run = still_run()
    run.epochs = Calls()
    run.advance_to(10, [], None, 1000)
    found = run.result()
    assert found.steps == 10
    assert found.trace == {"bound": [step + 0.5 for step in range(10)]}
