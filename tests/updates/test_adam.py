"""Adam on raw leaves, against torch's own on the same gradients."""

import numpy as np
import pytest
from helpers import inducing_inputs, named, process, short_names, value_and_gradient

from agp import RBF, SVGP, Gaussian, train, tree
from agp.bounds import Batch
from agp.posteriors import Relaxed, Whitened
from agp.updates import Adam, Group, Plateau, delayed


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


@pytest.mark.slow
@pytest.mark.parametrize("posterior", [Whitened, Relaxed])
def test_steps_equal_those_of_torch(posterior):
    torch = pytest.importorskip("torch")
    model, batch = problem(posterior)
    expected = {
        name: torch.tensor(np.asarray(x), requires_grad=True)
        for name, x in short_names(tree.unconstrain(model)).items()
    }
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
        for name, x in short_names(tree.unconstrain(model)).items():
            np.testing.assert_allclose(x, expected[name].detach().numpy(), rtol=1e-9, atol=1e-10, err_msg=name)


def test_the_first_step_has_the_length_of_the_rate():
    model, batch = problem()
    raw = short_names(tree.unconstrain(model))
    gradient = value_and_gradient(model, batch.X, batch.y)[1]
    after = short_names(tree.unconstrain(run(Adam(1e-3), model, batch, 1)[0]))
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
    before = {name: np.array(x) for name, x in named(model).items()}
    first = {name: np.array(x) for name, x in state["first"].items()}
    one, two = update(model, batch, state), update(model, batch, state)
    for name, x in named(model).items():
        np.testing.assert_array_equal(x, before[name])
        np.testing.assert_array_equal(named(one[0])[name], named(two[0])[name])
    for name, x in state["first"].items():
        np.testing.assert_array_equal(x, first[name])
    assert state["count"] == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dtype_and_shapes_stay(dtype):
    model, batch = problem(dtype=dtype)
    moved, state, _ = run(Adam(), model, batch, 3)
    for name, x in named(model).items():
        new = named(moved)[name]
        assert (new.dtype, new.shape) == (np.dtype(dtype), x.shape), name
    assert {x.dtype for x in state["second"].values()} == {np.dtype(dtype)}
    assert state["count"].dtype == np.dtype(dtype)


def test_frozen_leaves_have_no_moments():
    model, _ = problem()
    state = Adam(frozen=("kernel.*",)).init(model)
    moving = {"likelihood.noise_variance", "posterior.mean", "posterior.scale", "Z", "mean_function.value"}
    assert short_names(state["first"]).keys() == moving


def test_scales_stay_lower_triangular_and_positive_leaves_positive():
    model, batch = problem()
    moved = run(Adam(1.0), model, batch, 5)[0]
    np.testing.assert_array_equal(np.triu(process(moved).posterior.scale, 1), 0.0)
    assert np.all(process(moved).kernel.lengthscale > 0)
    assert moved.likelihood.noise_variance > 0


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Adam(-1e-3), "rate is -0.001, but must be a finite number, 0 or greater"),
        (lambda: Adam(float("nan")), "rate is nan"),
        (lambda: Adam(True), "rate is True"),
        (lambda: Adam("fast"), "rate is 'fast'"),
        (lambda: Adam(epsilon=-1e-7), "epsilon is -1e-07"),
        (lambda: Adam(groups={"Z": 1e-3}), "the group 'Z' is 0.001, but must be a Group"),
        (lambda: Adam(plateau=0.95), "plateau is 0.95, but must be a Plateau"),
        (lambda: Adam(1e-7, plateau=Plateau(0.95, 10)), "floor is 1e-06, but must be at most the rate 1e-07"),
        (lambda: Group(float("inf")), "rate is inf"),
        (lambda: Group(1e-3, beta1=1.0), "beta1 is 1.0, but must be above 0 and below 1"),
        (lambda: Group(1e-3, beta2=-0.1), "beta2 is -0.1"),
        (lambda: Group(0.1, plateau=Plateau(0.95, 10, floor=0.2)), "floor is 0.2, but must be at most the rate 0.1"),
    ],
)
def test_bad_settings_are_refused_at_once(build, message):
    with pytest.raises((TypeError, ValueError), match=message):
        build()


# -- plateaus ---------------------------------------------------------------------------------------------------------


def noisy_bounds(monkeypatch, bounds):
    """Let the objective of step t read bounds[t], with the gradient that it has."""
    from agp.updates import _adam

    whole, told = _adam.gradient_of_batch, iter(bounds)

    def gradient_of(model, batch, mode, **options):
        value, gradient = whole(model, batch, mode)
        return value * 0.0 + next(told), gradient

    monkeypatch.setattr(_adam, "gradient_of_batch", gradient_of)


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "patience", "floor"), [(0.5, 1, 0.0), (0.7, 3, 0.004), (0.95, 5, 1e-6)])
def test_rates_fall_as_those_of_torch(factor, patience, floor, monkeypatch):
    torch = pytest.importorskip("torch")
    bounds = np.random.default_rng(2).normal(size=60) + np.linspace(0.0, 2.0, 60)
    model, batch = problem()
    noisy_bounds(monkeypatch, bounds)
    optimiser = torch.optim.SGD([torch.zeros(1)], lr=0.03)
    # torch waits for one step more than its patience
    options = {"mode": "max", "factor": factor, "patience": patience - 1, "threshold": 0.0, "min_lr": floor, "eps": 0.0}
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimiser, **options)
    update = Adam(0.03, plateau=Plateau(factor, patience, floor))
    state, found, expected = update.init(model), [], []
    for bound in bounds:
        expected.append(optimiser.param_groups[0]["lr"])
        schedule.step(bound)
        model, state, info = update(model, batch, state)
        found.append(float(info["rate of other leaves"]))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert len(set(found)) > 3
    assert float(state["plateau"]["best"]) == bounds.max()


def test_a_plateau_reaches_the_leaves_of_its_group_alone(monkeypatch):
    model, batch = problem()
    noisy_bounds(monkeypatch, [0.0] * 5 + [0.0] * 5)
    options = {"groups": {"Z": Group(0.02, plateau=Plateau(0.1, 2))}}
    reduced, _, info = run(Adam(0.01, **options), model, batch, 5)
    plain = run(Adam(0.01, groups={"Z": Group(0.02)}), model, batch, 3)[0]
    still = run(Adam(0.01, groups={"Z": Group(0.02, plateau=Plateau(0.1, 2))}), model, batch, 2)[0]
    assert info.keys() == {"bound", "rate of Z"}
    # steps 1 to 3 are as ever: the first is the best so far, the next two are waited for
    assert float(info["rate of Z"]) == pytest.approx(0.002)
    assert np.max(np.abs(inducing_inputs(plain) - inducing_inputs(still))) > 5e-3
    assert np.max(np.abs(inducing_inputs(reduced) - inducing_inputs(plain))) < 2 * 2.5e-3


def raw_variance(model):
    return float(tree.unconstrain(process(model).kernel)["variance"])


def test_the_step_has_the_length_of_the_reduced_rate(monkeypatch):
    model, batch = problem()
    noisy_bounds(monkeypatch, [0.0] * 3 + [0.0])
    free = {"beta1": 0.0, "beta2": 1e-12}  # each step is the rate times the sign of the gradient
    update = Adam(0.0, groups={"kernel.variance": Group(1e-3, plateau=Plateau(0.25, 1, floor=1e-4), **free)})
    state, raw, steps = update.init(model), [], []
    for _ in range(4):
        raw.append(raw_variance(model))
        model, state, _ = update(model, batch, state)
        steps.append(abs(raw_variance(model) - raw[-1]))
    np.testing.assert_allclose(steps, [1e-3, 1e-3, 2.5e-4, 1e-4], rtol=1e-4)


def test_a_frozen_start_is_not_waited_for_and_a_floor_does_not_end_it(monkeypatch):
    model, batch = problem()
    noisy_bounds(monkeypatch, [0.0] * 20)
    update = Adam(0.01, groups={"Z": Group(delayed(0.02, 6), plateau=Plateau(0.5, 4))})
    state, rates = update.init(model), []
    for _ in range(12):
        model, state, info = update(model, batch, state)
        rates.append(float(info["rate of Z"]))
    np.testing.assert_allclose(rates, [0.0] * 6 + [0.02] * 4 + [0.01] * 2)


def test_updates_without_a_plateau_have_no_state_for_one():
    model, _ = problem()
    assert Adam().init(model).keys() == {"count", "first", "second"}


PLATEAUS = Adam(
    0.03, groups={"Z": Group(0.02, plateau=Plateau(0.5, 2)), "kernel.*": Group(0.01)}, plateau=Plateau(0.7, 1, 1e-3)
)


def rows():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(40, 2))
    return X, np.sin(2.0 * X[:, :1]) + rng.standard_t(2.0, size=(40, 1))  # batches differ


@pytest.mark.slow
def test_a_plateau_is_the_same_on_every_backend(backend):
    # under JAX the step is compiled
    X, y = rows()
    host = SVGP.from_data(X, y, posterior=Whitened, num_inducing=5)
    options = {"steps": 12, "batch_size": 4, "updates": [PLATEAUS]}
    expected = train(host, X, y, **options).trace
    moved = train(backend.move(host), backend.array(X), backend.array(y), **options).trace
    assert moved.keys() == {"bound", "rate of Z", "rate of other leaves"}
    for name in ("rate of Z", "rate of other leaves"):
        np.testing.assert_allclose(moved[name], expected[name], rtol=1e-12)
        assert len(set(expected[name])) > 2


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_state_of_a_plateau_has_the_dtype_of_the_model(dtype):
    model, batch = problem(dtype=dtype)
    state = run(PLATEAUS, model, batch, 3)[1]["plateau"]
    numbers = [state["best"], *(x for group in state["groups"].values() for x in group.values())]
    assert len(numbers) == 5
    assert {(x.dtype, x.shape) for x in numbers} == {(np.dtype(dtype), ())}


@pytest.mark.slow
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_plateau_resumes_to_the_same_bits(library, tmp_path):
    pytest.importorskip(library)
    X, y = (tree.to_backend(x, library) for x in rows())
    model = SVGP.from_data(X, y, posterior=Whitened, num_inducing=5)
    options = {"steps": 12, "batch_size": 4, "updates": [PLATEAUS]}
    expected = train(model, X, y, **options)
    for stop in (1, 3, 7, 9):
        path = tmp_path / f"{stop}.safetensors"
        train(model, X, y, **options, checkpoint=path, callbacks=[lambda progress, stop=stop: progress.step == stop])
        resumed = train(model, X, y, **options, checkpoint=path)
        assert resumed.trace == expected.trace
    other = Adam(PLATEAUS.rate, groups=PLATEAUS.groups)
    with pytest.raises(ValueError, match="other updates"):
        train(model, X, y, steps=12, batch_size=4, updates=[other], checkpoint=path)
