"""Patches of images: how they are cut, what they cost, where they start, and what is refused."""

import numpy as np
import pytest
from helpers import as_arrays, assert_close, assert_closed_form_is_autograd, assert_closed_form_is_slope, peak
from process_cases import cut_by_loops, points, process_case, sparse

import agp
from agp.backend import backend_of
from agp.chunking import CACHE, mebibytes
from agp.inducing import JointInducing, Patches, PatchGrid, Points, some_rows
from agp.inducing import _equal_patches as equal_patches
from agp.inducing import _patches as patches_module
from agp.inducing._patch_grid import _scatter
from agp.kernels import RBF, Matern12, Matern32, White
from agp.kernels import _quadratic_forms as forms
from agp.processes import Deep, LinearMixing, Patchwise, Sparse, Stack
from agp_backends._numpy import NumpyBackend

GRIDS = {
    "plain": PatchGrid((4, 5), (2, 3)),
    "whole": PatchGrid((4, 5), (4, 5)),
    "pixels": PatchGrid((4, 5), (1, 1)),
    "stride": PatchGrid((5, 4), (2, 2), stride=2),
    "wide stride": PatchGrid((7, 5), (2, 2), stride=3),
    "padding": PatchGrid((3, 4), (3, 2), padding=2),
    "colours": PatchGrid((3, 4), (2, 2), channels=3),
    "each colour": PatchGrid((3, 4), (2, 2), channels=3, per_channel=True),
    "places": PatchGrid((3, 4), (2, 2), channels=2, located=True),
    "all": PatchGrid((4, 5), (3, 2), stride=2, padding=1, channels=2, per_channel=True, located=True),
}


@pytest.mark.parametrize("grid", GRIDS.values(), ids=list(GRIDS))
def test_cuts_are_those_of_loops_and_their_adjoint(grid, torch_place):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(3, grid.width))
    expected = cut_by_loops(grid, X)
    patches, pull = grid(X)
    np.testing.assert_array_equal(patches, expected)
    assert patches.shape == (3, grid.number, grid.columns)
    bar, moved = rng.normal(size=patches.shape), rng.normal(size=X.shape)
    # <bar, cut(moved) - cut(0)> = <pull(bar), moved>
    linear = grid(moved)[0] - grid(np.zeros_like(X))[0]
    assert np.sum(bar * linear) == pytest.approx(np.sum(pull(bar) * moved), rel=1e-12)
    stage = lambda leaves: ((grid(leaves["X"])[0],), lambda b: {"X": grid(leaves["X"])[1](b)})  # noqa: E731
    assert_closed_form_is_autograd(stage, {"X": X})


@pytest.mark.parametrize("step", [1, 3])
def test_scattered_values_fill_an_axis_of_the_size_asked_for(step):
    x = np.arange(1.0, 7.0).reshape(2, 3)
    expected = np.zeros((2, 11))
    expected[:, 2 : 3 + 2 * step : step] = x
    np.testing.assert_array_equal(_scatter(x, 1, 2, step, 11), expected)


@pytest.mark.parametrize("backend", ["torch", "strict-device1", "cupy", "cupy-stand-in"], indirect=True)
@pytest.mark.parametrize("grid", GRIDS.values(), ids=list(GRIDS))
def test_cuts_are_the_same_everywhere(grid, backend):
    X = np.random.default_rng(1).normal(size=(2, grid.width))
    patches, pull = grid(X)
    found, pull_there = grid(backend.array(X))
    np.testing.assert_array_equal(backend.numpy(found), patches)
    assert_close(backend.numpy(pull_there(found)), pull(patches), 1e-14)


# -- weighted sums of covariances -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 7, 12])
def test_quadratic_forms_by_strips_are_those_of_the_square(size, torch_place):
    height = max(1, size // 3)
    rng = np.random.default_rng(size)
    X, w = rng.normal(size=(2, size, 3)), rng.normal(size=(2, size))
    kernel = as_arrays(RBF(1.3, (1.0, 0.8, 1.2)) + White(0.3))
    K = np.stack([kernel(group)[0] for group in X])
    expected = np.vecdot(w, (K @ w[:, :, None])[:, :, 0])
    np.testing.assert_allclose(forms.quadratic_forms(kernel, X, w, height)[0], expected, rtol=1e-13)

    def stage(leaves):
        place = backend_of(leaves["X"]).name
        value, pull = forms.quadratic_forms(agp.tree.to_backend(kernel, place), leaves["X"], leaves["w"], height)

        def pullback(bar):
            _, X_bar, w_bar = pull(bar)
            return {"X": X_bar, "w": w_bar}

        return (value,), pullback

    assert_closed_form_is_autograd(stage, {"X": X, "w": w})
    assert_closed_form_is_slope(stage, {"X": X, "w": w})
    bar = np.asarray([1.7, -0.6])
    square = forms.quadratic_forms(kernel, X, w, height)[1](bar)[0]
    whole = forms.quadratic_forms(kernel, X, w, size)[1](bar)[0]
    for name, x in agp.tree.leaves(whole).items():
        assert_close(agp.tree.leaves(square)[name], x, 1e-12, name)


# -- equal patches ----------------------------------------------------------------------------------------------------


def _blank(N, rng):
    """Images of 6 x 6 pixels with a few that are not zero, and one image without any blank patch."""
    X = np.zeros((N, 6, 6))
    X[:, 2:4, 2:4] = rng.normal(size=(N, 2, 2))
    X[0, 2:5, 3] = 1.0
    return np.reshape(X, (N, 36))


MERGED = {
    "trained weights": (RBF(1.2, 0.8), "trained"),
    "no weights": (Matern32(0.7, 1.1), None),
    "weights that cancel": (RBF(1.2, 0.8), "cancel"),
    "white": (RBF(1.2, 0.8) + White(0.3), "trained"),
}


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("name", MERGED)
def test_equal_patches_count_once_and_nothing_changes(name, rows, torch_place, monkeypatch):
    rng = np.random.default_rng(0)
    kernel, kind = MERGED[name]
    weights = {"trained": rng.normal(size=25) + 0.5, None: None, "cancel": np.where(np.arange(25) % 2, 1.0, -1.0)}[kind]
    place = as_arrays(Patches((6, 6), (2, 2), rng.normal(size=(5, 4)), weights=weights))
    kernel, X = as_arrays(kernel), _blank(4, rng)
    monkeypatch.setattr("agp.inducing._patches.cached_rows", lambda *_: rows)
    kept = []
    usual = equal_patches._equal_to_first
    monkeypatch.setattr(equal_patches, "_equal_to_first", lambda *a: kept.append(usual(*a)) or kept[-1])

    def found(share):
        monkeypatch.setattr(equal_patches, "MAX_MERGED_FRACTION", share)
        (K, pull_cross), (d, pull_diag) = place.cross(kernel, X), place.diag(kernel, X)
        return (K, d), (pull_cross(np.cos(K)), pull_diag(np.sin(d)))

    (K, d), bars = found(0.9)
    assert any(one is not None for one in kept) == (kind != "cancel")
    (K0, d0), bars0 = found(0.0)
    assert_close(K, K0, 1e-13)
    assert_close(d, d0, 1e-13)
    for some, plain in zip(bars, bars0, strict=True):
        assert_close(some[2], plain[2], 1e-12, "X")
        for model, expected in zip(some[:2], plain[:2], strict=True):
            for leaf, x in agp.tree.leaves(expected).items():
                assert_close(agp.tree.leaves(model)[leaf], x, 1e-12, leaf)
    # programs that differentiate by the pixels see each patch by itself
    stage = lambda leaves: _cross_and_diag(place, kernel, leaves["X"])  # noqa: E731
    assert_closed_form_is_autograd(stage, {"X": X})


def _cross_and_diag(place, kernel, X):
    here = backend_of(X).name
    place, kernel = (agp.tree.to_backend(x, here) for x in (place, kernel))
    (K, pull_cross), (d, pull_diag) = place.cross(kernel, X), place.diag(kernel, X)
    return (K, d), lambda K_bar, d_bar: {"X": pull_cross(K_bar)[2] + pull_diag(d_bar)[2]}


# -- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("kernel", [RBF(1.0, 1.0), Matern12(1.0, 1.0)], ids=["rbf", "matern12"])
@pytest.mark.parametrize(("inducing", "images"), [(20, 60), (150, 40)])
def test_peaks_follow_the_budget_and_not_the_data(inducing, images, kernel):
    # the covariances of patches alone would take 8 N Q^2 bytes: 67 MiB of the first case
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(images, 20 * 20)), rng.normal(size=(images, 1))
    place = Patches((20, 20), (3, 3), rng.normal(size=(inducing, 9)), weights=1.0)
    model = agp.SVGP.from_data(X[:3], y[:3], kernel=kernel, inducing=place)
    Q = model.process.inducing.number
    whole = 8 * images * Q * (Q + inducing) / 2**20
    for budget in (2.0, 16.0):
        limit = budget + 1.5 * CACHE + 3.0
        assert limit < 0.75 * whole  # so it means something
        assert peak(lambda b=budget: agp.value_and_gradient(model, X, y, memory=b)) < limit
        assert peak(lambda b=budget: model.predict(X, memory=b)) < limit


@pytest.mark.long
@pytest.mark.parametrize("located", [False, True])
def test_on_a_device_images_follow_the_budget_as_rows_do(located, monkeypatch):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(12, 12 * 12)), rng.normal(size=(12, 1))
    place = Patches((12, 12), (3, 3), weights=1.0, located=located)
    model = agp.SVGP.from_data(X, y, inducing=place, num_inducing=10)
    on_host = agp.value_and_gradient(model, X, y + 1.0)
    monkeypatch.setattr(NumpyBackend, "device_memory", lambda _self, _x: 80.0 * 2**10)
    least = mebibytes(model.process.floats_per_row, X)  # of one image
    budgets = least, 4 * least, None
    peaks = [peak(lambda b=budget: agp.value_and_gradient(model, X, y, memory=b)) for budget in budgets]
    assert peaks[0] < least + 1.0
    assert peaks[0] < 0.5 * peaks[1] < 2.0 * least + 1.0
    assert peaks[1] < 0.6 * peaks[2]  # which holds the covariances of all images
    for budget in budgets:
        value, gradient = agp.value_and_gradient(model, X, y + 1.0, memory=budget)
        assert float(value) == pytest.approx(float(on_host[0]), rel=1e-12)
        for name, x in gradient.items():
            assert_close(x, on_host[1][name], 1e-10, name)


@pytest.mark.parametrize(("fit", "evaluated"), [(6, [6]), (5, [5, 1, 5, 1])])
def test_on_a_device_images_that_fit_are_evaluated_once(fit, evaluated, monkeypatch):
    sizes, usual = [], patches_module._responses
    monkeypatch.setattr(NumpyBackend, "device_memory", lambda _self, _x: 80.0 * 2**10)
    monkeypatch.setattr(patches_module, "cached_rows", lambda _floats, _X: fit)
    monkeypatch.setattr(patches_module, "_responses", lambda p, x: sizes.append(x.shape[0]) or usual(p, x))
    value, pull = Patches((3, 4), (2, 2), _images(5, 4)).cross(as_arrays(RBF(1.0, 1.0)), _images(6, 12))
    pull(value)
    assert sizes == evaluated


@pytest.mark.long
def test_joint_predictions_hold_a_few_pairs_of_images():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 20 * 20)), rng.normal(size=(40, 1))
    model = agp.SVGP.from_data(X, y, inducing=Patches((20, 20), (3, 3)), num_inducing=10)
    Q = model.process.inducing.number
    assert peak(lambda: model.predict_covariance(X)) < 80.0 < 0.1 * 8 * (40 * Q) ** 2 / 2**20


# -- starts -----------------------------------------------------------------------------------------------------------


def _images(N, width, seed=0):
    return np.random.default_rng(seed).normal(size=(N, width))


def test_places_start_at_those_of_chosen_patches():
    X = _images(30, 20)
    grid = PatchGrid((4, 5), (2, 2), located=True)
    process = Sparse.from_data(X, inducing=Patches((4, 5), (2, 2), located=True), num_inducing=8, posterior="whitened")
    places = np.unique(grid.places(X), axis=0)
    np.testing.assert_array_equal(places[[0, -1]], [[0.5, 0.5], [2.5, 3.5]])
    Z = process.inducing.Z
    assert Z.shape == (8, 6)
    assert np.all(Z[:, 4:] >= places.min(axis=0))
    assert np.all(Z[:, 4:] <= places.max(axis=0))
    assert np.unique(Z[:, 4:], axis=0).shape[0] > 1
    np.testing.assert_allclose(process.inducing.Z_unit[4:], grid.places(X).std(axis=0))
    pixels, place = process.kernel.parts
    assert (pixels.columns, place.columns) == ((0, 1, 2, 3), (4, 5))
    assert isinstance(place.kernel, Matern32)
    np.testing.assert_allclose(place.kernel.lengthscale, np.sqrt(2.0) * grid.places(X).std(axis=0))


def test_patches_of_one_place_have_a_kernel():
    # a patch as large as the image: places do not vary, and their units are their size
    X = _images(30, 20)
    y = X[:, :1]
    model = agp.SVGP.from_data(X, y, inducing=Patches((4, 5), (4, 5), located=True, weights=1.0), num_inducing=8)
    np.testing.assert_array_equal(model.process.inducing.Z_unit[-2:], [1.5, 2.0])
    value, gradient = agp.value_and_gradient(model, X, y)
    assert np.isfinite(float(value))
    assert all(np.isfinite(x).all() for x in gradient.values())


def test_a_number_is_where_all_weights_start():
    process = Sparse.from_data(_images(9, 12), inducing=Patches((3, 4), (2, 2), weights=0.5), num_inducing=3)
    np.testing.assert_array_equal(process.inducing.weights, np.full(6, 0.5))


@pytest.mark.parametrize("variance", [1.0, 7.0])
def test_the_average_starts_with_the_variance_of_the_targets(variance):
    X = _images(50, 12)
    for weights in (None, 2.0):
        process = Sparse.from_data(
            X, inducing=Patches((3, 4), (2, 2), weights=weights), num_inducing=3, variance=variance
        )
        assert float(process.kernel.variance) > 1.05 * variance or weights is not None
        few = some_rows(X, len(X), 0)[:20]
        assert float(process.inducing.diag(process.kernel, few)[0].mean()) == pytest.approx(variance, rel=1e-10)
    given = Sparse.from_data(X, kernel=RBF(3.0), inducing=Patches((3, 4), (2, 2)), num_inducing=3, variance=variance)
    assert float(given.kernel.variance) == 3.0


def test_parts_of_a_sum_have_their_usual_kernels():
    together = JointInducing((Patches((3, 4), (2, 2), located=True), Points()))
    process = Sparse.from_data(_images(9, 12), inducing=together, num_inducing=6)
    assert isinstance(process.kernel.parts[1], RBF)
    assert len(process.kernel.parts[0].parts) == 2


def test_default_settings_are_patches_of_one_channel():
    X = _images(5, 12)
    expected = np.stack([X.reshape(5, 3, 4)[:, i : i + 2, j : j + 2].reshape(5, 4) for i in range(2) for j in range(3)])
    np.testing.assert_array_equal(Patches((3, 4), (2, 2)).grid(X)[0], np.swapaxes(expected, 0, 1))


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Patches((3, 4), (2, 2), stride=0), "stride is 0, but must be a whole number of at least 1"),
        (lambda: Patches((3, 4), (2, 2), stride=1.5), "stride is 1.5, but must be a whole number of at least 1"),
        (lambda: Patches((3, 4), (2, 2), padding=-1), "padding is -1, but must be a whole number of at least 0"),
        (lambda: Patches((3, 4), (2, 2), channels=0), "channels is 0, but must be a whole number of at least 1"),
        (lambda: Patches((3, 4, 3), (2, 2)), r"image is \(3, 4, 3\), but must be a pair of whole numbers"),
        (lambda: Patches(12, (2, 2)), "image is 12, but must be a pair of whole numbers"),
        (lambda: Patches((3, 4), (0, 2)), "a side of patch is 0, but must be a whole number of at least 1"),
        (lambda: Patches((3, 0), (2, 2)), "a side of image is 0, but must be a whole number of at least 1"),
    ],
)
def test_settings_that_are_none_are_refused_where_patches_are_built(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (Patches((3, 4), (4, 2)), "patches of 4 x 2 pixels do not fit into images of 3 x 4."),
        (
            Patches((3, 4), (2, 9), padding=2),
            "patches of 2 x 9 pixels do not fit into images of 3 x 4 with 2 pixels of zeros around them",
        ),
        (Patches((3, 3), (2, 2)), "X has 12 columns, but images of 3 x 3 pixels need 9"),
        (Patches((3, 4), (2, 2), channels=3), "X has 12 columns, but images of 3 x 4 pixels and 3 channels need 36"),
        (
            Patches((2, 3), (2, 2), np.ones((2, 4)), channels=2),
            "Z has 4 columns, but patches of 2 x 2 pixels and 2 channels need 8",
        ),
        (
            Patches((2, 3), (2, 2), np.ones((2, 3)), channels=2, per_channel=True),
            "Z has 3 columns, but patches of 2 x 2 pixels need 4",
        ),
        (
            Patches((3, 4), (2, 2), weights=np.ones(5)),
            r"weights has shape \(5,\), but the images have 6 patches",
        ),
    ],
)
def test_images_that_do_not_fit_are_refused(place, message):
    X = _images(5, 12)
    with pytest.raises(ValueError, match=message):
        agp.SVGP.from_data(X, X[:, 0], inducing=place)


def test_inducing_patches_without_their_channels_are_refused():
    place = Patches((2, 3), (2, 2), np.ones((2, 4)), channels=2, located=True)
    with pytest.raises(ValueError, match="Z has 4 columns, but patches of 2 x 2 pixels and 2 channels with places"):
        place.check(RBF(1.0, 1.0))


# -- a process of every patch -----------------------------------------------------------------------------------------


def _each(kind="whitened", outputs=2, **settings):
    rng = np.random.default_rng(4)
    grid = PatchGrid((3, 4), (2, 2), **settings)
    return Patchwise(sparse(RBF(0.9, 1.6), points(5, grid.columns, rng), kind, outputs, rng), grid)


@pytest.mark.parametrize("kind", ["whitened", "marginal", "relaxed", "likelihood", "inverse-free", "orthogonal"])
def test_each_patch_has_the_marginals_of_the_process_there(kind):
    layer, X = _each(kind), _images(5, 12)
    factor = layer.factorise()[0]
    mu, var = layer.project(factor, X)[0]
    assert mu.shape == var.shape == (5, layer.outputs) == (5, 6 * 2)
    assert_close(layer.project_mean(factor, X), mu, 1e-12)
    cut = cut_by_loops(layer.grid, X)
    for q in range(6):
        mean, variance = layer.process.project(factor, cut[:, q])[0]
        assert_close(mu[:, 2 * q : 2 * q + 2], mean, 1e-12)
        assert_close(var[:, 2 * q : 2 * q + 2], variance, 1e-12)


def test_samples_of_each_patch_have_its_moments():
    layer, X, S = _each(padding=1, stride=2), _images(2, 12), 20_000
    factor = layer.factorise()[0]
    mu, var = layer.project(factor, X)[0]
    noise = np.random.default_rng(0).normal(size=(S, 2, layer.latents))
    samples = layer.sample_marginals(factor, X, noise)[0].reshape(S, 2, layer.outputs)
    assert np.all(np.abs(samples.mean(axis=0) - mu) < 5.0 * np.sqrt(var / S))
    np.testing.assert_allclose(samples.var(axis=0), var, rtol=5.0 * np.sqrt(2.0 / S))


@pytest.mark.parametrize("name", ["each", "deep-images", "deep-places"])
def test_functions_of_images_are_those_of_their_patches(name):
    X = _images(4, 12)
    process = _each() if name == "each" else process_case(name)
    paths = process.paths(process.factorise()[0], np.random.default_rng(2), 3, 40)
    values, pull = paths.evaluate(X)
    assert values.shape == (3, 4, process.outputs) == (paths.count, 4, paths.outputs)
    np.testing.assert_allclose(paths.evaluate(X[2:])[0], values[:, 2:], rtol=1e-11)
    rng = np.random.default_rng(3)
    bar, direction = rng.normal(size=values.shape), rng.normal(size=X.shape)
    ends = [np.sum(bar * paths.evaluate(X + h * direction)[0]) for h in (1e-5, -1e-5)]
    assert np.sum(pull(bar) * direction) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6)
    if name == "each":  # the same patch has the same value, wherever it stands
        same = np.tile([1.0, 2.0], (1, 6))
        found = paths.evaluate(same)[0].reshape(3, 2, 3, 2)
        np.testing.assert_allclose(found[:, 0], found[:, 1], rtol=1e-12)
        np.testing.assert_allclose(found[:, :, 0], found[:, :, 2], rtol=1e-12)


def test_one_patch_as_large_as_the_image_changes_nothing():
    rng = np.random.default_rng(4)
    process, X = sparse(RBF(0.9, 3.0), points(5, 12, rng), "whitened", 2, rng), _images(4, 12)
    layer, factor = Patchwise(process, PatchGrid((3, 4), (3, 4))), process.factorise()[0]
    for found, expected in zip(layer.project(factor, X)[0], process.project(factor, X)[0], strict=True):
        assert_close(found, expected, 1e-14)
    assert_close(layer.project_covariance(factor, X), process.project_covariance(factor, X), 1e-14)
    assert not layer.correlated


def test_what_images_do_not_offer_is_refused():
    model = agp.SVGP(process=_each(), likelihood=as_arrays(agp.Gaussian(0.1)))
    for refused in (model.predict_covariance, model.sample):
        with pytest.raises(TypeError, match="its outputs are values of one function"):
            refused(_images(3, 12))
    with pytest.raises(ValueError, match="the process of a LinearMixing has dependent outputs"):
        LinearMixing(_each(), np.ones((1, 12))).check()
    with pytest.raises(ValueError, match="needs independent latent functions"):
        agp.SVGP(process=_each(), likelihood=agp.RobustMax(12))


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: Patchwise(RBF(), PatchGrid((3, 4), (2, 2))), TypeError, "the process of a Patchwise is RBF"),
        (lambda: Patchwise(_each().process, (3, 4)), TypeError, r"the grid of a Patchwise is \(3, 4\), but must be"),
        (
            lambda: Patchwise(Deep((_each(), _each())), PatchGrid((3, 4), (2, 2))),
            TypeError,
            "the process of a Patchwise must not be a sampled process; apply Patchwise to each layer",
        ),
        (
            lambda: Patchwise(_each().process, PatchGrid((3, 4), (3, 2))).check(),
            ValueError,
            "takes inputs with 4 columns, but patches of 3 x 2 pixels have 6",
        ),
        (
            lambda: Patchwise(_each().process, PatchGrid((3, 4), (4, 1))).check(),
            ValueError,
            "patches of 4 x 1 pixels do not fit into images of 3 x 4",
        ),
        (
            lambda: Stack((_each(), Patchwise(_each().process, PatchGrid((3, 3), (2, 2))))).check(),
            ValueError,
            r"the parts of a Stack take inputs with different numbers of columns \(12, 9\)",
        ),
    ],
)
def test_layers_that_do_not_fit_are_refused(build, error, message):
    with pytest.raises(error, match=message):
        build()
