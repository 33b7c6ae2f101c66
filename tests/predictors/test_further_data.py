"""Predictors after further data: what a model of all rows says, or Bayes' rule, or dual steps, each done by itself."""

import numpy as np
import pytest
import scipy.special
from helpers import NUMPY, assert_close
from predictor_cases import COUNTS, LABELS, NEW, PAIR, ROWS, X, Y, model_of, new_targets, predictor_of

import agp
from agp import tree
from agp.processes import LinearMixing, Sparse, Stack
from agp.processes._further import _marginals
from agp.updates import NaturalGradient, SiteStep

OLD = 30
MORE = np.random.default_rng(8).uniform(-2.0, 2.0, (6, 2))
KERNEL = agp.RBF(1.1, (1.2, 0.9))
BEST = 1e-9


def of_rows(kind, rows, y=PAIR, mean=None, **options):
    """A model of the first rows, with the same hyperparameters however many they are."""
    parts = {"kernel": KERNEL, "likelihood": agp.Gaussian(0.05), "mean_function": mean or agp.ZeroMean()}
    return kind(X[:rows], y[:rows], **parts, **options)


def assert_same_answers(found, expected, tolerance=BEST):
    for value, desired in zip(found.predict(NEW), expected.predict(NEW), strict=True):
        assert_close(value, desired, tolerance)
    assert_close(found.predict_covariance(NEW), expected.predict_covariance(NEW), tolerance)
    assert_close(found.predict_mean(NEW), expected.predict_mean(NEW), tolerance)


# -- the model of all rows --------------------------------------------------------------------------------------------

SPARSE = {"Z": X[::5], "jitter": 1e-8}
KINDS = {
    "gpr": (agp.GPR.from_data, {}),
    "cggp": (agp.CGGP.from_data, {}),
    "sgpr": (agp.SGPR.from_data, SPARSE),
    "to-svgp": (lambda *args, **options: agp.SGPR.from_data(*args, **options).to_svgp(), SPARSE),
}
MEANS = {
    "zero": (PAIR, None),
    "one": (Y, agp.ConstantMean((0.4,))),
    "constant": (PAIR, agp.ConstantMean((0.4, -0.2))),
    "linear": (PAIR, agp.LinearMean(((0.3, -0.1), (0.2, 0.5)), (0.1, -0.3))),
}


@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("kind", KINDS)
def test_further_data_give_the_model_of_all_rows(kind, mean):
    build, options = KINDS[kind]
    y, mean_function = MEANS[mean]
    old, whole = (of_rows(build, rows, y, mean_function, **options) for rows in (OLD, ROWS))
    predictor = old.predictor()
    before = predictor.predict(NEW)
    assert_same_answers(predictor.condition_on(X[OLD:], y[OLD:]), whole.predictor())
    parts = predictor.condition_on(X[OLD : OLD + 3], y[OLD : OLD + 3]).condition_on(X[OLD + 3 :], y[OLD + 3 :])
    assert_same_answers(parts, whole.predictor())
    for value, same in zip(predictor.predict(NEW), before, strict=True):
        np.testing.assert_array_equal(value, same)


@pytest.mark.parametrize("kind", ["gpr", "sgpr"])
def test_gradients_and_functions_see_further_data(kind):
    build, options = KINDS[kind]
    old, whole = (of_rows(build, rows, **options).predictor() for rows in (OLD, ROWS))
    found = old.condition_on(X[OLD:], PAIR[OLD:])
    for value, expected in zip(found.gradient(NEW), whole.gradient(NEW), strict=True):
        assert_close(value, expected, 1e-8)
    samples = found.sample_functions(4000, seed=1, features=64)(NEW)
    spread = np.sqrt(whole.predict(NEW).variance)
    assert (np.abs(samples.mean(axis=0) - whole.predict_mean(NEW)) < 5.0 * spread / np.sqrt(4000.0)).all()


@pytest.mark.parametrize("kind", ["gpr", "sgpr"])
def test_targets_may_be_a_vector(kind):
    build, options = KINDS[kind]
    predictor = of_rows(build, OLD, Y, **options).predictor()
    assert_same_answers(predictor.condition_on(X[OLD:], Y[OLD:, 0]), predictor.condition_on(X[OLD:], Y[OLD:]), 1e-15)


NOISE = np.random.default_rng(9).uniform(0.01, 0.3, (ROWS - OLD, 1))


@pytest.mark.parametrize("kind", [*KINDS, "tvgp"])
def test_further_data_have_noise_of_their_own(kind):
    build, options = (agp.TVGP.from_data, {}) if kind == "tvgp" else KINDS[kind]
    old = of_rows(build, OLD, Y, **options)
    if kind == "tvgp":
        old = agp.train(old, X[:OLD], Y[:OLD], steps=1, updates=[SiteStep(1.0)]).model
    predictor = old.predictor()
    same = predictor.condition_on(X[OLD:], Y[OLD:], noise=np.zeros_like(NOISE))
    assert_same_answers(same, predictor.condition_on(X[OLD:], Y[OLD:]), 1e-10)
    found = predictor.condition_on(X[OLD:], Y[OLD:, 0], noise=NOISE[:, 0])

    # Bayes' rule with the covariances that the predictor itself gives, but for what inducing inputs leave unexplained
    both = np.concatenate([X[OLD:], NEW])
    mean, whole = predictor.predict_mean(both), predictor.predict_covariance(both)[0]
    C, k = whole - unexplained(both) if "Z" in options else whole, len(NOISE)
    gain = np.linalg.solve(C[:k, :k] + np.diag(0.05 + NOISE[:, 0]), C[:k]).T
    assert_close(found.predict_mean(NEW), (mean + gain @ (Y[OLD:] - mean[:k]))[k:], 1e-7)
    assert_close(found.predict_covariance(NEW)[0], (whole - gain @ C[:k])[k:, k:], 1e-7)


def unexplained(rows):
    """The prior covariance of f at the rows, given the values at the inducing inputs."""
    Z, jitter = SPARSE["Z"], SPARSE["jitter"]
    K, cross = KERNEL(Z)[0] + jitter * np.eye(len(Z)), KERNEL(Z, rows)[0]
    return KERNEL(rows)[0] - cross.T @ np.linalg.solve(K, cross)


KNOWN = {
    "weights": np.random.default_rng(10).uniform(0.5, 3.0, ROWS),
    "offset": np.random.default_rng(11).normal(size=(ROWS, 1)),
    "noise": np.random.default_rng(12).uniform(0.01, 0.3, ROWS),
}


@pytest.mark.parametrize("known", [*KNOWN, "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_known_of_further_rows_gives_the_model_of_all_rows(kind, known):
    build, options = KINDS[kind]
    given = KNOWN if known == "all" else {known: KNOWN[known]}
    old, whole = (
        of_rows(build, rows, **options, **{name: x[:rows] for name, x in given.items()}) for rows in (OLD, ROWS)
    )
    more = {name: x[OLD:] for name, x in given.items()}
    found = old.predictor().condition_on(X[OLD:], PAIR[OLD:], **more)
    assert_same_answers(found, whole.predictor())


@pytest.mark.parametrize("kind", ["gpr", "sgpr"])
def test_all_noise_of_further_rows_may_be_known(kind):
    build, options = KINDS[kind]

    def model(rows):
        parts = {"kernel": KERNEL, "likelihood": agp.Gaussian(0.0), "mean_function": agp.ZeroMean()}
        return build(X[:rows], Y[:rows], noise=KNOWN["noise"][:rows], **parts, **options).predictor()

    assert_same_answers(model(OLD).condition_on(X[OLD:], Y[OLD:], noise=KNOWN["noise"][OLD:]), model(ROWS))
    with pytest.raises(ValueError, match="noise_variance is 0, but rows have no known noise; pass noise="):
        model(OLD).condition_on(X[OLD:], Y[OLD:])


@pytest.mark.parametrize("name", ["poisson-tvgp", "poisson-wsvgp"])
def test_weights_of_further_counts_repeat_them_and_offsets_move_them(name):
    predictor, y, offset = predictor_of(name), COUNTS[:6], np.linspace(-1.0, 1.0, 6)
    twice = predictor.condition_on(np.tile(MORE, (2, 1)), np.tile(y, (2, 1)), offset=np.tile(offset, 2))
    found = predictor.condition_on(MORE, y, weights=np.full(6, 2.0), offset=offset)
    assert_same_answers(found, twice, 1e-6)
    plain = predictor.condition_on(MORE, y)
    assert (found.predict_mean(MORE) - plain.predict_mean(MORE))[0, 0] > 0.0  # counts for small exposures


def test_exact_models_with_rows_of_several_noises_go_on():
    predictor, order = of_rows(agp.GPR.from_data, OLD, Y).predictor(), slice(OLD + 4, None)
    first = predictor.condition_on(X[OLD : OLD + 4], Y[OLD : OLD + 4], noise=NOISE[:4])
    found = first.condition_on(X[order], Y[order])
    noise = np.concatenate([NOISE[:4], np.zeros_like(NOISE[4:])])
    assert_same_answers(found, predictor.condition_on(X[OLD:], Y[OLD:], noise=noise))
    samples = found.sample_functions(4000, seed=1, features=64)(NEW)
    mean, variance = found.predict(NEW)
    assert (np.abs(samples.mean(axis=0) - mean) < 5.0 * np.sqrt(variance / 4000.0)).all()


def test_known_noise_that_cannot_be_is_refused():
    more, y = X[OLD:], Y[OLD:]
    with pytest.raises(TypeError, match="omit noise=, or use Gaussian"):
        predictor_of("poisson-wsvgp").condition_on(more, COUNTS[OLD:], noise=NOISE)
    with pytest.raises(ValueError, match=r"noise has shape \(3,\), but must have shape \(10,\); pass one number for"):
        of_rows(agp.GPR.from_data, OLD, Y).predictor().condition_on(more, y, noise=NOISE[:3, 0])
    with pytest.raises(ValueError, match=r"noise variances must not be negative, but the smallest is -0\.\d+"):
        of_rows(agp.GPR.from_data, OLD, Y).predictor().condition_on(more, y, noise=-NOISE)
    pair = np.concatenate([NOISE, NOISE], axis=1)
    with pytest.raises(ValueError, match="outputs of an exact model share one covariance"):
        of_rows(agp.GPR.from_data, OLD).predictor().condition_on(more, PAIR[OLD:], noise=pair)


@pytest.mark.parametrize("kind", [*KINDS, "tvgp"])
def test_torch_maps_further_data(kind, torch_place):
    torch = pytest.importorskip("torch")
    build, options = (agp.TVGP.from_data, {}) if kind == "tvgp" else KINDS[kind]
    predictor = of_rows(build, OLD, Y, **options).predictor()
    there, rng = torch_place.move(predictor), np.random.default_rng(4)
    inputs, targets, noise = (rng.uniform(0.1, 1.0, (3, 4, columns)) for columns in (2, 1, 1))

    def answers(x, y, s):
        seen = there.condition_on(x, y, noise=s)
        return seen.predict_mean(torch_place.array(NEW)), seen.predict_covariance(torch_place.array(NEW))

    found = torch.func.vmap(answers)(*map(torch_place.array, (inputs, targets, noise)))
    mapped_noise = torch.func.vmap(answers, in_dims=(None, None, 0))(
        torch_place.array(inputs[0]), torch_place.array(targets[0]), torch_place.array(noise)
    )
    for i in range(3):
        seen = predictor.condition_on(inputs[i], targets[i], noise=noise[i])
        assert_close(found[0][i].numpy(), seen.predict_mean(NEW), BEST)
        assert_close(found[1][i].numpy(), seen.predict_covariance(NEW), BEST)
        seen = predictor.condition_on(inputs[0], targets[0], noise=noise[i])
        assert_close(mapped_noise[1][i].numpy(), seen.predict_covariance(NEW), BEST)


@pytest.mark.parametrize("kind", ["gpr", "sgpr", "to-svgp"])
def test_further_data_give_the_same_on_every_backend(kind, backend):
    build, options = KINDS[kind]
    predictor = of_rows(build, OLD, **options).predictor()
    expected = predictor.condition_on(X[OLD:], PAIR[OLD:]).predict(NEW)
    found = backend.move(predictor).condition_on(backend.array(X[OLD:]), backend.array(PAIR[OLD:]))
    for value, desired in zip(found.predict(backend.array(NEW)), expected, strict=True):
        assert_close(backend.numpy(value), desired, 1e-9)


def drift(rows, additions):
    """How far single additions are from one of all: the largest relative difference."""
    rng = np.random.default_rng(2)
    inputs = rng.uniform(-3.0, 3.0, (rows + additions, 2))
    y = np.sin(inputs[:, :1]) + 0.1 * rng.normal(size=(rows + additions, 1))
    model = agp.GPR.from_data(inputs[:rows], y[:rows], kernel=KERNEL, likelihood=agp.Gaussian(0.01))
    at_once = model.predictor().condition_on(inputs[rows:], y[rows:])
    single = model.predictor()
    for i in range(rows, rows + additions):
        single = single.condition_on(inputs[i : i + 1], y[i : i + 1])
    return single, at_once


@pytest.mark.slow
def test_hundreds_of_single_additions_do_not_drift():
    assert_same_answers(*drift(100, 300), 1e-8)


@pytest.mark.long
def test_a_thousand_single_additions_do_not_drift():
    assert_same_answers(*drift(100, 1000), 1e-8)


def test_single_additions_to_a_sparse_process_do_not_drift():
    old, whole = (of_rows(agp.SGPR.from_data, rows, **SPARSE).predictor() for rows in (OLD, ROWS))
    for i in range(OLD, ROWS):
        old = old.condition_on(X[i : i + 1], PAIR[i : i + 1])
    assert_same_answers(old, whole, 1e-8)


# -- Bayes' rule on q(u) ----------------------------------------------------------------------------------------------

POSTERIORS = {
    "whitened": agp.posteriors.Whitened,
    "marginal": agp.posteriors.Marginal,
    "relaxed": agp.posteriors.Relaxed,
    "likelihood-form": agp.posteriors.LikelihoodForm,
    "inverse-free": agp.posteriors.InverseFree,
    "dual": agp.posteriors.Dual,
    "dual-inverse-free": agp.posteriors.DualInverseFree,
    "diagonal": "diagonal-whitened",
    "white-sites": agp.posteriors.WhiteSites,
}


def sparse_model(posterior, steps, y=PAIR, likelihood=None):
    likelihood = agp.Gaussian(0.05) if likelihood is None else likelihood
    mean = agp.ConstantMean(tuple(0.2 - 0.1 * np.arange(y.shape[1])))
    options = {"kernel": KERNEL, "likelihood": likelihood, "mean_function": mean, "num_inducing": 8, "jitter": 1e-6}
    model = agp.SVGP.from_data(X, y, posterior=POSTERIORS[posterior], **options)
    return agp.train(model, X, y, steps=steps).model if steps else model


def dense(sparse):
    """q(u) and what leads from it to f, in plain NumPy: (mean, covariances, Kuu, k(., .), Z, h)."""
    Z = sparse.inducing.Z
    variance, lengthscale = sparse.kernel.variance, sparse.kernel.lengthscale

    def k(a, b):
        return variance * np.exp(-0.5 * np.sum(((a[:, None] - b) / lengthscale) ** 2, axis=-1))

    mean, covariance = sparse.inducing_moments()
    return mean, covariance, sparse.inducing_covariance()[0], k, Z, sparse.mean_function.value


def bayes(sparse, inputs, shift, precision):
    """Means and variances at NEW after sites [k, P] of a_n^T u, with a_n = Kuu^-1 k_un, at the inputs [k, D]."""
    m, S, Kuu, k, Z, h = dense(sparse)
    A, B = np.linalg.solve(Kuu, k(Z, inputs)), np.linalg.solve(Kuu, k(Z, NEW))
    means, variances = [], []
    for p in range(m.shape[1]):
        gain = S[p] @ A @ np.linalg.inv(np.diag(1.0 / precision[:, p]) + A.T @ S[p] @ A)
        mean = m[:, p] + gain @ (shift[:, p] / precision[:, p] - A.T @ m[:, p])
        cov = S[p] - gain @ A.T @ S[p]
        means.append(h[p] + B.T @ mean)
        variances.append(sparse.kernel.variance - np.sum(B * k(Z, NEW), axis=0) + np.sum(B * (cov @ B), axis=0))
    return np.stack(means, axis=1), np.stack(variances, axis=1)


@pytest.mark.parametrize("steps", [0, 15])
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_a_sparse_process_follows_the_rule_of_bayes(posterior, steps):
    predictor = sparse_model(posterior, steps).predictor()
    sparse, noise = predictor.processes[0], predictor.likelihood.noise_variance
    y = np.random.default_rng(1).normal(size=(len(MORE), 2))
    precision = np.full(y.shape, 1.0 / noise)
    expected = bayes(sparse, MORE, precision * (y - sparse.mean_function.value), precision)
    for value, desired in zip(predictor.condition_on(MORE, y).predict(NEW), expected, strict=True):
        assert_close(value, desired, 1e-7)


# -- several processes ------------------------------------------------------------------------------------------------


def stack(*outputs, posterior="whitened"):
    """Processes side by side, of kernels and inducing inputs of their own, and so many outputs each."""
    kernels = [agp.RBF(1.1, (1.2, 0.9)), agp.Matern52(0.7, (0.8, 1.5))]
    options = {"posterior": posterior, "jitter": 1e-8}
    parts = [
        Sparse.from_data(X, outputs=P, kernel=kernel, Z=X[i::5], mean_function=agp.ConstantMean((0.2,) * P), **options)
        for i, (P, kernel) in enumerate(zip(outputs, kernels, strict=False))
    ]
    return parts[0] if len(parts) == 1 else Stack(tuple(parts))


COLUMN = np.asarray([[1.5], [-0.4], [0.8]])
TRIPLE = np.concatenate([PAIR, np.cos(Y)], axis=1)
MEAN = agp.ConstantMean(np.asarray([0.3, -0.1, 0.2]))
PROCESSES = {
    "stack": lambda: stack(1, 2),
    "diagonal": lambda: LinearMixing(stack(3), np.asarray([1.5, -0.4, 0.8]), MEAN),
    "diagonal-of-a-stack": lambda: LinearMixing(stack(2, 1), np.asarray([1.5, -0.4, 0.8]), MEAN),
    "one-function": lambda: LinearMixing(stack(1), COLUMN, MEAN),
    "one-function-twice": lambda: LinearMixing(LinearMixing(stack(1), np.asarray([2.0])), COLUMN, MEAN),
    "mixtures-side-by-side": lambda: Stack((LinearMixing(stack(1), COLUMN[:2]), stack(1))),
}
SEVERAL = ("stack", "diagonal", "one-function", "mixtures-side-by-side")


def several_trained(name, rows, y, likelihood, *, steps=1, rate=1.0):
    """The model of the first rows, whose q(u) is at its optimum; hyperparameters stay as they are."""
    model = agp.SVGP(PROCESSES[name](), likelihood)
    return agp.train(model, X[:rows], y[:rows], steps=steps, updates=[NaturalGradient(rate)]).model


@pytest.mark.parametrize("noise", ["one", "each"])
@pytest.mark.parametrize("name", PROCESSES)
def test_several_processes_give_the_model_of_all_rows(name, noise):
    likelihood = agp.Gaussian(np.asarray(0.05) if noise == "one" else np.asarray([0.05, 0.2, 0.1]))
    old, whole = (several_trained(name, rows, TRIPLE, likelihood).predictor() for rows in (OLD, ROWS))
    found = old.condition_on(X[OLD:], TRIPLE[OLD:])
    assert_same_answers(found, whole)
    joint = found.predict_covariance(NEW, cross_outputs=True)
    assert_close(joint, whole.predict_covariance(NEW, cross_outputs=True), BEST)
    parts = old.condition_on(X[OLD : OLD + 3], TRIPLE[OLD : OLD + 3])
    assert_same_answers(parts.condition_on(X[OLD + 3 :], TRIPLE[OLD + 3 :]), whole)


@pytest.mark.parametrize("name", SEVERAL)
def test_several_processes_know_targets_that_were_not_measured(name):
    y = np.where(np.random.default_rng(3).uniform(size=TRIPLE.shape) < 0.4, np.nan, TRIPLE)
    likelihood = agp.Gaussian(np.asarray([0.05, 0.2, 0.1]), missing=True)
    old, whole = (several_trained(name, rows, y, likelihood).predictor() for rows in (OLD, ROWS))
    assert_same_answers(old.condition_on(X[OLD:], y[OLD:]), whole)


@pytest.mark.slow
def test_separate_outputs_are_each_conditioned_on_their_own_column():
    model = agp.SVGP.from_data(
        X, PAIR, outputs="separate", kernel=KERNEL, likelihood=agp.Gaussian(0.05), num_inducing=8
    )
    model = agp.train(model, X, PAIR, steps=15).model
    found = model.predictor().condition_on(MORE, PAIR[:6]).predict(NEW)
    for p, part in enumerate(model.process.parts):
        alone = agp.SVGP(part, agp.Gaussian(model.likelihood.noise_variance)).predictor()
        for value, expected in zip(found, alone.condition_on(MORE, PAIR[:6, p]).predict(NEW), strict=True):
            assert_close(value[:, p : p + 1], expected, 1e-10)


def test_an_exact_process_of_one_function_follows_the_rule_of_bayes():
    # all inputs are inducing ones: the data y = w g + e of three outputs are those of g, seen three times
    weights, noise = COLUMN[:, 0], np.asarray([0.05, 0.2, 0.1])
    part = Sparse.from_data(X, kernel=KERNEL, Z=X, posterior="whitened", jitter=1e-10)
    found = agp.SVGP(LinearMixing(part, COLUMN), agp.Gaussian(noise)).predictor().condition_on(X, TRIPLE)
    precision = np.sum(weights**2 / noise)
    pooled = TRIPLE @ (weights / noise) / precision
    parts = {"kernel": KERNEL, "likelihood": agp.Gaussian(1.0 / precision), "mean_function": agp.ZeroMean()}
    mean, variance = agp.GPR.from_data(X, pooled[:, None], **parts).predict(NEW)
    assert_close(found.predict(NEW).mean, mean * weights, 1e-6)
    assert_close(found.predict(NEW).variance, variance * weights**2, 1e-6)


POSITIVE = {"poisson": (agp.Poisson(), np.tile(COUNTS, 3)), "bernoulli": (agp.Bernoulli(), np.tile(LABELS, 3))}


@pytest.mark.long
@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("kind", POSITIVE)
def test_sites_of_several_processes_settle_where_training_does(name, kind):
    # from the prior on, all data are new ones
    likelihood, y = POSITIVE[kind]
    y = np.where(np.arange(3) == 1, y[::-1], y)  # the outputs differ
    prior = agp.SVGP(PROCESSES[name](), likelihood).predictor()
    trained = several_trained(name, ROWS, y, likelihood, steps=150, rate=0.5).predictor()
    assert_same_answers(prior.condition_on(X, y), trained, 1e-6)


@pytest.mark.parametrize("name", ["stack", "one-function"])
def test_several_processes_see_further_data_on_every_backend(name, backend):
    predictor = several_trained(name, OLD, TRIPLE, agp.Gaussian(np.asarray(0.05))).predictor()
    expected = predictor.condition_on(X[OLD:], TRIPLE[OLD:]).predict(NEW)
    found = backend.move(predictor).condition_on(backend.array(X[OLD:]), backend.array(TRIPLE[OLD:]))
    for value, desired in zip(found.predict(backend.array(NEW)), expected, strict=True):
        assert_close(backend.numpy(value), desired, 1e-9)


def test_the_outputs_of_a_shared_kernel_each_with_a_size_take_further_data():
    model = agp.SVGP.from_data(X, PAIR, likelihood=agp.Gaussian(0.05), num_inducing=8)
    assert isinstance(model.process, LinearMixing)
    assert model.predictor().condition_on(MORE, PAIR[:6]).predict(NEW).mean.shape == (len(NEW), 2)


# -- dual steps -------------------------------------------------------------------------------------------------------


def expected_slopes(name, mean, variance, y):
    """alpha and beta of a log density, in plain NumPy."""
    if name == "poisson":
        rate = np.exp(mean + 0.5 * variance)
        return y - rate, rate
    x, w = np.polynomial.hermite_e.hermegauss(20)
    f = mean[..., None] + np.sqrt(variance)[..., None] * x
    sign = 2.0 * y[..., None] - 1.0
    ratio = np.exp(-0.5 * f * f - scipy.special.log_ndtr(sign * f)) / np.sqrt(2.0 * np.pi)
    w = w / w.sum()
    # the curvature as the derivative of the expectation in the variance, by parts: E[g'(f)] = E[g(f) x] / s
    return (sign * ratio) @ w, -((sign * ratio * x) @ w) / np.sqrt(variance)


def settled_sites(name, mean, C, rest, y):
    """Sites [k] of N(mean, C) where undamped dual steps would not move them."""
    shift, precision = np.zeros_like(mean), np.zeros_like(mean)
    for _ in range(3000):
        root = np.linalg.inv(np.eye(len(mean)) + C * precision)
        mu, cov = root @ (mean + C @ shift), root @ C
        alpha, beta = expected_slopes(name, mu, np.diag(cov) + rest, y)
        shift, precision = shift + 0.3 * (alpha + beta * mu - shift), precision + 0.3 * (beta - precision)
    return shift, precision


LIKELIHOODS = {"bernoulli": (agp.Bernoulli, LABELS), "poisson": (agp.Poisson, COUNTS)}


@pytest.mark.long
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_sites_of_a_full_process_are_settled_dual_steps(name):
    predictor, y = predictor_of(f"{name}-tvgp"), LIKELIHOODS[name][1][:6]
    mean, C = predictor.predict_mean(MORE)[:, 0], predictor.predict_covariance(MORE)[0]
    shift, precision = settled_sites(name, mean, C, 0.0, y[:, 0])
    joint = predictor.predict_covariance(np.concatenate([MORE, NEW]))[0]
    cross = joint[6:, :6] @ np.linalg.inv(np.eye(6) + precision[:, None] * C)
    expected = predictor.predict_mean(NEW)[:, 0] + cross @ (shift - precision * mean)
    variance = np.diag(joint)[6:] - np.sum(cross * precision * joint[6:, :6], axis=1)
    found = predictor.condition_on(MORE, y).predict(NEW)
    assert_close(found.mean[:, 0], expected, 1e-6)
    assert_close(found.variance[:, 0], variance, 1e-6)


@pytest.mark.long
@pytest.mark.parametrize("posterior", ["whitened", "relaxed", "inverse-free", "dual"])
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_sites_of_a_sparse_process_are_settled_dual_steps(name, posterior):
    likelihood, y = LIKELIHOODS[name]
    predictor = sparse_model(posterior, 15, y, likelihood()).predictor()
    sparse = predictor.processes[0]
    m, S, Kuu, k, Z, h = dense(sparse)
    A = np.linalg.solve(Kuu, k(Z, MORE))
    C, rest = A.T @ S[0] @ A, sparse.kernel.variance - np.sum(A * k(Z, MORE), axis=0)
    shift, precision = settled_sites(name, A.T @ m[:, 0] + h[0], C, rest, y[:6, 0])
    expected = bayes(sparse, MORE, (shift - precision * h[0])[:, None], precision[:, None])
    for value, desired in zip(predictor.condition_on(MORE, y[:6]).predict(NEW), expected, strict=True):
        assert_close(value, desired, 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_settled_sites_are_those_of_training_when_all_data_are_new(name):
    # a process without old sites: t-VGP on the new rows alone
    likelihood, y = LIKELIHOODS[name]
    parts = {"kernel": KERNEL, "likelihood": likelihood(), "mean_function": agp.ConstantMean((0.1,))}
    blank = agp.TVGP.from_data(X[:1], y[:1], **parts)
    model = agp.TVGP.from_data(X, y, **parts)
    updates = [SiteStep(0.5)]
    trained = agp.train(model, X, y, steps=80, updates=updates).model
    assert_same_answers(blank.predictor().condition_on(X, y), trained.predictor(), 1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("error::agp.errors.RepairWarning")
@pytest.mark.parametrize("count", [0.0, 20.0, 200.0, 5000.0])
def test_sites_settle_for_counts_far_from_what_was_expected(count):
    predictor, y = predictor_of("poisson-tvgp"), np.full((len(MORE), 1), count)
    mean, variance = predictor.condition_on(MORE, y).predict(MORE)
    C = predictor.predict_covariance(MORE)[0]
    slope = np.linalg.solve(C, mean - predictor.predict_mean(MORE))  # E[d/df log p] where the bound is highest
    assert np.abs(np.exp(mean + 0.5 * variance) + slope - y).max() < 1e-5 * (1.0 + count)


def test_sites_of_new_rows_have_the_divergence_of_a_gaussian():
    k, rng = len(MORE), np.random.default_rng(3)
    mean, shift, precision = rng.normal(size=(k, 1)), rng.normal(size=(k, 1)), rng.uniform(0.1, 3.0, (k, 1))
    C = KERNEL(MORE)[0] + 1e-3 * np.eye(k)
    V = np.linalg.inv(np.linalg.inv(C) + np.diag(precision[:, 0]))
    change = V @ (shift - precision * mean)
    solved = np.linalg.solve(C, np.concatenate([V, change], axis=1))
    divergence = 0.5 * (np.trace(solved[:, :k]) + change[:, 0] @ solved[:, k] - k - np.linalg.slogdet(solved[:, :k])[1])
    found = _marginals(mean, C[None], shift, precision)
    for value, expected in zip(found, (mean + change, np.diag(V)[:, None], divergence), strict=True):
        assert_close(value, expected, 1e-9)


def test_targets_that_were_not_measured_add_nothing():
    model = agp.SVGP.from_data(X, PAIR, kernel=KERNEL, likelihood=agp.Gaussian(0.05, missing=True), num_inducing=8)
    y = PAIR[:6].copy()
    y[2:, 1] = np.nan
    found, first, all_rows = (
        model.predictor().condition_on(x, t) for x, t in ((MORE, y), (MORE[:2], y[:2]), (MORE, PAIR[:6]))
    )
    for value, one, other in zip(found.predict(NEW), all_rows.predict(NEW), first.predict(NEW), strict=True):
        assert_close(value, np.stack([one[:, 0], other[:, 1]], axis=1), 1e-9)


@pytest.mark.filterwarnings("error::agp.errors.RepairWarning")
@pytest.mark.parametrize("name", ["poisson-wsvgp", "bernoulli-tvgp", "gpr", "sgpr"])
def test_further_data_in_float32(name):
    predictor, y = predictor_of(name), new_targets(name)
    found = NUMPY.move(model_of(name), "float32").predictor().condition_on(NEW.astype("f"), y.astype("f"))
    for value, expected in zip(
        found.predict(NEW.astype("f")), predictor.condition_on(NEW, y).predict(NEW), strict=True
    ):
        assert value.dtype == np.float32
        assert_close(value, expected, 0.02)


# -- leading axes -----------------------------------------------------------------------------------------------------

FANTASIES = ("outputs-separate", "gpr", "sgpr", "tsvgp", "rsvgp", "outputs-gpr", "poisson-wsvgp", "bernoulli-tvgp")


@pytest.mark.slow
@pytest.mark.parametrize("name", FANTASIES)
def test_fantasies_are_loops(name):
    predictor, rng = predictor_of(name), np.random.default_rng(6)
    inputs = rng.uniform(-2.0, 2.0, (2, 3, 4, 2))
    y = new_targets(name, 24).reshape(2, 3, 4, -1)
    found = predictor.condition_on(inputs, y)
    loops = [[predictor.condition_on(x, t) for x, t in zip(*sets, strict=True)] for sets in zip(inputs, y, strict=True)]

    def each(ask):
        return np.asarray([[ask(one) for one in row] for row in loops])

    tests = NEW[None].repeat(2, axis=0)
    assert_close(found.predict(NEW).mean, each(lambda p: p.predict(NEW).mean), 1e-10)
    assert_close(found.predict(NEW).variance, each(lambda p: p.predict(NEW).variance), 1e-10)
    assert_close(found.predict_mean(tests), each(lambda p: p.predict_mean(tests)), 1e-10)
    assert_close(found.gradient(NEW).mean, each(lambda p: p.gradient(NEW).mean), 1e-9)
    assert_close(found.quantile(NEW, 0.3), each(lambda p: p.quantile(NEW, 0.3)), 1e-9)
    assert_close(found.predict_covariance(NEW), each(lambda p: p.predict_covariance(NEW)), 1e-9)
    assert_close(found.log_density(NEW, new_targets(name)), each(lambda p: p.log_density(NEW, new_targets(name))), 1e-9)
    several = np.moveaxis(each(lambda p: p.quantile(NEW, (0.3, 0.6))), 2, 0)
    assert_close(found.quantile(NEW, (0.3, 0.6)), several, 1e-9)
    assert found.sample(tests, 5).shape == (2, 3, 2, 5, len(NEW), predictor.outputs)


def test_fantasies_take_further_data_together_or_each_its_own():
    predictor, rng = predictor_of("gpr"), np.random.default_rng(6)
    inputs, y = rng.uniform(-2.0, 2.0, (3, 2, 2)), rng.normal(size=(3, 2))
    found = predictor.condition_on(inputs, y)
    loops = [predictor.condition_on(x, t) for x, t in zip(inputs, y, strict=True)]
    shared = np.stack([one.condition_on(MORE, Y[:6]).predict_mean(NEW) for one in loops])
    assert_close(found.condition_on(MORE, Y[:6]).predict_mean(NEW), shared, 1e-12)
    own = np.stack([one.condition_on(x, t).predict_mean(NEW) for one, x, t in zip(loops, inputs, y, strict=True)])
    assert_close(found.condition_on(inputs, y).predict_mean(NEW), own, 1e-12)
    with pytest.raises(ValueError, match="pass one set of rows for each posterior"):
        found.condition_on(inputs[:2], y[:2])
    with pytest.raises(ValueError, match="sample_functions needs one posterior"):
        found.sample_functions()


def test_fantasies_are_saved(tmp_path):
    found = predictor_of("sgpr").condition_on(MORE.reshape(3, 2, 2), Y[:6, 0].reshape(3, 2))
    agp.save(found, tmp_path / "fantasies.safetensors")
    loaded = agp.load(tmp_path / "fantasies.safetensors")
    assert loaded.lead == (3,)
    np.testing.assert_array_equal(loaded.predict_mean(NEW), found.predict_mean(NEW))


# -- what is refused --------------------------------------------------------------------------------------------------

REFUSED = ("deep-wsvgp", "cagp-opt", "cagp-cg", "coregionalised", "cggp-iterative")


@pytest.mark.parametrize("name", REFUSED)
def test_posteriors_that_need_all_data_refuse_further_ones(name):
    with pytest.raises(TypeError, match=r"^[^.]* cannot be conditioned on further data; [^.]*\.$"):
        predictor_of(name).condition_on(NEW, new_targets(name))


def test_wrong_shapes_are_refused():
    predictor = predictor_of("gpr")
    with pytest.raises(ValueError, match="3 columns"):
        predictor.condition_on(np.zeros((4, 3)), np.zeros(4))
    with pytest.raises(ValueError, match="rows"):
        predictor.condition_on(NEW, np.zeros(3))
    with pytest.raises(ValueError, match="2 outputs"):
        predictor.condition_on(NEW, np.zeros((len(NEW), 2)))
    with pytest.raises(ValueError, match="pass one target for each row of X"):
        predictor.condition_on(np.zeros((2, 3, 2)), np.zeros((3, 3)))
    with pytest.raises(ValueError, match=r"finite|NaN|nan"):
        predictor.condition_on(np.full((1, 2), np.nan), np.zeros(1))
    with pytest.raises(TypeError):
        predictor.condition_on(NEW.astype(np.float32), Y[: len(NEW)].astype(np.float32))


def test_targets_outside_the_support_are_refused():
    with pytest.raises(ValueError, match="whole numbers of at least 0"):
        predictor_of("poisson-wsvgp").condition_on(NEW, np.full((len(NEW), 1), -1.0))


def test_the_old_predictor_keeps_its_arrays():
    for name in ("gpr", "sgpr", "poisson-tvgp"):
        predictor = predictor_of(name)
        before = {key: np.array(x) for key, x in tree.leaves(predictor).items()}
        predictor.condition_on(NEW, new_targets(name))
        for key, x in tree.leaves(predictor).items():
            np.testing.assert_array_equal(x, before[key])
