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


def applied(update, model, y, scale=1.0, **known):
    batch = model._batch(X, y, **{name: known.get(name) for name in ("weights", "offset", "noise")})
    return update(model, batch._replace(scale=scale), update.init(model))


def height(model, y, **known):
    return float(model.bound(X, y, **known)[0])


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
        agp.SVGP.from_data(X, y, outputs="coregionalised", posterior="likelihood-form", num_inducing=8),
        agp.SVGP.from_data(X, y, outputs="separate", posterior="likelihood-form", num_inducing=8),
        agp.GPR.from_data(X, y),
        tree.replace(begun("gaussian")[0], {"process.posterior": plain}),
    ):
        assert not OptimalPseudoObservations.applies(model)
        with pytest.raises(TypeError, match="no pseudo-observations to optimise; use SVGP with the posterior Relaxed"):
            EXACT.init(model)
    for settings in ({"tolerance": -1.0}, {"max_steps": 0}):
        with pytest.raises(ValueError, match="tolerance|max_steps"):
            OptimalPseudoObservations(**settings)


# -- in agp.fit -------------------------------------------------------------------------------------------------------


def curve(rows, deviation, columns=1):
    rng = np.random.default_rng(0)
    x = rng.uniform(-3.0, 3.0, (rows, columns))
    return x, np.sin(2.0 * x).sum(axis=1, keepdims=True) + deviation * rng.standard_normal((rows, 1))


@pytest.mark.parametrize("posterior", ["relaxed", "likelihood-form"])
@pytest.mark.parametrize(("rows", "deviation", "columns", "count"), [(500, 0.2, 1, 30), (500, 0.01, 1, 30)])
def test_fits_have_the_deviations_of_sgpr(posterior, rows, deviation, columns, count):
    x, y = curve(rows, deviation, columns)
    result = agp.fit(agp.SVGP.from_data(x, y, posterior=posterior, num_inducing=count), x, y)
    model = result.model
    assert result.converged
    parts = {"kernel": model.kernel, "likelihood": model.likelihood, "mean_function": model.mean_function}
    best = agp.SGPR.from_data(x, y, inducing=model.process.inducing, **parts)
    new = np.linspace(-3.0, 3.0, 50)[:, None]
    ratio = np.sqrt(model.predict(new).variance / best.predict(new).variance)
    assert 0.75 < ratio.min() < ratio.max() < 1.35
    assert abs(np.median(ratio) - 1.0) < 0.06


@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
def test_fits_do_not_move_a_frozen_posterior():
    model, y = begun("gaussian")
    for frozen in ("posterior.*", "posterior.site", "site"):
        found = agp.fit(model, X, y, frozen=frozen, max_steps=205).model
        np.testing.assert_array_equal(found.process.posterior.site, model.process.posterior.site)
