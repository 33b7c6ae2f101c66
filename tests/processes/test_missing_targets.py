"""Targets that are NaN and may be missing: as if their rows were not there, for the output that lacks them."""

import dataclasses
from functools import partial

import numpy as np
import pytest
from helpers import as_arrays, relative_error
from process_cases import POSTERIORS, points, sparse

from agp import (
    CGGP,
    GPR,
    RBF,
    SGPR,
    SVGP,
    TNNGP,
    TSVGP,
    TVGP,
    CaGP,
    ConstantMean,
    Gaussian,
    Matern32,
    fit,
    fit_lbfgs,
    train,
    tree,
    value_and_gradient,
)
from agp.bounds import Batch
from agp.posteriors import Marginal, Relaxed, Whitened
from agp.processes import Deep, LinearMixing, Stack
from agp.updates import Adam, InverseUpdate, NaturalGradient, SiteStep, VarianceGap

SAME = 1e-12
NAN = float("nan")


def data(outputs=2, rows=14, seed=0):
    """Targets of which each output lacks others."""
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(rows, 3)), rng.normal(size=(rows, outputs))
    y[rng.uniform(size=y.shape) < 0.4] = NAN
    y[3] = NAN  # and one row has none
    return X, y


def likelihood(missing=True):
    return as_arrays(Gaussian(0.3, missing=missing))


def process(kind="whitened", outputs=1, seed=1):
    rng = np.random.default_rng(seed)
    return sparse(RBF(0.9, (0.8, 1.1, 1.0)), points(5, 3, rng), kind, outputs, rng)


def named(gradient):
    return {name: np.asarray(x) for name, x in gradient.items()}


def assert_same_bound(found, expected, tolerance=SAME):
    assert relative_error(found[0], expected[0]) < tolerance
    assert set(found[1]) == set(expected[1])
    for name, x in found[1].items():
        assert relative_error(x, expected[1][name]) < tolerance, name


@pytest.mark.parametrize("kind", POSTERIORS)
def test_the_bound_is_that_of_the_rows_that_remain(kind):
    X, y = data(1)
    known = ~np.isnan(y[:, 0])
    model, plain = (SVGP(process(kind), likelihood(missing)) for missing in (True, False))
    assert_same_bound(value_and_gradient(model, X, y), value_and_gradient(plain, X[known], y[known]))
    # a minibatch keeps its scale: N over its rows, those without targets among them
    found, expected = model.bound(X, y, scale=3.0)[0], plain.bound(X[known], y[known], scale=3.0)[0]
    assert relative_error(found, expected) < SAME
    assert relative_error(model.bound(X, y, memory=1e-9)[0], model.bound(X, y)[0]) < SAME


def test_the_inputs_of_rows_without_targets_get_no_gradient():
    X, y = data()
    _, X_bar = SVGP(process(outputs=2), likelihood()).bound(X, y)[1]()
    assert np.all(X_bar[3] == 0.0)
    assert np.all(np.any(X_bar[~np.all(np.isnan(y), axis=1)] != 0.0, axis=1))


@pytest.mark.parametrize("kind", ["whitened", "relaxed"])
def test_two_outputs_are_the_sum_of_two_models(kind):
    X, y = data()
    parts = process(kind, seed=1), process(kind, seed=2)
    together = value_and_gradient(SVGP(Stack(parts), likelihood()), X, y)
    total, noise_bar = 0.0, 0.0
    for i, part in enumerate(parts):
        known = ~np.isnan(y[:, i])
        value, gradient = value_and_gradient(SVGP(part, likelihood(False)), X[known], y[known, i : i + 1])
        total, noise_bar = total + value, noise_bar + gradient["likelihood.noise_variance"]
        for name, x in gradient.items():
            if name.startswith("process."):
                assert relative_error(together[1][name.replace("process.", f"process.parts.{i}.", 1)], x) < SAME
    assert relative_error(together[0], total) < SAME
    assert relative_error(together[1]["likelihood.noise_variance"], noise_bar) < SAME


def test_outputs_of_one_kernel_are_the_sum_of_two_models():
    X, y = data()
    shared = process(outputs=2)
    value, gradient = value_and_gradient(SVGP(shared, likelihood()), X, y)
    q, total, kernel_bar = shared.posterior, 0.0, 0.0
    for i in range(2):
        alone = tree.replace(
            shared,
            {
                "posterior": Whitened(q.mean[:, i : i + 1], q.scale[i : i + 1]),
                "mean_function": ConstantMean(shared.mean_function.value[i : i + 1]),
            },
        )
        known = ~np.isnan(y[:, i])
        one, bars = value_and_gradient(SVGP(alone, likelihood(False)), X[known], y[known, i : i + 1])
        total, kernel_bar = total + one, kernel_bar + bars["process.kernel.lengthscale"]
    assert relative_error(value, total) < SAME
    assert relative_error(gradient["process.kernel.lengthscale"], kernel_bar) < SAME


COMPOSED = {
    "several": lambda: process("whitened", 2),
    "relaxed": lambda: process("relaxed", 2),
    "stack": lambda: Stack((process("whitened"), process("likelihood", seed=2))),
    "mixed": lambda: LinearMixing(process("marginal", 2), np.asarray([[1.0, 0.5], [-0.3, 0.8]])),
    "deep": lambda: Deep((process("whitened", 3), process("whitened", 2, seed=2)), samples=3),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_closed_forms_are_automatic_and_the_same_everywhere(name, backend):
    X, y = data()
    model = SVGP(COMPOSED[name](), likelihood())
    value, gradient = value_and_gradient(model, X, y)
    moved = backend.move(model)
    for mode in ("closed-form", "autodiff") if backend.name in ("torch", "jax") else ("closed-form",):
        found, bars = value_and_gradient(moved, backend.array(X), backend.array(y), gradient=mode)
        assert relative_error(backend.numpy(found), value) < SAME
        for leaf, x in bars.items():
            assert relative_error(backend.numpy(x), gradient[leaf]) < 1e-9, leaf


def test_what_a_missing_target_says_does_not_matter_to_densities():
    X, y = data()
    model = SVGP(process(outputs=2), likelihood())
    density = model.log_density(X, y)
    single = [
        SVGP(process(outputs=2), likelihood()).log_density(X, np.where([p == q for q in range(2)], y, NAN))
        for p in range(2)
    ]
    assert density[3] == 0.0
    np.testing.assert_allclose(density, single[0] + single[1], rtol=1e-12, atol=1e-13)
    np.testing.assert_array_equal(model.predict(X).mean, SVGP(process(outputs=2), likelihood(False)).predict(X).mean)


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("whitened", NaturalGradient(rate=0.7)),
        ("marginal", NaturalGradient(rate=0.7)),
        ("dual-natural", SiteStep(rate=0.7)),
        ("dual-inverse-free", SiteStep(rate=0.7)),
        ("relaxed", Adam(rate=1e-2)),
        ("relaxed", InverseUpdate(tolerance=1e-6)),
    ],
)
def test_steps_are_those_of_the_rows_that_remain(kind, step):
    X, y = data(1)
    known = ~np.isnan(y[:, 0])
    found = []
    for missing, batch in ((True, Batch(X, y, 2.0)), (False, Batch(X[known], y[known], 2.0))):
        model = SVGP(process(kind), likelihood(missing))
        found.append(tree.leaves(step(model, batch, step.init(model))[0]))
    for name, x in found[0].items():
        assert relative_error(x, found[1][name]) < 1e-10, name


@pytest.mark.parametrize("build", [TNNGP.from_data, partial(TVGP.from_data, shared_precision=True)])
def test_outputs_that_share_precisions_have_all_targets(build):
    X, y = data(2)
    words = "with one precision for all outputs does not support missing targets, .* use SVGP, or drop rows"
    with pytest.raises(ValueError, match=words):
        build(X, y, likelihood=Gaussian(0.3, missing=True))
    whole = ~np.isnan(y).any(axis=1)
    model = build(X[whole], y[whole], likelihood=Gaussian(0.3))
    missing = dataclasses.replace(model, likelihood=Gaussian(np.asarray(0.3), missing=True))
    for call in (partial(train, missing, steps=1), partial(fit, missing)):
        with pytest.raises(ValueError, match=words):
            call(X[whole], y[whole])
    one = build(X, y[:, :1], likelihood=Gaussian(0.3, missing=True)).with_gaussian_sites(y[:, :1])
    assert np.all((one.site_precision == 0.0) == np.isnan(y[:, :1]))


@pytest.mark.parametrize("cls", [TSVGP, TVGP])
def test_sites_of_missing_targets_are_none(cls):
    X, y = data(2)
    known = ~np.isnan(y)
    parts = {"kernel": Matern32(1.0, 0.8), "likelihood": Gaussian(0.3, missing=True)}
    given = {"Z": X[:5]} if cls is TSVGP else {}
    model = cls.from_data(X, y, **parts, **given).with_gaussian_sites(y)
    assert np.all((model.site_precision == 0.0) == ~known)
    step = SiteStep(rate=1.0)
    stepped = step(model, Batch(X, y, 1.0, np.arange(len(X))), step.init(model))[0]
    np.testing.assert_allclose(stepped.site_precision, model.site_precision, rtol=1e-10)
    for i in range(2):
        rows = known[:, i]
        alone = {"kernel": model.kernel, "likelihood": dataclasses.replace(model.likelihood, missing=False)}
        fewer = cls.from_data(X[rows], y[rows, i], **alone, **given).with_gaussian_sites(y[rows, i : i + 1])
        np.testing.assert_allclose(model.predict(X).mean[:, i], fewer.predict(X).mean[:, 0], rtol=1e-8, atol=1e-10)


@pytest.mark.long
def test_training_starts_from_what_was_observed_and_goes_on():
    rng = np.random.default_rng(3)
    X = rng.uniform(-2.0, 2.0, (200, 1))
    y = np.concatenate([np.sin(2.0 * X), 3.0 + np.cos(2.0 * X)], axis=1) + 0.05 * rng.normal(size=(200, 2))
    truth = y.copy()
    y[:60, 0], y[150:, 1] = NAN, NAN
    options = {"likelihood": Gaussian(missing=True), "mean_function": ConstantMean(), "num_inducing": 20}
    model = SVGP.from_data(X, y, **options)
    np.testing.assert_allclose(model.process.mean_function.value, np.nanmean(y, axis=0), rtol=1e-13)
    np.testing.assert_allclose(model.likelihood.noise_variance, 0.1 * np.nanvar(y, axis=0), rtol=1e-13)
    model = train(model, X, y, steps=200, batch_size=50).model
    assert model.likelihood.missing
    assert np.sqrt(np.mean((model.predict(X).mean - truth) ** 2)) < 0.15
    start = SVGP.from_data(X, y, posterior=Marginal, **options)
    assert fit_lbfgs(start, X, y, max_iterations=3).model.bound(X, y)[0] > start.bound(X, y)[0]


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_nan_is_refused_by_default():
    X, y = data()
    with pytest.raises(ValueError, match="y has .* NaN or infinite entries"):
        SVGP.from_data(X, y)
    model = SVGP.from_data(X, np.where(np.isnan(y), 0.0, y), num_inducing=4)
    for call in (lambda: train(model, X, y, steps=1), lambda: model.log_density(X, y)):
        with pytest.raises(ValueError, match="y has .* NaN or infinite entries"):
            call()


def test_infinite_targets_are_refused_even_so():
    X, y = data()
    y[5, 1] = np.inf
    with pytest.raises(ValueError, match="y has 1 NaN or infinite entries, the first in row 5"):
        SVGP.from_data(X, y, likelihood=Gaussian(missing=True))


def test_an_output_without_any_target_is_refused():
    X, y = data()
    y[:, 1] = NAN
    with pytest.raises(ValueError, match="all targets in y\\[:, 1\\] are NaN"):
        SVGP.from_data(X, y, likelihood=Gaussian(missing=True))


@pytest.mark.parametrize("cls", [GPR, SGPR, CaGP, CGGP])
def test_models_that_take_rows_as_a_whole_refuse_missing_targets(cls):
    X, y = data()
    with pytest.raises(ValueError, match=f"{cls.__name__} does not support missing targets.*; use SVGP"):
        cls.from_data(X, y, likelihood=Gaussian(missing=True))


def test_exact_models_refuse_them_when_put_together_by_hand():
    X, y = data()
    model = GPR(as_arrays(RBF(1.0, 1.0)), likelihood(), X=X, y=y)
    for call in (lambda: model.predict(X), lambda: model.bound(X, y)):
        with pytest.raises(ValueError, match="GPR does not support missing targets"):
            call()


def test_the_cost_of_a_variance_depends_on_the_datum_then():
    assert likelihood().variance_cost() is None
    assert likelihood(False).variance_cost() is not None
    X, y = data()
    model = SVGP.from_data(X, y, posterior=Relaxed, likelihood=Gaussian(missing=True), num_inducing=4)
    with pytest.raises(TypeError, match="VarianceGap needs a Gaussian likelihood"):
        VarianceGap().check(model)
