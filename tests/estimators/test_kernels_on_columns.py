"""Kernels on columns of tables: by name, by number, on places, in sums and in text."""

import numpy as np
import pandas as pd
import pytest

import agp
from agp.estimators import GPClassifier, GPRegressor

RNG = np.random.default_rng(0)
TABLE = pd.DataFrame(
    {
        "kind": RNG.choice(["x", "y"], 40),
        "a": RNG.uniform(-2.0, 2.0, 40),
        "lon": RNG.uniform(-10.0, 10.0, 40),
        "lat": RNG.uniform(40.0, 50.0, 40),
    }
)
Y = np.sin(2.0 * TABLE["a"].to_numpy()) + 0.1 * RNG.standard_normal(40)
NUMBERS = TABLE[["a", "lon", "lat"]]

pytestmark = pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")


def kernel_of(kernel, table=TABLE, **settings):
    return GPRegressor(kernel=kernel, hyperparameters="mode", max_steps=2, **settings).fit(table, Y).model_.kernel


@pytest.mark.parametrize(
    "kernel", [agp.RBF().on_sphere(("lon", "lat")), "rbf.on_sphere(lon, lat)", "rbf.on_sphere('lon', 'lat')"]
)
def test_places_are_named(kernel):
    found = kernel_of(kernel)  # the model inputs are a, lon, lat, kind
    assert found.columns == (1, 2)
    assert isinstance(found.kernel, agp.kernels.OnSphere)
    both = kernel_of(agp.Matern32().on(("a",)) + agp.RBF().on_sphere(("lon", "lat")))
    assert [part.columns for part in both.parts] == [(0,), (1, 2)]


@pytest.mark.parametrize(
    "kernel",
    [
        agp.RBF().on((1,)),
        agp.RBF().on_sphere((2, 3)),
        agp.RBF().on(("a",)) + agp.Matern32().on_sphere((2, 3)),
        2.0 * agp.RBF().on((1,)) * agp.Linear(),
    ],
)
@pytest.mark.parametrize("kind", [GPRegressor, GPClassifier])
def test_numbers_of_moved_columns_are_refused(kind, kernel):
    words = r"acts on column number [123], but columns of the table were moved.*; use names, as in on\(\('a',\)\)"
    with pytest.raises(ValueError, match=words):
        kind(kernel=kernel).fit(TABLE, Y > 0.0 if kind is GPClassifier else Y)


@pytest.mark.parametrize("rows", [NUMBERS, NUMBERS.to_numpy()])
def test_numbers_of_columns_that_stay_are_taken(rows):
    found = kernel_of(agp.RBF().on((0,)) + agp.RBF().on_sphere((1, 2)), rows)
    assert [part.columns for part in found.parts] == [(0,), (1, 2)]


def test_numbers_in_text_are_those_of_arrays():
    assert kernel_of("rbf.on(1)", NUMBERS.to_numpy()).columns == (1,)
    assert kernel_of("rbf.on_sphere(1, 2)", NUMBERS.to_numpy()).columns == (1, 2)
    with pytest.raises(ValueError, match="RBF acts on column '1', which the table does not have; the columns are a, l"):
        kernel_of("rbf.on(1)", NUMBERS)
    with pytest.raises(ValueError, match="OnSphere acts on column 'lon', but the rows are an array; use numbers"):
        kernel_of("rbf.on_sphere(lon, lat)", NUMBERS.to_numpy())
    numbered = NUMBERS.rename(columns={"a": 4, "lon": 7, "lat": 9})
    assert kernel_of("rbf.on(7)", numbered).columns == (1,)
    assert kernel_of("rbf.on_sphere(7, 9)", numbered).columns == (1, 2)


@pytest.mark.parametrize("kernel", [agp.RBF().on_sphere(("kind", "lat")), "linear + rbf.on_sphere(kind, lat)"])
def test_places_are_no_categories(kernel):
    with pytest.raises(ValueError, match="OnSphere acts on column 'kind', which has categories, but needs degrees"):
        kernel_of(kernel)


def test_places_are_known():
    holed = NUMBERS.copy()
    holed.iloc[3, 1] = np.nan
    with pytest.raises(ValueError, match="OnSphere acts on column 'lon', which has missing cells, but needs degrees"):
        kernel_of(agp.RBF().on_sphere(("lon", "lat")), holed, missing="impute")
    assert kernel_of(agp.RBF().on_sphere(("a", "lat")), holed, missing="impute").columns == (0, 2)


def test_categories_are_named():
    found = kernel_of(agp.RBF().on(("kind", "a")))
    assert found.columns == (3, 0)
    with pytest.raises(ValueError, match="OnSphere acts on column 'latt', which .*; did you mean 'lat'"):
        kernel_of(agp.RBF().on_sphere(("lon", "latt")))
