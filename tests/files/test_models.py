"""Models in files: what is loaded is what was saved, to the bit, on any library."""

from typing import NamedTuple

import numpy as np
import pytest
from helpers import JAX, NUMPY, STRICT, TORCH, assert_close
from model_cases import (
    COVERING,
    KERNELS,
    LIKELIHOODS,
    MODELS,
    PREDICTORS,
    X,
    Y,
    assert_same,
    check_place,
    model_of,
    new_inputs,
    settings_of,
    structure_of,
)
from safetensors import safe_open

import agp
from agp import io, kernels, likelihoods, tree
from agp.backend import get_backend
from agp.io._classes import _agp_classes
from agp.kernels import RBF, Matern32

PLACES = {"numpy": NUMPY, "torch": TORCH, "strict": STRICT, "jax": JAX}


def classes_in(node):
    if isinstance(node, dict):
        return {node["class"]} | classes_in(list(node["fields"].values())) if "class" in node else set()
    return set().union(*map(classes_in, node)) if isinstance(node, list) else set()


# -- to the bit -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_model_comes_back_to_the_bit(name, path):
    model = model_of(name)
    agp.save(model, path)
    found = agp.load(path)
    assert_same(found, model)
    expected, predicted = (m.predict(new_inputs(name)) for m in (model, found))
    assert predicted.mean.tobytes() == expected.mean.tobytes()
    assert predicted.variance.tobytes() == expected.variance.tobytes()


@pytest.mark.parametrize("name", PREDICTORS)
def test_a_predictor_comes_back_to_the_bit(name, path):
    predictor = PREDICTORS[name]()
    agp.save(predictor, path)
    found = agp.load(path)
    assert_same(found, predictor)
    assert bits_of(found.predict(new_inputs(name))) == bits_of(predictor.predict(new_inputs(name)))


@pytest.mark.slow
def test_the_cases_have_every_class(path):
    seen = set()
    for saved in (*map(model_of, MODELS), *(build() for build in PREDICTORS.values())):
        agp.save(saved, path)
        seen |= classes_in(structure_of(path)["model"])
    of_estimators = {"agp.likelihoods.Log"}  # a transform; LogNormal does not store it (test_estimator_files.py)
    of_users = {"agp.priors.Beta"}  # no parameter of agp lies between 0 and 1 (test_proportions.py)
    assert seen == set(_agp_classes()) - of_estimators - of_users


def on(*libraries):
    """Cases of a few models on these libraries; fewer where JAX, which compiles each, takes part."""
    few = ("sgpr", "svgp-relaxed", "deep")
    return [(name, *libraries) for name in (few if "jax" in libraries else COVERING)]


@pytest.mark.parametrize(("name", "library"), [*on("torch"), *on("strict"), *on("jax")])
def test_a_model_of_another_library_comes_back_to_the_bit(name, library, path, available):
    place = available(PLACES[library])
    model = place.move(model_of(name))
    agp.save(model, path)
    found = agp.load(path)
    assert_same(found, model)
    check_place(place, found)
    inputs = place.array(new_inputs(name))
    assert bits_of(found.predict(inputs)) == bits_of(model.predict(inputs))


@pytest.mark.parametrize(
    ("name", "library"), [*((name, "numpy") for name in MODELS), *on("torch"), *on("strict"), *on("jax")]
)
def test_a_vector_leads_back_to_the_bit(name, library, available):
    model = available(PLACES[library]).move(model_of(name))
    vector, unflatten = agp.flatten(model)
    assert_same(unflatten(vector), tree.constrain(model, tree.unconstrain(model)))
    assert len(unflatten.names) == len(set(unflatten.names)) == vector.shape[0]


def bits_of(prediction):
    return [np.asarray(agp.to_numpy(x)).tobytes() for x in prediction]


CROSSINGS = [("torch", "numpy"), ("torch", "jax"), ("numpy", "torch"), ("jax", "numpy"), ("strict", "torch")]


@pytest.mark.parametrize(("name", "wrote", "reads"), [case for crossing in CROSSINGS for case in on(*crossing)])
def test_a_model_crosses_to_another_library_to_the_bit(name, wrote, reads, path, available):
    there, here = available(PLACES[wrote]), available(PLACES[reads])
    model = there.move(model_of(name))
    agp.save(model, path)
    found = agp.load(path, backend=here.name, device=here.device)
    assert_same(found, model)
    expected = model.predict(there.array(new_inputs(name)))
    predicted = found.predict(here.array(new_inputs(name)))
    for x, y in zip(predicted, expected, strict=True):
        assert_close(here.numpy(x), there.numpy(y), 1e-9)
    agp.save(found, path)
    assert_same(agp.load(path, backend=there.name, device=there.device), model)


def test_float32_is_kept_and_other_types_are_made_where_asked_for(path):
    pytest.importorskip("torch")
    model = TORCH.move(model_of("svgp-whitened"), "float32")
    agp.save(model, path)
    assert_same(agp.load(path), model)
    wide = agp.load(path, backend="numpy", dtype="float64")
    assert {x.dtype.name for x in tree.leaves(wide).values()} == {"float64"}
    assert_same(TORCH.move(wide, "float32"), model)
    with pytest.raises(ValueError, match="dtype is 'float16', but must be one of float64, float32"):
        agp.load(path, dtype="float16")


@pytest.mark.parametrize("name", ["nngp", "tnngp", "vif"])
def test_numbers_of_rows_stay_integers(name, path):
    model = model_of(name)
    agp.save(model, path)
    single = agp.load(path, dtype="float32")
    assert_same(single, agp.to_backend(model, "numpy", dtype="float32"))
    assert {name for name, x in tree.leaves(single).items() if x.dtype != np.float32} == {"sets"}
    np.testing.assert_array_equal(single.sets, model.sets)
    assert single.sets.dtype == model.sets.dtype


def test_a_graph_and_an_order_in_memory_are_left_out(path):
    pytest.importorskip("torch")
    model = TORCH.move(model_of("svgp-whitened"))
    turned = {name: x.mT.contiguous().mT if x.ndim > 1 else x for name, x in tree.leaves(model).items()}
    recorded = tree.with_leaves(model, {name: x.requires_grad_() for name, x in turned.items()})
    agp.save(recorded, path)
    assert_same(agp.load(path), model)
    assert not any(x.requires_grad for x in tree.leaves(agp.load(path)).values())


@pytest.mark.slow
def test_a_trained_model_goes_on_as_if_it_had_never_been_saved(path):
    model = agp.train(model_of("svgp-relaxed"), X, Y, steps=5).model
    agp.save(model, path)
    assert agp.train(agp.load(path), X, Y, steps=5).trace == agp.train(model, X, Y, steps=5).trace


# -- parts and templates ----------------------------------------------------------------------------------------------

PARTS = {
    **{f"kernel-{name}": build for name, build in KERNELS.items()},
    **{f"likelihood-{name}": build for name, (build, _) in LIKELIHOODS.items()},
    **{f"no-values-{name}": cls for name, cls in (kernels.KERNELS | likelihoods.LIKELIHOODS).items()},
    "mean": agp.ZeroMean,
    "points": agp.inducing.Points,
    "numbers": lambda: 2 * RBF(0.8, (0.7, 1.1)),
    "process": lambda: model_of("deep").process,
    "posterior": lambda: model_of("svgp-relaxed").process.posterior,
    "filled": lambda: model_of("kernel-periodic").process.kernel,
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_are_saved_with_and_without_values(name, path):
    part = PARTS[name]()
    agp.save(part, path)
    found = agp.load(path)
    assert settings_of(found) == settings_of(part)
    assert repr(found) == repr(part)


def test_a_template_works_as_before(path):
    agp.save(2.0 * Matern32(0.8, (0.7, 1.1)) + agp.White(), path)
    found = agp.SVGP.from_data(X, Y, kernel=agp.load(path), num_inducing=5)
    expected = agp.SVGP.from_data(X, Y, kernel=2.0 * Matern32(0.8, (0.7, 1.1)) + agp.White(), num_inducing=5)
    assert_same(found, expected)


def test_settings_of_numpy_and_lists_are_plain_afterwards(path):
    part = agp.inducing.Patches([3, np.int64(4)], (2, 2))
    agp.save(part, path)
    assert settings_of(agp.load(path)) == settings_of(agp.inducing.Patches((3, 4), (2, 2)))


# -- what else a file can hold ----------------------------------------------------------------------------------------


class Thing(NamedTuple):
    """An object that contains a model."""

    content: io.Stored


@pytest.fixture
def come_back(path, monkeypatch):
    """What a file holds of a thing with these facts, parts and arrays."""
    monkeypatch.setitem(io._model.HOMES, "thing", "json")
    kind = io.Kind(Thing, lambda thing: thing.content, lambda found, asked: Thing(found))
    monkeypatch.setitem(io._model._KINDS, "thing", kind)

    def load(*content):
        agp.save(Thing(io.Stored(model_of("gpr"), "thing", *content)), path)
        return agp.load(path).content

    return load


def test_a_file_has_room_for_facts_of_another_kind(come_back, path, monkeypatch):
    facts = {"columns": ["a", "b"], "scale": 0.1, "nested": {"x": [None, True, "é"]}}
    found = come_back(facts, {}, {})
    assert (found.kind, found.facts) == ("thing", facts)
    assert_same(found.model, model_of("gpr"))
    monkeypatch.delitem(io._model.HOMES, "thing")
    with pytest.raises(agp.errors.FileError, match=r"\(it holds 'thing' of version 1\)"):
        agp.load(path)


def test_a_file_has_room_for_further_parts_and_arrays(come_back):
    parts = {"kernel": model_of("kernel-active"), "plain": agp.RBF()}
    arrays = {"trace.a": np.asarray([1.0, np.nan]), "b": np.arange(3)}
    found = come_back({}, parts, arrays)
    assert_same(found.model, model_of("gpr"))
    assert found.parts.keys() == parts.keys()
    assert_same(found.parts["kernel"], parts["kernel"])
    assert repr(found.parts["plain"]) == repr(parts["plain"])
    assert found.arrays.keys() == arrays.keys()
    for name, x in arrays.items():
        np.testing.assert_array_equal(found.arrays[name], x, strict=True)


def test_the_names_in_a_file_are_public_ones(path):
    agp.save(model_of("gpr"), path)
    with safe_open(path, framework="np") as file:
        assert set(file.keys()) == set(tree.leaves(model_of("gpr")))
    for name in classes_in(structure_of(path)["model"]):
        assert vars(getattr(agp, name.split(".")[1]))[name.split(".")[2]] is not None


def test_the_device_is_that_of_the_file_or_the_one_asked_for(path):
    model = STRICT.move(model_of("gpr"))
    agp.save(model, path)
    B = get_backend("array_api_strict")
    devices = [B.device_name(agp.load(path, device=device).X) for device in (None, "CPU_DEVICE", "device2")]
    assert devices == ["device1", "CPU_DEVICE", "device2"]
    with pytest.raises(
        agp.errors.FileError, match=r"device is 'tpu', but array_api_strict has only CPU_DEVICE, device1, device2"
    ):
        agp.load(path, device="tpu")
