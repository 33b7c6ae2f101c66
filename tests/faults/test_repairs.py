"""What was repaired is data on every backend: same counts, same kinds, one warning, compiled or not."""

import dataclasses
import functools
import re
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from helpers import JAX, NUMPY, TORCH, Place, assert_close, inducing_inputs, process, toy_data, with_leaves

import agp
from agp import CGGP, RBF, SGPR, SVGP, TSVGP, Gaussian, tree
from agp.backend import backend_of, get_backend, speculating, to_numpy
from agp.errors import NonFiniteError, NotPositiveDefiniteError, RepairWarning
from agp.linalg import cholesky
from agp.posteriors import Whitened
from agp.repairs import Tally, collect_reports, public, report
from agp.training import fit_lbfgs
from agp.updates import Adam, InverseUpdate, Repeat

FROZEN = Adam(frozen=("*",))


# -- problems ---------------------------------------------------------------------------------------------------------


def data(place):
    X, y = toy_data(24)
    return place.array(X[:, :1]), place.array(y)


def inducing_twins(place, model_class=SVGP, **options):
    """Twelve inducing inputs, three of them different, without jitter."""
    Z = place.array(np.repeat(np.linspace(-1.0, 1.0, 3)[:, None], 4, axis=0))
    return model_class.from_data(
        *data(place), kernel=RBF(1.0, 1.0), likelihood=Gaussian(0.1), Z=Z, jitter=0.0, **options
    )


whitened_twins = functools.partial(inducing_twins, posterior=Whitened)


def cold(place):
    """R-SVGP with a factor that must be thrown away."""
    model = SVGP.from_data(*data(place), num_inducing=6, kernel=RBF(1.0, 1.0), likelihood=Gaussian(0.1))
    return with_leaves(model, {"posterior.inverse_factor": 1e3 * process(model).posterior.inverse_factor})


def unsolved(place):
    """An iterative GP that may not iterate enough."""
    return CGGP.from_data(
        *data(place), kernel=RBF(1.0, 0.1), likelihood=Gaussian(1e-3), rank=0, max_iterations=2, probes=2
    )


@pytest.fixture
def in_tiles(monkeypatch):
    """A memory in which K does not fit, so that predictions are solved for by iteration."""
    monkeypatch.setattr(CGGP, "_block_rows", lambda _self, _memory: 7)


def told(f):
    """What f gives, and the message of its one warning, None if there is none."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out = f()
    assert [warning.category for warning in caught] in ([], [RepairWarning])
    assert all(warning.filename == __file__ for warning in caught)
    return out, str(caught[0].message) if caught else None


TWINS = "12 x 12 covariance matrix was not positive definite to working precision; jitter 1e-05 was added"

PROBLEMS = {
    "factorisation": (whitened_twins, [FROZEN], 6, TWINS),
    "in a loop": (whitened_twins, [Repeat(FROZEN, 3)], 18, TWINS),
    "conjugate gradients": (
        unsolved,
        [FROZEN],
        6,
        "conjugate gradients stopped after 2 iterations with 3 of 3 systems",
    ),
    "restart": (cold, [InverseUpdate(), FROZEN], 1, "was discarded and computed again"),
}


# -- same on every backend --------------------------------------------------------------------------------------------


def trained(problem, place):
    build, updates, _, _ = PROBLEMS[problem]
    return told(lambda: agp.train(build(place), *data(place), steps=6, updates=updates))


@functools.cache
def expected(problem):
    return trained(problem, NUMPY)


@pytest.mark.sample(5)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_training_counts_the_same(problem, backend):
    result, message = trained(problem, backend)
    assert (result.repairs, message) == (expected(problem)[0].repairs, expected(problem)[1])
    _, _, count, what = PROBLEMS[problem]
    assert list(result.repairs.values()) == [count]
    assert what in next(iter(result.repairs))
    assert message == (f"{count} numerical repairs; the first: " if count > 1 else "") + next(iter(result.repairs))


@pytest.mark.parametrize("gradient", ["closed-form", "autodiff"])
def test_lbfgs_counts_the_same(gradient, backend):
    if gradient not in backend_of(backend.array(0.0)).gradients:
        pytest.skip("no automatic differentiation")
    model = inducing_twins(backend, SGPR)
    frozen = ("Z", "kernel.*")
    result, message = told(lambda: fit_lbfgs(model, *data(backend), max_iterations=3, frozen=frozen, gradient=gradient))
    (what, count), *others = result.repairs.items()
    assert TWINS in what
    assert count == result.evaluations
    assert not others
    assert message.startswith(f"{count} numerical repairs; the first: ")


@pytest.mark.parametrize(
    ("build", "what", "count"),
    [
        (whitened_twins, TWINS, 1),
        (unsolved, "conjugate gradients stopped after 2 iterations", 2),
        (cold, "the inverse factor was inaccurate", 1),
    ],
    ids=["factorisation", "conjugate gradients", "stale factor"],
)
def test_a_prediction_gives_one_warning(build, what, count, backend, in_tiles):
    X, y = data(backend)
    model = build(backend)
    for entrance in (lambda: model.predict(X[:5, :]), lambda: model.log_density(X[:5, :], y[:5, :])):
        message = told(entrance)[1]
        assert what in message
        assert message.startswith("2 numerical repairs; the first") == (count == 2)


@pytest.mark.parametrize("mode", ["closed-form", "autodiff"])
def test_gradients_tell(mode, backend):
    X, y = data(backend)
    if mode not in backend_of(X).gradients:
        pytest.skip("no automatic differentiation")
    for build, what in [(whitened_twins, TWINS), (unsolved, "conjugate gradients")]:
        # at its start the level of the targets has no slope but rounding
        model = with_leaves(build(backend), {"mean_function.value": backend.array([0.3])})
        (_, slope), message = told(functools.partial(agp.value_and_gradient, model, X, y, gradient=mode))
        assert what in message
        same = with_leaves(build(NUMPY), {"mean_function.value": np.asarray([0.3])})
        desired = told(functools.partial(agp.value_and_gradient, same, *data(NUMPY)))[0][1]
        for name, x in slope.items():
            assert_close(backend.numpy(x), desired[name], 1e-6, name)


def almost(smallest):
    """Symmetric, of mean diagonal 1, with one eigenvalue -smallest."""
    Q = np.linalg.qr(np.random.default_rng(0).normal(size=(5, 5)))[0]
    A = Q @ np.diag([-smallest, 1.0, 1.0, 1.0, 2.0 + smallest]) @ Q.T
    return 0.5 * (A + A.T)


@pytest.mark.parametrize("compiled", [False, True])
def test_of_a_batch_those_matrices_are_repaired_that_need_it(compiled, backend):
    A = np.stack([np.eye(5) + 0.1, 3.0 * almost(5e-6), almost(5e-5)])
    B = backend_of(backend.array(A))
    with collect_reports() as reports:
        L = backend.numpy((B.compile(cholesky) if compiled else cholesky)(backend.array(A)))
    for factor, matrix, jitter in zip(L, A, [0.0, 3e-5, 1e-4], strict=True):
        np.testing.assert_allclose(factor @ factor.T, matrix + jitter * np.eye(5), atol=1e-11)
    np.testing.assert_allclose(L[0], backend.numpy(cholesky(backend.array(A[0]))), rtol=1e-14)  # not repaired
    (message, count), *others = Tally(reports).messages.items()
    assert (count, others) == (2, [])
    assert "jitter 0.0001 was added to its diagonal (attempt 2 of 3)" in message


@pytest.fixture
def gradients_on_a_thread(monkeypatch):
    """Let torch differentiate on another thread, as it does for arrays on CUDA devices."""
    torch = pytest.importorskip("torch")
    usual = torch.autograd.grad
    with ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr(torch.autograd, "grad", lambda *args, **how: pool.submit(usual, *args, **how).result())
        yield


def test_gradients_on_another_thread_see_the_context_of_the_value(gradients_on_a_thread, available):
    test_what_is_recomputed_is_not_reported_again(available(TORCH))
    B, x = get_backend("torch"), available(TORCH).array([1.0, 2.0])
    seen = []

    def value(arrays):
        seen.append(bool(B.cond(x[0] > 0.0, lambda: x[0], lambda: x[1], likely=True)))

        def pullback(bar, asked):
            B.cond(x[0] > 0.0, lambda: x[0], lambda: x[1], likely=True)
            return {"x": bar * arrays["x"]}

        return B.xp.sum(arrays["x"] ** 2) / 2.0, pullback

    guesses: list = []
    with speculating(guesses):
        _, slopes = B.value_and_grad(lambda leaves: B.with_pullback(value, leaves), {"x": x})
    assert to_numpy(slopes["x"]).tolist() == [1.0, 2.0]
    assert len(guesses) == 2  # one in the value and one in its pullback


@pytest.mark.parametrize("blind", [False, True])
def test_gradients_after_a_block_of_guesses_read_their_decisions(blind, available):
    place = available(TORCH)
    B, x, guesses = get_backend("torch"), place.array([1.0, 2.0]).requires_grad_(), []

    def value(arrays):
        def pullback(bar, asked):
            likely = None if blind else True
            return {"x": B.cond(arrays["x"][0] > 9.0, lambda: 111.0 + 0.0 * bar, lambda: bar, likely=likely) + 0.0 * x}

        return B.xp.sum(arrays["x"]), pullback

    with speculating(guesses, blind=blind):
        found = B.with_pullback(value, {"x": x})
    found.backward()
    assert to_numpy(x.grad).tolist() == [1.0, 1.0]
    assert not guesses


def test_what_is_recomputed_is_not_reported_again(backend):
    x = backend.array(np.arange(12.0))
    B = backend_of(x)

    def block(scale, block):
        (rows,) = block
        report("met {0:.0f}", rows[0], count=rows[0] > 1.0)
        return B.xp.sum(scale * rows), lambda bar: bar * B.xp.sum(rows)

    def value(scale, x):
        total, pullback = B.fold(block, scale, (x,), 5, add=tree.add)  # two alike, and the rest
        return total, pullback(1.0)

    for f in (value, B.compile(value)):
        with collect_reports() as reports:
            total, slope = f(x[1], x)
        assert (float(total), float(slope)) == (66.0, 66.0)
        assert Tally(reports).messages == {"met 5": 2}
    if "autodiff" in B.gradients:
        for f in (B.value_and_grad, B.compile(lambda *a: B.value_and_grad(*a)) if backend.name == "torch" else None):
            if f is not None:
                with collect_reports() as reports:
                    f(lambda leaves: value(leaves["scale"], x)[0], {"scale": x[1]})
                assert Tally(reports).messages == {"met 5": 2}


# -- failures ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Shrink:
    """An update that makes the jitter irrelevant: the kernel's variance becomes negative at a step."""

    at: int

    def init(self, model):
        Z = inducing_inputs(model)
        return {"count": backend_of(Z).xp.zeros_like(Z[0, 0])}

    def __call__(self, model, batch, state):
        variance = process(model).kernel.variance
        xp = backend_of(variance).xp
        new = with_leaves(model, {"kernel.variance": xp.where(state["count"] == self.at, -variance, variance)})
        return new, {"count": state["count"] + 1.0}, {}


def test_a_factorisation_that_fails_says_the_same(backend):
    X, y = data(backend)
    model = SVGP.from_data(X, y, posterior=Whitened, num_inducing=4)
    with pytest.raises(NonFiniteError) as caught:
        agp.train(model, X, y, steps=20, updates=[Shrink(7), FROZEN])
    sentence, details = str(caught.value).split("\n", 1)
    assert re.match(r"a factorisation failed in step 8; try .*\.$", sentence)
    assert re.search(
        r"a 4 x 4 covariance matrix is not positive definite\. The kernel returned a negative variance \(-0\.\d+\)",
        details,
    )
    tree.leaves(caught.value.result.model)


# -- where nobody can be told -----------------------------------------------------------------------------------------


def posterior_mean(model, X):
    process = model._posterior_process().recompute_factors()
    return process.project(process.factorise()[0], X)[0][0]


def test_a_users_own_compiled_function_can_return_what_was_repaired(in_tiles):
    jax = pytest.importorskip("jax", reason="jax is not installed: not executed")
    X, _ = data(JAX)
    for build, what in [(whitened_twins, TWINS), (cold, "was inaccurate"), (unsolved, "stopped after 2")]:
        model = build(JAX)

        @jax.jit
        def predict(model, X):
            with collect_reports() as reports:
                return posterior_mean(model, X), reports

        expected_mean = told(lambda model=model: model.predict(X).mean)[0]
        (found, reports), silent = told(lambda f=predict, model=model: f(model, X))
        assert silent is None
        np.testing.assert_allclose(found, expected_mean, atol=1e-12)
        assert what in str(Tally(reports))
        # without a collector there is nothing to read, and no leak
        found = jax.jit(posterior_mean)(model, X)
        np.testing.assert_allclose(found, expected_mean, atol=1e-12)


def test_a_users_own_transformation_in_an_update_leaks_nothing():
    jax = pytest.importorskip("jax", reason="jax is not installed: not executed")

    @dataclasses.dataclass(frozen=True)
    class Own:
        def init(self, model):
            return {}

        def __call__(self, model, batch, state):
            def bound(Z):
                return with_leaves(model, {"Z": Z}).bound(batch.X, batch.y)[0]

            def again(total, _):
                return total + bound(inducing_inputs(model)), None

            looped = jax.lax.scan(again, 0.0, None, length=2)[0]
            return model, state, {"slope": jax.numpy.sum(jax.grad(bound)(inducing_inputs(model))), "looped": looped}

    model = whitened_twins(JAX)
    result, _ = told(lambda: agp.train(model, *data(JAX), steps=3, updates=[Own(), FROZEN]))
    assert min(result.repairs.values()) >= 3
    assert np.isfinite(result.trace["looped"]).all()


# -- counts that last -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [NUMPY, JAX], ids=["numpy", "jax"])
def test_counts_go_on_after_a_resumption(place: Place, tmp_path):
    pytest.importorskip(place.name, reason="not installed: not executed")
    model, (X, y), path = whitened_twins(place), data(place), tmp_path / "run.npz"
    told(lambda: agp.train(model, X, y, steps=4, updates=[FROZEN], checkpoint=path))
    result, message = told(lambda: agp.train(model, X, y, steps=6, updates=[FROZEN], checkpoint=path))
    assert list(result.repairs.values()) == [6]
    assert message.startswith("6 numerical repairs; the first: a 12 x 12")


def test_several_kinds_are_one_warning():
    X, y = data(NUMPY)

    def both():
        whitened_twins(NUMPY).bound(X, y)
        unsolved(NUMPY).bound(X, y)
        return unsolved(NUMPY).bound(X, y)

    message = told(public(both))[1]
    assert message.startswith("3 numerical repairs; the first: a 12 x 12 covariance matrix")
    assert "2 of another kind: conjugate gradients stopped" in message


def test_repairs_inside_callbacks_count():
    X, y = data(NUMPY)
    model = whitened_twins(NUMPY)
    quiet = SVGP.from_data(X, y, num_inducing=4)
    look = lambda progress: bool(model.predict(X)) and False  # noqa: E731
    result, message = told(lambda: agp.train(quiet, X, y, steps=3, callbacks=[look]))
    assert result.repairs.total() == 3
    assert "3 numerical repairs" in message


def test_a_tally_survives_as_plain_lists():
    with collect_reports() as reports:
        cholesky(almost(5e-6))
        cholesky(almost(5e-5))
        cholesky(np.eye(2))
    tally = Tally(reports)
    assert (tally.total, bool(tally.failures)) == (2, False)
    again = Tally.from_rows(tally.rows())
    assert again.messages == tally.messages
    again.merge(tally)
    assert again.total == 4


def test_a_failure_that_was_recorded_is_raised_at_the_entrance():
    with collect_reports() as reports:
        report("no factor for {0:.2f}", np.asarray(0.5), fatal=True)
    with pytest.raises(NotPositiveDefiniteError, match=r"no factor for 0\.50"):
        Tally(reports).tell()


def test_the_sites_of_each_datum_are_repaired_by_themselves():
    X, y = data(TORCH)
    model = TSVGP.from_data(X, y, num_inducing=4)
    assert told(lambda: model.bound(X, y))[1] is None
