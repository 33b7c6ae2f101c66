"""Adam on raw leaves, against torch's own on the same gradients."""

import numpy as np
import pytest

from agp import RBF, SVGP, Gaussian, Relaxed, Whitened, tree, value_and_gradient
from agp.updates import Adam, Batch, Group, delayed
from agp.updates._schedules import rate_at


def problem(posterior=Whitened, dtype="float64"):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2)).astype(dtype)
    y = np.sin(2 * X[:, :1])
    model = SVGP.from_data(X, y, posterior=posterior, kernel=RBF(), likelihood=Gaussian(), num_inducing=5)
    return model, Batch(X, y, 1.0)


def run(update, model, batch, steps):
    state, info = update.init(model), {}
    for _ in range(steps):
        model, state, info = update(model, batch, state)
    return model, state, info


@pytest.mark.parametrize("posterior", [Whitened, Relaxed])
def test_steps_equal_those_of_torch(posterior):
    torch = pytest.importorskip("torch")
    model, batch = problem(posterior)
    expected = {name: torch.tensor(np.asarray(x), requires_grad=True) for name, x in tree.unconstrain(model).items()}
    groups = [
        {"params": [x for name, x in expected.items() if name != "Z"], "lr": 0.03},
        {"params": [expected["Z"]], "lr": 0.01, "betas": (0.8, 0.99)},
    ]
    optimiser = torch.optim.Adam(groups, eps=1e-7, maximize=True)
    update = Adam(0.03, groups={"Z": Group(0.01, beta1=0.8, beta2=0.99)})
    state = update.init(model)
    for _ in range(8):
        gradient = value_and_gradient(model, batch.X, batch.y)[1]
        for name, x in expected.items():
            x.grad = torch.tensor(np.asarray(gradient[name]))
        optimiser.step()
        model, state, _ = update(model, batch, state)
        for name, x in tree.unconstrain(model).items():
            np.testing.assert_allclose(x, expected[name].detach().numpy(), rtol=1e-9, atol=1e-10, err_msg=name)


def test_the_first_step_has_the_length_of_the_rate():
    model, batch = problem()
    raw = tree.unconstrain(model)
    gradient = value_and_gradient(model, batch.X, batch.y)[1]
    after = tree.unconstrain(run(Adam(1e-3), model, batch, 1)[0])
    for name, x in raw.items():
        moving = np.abs(gradient[name]) > 1e-2
        step = (after[name] - x)[moving]
        np.testing.assert_allclose(step, 1e-3 * np.sign(gradient[name][moving]), rtol=1e-4)


def test_the_info_is_the_bound_before_the_step():
    model, batch = problem()
    assert run(Adam(), model, batch, 1)[2] == {"bound": model.bound(batch.X, batch.y)[0]}


def test_the_scale_of_the_batch_reaches_the_bound():
    model, batch = problem()
    info = run(Adam(), model, batch._replace(scale=4.0), 1)[2]
    assert info["bound"] == model.bound(batch.X, batch.y, scale=4.0)[0]
    assert info["bound"] != model.bound(batch.X, batch.y)[0]


def test_an_update_changes_neither_model_nor_state():
    model, batch = problem()
    update = Adam()
    state = update(model, batch, update.init(model))[1]
    before = {name: np.array(x) for name, x in tree.leaves(model).items()}
    first = {name: np.array(x) for name, x in state["first"].items()}
    one, two = update(model, batch, state), update(model, batch, state)
    for name, x in tree.leaves(model).items():
        np.testing.assert_array_equal(x, before[name])
        np.testing.assert_array_equal(tree.leaves(one[0])[name], tree.leaves(two[0])[name])
    for name, x in state["first"].items():
        np.testing.assert_array_equal(x, first[name])
    assert state["count"] == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype_and_shapes_stay(dtype):
    model, batch = problem(dtype=dtype)
    moved, state, _ = run(Adam(), model, batch, 3)
    for name, x in tree.leaves(model).items():
        new = tree.leaves(moved)[name]
        assert (new.dtype, new.shape) == (np.dtype(dtype), x.shape), name
    assert {x.dtype for x in state["second"].values()} == {np.dtype(dtype)}
    assert state["count"].dtype == np.dtype(dtype)


def test_frozen_leaves_have_no_moments():
    model, _ = problem()
    state = Adam(frozen=("kernel.*",)).init(model)
    assert set(state["first"]) == {"likelihood.noise_variance", "posterior.mean", "posterior.scale", "Z"}


def test_scales_stay_lower_triangular_and_positive_leaves_positive():
    model, batch = problem()
    moved = run(Adam(1.0), model, batch, 5)[0]
    np.testing.assert_array_equal(np.triu(moved.posterior.scale, 1), 0.0)
    assert np.all(moved.kernel.lengthscale > 0)
    assert moved.likelihood.noise_variance > 0


@pytest.mark.parametrize("library", ["numpy", "torch", "array_api_strict"])
@pytest.mark.parametrize(("count", "expected"), [(0, 0.0), (3, 0.0), (4, 0.5), (100, 0.5)])
def test_delayed_rates_start_at_their_step(library, count, expected):
    xp = pytest.importorskip(library)
    rate = rate_at(delayed(0.5, 4), xp.asarray(float(count), dtype=xp.float32))
    assert float(rate) == expected
    assert rate.dtype == xp.float32


def test_a_number_is_a_rate_for_every_step():
    assert rate_at(0.25, np.asarray(7.0)) == 0.25


def test_a_delayed_rate_of_no_steps_is_the_rate():
    assert rate_at(delayed(0.5, 0), np.asarray(0.0)) == 0.5
