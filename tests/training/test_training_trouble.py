"""What goes wrong during training is found, named and survived: the last finite state is never lost."""

import math
import re
import warnings

import numpy as np
import pytest
from helpers import named, process, with_leaves

from agp import GPR, RBF, SVGP, Gaussian, io, to_backend, to_numpy, train, tree
from agp.errors import NonFiniteError, NotPositiveDefiniteError, RepairWarning
from agp.posteriors import Relaxed, Whitened
from agp.updates import Adam, InverseUpdate

# NumPy's own warnings about the arithmetic of NaN; the errors asked for here say it better.
pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")

METHODS = [pytest.param(Whitened, id="whitened"), pytest.param(Relaxed, id="relaxed")]


def data(N=40):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 2))
    return X, np.sin(2 * X[:, :1]) + 0.1 * rng.normal(size=(N, 1))


def sparse(X, y, posterior=Relaxed, **options):
    return SVGP.from_data(X, y, **({"posterior": posterior, "num_inducing": 6} | options))


def usual(model):
    return (
        [Adam(), InverseUpdate()]
        if isinstance(model, SVGP) and isinstance(process(model).posterior, Relaxed)
        else [Adam()]
    )


def assert_finite(model):
    for name, value in named(model).items():
        assert np.all(np.isfinite(to_numpy(value))), name


class Poison:
    """Sets one leaf to a value in one step."""

    def __init__(self, name, step, value=math.nan):
        self.name, self.step, self.value = name, step, value

    def init(self, model):
        return {"count": np.asarray(0.0)}

    def __call__(self, model, batch, state):
        count = state["count"] + 1
        if count == self.step:
            leaf = named(model)[self.name]
            model = with_leaves(model, {self.name: leaf * self.value})
        return model, {"count": count}, {}


class Reports:
    """Logs a value that is not finite in one step and leaves the model alone."""

    def __init__(self, step, value):
        self.step, self.value = step, value

    def init(self, model):
        return {"count": np.asarray(0.0)}

    def __call__(self, model, batch, state):
        count = state["count"] + 1
        return model, {"count": count}, {"strange": np.asarray(self.value if count == self.step else 1.0)}


@pytest.mark.slow
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("step", [1, 10, 11, 25])
def test_reported_values_that_are_not_finite_name_their_step(step, value):
    X, y = data()
    model = sparse(X, y)
    with pytest.raises(NonFiniteError, match=f"strange became {value} in step {step} ") as caught:
        train(model, X, y, steps=25, updates=[*usual(model), Reports(step, value)])
    assert caught.value.result.steps == (step - 1) // 10 * 10
    assert_finite(caught.value.result.model)


@pytest.mark.parametrize("posterior", METHODS)
@pytest.mark.parametrize("leaf", ["kernel.lengthscale", "posterior.mean", "Z", "likelihood.noise_variance"])
@pytest.mark.parametrize("step", [1, 10, 14, 25])
def test_leaves_that_are_not_finite_are_found_and_named(step, leaf, posterior):
    X, y = data()
    model = sparse(X, y, posterior)
    with pytest.raises(NonFiniteError, match=re.escape(leaf)) as caught:
        train(model, X, y, steps=25, updates=[*usual(model), Poison(leaf, step)])
    result = caught.value.result
    assert_finite(result.model)
    assert result.steps < step
    assert np.all(np.isfinite(result.trace.get("bound", [])))


@pytest.mark.parametrize("leaf", ["kernel.lengthscale", "likelihood.noise_variance"])
def test_the_exact_gp_keeps_its_last_finite_state(leaf):
    X, y = data()
    with pytest.raises(NonFiniteError, match=re.escape(leaf)) as caught:
        train(GPR.from_data(X, y), X, y, steps=25, updates=[Adam(), Poison(leaf, 13)])
    assert_finite(caught.value.result.model)
    assert caught.value.result.steps == 10


@pytest.mark.slow
@pytest.mark.parametrize("posterior", METHODS)
@pytest.mark.parametrize("rate", [50.0, 1e6, 1e200], ids=str)
def test_rates_far_too_large_end_in_an_error_with_a_finite_result(rate, posterior):
    X, y = data()
    model = sparse(X, y, posterior)
    updates = [Adam(rate), *usual(model)[1:]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RepairWarning)
        try:
            result = train(model, X, y, steps=60, updates=updates)
        except (NonFiniteError, NotPositiveDefiniteError) as error:
            assert re.search(r"in step \d+.*; try a smaller learning rate", str(error))  # noqa: PT017
            result = error.result
    assert_finite(result.model)
    assert np.all(np.isfinite(result.trace.get("bound", [])))


@pytest.mark.slow
def test_the_message_holds_what_a_person_needs():
    X, y = data()
    model = sparse(X, y)
    with pytest.raises(NonFiniteError) as caught:
        train(model, X, y, steps=25, updates=[*usual(model), Poison("posterior.mean", 13)])
    message, *details = str(caught.value).splitlines()
    assert caught.value.details == "\n".join(details)
    assert re.search(r"bound became nan in step 14 \(the last finite value: -?\d+", message)
    assert message.endswith("; try a smaller learning rate, standardised data, more jitter or float64.")
    assert message.count(". ") == 0  # one sentence
    assert details[0].startswith("Non-finite leaves: ")
    assert "posterior.mean" in details[0]
    assert details[1].startswith("In the last finite model, after step 10: process.kernel.variance in [")


def test_trouble_in_the_first_step_has_no_last_value():
    X, y = data()
    model = with_leaves(sparse(X, y), {"posterior.mean": np.full((6, 1), np.inf)})
    with pytest.raises((NonFiniteError, ValueError), match=r"posterior\.mean"):
        train(model, X, y, steps=3)


def test_a_checkpoint_never_holds_numbers_that_are_not_finite(tmp_path):
    X, y = data()
    model = sparse(X, y)
    path = tmp_path / "run.safetensors"
    updates = [*usual(model), Poison("posterior.mean", 12)]
    with pytest.raises(NonFiniteError):
        train(model, X, y, steps=30, updates=updates, checkpoint=path, checkpoint_every=6)
    saved = io.load_checkpoint(path)[0]["model"]
    assert saved.keys() == tree.leaves(model).keys()
    assert all(np.all(np.isfinite(x)) for x in saved.values())


def test_a_last_step_that_breaks_the_model_does_not_return_it():
    X, y = data()
    model = sparse(X, y)
    with pytest.raises(NonFiniteError, match=r"posterior\.mean"):
        train(model, X, y, steps=7, updates=[*usual(model), Poison("posterior.mean", 7)])


@pytest.mark.slow
@pytest.mark.parametrize("library", ["torch", "array_api_strict"])
def test_other_libraries_find_trouble_too(library):
    pytest.importorskip(library)
    X, y = data()
    model = to_backend(sparse(X, y), library)

    class Break(Poison):
        pass

    with pytest.raises(NonFiniteError, match=r"posterior\.mean") as caught:
        train(
            model,
            to_backend(X, library),
            to_backend(y, library),
            steps=25,
            updates=[*usual(model), Break("posterior.mean", 13)],
        )
    assert_finite(caught.value.result.model)


# -- repairs ---------------------------------------------------------------------------------------------------------


def needs_repair(X, y):
    return SVGP.from_data(
        X,
        y,
        posterior=Whitened,
        kernel=RBF(1.0, 1.0),
        likelihood=Gaussian(0.1),
        Z=np.repeat(X[:3], 4, axis=0),
        jitter=0.0,
    )


def test_repairs_are_counted_and_reported_once_at_the_end():
    X, y = data()
    model = needs_repair(X, y)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = train(model, X, y, steps=6, updates=[Adam(frozen=("*",))])
    assert result.repairs.total() == 6
    assert [warning.category for warning in caught] == [RepairWarning]
    message = str(caught[0].message)
    assert message.startswith("6 numerical repairs; the first: a 12 x 12 covariance matrix was not positive definite")
    assert "duplicated or nearly equal inputs" in message
    assert caught[0].filename == __file__


def test_training_without_trouble_is_silent():
    X, y = data()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = train(sparse(X, y), X, y, steps=6)
    assert caught == []
    assert not result.repairs


def test_a_repair_outside_training_warns_at_once():
    X, y = data()
    model = needs_repair(X, y)
    with pytest.warns(RepairWarning, match="attempt 1 of 3"):
        model.predict(X)
