"""`InverseUpdate` with products in a lower precision: the bound stays a bound, and trouble is told."""

import warnings

import numpy as np
import pytest
from helpers import inducing_covariance, named, process, replaced, toy_data, with_leaves

import agp
from agp import RBF, SVGP, Gaussian, to_numpy, train
from agp.bounds import Batch
from agp.errors import BackendError, RepairWarning
from agp.posteriors import LikelihoodForm, Relaxed
from agp.updates import Adam, InverseUpdate

LOW = InverseUpdate(precision="float32")


def problem(M=12, **settings):
    X, y = toy_data(40)
    kernel = RBF(1.0, [1.0, 0.7])
    return SVGP.from_data(X, y, kernel=kernel, likelihood=Gaussian(0.1), num_inducing=M, **settings), Batch(X, y, 1.0)


def residual(model):
    Kt = to_numpy(process(model).posterior.inverse_target(inducing_covariance(model)))
    L = to_numpy(process(model).posterior.inverse_factor)
    return np.linalg.norm(L.T @ Kt @ L - np.eye(len(L))) / np.sqrt(len(L))


def apply(model, batch, update=LOW):
    return update(model, batch, update.init(model))


def exact_and_relaxed(model):
    """L-SVGP and R-SVGP at the same q(u) but for the inverse, which R-SVGP approximates."""
    q = process(model).posterior
    plain = Relaxed(q.mean, q.site, q.inverse_factor, preconditioned=False)
    exact = LikelihoodForm(q.mean, q.site, preconditioned=False)
    return replaced(model, posterior=exact), replaced(model, posterior=plain)


def hostile(seed):
    """A model of which anything may be extreme, far from the one that its inverse factor fits."""
    rng = np.random.default_rng(seed)
    model, batch = problem(M=int(rng.integers(4, 30)))
    size = 10.0 ** rng.uniform(-4.0, 4.0)
    M = process(model).posterior.count
    changed = {
        "kernel.variance": size * rng.uniform(0.5, 2.0),
        "kernel.lengthscale": 10.0 ** rng.uniform(-1.0, 2.0, size=2),
        "likelihood.noise_variance": size * 10.0 ** rng.uniform(-3.0, 1.0),
        "posterior.mean": np.sqrt(size) * rng.normal(size=(M, 1)),
        "posterior.site": size * 10.0 ** (rng.uniform(-9.0, 0.0) + rng.uniform(-1.0, 1.0, size=M)),
    }
    moved = with_leaves(model, {name: np.asarray(x) for name, x in changed.items()})
    return moved, Batch(batch.X, np.sqrt(size) * batch.y, 1.0)


@pytest.mark.filterwarnings("ignore::agp.errors.RepairWarning")
@pytest.mark.parametrize("seed", range(60))
def test_the_bound_stays_below_that_of_the_exact_inverse_and_the_evidence(seed):
    model, batch = hostile(seed)
    found, _, info = apply(model, batch)
    exact, relaxed = (float(x.bound(batch.X, batch.y)[0]) for x in exact_and_relaxed(found))
    assert relaxed <= exact + 1e-7 * abs(exact)  # the rounding of both, at condition numbers up to 1e8
    leaves = named(model)
    gpr = agp.GPR(
        kernel=RBF(leaves["kernel.variance"], leaves["kernel.lengthscale"]),
        likelihood=Gaussian(leaves["likelihood.noise_variance"]),
        X=batch.X,
        y=batch.y,
        mean_function=found.process.mean_function,
    )
    evidence = float(gpr.bound(batch.X, batch.y)[0])
    bound = float(found.bound(batch.X, batch.y)[0])
    assert bound <= evidence + 1e-9 * abs(evidence)
    full, _, expected = apply(model, batch, InverseUpdate())
    assert info["residual"] <= max(5e-3, 2.0 * expected["residual"])
    np.testing.assert_allclose(info["residual"], residual(found), rtol=1e-3, atol=1e-9)
    assert relaxed >= float(exact_and_relaxed(full)[1].bound(batch.X, batch.y)[0]) - 1e-3 * abs(exact)


@pytest.mark.long
def test_the_hostile_problems_are_of_both_kinds():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RepairWarning)
        fallbacks = [float(apply(*hostile(seed))[2]["fallbacks"]) for seed in range(40)]
    assert 2 < sum(fallbacks) < 38


@pytest.mark.long
@pytest.mark.parametrize("tolerance", [5e-3, 1e-9])
def test_the_residual_stays_below_the_tolerance_after_every_step(tolerance, backend):
    model, batch = problem()
    model, X, y = backend.move(model), backend.array(batch.X), backend.array(batch.y)
    seen = []
    updates = [Adam(5e-2), InverseUpdate(tolerance, precision="float32")]
    result = train(model, X, y, steps=15, updates=updates, callbacks=[lambda p: seen.append(residual(p.model))])
    assert max(seen) < tolerance * (1 + 1e-6) + 1e-12
    assert sum(result.trace["fallbacks"]) == sum(result.repairs.values()) == 0


@pytest.mark.long
def test_training_gets_where_full_precision_gets(backend):
    model, batch = problem()
    model, X, y = backend.move(model), backend.array(batch.X), backend.array(batch.y)
    bounds = [
        train(model, X, y, steps=15, updates=[Adam(5e-2), InverseUpdate(precision=precision)]).trace["bound"]
        for precision in (None, "float32")
    ]
    np.testing.assert_allclose(bounds[1], bounds[0], rtol=1e-4)
    assert not np.array_equal(bounds[1], bounds[0])


@pytest.mark.slow
@pytest.mark.parametrize("posterior", ["relaxed", "inverse-free", "relaxed-orthogonal"])
def test_every_posterior_that_follows_inverses_takes_it(posterior):
    X, y = toy_data(40)
    settings = {"num_orthogonal": 4} if "orth" in posterior else {}
    model = agp.DeepGP.from_data(X, y, num_inducing=8, layers=1, posterior=posterior, **settings)
    trace = train(model, X, y, steps=8, updates=[Adam(1e-2), LOW]).trace
    assert max(trace["residual"]) < 5e-3
    assert sum(trace["fallbacks"]) == 0


@pytest.mark.slow
def test_a_return_to_full_precision_is_a_repair_that_is_told(backend):
    model, batch = problem()
    n = len(to_numpy(process(model).posterior.site))
    model = with_leaves(model, {"kernel.lengthscale": np.full(2, 30.0), "posterior.site": np.full(n, 1e-9)})
    model, X, y = backend.move(model), backend.array(batch.X), backend.array(batch.y)
    with pytest.warns(RepairWarning, match="in float32 were too coarse to update the inverse factor"):
        result = train(model, X, y, steps=3, updates=[Adam(1e-3), LOW])
    assert result.trace["fallbacks"] == [1.0, 1.0, 1.0]
    assert sum(n for text, n in result.repairs.items() if "float32" in text) == 3
    assert max(result.trace["residual"]) < 5e-3


def test_what_is_logged_says_nothing_of_fallbacks_in_full_precision():
    assert "fallbacks" not in apply(*problem(), InverseUpdate())[2]
    assert "fallbacks" in apply(*problem())[2]


def test_precisions_that_are_not_known_are_refused():
    with pytest.raises(ValueError, match="precision is 'half', but must be None or one of 'float32', 'tf32'"):
        InverseUpdate(precision="half")


@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_precisions_that_the_library_does_not_have_are_refused_before_the_first_step(precision):
    model, batch = problem()
    with pytest.raises(BackendError, match=f"numpy does not support products in {precision}"):
        train(model, batch.X, batch.y, steps=3, updates=[Adam(1e-2), InverseUpdate(precision=precision)])
