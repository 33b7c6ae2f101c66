"""Site steps on every backend, their safeguards, training, and what is refused."""

import dataclasses
from functools import partial

import numpy as np
import pytest
from dual_cases import LIKELIHOODS, STORAGES, TIED, blank, case, data, inducing, known, moved, stepped
from helpers import JAX, NUMPY, assert_close, named, process, replaced, svgp

import agp
from agp import tree
from agp.bounds import Batch
from agp.errors import NonFiniteError, RepairWarning
from agp.gradient import value_and_gradient
from agp.likelihoods import Gaussian, Likelihood, Softmax, StudentT
from agp.models import SOLVEGP, SVGP, TSVGP, TVGP
from agp.models._sites import scatter_rows
from agp.posteriors import Dual, DualInverseFree, Marginal, Relaxed, Whitened
from agp.repairs import Tally, collect_reports
from agp.training import recipe, train
from agp.updates import Adam, InverseUpdate, NaturalGradient, Repeat, SiteStep


def assert_same_leaves(place, model, expected, tolerance=1e-8):
    found = named(model)
    for name, x in named(expected).items():
        assert_close(place.numpy(found[name]), x, tolerance, name)


def batch_of(place, storage, X, y, rows):
    """A minibatch, or all data where the model needs them."""
    if storage == "full":
        return Batch(place.array(X), place.array(y))
    chosen = place.array(rows, "int64")
    return Batch(place.array(X[rows]), place.array(y[rows]), len(X) / len(rows), chosen)


# -- the same everywhere ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", STORAGES)
def test_steps_give_the_same_numbers_on_every_backend(storage, backend):
    model, X, y = case(storage, "logit", rows=15)
    rows = np.asarray([12, 3, 7, 0, 9])
    update = SiteStep(lambda count: 0.5 / (1.0 + count))
    host, here = model, backend.move(model)
    states = update.init(host), update.init(here)
    info = {}
    for _ in range(2):
        host, host_state, _ = update(host, batch_of(NUMPY, storage, X, y, rows), states[0])
        here, state, info = update(here, batch_of(backend, storage, X, y, rows), states[1])
        states = host_state, state
    assert_same_leaves(backend, here, host)
    for x in info.values():
        backend.check(x)
    assert backend.numpy(states[1]["count"]) == 2.0


@pytest.mark.sample(22)
@pytest.mark.cover(2, quick=1)
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.filterwarnings("ignore:.*would not have been positive definite:agp.errors.RepairWarning")
def test_every_likelihood_moves_the_sites_towards_the_data(storage, likelihood):
    outputs = 1 if likelihood in ("robust-max", "softmax") else 2
    X, y = data(likelihood, outputs=outputs, rows=20)
    rows = known(likelihood, y)
    start = blank(storage, X, y, likelihood, **rows)
    model = stepped(start, X, y, 0.3, 12, **rows)
    assert float(model.bound(X, y, **rows)[0]) > float(start.bound(X, y, **rows)[0])
    for x in (*model.predict(X), model.log_density(X, y, **rows)):
        assert np.isfinite(x).all()


def test_scattering_replaces_the_rows_alone(backend):
    rng = np.random.default_rng(0)
    old, rows = rng.normal(size=(9, 2)), np.asarray([7, 0, 8, 3])
    new = rng.normal(size=(4, 2))
    expected = old.copy()
    expected[rows] = new
    olds, news = ((backend.array(x), backend.array(-x)) for x in (old, new))
    found = scatter_rows(olds, backend.array(rows, "int64"), news)
    np.testing.assert_array_equal(backend.numpy(found[0]), expected)
    np.testing.assert_array_equal(backend.numpy(found[1]), -expected)


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["inverse-free", "datum", "full"])
def test_training_is_the_same_on_every_backend(storage, backend):
    X, y = data("logit", rows=15)

    def trained(place):
        model = place.move(blank(storage, X, y, "logit"))
        updates = recipe(model, 3, rate=0.05)
        size = None if storage == "full" else 5
        result = train(model, place.array(X), place.array(y), steps=3, updates=updates, batch_size=size)
        return result.model, result.trace

    (model, trace), (expected, expected_trace) = trained(backend), trained(NUMPY)
    assert_same_leaves(backend, model, expected, 1e-7)
    np.testing.assert_allclose(trace["bound"], expected_trace["bound"], rtol=1e-8)


def test_a_guarded_step_compiles():
    jax = pytest.importorskip("jax", reason="jax is not installed: not executed")
    X, y = data("student-t", rows=12)
    model, update = blank("natural", X, y, "student-t"), Repeat(SiteStep(1.0), 3)
    here, batch = JAX.move(model), Batch(JAX.array(X), JAX.array(y))
    compiled = jax.jit(update)(here, batch, update.init(here))
    expected = update(model, Batch(X, y), update.init(model))
    assert_same_leaves(JAX, compiled[0], expected[0])


# -- safeguards -------------------------------------------------------------------------------------------------------


def outliers(scale=0.1):
    """Data of which some lie where a Student-t likelihood is not log-concave."""
    X, y = data("student-t", rows=20)
    y[::4] += 4.0
    return X, y, StudentT(scale, degrees_of_freedom=3.0)


@pytest.mark.slow
@pytest.mark.parametrize("storage", [*TIED, "datum"])
def test_negative_curvature_is_taken_while_q_stays_proper(storage):
    X, y, likelihood = outliers()
    start = _with(likelihood, storage, X, y)
    free, clipped = SiteStep(0.3), SiteStep(0.3, clip=True)
    model, other, halved, cut = start, start, 0.0, 0.0
    batch = start._batch(X, y)
    for _ in range(60):
        model, _, info = free(model, batch, free.init(model))
        other, _, other_info = clipped(other, batch, clipped.init(other))
        halved, cut = halved + float(info["halvings"]), cut + float(other_info["clipped"])
        assert float(other_info["halvings"]) == 0.0
        assert np.isfinite(float(model.bound(X, y)[0]))  # no repair either: warnings are errors
    assert cut > 0.0  # so beta was negative
    found, expected = float(model.bound(X, y)[0]), float(other.bound(X, y)[0])
    assert found >= expected
    assert found != expected


def _with(likelihood, storage, X, y):
    from agp.tree import place_leaves

    return dataclasses.replace(blank(storage, X, y, "gaussian"), likelihood=place_leaves(likelihood, X))


@tree.model
class Convex(Gaussian):
    """A likelihood whose log is convex: beta is negative everywhere."""

    def site_gradients(self, mu, var, y, /, draws=None):
        alpha, beta = super().site_gradients(mu, var, y, draws)
        return alpha, -self.strength * beta

    strength: float = 1.0


@pytest.mark.parametrize("storage", ["natural", "datum"])
def test_a_step_to_no_proper_q_is_halved(storage, backend):
    X, y = data("gaussian")
    model = _with(Convex(0.1, 0.3), storage, X, y)
    model, update = backend.move(model), SiteStep(1.0)
    batch = model._batch(backend.array(X), backend.array(y))
    for _ in range(2):
        with collect_reports():
            model, _, _ = update(model, batch, update.init(model))
        assert np.isfinite(float(model.bound(batch.X, batch.y)[0]))
    with collect_reports() as reports:
        model, _, info = update(model, batch, update.init(model))
    assert np.isfinite(float(model.bound(batch.X, batch.y)[0]))
    assert float(info["halvings"]) + float(info["clipped"]) > 0.0
    assert all("would not have been positive definite" in message for message in Tally(reports).messages)
    assert Tally(reports).total > 0


@pytest.mark.parametrize("storage", [*TIED, "datum", "full", "inverse-free", "orthogonal"])
def test_what_no_halving_helps_is_clipped(storage):
    X, y = data("gaussian")
    model, update = _with(Convex(0.1, 1e6), storage, X, y), SiteStep(1.0)
    with collect_reports() as reports:
        model, _, info = update(model, model._batch(X, y), update.init(model))
    assert float(info["clipped"]) > 0.0
    # where the model cannot hold negative sites, that they are clipped is no repair but the method
    assert (Tally(reports).total > 0) == (storage not in ("full", "inverse-free"))
    assert float(info["halvings"]) == 0.0
    for name, x in named(model, "auxiliary").items():
        if name.endswith("precision"):
            np.testing.assert_array_equal(x, 0.0)
    assert np.isfinite(float(model.bound(X, y)[0]))


def test_numbers_that_are_not_finite_are_not_hidden():
    X, y = data("gaussian")
    model, update = blank("natural", X, y, "gaussian"), SiteStep(1.0)
    broken = y.copy()
    broken[0, 0] = np.nan
    model, _, _ = update(model, Batch(X, broken), update.init(model))
    assert not np.isfinite(process(model).posterior.shift).all()


# -- conversions ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("tied", TIED)
def test_conversions_keep_q(tied, backend):
    host, X, y = case("datum")
    model = backend.move(host)
    here = model.to_tied(tied)
    X, y = backend.array(X), backend.array(y)
    expected = backend.numpy(model.bound(X, y)[0])
    Kuu = backend.array(inducing(host))
    mean, covariance = process(here).posterior.moments(Kuu)
    others = [
        process(here).posterior,
        process(here)
        .posterior.convert_storage("white", Kuu)
        .convert_storage("kernel", Kuu)
        .convert_storage("natural", Kuu),
        Dual.from_moments(mean, covariance, Kuu, tied=tied),
        Dual.from_posterior(process(here).posterior.to_whitened(Kuu), Kuu, tied=tied),
        Dual.from_posterior(process(here).posterior.to_marginal(Kuu), Kuu, tied=tied),
        process(here).posterior.to_whitened(Kuu),
        process(here).posterior.to_marginal(Kuu),
    ]
    assert isinstance(others[-2], Whitened)
    assert isinstance(others[-1], Marginal)
    for posterior in others:
        found = replaced(here, posterior=posterior).bound(X, y)[0]
        assert_close(backend.numpy(found), expected, 1e-9)
    assert_close(backend.numpy(model.to_svgp().bound(X, y)[0]), expected, 1e-9)


# -- prediction -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", STORAGES)
def test_predictions_fit_each_other(storage, backend):
    host, X, y = case(storage)
    model, X, y = backend.move(host), backend.array(X), backend.array(y)
    Xs = X[:5, :] + 0.1
    mean, variance = (backend.numpy(x) for x in model.predict(Xs))
    covariance = backend.numpy(model.predict_covariance(Xs))
    assert_close(backend.numpy(model.predict_mean(Xs)), mean, 1e-12)
    assert_close(np.diagonal(covariance, axis1=1, axis2=2).T, variance, 1e-8)
    chunked = model.predict(Xs, memory=1e-4)
    assert_close(backend.numpy(chunked.variance), variance, 1e-12)
    assert backend.numpy(model.log_density(Xs, y[:5, :])).shape == (5,)
    for x, z in zip(host.predict(backend.numpy(Xs)), (mean, variance), strict=True):
        assert_close(z, x, 1e-9)


@pytest.mark.parametrize("storage", ["natural", "inverse-free", "datum", "full"])
def test_samples_have_the_moments_of_q(storage):
    model, X, _ = case(storage)
    samples = model.sample(X[:3], 4000, seed=1)
    mean, variance = model.predict(X[:3])
    assert samples.shape == (4000, 3, 2)
    np.testing.assert_allclose(samples.mean(axis=0), mean, atol=0.1)
    np.testing.assert_allclose(samples.var(axis=0), variance, rtol=0.15)


# -- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_variational_em_learns(tmp_path):
    X, y = data("logit", rows=60, outputs=1)
    start = blank("datum", X, y, "logit", inducing=10)
    updates = [Repeat(SiteStep(0.8), 4), Repeat(Adam(0.05), 5)]
    result = train(start, X, y, steps=10, updates=updates)
    assert float(result.model.bound(X, y)[0]) > float(stepped(start, X, y, 0.8, 8).bound(X, y)[0]) + 0.5
    path = tmp_path / "run.safetensors"
    train(start, X, y, steps=4, updates=updates, checkpoint=path)
    resumed = train(start, X, y, steps=10, updates=updates, checkpoint=path)
    for name, x in named(result.model).items():
        np.testing.assert_array_equal(named(resumed.model)[name], x, err_msg=name)


@pytest.mark.slow
def test_repeating_is_one_after_another(backend):
    host, X, y = case("natural", "logit")
    model, batch = backend.move(host), Batch(backend.array(X), backend.array(y))
    pair = (SiteStep(0.5), Adam(0.05))
    update = Repeat(pair, 3)
    found, state, info = update(model, batch, update.init(model))
    states = [each.init(host) for each in pair]
    for _ in range(3):
        for i, each in enumerate(pair):
            host, states[i], _ = each(host, Batch(X, y), states[i])
    assert_same_leaves(backend, found, host, 1e-7)
    assert float(state["0"]["count"]) == 3.0
    assert info.keys() == {"halvings", "clipped", "bound"}


@pytest.mark.slow
def test_the_recipe_moves_sites(backend):
    X, y = (backend.array(x) for x in data("bernoulli", rows=20))
    for model in (
        TSVGP.from_data(X, y, likelihood=agp.Bernoulli(), num_inducing=5),
        SVGP.from_data(X, y, posterior=Dual, likelihood=agp.Bernoulli(), num_inducing=5),
        SOLVEGP.from_data(X, y, posterior=Dual, likelihood=agp.Bernoulli(), num_inducing=3, num_orthogonal=2),
    ):
        kinds = [type(update) for update in recipe(model, 10)]
        assert kinds == [SiteStep, Adam]
        trained = train(model, X, y, steps=3, batch_size=10).model
        assert any(np.abs(backend.numpy(x)).max() > 0.0 for x in named(trained, "auxiliary").values())
    free = SVGP.from_data(X, y, posterior=DualInverseFree, likelihood=agp.Bernoulli(), num_inducing=5)
    assert [type(update) for update in recipe(free, 10)] == [SiteStep, Adam, InverseUpdate]
    assert not any(isinstance(u, SiteStep) for u in recipe(SVGP.from_data(X, y, num_inducing=3), 10))


def test_softmax_steps_use_the_noise_of_the_step():
    X, y = data("softmax", outputs=1, rows=20)
    model = TSVGP.from_data(X, y, likelihood=Softmax(3), num_inducing=5)
    runs = [train(model, X, y, steps=3, batch_size=10, seed=s).model.site_shift for s in (0, 0, 1)]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert np.abs(runs[0] - runs[2]).max() > 0.0


def test_priors_count_once():
    X, y = data("gaussian")
    prior = {"kernel.lengthscale": agp.priors.Gamma(2.0, 1.0)}
    model = TSVGP.from_data(X, y, num_inducing=5, priors=prior)
    value, _ = value_and_gradient(model, X, y)
    expected = float(model.bound(X, y)[0]) + float(agp.priors.log_prior(model)[0])
    assert float(value) == pytest.approx(expected, rel=1e-12)
    assert TVGP.from_data(X, y, priors=prior).priors


# -- without factorisations -------------------------------------------------------------------------------------------


def test_factors_that_do_not_fit_are_refused_and_repaired():
    model, X, y = case("inverse-free")
    there = moved(model, 0.5)
    with pytest.raises(NonFiniteError, match=r"the residual of the inverse factors is .*InverseUpdate"):
        there.bound(X, y)
    with pytest.warns(RepairWarning, match="updated for predictions"):
        prediction = there.predict(X)
    update = InverseUpdate(tolerance=1e-9)
    fitted, _, info = update(there, Batch(X, y), update.init(there))
    assert float(info["residual"]) < 1e-9
    assert np.isfinite(float(fitted.bound(X, y)[0]))
    np.testing.assert_allclose(prediction.mean, fitted.predict(X).mean, rtol=1e-6)


def test_inside_a_compiled_function_such_a_bound_is_no_number():
    jax = pytest.importorskip("jax", reason="jax is not installed: not executed")
    model, X, y = case("inverse-free")
    there, X, y = JAX.move(moved(model, 0.5)), JAX.array(X), JAX.array(y)
    assert np.isnan(float(jax.jit(lambda m: m.bound(X, y)[0])(there)))


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.0, -0.5, 1.5, float("nan")])
def test_rates_outside_the_unit_interval_are_refused(rate):
    with pytest.raises(ValueError, match=r"the rate of a site step is .*, but must be in \(0, 1\]"):
        SiteStep(rate)


@tree.model
class Opaque(Gaussian):
    """A likelihood whose pullback returns no derivative with respect to the variance."""

    def expected_log_density(self, mu, var, y, /, draws=None):
        value, pullback = super().expected_log_density(mu, var, y, draws)
        return value, lambda bar: (*pullback(bar)[:2], None)


@pytest.mark.parametrize("storage", ["natural", "datum", "full"])
def test_a_likelihood_without_derivatives_is_refused(storage):
    X, y = data("gaussian")
    model, update = _with(Opaque(0.1), storage, X, y), SiteStep(0.5)
    with pytest.raises(TypeError, match="Opaque returns no derivative .* with respect to the variance.*site_gradients"):
        update(model, model._batch(X, y), update.init(model))
    prior, q = process(model), Whitened.from_prior(np.eye(3), 2)
    other = svgp(prior.kernel, model.likelihood, q, X[:3], None, prior.mean_function)
    natural = NaturalGradient(0.5)
    with pytest.raises(TypeError, match="Opaque returns no derivative"):
        natural(other, other._batch(X, y), natural.init(other))
    assert issubclass(Opaque, Likelihood)


@pytest.mark.parametrize("kind", [TSVGP, TVGP])
def test_sites_of_other_data_are_refused(kind):
    X, y = data("gaussian")
    model = kind.from_data(X, y)
    for other in (X[::-1].copy(), X + 1.0):
        with pytest.raises(ValueError, match=rf"X differs from the inputs with which {kind.__name__} .*from_data"):
            train(model, other, y, steps=1)
    with pytest.raises(ValueError, match="X differs from the inputs"):
        train(model, X[:5], y[:5], steps=1)


def test_a_minibatch_without_positions_is_refused():
    X, y = data("gaussian")
    model, update = blank("datum", X, y, "gaussian"), SiteStep(0.5)
    with pytest.raises(ValueError, match=r"the batch has 5 of the 14 rows, but no row numbers.*rows"):
        update(model, Batch(X[:5], y[:5], 2.8), update.init(model))
    with pytest.raises(ValueError, match=r"the sites' shift has shape \(3, 2\), but must have shape \(14, 2\)"):
        model._with_sites(np.zeros((3, 2)), np.zeros((3, 2)))


def test_models_without_sites_are_refused():
    X, y = data("gaussian")
    for posterior, name in ((Relaxed, "Relaxed"), (Whitened, "Whitened")):
        model = SVGP.from_data(X, y, posterior=posterior, num_inducing=4)
        with pytest.raises(TypeError, match=rf"{name} has no sites that SiteStep can update; use TSVGP or TVGP"):
            SiteStep().init(model)
    with pytest.raises(TypeError, match="GPR has no sites"):
        SiteStep().init(agp.GPR.from_data(X, y))


def test_unknown_storage_and_other_settings_are_refused():
    with pytest.raises(ValueError, match="tied is 'A', but must be one of 'natural', 'kernel', 'white'"):
        Dual.from_prior(np.eye(3), 1, tied="A")
    X, y = data("gaussian")
    start = partial(Dual.from_prior, tied="mean")
    with pytest.raises(ValueError, match="tied is 'mean'"):
        SVGP.from_data(X, y, posterior=start, num_inducing=4)
    with pytest.raises(ValueError, match="times is 0"):
        Repeat(SiteStep(), 0)
    model = blank("natural", X, y, "gaussian")
    twice = Repeat((SiteStep(), SiteStep()), 2)
    with pytest.raises(ValueError, match="two updates log"):
        twice(model, Batch(X, y), twice.init(model))


def test_only_gaussian_noise_has_sites_in_closed_form():
    X, y = data("bernoulli")
    with pytest.raises(TypeError, match="likelihood is Bernoulli, but with_gaussian_sites needs Gaussian; use"):
        blank("datum", X, y).with_gaussian_sites(y)


def test_the_first_sites_are_no_repair_of_their_inverse():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, size=(60, 2))
    y = np.sin(3.0 * X[:, :1])
    model = agp.SVGP.from_data(X, y, num_inducing=12, posterior="dual-inverse-free")
    assert not agp.train(model, X, y, steps=5).repairs
