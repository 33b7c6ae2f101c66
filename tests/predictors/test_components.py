"""The posterior of the terms of a sum, against the dense joint distribution of all terms and the data."""

import dataclasses
import warnings
from functools import cache

import numpy as np
import pytest
from helpers import TORCH, as_arrays, assert_close
from predictor_cases import BATCH, COUNTS, DEEP, NEW, OTHERS, PAIR, X, Y, targets_of
from test_unknown_inputs import FACTORS, GAPS, completed, imputing

import agp
from agp import methods
from agp.inducing import JointInducing, Patches, Points
from agp.kernels import RBF, Constant, Linear, Matern32, Matern52, Seasonal, Warped, White, kernel_text, terms_of
from agp.predictors import Components
from agp.processes import Sparse

pytestmark = pytest.mark.filterwarnings("ignore:components given nearest rows")
NOISE, LEVEL = 0.05, 0.3
RNG = np.random.default_rng(7)
OFFSETS = np.linspace(0.01, 0.2, len(X))


def kernel():
    """A sum of four terms, of which two are those of a multiple of a sum."""
    return RBF(1.0, 1.2).on(0) + 0.5 * (Matern52(0.6, 0.9).on(1) + Linear(0.3)) + RBF(0.7, 0.9) * Matern32(0.8, 2.0)


NAMES = ("rbf.on(0)", "matern52.on(1)", "linear", "rbf * matern32")
FOUR = 4


@cache
def model_of(name):
    """A model with that kernel and a mean function."""
    if name in methods.METHODS:
        parts = {"likelihood": agp.Gaussian(NOISE), "kernel": kernel(), "mean_function": agp.LinearMean()}
        model = methods.build(name, X, Y, num_inducing=8, num_actions=5, seed=0, **parts)
        return agp.train(model, X, Y, steps=3, updates=methods.updates_of(name, model, 3)).model
    if name == "mixture":
        return agp.integrate(agp.GPR.from_data(X, Y, kernel=kernel(), mean_function=agp.ConstantMean())).model
    if name == "ensemble":
        more = RBF(0.5, 0.4).on(0) + Matern52(0.9, 0.5).on(1) + Linear(0.2) + RBF(0.7, 0.9) * Matern32(0.8, 2.0)
        models = (agp.GPR.from_data(X, Y, kernel=one) for one in (kernel(), more))
        return agp.Ensemble(tuple(models), np.asarray([0.3, 0.7]), spread=1.5)
    if name == "cggp-iterative":
        return dataclasses.replace(model_of("cggp"), prediction_tolerance=1e-13)
    kind, options = OTHERS[name]
    y = targets_of(name)
    return agp.train(kind(X, y, kernel=kernel(), **options), X, y, steps=5).model


METHODS = [name for name in methods.METHODS if name not in DEEP]
EVERY = [*METHODS, pytest.param("cggp-iterative", marks=pytest.mark.long), "mixture", "ensemble", *OTHERS]


def predictor_of(name):
    return model_of(name).predictor(**({"memory": 0.01} if name == "cggp-iterative" else {}))


# -- sums ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_components_add_up(name, backend):
    check_sums(name, backend, NEW)


@pytest.mark.parametrize("backend", ["numpy"], indirect=True)
def test_components_of_an_iterative_solution_add_up(backend):
    check_sums("cggp-iterative", backend, NEW[:2])


def check_sums(name, backend, rows):
    predictor = backend.move(predictor_of(name))
    x = backend.array(rows)
    found, whole = predictor.components(x), predictor.predict(x)
    assert found.names[:FOUR] == NAMES
    assert set(found.names[FOUR:]) <= {"mean function"}
    mean, covariance = backend.numpy(found.mean), backend.numpy(found.covariance)
    assert mean.shape == (len(rows), whole.mean.shape[1], len(found.names))
    assert_close(mean.sum(axis=-1), backend.numpy(whole.mean), 1e-10)
    assert_close(covariance.sum(axis=(-2, -1)), backend.numpy(whole.variance), 1e-10)
    assert_close(covariance, np.swapaxes(covariance, -1, -2), 1e-15)
    assert_close(backend.numpy(found.variance), np.diagonal(covariance, axis1=-2, axis2=-1), 0.0)
    assert np.linalg.eigvalsh(covariance).min() > -1e-12


@pytest.mark.parametrize("name", ["gpr", "vif", "rsvgp", "mixture", "coregionalised", "cagp-opt"])
def test_rows_do_not_depend_on_each_other_or_on_the_budget(name):
    predictor = predictor_of(name)
    whole, single = predictor.components(NEW), predictor.components(NEW[3:4])
    small = predictor.components(NEW, memory=0.01)
    sets = predictor.components(BATCH)
    for at in ("mean", "covariance"):
        assert_close(getattr(whole, at)[3:4], getattr(single, at), 1e-10)
        assert_close(getattr(small, at), getattr(whole, at), 1e-10)
        rows = getattr(predictor.components(BATCH[1, 2]), at)
        assert_close(getattr(sets, at)[1, 2], rows, 1e-10)
    assert sets.mean.shape[:3] == BATCH.shape[:3]


def test_sums_of_float32_add_up():
    predictor = TORCH.move(predictor_of("gpr"), dtype="float32")
    x = TORCH.array(NEW, dtype="float32")
    found, whole = predictor.components(x), predictor.predict(x)
    assert_close(found.mean.sum(dim=-1).numpy(), whole.mean.numpy(), 1e-4)
    assert_close(found.covariance.sum(dim=(-2, -1)).numpy(), whole.variance.numpy(), 1e-3)


# -- dense joint distributions ----------------------------------------------------------------------------------------


def stacked(terms, Z):
    """The covariances [K n, M] of the terms at the test inputs with their sum at Z, and among the terms [K n, K n]."""
    cross = np.concatenate([term(NEW, Z)[0] for term in terms])
    prior = np.zeros((len(terms) * len(NEW),) * 2)
    for i, term in enumerate(terms):
        rows = slice(i * len(NEW), (i + 1) * len(NEW))
        prior[rows, rows] = term(NEW)[0]
    return cross, prior


def by_row(mean, joint):
    """The means [n, P, K] and the covariances [n, K, K] of the terms at the same row."""
    K = len(joint) // len(NEW)
    blocks = joint.reshape(K, len(NEW), K, len(NEW))
    return np.moveaxis(mean.reshape(K, len(NEW), -1), 0, -1), np.stack([blocks[:, n, :, n] for n in range(len(NEW))])


def exact(terms, y, noise, Z=X):
    """The terms given observations y [N, P] of their sum at Z."""
    cross, prior = stacked(terms, Z)
    C = sum(term(Z)[0] for term in terms) + np.diag(np.broadcast_to(noise, len(Z)))
    return by_row(cross @ np.linalg.solve(C, y), prior - cross @ np.linalg.solve(C, cross.T))


def assert_terms(found, mean, covariance, h=None, tolerance=1e-8):
    assert_close(found.mean[..., : mean.shape[-1]], mean, tolerance)
    for p in range(found.mean.shape[1]):
        assert_close(found.covariance[:, p, : mean.shape[-1], : mean.shape[-1]], covariance, tolerance)
    if h is not None:
        assert_close(found.mean[..., -1], h, 1e-12)
        assert np.all(found.covariance[..., -1] == 0.0)


@pytest.mark.parametrize("mean", [agp.ZeroMean(), agp.LinearMean([[0.4, 0.1], [-0.2, 0.3]], [1.0, -2.0])])
def test_exact_terms_are_those_of_the_joint_distribution(mean):
    mean = as_arrays(mean)
    model = agp.GPR.from_data(X, PAIR, kernel=kernel(), likelihood=agp.Gaussian(NOISE), mean_function=mean)
    found = model.predictor().components(NEW)
    expected = exact(terms_of(model.kernel), PAIR - mean(X)[0], NOISE)
    assert_terms(found, *expected, mean(NEW)[0] if len(found.names) > FOUR else None)


@pytest.mark.parametrize(
    "kind", [agp.NNGP, agp.VIF, agp.CGGP], ids=["all rows are neighbours", "and inducing inputs", "conjugate gradients"]
)
def test_terms_of_other_exact_models(kind):
    near = {} if kind is agp.CGGP else {"neighbours": len(X)}
    near |= {"num_inducing": 6} if kind is agp.VIF else {}
    model = kind.from_data(X, Y, kernel=kernel(), likelihood=agp.Gaussian(NOISE), mean_function=agp.ZeroMean(), **near)
    assert_terms(model.predictor().components(NEW), *exact(terms_of(model.kernel), Y, NOISE), tolerance=1e-5)


def test_terms_given_the_nearest_rows():
    model = agp.NNGP.from_data(X, Y, kernel=kernel(), likelihood=agp.Gaussian(NOISE), neighbours=6)
    found, terms = model.predictor().components(NEW), terms_of(model.kernel)
    process = model.predictor().processes[0]
    h = model.mean_function
    for n, near in enumerate(np.asarray(process.search.nearest(NEW, 6))):
        mean, covariance = exact(terms, (Y - h(X)[0])[near], NOISE, X[near])
        assert_close(found.mean[n, :, :FOUR], mean[n], 1e-8)
        assert_close(found.covariance[n, 0, :FOUR, :FOUR], covariance[n], 1e-8)


def test_terms_with_weights_of_rows_and_known_noise():
    weights = np.linspace(0.5, 2.0, len(X))
    model = agp.GPR.from_data(
        X,
        Y,
        kernel=kernel(),
        likelihood=agp.Gaussian(NOISE),
        mean_function=agp.ZeroMean(),
        weights=weights,
        noise=OFFSETS,
    )
    found = model.predictor().components(NEW)
    assert_terms(found, *exact(terms_of(model.kernel), Y, (NOISE + OFFSETS) / weights))


SPARSE_METHODS = ("msvgp", "wsvgp", "lsvgp", "tsvgp", "solve", "odvgp", "sgpr")


@pytest.mark.parametrize("name", SPARSE_METHODS)
def test_terms_given_inducing_variables(name):
    predictor = predictor_of(name)
    process = predictor.processes[0]
    assert isinstance(process, Sparse)
    (m, S), Kuu = process.inducing_moments(), process.inducing_covariance()[0]
    terms = terms_of(process.kernel)
    cross, prior = stacked(terms, np.concatenate([one.Z for one in agp.tree.nodes(process, Points).values()]))
    A = np.linalg.solve(Kuu, cross.T).T
    expected = by_row(A @ m, prior - A @ (Kuu - S[0]) @ A.T)
    assert_terms(predictor.components(NEW), *expected, process.mean_function(NEW)[0], tolerance=1e-7)


def test_terms_given_sites_of_the_rows():
    model = model_of("poisson-tvgp")
    predictor = model.predictor()
    posterior, process = predictor.processes[0].posterior, predictor.processes[0]
    noise = 1.0 / posterior.precision[:, 0]
    expected = exact(terms_of(process.kernel), posterior.shift * noise[:, None], noise)
    assert_terms(predictor.components(NEW), *expected, process.mean_function(NEW)[0])
    assert COUNTS.shape == posterior.shift.shape


def test_terms_given_projections_of_the_rows():
    predictor = predictor_of("cagp-opt")
    process = predictor.processes[0]
    terms = terms_of(process.kernel)
    cross, prior = stacked(terms, process.X)
    W = np.asarray(process.actions.times(cross)[0])
    G = np.linalg.inv(process.covariance)
    mean, covariance = by_row(W @ G @ process.observations, prior - W @ G @ W.T)
    assert_terms(predictor.components(NEW), mean, covariance, process.mean_function(NEW)[0], tolerance=1e-6)


def test_terms_of_a_mixture_follow_the_law_of_total_variance():
    model = model_of("mixture")
    found, w = model.predictor().components(NEW), model.shares
    parts = []
    for s in range(len(w)):
        one = model.setting(s)
        terms = (*terms_of(one.kernel), Constant(model.level))
        y = Y - model.mean_function(X)[0]
        parts.append(exact(terms, y, one.likelihood.noise_variance))
    means, covariances = (np.stack([part[i] for part in parts]) for i in range(2))
    means[..., -1] += model.mean_function(NEW)[0]
    centre = np.tensordot(w, means, axes=1)
    apart = (means - centre)[:, :, 0, :]
    total = np.tensordot(w, covariances + apart[..., None] * apart[..., None, :], axes=1)
    assert found.names == (*NAMES, "mean function")
    assert_close(found.mean, centre, 1e-7)
    assert_close(found.covariance[:, 0], total, 1e-7)
    assert np.all(found.variance[..., -1] > 0.0)  # the constant is uncertain


def test_terms_of_an_average_are_averages():
    model = model_of("ensemble")
    found = model.predictor().components(NEW)
    parts = [one.predictor().components(NEW) for one in model.models]
    assert_close(found.mean, 0.3 * parts[0].mean + 0.7 * parts[1].mean, 1e-12)
    assert_close(found.covariance, 1.5 * (0.3 * parts[0].covariance + 0.7 * parts[1].covariance), 1e-12)


def test_terms_of_mixed_outputs():
    model = model_of("coregionalised")
    process, W = model.process, model.process.weights
    found = model.predictor().components(NEW)
    inner = agp.SVGP(process.process, agp.Gaussian(np.asarray(NOISE))).predictor().components(NEW)
    K = FOUR
    assert_close(found.mean[..., :K], np.einsum("nlk,pl->npk", inner.mean[..., :K], W), 1e-12)
    assert_close(found.covariance[..., :K, :K], np.einsum("nlij,pl->npij", inner.covariance[..., :K, :K], W**2), 1e-12)


def test_terms_with_their_own_inducing_variables():
    images = RNG.normal(size=(30, 12))
    y = RNG.normal(size=(30, 1))
    parts = (Patches((3, 4), (2, 2), RNG.normal(size=(4, 4))), Points(RNG.normal(size=(5, 12))))
    options = {"inducing": JointInducing(parts), "kernel": RBF(1.0, 1.5) + (RBF(0.6, 3.0) + Constant(0.2))}
    with pytest.raises(ValueError, match="3 terms"):
        agp.SVGP.from_data(images, y, **options)
    options["kernel"] = agp.kernels.Sum((RBF(1.0, 1.5), agp.kernels.Sum((RBF(0.6, 3.0), Constant(0.2)))))
    model = agp.train(agp.SVGP.from_data(images, y, **options), images, y, steps=3).model
    predictor = model.predictor()
    found, whole = predictor.components(images), predictor.predict(images)
    assert found.names[:3] == ("rbf", "rbf (2)", "constant")
    assert_close(found.mean.sum(axis=-1), whole.mean, 1e-10)
    assert_close(found.covariance.sum(axis=(-2, -1)), whole.variance, 1e-10)


def test_white_noise_is_a_term_that_no_data_explain():
    model = agp.GPR.from_data(X, Y, kernel=RBF(1.0, 1.0) + White(0.2), mean_function=agp.ZeroMean())
    found, whole = model.predictor().components(NEW), model.predictor().predict(NEW)
    assert_close(found.variance[..., 1], np.full((len(NEW), 1), 0.2), 1e-12)
    assert np.all(found.mean[..., 1] == 0.0)
    assert_close(found.covariance.sum(axis=(-2, -1)), whole.variance, 1e-10)


# -- predictors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpr", "wsvgp", "mixture", "nngp"])
def test_components_of_rows_with_unknown_cells(name, backend):
    plain = predictor_of(name)
    predictor = imputing(backend.move(model_of(name)).predictor(), backend)
    x = backend.array(GAPS)
    found, whole = predictor.components(x), predictor.predict(x)
    covariance = backend.numpy(found.covariance)
    assert_close(backend.numpy(found.mean).sum(axis=-1), backend.numpy(whole.mean), 1e-10)
    assert_close(covariance.sum(axis=(-2, -1)), backend.numpy(whole.variance), 1e-9)
    for i, row in enumerate(GAPS):
        mean, each = plain.components(completed(row)).mean[:, 0], plain.components(completed(row)).covariance[:, 0]
        apart = mean - mean.mean(axis=0)
        factor = np.max(np.where(np.isnan(row), FACTORS, 1.0))
        assert_close(covariance[i, 0], each.mean(axis=0) + factor * apart.T @ apart / len(apart), 1e-8)


@pytest.mark.parametrize("name", ["gpr", "wsvgp", "nngp", "mixture"])
def test_components_given_further_rows(name):
    predictor = predictor_of(name)
    sets = predictor.condition_on(RNG.normal(size=(3, 2, 2)), RNG.normal(size=(3, 2)))
    found, whole = sets.components(NEW), sets.predict(NEW)
    assert found.mean.shape[:2] == (3, len(NEW))
    assert_close(found.mean.sum(axis=-1), whole.mean, 1e-9)
    assert_close(found.covariance.sum(axis=(-2, -1)), whole.variance, 1e-9)


def test_components_are_in_the_unit_of_the_targets():
    """Inputs and targets in other units give the same components, in these units."""
    a, c, d = np.asarray([1e3, 1e-4]), 250.0, -4e4
    models = []
    for x, y in ((X, Y), (X * a, c * Y + d)):
        one = Matern52().on(0) + RBF().on(1)
        model = agp.GPR.from_data(x, y, kernel=one, mean_function=agp.ConstantMean())
        models.append(agp.fit(model, x, y).model)
    found = models[0].predictor().components(NEW)
    other = models[1].predictor().components(NEW * a)
    assert_close(other.mean[..., :2], c * found.mean[..., :2], 1e-3)
    assert_close(other.mean[..., 2], c * found.mean[..., 2] + d, 1e-3)
    assert_close(other.variance, c**2 * found.variance, 1e-3)


@pytest.mark.parametrize("name", ["deep-wsvgp", "deep-rsvgp", "deep-solve"])
def test_deep_models_have_no_components(name):
    from predictor_cases import predictor_of as deep

    with pytest.raises(TypeError, match="no sum of Gaussian processes of the inputs; compare the effects"):
        deep(name).components(NEW)


def test_convolutional_layers_have_no_components():
    from agp.processes import Patchwise

    grid = agp.inducing.PatchGrid((3, 4), (2, 2))
    process = Patchwise(Sparse.from_data(RNG.normal(size=(20, 4)), num_inducing=4), grid)
    model = agp.SVGP(process, agp.Gaussian(np.asarray(0.1)))
    with pytest.raises(TypeError, match="a function of Patchwise is no sum"):
        model.predictor().components(RNG.normal(size=(5, 12)))


@pytest.mark.parametrize(
    ("others", "match"),
    [
        (RBF().on(0) + Linear(), "are sums of 2 to 3 terms"),
        (Linear() + Matern52().on(1) + RBF().on(0), r"have the term 'rbf.on\(0\)' at different places"),
        (RBF().on(0) + Linear() + Matern52().on(1), r"have the term 'matern52.on\(1\)' at different places"),
    ],
)
def test_sums_that_do_not_correspond_are_refused(others, match):
    first = RBF().on(0) + Matern52().on(1) + Linear()
    models = tuple(agp.GPR.from_data(X, Y, kernel=one) for one in (first, others))
    with pytest.raises(TypeError, match=match):
        agp.Ensemble(models, np.asarray([0.5, 0.5])).predictor().components(NEW)


def test_kernels_of_one_term_correspond_if_others_replace_them():
    kernels = RBF().on(0) + Linear(), Matern52().on(0) + Linear()
    model = agp.Ensemble(tuple(agp.GPR.from_data(X, Y, kernel=one) for one in kernels), np.asarray([0.5, 0.5]))
    assert model.predictor().components(NEW).names[:2] == ("rbf.on(0) or matern52.on(0)", "linear")


# -- groups and names ----------------------------------------------------------------------------------------


def test_groups_are_sums(backend):
    found = backend.move(predictor_of("gpr")).components(backend.array(NEW))
    groups = found.sums({"smooth": ["rbf.on(0)", 1], "level": "mean function"})
    assert isinstance(groups, Components)
    assert groups.names == ("smooth", "level", "linear", "rbf * matern32")
    mean, covariance = backend.numpy(found.mean), backend.numpy(found.covariance)
    assert_close(backend.numpy(groups.mean)[..., 0], mean[..., 0] + mean[..., 1], 1e-14)
    assert_close(backend.numpy(groups.mean)[..., 1], mean[..., 4], 1e-14)
    assert_close(backend.numpy(groups.variance)[..., 0], covariance[..., :2, :2].sum(axis=(-2, -1)), 1e-13)
    assert_close(backend.numpy(groups.covariance)[..., 0, 2], covariance[..., :2, 2].sum(axis=-1), 1e-13)
    assert_close(backend.numpy(groups.covariance).sum(axis=(-2, -1)), covariance.sum(axis=(-2, -1)), 1e-12)


@pytest.mark.parametrize(
    ("groups", "match"),
    [
        ({"a": ["linaer"]}, "did you mean 'linear'?"),
        ({"a": [9]}, "component 9 does not exist"),
        ({"a": ["linear"], "b": [2]}, "'linear' is in several sums"),
        ({"a": ["linear", "linear"]}, "'linear' is in several sums"),
    ],
)
def test_wrong_groups_are_refused(groups, match):
    with pytest.raises(ValueError, match=match):
        predictor_of("gpr").components(NEW).sums(groups)


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (RBF(), ["rbf"]),
        (RBF() + (Linear() + White()), ["rbf", "linear", "white"]),
        (2.0 * (RBF() + Linear()).on((1, 0)), ["rbf.on(width, height)", "linear.on(width, height)"]),
        ((RBF().on(0) + Linear()).on((1, 0)), ["rbf.on(width)", "linear.on(width, height)"]),
        (Seasonal(period=np.asarray(365.25)) * RBF(), ["seasonal(365.25) * rbf"]),
        (Seasonal(period=7.0).on(0) * RBF().on(1), ["seasonal(7).on(height) * rbf.on(width)"]),
        (Constant() * (RBF() + Linear()), ["constant * (rbf + linear)"]),
        (Warped(RBF() + Linear()).on(0), ["warped(rbf).on(height)", "warped(linear).on(height)"]),
        (Warped(RBF().on(0) + Linear()), ["warped(rbf.on(height))", "warped(linear)"]),
        (Matern32().on_sphere((0, 1)), ["onsphere(matern32)"]),
    ],
)
def test_terms_and_their_texts(one, expected):
    assert [kernel_text(term, ("height", "width")) for term in terms_of(one)] == expected


def test_texts_of_kernels_are_kernels():
    one = RBF().on(0) + Seasonal(period=7.0).on(1) * RBF().on(1)
    named = agp.kernels.parse_kernel(kernel_text(one, ("height", "width")))
    assert kernel_text(named) == "rbf.on(height) + seasonal(7).on(width) * rbf.on(width)"


def test_terms_sum_to_the_kernel():
    x = RNG.normal(size=(6, 2))
    for one in (kernel(), Warped(RBF() + Linear()) + White(), 2.0 * (RBF() + (Constant() + 3.0 * (Linear() + RBF())))):
        one = one.from_data(x, 1.3)
        assert_close(sum(term(x)[0] for term in terms_of(one)), one(x)[0], 1e-14)


def test_components_given_few_nearest_rows_are_reported():
    """Near rows cannot tell the terms apart; inducing inputs, or most of the rows, can."""
    parts = {"kernel": kernel(), "likelihood": agp.Gaussian(NOISE)}
    with pytest.warns(UserWarning, match="given nearest rows: 6 of"):
        agp.NNGP.from_data(X, Y, neighbours=6, **parts).predictor().components(NEW)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agp.NNGP.from_data(X, Y, neighbours=6, kernel=RBF()).predictor().components(NEW)
        agp.NNGP.from_data(X, Y, neighbours=len(X), **parts).predictor().components(NEW)
        agp.VIF.from_data(X, Y, neighbours=6, num_inducing=6, **parts).predictor().components(NEW)
