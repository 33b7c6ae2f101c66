"""Deep convolutional GPs from data: shapes, starts, training, and what is refused."""

import numpy as np
import pytest
from helpers import EXACT, assert_close, relative_error

import agp
from agp import tree
from agp.inducing import Patches
from agp.kernels import RBF, Matern32, Product
from agp.models import DeepGP
from agp.processes import LinearMixing, Patchwise, Sparse, Stack
from agp.updates import InverseUpdate

N = 40


def problem(width=36, seed=0):
    """Images of 6 x 6 pixels with a bright spot, and whether it stands in the upper half."""
    rng = np.random.default_rng(seed)
    images = 0.1 * rng.normal(size=(N, 6, width // 6))
    rows = rng.integers(0, 5, N)
    columns = rng.integers(0, 5, N)
    for image, i, j in zip(images, rows, columns, strict=True):
        image[i : i + 2, j : j + 2] += 1.0
    return images.reshape(N, width), 1.0 * (rows < 2)[:, None]


def built(**options):
    X, y = problem()
    chosen = {"image": (6, 6), "patch": (3, 2), "channels": (3,), "num_inducing": 8} | options
    return DeepGP.convolutional(X, y, **chosen), X, y


def test_layers_fit_each_other():
    model, X, _ = built(
        channels=(3, 2), patch=((3, 2), 2, 3), stride=(1, 1, 2), padding=(0, 1, 0), num_inducing=(8, 7, 6)
    )
    first, second, last = model.process.layers
    assert isinstance(first, Patchwise)
    assert (first.grid.shape, first.outputs) == ((4, 5), 4 * 5 * 3)
    assert (second.grid.channels, second.grid.shape, second.outputs) == (3, (5, 6), 5 * 6 * 2)
    assert isinstance(last.inducing, Patches)
    assert (last.inducing.grid.shape, last.inducing.channels) == ((2, 2), 2)
    np.testing.assert_array_equal(last.inducing.weights, np.ones(4))
    assert [node.inducing.count for node in tree.nodes(model, Sparse).values()] == [8, 7, 6]
    model._check(model._batch(*problem()))
    assert model.predict(X[:3]).mean.shape == (3, 1)


def test_inner_layers_start_close_to_what_they_pass_on():
    model, X, _ = built(posterior="whitened")
    first = model.process.layers[0]
    rows = first.grid.rows(X)[0]
    passed = first.process.mean_function(rows)[0]
    assert float(passed.var(axis=0).mean()) == pytest.approx(1.0, rel=1e-10)
    assert np.all(np.diff(passed.var(axis=0)) < 0.0)  # leading directions first
    mean, variance = first.project(first.factorise()[0], X)[0]
    assert_close(mean, passed.reshape(N, -1), 1e-12)
    assert float(variance.max()) < 1e-3


def test_located_layers_know_places_and_pass_on_pixels():
    model, X, y = built(located=True)
    first, last = model.process.layers
    for kernel, pixels in ((first.process.kernel, 9), (last.kernel, 12)):
        assert isinstance(kernel, Product)
        assert isinstance(kernel.parts[1].kernel, Matern32)
        assert kernel.parts[1].columns == (pixels, pixels + 1)
    np.testing.assert_array_equal(first.process.mean_function.weights[9:], 0.0)
    assert np.isfinite(float(model.bound(X, y)[0]))


def test_colours_are_the_last_numbers_of_an_image():
    X, y = problem(72)
    model = DeepGP.convolutional(X, y, image=(6, 6, 2), patch=3, num_inducing=5, weighted=False)
    assert model.process.layers[0].grid.channels == 2
    assert model.process.layers[1].inducing.weights is None


@pytest.mark.slow
@pytest.mark.parametrize("posterior", ["whitened", "relaxed", "inverse-free", "likelihood-form"])
def test_gradients_are_those_of_torch(posterior, torch_place):
    model, X, y = built(posterior=posterior, located=(True, False), padding=(1, 0), likelihood=agp.Bernoulli())
    rng, batch = np.random.default_rng(5), model._batch(X, y)
    means = {name: x for name, x in tree.leaves(model).items() if name.endswith("posterior.mean")}
    model = tree.with_leaves(model, {name: x + rng.normal(size=x.shape) for name, x in means.items()})
    if posterior in ("relaxed", "inverse-free"):  # the gradient of A-SVGP is that of the bound at the exact inverse
        update = InverseUpdate(tolerance=1e-12)
        model = update(model, batch, update.init(model))[0]
    expected = agp.value_and_gradient(model, X, y)[1]
    here = torch_place.move(model), torch_place.array(X), torch_place.array(y)
    for mode in ("closed-form", "autodiff"):
        found = agp.value_and_gradient(*here, gradient=mode)[1]
        assert found.keys() == expected.keys()
        for name, x in expected.items():
            assert relative_error(torch_place.numpy(found[name]), x) < 10.0 * EXACT, name


@pytest.mark.long
@pytest.mark.parametrize(("posterior", "located"), [("whitened", False), ("relaxed", False), ("whitened", True)])
def test_training_finds_where_the_spot_is(posterior, located):
    model, X, y = built(likelihood=agp.Bernoulli(), posterior=posterior, located=located)
    before = float(model.bound(X, y)[0])
    result = agp.train(model, X, y, steps=150, batch_size=20)
    assert float(result.model.bound(X, y)[0]) > before + 1.0
    new, truth = problem(seed=1)
    wrong = np.mean((result.model.predict(new, observed=True).mean > 0.5) != truth)
    assert wrong < 0.2


def test_blocks_and_float32():
    model, X, y = built()
    value, gradient = agp.value_and_gradient(model, X, y)
    blocked, found = agp.value_and_gradient(model, X, y, memory=0.3)
    assert model._block_rows(X, 0.3) < N
    assert float(blocked) == pytest.approx(float(value), rel=1e-12)
    largest = max(np.abs(x).max() for x in gradient.values())
    for name, x in gradient.items():
        np.testing.assert_allclose(found[name], x, rtol=1e-8, atol=1e-12 * largest, err_msg=name)
    single = agp.to_backend(model, "numpy", dtype="float32")
    assert float(single.bound(X.astype(np.float32), y.astype(np.float32))[0]) == pytest.approx(float(value), rel=1e-3)


def test_a_deep_layer_beside_ordinary_ones():
    # the sum of a convolutional response and an ordinary process on top of an image layer
    model, X, y = built()
    first, last = model.process.layers
    H = first.project_mean(first.factorise()[0], X)
    both = LinearMixing(Stack((last, Sparse.from_data(H, num_inducing=5))), np.ones((1, 2)))
    deep = DeepGP(agp.processes.Deep((first, both), samples=2), model.likelihood)
    deep._check(deep._batch(X, y))
    assert all(np.isfinite(x).all() for x in agp.value_and_gradient(deep, X, y)[1].values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image": (6, 7)}, "X has 36 columns, but images of 6 x 7 pixels need 42"),
        ({"image": (6, 6, 3)}, "X has 36 columns, but images of 6 x 6 pixels and 3 channels need 108"),
        ({"image": 36}, r"image is 36, but must be \(H, W\), or \(H, W, C\) for C channels"),
        ({"image": (6, 6, 0)}, "channels is 0, but must be a whole number of at least 1"),
        ({"patch": 7}, "layer 0: patches of 7 x 7 pixels do not fit into images of 6 x 6"),
        ({"patch": (4, 4)}, "layer 1: patches of 4 x 4 pixels do not fit into images of 3 x 3"),
        ({"patch": (3, 3, 3)}, "patch has 3 entries, but there are 2 layers"),
        ({"stride": 0}, "stride is 0, but must be a whole number of at least 1"),
        ({"padding": (0, -1)}, "padding is -1, but must be a whole number of at least 0"),
        ({"channels": (0,)}, "channels is 0, but must be a whole number of at least 1"),
        ({"channels": ()}, "patch has 2 entries, but there is 1 layer"),
        ({"samples": 0}, "samples is 0, but must be a whole number of at least 1"),
        ({"kernel": (RBF(lengthscale=(1.0, 2.0)), RBF())}, "RBF has lengthscales of shape"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        built(**options)
