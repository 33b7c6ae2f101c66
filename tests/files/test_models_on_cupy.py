"""Every class of model, kernel and likelihood on the stand-in for CuPy: the numbers of NumPy, in files as well."""

import numpy as np
import pytest
from helpers import assert_close
from model_cases import IMAGES, LIKELIHOODS, MODELS, X, Y, assert_same, check_place, model_of, new_inputs, with_tags

import agp

IMAGE_MODELS = ("patches", "together", "deep-conv")


def data_of(name):
    """Inputs and targets for a model."""
    inputs = IMAGES if name.startswith(IMAGE_MODELS) else with_tags(X) if name == "gpr-slopes" else X
    kind, _, part = name.partition("-")
    if kind == "likelihood":
        return inputs, LIKELIHOODS[part][1]
    if name == "stack":
        return inputs, np.concatenate([Y, Y * Y], axis=1)
    return inputs, 1.0 * (Y > 0.0) if name in ("ensemble", "tnngp", "tvgp") else Y


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_bounds_gradients_and_predictions_are_those_of_numpy(name, cupy_stand_in):
    place, host = cupy_stand_in, model_of(name)
    there, data = place.move(host), data_of(name)
    expected, gradient = agp.value_and_gradient(host, *data)
    value, found = agp.value_and_gradient(there, *map(place.array, data))
    assert_close(place.numpy(value), expected, 1e-9)
    assert found.keys() == gradient.keys()
    for leaf, x in gradient.items():
        scale = max(np.max(np.abs(x)), 1.0)
        np.testing.assert_allclose(place.numpy(found[leaf]), x, atol=1e-8 * scale, err_msg=leaf)
    new = new_inputs(name)
    for one, other in zip(there.predict(place.array(new)), host.predict(new), strict=True):
        assert_close(place.numpy(one), other, 1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_model_comes_back_to_the_bit(name, cupy_stand_in, path):
    model = cupy_stand_in.move(model_of(name))
    agp.save(model, path)
    found = agp.load(path)
    assert_same(found, model)
    check_place(cupy_stand_in, found)
