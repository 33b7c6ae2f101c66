"""Kernels of longitudes and latitudes."""

import numpy as np
import pandas as pd
import pytest
from helpers import as_arrays, assert_close

import agp
from agp import tree
from agp.backend import to_numpy
from agp.kernels import RBF, Matern32, OnSphere, Overlap, parse_kernel
from agp.processes._near import near_search


def places(rows=300, seed=0):
    """Longitudes and latitudes [rows, 2], uniform on the sphere, with both poles and both sides of the date line."""
    rng = np.random.default_rng(seed)
    X = np.stack([rng.uniform(-180.0, 180.0, rows), np.rad2deg(np.arcsin(rng.uniform(-1.0, 1.0, rows)))], axis=1)
    X[:6] = [[10.0, 90.0], [-120.0, 90.0], [33.0, -90.0], [180.0, 5.0], [-180.0, 5.0], [-179.9, 5.0]]
    return X


def angles(X, Z):
    """The great-circle distances [N, M] in radians, by the haversine formula."""
    (lon, lat), (lon_z, lat_z) = np.deg2rad(X.T)[:, :, None], np.deg2rad(Z.T)[:, None, :]
    h = np.sin((lat - lat_z) / 2) ** 2 + np.cos(lat) * np.cos(lat_z) * np.sin((lon - lon_z) / 2) ** 2
    return 2.0 * np.arcsin(np.sqrt(np.clip(h, 0.0, 1.0)))


def test_covariances_depend_on_the_great_circle_distance(backend):
    X, Z = places(40), places(30, seed=1)
    chord = 2.0 * np.sin(angles(X, Z) / 2.0)
    kernel = as_arrays(OnSphere(RBF(0.7, 0.3)))
    found = backend.move(kernel)(backend.array(X), backend.array(Z))[0]
    assert_close(backend.numpy(found), 0.7 * np.exp(-0.5 * (chord / 0.3) ** 2), 1e-12)


@pytest.mark.parametrize("turn", [-360.0, 360.0, 720.0])
def test_full_turns_change_nothing(turn):
    X, kernel = places(), as_arrays(OnSphere(Matern32(1.0, 0.2)))
    np.testing.assert_allclose(kernel(X + np.asarray([turn, 0.0]))[0], kernel(X)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "other",
    [lambda: None, lambda: RBF(1.0, 2.0).on(2), lambda: Overlap(0.9).on(3), lambda: RBF(1.0, 2.0).on_sphere((2, 1))],
)
def test_near_rows_are_those_with_the_largest_correlations(other, backend):
    def inputs(rows, seed):
        rng = np.random.default_rng(seed)
        return np.concatenate([places(rows, seed), rng.uniform(0.0, 4.0, (rows, 1)), rng.integers(0, 3, (rows, 1))], 1)

    X, Q = inputs(400, 0), inputs(30, 1)
    X = X[np.unique(X.round(6)[:, :2], axis=0, return_index=True)[1]][6:]  # without ties
    X = X[np.abs(X[:, 1]) < 89.0]
    kernel, more = RBF(1.0, 0.4).on_sphere((0, 1)), other()
    kernel = as_arrays(kernel if more is None else kernel * more)
    K = kernel(Q, X)[0]
    found = near_search(backend.move(kernel), backend.array(X)).nearest(backend.array(Q), 5)
    np.testing.assert_array_equal(to_numpy(found), np.argsort(-K, axis=1, kind="stable")[:, :5])


def test_one_lengthscale_is_the_default(backend):
    X = backend.array(places())
    kernel = OnSphere(Matern32() + 0.5 * RBF(lengthscale=0.1)).from_data(X, 2.0)
    found = {
        name: np.asarray(x) if isinstance(x, float) else backend.numpy(x)
        for name, x in tree.leaves(kernel, "parameter").items()
    }
    assert found["kernel.parts.0.lengthscale"].shape == ()
    assert abs(found["kernel.parts.0.lengthscale"] - 1.0) < 0.02  # of the whole globe
    assert found["kernel.parts.1.kernel.lengthscale"] == 0.1
    town = backend.array(places() * 1e-4 + np.asarray([178.0, 50.0]))
    small = OnSphere(RBF()).from_data(town, 2.0).kernel.lengthscale
    assert 1e-4 < float(small) * 180.0 / np.pi < 3e-2
    assert float(OnSphere(RBF()).from_data(backend.array(np.zeros((4, 2))), 1.0).kernel.lengthscale) == 1.0


@pytest.mark.parametrize("width", [1, 3, 5])
def test_other_widths_are_refused(width):
    with pytest.raises(ValueError, match=rf"OnSphere acts on {width} columns?, but needs two, the longitude"):
        OnSphere(RBF()).from_data(np.ones((9, width)), 1.0)
    with pytest.raises(ValueError, match="but needs two"):
        RBF().on_sphere(range(width))
    with pytest.raises(ValueError, match="but needs two"):
        as_arrays(OnSphere(RBF(1.0, 1.0))).check(width)


@pytest.mark.parametrize("more", [lambda: 0.1 * agp.Periodic().on(2), lambda: agp.Periodic().on_sphere((0, 1))])
def test_starting_values_are_those_of_places(more):
    X, day = places(60), np.arange(60.0)[:, None]
    y = np.sin(day) + 0.01 * X[:, 1:]
    kernel = Matern32().on_sphere((0, 1)) + more()
    model = agp.GPR.from_data(np.concatenate([X, day], axis=1), y, kernel=kernel)
    assert 0.05 < float(model.kernel.parts[0].kernel.kernel.lengthscale) < 20.0


@pytest.mark.parametrize("latitude", [90.5, -91.0, 179.0])
def test_swapped_columns_are_refused(latitude):
    X = places()
    X[8, 1] = latitude
    with pytest.raises(ValueError, match=f"OnSphere has the latitude {latitude:g}, but .* pass the longitude first"):
        agp.GPR.from_data(X, X[:, :1], kernel=OnSphere(RBF()))


def test_poles_may_have_rounding_errors():
    X = places().astype(np.float32)
    X[0, 1] = np.nextafter(np.float32(90.0), np.float32(91.0))
    assert agp.GPR.from_data(X, X[:, :1], kernel=OnSphere(RBF())).X.shape == X.shape


def test_an_axis_of_another_number_of_lengthscales_is_refused():
    with pytest.raises(ValueError, match=r"RBF has lengthscales of shape \(2,\), but the inputs have 3 columns"):
        agp.GPR.from_data(places(), places()[:, :1], kernel=OnSphere(RBF(lengthscale=[1.0, 2.0])))


def test_text():
    kernel = parse_kernel("matern32(0.2).on_sphere(longitude, 'lat itude') * rbf.on(day) + white")
    sphere = kernel.parts[0].parts[0]
    assert sphere.columns == ("longitude", "lat itude")
    assert isinstance(sphere.kernel, OnSphere)
    assert sphere.kernel.kernel.lengthscale == 0.2
    with pytest.raises(ValueError, match="OnSphere acts on 1 column, but needs two"):
        parse_kernel("rbf.on_sphere(longitude)")
    with pytest.raises(ValueError, match="has '.over"):
        parse_kernel("rbf.over(longitude, latitude)")


def table(rows=400, seed=0):
    """A table with a smooth function on the sphere."""
    X = places(rows, seed)
    lon, lat = np.deg2rad(X.T)
    y = np.sin(3.0 * np.cos(lat) * np.cos(lon)) + 2.0 * np.cos(lat) * np.sin(lon) * np.sin(lat)
    return pd.DataFrame({"depth": np.ones(rows), "latitude": X[:, 1], "longitude": X[:, 0]}), y


@pytest.mark.parametrize(
    "kernel", ["matern52.on_sphere(longitude, latitude)", agp.Matern52().on_sphere(("longitude", "latitude"))]
)
def test_tables_have_places_in_named_columns(kernel):
    X, y = table()
    model = agp.GPRegressor(kernel=kernel).fit(X, y)
    new = pd.DataFrame(
        {"depth": 1.0, "latitude": [20.0, 20.0, 90.0, 90.0], "longitude": [180.0, -180.0, 0.0, 77.0]},
    )
    found = model.predict(new)
    np.testing.assert_allclose(found[::2], found[1::2], rtol=1e-6)
    other, truth = table(200, 1)
    assert np.sqrt(np.mean((model.predict(other) - truth) ** 2)) < 0.02


@pytest.mark.parametrize(
    "kernel",
    [
        RBF().on_sphere(("longitude", "latitude")) + RBF().on("depth"),
        RBF(lengthscale=[0.5, 0.6, 0.7]).on_sphere(("longitude", "latitude")) + RBF().on("depth"),
        agp.Projected(RBF(), np.eye(3, 4)) + RBF().on("depth"),
    ],
)
def test_relevance_lists_the_lengthscales_of_columns_alone(kernel):
    X, y = table(60)
    X["depth"] = np.random.default_rng(2).uniform(size=60)
    model = agp.GPRegressor(kernel=kernel).fit(X, y)
    found = agp.inspection.kernel_relevance(model, X)
    assert [one.column for one in found.lengthscales] == ["depth"]


def test_functions_are_continuous_at_the_date_line():
    X, y = table(60)
    X = X[["longitude", "latitude"]].to_numpy()
    model = agp.GPR.from_data(X, y, kernel=as_arrays(OnSphere(RBF(1.0, 0.5))), likelihood=agp.Gaussian(0.01))
    draw = model.sample_functions(3, seed=0)
    ends = draw(np.asarray([[180.0, 3.0], [-180.0, 3.0], [0.0, -90.0], [100.0, -90.0]]))
    np.testing.assert_allclose(ends[:, ::2], ends[:, 1::2], rtol=1e-9, atol=1e-9)
