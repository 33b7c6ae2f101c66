"""What a device is asked for in a training step: launches, reads of the host and uploads, counted on the host.

Torch tells every call of its library (`TorchDispatchMode`), whatever the device; here it takes the settings of a CUDA
device with fast float64. A call that only looks at memory in another way, or takes memory, launches nothing.
"""

import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import JAX, NUMPY, TORCH, assert_close

import agp
from agp import tree
from agp.actions import BlockActions, DenseActions
from agp.backend import constant, get_backend, guessed, guessing, numbers_of, to_numpy
from agp.backend._guesses import _guesses
from agp.errors import NonFiniteError
from agp.guesses import settled
from agp.host import gauss_hermite
from agp.linalg import inner, preconditioner
from agp.posteriors import Relaxed
from agp.repairs import Tally, collected, fetched, report
from agp.training._batches import Batches
from agp.training._run import CHECK_EVERY, Run
from agp.updates import Adam, Group, InverseUpdate
from agp_backends._cuda import whole_block

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

FREE = {"detach", "alias", "lift_fresh", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
FREE |= {"_unsafe_view", "view", "reshape"}
READ = "_local_scalar_dense"
BELOW = {"backend", "linalg", "entrances", "host", "ledger", "leaves"}
"""Rooms whose launches count for those that call them."""
ROOT = Path(agp.__file__).parent


def _room():
    """The room of the library that makes the current call."""
    frame = sys._getframe(2)
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(ROOT) and (room := file.relative_to(ROOT).parts[0].removesuffix(".py")) not in BELOW:
            return room
        frame = frame.f_back
    return ""


class Counting(TorchDispatchMode):
    """Calls of torch that launch something, by the room that makes them, and how often the host reads a number."""

    def __init__(self):
        super().__init__()
        self.launches, self.reads = Counter(), 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name.rpartition("::")[2]
        if name == READ:
            self.reads += 1
        elif name not in FREE and not function.is_view:
            self.launches[_room()] += 1
        return function(*args, **(kwargs or {}))


class Traffic(list):
    """The shapes of arrays that came to the host, and in `sent` of those that went to the device."""

    def __init__(self):
        super().__init__()
        self.sent = []


@pytest.fixture
def device(monkeypatch):
    """Torch with the settings of a CUDA device with fast float64, and what travels."""
    B, traffic = get_backend("torch"), Traffic()
    kind = type(B)
    fetch, send = kind.to_numpy, kind.from_numpy

    def to_numpy(self, x, /):
        traffic.append(tuple(x.shape))
        return fetch(self, x)

    def from_numpy(self, x, /, **keywords):
        traffic.sent.append(np.shape(x))
        return send(self, x, **keywords)

    for name, f in {"to_numpy": to_numpy, "from_numpy": from_numpy}.items():
        monkeypatch.setattr(kind, name, f)
    monkeypatch.setattr(kind, "device_block", lambda self, x: 1024)
    monkeypatch.setattr(kind, "reading_waits", lambda self, x: True)
    return traffic


def _relaxed(Kuu, outputs):
    """R-SVGP's q(u) at the prior; the inverse factor by NumPy, which is faster than steps from a cold start."""
    leaves = Relaxed._prior_leaves(Kuu, outputs, True)
    target = to_numpy(Relaxed(**leaves, inverse_factor=None).inverse_target(Kuu))
    return Relaxed(**leaves, inverse_factor=TORCH.array(np.linalg.cholesky(np.linalg.inv(target))))


METHODS = {"W": "whitened", "R": _relaxed}


def _run(method, M, D=8, updates=None, **settings):
    """A training with minibatches of M of 4 M rows, at M inducing inputs."""
    rng = np.random.default_rng(0)
    X = TORCH.array(rng.normal(size=(4 * M, D)))
    y = TORCH.array(np.sin(rng.normal(size=(4 * M, 1))))
    model = agp.SVGP.from_data(X, y, posterior=METHODS[method], num_inducing=M, inducing="random", **settings)
    if updates is None:
        updates = [Adam(1e-2), *([InverseUpdate()] if method == "R" else [])]
    return Run(model, updates, Batches(X, y, M, 0, model._draws), None, {})


def _counted(run):
    """What the third step launches and reads."""
    run._advance()
    run._advance()
    with Counting() as counting:
        run._advance()
    return counting


STEPS = {
    "W": {
        "training": 8,
        "kernels": 120,
        "means": 3,
        "processes": 6,
        "posteriors": 68,
        "likelihoods": 22,
        "bounds": 6,
        "tree": 24,
        "constraints": 35,
        "updates": 54,
        "guesses": 2,
    },
    "R": {
        "training": 8,
        "kernels": 146,
        "means": 3,
        "processes": 11,
        "posteriors": 323,
        "likelihoods": 22,
        "bounds": 6,
        "tree": 35,
        "constraints": 44,
        "updates": 43,
        "repairs": 2,
        "guesses": 2,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize(("method", "total", "bar", "reads"), [("W", 348, 410, 1), ("R", 645, 790, 2)])
def test_launches_and_reads_of_a_step(method, total, bar, reads, device):
    """M = B = 1024, D = 8, float64, closed form with Adam; of R with one step of the inverse. No room asks for more.

    Rooms pay for the linear algebra that they ask for. The batch is 2 look-ups of rows, 4 calls each: 8. Kernels are
    Kuu and Kuf with their pullbacks, and in R Kuu again, for the inverse follows the parameters that Adam has moved.
    W's posterior has one Cholesky factorisation, 2 solves with it, and 2 more for its adjoint in one piece. Most of
    R's 323 are steps of the inverse: an estimate of an eigenvalue, of 4 products with a vector, and what judges a
    step. Constraints are 11 calls for each of 3 positive leaves (in R 4), constrained, raw and pulled: 33, and 44; 2
    for the triangular leaf of W. Adam has 9 for the sizes of its steps, 20 for the large leaf of W, 20 for all
    others and 4 that put them together, and 1 for its count: 54, and 34, beside which R has 9 for what it logs. To look
    at what was taken for granted are 2. The sums are 348 and 645.

    The host reads that nothing was taken for granted in vain; and in R whether another step of the inverse is wanted.
    """
    run = _run(method, 1024)
    device.clear()
    counting = _counted(run)
    more = {room: count for room, count in counting.launches.items() if count > STEPS[method].get(room, 0)}
    assert not more
    assert counting.launches.total() <= sum(STEPS[method].values()) == total <= bar
    assert counting.reads + len(device) == reads


def _started(name, X, y, labels):
    """A model of a method, with its targets."""
    if name == "bernoulli":
        return agp.SVGP.from_data(X, labels, posterior="whitened", likelihood=agp.Bernoulli(), num_inducing=20), labels
    if name in ("dual", "inverse-free"):
        return agp.SVGP.from_data(X, y, posterior=name, num_inducing=20), y
    if name == "cagp":
        return agp.CaGP.from_data(X, y, num_actions=8), y
    return {"tsvgp": agp.TSVGP, "sgpr": agp.SGPR}[name].from_data(X, y, num_inducing=20), y


@pytest.mark.parametrize(
    ("name", "reads"), [("bernoulli", 1), ("sgpr", 1), ("cagp", 1), ("dual", 1), ("tsvgp", 1), ("inverse-free", 2)]
)
def test_reads_of_a_step_of_the_recipe(name, reads, device):
    """Once what was taken for granted; and with inverse factors whether a loop has to go on."""
    rng = np.random.default_rng(0)
    X, y = TORCH.array(rng.normal(size=(80, 8))), TORCH.array(np.sin(rng.normal(size=(80, 1))))
    model, y = _started(name, X, y, TORCH.array((rng.normal(size=(80, 1)) > 0.0).astype(float)))
    run = Run(model, agp.training.recipe(model, 1000), Batches(X, y, 80, 0, model._draws), None, {})
    run._advance()
    device.clear()
    assert _counted(run).reads + len(device) == reads


def test_a_loop_whose_length_is_known_is_looked_at_once(device):
    B, x, counts = get_backend("torch"), TORCH.array(0.0), []

    def body(count):
        counts.append(count)
        return (count + 1.0,)

    for at_least, reads in ((0, 6), (3, 3), (5, 1)):
        with Counting() as counting:
            (found,) = B.while_loop(lambda count: count < 5.0, body, (x,), at_least=at_least)
        assert (float(found), counting.reads) == (5.0, reads)
    assert len(counts) == 15


def test_launches_do_not_depend_on_the_number_of_columns_or_rows(device):
    few, many = (_counted(_run("W", M, D)).launches.total() for M, D in ((257, 8), (300, 20)))
    assert few == many


# -- what is taken for granted ----------------------------------------------------------------------------------------


def _deciding(outcome, calls, trouble=None):
    """Work whose likely decision turns out as `outcome`."""
    x = TORCH.array(1.0)

    def work():
        taken = guessed(x > (0.5 if outcome else 2.0), likely=True)
        calls.append(taken)
        report("repaired {0}", x)
        if trouble is not None and taken:
            raise trouble
        return taken

    return work, x


def test_a_right_guess_is_looked_at_once_and_kept(device):
    calls = []
    work, x = _deciding(True, calls)
    with collected() as reports, Counting() as counting:
        assert settled(work, x) == (True, True)
    assert (calls, counting.reads, len(reports)) == ([True], 1, 1)


def test_a_wrong_guess_is_taken_back_with_all_that_came_of_it(device):
    calls = []
    work, x = _deciding(False, calls)
    with collected() as reports:
        assert settled(work, x) == (False, False)
    assert (calls, len(reports)) == ([True, False], 1)


def test_an_error_that_comes_of_a_wrong_guess_is_none(device):
    for outcome in (True, False):
        calls = []
        work, x = _deciding(outcome, calls, NonFiniteError("broken"))
        with collected():
            if outcome:
                with pytest.raises(NonFiniteError, match="broken"):
                    settled(work, x)
            else:
                assert settled(work, x) == (False, False)


def test_on_the_host_every_decision_is_looked_at():
    for outcome in (True, False):
        calls = []
        work, x = _deciding(outcome, calls)
        with collected():
            assert settled(work, x) == (outcome, True)
        assert calls == [outcome]


def test_what_is_unlikely_is_guessed_too_and_what_nobody_knows_is_read():
    x = TORCH.array(1.0)
    guesses = []
    with guessing(guesses):
        assert guessed(x > 2.0, likely=False) is False
        assert guessed(x > 2.0, likely=True) is True
        assert len(guesses) == 2
        assert guessed(x > 2.0, likely=None) is False
    assert [bool(guess) for guess in guesses] == [True, False]


@pytest.mark.parametrize("method", ["W", "R"])
def test_training_on_a_device_gives_the_numbers_of_the_host(method, request):
    def trained():
        run = _run(method, 20)
        run.advance_to(25, [], None, 1000)
        return run.result()

    host = trained()
    request.getfixturevalue("device")
    found = trained()
    for name, x in tree.leaves(host.model).items():
        assert_close(to_numpy(tree.leaves(found.model)[name]), to_numpy(x), 1e-9, name)
    assert found.repairs == host.repairs
    assert_close(found.trace["bound"], host.trace["bound"], 1e-10)


def test_repairs_on_a_device_are_counted_once_and_made_warily(device):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    y = np.sin(X[:, :1])
    parts = {"posterior": agp.posteriors.Whitened, "Z": TORCH.array(np.repeat(X[:3], 4, axis=0)), "jitter": 0.0}
    X, y = TORCH.array(X), TORCH.array(y)
    model = agp.SVGP.from_data(X, y, **parts)
    run = Run(model, [Adam(frozen=("*",))], Batches(X, y, 30, 0), None, {})
    seen = []
    run.updates = [*run.updates, _Watched(seen)]
    run.states = [*run.states, {}]
    run.advance_to(13, [], None, 1000)
    assert run.result().repairs.total() == 13
    # the first step twice, ten steps warily, the twelfth twice again
    assert seen == [True, False, *[False] * CHECK_EVERY, True, False, False]


class _Watched:
    """An update that changes nothing, and remembers whether decisions were taken for granted."""

    def __init__(self, seen):
        self.seen = seen

    def __call__(self, model, batch, state):
        self.seen.append(_guesses.get() is not None)
        return model, state, {}


def test_a_look_at_ten_steps_takes_one_transfer(device):
    run = _run("R", 20)
    for _ in range(CHECK_EVERY):
        run._advance()
    device.clear()
    with Counting() as counting:
        run._look()
    assert (len(device), counting.reads) == (1, 0)
    (trace,) = run.looks
    assert {name: len(numbers) for name, numbers in trace.items()} == dict.fromkeys(trace, CHECK_EVERY)


def test_numbers_come_by_one_transfer_whatever_they_are(device):
    several = [TORCH.array(0.5), TORCH.array(1.5, "float32"), TORCH.array(2.0) > 1.0, 7, torch.tensor(3)]
    assert numbers_of(several) == [0.5, 1.5, 1.0, 7.0, 3.0]
    assert len(device) == 1
    assert numbers_of([]) == []
    assert numbers_of([2.5]) == [2.5]


def test_reports_come_by_one_transfer(device):
    several = []
    for step in range(3):
        with collected() as reports:
            for repair in range(step):
                report(f"repair {repair} of {{0:.0f}}", TORCH.array(float(step)), count=TORCH.array(repair + 1.0))
        several.append(reports)
    device.clear()
    found = [Tally(reports) for reports in fetched(several)]
    assert device == [(6,)]
    assert [tally.total for tally in found] == [0, 1, 3]
    assert found[2].messages == {"repair 0 of 2": 1, "repair 1 of 2": 2}


# -- what travels -----------------------------------------------------------------------------------------------------


def test_the_rows_of_an_epoch_travel_once(device):
    X, y = TORCH.array(np.arange(14.0)[:, None]), TORCH.array(np.zeros((14, 1)))
    batches = Batches(X, y, 4, 0)
    device.sent.clear()
    for step in range(6):
        assert batches[step].rows.tolist() == batches.indices(step).tolist()
        assert batches[step].X[:, 0].tolist() == batches.indices(step).tolist()
    assert device.sent == [(14,), (14,)]


def test_nodes_of_a_quadrature_travel_once(device):
    rng = np.random.default_rng(0)
    X, y = TORCH.array(rng.normal(size=(12, 2))), TORCH.array(rng.integers(0, 2, size=(12, 1)).astype(float))
    model = agp.SVGP.from_data(X, y, likelihood=agp.Bernoulli(link="logit", points=23), num_inducing=4)
    agp.value_and_gradient(model, X, y)
    model.log_density(X, y)
    device.sent.clear()
    agp.value_and_gradient(model, X, y)
    model.log_density(X, y)
    assert device.sent == []


def test_constants_are_those_of_their_dtype_and_serve_every_mode():
    nodes = gauss_hermite(7)[0]
    wide, narrow = TORCH.array(1.0), TORCH.array(1.0, "float32")
    assert constant(nodes, wide) is constant(nodes, wide)
    assert constant(nodes, narrow).dtype == torch.float32
    assert constant(nodes, wide).tolist() == list(nodes)
    with torch.inference_mode():
        made = constant(gauss_hermite(11)[0], wide)
    x = TORCH.array(2.0).requires_grad_()
    (x * made * made).sum().backward()
    assert x.grad == pytest.approx(sum(node**2 for node in gauss_hermite(11)[0]))


def test_constants_of_a_trace_do_not_outlive_it(available):
    jax = pytest.importorskip("jax")
    x, nodes = available(JAX).array(1.0), gauss_hermite(13)[0]
    inside = jax.jit(lambda y: (constant(nodes, x) * y).sum())(x)
    assert JAX.numpy(constant(nodes, x)).tolist() == list(nodes)
    assert JAX.numpy(inside) == pytest.approx(sum(nodes), abs=1e-12)


def test_actions_are_looked_at_in_one_transfer(device):
    values = TORCH.array([1.0, 0.0, 2.0, 0.0, 0.0, 3.0])
    with Counting() as counting:
        assert BlockActions(values, 3).dependent() == []
        assert BlockActions(values * TORCH.array([0.0, 0.0, 1.0, 1.0, 1.0, 1.0]), 3).dependent() == [0]
        assert DenseActions(TORCH.array([[1.0, 2.0], [1.0, 2.0], [0.0, 0.0]])).dependent() == [1]
    assert (counting.reads, len(device)) == (0, 3)


# -- what a device brings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("double", "capability", "block"),
    [(True, (9, 0), 1024), (True, (8, 0), 1024), (True, (8, 6), 256), (True, (12, 0), 256), (False, (8, 6), 1024)],
)
def test_blocks_are_small_where_float64_is_slow(double, capability, block):
    assert whole_block(double, capability) == block


@pytest.mark.parametrize("place", [NUMPY, TORCH, JAX], ids=lambda place: place.name)
def test_on_the_host_nothing_is_larger_and_nothing_waits(place, available):
    x = available(place).array([[1.0]])
    B = get_backend(place.name)
    assert (B.device_block(x), B.reading_waits(x)) == (0.0, False)
    assert B.peak_memory(x) > 1.0


def test_memory_of_a_device_is_that_of_its_allocator(available):
    available(JAX)
    x = SimpleNamespace(device=SimpleNamespace(memory_stats=lambda: {"peak_bytes_in_use": 3 * 2**20}))
    assert get_backend("jax").peak_memory(x) == 3.0


def test_what_is_recomputed_saves_no_random_states(monkeypatch):
    def refused(*_):
        pytest.fail("a random state was saved")

    monkeypatch.setattr(torch, "get_rng_state", refused)
    x = TORCH.array(3.0).requires_grad_()
    (slope,) = torch.autograd.grad(get_backend("torch").remat(lambda a: a * a)(x), [x])
    assert slope == 6.0


@pytest.mark.parametrize("place", [NUMPY, TORCH], ids=lambda place: place.name)
def test_settings_that_are_scalars_of_numpy_keep_the_dtype(place):
    rng = np.random.default_rng(0)
    X, y = place.array(rng.normal(size=(20, 2)), "float32"), place.array(rng.normal(size=(20, 1)), "float32")
    model = agp.SVGP.from_data(X, y, posterior="whitened", num_inducing=4)
    tenth, most = np.float64(0.1), np.float64(0.9)
    for update in (
        Adam(tenth, epsilon=np.float64(1e-7), groups={"Z": Group(tenth, beta1=most, beta2=most)}),
        Adam(natural=tenth),
    ):
        state = update.init(model)
        for x in tree.leaves(update(model, agp.updates.Batch(X, y), state)[0]).values():
            place.check(x, "float32")


def test_preconditioners_hold_no_view_of_a_part():
    rng = np.random.default_rng(0)
    for place in (NUMPY, TORCH):
        U = place.array(rng.normal(size=(9, 3)))
        found = preconditioner(U, place.array(0.5), 9)
        if place is TORCH:
            assert found.Q.is_contiguous() or found.Q.mT.is_contiguous()
            assert found.Q.untyped_storage().nbytes() == 9 * 3 * 8
        else:
            assert found.Q.base is None or found.Q.base.size == 27
        x = rng.normal(size=(9, 2))
        A = place.numpy(U) @ place.numpy(U).T + 0.5 * np.eye(9)
        assert_close(place.numpy(found.solve(place.array(x))), np.linalg.solve(A, x), 1e-10)


@pytest.mark.parametrize("shape", [(5, 7), (3, 5, 5), (6,)])
def test_inner_products_are_those_of_all_entries(shape, backend):
    x, y = np.random.default_rng(0).normal(size=(2, *shape))
    assert_close(backend.numpy(inner(backend.array(x), backend.array(y))), np.sum(x * y), 1e-13)


def test_what_is_evaluated_together_is_what_it_is_by_itself():
    B, rng = get_backend("torch"), np.random.default_rng(0)
    shapes = [(), (4,), (300, 300), (2, 3), (1,)]
    several = [tuple(TORCH.array(x) for x in rng.normal(size=(2, *shape))) for shape in shapes]

    def f(x, y):
        return x * y, x - y

    for count in (0, 1, 2, 5):
        found = B.elementwise_each(f, several[:count], lower=[False] * count)
        assert len(found) == count
        for pair, (x, y) in zip(found, several, strict=False):
            for a, b in zip(pair, f(x, y), strict=True):
                assert torch.equal(a, b)
