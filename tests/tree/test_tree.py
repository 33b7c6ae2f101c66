"""Models as trees: names, roles, constraints, gradients in the model's structure, crossing between libraries."""

from typing import Any

import numpy as np
import pytest
from helpers import (
    KERNELS,
    POSTERIORS,
    as_arrays,
    assert_close,
    inducing_inputs,
    named,
    problem,
    process,
    short_name,
    with_leaves,
)

import agp
from agp import tree
from agp.errors import BackendError
from agp.kernels import RBF, Matern32, Sum
from agp.likelihoods import Bernoulli, Gaussian
from agp.tree import LOWER, ORDERED, POSITIVE, REAL

NAMES = {
    "relaxed": ["posterior.mean", "posterior.site", "posterior.inverse_factor"],
    "whitened": ["posterior.mean", "posterior.scale"],
}


@pytest.mark.parametrize("posterior", NAMES)
def test_names_are_paths_in_the_order_of_declaration(posterior):
    model, _, _ = problem("sum", posterior)
    kernel = [f"kernel.parts.{i}.{leaf}" for i in (0, 1) for leaf in ("variance", "lengthscale")]
    assert set(named(model)) == {*kernel, "likelihood.noise_variance", *NAMES[posterior], "Z"}
    assert [name for name in named(model) if name.startswith("kernel.")] == kernel
    assert [name for name in named(model) if name.startswith("posterior.")] == NAMES[posterior]


def test_describe_lists_name_role_constraint_and_value():
    model, _, _ = problem("rbf", "relaxed", "bernoulli")
    described = {short_name(leaf.name): (leaf.role, leaf.constraint) for leaf in tree.describe(model)}
    assert described == {
        "kernel.variance": ("parameter", POSITIVE),
        "kernel.lengthscale": ("parameter", POSITIVE),
        "posterior.mean": ("parameter", REAL),
        "posterior.site": ("parameter", POSITIVE),
        "posterior.inverse_factor": ("auxiliary", REAL),
        "Z": ("parameter", REAL),
    }
    (found,) = (leaf.value for leaf in tree.describe(model) if short_name(leaf.name) == "Z")
    assert found is inducing_inputs(model)


def test_constraints_have_names_a_person_can_read():
    names = [c.name for c in (REAL, POSITIVE, LOWER, ORDERED)]
    assert names == ["real", "positive", "lower-triangular", "in ascending order"]


def test_leaves_by_role():
    model, _, _ = problem("rbf", "relaxed")
    assert list(named(model, "auxiliary")) == ["posterior.inverse_factor"]
    assert "posterior.inverse_factor" not in named(model, "parameter")
    assert tree.leaves(model, "constant") == {}


def test_models_are_frozen_and_compared_by_identity():
    a: Any = RBF(1.0, 2.0)
    b = RBF(1.0, 2.0)
    assert a != b
    assert a == a
    with pytest.raises(AttributeError):
        a.variance = 3.0


def test_with_leaves_replaces_what_is_named_and_keeps_the_rest():
    model, _, _ = problem("sum", "relaxed")
    new = with_leaves(model, {"kernel.parts.1.variance": np.asarray(9.0)})
    ours, theirs = process(new), process(model)
    assert ours.kernel.parts[1].variance == 9.0
    assert theirs.kernel.parts[1].variance != 9.0
    assert ours.kernel.parts[0].variance is theirs.kernel.parts[0].variance
    assert ours.posterior.inverse_factor is theirs.posterior.inverse_factor
    assert ours.jitter == theirs.jitter
    assert type(new) is type(model)


def test_with_leaves_lists_the_names_when_one_is_unknown():
    kernel = as_arrays(KERNELS["sum"]())
    with pytest.raises(KeyError, match=r"no leaf parts\.0\.width; its leaves are parts\.0\.variance, parts\."):
        tree.with_leaves(kernel, {"parts.0.width": 1.0, "parts.1.variance": np.asarray(1.0)})


# -- gradients --------------------------------------------------------------------------------------------------------


def test_cotangent_has_the_class_and_settings_of_the_model_and_no_other_leaf():
    model, _, _ = problem("sum", "relaxed-plain", "bernoulli-squash")
    prior = process(model)
    bar = tree.cotangent(prior, kernel=tree.cotangent(prior.kernel.parts[0], variance=1.0))
    assert type(bar) is type(prior)
    assert named(bar) == {"kernel.variance": 1.0}
    assert bar.posterior is None
    assert bar.jitter == prior.jitter == 1e-3
    assert tree.cotangent(prior.posterior).preconditioned is False
    assert tree.cotangent(model.likelihood).squash == 1e-3


def test_cotangent_refuses_a_field_that_is_not_there():
    with pytest.raises(TypeError, match="RBF has no field width"):
        tree.cotangent(RBF(1.0, 1.0), width=1.0)


@pytest.mark.parametrize(
    ("a", "b", "expected"), [(None, None, None), (None, 2.0, 2.0), (2.0, None, 2.0), (1.0, 2.0, 3.0)]
)
def test_none_is_zero(a, b, expected):
    assert tree.add(a, b) == expected
    assert tree.add((a, 1.0), (b, 1.0)) == (expected, 2.0)


def test_add_goes_through_models_tuples_and_missing_branches():
    kernel: Any = RBF(1.0, 1.0) + Matern32(1.0, 1.0)
    parts = kernel.parts
    a = tree.cotangent(kernel, parts=(tree.cotangent(parts[0], variance=1.0), None))
    b = tree.cotangent(
        kernel, parts=(tree.cotangent(parts[0], lengthscale=5.0), tree.cotangent(parts[1], variance=2.0))
    )
    total = tree.add(tree.add(a, b), a)
    assert isinstance(total, Sum)
    assert tree.leaves(total.parts[0]) == {"variance": 2.0, "lengthscale": 5.0}
    assert tree.leaves(total.parts[1]) == {"variance": 2.0}


def test_add_keeps_settings():
    q = Bernoulli(squash=1e-3, points=7)
    total = tree.add(tree.cotangent(q), tree.cotangent(q))
    assert (total.squash, total.points) == (1e-3, 7)


def test_pull_raw_fills_missing_gradients_with_zeros(backend):
    model = backend.move(as_arrays(Gaussian(0.5)))
    raw = tree.pull_raw(model, None)
    np.testing.assert_array_equal(backend.numpy(raw["noise_variance"]), 0.0)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_pull_raw_is_the_chain_rule(dtype, backend):
    value = np.geomspace(1e-3, 30.0, 7)
    model = backend.move(as_arrays(RBF(1.0, value)), dtype)
    bar = tree.cotangent(model, lengthscale=backend.array(np.full(7, 2.0), dtype))
    found = backend.numpy(tree.pull_raw(model, bar)["lengthscale"], dtype)
    raw = np.log(np.expm1(value))
    assert_close(found, 2.0 / (1.0 + np.exp(-raw)), 1e-12 if dtype == "float64" else 1e-6)


def test_pull_raw_of_a_triangle_is_a_triangle(backend):
    model, X, y = problem("rbf", "whitened", outputs=2)
    model = backend.move(model)
    bar = tree.cotangent(process(model).posterior, scale=backend.array(np.ones((2, 7, 7))))
    found = backend.numpy(tree.pull_raw(process(model).posterior, bar)["scale"])
    np.testing.assert_array_equal(found, np.tril(np.ones((2, 7, 7))))


# -- raw leaves -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-14), ("float32", 1e-6)])
def test_round_trip_of_positive_values(dtype, tolerance, backend):
    value = np.geomspace(1e-6, 1e4, 60)
    model = backend.move(as_arrays(RBF(1.0, value)), dtype)
    raw = tree.unconstrain(model)
    assert raw.keys() == {"variance", "lengthscale"}
    assert np.isfinite(backend.numpy(raw["lengthscale"], dtype)).all()
    found = backend.numpy(tree.constrain(model, raw).lengthscale, dtype)
    np.testing.assert_allclose(found, value.astype(dtype), rtol=tolerance)


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_round_trip_of_a_model(posterior, backend):
    model, _, _ = problem("sum-ard", posterior, outputs=2)
    model = backend.move(model)
    back = tree.constrain(model, tree.unconstrain(model))
    assert type(back) is type(model)
    for name, value in tree.leaves(model).items():
        assert_close(backend.numpy(tree.leaves(back)[name]), backend.numpy(value), 1e-14, name)


def test_any_raw_value_is_positive(backend):
    raw = backend.array([-30.0, 0.0, 30.0])
    value = backend.numpy(POSITIVE.constrain(raw))
    np.testing.assert_allclose(value, np.log1p(np.exp([-30.0, 0.0, 30.0])), rtol=1e-14)
    assert value.min() > 0.0


# -- units ------------------------------------------------------------------------------------------------------------


@tree.model
class Measured:
    level: Any = tree.param(unit="level_unit")
    sizes: Any = tree.param(POSITIVE, unit="sizes_unit")
    triangle: Any = tree.param(LOWER, unit="level_unit")
    level_unit: Any = tree.unit(default=None)
    sizes_unit: Any = tree.unit(default=None)


def measured(**units):
    triangle = np.tril(np.arange(1.0, 10.0).reshape(3, 3))
    units = {name: np.asarray(unit) for name, unit in units.items()}
    return Measured(np.asarray([3e6, -1e6]), np.asarray([2e-6, 5.0]), triangle, **units)


UNITS = {"level_unit": 1e6, "sizes_unit": [1e-6, 10.0]}


def test_raw_leaves_are_ratios(backend):
    model = backend.move(measured(**UNITS))
    raw = {name: backend.numpy(x) for name, x in tree.unconstrain(model).items()}
    np.testing.assert_allclose(raw["level"], [3.0, -1.0])
    np.testing.assert_allclose(raw["sizes"], np.log(np.expm1([2.0, 0.5])), rtol=1e-12)
    np.testing.assert_allclose(raw["triangle"], np.tril(np.arange(1.0, 10.0).reshape(3, 3)) / 1e6)
    back = tree.constrain(model, tree.unconstrain(model))
    for name, value in tree.leaves(model).items():
        assert_close(backend.numpy(tree.leaves(back)[name]), backend.numpy(value), 1e-14, name)


def test_without_units_raw_leaves_are_as_ever():
    model = measured()
    raw = tree.unconstrain(model)
    for name, constraint in {"level": REAL, "sizes": POSITIVE, "triangle": LOWER}.items():
        np.testing.assert_array_equal(raw[name], constraint.unconstrain(tree.leaves(model)[name]))
        bar = np.ones_like(raw[name])
        pulled = tree.pull_raw(model, tree.cotangent(model, **{name: bar}))[name]
        np.testing.assert_array_equal(pulled, constraint.pull(tree.leaves(model)[name], bar))
    assert list(tree.leaves(model)) == ["level", "sizes", "triangle"]
    assert tree.missing(model) == []


def test_pull_raw_with_units_is_the_slope():
    model = measured(**UNITS)
    raw = tree.unconstrain(model)
    weights = {name: np.random.default_rng(3).normal(size=x.shape) for name, x in raw.items()}
    pulled = tree.pull_raw(model, tree.cotangent(model, **weights))

    def total(name, x):
        return np.sum(weights[name] * tree.leaves(tree.constrain(model, {name: x}))[name])

    for name, x in raw.items():
        slopes = np.zeros(x.size)
        for i in range(x.size):
            step = 1e-5 * np.eye(x.size)[i].reshape(x.shape)
            slopes[i] = (total(name, x + step) - total(name, x - step)) / 2e-5
        np.testing.assert_allclose(np.ravel(pulled[name]), slopes, rtol=1e-6, atol=1e-9, err_msg=name)


def test_units_are_constants_that_nothing_prints():
    model = measured(**UNITS)
    assert set(tree.leaves(model, "constant")) == set(UNITS)
    assert "unit" not in repr(model)
    assert tree.leaves(tree.cotangent(model)) == {}
    described = {leaf.name: leaf.constraint for leaf in tree.describe(model)}
    assert described["sizes_unit"] is POSITIVE


def test_a_unit_that_is_none_is_refused():
    with pytest.raises(TypeError, match="Wrong.size has the unit 'other'; declare other with tree.unit()"):

        @tree.model
        class Wrong:
            size: Any = tree.param(POSITIVE, unit="other")
            other: float = 1.0


@pytest.mark.parametrize(
    ("constraint", "value", "violated"),
    [
        (POSITIVE, [1.0, 2.0], False),
        (POSITIVE, [1.0, 0.0], True),
        (POSITIVE, [1.0, -1.0], True),
        (POSITIVE, [1.0, np.nan], True),
        (POSITIVE, [1.0, np.inf], True),
        (REAL, [1.0, -1.0], False),
        (REAL, [np.nan, 1.0], True),
        (LOWER, [[1.0, 0.0], [np.inf, 1.0]], True),
        (ORDERED, [-1.0, 0.0, 3.0], False),
        (ORDERED, [2.0], False),
        (ORDERED, [0.0, 0.0], True),
        (ORDERED, [0.0, 1.0, 0.5], True),
        (ORDERED, [0.0, np.inf], True),
    ],
)
def test_violations(constraint, value, violated, backend):
    assert bool(constraint.is_violated(backend.array(value))) is violated


@pytest.mark.parametrize("value", [[0.3], [-2.0, -1.9, 5.0, 5.001]])
def test_ordered_values_have_free_leaves(value, backend):
    value = backend.array(value)
    raw = ORDERED.unconstrain(value)
    np.testing.assert_allclose(backend.numpy(ORDERED.constrain(raw)), backend.numpy(value), rtol=1e-12)
    wild = backend.array(np.linspace(3.0, -20.0, value.shape[0]))
    assert not bool(ORDERED.is_violated(ORDERED.constrain(wild)))
    # the pullback against differences
    bar = np.cos(np.arange(value.shape[0]) + 1.0)
    found, h = backend.numpy(ORDERED.pull(value, backend.array(bar))), 1e-6
    for k, step in enumerate(np.eye(value.shape[0])):
        ends = [backend.numpy(ORDERED.constrain(raw + sign * h * backend.array(step))) for sign in (1.0, -1.0)]
        np.testing.assert_allclose(found[k], bar @ (ends[0] - ends[1]) / (2.0 * h), rtol=1e-6, atol=1e-8)


# -- crossing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("posterior", POSTERIORS)
@pytest.mark.usefixtures("stale_factors")
def test_moving_a_model_keeps_its_bound_and_predictions(posterior, backend):
    model, X, y = problem("sum-ard", posterior, outputs=2)
    moved = tree.to_backend(model, backend.name, device=backend.device)
    for value in tree.leaves(moved).values():
        backend.check(value)
    here = backend.array(X)
    np.testing.assert_allclose(backend.numpy(moved.bound(here, backend.array(y))[0]), model.bound(X, y)[0], rtol=1e-12)
    for found, expected in zip(moved.predict(here), model.predict(X), strict=True):
        assert_close(backend.numpy(found), expected, 1e-11)
    back = tree.to_backend(moved, "numpy")
    for name, value in tree.leaves(model).items():
        np.testing.assert_array_equal(tree.leaves(back)[name], value)


def test_moving_changes_the_precision_when_asked(backend):
    model, _, _ = problem("rbf", "relaxed")
    single = tree.to_backend(model, backend.name, dtype="float32", device=backend.device)
    for value in tree.leaves(single).values():
        backend.check(value, "float32")


def test_moving_copies(backend):
    host = np.zeros(3)
    moved = tree.to_backend(host, backend.name, device=backend.device)
    host[0] = 1.0
    np.testing.assert_array_equal(backend.numpy(moved), 0.0)


def test_moving_to_an_unknown_backend():
    with pytest.raises(BackendError, match="unknown backend 'numpie'"):
        tree.to_backend(np.zeros(2), "numpie")


@pytest.mark.parametrize("name", KERNELS)
def test_the_outline_shows_shapes_not_numbers(name):
    text = tree.outline(as_arrays(KERNELS[name]()))
    assert "lengthscale=float64[3]" in text if name.endswith("ard") else "lengthscale=float64[]" in text


def test_printing_shows_few_numbers_and_the_types_and_shapes_of_many():
    short, long = np.asarray([0.5, 1.23456789]), np.ones(100)
    assert repr(RBF(np.asarray(2.0), short)) == "RBF(variance=2, lengthscale=[0.5, 1.23457])"
    assert repr(RBF(1.5, long) + RBF()) == ("Sum(parts=(RBF(variance=1.5, lengthscale=float64[100]), RBF()))")


def test_printing_leaves_out_what_is_not_set():
    kernel = agp.RBF().on(("x1",)) + agp.Linear(at_mean=True).on((1,))
    text = (
        "Sum(parts=(ActiveDims(kernel=RBF(), columns=('x1',)), ActiveDims(kernel=Linear(at_mean=True), columns=(1,))))"
    )
    assert repr(kernel) == text
    assert repr(agp.GPRegressor(kernel=kernel.parts[0])) == f"GPRegressor(kernel={kernel.parts[0]!r})"
    assert repr(agp.Gaussian()) == "Gaussian()"
    assert "noise_variance=0" in repr(agp.Gaussian(0.0))
    assert "codes=False" in tree.outline(as_arrays(agp.RBF(1.0, 1.0).on((0,))))


def test_watchers_see_models_that_exist_and_models_to_come():
    seen = []
    tree.on_model_class(seen.append)
    try:
        assert RBF in seen

        @tree.model
        class Later:
            x: Any = tree.param()

        assert seen[-1] is Later
        assert tree.is_model(Later(1.0))
        assert not tree.is_model(Later)
    finally:
        tree._fields.WATCHERS.remove(seen.append)
