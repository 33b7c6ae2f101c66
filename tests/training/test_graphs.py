"""Steps as one graph of a device, by a stand-in for graphs: the numbers of single steps, to the bit."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from helpers import TORCH

import agp
from agp import tree
from agp.backend import constants
from agp.errors import BackendError, Interrupted
from agp.methods import build, updates_of
from agp.training import _graphs as graphs
from agp.training._batches import Batches
from agp.training._run import Run
from agp.updates import ActionsUpdate, Adam, Group, InverseUpdate, Plateau, Repeat, exponential

torch = pytest.importorskip("torch")
from standins.torch_graphs import recorded_graphs  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

RNG = np.random.default_rng(0)
X = TORCH.array(RNG.normal(size=(43, 3)))
Y = TORCH.array(np.sin(2.0 * TORCH.numpy(X)[:, :1]) + 0.1 * RNG.normal(size=(43, 1)))
STEPS = 50


@pytest.fixture
def device(monkeypatch):
    """Torch on a device that has graphs; what was recorded."""
    return recorded_graphs(monkeypatch)


def sparse(**settings):
    return agp.SVGP.from_data(X, Y, num_inducing=6, posterior="whitened", **settings)


def trained(model, steps=STEPS, batch_size=10, **settings):
    """Four batches in an epoch, and three rows that are left out of it."""
    settings.setdefault("updates", [Adam(1e-2)])
    return agp.train(model, X, Y, steps=steps, batch_size=batch_size, **settings)


def assert_same(found, desired):
    """The same bits."""
    assert found.steps == desired.steps
    assert found.trace == desired.trace
    assert found.repairs == desired.repairs
    leaves = tree.leaves(desired.model)
    for name, x in tree.leaves(found.model).items():
        assert torch.equal(x, leaves[name]), name


# -- numbers ----------------------------------------------------------------------------------------------------------

METHODS = {
    "wsvgp": 1,
    "rsvgp": 1,
    "lsvgp": 1,
    "msvgp": 1,
    "asvgp": 1,
    "qsvgp": 1,
    "solve": 1,
    "deep-wsvgp": 1,
    "sgpr": 0,
    "tvgp": 0,
    "tsvgp": 1,
    "cagp-opt": 0,
}
"""Methods, and whether they take minibatches here."""


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_replayed_steps_are_single_steps_to_the_bit(method, device):
    """The recipe: rates that fall, inducing inputs that wait, natural gradients, sites, noise of layers."""
    settings = {"kernel": "rbf", "num_inducing": 6, "num_actions": 4, "seed": 0}
    model = build(method, X, Y, likelihood=agp.Gaussian(), **settings)
    how = {"batch_size": 10 if METHODS[method] else None, "updates": updates_of(method, model, STEPS)}
    desired = trained(model, graphs=False, **how)
    assert (device.recorded, device.replays) == (0, 0)
    found = trained(model, **how)
    assert_same(found, desired)
    assert (device.recorded, found.launched_singly) == (1, "")
    # inverses that need more than one step are not what was recorded
    assert device.replays == STEPS - graphs.EAGER_STEPS if method not in ("rsvgp", "asvgp") else device.replays > 20


def test_a_few_replayed_steps_have_the_trace_of_single_steps(device):
    assert_same(trained(sparse(), 6), trained(sparse(), 6, graphs=False))
    assert device.replays == 6 - graphs.EAGER_STEPS


@pytest.mark.slow
@pytest.mark.parametrize("method", ["wsvgp", "sgpr"])
def test_what_is_known_of_rows_is_taken_along(method, device):
    known = {"weights": 0.5 + X[:, 0] ** 2, "offset": 0.3 * X[:, 1:2], "noise": 0.1 + X[:, 2] ** 2}
    model = build(method, X, Y, likelihood=agp.Gaussian(), kernel="rbf", num_inducing=6, seed=0, **known)
    how = {"batch_size": 10 if METHODS[method] else None, **known}
    assert_same(trained(model, 20, **how), trained(model, 20, graphs=False, **how))
    assert device.recorded == 1


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_noise_of_a_step_is_that_of_a_single_one(dtype, device):
    data = [TORCH.array(TORCH.numpy(x), dtype) for x in (X, Y)]
    model = agp.DeepGP.from_data(*data, num_inducing=5, layers=2, posterior="whitened")
    for draws in ("host", "device"):
        settings = {"steps": 15, "updates": [Adam(1e-2)], "batch_size": 10, "draws": draws}
        assert_same(agp.train(model, *data, **settings), agp.train(model, *data, graphs=False, **settings))
    assert device.recorded == 2


@pytest.mark.long
def test_schedules_and_plateaus_are_kept_on_the_device(device):
    late = Group(exponential(1e-2, 0.9), plateau=Plateau(0.5, patience=3))
    updates = [Repeat([Adam(1e-3, frozen=("kernel.*",))], 2)], [Adam(exponential(0.2, 0.95), groups={"Z": late})]
    for some in updates:
        assert_same(trained(sparse(), updates=some), trained(sparse(), updates=some, graphs=False))
    assert device.recorded == 2


@pytest.mark.slow
def test_a_gradient_by_autograd_is_recorded_too(device):
    updates = [Adam(1e-2, gradient="autodiff")]
    assert_same(trained(sparse(), 20, updates=updates), trained(sparse(), 20, updates=updates, graphs=False))
    assert device.replays == 17


@pytest.mark.slow
def test_nothing_of_a_step_is_run_again(device):
    calls = []
    found = trained(sparse(), updates=[Adam(1e-2), _Calling(lambda model, _: calls.append(model))])
    assert found.steps == STEPS
    assert len(calls) == graphs.EAGER_STEPS + 2  # once to warm up, once to record


@pytest.mark.long
def test_states_that_are_leaves_as_well_are_written_in_time(device):
    """The leaves before a step are its state after it."""

    def updates():
        return [Adam(1e-1), _Before(sparse())]

    found, desired = trained(sparse(), updates=updates()), trained(sparse(), updates=updates(), graphs=False)
    assert device.recorded == 1
    assert_same(found, desired)
    assert len(set(found.trace["moved"])) == STEPS


# -- guesses ----------------------------------------------------------------------------------------------------------


def collided(steps):
    """A model without jitter, and updates after some of whose steps inducing inputs coincide until the next step.

    The variance of the kernel is 1, so that the pivot of the second of three equal rows is 0 whatever the rounding.
    """
    model = sparse(jitter=0.0)
    model = tree.with_leaves(model, {"process.kernel.variance": torch.ones((), dtype=torch.float64)})
    return model, [Adam(1e-2, frozen=("inducing.*", "kernel.variance")), _Collision(frozenset(steps))]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::agp.errors.RepairWarning")
@pytest.mark.parametrize("steps", [(23,), (4,), (29, 30), (23, 24, 37), (1, 2)])
def test_a_wrong_guess_takes_back_what_came_of_it(steps, device):
    model, updates = collided(steps)
    found, desired = trained(model, updates=updates), trained(model, updates=updates, graphs=False)
    assert_same(found, desired)
    assert sum(found.repairs.values()) == len(steps)
    assert device.replays > STEPS // 3


def test_the_first_steps_are_taken_one_call_after_another(device):
    run = Run(sparse(), [Adam(1e-2)], Batches(X, Y, 10, 0), None, {}, graphs=True)
    run.advance_to(graphs.EAGER_STEPS, [], None, 1000)
    assert (device.recorded, device.replays) == (0, 0)


@pytest.mark.filterwarnings("ignore::agp.errors.RepairWarning")
def test_steps_taken_back_do_not_count_as_launched(device):
    model, updates = collided([graphs.EAGER_STEPS])
    found = trained(model, graphs.EAGER_STEPS + 2, updates=updates)
    assert device.replays > 0
    assert "guesses about the branches" in found.launched_singly


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::agp.errors.RepairWarning")
def test_a_wrong_guess_costs_two_launches_and_a_pause(device):
    model, updates = collided([20])
    trained(model, updates=updates)
    # the steps 21 and 22 are taken back; 21 and ten more are taken one call after another
    assert device.replays == STEPS - graphs.EAGER_STEPS - 11 + 2
    assert device.recorded == 1


@pytest.mark.slow
def test_a_step_that_is_right_after_one_that_was_wrong_is_taken_back_too(device):
    updates = [Adam(1e-2), _Unlikely(7)]
    found, desired = trained(sparse(), updates=updates), trained(sparse(), updates=updates, graphs=False)
    assert_same(found, desired)
    assert 1 < sum(found.trace["met"]) < STEPS / 2
    assert device.replays > 4


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::agp.errors.RepairWarning")
def test_guesses_that_are_always_wrong_are_tried_ever_less(device):
    model, updates = collided(range(200))
    found = trained(model, 120, updates=updates)
    assert_same(found, trained(model, 120, updates=updates, graphs=False))
    assert device.replays <= 2 * 4
    assert "guesses about the branches" in found.launched_singly


@pytest.mark.long
def test_a_guess_that_is_wrong_at_a_look_is_taken_back_there(device):
    model, updates = collided([19, 39])
    seen = []
    with pytest.warns(agp.errors.RepairWarning):
        found = trained(model, updates=updates, callbacks=[lambda seen_now: seen.append(seen_now.step)])
    assert seen == list(range(1, STEPS + 1))
    with pytest.warns(agp.errors.RepairWarning):
        assert_same(found, trained(model, updates=updates, graphs=False))


# -- looks, checkpoints, callbacks ------------------------------------------------------------------------------------


@pytest.mark.long
def test_callbacks_see_models_of_their_own(device):
    def watched(graphs):
        seen = []

        def callback(progress):
            if progress.step % 10 == 0:
                seen.append(progress)

        trained(sparse(), callbacks=[callback], graphs=graphs)
        return seen

    found, desired = watched(True), watched(False)
    assert device.replays == STEPS - graphs.EAGER_STEPS
    for a, b in zip(found, desired, strict=True):
        assert a.step == b.step
        assert a.info.keys() == b.info.keys()
        assert a.info["bound"].dtype == b.info["bound"].dtype
        assert torch.equal(a.info["bound"], b.info["bound"])
        for x, y in zip(tree.leaves(a.model).values(), tree.leaves(b.model).values(), strict=True):
            assert torch.equal(x, y)


@pytest.mark.slow
def test_a_callback_ends_the_training_where_it_says(device):
    found = trained(sparse(), callbacks=[lambda seen: seen.step == 17])
    assert_same(found, trained(sparse(), 17, graphs=False))


@pytest.mark.slow
@pytest.mark.parametrize("every", [7, 10])
def test_a_checkpoint_resumes_to_the_bit(every, device, tmp_path):
    path = tmp_path / "run.safetensors"
    model = agp.DeepGP.from_data(X, Y, num_inducing=4, layers=2, posterior="whitened")
    desired = trained(model, 30, graphs=False)
    trained(model, 17, checkpoint=path, checkpoint_every=every)
    assert_same(trained(model, 24, checkpoint=path, checkpoint_every=every, graphs=False), trained(model, 24))
    assert_same(trained(model, 30, checkpoint=path, checkpoint_every=every), desired)
    assert device.replays == (17 - 3) + (24 - 3) + (30 - 24 - 3)


@pytest.mark.slow
def test_checkpoints_are_written_when_they_should_be(device, tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr(Run, "_write", lambda self, path: written.append(self.step))
    trained(sparse(), 20, checkpoint=tmp_path / "run.safetensors", checkpoint_every=7)
    assert written == [0, 7, 14, 20]


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["launched", "before", "fetched"])
@pytest.mark.parametrize("at", [5, 27])
def test_an_interrupt_keeps_the_steps_before(moment, at, device, monkeypatch):
    """Whether it comes before a launch, between a launch and its log, or after both."""

    launch = graphs._Recording.launch

    def interrupted(self, parts):
        if moment == "before" and device.replays == at:
            raise KeyboardInterrupt
        log = launch(self, parts)
        if moment == "fetched" and device.replays == at:
            raise KeyboardInterrupt
        return log

    if moment == "launched":
        device.interrupt_at = at
    monkeypatch.setattr(graphs._Recording, "launch", interrupted)
    with pytest.raises(Interrupted) as caught:
        trained(sparse())
    assert caught.value.result.steps == graphs.EAGER_STEPS + at
    assert_same(caught.value.result, trained(sparse(), graphs.EAGER_STEPS + at, graphs=False))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::agp.errors.RepairWarning")
def test_an_interrupt_after_a_wrong_guess_counts_no_step_of_before(device, monkeypatch):
    """Before the first launch since: the log that the device has is an old one."""
    launch = graphs._Recording.launch

    def interrupted(self, parts):
        if device.replays == 20 - graphs.EAGER_STEPS + 2:
            raise KeyboardInterrupt
        return launch(self, parts)

    monkeypatch.setattr(graphs._Recording, "launch", interrupted)
    model, updates = collided([20])
    with pytest.raises(Interrupted) as caught:
        trained(model, updates=updates)
    assert caught.value.result.steps == 31
    assert_same(caught.value.result, trained(model, 31, updates=updates, graphs=False))


@pytest.mark.long
def test_a_fit_goes_the_same_way(device):
    settings = {"batch_size": 10, "max_steps": 40}
    with pytest.warns(agp.errors.ConvergenceWarning):
        found, desired = (agp.fit(sparse(), X, Y, graphs=yes, **settings) for yes in (True, False))
    assert_same(found, desired)
    assert device.replays == 37


# -- refusals ---------------------------------------------------------------------------------------------------------

REFUSED = {
    "a number is read": (lambda model, _: float(next(iter(tree.leaves(model).values())).sum()), "a number was read"),
    "an array is read": (lambda model, _: agp.to_numpy(model.inducing.Z), "an array travelled"),
    "a number is sent": (lambda model, _: torch.tensor(1.0), "a number was sent"),
    "a repair whatever happens": (
        lambda model, _: agp.repairs.report("repaired {0}", model.inducing.Z[0, 0]),
        "every step reports a numerical repair",
    ),
    "an error": (lambda _, state: state["none"], "none"),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::agp.errors.RepairWarning")
@pytest.mark.parametrize("what", REFUSED)
def test_what_no_graph_can_hold_is_launched_singly_for_ever_and_said(what, device):
    ask, reason = REFUSED[what]

    def asked(model, state):
        block = agp.backend._control._block.get()
        if what != "an error" or (block is not None and block.blind):
            ask(model, state)

    updates = [Adam(1e-2), _Calling(asked)]
    found = trained(sparse(), updates=updates)
    assert reason in found.launched_singly
    assert (device.recorded, device.replays) == (0, 0)
    assert_same(found, trained(sparse(), updates=updates, graphs=False))
    assert reason in found._repr_html_()


@pytest.mark.slow
def test_a_refused_step_is_not_tried_again(device):
    calls = []

    def ask(model, _):
        calls.append(1)
        float(model.inducing.Z[0, 0])

    trained(sparse(), updates=[Adam(1e-2), _Calling(ask)])
    assert len(calls) == STEPS + 2


def loops():
    """Models of whose steps some last as long as their numbers say."""
    chosen = agp.CaGP.from_data(X, Y, policy=agp.actions.ConjugateGradients(4))
    yield chosen, [ActionsUpdate(agp.actions.ConjugateGradients(4)), Adam(1e-2)], None
    yield agp.CGGP.from_data(X, Y), [Adam(1e-2)], None
    relaxed = agp.SVGP.from_data(X, Y, num_inducing=6, posterior="relaxed")
    yield relaxed, [Adam(1e-2), InverseUpdate(least_steps=0)], 10
    half = InverseUpdate(precision="float32")
    yield relaxed, [Adam(1e-2), half], 10


@pytest.mark.slow
@pytest.mark.parametrize("which", range(4), ids=["actions", "conjugate gradients", "inverse", "precision"])
def test_a_loop_of_unknown_length_is_not_recorded(which, device):
    model, updates, batch_size = list(loops())[which]
    found = trained(model, 12, batch_size, updates=updates)
    assert "cannot read this predicate" in found.launched_singly
    assert device.replays == 0
    assert_same(found, trained(model, 12, batch_size, updates=updates, graphs=False))


@pytest.mark.slow
def test_an_update_that_changes_the_shapes_is_not_recorded(device):
    found = trained(sparse(), 12, updates=[Adam(1e-2), _Growing()])
    assert "changes settings or array shapes" in found.launched_singly
    assert_same(found, trained(sparse(), 12, updates=[Adam(1e-2), _Growing()], graphs=False))


@pytest.mark.slow
def test_without_graphs_there_is_no_reason():
    found = trained(sparse(), 12)
    assert found.launched_singly == ""
    assert "launched singly" not in found._repr_html_()


@pytest.mark.slow
def test_a_model_of_another_shape_is_recorded_anew(device):
    """After steps that were taken one call after another."""
    model, batches = sparse(), Batches(X, Y, 10, 0)
    run = Run(model, [Adam(1e-2)], batches, None, {}, graphs=True)
    run.advance_to(8, [], None, 1000)
    other = Run(agp.SVGP.from_data(X, Y, num_inducing=4, posterior="whitened"), [Adam(1e-2)], batches, None, {})
    run.model, run.states = other.model, other.states
    run.advance_to(16, [], None, 1000)
    other.step = 8
    other.advance_to(16, [], None, 1000)
    assert device.recorded == 2
    for x, y in zip(tree.leaves(run.model).values(), tree.leaves(other.model).values(), strict=True):
        assert torch.equal(x, y)


# -- what it asks for -------------------------------------------------------------------------------------------------


class _Launched(TorchDispatchMode):
    """The names of the calls that launch something."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if not function.is_view:
            self.names.append(function._schema.name.rpartition("::")[2])
        return function(*args, **(kwargs or {}))


@pytest.mark.slow
@pytest.mark.parametrize(("batch_size", "copies"), [(10, 1), (None, 0)], ids=["rows", "all rows"])
def test_a_step_asks_for_its_rows_its_graph_and_its_log(batch_size, copies, device):
    run = Run(sparse(), [Adam(1e-2)], Batches(X, Y, batch_size or len(X), 0), None, {}, graphs=True)
    run.advance_to(graphs.EAGER_STEPS, [], None, 1000)
    for step in (4, 5):
        run._reach(step, wait=False)
    recording = run.graph.recording
    assert {id(x) for x in constants()} <= {id(x) for x in recording.kept}  # nobody else may get their memory
    recording.replay, launches = lambda: None, device.replays
    with _Launched() as launched:
        run._reach(6, wait=False)
    assert launched.names == ["copy_"] * copies + ["clone"]  # the log, which another device brings by itself
    assert device.replays == launches


@pytest.mark.long
@pytest.mark.parametrize("method", ["wsvgp", "rsvgp", "asvgp", "sgpr", "tsvgp", "cagp-opt", "deep-wsvgp"])
def test_what_is_recorded_reads_and_sends_nothing(method, torch_device, monkeypatch):
    """On the stand-in of a CUDA device, which sees what would travel."""
    from standins.counts import counted

    from agp_backends._torch import TorchBackend

    seen = []

    def capture(self, f, x):
        f()
        with counted() as counts:
            f()
        seen.append(counts)
        msg = "that is all"
        raise BackendError(msg)

    monkeypatch.setattr(TorchBackend, "capture", capture)
    data = [torch_device.array(TORCH.numpy(x)) for x in (X, Y)]
    settings = {"kernel": "rbf", "num_inducing": 6, "num_actions": 4, "seed": 0}
    model = build(method, *data, likelihood=agp.Gaussian(), **settings)
    how = {"batch_size": 10 if METHODS[method] else None, "updates": updates_of(method, model, 100)}
    found = agp.train(model, *data, steps=40, **how)  # after steps whose inverse took more than one
    assert found.launched_singly == "that is all"
    (counts,) = seen
    assert (counts.reads.total(), counts.uploads.total()) == (0, 0), counts


# -- updates ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Calling:
    """Calls a function with the model and the state, and changes nothing."""

    called: object

    def init(self, model):
        return {}

    def __call__(self, model, batch, state):
        self.called(model, state)
        return model, state, {}


@dataclass(frozen=True)
class _Before:
    """Keeps the leaves as they are, and logs how far they are from those of the step before."""

    start: object

    def init(self, model):
        return dict(tree.leaves(self.start))

    def __call__(self, model, batch, state):
        moved = sum(((x - state[name]) ** 2).sum() for name, x in tree.leaves(model).items())
        return model, dict(tree.leaves(model)), {"moved": moved}


@dataclass(frozen=True)
class _Collision:
    """After some steps two inducing inputs are one, and are what they were after the next."""

    steps: frozenset = field(default_factory=frozenset)

    def init(self, model):
        return {"count": torch.zeros((), dtype=torch.float64), "Z": model.inducing.Z}

    def __call__(self, model, batch, state):
        due = sum(state["count"] == float(step - 1) for step in self.steps) > 0
        same = torch.where((torch.arange(6) < 3)[:, None], state["Z"][:1, :], state["Z"])
        Z = torch.where(due, same, state["Z"])
        return tree.with_leaves(model, {"process.inducing.Z": Z}), state | {"count": state["count"] + 1.0}, {}


@dataclass(frozen=True)
class _Unlikely:
    """Shrinks the noise in the step of an epoch that sees a row, which it takes for unlikely."""

    row: int

    def init(self, model):
        return {}

    def __call__(self, model, batch, state):
        noise = model.likelihood.noise_variance
        met = (batch.rows == self.row).any()
        new, logged = agp.backend_of(noise).cond(
            met, lambda: (0.99 * noise, noise * 0.0 + 1.0), lambda: (noise, noise * 0.0), likely=False
        )
        return tree.with_leaves(model, {"likelihood.noise_variance": new}), state, {"met": logged}


class _Growing:
    """A state that is longer after each step."""

    def init(self, model):
        return {"seen": torch.zeros(1)}

    def __call__(self, model, batch, state):
        return model, {"seen": torch.cat([state["seen"], state["seen"][:1]])}, {}
