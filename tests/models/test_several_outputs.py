"""Several outputs from data: shared, separate, coregionalised; noise for each; any units of each column."""

from functools import partial

import numpy as np
import pytest
from helpers import JAX, NUMPY, STRICT, TORCH, as_arrays, assert_close, named, relative_error

import agp
from agp import tree
from agp.bounds import Batch
from agp.gradient import gradient_of_batch
from agp.starts import correlation_root
from agp.updates import InverseUpdate, SiteStep, VarianceGap

KINDS = {
    "shared": "shared",
    "separate": "separate",
    "coregionalised": agp.Coregionalised(latents=2),
    "as-many": "coregionalised",
    "intrinsic": agp.Coregionalised(latents=2, intrinsic=True),
    "weights": agp.Coregionalised(weights=((1.0, 0.2), (0.3, -0.4), (0.1, 2.0))),
}
POSTERIORS = {
    "whitened": agp.posteriors.Whitened,
    "marginal": agp.posteriors.Marginal,
    "likelihood": agp.posteriors.LikelihoodForm,
    "relaxed": agp.posteriors.Relaxed,
    "inverse-free": agp.posteriors.InverseFree,
    "orthogonal": partial(
        agp.posteriors.Orthogonal.from_prior, sizes=(4, 4), parts=(agp.posteriors.Whitened, agp.posteriors.Whitened)
    ),
    "dual": agp.posteriors.Dual,
    "dual-inverse-free": agp.posteriors.DualInverseFree,
}
NAN = float("nan")


def data(rows=40, outputs=3, seed=0):
    """Related outputs: noisy mixtures of two functions."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (rows, 2))
    g = np.stack([np.sin(2.0 * X[:, 0]), np.cos(X[:, 1])], axis=1)
    W = np.asarray([[1.0, 0.3], [-0.5, 1.0], [0.8, -0.6], [0.1, 0.9]])[:outputs]
    return X, g @ W.T + 0.1 * rng.normal(size=(rows, outputs))


def gappy(y, share=0.2, seed=1):
    y = y.copy()
    y[np.random.default_rng(seed).uniform(size=y.shape) < share] = NAN
    return y


def build(kind="coregionalised", posterior="whitened", X=None, y=None, place=NUMPY, **options):
    given = data() if X is None else (X, y)
    options = {"num_inducing": 8, **options}
    return agp.SVGP.from_data(
        *(place.array(x) for x in given), outputs=KINDS[kind], posterior=POSTERIORS[posterior], **options
    )


def away(model, seed=2):
    """The model with each raw leaf elsewhere."""
    rng = np.random.default_rng(seed)
    raw = tree.unconstrain(model)
    return tree.constrain(model, {name: x + 0.1 * rng.normal(size=np.shape(x)) for name, x in raw.items()})


# -- what is built ----------------------------------------------------------------------------------------------------


def test_what_is_shared():
    X, y = data()
    shared, separate, lmc, intrinsic = (build(k).process for k in ("shared", "separate", "coregionalised", "intrinsic"))
    np.testing.assert_allclose(shared.weights, y.std(axis=0), rtol=1e-12)
    assert (shared.correlated, shared.process.outputs, shared.process.kernel.variance) == (False, 3, 1.0)
    assert [part.outputs for part in separate.parts] == [1, 1, 1]
    np.testing.assert_allclose([float(part.kernel.variance) for part in separate.parts], y.var(axis=0), rtol=1e-12)
    assert lmc.weights.shape == intrinsic.weights.shape == (3, 2)
    assert [part.outputs for part in lmc.process.parts] == [1, 1]
    assert intrinsic.process.outputs == 2
    for process in (shared, lmc, intrinsic):
        np.testing.assert_allclose(process.mean_function.value, y.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(process.weights_unit.reshape(3), y.std(axis=0), rtol=1e-12)


def test_one_output_and_a_given_variance_are_as_ever():
    X, y = data()
    assert type(agp.SVGP.from_data(X, y[:, 0], outputs="shared", num_inducing=5).process) is agp.processes.Sparse
    given = agp.SVGP.from_data(X, y, kernel=agp.RBF(2.0), num_inducing=5)
    assert type(given.process) is agp.processes.Sparse
    np.testing.assert_allclose(given.predict(X).variance, 2.0, rtol=0.02)


def test_a_kernel_for_each():
    X, y = data()
    kernels = [agp.RBF(), agp.Matern32(), agp.Matern52()]
    separate = agp.SVGP.from_data(X, y, outputs="separate", kernel=kernels, num_inducing=5).process
    assert [type(part.kernel) for part in separate.parts] == [type(kernel) for kernel in kernels]
    chosen = agp.Coregionalised(latents=2)
    lmc = agp.SVGP.from_data(X, y, outputs=chosen, kernel=kernels[:2], num_inducing=5).process
    assert [type(part.kernel) for part in lmc.process.parts] == [agp.RBF, agp.Matern32]


def test_as_many_latents_as_outputs_start_at_the_covariance_of_the_targets():
    X, y = data(outputs=2)
    y[:, 1] = 5.0 + 1e3 * y[:, 1]
    W = agp.SVGP.from_data(X, y, outputs="coregionalised", num_inducing=5).process.weights
    np.testing.assert_allclose(W @ W.T, np.cov(y.T, bias=True), rtol=1e-10)
    rng = np.random.default_rng(0)
    alone = correlation_root(rng.normal(size=(4000, 3)), 3)
    np.testing.assert_allclose(alone, np.eye(3), atol=0.03)


def test_fewer_latents_start_at_the_principal_directions():
    y = data(rows=500, outputs=4)[1]
    root = correlation_root(y, 2)
    values, vectors = np.linalg.eigh(np.corrcoef(y.T))
    np.testing.assert_allclose(root @ root.T, (vectors[:, 2:] * values[2:]) @ vectors[:, 2:].T, atol=1e-12)
    assert np.linalg.norm(root @ root.T - np.corrcoef(y.T)) < 0.15
    np.testing.assert_allclose(correlation_root(gappy(y, 0.1), 2), root, atol=0.05)
    same = correlation_root(np.stack([y[:, 0], y[:, 0], 2.0 * y[:, 0]], axis=1), 3)
    assert np.linalg.matrix_rank(same) == 3


def test_separate_outputs_are_models_of_their_own():
    X, y = data()
    y = gappy(y)
    model = agp.SVGP.from_data(X, y, outputs="separate", likelihood=agp.Gaussian(missing=True), num_inducing=8)
    total = model.bound(X, y)[0]
    for p in range(3):
        known = ~np.isnan(y[:, p])
        alone = agp.SVGP.from_data(X[known], y[known, p], num_inducing=8)
        total = total - alone.bound(X[known], y[known, p])[0]
        assert_close(model.process.parts[p].kernel.lengthscale, alone.process.kernel.lengthscale, 1e-13)
    assert abs(total) < 1e-9


def test_coregionalised_outputs_depend_on_each_other():
    X, y = data()
    model = build("coregionalised")
    cross = model.predict_covariance(X[:4], cross_outputs=True)
    W, k = model.process.weights, model.process.process.parts[0].kernel
    np.testing.assert_allclose(cross, np.einsum("pl,ql,nm->npmq", W, W, k(X[:4], X[:4])[0]), rtol=1e-4, atol=1e-4)


# -- noise ------------------------------------------------------------------------------------------------------------


def test_noise_starts_by_output():
    X, y = data()
    np.testing.assert_allclose(build().likelihood.noise_variance, 0.1 * y.var(axis=0), rtol=1e-12)
    student = agp.SVGP.from_data(X, y, likelihood=agp.StudentT(), num_inducing=5).likelihood
    np.testing.assert_allclose(student.scale, np.sqrt(0.1) * y.std(axis=0), rtol=1e-12)
    given = agp.SVGP.from_data(X, y, likelihood=agp.Gaussian(0.3), num_inducing=5).likelihood
    assert given.noise_variance.ndim == 0
    for exact in (agp.GPR, agp.SGPR):
        assert exact.from_data(X, y).likelihood.noise_variance.ndim == 0


@pytest.mark.parametrize("cls", [agp.Gaussian, agp.StudentT])
def test_noise_by_output_is_that_of_models_of_one_output(cls):
    rng = np.random.default_rng(3)
    mu, var, y = rng.normal(size=(7, 2)), rng.uniform(0.1, 1.0, (7, 2)), rng.normal(size=(7, 2))
    size = np.asarray([0.2, 1.5])
    several, ones = cls(size), [cls(np.asarray(s)) for s in size]
    columns = [(mu[:, p : p + 1], var[:, p : p + 1], y[:, p : p + 1]) for p in range(2)]
    value, pull = several.expected_log_density(mu, var, y)
    parts = [one.expected_log_density(*column) for one, column in zip(ones, columns, strict=True)]
    np.testing.assert_allclose(value, sum(part[0] for part in parts), rtol=1e-13)
    bar = rng.normal(size=7)
    bars, expected = pull(bar), [part[1](bar) for part in parts]
    leaf = next(iter(tree.leaves(several)))
    own = [tree.leaves(part[0])[leaf] for part in expected]
    np.testing.assert_allclose(tree.leaves(bars[0])[leaf], own, rtol=1e-12)
    density = sum(one.predictive_log_density(*c) for one, c in zip(ones, columns, strict=True))
    np.testing.assert_allclose(several.predictive_log_density(mu, var, y), density, rtol=1e-12)
    found = several.predict(mu, var).variance
    np.testing.assert_allclose(found[:, 1:], ones[1].predict(*columns[1][:2]).variance, rtol=1e-13)


def test_known_noise_is_added_to_the_noise_of_each_output():
    X, y = data()
    noise = np.full_like(y, 0.01)
    model = agp.SVGP.from_data(X, y, noise=noise, outputs="intrinsic", num_inducing=6)
    assert model.likelihood.noise_variance.shape == (3,)
    gradient = named(model.bound(X, y, noise=noise)[1]()[0])
    assert gradient["likelihood.noise_variance"].shape == (3,)
    larger = tree.with_leaves(model, {"likelihood.noise_variance": model.likelihood.noise_variance + 0.01})
    assert_close(model.bound(X, y, noise=noise)[0], larger.bound(X, y)[0], 1e-12)


@pytest.mark.long
def test_a_latent_noise_function_for_each_output():
    X, y = data(outputs=2)
    model = agp.SVGP.from_data(X, y, likelihood=agp.LatentNoiseGaussian(), outputs="separate", num_inducing=8)
    assert len(model.process.parts) == 4
    assert agp.train(model, X, y, steps=60).model.bound(X, y)[0] > model.bound(X, y)[0]


@pytest.mark.slow
def test_sites_see_the_noise_of_each_output():
    # one site step with all data is the optimum of q(u): that of models of one output
    X, y = data()
    for kind, others in (("dual", []), ("dual-inverse-free", [InverseUpdate(tolerance=1e-10)])):
        model = build("separate", kind, likelihood=agp.Gaussian((0.1, 0.3, 0.02)))
        model = agp.train(model, X, y, steps=3, updates=[SiteStep(rate=1.0), *others]).model
        for p, noise in enumerate((0.1, 0.3, 0.02)):
            alone = agp.SGPR.from_data(X, y[:, p], likelihood=agp.Gaussian(noise), num_inducing=8)
            np.testing.assert_allclose(model.predict(X).mean[:, p], alone.predict(X).mean[:, 0], rtol=1e-6, atol=1e-6)


def test_the_cost_of_a_variance_by_output():
    X, y = data()
    noise = np.asarray([0.1, 0.3, 0.02])
    for outputs in ("shared", "intrinsic"):
        model = agp.SVGP.from_data(
            X, y, outputs=outputs, likelihood=agp.Gaussian(noise), posterior="relaxed", num_inducing=6
        )
        VarianceGap().check(model)
        W = model.process.mixing
        owner = model.process.process
        batch = Batch(X, y, 1.0)
        L, A = owner.posterior.inverse_factor, owner._matrix_to_invert()
        gap = VarianceGap().gap(model, owner, batch)
        plain = agp.SVGP(owner, agp.Gaussian(np.asarray(0.5)))
        unit = VarianceGap().gap(plain, owner, batch)
        args = (owner.posterior.matrix_to_invert(A), L, L.T @ owner.posterior.matrix_to_invert(A) @ L)
        expected = np.sum(0.5 / noise[:, None] * W**2) / owner.outputs
        np.testing.assert_allclose(float(gap(*args)), expected * float(unit(*args)), rtol=1e-10)


# -- gradients --------------------------------------------------------------------------------------------------------


@pytest.mark.cover(2, quick=1)
@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("posterior", POSTERIORS)
@pytest.mark.parametrize("kind", ["shared", "separate", "coregionalised", "intrinsic"])
def test_closed_forms_are_automatic(kind, posterior, missing, torch_place):
    X, y = data(12)
    y = gappy(y) if missing else y
    model = build(kind, posterior, X, y, likelihood=agp.Gaussian(missing=missing))
    # sites do not move by a gradient, and inverse factors follow only in training
    model = agp.train(model, X, y, steps=3).model if posterior.startswith("dual") else away(model)
    assert_modes_agree(model, X, y, TORCH, follows=posterior in ("inverse-free", "dual-inverse-free"))


@pytest.mark.parametrize("kind", ["shared", "coregionalised"])
def test_closed_forms_are_those_of_jax(kind):
    pytest.importorskip("jax")
    X, y = data(12)
    assert_modes_agree(away(build(kind, "whitened", X, y)), X, y, JAX)


def assert_modes_agree(model, X, y, place, *, follows=False):
    """Both modes, and NumPy; the gradient of some q(u) follows the exact inverse, and is no slope of the forward."""
    value, gradient = agp.value_and_gradient(model, X, y)
    batch = Batch(place.array(X), place.array(y), 1.0)
    moved = place.move(model)
    found, closed = gradient_of_batch(moved, batch, "closed-form")
    assert relative_error(place.numpy(found), value) < 1e-12
    for name, x in closed.items():
        assert relative_error(place.numpy(x), gradient[name]) < 1e-8, name
    if follows:
        return
    again, autodiff = gradient_of_batch(moved, batch, "autodiff")
    assert relative_error(place.numpy(again), value) < 1e-12
    for name, x in autodiff.items():
        assert relative_error(place.numpy(x), gradient[name]) < 1e-8, name


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_everything_under_the_strict_standard(kind):
    X, y = data()
    expected = build(kind)
    model = build(kind, place=STRICT)
    for name, x in tree.leaves(model).items():
        assert_close(STRICT.numpy(x), tree.leaves(expected)[name], 1e-9, name)
    assert_close(STRICT.numpy(model.predict(STRICT.array(X)).mean), expected.predict(X).mean, 1e-9)
    gaps = agp.SVGP.from_data(
        STRICT.array(X),
        STRICT.array(gappy(y)),
        likelihood=agp.Gaussian(missing=True),
        outputs=KINDS[kind],
        num_inducing=5,
    )
    agp.train(gaps, STRICT.array(X), STRICT.array(gappy(y)), steps=2)


# -- units ------------------------------------------------------------------------------------------------------------

SCALES, OFFSETS = np.asarray([1e-6, 1.0, 1e6]), np.asarray([1e-3, -50.0, 1e9])
X_SCALES, X_OFFSETS = np.asarray([1e3, 1e-4]), np.asarray([-1e4, 0.0])


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("posterior", ["whitened", "likelihood", "relaxed", "inverse-free", "marginal", "dual"])
@pytest.mark.parametrize("kind", ["shared", "separate", "coregionalised", "as-many", "intrinsic"])
def test_each_column_may_have_its_own_unit(kind, posterior):
    X, y = data(60)
    test_X, test_y = data(30, seed=9)
    y = gappy(y, 0.1)
    found = []
    for scales, offsets, x_scales, x_offsets in (
        (np.ones(3), np.zeros(3), np.ones(2), np.zeros(2)),
        (SCALES, OFFSETS, X_SCALES, X_OFFSETS),
    ):
        A, b = X * x_scales + x_offsets, y * scales + offsets
        model = build(kind, posterior, A, b, likelihood=agp.Gaussian(missing=True))
        trained = agp.train(model, A, b, steps=20).model
        new = test_X * x_scales + x_offsets, test_y * scales + offsets
        found.append([-np.mean(m.log_density(*new)) - np.sum(np.log(scales)) for m in (model, trained)])
    (start, end), (other_start, other_end) = found
    assert abs(start - other_start) < 1e-6
    assert abs(end - other_end) < 1e-3
    assert abs(end - start) > 1e-5


@pytest.mark.long
def test_noise_of_each_output_is_found_in_any_units():
    rng = np.random.default_rng(5)
    X = rng.uniform(-2.0, 2.0, (300, 1))
    f = np.stack([np.sin(2.0 * X[:, 0]), np.sin(2.0 * X[:, 0])], axis=1)
    y = (f + np.asarray([0.05, 0.4]) * rng.normal(size=f.shape)) * np.asarray([1e3, 1e-3])
    model = agp.SVGP.from_data(X, y, outputs="intrinsic", posterior="whitened", num_inducing=20)
    model = agp.train(model, X, y, steps=400).model
    np.testing.assert_allclose(np.sqrt(model.likelihood.noise_variance) / [1e3, 1e-3], [0.05, 0.4], rtol=0.2)


# -- what it is for ---------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_sparse_output_is_helped_by_a_related_one():
    rng = np.random.default_rng(4)
    X = np.sort(rng.uniform(-3.0, 3.0, (150, 1)), axis=0)
    truth = np.stack([np.sin(2.0 * X[:, 0]), 30.0 + 10.0 * np.sin(2.0 * X[:, 0])], axis=1)
    y = truth + np.asarray([0.1, 1.0]) * rng.normal(size=truth.shape)
    y[rng.permutation(150)[8:], 1] = NAN
    errors = {}
    for outputs in ("separate", "coregionalised"):
        model = agp.SVGP.from_data(
            X, y, outputs=outputs, likelihood=agp.Gaussian(missing=True), posterior="whitened", num_inducing=20
        )
        model = agp.train(model, X, y, steps=400).model
        errors[outputs] = np.sqrt(np.mean((model.predict(X).mean - truth)[:, 1] ** 2))
    assert errors["coregionalised"] < 0.3 * errors["separate"]


@pytest.mark.slow
def test_it_is_saved_and_comes_back(tmp_path):
    X, y = data()
    for kind in KINDS:
        model = build(kind)
        agp.save(model, tmp_path / "model.safetensors")
        again = agp.load(tmp_path / "model.safetensors")
        np.testing.assert_array_equal(again.log_density(X, y), model.log_density(X, y))


@pytest.mark.long
def test_functions_of_mixtures_have_their_mean():
    X, y = data()
    model = build("coregionalised", kernel=agp.RBF())
    samples = model.sample_functions(4000, seed=1)(X[:5])
    mean, variance = model.predict(X[:5])
    assert np.max(np.abs(samples.mean(axis=0) - mean) / np.sqrt(variance / 4000)) < 5.0


# -- refusals ---------------------------------------------------------------------------------------------------------

LMC = agp.Coregionalised
BAD = {
    "misspelt": ({"outputs": "seperate"}, "unknown outputs 'seperate'; did you mean 'separate'?"),
    "too many": ({"outputs": LMC(latents=4)}, "latents is 4, but there are 3 outputs"),
    "none": ({"outputs": LMC(latents=0)}, "latents is 0"),
    "rows of W": ({"outputs": LMC(weights=np.ones((2, 2)))}, r"weights has shape \(2, 2\), .* have shape \(3, L\)"),
    "columns of W": (
        {"outputs": LMC(latents=2, weights=np.ones((3, 1)))},
        r"weights has shape \(3, 1\), but must have shape \(3, 2\)",
    ),
    "kernels": ({"outputs": "separate", "kernel": [agp.RBF()] * 2}, "kernel has 2 entries, but there are 3 outputs"),
    "kernels of latents": (
        {"outputs": LMC(latents=2), "kernel": [agp.RBF()] * 3},
        "kernel has 3 entries, but there are 2 latent functions",
    ),
    "kernels of one": ({"kernel": [agp.RBF()] * 3}, "kernel has 3 entries, but outputs='shared' uses only one"),
    "kernels of the intrinsic": (
        {"outputs": "intrinsic", "kernel": [agp.RBF()] * 3},
        "kernel has 3 entries, but outputs='intrinsic' uses only one kernel",
    ),
    "noise": ({"likelihood": agp.Gaussian((0.1, 0.2))}, "noise_variance has 2 entries, but there are 3 outputs"),
    "mean": (
        {"outputs": "separate", "mean_function": agp.ConstantMean((1.0, 2.0, 3.0))},
        r"mean_function.value has shape \(3,\)",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_what_does_not_fit_is_refused(what):
    options, message = BAD[what]
    X, y = data()
    with pytest.raises(ValueError, match=message) as caught:
        agp.SVGP.from_data(X, y, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("outputs", ["separate", "intrinsic", LMC(latents=1)])
@pytest.mark.parametrize("column", [0, slice(0, 1)])
def test_one_column_has_no_several_outputs(outputs, column):
    X, y = data()
    with pytest.raises(ValueError, match="y has only one output; omit outputs=, or pass y"):
        agp.SVGP.from_data(X, y[:, column], outputs=outputs)


def test_a_kernel_that_is_none_is_refused_in_a_sequence():
    X, y = data()
    with pytest.raises(TypeError, match=r"kernel is .*RBF.*, but must be an instance of agp's Kernel; write RBF\(\)"):
        agp.SVGP.from_data(X, y, outputs="separate", kernel=[agp.RBF, agp.RBF(), agp.RBF()])


@pytest.mark.parametrize(
    "likelihood", [agp.Softmax(3), agp.RobustMax(3), agp.LatentNoiseGaussian()], ids=lambda x: type(x).__name__
)
@pytest.mark.parametrize("outputs", ["coregionalised", "intrinsic"])
def test_likelihoods_that_couple_outputs_refuse_mixtures(likelihood, outputs):
    X = data()[0]
    y = np.floor(np.abs(X[:, :1]))
    with pytest.raises(ValueError, match="needs independent latent functions, but those of LinearMixing are depend"):
        agp.SVGP.from_data(X, y, likelihood=likelihood, outputs=outputs, num_inducing=4)


@pytest.mark.parametrize("cls", [agp.GPR, agp.SGPR, agp.SOLVEGPR, agp.CaGP, agp.CGGP])
def test_exact_models_refuse_noise_by_output(cls):
    X, y = data()
    with pytest.raises(ValueError, match=f"{cls.__name__} uses one noise_variance for all"):
        cls.from_data(X, y, likelihood=agp.Gaussian((0.1, 0.2, 0.3)))
    by_hand = agp.GPR(as_arrays(agp.RBF(1.0, 1.0)), as_arrays(agp.Gaussian((0.1, 0.2, 0.3))), X=X, y=y)
    with pytest.raises(ValueError, match="GPR uses one noise_variance for all outputs"):
        by_hand.predict(X)


def test_noise_must_fit_the_outputs():
    X, y = data()
    model = agp.SVGP(build("intrinsic").process, agp.Gaussian(np.asarray([0.1, 0.2])))
    with pytest.raises(ValueError, match="noise_variance has 2 entries, but there are 3 outputs"):
        model.bound(X, y)
    with pytest.raises(ValueError, match=r"noise_variance has shape \(1, 3\)"):
        agp.SVGP.from_data(X, y, likelihood=agp.Gaussian(np.ones((1, 3))))
