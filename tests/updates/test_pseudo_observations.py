"""Optimal pseudo-observations of L-SVGP and R-SVGP at fixed hyperparameters."""

import dataclasses

import numpy as np
import pytest

import agp
from agp import tree
from agp.backend import backend_of
from agp.training import initial_state
from agp.updates import OptimalPseudoObservations

RNG = np.random.default_rng(3)
X = RNG.uniform(-3.0, 3.0, (80, 2))
F = np.sin(X[:, :1]) + 0.5 * X[:, 1:]
NOISE = RNG.standard_normal((80, 1))
NEW = RNG.uniform(-3.0, 3.0, (20, 2))
TARGETS = {
    "gaussian": (agp.Gaussian(0.04), F + 0.2 * NOISE),
    "two outputs": (agp.Gaussian(0.04), np.concatenate([F + 0.2 * NOISE, F**2], axis=1)),
    "poisson": (agp.Poisson(), RNG.poisson(np.exp(F)).astype(float)),
    "bernoulli": (agp.Bernoulli(), (F + NOISE > 0.0).astype(float)),
    "student-t": (agp.StudentT(), F + 0.1 * RNG.standard_t(3, (80, 1))),
}
KNOWN = {
    "nothing": {},
    "weights": {"weights": RNG.uniform(0.5, 2.0, 80)},
    "offset": {"offset": RNG.normal(size=(80, 1))},
    "noise": {"noise": RNG.uniform(0.0, 0.1, (80, 1))},
}
EXACT = OptimalPseudoObservations(tolerance=1e-13, max_steps=3000)


def begun(name, posterior="likelihood-form", **settings):
    likelihood, y = TARGETS[name]
    options = {"kernel": agp.RBF(lengthscale=1.0, variance=1.0), "num_inducing": 8}
    return initial_state(agp.SVGP.from_data(X, y, likelihood=likelihood, posterior=posterior, **options, **settings)), y


def applied(update, model, y, x=X, scale=1.0, **known):
    batch = model._batch(x, y, **{name: known.get(name) for name in ("weights", "offset", "noise")})
    return update(model, batch._replace(scale=scale), update.init(model))


def height(model, y, x=X, **known):
    return float(model.bound(x, y, **known)[0])


CASES = [(name, "nothing") for name in TARGETS] + [("gaussian", x) for x in KNOWN] + [("poisson", "offset")]


@pytest.mark.parametrize(("name", "known"), CASES)
def test_the_bound_is_stationary(name, known):
    model, y = begun(name)
    found = applied(EXACT, model, y, **KNOWN[known])[0]
    assert height(found, y, **KNOWN[known]) > height(model, y, **KNOWN[known])
    q = found.bound(X, y, **KNOWN[known])[1](1.0)[0].process.posterior
    of = found.process.posterior
    assert np.abs(of.site * q.site).max() < 1e-4  # derivatives with respect to logarithms
    assert np.abs(of.site[:, None] ** 0.5 * q.mean).max() < 1e-4


@pytest.mark.parametrize("name", TARGETS)
def test_l_bfgs_finds_nothing_better(name):
    model, y = begun(name)
    found = applied(EXACT, model, y)[0]
    kept = [x for x in tree.leaves(model, "parameter") if "posterior" not in x]
    searched = agp.fit_lbfgs(found, X, y, frozen=kept, max_iterations=300, tolerance=1e-10)
    assert height(searched.model, y) - height(found, y) < 1e-6


def test_hundred_steps_are_enough_by_default():
    for name in TARGETS:
        model, y = begun(name)
        found, _, info = applied(OptimalPseudoObservations(), model, y)
        assert float(info["matching_steps"]) < 100
        assert height(applied(EXACT, model, y)[0], y) - height(found, y) < 0.01


@pytest.mark.parametrize("name", ["gaussian", "two outputs", "poisson"])
def test_both_forms_have_the_same_optimum(name):
    found = []
    for posterior in ("likelihood-form", "relaxed"):
        model, y = begun(name, posterior)
        found.append(applied(EXACT, model, y)[0])
    for at in ("mean", "variance"):
        one, other = (getattr(model.predict(NEW), at) for model in found)
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("posterior", ["likelihood-form", "relaxed"])
def test_no_step_lowers_the_bound(posterior):
    for name in TARGETS:
        model, y = begun(name, posterior)
        bounds = [height(applied(OptimalPseudoObservations(1e-12, steps), model, y)[0], y) for steps in range(1, 12)]
        assert (np.diff(bounds) > -1e-7 * abs(bounds[-1])).all()


@pytest.mark.parametrize("posterior", ["likelihood-form", "relaxed"])
@pytest.mark.parametrize("name", ["gaussian", "poisson"])
def test_all_backends_agree(name, posterior, backend):
    model, y = begun(name, posterior)
    update = OptimalPseudoObservations(1e-12, 5)
    expected = applied(update, model, y)[0]
    moved = backend.move(model)
    batch = moved._batch(backend.array(X), backend.array(y))
    found, _, info = backend_of(batch.X).compile(update)(moved, batch, {})
    assert float(info["matching_steps"]) == 5.0
    for leaf in ("process.posterior.mean", "process.posterior.site"):
        one, other = backend.numpy(tree.leaves(found)[leaf]), tree.leaves(expected)[leaf]
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-9)


def test_units_do_not_matter():
    model, y = begun("gaussian")
    scaled = tree.with_leaves(
        model,
        {
            "process.kernel.variance": 1e6 * model.kernel.variance,
            "likelihood.noise_variance": 1e6 * model.likelihood.noise_variance,
            "process.posterior.site": 1e6 * model.process.posterior.site,
            "process.mean_function.value": 1e3 * model.mean_function.value,
        },
    )
    one, other = applied(EXACT, model, y)[0].predict(NEW), applied(EXACT, scaled, 1e3 * y)[0].predict(NEW)
    np.testing.assert_allclose(1e3 * one.mean, other.mean, rtol=1e-6, atol=1e-4)
    np.testing.assert_allclose(1e6 * one.variance, other.variance, rtol=1e-6)


def test_minibatches_are_scaled():
    model, y = begun("gaussian")
    weights = np.full(80, 3.0)
    one, other = applied(EXACT, model, y, scale=3.0)[0], applied(EXACT, model, y, weights=weights)[0]
    np.testing.assert_allclose(one.process.posterior.site, other.process.posterior.site, rtol=1e-10)


def test_other_posteriors_are_refused():
    _, y = TARGETS["two outputs"]
    plain = dataclasses.replace(begun("gaussian")[0].process.posterior, preconditioned=False)
    for model in (
        agp.SVGP.from_data(X, y, posterior="whitened", num_inducing=8),
        agp.SVGP.from_data(X, y, posterior="full-site-likelihood-form", num_inducing=8),
        agp.GPR.from_data(X, y),
        tree.replace(begun("gaussian")[0], {"process.posterior": plain}),
    ):
        assert not OptimalPseudoObservations.applies(model)
        with pytest.raises(TypeError, match="no pseudo-observations to optimise; use SVGP with the posterior Relaxed"):
            EXACT.init(model)
    for settings in ({"tolerance": -1.0}, {"max_steps": 0}, {"memory": 0.0}):
        with pytest.raises(ValueError, match="tolerance|max_steps|memory"):
            OptimalPseudoObservations(**settings)


# -- several processes -----------------------------------------------------------------------------------------------

MIXED = ["shared", "separate", "coregionalised"]


def begun_outputs(outputs, posterior="likelihood-form", likelihood=None):
    y = np.concatenate([F + 0.2 * NOISE, -5.0 * F**2 + NOISE], axis=1)
    options = {"likelihood": likelihood or agp.Gaussian(0.04), "num_inducing": 8, "outputs": outputs}
    return initial_state(agp.SVGP.from_data(X, y, posterior=posterior, **options)), y


@pytest.mark.parametrize("outputs", MIXED)
@pytest.mark.parametrize("likelihood", [agp.Gaussian(0.04), agp.StudentT()], ids=["gaussian", "student-t"])
def test_the_bound_of_several_outputs_is_stationary(outputs, likelihood):
    model, y = begun_outputs(outputs, likelihood=likelihood)
    found = applied(EXACT, model, y)[0]
    assert height(found, y) > height(model, y)
    slopes = found.bound(X, y)[1](1.0)[0]
    for path, part in tree.nodes(found, agp.processes.Sparse).items():
        of, q = part.posterior, tree.nodes(slopes, agp.processes.Sparse)[path].posterior
        assert np.abs(of.site * q.site).max() < 1e-4
        assert np.abs(of.site[:, None] ** 0.5 * q.mean).max() < 1e-4


@pytest.mark.parametrize("outputs", MIXED)
def test_means_of_several_outputs_are_those_of_sgpr(outputs):
    model, y = begun_outputs(outputs)
    found = applied(EXACT, model, y)[0]
    whitened = agp.SVGP.from_data(
        X, y, likelihood=model.likelihood, posterior="whitened", num_inducing=8, outputs=outputs
    )
    shared = {name: x for name, x in tree.leaves(found).items() if "posterior" not in name}
    whitened = tree.with_leaves(whitened, shared)
    best = agp.updates.OptimalPosterior()(whitened, whitened._batch(X, y), {})[0]
    np.testing.assert_allclose(found.predict(NEW).mean, best.predict(NEW).mean, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("outputs", ["shared", "separate", pytest.param("coregionalised", marks=pytest.mark.long)])
def test_all_backends_agree_on_several_outputs(outputs, backend):
    model, y = begun_outputs(outputs, "relaxed")
    expected = tree.leaves(applied(EXACT, model, y)[0])
    moved = backend.move(model)
    batch = moved._batch(backend.array(X), backend.array(y))
    found = tree.leaves(backend_of(batch.X).compile(EXACT)(moved, batch, {})[0])
    for name in found:
        if name.endswith(("posterior.mean", "posterior.site")):
            np.testing.assert_allclose(backend.numpy(found[name]), expected[name], rtol=1e-4, atol=1e-5)


# -- many rows --------------------------------------------------------------------------------------------------------


def curve(rows, deviation, columns=1):
    rng = np.random.default_rng(0)
    x = rng.uniform(-3.0, 3.0, (rows, columns))
    return x, np.sin(2.0 * x).sum(axis=1, keepdims=True) + deviation * rng.standard_normal((rows, 1))


def begun_on(x, y, posterior="likelihood-form", **settings):
    options = {"kernel": agp.RBF(lengthscale=0.8, variance=1.0), "num_inducing": 10}
    return initial_state(agp.SVGP.from_data(x, y, posterior=posterior, **(options | settings)))


MANY = curve(5000, 0.2)


@pytest.mark.filterwarnings("ignore::agp.errors.NoSignalWarning")
@pytest.mark.parametrize("rows", [pytest.param(500, marks=pytest.mark.long), 3000])
def test_a_far_start_leads_to_the_optimum(rows):
    # hyperparameters for which q(u) was the prior: the kernel explains little
    x, y = curve(rows, 0.2)
    frozen = agp.fit(agp.SVGP.from_data(x, y, num_inducing=20), x, y, frozen="posterior.*", batch_size=100).model
    found = applied(OptimalPseudoObservations(), frozen, y, x)[0]
    again = applied(OptimalPseudoObservations(), found, y, x)[0]
    assert height(found, y, x) > height(frozen, y, x) + 1.0
    assert height(again, y, x) - height(found, y, x) < 0.1


def test_a_sample_determines_the_variances():
    x, y = MANY
    model = begun_on(x, y, likelihood=agp.Gaussian(0.04))
    found = applied(OptimalPseudoObservations(), model, y, x)[0]
    kept = [name for name in tree.leaves(model, "parameter") if "posterior" not in name]
    best = agp.fit_lbfgs(found, x, y, frozen=kept, max_iterations=300, tolerance=1e-8).model
    assert 0.0 < height(best, y, x) - height(found, y, x) < 0.02 * 10  # nats per inducing variable
    np.testing.assert_allclose(found.predict(X[:, :1]).mean, best.predict(X[:, :1]).mean, atol=2e-3)
    np.testing.assert_allclose(found.predict(X[:, :1]).variance, best.predict(X[:, :1]).variance, rtol=0.1)


@pytest.mark.parametrize("posterior", ["likelihood-form", "relaxed"])
def test_blocks_and_lazy_rows_make_no_difference(posterior):
    x, y = MANY
    model = begun_on(x, y, posterior, likelihood=agp.Gaussian(0.04))
    whole, small = OptimalPseudoObservations(memory=1e3), OptimalPseudoObservations(memory=0.05)
    assert model._block_rows(x, 1e3) is None
    assert model._block_rows(x, 0.05) < 1000
    da = pytest.importorskip("dask.array", reason="the extra for Dask is not installed")
    lazy = [da.from_array(each, chunks=(1700, 1)) for each in (x, y)]
    expected = tree.leaves(applied(whole, model, y, x)[0])
    for found in (applied(small, model, y, x)[0], applied(whole, model, lazy[1], lazy[0])[0]):
        for leaf in ("process.posterior.mean", "process.posterior.site"):
            np.testing.assert_allclose(tree.leaves(found)[leaf], expected[leaf], rtol=1e-7, atol=1e-8)


def test_all_backends_agree_on_a_sample(backend):
    x, y = MANY
    model = begun_on(x, y, "relaxed", likelihood=agp.Gaussian(0.04))
    update = OptimalPseudoObservations(memory=0.5)
    expected = applied(update, model, y, x)[0]
    moved = backend.move(model)
    batch = moved._batch(backend.array(x), backend.array(y))
    found = backend_of(batch.X).compile(update)(moved, batch, {})[0]
    for leaf in ("process.posterior.mean", "process.posterior.site"):
        one, other = backend.numpy(tree.leaves(found)[leaf]), tree.leaves(expected)[leaf]
        np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-8)


# -- in agp.fit -------------------------------------------------------------------------------------------------------


def ratios(model, x, y):
    """Return the standard deviations of f divided by those of SGPR with the same hyperparameters."""
    parts = {"kernel": model.kernel, "likelihood": model.likelihood, "mean_function": model.mean_function}
    best = agp.SGPR.from_data(x, y, inducing=model.process.inducing, **parts)
    new = np.linspace(-3.0, 3.0, 50)[:, None]
    return np.sqrt(model.predict(new).variance / best.predict(new).variance)


@pytest.mark.parametrize("posterior", ["relaxed", "likelihood-form"])
@pytest.mark.parametrize(
    ("rows", "deviation", "settings"),
    [(500, 0.2, {}), (500, 0.01, {}), (600, 0.1, {"batch_size": 100}), (3000, 0.2, {})],
)
def test_fits_have_the_deviations_of_sgpr(posterior, rows, deviation, settings):
    x, y = curve(rows, deviation)
    result = agp.fit(agp.SVGP.from_data(x, y, posterior=posterior, num_inducing=30), x, y, **settings)
    assert result.converged
    ratio = ratios(result.model, x, y)
    assert 0.75 < ratio.min() < ratio.max() < 1.35
    assert abs(np.median(ratio) - 1.0) < 0.06


@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
def test_q_is_at_its_optimum_after_a_limit_on_steps():
    x, y = curve(3000, 0.2)
    model = agp.SVGP.from_data(x, y, num_inducing=20)
    limited = agp.fit(model, x, y, max_steps=100).model
    trained = agp.train(model, x, y, steps=100, batch_size=1024, updates=agp.recipe(model, 100)).model
    gains = [height(applied(EXACT, one, y, x)[0], y, x) - height(one, y, x) for one in (trained, limited)]
    assert gains[0] > 3.0
    assert gains[1] < 0.1


@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
@pytest.mark.parametrize("settings", [{"max_steps": 205}, {"max_steps": 20, "batch_size": 40}])
def test_fits_do_not_move_a_frozen_posterior(settings):
    model, y = begun("gaussian")
    for frozen in ("posterior.*", "posterior.site", "site"):
        found = agp.fit(model, X, y, frozen=frozen, **settings).model
        np.testing.assert_array_equal(found.process.posterior.site, model.process.posterior.site)


@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
@pytest.mark.parametrize(("own", "limit"), [(True, {"max_steps": 20}), (False, {"max_seconds": 1e-9})])
def test_own_updates_and_limits_in_seconds_leave_q_as_trained(own, limit):
    model, y = begun("gaussian")
    plan = agp.recipe(model, 20, rate=0.05)
    found = agp.fit(model, X, y, batch_size=40, updates=plan if own else None, **limit)
    assert found.steps == (20 if own else 1)
    updates = plan if own else agp.recipe(model, 5000, rate=0.05)
    trained = agp.train(model, X, y, steps=found.steps, updates=updates, batch_size=40).model
    np.testing.assert_array_equal(found.model.process.posterior.site, trained.process.posterior.site)


def test_an_interrupt_while_matching_keeps_the_training(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    model, y = begun("gaussian")
    monkeypatch.setattr(OptimalPseudoObservations, "__call__", interrupt)
    with pytest.raises(agp.errors.Interrupted) as caught:
        agp.fit(model, X, y, batch_size=40, max_steps=20)
    assert caught.value.result.steps == 20
    with pytest.raises(agp.errors.Interrupted) as caught:
        agp.fit(model, X, y)
    assert caught.value.result.steps == 0
