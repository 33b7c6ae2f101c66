"""JAX: programs are compiled once for equal functions, settings and outlines, and few of them are kept."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FunctionType

import numpy as np
import pytest
from helpers import toy_data

import agp
from agp.backend import get_backend
from agp.updates import Adam, Group, InverseUpdate, linear

jax = pytest.importorskip("jax", reason="jax is not installed: not executed")
programs = pytest.importorskip("agp_backends._jax_programs")

pytestmark = pytest.mark.slow

SEEN: list[str] = []
jax.monitoring.register_event_duration_secs_listener(lambda name, seconds, **known: SEEN.append(name))
X, Y = toy_data(24)


@contextmanager
def compilations() -> Iterator[list[str]]:
    """A list that holds the compilations inside the context at its end."""
    start, found = len(SEEN), []
    yield found
    found += [name for name in SEEN[start:] if name.endswith("backend_compile_duration")]


def here(*arrays):
    return [agp.to_backend(x, "jax") for x in arrays]


def sparse(X=X, Y=Y, dtype="float64", **settings):
    model = agp.SVGP.from_data(X, Y, num_inducing=4, **{"posterior": "whitened"} | settings)
    return [agp.to_backend(x, "jax", dtype=dtype) for x in (model, X, Y)]


def deep():
    return here(agp.DeepGP.from_data(X, Y, num_inducing=4, layers=2, posterior="whitened"))[0]


def train(*given, **settings):
    return agp.train(*given, **{"steps": 3, "batch_size": 8} | settings)


def fit_exact(model, *data):
    return agp.fit(*here(agp.GPR.from_data(X, Y)), *data)


def fit_collapsed(model, *data):
    return agp.fit_lbfgs(*here(agp.SGPR.from_data(X, Y, num_inducing=4)), *data, max_iterations=3)


CALLS = {
    "train": train,
    "relaxed": lambda model, *data: train(sparse(posterior="relaxed")[0], *data),
    "epochs": lambda *given: train(*given, on_device=True),
    "noise of the device": lambda model, *data: train(deep(), *data, on_device=True, draws="device"),
    "L-BFGS": fit_collapsed,
    "Newton": fit_exact,
    "predictions": lambda model, X, Y: model.predict(X),
    "value and gradient": lambda *given: agp.value_and_gradient(*given),
    "automatic differentiation": lambda *given: agp.value_and_gradient(*given, gradient="autodiff"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_second_call_compiles_nothing(call):
    first = call(*sparse())
    with compilations() as found:
        second = call(*sparse())
    assert not found
    model = [getattr(x, "model", None) for x in (first, second)]
    if model[0] is not None:
        assert repr(model[0]) == repr(model[1])


def test_the_numbers_of_a_shared_program_are_those_of_the_call():
    train(*sparse())
    other = np.cos(3.0 * X[:, :1]) + 2.0
    expected = train(agp.SVGP.from_data(X, other, num_inducing=4, posterior="whitened"), X, other, seed=7)
    with compilations() as found:
        result = train(*sparse(Y=other), seed=7)
    assert not found
    np.testing.assert_allclose(result.trace["bound"], expected.trace["bound"], rtol=1e-8)


OTHERS = {
    "kernel": lambda: train(*sparse(kernel=agp.Matern32())),
    "setting of the likelihood": lambda: train(*sparse(likelihood=agp.StudentT(degrees_of_freedom=5.0))),
    "rate": lambda: train(*sparse(), updates=[Adam(0.02)]),
    "patterns": lambda: train(*sparse(), updates=[Adam(0.01, frozen="kernel.*")]),
    "rows": lambda: train(*sparse(X[:23], Y[:23]), batch_size=9),
    "dtype": lambda: train(*sparse(dtype="float32")),
}


@pytest.mark.parametrize("call", OTHERS.values(), ids=OTHERS)
def test_another_outline_is_compiled_and_its_own_second_call_is_not(call):
    train(*sparse())
    train(*sparse(likelihood=agp.StudentT()))
    train(*sparse(), updates=[Adam(0.01)])
    call()  # also compiles what is not a step
    programs._keep_program.cache_clear()
    with compilations() as found:
        call()
    assert len(found) == 1
    with compilations() as found:
        train(*sparse())
        call()
    assert len(found) == 1


@dataclass(frozen=True)
class Scale:
    factor: float


@dataclass
class Changeable:
    factor: float


def times(setting, x):
    return x * (setting.factor if isinstance(setting, (Scale, Changeable)) else setting[0])


def in_a_notebook(f):
    found = FunctionType(f.__code__, f.__globals__, f.__name__)
    found.__module__ = "__main__"
    return found


@pytest.mark.parametrize(
    ("make", "shared"),
    [
        (lambda: partial(times, Scale(2.0)), True),
        (lambda: partial(times, (2.0,)), True),
        (lambda: partial(times, Changeable(2.0)), False),
        (lambda: partial(times, (np.asarray(2.0),)), False),
        (lambda: lambda x: 2.0 * x, False),
        (lambda: partial(in_a_notebook(times), Scale(2.0)), False),
    ],
    ids=["frozen", "tuple", "changeable", "array", "closure", "notebook"],
)
def test_only_what_cannot_change_is_shared(make, shared):
    B, x = get_backend("jax"), jax.numpy.arange(3.0)
    assert list(B.compile(make())(x)) == [0.0, 2.0, 4.0]
    with compilations() as found:
        assert list(B.compile(make())(x)) == [0.0, 2.0, 4.0]
    assert bool(found) != shared


@pytest.mark.parametrize("settings", [(1, 1.0), (1, True), (0.0, -0.0), ((1,), [1])])
def test_settings_that_python_takes_for_equal_are_not(settings):
    one, other = map(programs._key_of, settings)
    assert one != other


def test_updates_with_equal_settings_have_equal_keys():
    def make(rate):
        return [Adam(linear(rate, 0.0, 10), groups={"Z": Group(1e-3)}), InverseUpdate(1e-3)]

    assert programs._key_of(make(0.1)) == programs._key_of(make(0.1))
    assert programs._key_of(make(0.1)) != programs._key_of(make(0.2))


def test_few_programs_are_kept_and_no_data():
    model, X, Y = sparse()
    result = train(model, X, Y)
    gone = [weakref.ref(x) for x in (model, X, Y, result.model)]
    del model, X, Y, result
    gc.collect()
    assert [x() for x in gone] == [None] * 4
    assert programs._keep_program.cache_info().maxsize == programs.MAX_PROGRAMS


def test_a_program_that_is_dropped_is_freed():
    B, x, setting = get_backend("jax"), jax.numpy.arange(3.0), Scale(0.5)
    programs._keep_program.cache_clear()
    B.compile(partial(times, setting))(x)
    gone = weakref.ref(setting)
    del setting
    gc.collect()
    assert gone() is not None
    for i in range(programs.MAX_PROGRAMS):
        B.compile(partial(times, Scale(float(i))))(x)
    gc.collect()
    assert gone() is None
    assert programs._keep_program.cache_info().currsize == programs.MAX_PROGRAMS


@pytest.mark.parametrize("method", ["gpr", "sgpr"])
def test_folds_of_equal_size_are_compiled_once(method):
    estimators = pytest.importorskip("agp.estimators")
    X, Y = toy_data(64)
    folds = np.arange(64) % 4

    def fold(i):
        settings = {} if method == "gpr" else {"num_inducing": 8}
        regressor = estimators.GPRegressor(backend="jax", method=method, kernel="rbf", **settings)
        regressor.fit(X[folds != i], Y[folds != i, 0])
        return regressor.predict(X[folds == i])

    fold(0)
    with compilations() as found:
        fold(1)
        fold(2)
    assert not found
