"""Samples of functions: their distribution is that of the predictions, and all calls see the same functions."""

import dataclasses

import numpy as np
import pytest
from helpers import as_arrays, relative_error
from process_cases import COLUMNS, POSTERIORS, data, joint_of, points, process_case, q_of, sparse

from agp import (
    CGGP,
    GPR,
    RBF,
    SGPR,
    SOLVEGPR,
    SVGP,
    TSVGP,
    TVGP,
    CaGP,
    Constant,
    ConstantMean,
    Gaussian,
    Linear,
    LinearMean,
    Matern12,
    Matern32,
    Matern52,
    White,
    to_backend,
    train,
    tree,
)
from agp.backend import get_backend
from agp.inducing import Inducing, JointInducing, Patches
from agp.posteriors import InverseFree, Orthogonal, Posterior, PriorSpread, Relaxed, RelaxedUnion, Whitened
from agp.processes import Deep, LinearMixing, Process, Stack

EXACT = 1e-9
WIDTH = 3


def quadratic():
    """A kernel of rank 16 in three columns."""
    return (Linear(0.5) + Constant(0.7)) * (Linear((0.4, 0.6, 0.3)) + Constant(0.5)) + Linear(0.2)


def grid(rows=7, width=WIDTH, seed=5):
    return np.random.default_rng(seed).normal(size=(rows, width))


class UnitNoise:
    """A generator whose normal numbers [P, n, S] are unit vectors, each new request those after the last one's.

    A sample with the k-th number at one, less the sample without noise, is how the k-th number moves the function: the
    covariance of all is the sum of squares.
    """

    def __init__(self):
        self.used = 0

    def standard_normal(self, shape):
        P, n, S = shape
        assert self.used + n < S
        block = np.eye(S)[self.used : self.used + n]
        self.used += n
        return np.broadcast_to(block, (P, n, S)).copy()


def moments_of(paths_of, X, samples=260):
    """Mean [N, P] and covariances [P, N, N] of the functions that a source of paths makes of exact features."""
    values = paths_of(UnitNoise(), samples).evaluate(X)[0]
    moves = np.moveaxis(values - values[-1], 2, 0)
    return values[-1], np.swapaxes(moves, 1, 2) @ moves


def assert_paths_are_the_process(process, X, tolerance=EXACT):
    factor = process.factorise()[0]
    mean, covariance = moments_of(lambda rng, count: process.paths(factor, rng, count, 1), X)
    assert relative_error(mean, process.project_mean(factor, X)) < tolerance
    assert relative_error(covariance, joint_of(process, factor, X)) < tolerance


# -- the exact distribution, with features that are exact -------------------------------------------------------------


@pytest.mark.parametrize("kind", POSTERIORS)
def test_paths_have_the_moments_of_every_posterior(kind):
    rng = np.random.default_rng(2)
    process = sparse(quadratic(), points(6, WIDTH, rng), kind, 2, rng)
    assert_paths_are_the_process(process, grid())


@pytest.mark.parametrize("second", ["prior-spread", "union"])
def test_paths_have_the_moments_of_other_groups(second):
    rng = np.random.default_rng(2)
    process = sparse(quadratic(), points(6, WIDTH, rng), "whitened", 2, rng)
    Kuu = process.inducing_covariance()[0]
    if second == "union":
        q = RelaxedUnion.from_prior(Kuu, 2)
        q = tree.with_leaves(q, {"mean": rng.normal(size=(6, 2)), "site": rng.uniform(0.2, 1.0, 6)})
    else:
        q = Orthogonal((q_of("whitened", Kuu[:3, :3], 2, rng), PriorSpread(rng.normal(size=(3, 2)))), (3, 3))
    assert_paths_are_the_process(tree.replace(process, {"posterior": q}), grid())


class OnPoints:
    """Exact features of a kernel at some points, which are those of the inverse root of their covariance."""

    def __init__(self, kernel, known):
        self.kernel, self.known = kernel, known
        self.root = np.linalg.cholesky(kernel(known)[0] + 1e-13 * np.eye(len(known)))

    def __call__(self, X):
        return np.linalg.solve(self.root, self.kernel(self.known, X)[0]).T, None


@pytest.mark.parametrize("kind", ["whitened", "relaxed", "inverse-free", "dual-inverse-free"])
def test_paths_of_full_rank_kernels_have_these_moments_too(kind, monkeypatch):
    rng, X = np.random.default_rng(3), grid()
    process = sparse(RBF(0.9, (0.8, 1.0, 1.2)), points(6, WIDTH, rng), kind, 2, rng)
    known = np.concatenate([process.inducing.Z, X])
    monkeypatch.setattr(RBF, "random_features", lambda self, *_: OnPoints(self, known))
    assert_paths_are_the_process(process, X)


def composed(name):
    """Processes of several parts, of kernels with exact features."""
    rng = np.random.default_rng(4)
    part = lambda M: sparse(quadratic(), points(M, WIDTH, rng), "whitened", 1, rng)  # noqa: E731
    images = lambda M: Patches((3, 4), (2, 2), rng.normal(size=(M, 4)), rng.uniform(0.5, 1.5, size=6))  # noqa: E731
    plane = as_arrays(Linear(0.5) + Constant(0.2))
    return {
        "stack": lambda: Stack((part(4), part(5))),
        "mixed": lambda: LinearMixing(
            sparse(quadratic(), points(4, WIDTH, rng), "marginal", 2, rng), rng.normal(size=(3, 2))
        ),
        "patches": lambda: sparse(plane, images(4), "whitened", 2, rng),
        "together": lambda: sparse(
            Linear(0.6) + Linear(0.3), JointInducing((images(3), points(4, COLUMNS, rng))), "relaxed", 2, rng
        ),
    }[name]()


@pytest.mark.parametrize("name", ["stack", "patches", "together"])
def test_paths_have_the_moments_of_compositions(name):
    process = composed(name)
    assert_paths_are_the_process(process, grid(width=process.width))


def test_paths_of_a_mixture_are_mixed_paths():
    process, X = composed("mixed"), grid()
    factor = process.factorise()[0]
    paths = [one.paths(factor, np.random.default_rng(0), 5, 1) for one in (process, process.process)]
    mixed, latent = (one.evaluate(X)[0] for one in paths)
    np.testing.assert_allclose(mixed, latent @ process.weights.T, rtol=1e-13)


def regression(rows=12, outputs=2, seed=6):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(rows, WIDTH)), rng.normal(size=(rows, outputs))


def exact_model(name):
    X, y = regression()
    parts = {"kernel": quadratic(), "likelihood": Gaussian(0.3), "mean_function": ConstantMean()}
    if name == "tvgp":
        model = TVGP.from_data(X, y, **parts)
        model = model.with_gaussian_sites(y + 1.0)
        silent = np.where(np.arange(12) < 3, 0.0, 1.0)[:, None]  # sites of precision zero, too
        return tree.with_leaves(model, {"site_precision": model.site_precision * silent})
    return {
        "gpr": lambda: GPR.from_data(X, y, **parts),
        "sgpr": lambda: SGPR.from_data(X, y, num_inducing=5, jitter=1e-3, **parts),
        "solvegpr": lambda: SOLVEGPR.from_data(X, y, num_inducing=3, num_orthogonal=2, jitter=1e-3, **parts),
        "tsvgp": lambda: TSVGP.from_data(X, y, num_inducing=5, jitter=1e-3, **parts).with_gaussian_sites(y),
        "cagp": lambda: CaGP.from_data(X, y, num_actions=4, **parts),
        "cagp-inverse-free": lambda: CaGP.from_data(X, y, num_actions=4, inverse_free=True, **parts),
        "cggp": lambda: CGGP.from_data(X, y, **parts),
    }[name]()


@pytest.mark.parametrize("name", ["gpr", "sgpr", "solvegpr", "tsvgp", "tvgp", "cagp", "cagp-inverse-free", "cggp"])
def test_paths_have_the_moments_of_models(name):
    model, X = exact_model(name), grid()
    predictor = model.predictor()
    (process,), (factor,) = predictor.processes, predictor.factors
    mean, covariance = moments_of(lambda rng, count: process.paths(factor, rng, count, 1), X)
    assert relative_error(mean, model.predict_mean(X)) < EXACT
    assert relative_error(covariance, model.predict_covariance(X)) < EXACT


def test_paths_by_conjugate_gradients_are_those_by_a_factorisation(monkeypatch):
    model, X = dataclasses.replace(exact_model("cggp"), prediction_tolerance=1e-12), grid()
    expected = model.sample_functions(3)(X)
    monkeypatch.setattr(CGGP, "_block_rows", lambda self, memory: 5)
    monkeypatch.setattr("agp.models._cggp.exact_process", None)
    np.testing.assert_allclose(model.sample_functions(3)(X), expected, rtol=1e-8, atol=1e-9)


# -- random features --------------------------------------------------------------------------------------------------


def trained(posterior=Relaxed, kernel=None, outputs=1, **options):
    """A model after a few steps, in three columns."""
    X, _ = regression(30)
    y = np.sin(2.0 * X[:, :outputs])
    kernel = Matern32(1.1, (0.9, 1.3, 1.1)) if kernel is None else kernel
    options = {"num_inducing": 8, "mean_function": LinearMean(), "likelihood": Gaussian(0.05), **options}
    return train(SVGP.from_data(X, y, posterior=posterior, kernel=kernel, **options), X, y, steps=30).model


@pytest.mark.long
@pytest.mark.parametrize("posterior", [Whitened, Relaxed, InverseFree])
def test_many_functions_have_the_moments_of_the_predictions(posterior):
    model, X = trained(posterior, kernel=RBF(1.0, 0.9) + 0.3 * Matern32(1.0, 1.5)), grid(6)
    S, H = 4000, 4000
    values = model.sample_functions(S, seed=1, features=H)(X)[:, :, 0]
    covariance = model.predict_covariance(X)[0]
    deviation = np.sqrt(np.diag(covariance))
    drawn = model.sample(X, S, seed=2)[:, :, 0]
    for found in (values, drawn):
        assert np.all(np.abs(found.mean(axis=0) - model.predict_mean(X)[:, 0]) < 4.5 * deviation / np.sqrt(S))
    error = np.abs(np.cov(values.T) - covariance) / np.outer(deviation, deviation)
    assert np.max(error) < 5.0 * np.sqrt(2.0) * (1 / np.sqrt(S) + 1 / np.sqrt(H))


@pytest.mark.long
@pytest.mark.parametrize(("kernel", "noise"), [(Matern12, 1e-6), (Matern32, 1e-6), (Matern52, 1e-6), (RBF, 1e-6)])
@pytest.mark.parametrize("rows", [14, 40])
def test_functions_of_one_call_spread_between_rows_without_noise_like_the_posterior(kernel, noise, rows):
    rng = np.random.default_rng(0)
    X, at = rng.uniform(size=(rows, 2)), rng.uniform(size=(100, 2))
    model = GPR.from_data(X, np.sin(5.0 * X[:, :1]), kernel=kernel(1.0, 0.9), likelihood=Gaussian(noise))
    deviation = model.predict(at).variance[:, 0] ** 0.5
    for seed in range(2):
        ratio = np.std(model.sample_functions(1000, seed=seed)(at)[:, :, 0], axis=0) / deviation
        assert 0.9 < np.median(ratio) < 1.1
        assert np.min(ratio) > 0.7
        assert np.max(ratio) < 1.3


def test_a_deep_model_has_functions_through_all_layers():
    rng = np.random.default_rng(8)
    inner = sparse(RBF(0.6, 1.5), points(5, WIDTH, rng), "whitened", 2, rng, LinearMean(rng.normal(size=(3, 2)), 0.0))
    outer = sparse(Matern32(1.0, 1.2), points(5, 2, rng), "likelihood", 1, rng)
    model, X = SVGP(Deep((inner, outer), samples=4000), Gaussian(np.asarray(0.1))), grid(4)
    functions = model.sample_functions(1500, features=300)
    values, predicted = functions(X)[:, :, 0], model.predict(X)
    deviation = np.sqrt(predicted.variance[:, 0])
    assert np.all(np.abs(values.mean(axis=0) - predicted.mean[:, 0]) < 0.15 * deviation)
    np.testing.assert_allclose(values.std(axis=0), deviation, rtol=0.15)


# -- functions --------------------------------------------------------------------------------------------------------

CASES = ("points", "separate", "lmc", "patches-weighted", "conv+rbf", "together", "deep", "deep-conv")


def functions_of(case, count=3, kind="whitened", **options):
    """Functions of a small process, and inputs."""
    process = process_case(case, kind)
    model = SVGP(process, as_arrays(Gaussian(0.2)))
    return model.sample_functions(count, features=5, **options), data(1)[0]


@pytest.mark.parametrize("case", CASES)
def test_all_calls_see_the_same_functions(case):
    functions, X = functions_of(case)
    whole = functions(X)
    assert whole.shape == (3, len(X), functions.outputs)
    np.testing.assert_allclose(functions(X, memory=1e-9), whole, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(functions(X[::-1][:4]), whole[:, ::-1][:, :4], rtol=1e-12, atol=1e-13)
    own = np.stack([X, X[::-1], X + 1.0])
    expected = np.stack([functions(one)[s] for s, one in enumerate(own)])
    for memory in (256.0, 1e-9):
        np.testing.assert_allclose(functions(own, memory=memory), expected, rtol=1e-12, atol=1e-13)


def test_functions_of_a_stack_of_one_process_are_those_of_the_process():
    single, X = process_case("points"), data(1)[0]
    alone, stacked = (
        SVGP(process, as_arrays(Gaussian(0.2))).sample_functions(3, features=5)
        for process in (single, Stack((single,)))
    )
    np.testing.assert_array_equal(stacked(X), alone(X))


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_slopes(case):
    functions, X = functions_of(case)
    rng = np.random.default_rng(9)
    for inputs in (X, np.stack([X, X[::-1], X + 0.1])):
        values, pull = functions.with_pullback(inputs)
        bar, way, h = rng.normal(size=values.shape), rng.normal(size=inputs.shape), 1e-5
        slope = np.sum(bar * (functions(inputs + h * way) - functions(inputs - h * way))) / (2 * h)
        X_bar = pull(bar)
        assert X_bar.shape == inputs.shape
        assert abs(np.sum(X_bar * way) - slope) < 1e-7 * max(1.0, abs(slope))
        gradient = functions.gradient(inputs)
        assert gradient.shape == (*values.shape, COLUMNS)
        np.testing.assert_allclose(functions.gradient(inputs, memory=1e-9), gradient, rtol=1e-11, atol=1e-12)
        by_sample = np.einsum("snp,snpd->snd", bar, gradient)
        np.testing.assert_allclose(X_bar, by_sample.sum(axis=0) if inputs is X else by_sample, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_torch(case):
    torch = pytest.importorskip("torch")
    functions, X = functions_of(case)
    moved, Xt = (tree.to_backend(x, "torch") for x in (functions, X))
    Xt.requires_grad_(True)
    values = moved(Xt)
    bar = np.random.default_rng(9).normal(size=values.shape)
    values.backward(torch.asarray(bar))
    X_bar = functions.with_pullback(X)[1](bar)
    assert relative_error(Xt.grad.numpy(), X_bar) < 1e-10
    assert relative_error(moved.with_pullback(Xt.detach())[1](torch.asarray(bar)).numpy(), X_bar) < 1e-10


def test_gradients_are_those_of_jax():
    jax = pytest.importorskip("jax", reason="jax is not installed: not executed")
    functions, X = functions_of("deep-conv")
    moved = tree.to_backend(functions, "jax")
    bar = np.random.default_rng(9).normal(size=functions(X).shape)
    by_jax = jax.jit(jax.grad(lambda X: (moved(X) * bar).sum()))(jax.numpy.asarray(X))
    assert relative_error(by_jax, functions.with_pullback(X)[1](bar)) < 1e-10
    assert relative_error(jax.jit(lambda f, X: f(X))(moved, X), functions(X)) < 1e-12


@pytest.mark.usefixtures("stale_factors")
@pytest.mark.parametrize("kind", ["whitened", "relaxed", "inverse-free", "dual-inverse-free"])
@pytest.mark.parametrize("case", ["points", "lmc", "together"])
def test_functions_are_the_same_on_every_backend(case, kind, backend):
    functions, X = functions_of(case, kind=kind)
    model = backend.move(SVGP(process_case(case, kind), as_arrays(Gaussian(0.2))))
    there = model.sample_functions(3, features=5)
    assert relative_error(backend.numpy(there(backend.array(X))), functions(X)) < EXACT
    assert relative_error(backend.numpy(there.gradient(backend.array(X))), functions.gradient(X)) < EXACT


def test_a_seed_is_a_set_of_functions():
    process = SVGP(process_case("points"), as_arrays(Gaussian(0.2)))
    X = data(1)[0]
    first, same, other = (process.sample_functions(2, seed=seed)(X) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    assert np.min(np.abs(first - other)) > 1e-6
    assert np.min(np.abs(first[0] - first[1])) > 1e-6


@pytest.mark.slow
def test_functions_keep_the_dtype_of_the_model():
    model = to_backend(trained(), "numpy", dtype="float32")
    X = grid().astype(np.float32)
    functions = model.sample_functions(2, features=50)
    assert {x.dtype for x in (functions(X), functions.gradient(X))} == {np.dtype("float32")}


@pytest.mark.parametrize("kernel", [RBF(1.0, 0.8), Matern32(1.0, 0.8), RBF(1.0, 0.8) * Linear(1.0) + Constant(1.0)])
def test_functions_go_through_data_without_noise(kernel):
    X, y = regression()
    model = GPR.from_data(X, y, kernel=kernel, likelihood=Gaussian(1e-10))
    values = model.sample_functions(5, features=500)(X)
    np.testing.assert_allclose(values, np.broadcast_to(y, values.shape), atol=1e-3)
    far = model.sample_functions(5, features=500)(X + 2.0)
    assert np.min(np.std(far, axis=0)) > 1e-2


FREE = ["relaxed", "relaxed-plain", "inverse-free", "dual-inverse-free", "relaxed-orthogonal"]


@pytest.mark.usefixtures("stale_factors")
@pytest.mark.parametrize("kind", FREE)
def test_no_factorisation_runs_in_inverse_free_functions(kind, monkeypatch):
    rng = np.random.default_rng(2)
    process = sparse(RBF(0.9, 1.0), points(6, WIDTH, rng), kind, 2, rng)
    model, X = SVGP(process, as_arrays(Gaussian(0.2))), grid()

    def forbidden(*args, **kwargs):
        raise AssertionError

    B = type(get_backend("numpy"))
    for name in ("cholesky", "solve_triangular", "inverse_from_cholesky"):
        monkeypatch.setattr(B, name, forbidden)
    for name in ("cholesky", "solve", "inv", "eigh", "eigvalsh", "svd", "qr", "slogdet", "pinv"):
        monkeypatch.setattr(np.linalg, name, forbidden)
    functions = model.sample_functions(2, features=5)
    assert functions(X).shape == (2, 7, 2)
    functions.gradient(X)


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 0}, "count is 0, but must be a whole number of at least 1"),
        ({"count": 1.5}, "count is 1.5"),
        ({"features": 0}, "features is 0"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_numbers_out_of_range_are_refused(options, message):
    count = options.pop("count", 1)
    with pytest.raises(ValueError, match=message):
        trained().sample_functions(count, **options)


@pytest.mark.slow
def test_white_noise_has_no_functions():
    with pytest.raises(TypeError, match="White is independent noise"):
        trained(kernel=RBF() + White()).sample_functions()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("X", "error", "message"),
    [
        (np.zeros((4, 2)), ValueError, "X has 2 columns, but the model was built for 3"),
        (np.zeros((4, 2, 3)), ValueError, r"X has shape \(4, 2, 3\), but there are 2 samples"),
        (np.zeros(3), ValueError, "X has shape"),
        (np.full((4, 3), np.nan), ValueError, "X has 12 NaN or infinite entries"),
        (np.zeros((4, 3), dtype=np.float32), TypeError, "X"),
        ([[0.0, 0.0, 0.0]], TypeError, "X is a list, not an array of a known library"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(X, error, message):
    functions = trained().sample_functions(2, features=5)
    for call in (functions, functions.gradient, functions.with_pullback):
        with pytest.raises(error, match=message):
            call(X)


def test_parts_without_functions_are_named():
    process = process_case("points")
    with pytest.raises(TypeError, match="Sparse cannot sample functions; .*call `sample`"):
        Process.paths(process, None, None, 1, 1)
    with pytest.raises(TypeError, match="Points has no random features, .*call `sample`"):
        Inducing.random_features(process.inducing, process.kernel, None, 1)
    with pytest.raises(TypeError, match="Whitened cannot sample functions; implement .path_weights"):
        Posterior.path_weights(process.posterior, None, None, None)
