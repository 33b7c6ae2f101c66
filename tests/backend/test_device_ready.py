"""What a device is asked for where decisions are taken for granted: launches, reads of the host and uploads.

Counted on the stand-in of a CUDA device; what a step of each method may ask for stands in `test_step_budgets`.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from helpers import JAX, NUMPY, TORCH, TORCH_CUDA, assert_close

import agp
from agp import tree
from agp.actions import BlockActions, DenseActions
from agp.backend import asarray_like, assume, backend_of, constant, get_backend, numbers_of, speculating, to_numpy
from agp.backend._control import _block
from agp.distributions._quantiles import gauss_hermite
from agp.errors import NonFiniteError
from agp.linalg import preconditioner
from agp.posteriors import Relaxed
from agp.repairs import Tally, collect_reports, fetch_reports, report, speculate
from agp.training._batches import Batches
from agp.training._run import CHECK_EVERY, Run
from agp.updates import Adam, Group, InverseUpdate
from agp_backends._cuda import whole_block

torch = pytest.importorskip("torch")
from standins.counts import counted  # noqa: E402


class Traffic(list):
    """The shapes of arrays that came to the host, and in `sent` of those that went to the device."""

    def __init__(self):
        super().__init__()
        self.sent = []


@pytest.fixture
def device(monkeypatch, torch_device):
    """The stand-in of a CUDA device, and what travels by way of the library."""
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
    return traffic


def _relaxed(Kuu, outputs):
    """R-SVGP's q(u) at the prior; the inverse factor by NumPy, which is faster than steps from a cold start."""
    leaves = Relaxed._prior_leaves(Kuu, outputs, True)
    target = to_numpy(Relaxed(**leaves, inverse_factor=None).inverse_target(Kuu))
    return Relaxed(**leaves, inverse_factor=asarray_like(np.linalg.cholesky(np.linalg.inv(target)), Kuu))


METHODS = {"W": "whitened", "R": _relaxed}


def _run(method, M, place=TORCH_CUDA):
    """A training with minibatches of M of 4 M rows, at M inducing inputs."""
    rng = np.random.default_rng(0)
    X = place.array(rng.normal(size=(4 * M, 8)))
    y = place.array(np.sin(rng.normal(size=(4 * M, 1))))
    model = agp.SVGP.from_data(X, y, posterior=METHODS[method], num_inducing=M, inducing="random")
    updates = [Adam(1e-2), *([InverseUpdate()] if method == "R" else [])]
    return Run(model, updates, Batches(X, y, M, 0, model._draws), None, {})


def test_a_loop_whose_length_is_known_is_looked_at_once(device):
    B, x, counts = get_backend("torch"), TORCH_CUDA.array(0.0), []

    def body(count):
        counts.append(count)
        return (count + 1.0,)

    for at_least, reads in ((0, 6), (3, 3), (5, 1)):
        with counted() as counting:
            (found,) = B.while_loop(lambda count: count < 5.0, body, (x,), at_least=at_least)
        assert (float(found), counting.reads.total()) == (5.0, reads)
    assert len(counts) == 15


def test_a_loop_is_looked_at_as_seldom_as_it_allows(device):
    B, x = get_backend("torch"), TORCH_CUDA.array(0.0)

    def taken(**known):
        with counted() as counting:
            (found,) = B.while_loop(lambda count: count < 5.0, lambda count: (count + 1.0,), (x,), **known)
        return float(found), counting.reads.total()

    assert taken(look_every=4) == (8.0, 3)
    assert taken(look_every=4, at_most=5) == (5.0, 2)
    assert taken(at_least=3, at_most=3) == (3.0, 0)
    guesses = []
    with speculating(guesses):
        assert taken(at_least=5, likely_enough=True) == (5.0, 0)
        assert taken(at_least=4, likely_enough=True) == (4.0, 0)
    assert [bool(guess) for guess in guesses] == [True, False]
    assert taken(at_least=4, likely_enough=True) == (5.0, 3)


# -- what is taken for granted ----------------------------------------------------------------------------------------


def _deciding(outcome, calls, trouble=None, place=TORCH_CUDA):
    """Work whose likely decision turns out as `outcome`."""
    x = place.array(1.0)

    def work():
        taken = assume(x > (0.5 if outcome else 2.0), likely=True)
        calls.append(taken)
        report("repaired {0}", x)
        if trouble is not None and taken:
            raise trouble
        return taken

    return work, x


def test_a_right_guess_is_looked_at_once_and_kept(device):
    calls = []
    work, x = _deciding(True, calls)
    with collect_reports() as reports, counted() as counting:
        assert speculate(work, x) == (True, True)
    assert (calls, counting.reads.total(), len(reports)) == ([True], 1, 1)


def test_a_wrong_guess_is_taken_back_with_all_that_came_of_it(device):
    calls = []
    work, x = _deciding(False, calls)
    with collect_reports() as reports:
        assert speculate(work, x) == (False, False)
    assert (calls, len(reports)) == ([True, False], 1)


def test_an_error_that_comes_of_a_wrong_guess_is_none(device):
    for outcome in (True, False):
        calls = []
        work, x = _deciding(outcome, calls, NonFiniteError("broken"))
        with collect_reports():
            if outcome:
                with pytest.raises(NonFiniteError, match="broken"):
                    speculate(work, x)
            else:
                assert speculate(work, x) == (False, False)


def test_on_the_host_every_decision_is_looked_at():
    for outcome in (True, False):
        calls = []
        work, x = _deciding(outcome, calls, place=TORCH)
        with collect_reports():
            assert speculate(work, x) == (outcome, True)
        assert calls == [outcome]


def test_what_is_unlikely_is_guessed_too_and_what_nobody_knows_is_read():
    x = TORCH.array(1.0)
    guesses = []
    with speculating(guesses):
        assert assume(x > 2.0, likely=False) is False
        assert assume(x > 2.0, likely=True) is True
        assert len(guesses) == 2
        assert assume(x > 2.0, likely=None) is False
    assert [bool(guess) for guess in guesses] == [True, False]


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("method", ["W", "R"])
def test_training_on_a_device_gives_the_numbers_of_the_host(method, request):
    def trained(place):
        run = _run(method, 20, place)
        run.advance_to(25, [], None, 1000)
        return run.result()

    host = trained(TORCH)
    request.getfixturevalue("device")
    found = trained(TORCH_CUDA)
    for name, x in tree.leaves(host.model).items():
        assert_close(to_numpy(tree.leaves(found.model)[name]), to_numpy(x), 1e-9, name)
    assert found.repairs == host.repairs
    assert_close(found.trace["bound"], host.trace["bound"], 1e-10)


@pytest.mark.slow
def test_repairs_on_a_device_are_counted_once_and_made_warily(device):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    y = np.sin(X[:, :1])
    parts = {"posterior": agp.posteriors.Whitened, "Z": TORCH_CUDA.array(np.repeat(X[:3], 4, axis=0)), "jitter": 0.0}
    X, y = TORCH_CUDA.array(X), TORCH_CUDA.array(y)
    model = agp.SVGP.from_data(X, y, **parts)
    seen = []
    run = Run(model, [Adam(frozen=("*",)), _Watched(seen)], Batches(X, y, 30, 0), None, {})
    run.advance_to(13, [], None, 1000)
    assert run.result().repairs.total() == 13
    # the first step twice, ten steps warily, the twelfth twice again
    assert seen == [True, False, *[False] * CHECK_EVERY, True, False, False]


class _Watched:
    """An update that changes nothing, and remembers whether decisions were taken for granted."""

    def __init__(self, seen):
        self.seen = seen

    def init(self, model):
        return {}

    def __call__(self, model, batch, state):
        self.seen.append(_block.get() is not None)
        return model, state, {}


@pytest.mark.slow
def test_a_look_at_ten_steps_takes_one_transfer(device):
    run = _run("R", 20)
    for _ in range(CHECK_EVERY):
        run._advance()
    device.clear()
    with counted() as counting:
        run._look()
    assert (len(device), counting.reads.total()) == (1, 1)
    (trace,) = run.looks
    assert {name: len(numbers) for name, numbers in trace.items()} == dict.fromkeys(trace, CHECK_EVERY)


def test_numbers_come_by_one_transfer_whatever_they_are(device):
    several = [TORCH_CUDA.array(0.5), TORCH_CUDA.array(1.5, "float32"), TORCH_CUDA.array(2.0) > 1.0, 7, torch.tensor(3)]
    assert numbers_of(several) == [0.5, 1.5, 1.0, 7.0, 3.0]
    assert len(device) == 1
    assert numbers_of([]) == []
    assert numbers_of([2.5]) == [2.5]


def test_reports_come_by_one_transfer(device):
    several = []
    for step in range(3):
        with collect_reports() as reports:
            for repair in range(step):
                report(
                    f"repair {repair} of {{0:.0f}}", TORCH_CUDA.array(float(step)), count=TORCH_CUDA.array(repair + 1.0)
                )
        several.append(reports)
    device.clear()
    found = [Tally(reports) for reports in fetch_reports(several)]
    assert device == [(6,)]
    assert [tally.total for tally in found] == [0, 1, 3]
    assert found[2].messages == {"repair 0 of 2": 1, "repair 1 of 2": 2}


# -- what travels -----------------------------------------------------------------------------------------------------


def test_the_rows_of_an_epoch_travel_once(device):
    X, y = TORCH_CUDA.array(np.arange(14.0)[:, None]), TORCH_CUDA.array(np.zeros((14, 1)))
    batches = Batches(X, y, 4, 0)
    device.sent.clear()
    for step in range(6):
        assert batches[step].rows.tolist() == batches.indices(step).tolist()
        assert batches[step].X[:, 0].tolist() == batches.indices(step).tolist()
    assert device.sent == [(14,), (14,)]


@pytest.mark.slow
def test_nodes_of_a_quadrature_travel_once(device):
    rng = np.random.default_rng(0)
    X, y = TORCH_CUDA.array(rng.normal(size=(12, 2))), TORCH_CUDA.array(rng.integers(0, 2, size=(12, 1)).astype(float))
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
    values = TORCH_CUDA.array([1.0, 0.0, 2.0, 0.0, 0.0, 3.0])
    with counted() as counting:
        assert BlockActions(values, 3).dependent_columns() == []
        assert BlockActions(values * TORCH_CUDA.array([0.0, 0.0, 1.0, 1.0, 1.0, 1.0]), 3).dependent_columns() == [0]
        assert DenseActions(TORCH_CUDA.array([[1.0, 2.0], [1.0, 2.0], [0.0, 0.0]])).dependent_columns() == [1]
    assert (counting.reads.total(), len(device)) == (3, 3)


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
        for x in tree.leaves(update(model, agp.bounds.Batch(X, y), state)[0]).values():
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
    a, b = backend.array(x), backend.array(y)
    assert_close(backend.numpy(backend_of(a).inner(a, b)), np.sum(x * y), 1e-13)


def test_what_is_evaluated_together_is_what_it_is_by_itself():
    B, rng = get_backend("torch"), np.random.default_rng(0)
    shapes = [(), (4,), (300, 300), (2, 3), (1,)]
    several = [tuple(TORCH.array(x) for x in rng.normal(size=(2, *shape))) for shape in shapes]

    def f(_, x, y, factor):
        return factor * x * y, x - y

    for count in (0, 1, 2, 5):
        found = B.elementwise_each(f, several[:count], numbers=(0.5,), lower=[False] * count)
        assert len(found) == count
        for pair, (x, y) in zip(found, several, strict=False):
            for a, b in zip(pair, f(B, x, y, 0.5), strict=True):
                assert torch.equal(a, b)
