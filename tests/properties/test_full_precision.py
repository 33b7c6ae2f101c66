"""Products as precise as their dtype: what JAX is asked for, where, and that its settings stay the user's."""

import numpy as np
import pytest
from helpers import JAX

import agp
from agp.repairs import public
from agp.updates import Adam, InverseUpdate

jax = pytest.importorskip("jax")
FULL = (jax.lax.Precision.HIGHEST, jax.lax.Precision.HIGHEST)


@pytest.fixture(autouse=True)
def _jax_is_there(available):
    available(JAX)


def _products(jaxpr):
    """The precisions of all products in a traced program, those in its inner programs included."""
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            found.append(equation.params["precision"])
        for inner in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
            if hasattr(inner, "eqns"):
                found += _products(inner)
            elif hasattr(inner, "jaxpr"):
                found += _products(inner.jaxpr)
    return found


def _problem():
    rng = np.random.default_rng(0)
    X = JAX.array(rng.normal(size=(30, 6)), "float32")
    y = JAX.array(rng.normal(size=(30, 1)), "float32")
    return X, y, agp.SVGP.from_data(X, y, num_inducing=5)


def _bound(model, X, y):
    return model.bound(X, y)[0]


PROGRAMS = {
    "kernel": lambda model, X, y: model.process.kernel(X, X[:3])[0],
    "pullback of a kernel": lambda model, X, y: model.process.kernel(X, X[:3])[1](y * y[:3, 0])[1],
    "bound": _bound,
    "pullback of a bound": lambda model, X, y: model.bound(X, y)[1](1.0)[0].process.kernel.lengthscale,
    "prediction": lambda model, X, y: model.predict(X).variance,
    "closed form": lambda model, X, y: agp.value_and_gradient(model, X, y)[1]["process.posterior.mean"],
    "autodiff": lambda model, X, y: agp.value_and_gradient(model, X, y, gradient="autodiff")[1][
        "process.posterior.mean"
    ],
    "a user's gradient": lambda model, X, y: jax.grad(_bound)(model, X, y).likelihood.noise_variance,
    "a user's gradient of a compiled bound": lambda model, X, y: jax.grad(jax.jit(_bound), argnums=1)(model, X, y),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_product_is_asked_for_in_full_precision(program):
    X, y, model = _problem()
    run = PROGRAMS[program]
    found = _products(jax.make_jaxpr(lambda X, y: run(model, X, y))(X, y).jaxpr)
    assert found
    assert set(found) == {FULL}
    assert jax.config.jax_default_matmul_precision is None


def test_products_of_the_user_are_left_alone():
    X, y, model = _problem()
    pullback = model.bound(X, y)[1]
    pullback(1.0)
    found = _products(jax.make_jaxpr(lambda X: X @ model.process.kernel(X, X)[0])(X.mT[:, :6]).jaxpr)
    assert set(found) == {None, FULL}


@pytest.mark.parametrize("asked", ["tensorfloat32", "float32"])
def test_a_user_who_asks_for_another_precision_gets_it(asked):
    X, y, model = _problem()
    with jax.default_matmul_precision(asked):
        found = _products(jax.make_jaxpr(lambda X, y: _bound(model, X, y))(X, y).jaxpr)
        assert jax.config.jax_default_matmul_precision == asked
    assert found
    assert FULL not in found or asked == "float32"
    assert len(set(found)) == 1


class Recorded:
    """An update that changes nothing, and remembers what precision products had."""

    def __init__(self):
        self.seen = []

    def init(self, model):
        return {}

    def __call__(self, model, batch, state):
        self.seen.append(jax.config.jax_default_matmul_precision)
        return model, state, {}


def test_training_computes_in_full_precision():
    X, y, model = _problem()
    recorded = Recorded()
    agp.train(model, X, y, steps=2, updates=[Adam(1e-2), InverseUpdate(), recorded])
    assert recorded.seen
    assert set(recorded.seen) == {"highest"}
    assert jax.config.jax_default_matmul_precision is None


def test_what_is_raised_leaves_no_setting_behind():
    X, _, model = _problem()
    with pytest.raises(TypeError):
        model.predict(X.astype("float64"))
    assert jax.config.jax_default_matmul_precision is None


def test_an_entrance_without_an_array_is_entered_as_it_is():
    assert public(lambda *args, **kwargs: (args, kwargs))(1, None, name="x") == ((1, None), {"name": "x"})
