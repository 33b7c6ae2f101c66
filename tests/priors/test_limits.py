"""Limits of parameters, fixed parameters and single entries, through every way of training."""

import numpy as np
import pytest

import agp
from agp import tree
from agp.bounds import Batch
from agp.priors import Between, Fixed, LogNormal, log_prior
from agp.training import Coordinates, Evidence, newton_names
from agp.updates import Adam, Group, NaturalGradient

RNG = np.random.default_rng(3)
X = RNG.standard_normal((60, 2))
Y = np.sin(1.5 * X[:, 0]) + 0.1 * RNG.standard_normal(60)
COUNTS = RNG.poisson(np.exp(np.sin(X[:, 0]))).astype(float)
KERNEL = agp.RBF(lengthscale=[1.0, 1.5])
LIMITS = {
    "kernel.lengthscale[0]": Between(0.5, 1.2),
    "kernel.variance": Between(None, 0.2),
    "likelihood.noise_variance": Between(0.05),
    "kernel.lengthscale[1]": Fixed(),
}


def gpr(**options):
    return agp.GPR.from_data(X, Y, kernel=KERNEL, **options)


def sparse(cls=agp.SVGP, **options):
    return cls.from_data(X, Y, kernel=KERNEL, num_inducing=12, **options)


TRAININGS = {
    "newton": lambda model: agp.fit_newton(model, X, Y),
    "lbfgs": lambda model: agp.fit_lbfgs(model, X, Y),
    "lbfgs-logarithms": lambda model: agp.fit_lbfgs(model, X, Y, logarithms=True),
    "lbfgs-restarts": lambda model: agp.fit_lbfgs(model, X, Y, restarts=2, max_iterations=20),
    "adam": lambda model: agp.train(model, X, Y, steps=60, updates=[Adam(0.1)]),
    "fit": lambda model: agp.fit(model, X, Y),
}


def values(model):
    found = tree.leaves(model)
    names = ("lengthscale", "kernel.variance", "noise_variance")
    return {name: np.asarray(x) for name, x in found.items() if name.endswith(names)}


def assert_within(model):
    for name, x in values(model).items():
        if name.endswith("lengthscale"):
            assert 0.5 <= x[0] <= 1.2 + 1e-12
        elif name.endswith("kernel.variance"):
            assert x <= 0.2 + 1e-12
        elif name.endswith("noise_variance"):
            assert x >= 0.05 - 1e-12


@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
@pytest.mark.parametrize("training", TRAININGS)
def test_training_respects_limits_and_reaches_those_that_bind(training):
    free, model = agp.fit_newton(gpr(), X, Y).model, gpr(priors=LIMITS)
    assert_within(model)
    assert values(free)["likelihood.noise_variance"] < 0.05  # so the limit binds
    assert values(free)["kernel.variance"] > 0.2
    trained = TRAININGS[training](model).model
    assert_within(trained)
    found = values(trained)
    assert found["kernel.lengthscale"][1] == 1.5
    assert found["likelihood.noise_variance"] == pytest.approx(0.05, rel=0.02)
    assert found["kernel.variance"] == pytest.approx(0.2, rel=0.1)


def test_newton_and_lbfgs_find_the_same_optimum_on_the_limits():
    first, second = (f(gpr(priors=LIMITS), X, Y).model for f in (agp.fit_newton, agp.fit_lbfgs))
    assert float(first.bound(X, Y)[0]) == pytest.approx(float(second.bound(X, Y)[0]), abs=2e-3)


@pytest.mark.parametrize(
    "cls", [agp.SGPR, agp.SVGP, agp.NNGP, agp.CaGP, agp.VIF, agp.GPR, agp.SOLVEGPR], ids=lambda cls: cls.__name__
)
@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
def test_fit_freezes_single_entries_and_whole_leaves_of_every_method(cls):
    model = cls.from_data(X, Y, kernel=KERNEL)
    found = agp.fit(model, X, Y, frozen=("kernel.lengthscale[0]", "mean_function.*"), max_steps=25).model
    after, before = tree.leaves(found), tree.leaves(model)
    for name in after:
        if name.endswith("kernel.lengthscale"):
            assert after[name][0] == before[name][0]
            assert after[name][1] != before[name][1]
        elif "mean_function" in name:
            assert np.array_equal(after[name], before[name])
    assert found.priors == model.priors


@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
@pytest.mark.parametrize("cls", [agp.TNNGP, agp.TVGP, agp.SVGP])
def test_fit_freezes_entries_of_models_of_counts(cls):
    model = cls.from_data(X, COUNTS, kernel=KERNEL, likelihood=agp.Poisson())
    kept = {"frozen": "kernel.lengthscale[0]", "priors": {"kernel.variance": Between(None, 0.3)}}
    found = tree.leaves(agp.fit(model, X, COUNTS, max_steps=12, **kept).model)
    lengthscale = next(x for name, x in found.items() if name.endswith("kernel.lengthscale"))
    variance = next(x for name, x in found.items() if name.endswith("kernel.variance"))
    assert lengthscale[0] == 1.0
    assert lengthscale[1] != 1.5
    assert variance <= 0.3


def test_a_fixed_leaf_is_reported_as_frozen():
    found = agp.fit(gpr(priors={"kernel.lengthscale": Fixed()}), X, Y)
    assert "kernel.lengthscale" in found.frozen
    assert np.array_equal(found.model.kernel.lengthscale, [1.0, 1.5])
    assert "kernel.lengthscale" in agp.fit(gpr(), X, Y, frozen="kernel.lengthscale").frozen


@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
def test_minibatches_respect_limits():
    limits = {"kernel.lengthscale[1]": Fixed(), "likelihood.noise_variance": Between(0.05)}
    found = agp.fit(sparse(priors=limits), X, Y, batch_size=30, max_steps=120).model
    assert found.kernel.lengthscale[1] == 1.5
    assert found.likelihood.noise_variance >= 0.05


@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
def test_frozen_q_of_u_is_not_solved_for():
    model = sparse(posterior="whitened")
    found = agp.fit(model, X, Y, frozen="posterior.*", max_steps=20)
    assert np.array_equal(found.model.process.posterior.mean, model.process.posterior.mean)


def test_integration_keeps_limits_and_fixed_entries():
    for found in (
        agp.integrate(gpr(priors=LIMITS), settings=40).model,
        agp.fit_regression(X, Y, priors=LIMITS, kernel=KERNEL, hyperparameters="mixture").model,
    ):
        for settings in found.settings:
            lengthscale = np.asarray(settings.kernel.lengthscale)
            assert np.all((lengthscale[:, 0] > 0.5) & (lengthscale[:, 0] < 1.2))
            assert np.all(lengthscale[:, 1] == 1.5)
            assert np.ptp(lengthscale[:, 0]) > 0.0
            assert np.all(np.asarray(settings.kernel.variance) < 0.2)
            assert np.all(np.asarray(settings.noise) > 0.05)
    mean = agp.integrate(gpr(mean_function=agp.ConstantMean(5.0), priors={"mean_function.*": Fixed()}), settings=40)
    assert mean.model.predict_mean(np.asarray([[1e6, 1e6]]))[0, 0] == pytest.approx(5.0)


def test_integration_does_not_take_limits_of_a_constant_mean():
    limits = {"mean_function.value": Between(1.0, 2.0)}
    with pytest.raises(ValueError, match="does not take limits of a constant mean"):
        agp.integrate(gpr(priors=limits))
    found = agp.fit_regression(X, Y, priors=limits, kernel=KERNEL).model
    assert float(np.asarray(found.mean_function.value).reshape(-1)[0]) >= 1.0
    lines = agp.means.LinearMean(np.full((2, 1), 0.6), np.zeros(1))  # keeps its coefficients, which are inside
    kept = agp.integrate(gpr(mean_function=lines, priors={"mean_function.weights": Between(0.5, 1.0)}), settings=16)
    assert np.array_equal(kept.model.mode.mean_function.weights, lines.weights)


@pytest.mark.parametrize("training", ["newton", "lbfgs", "adam", "fit"])
def test_limits_of_the_mean_hold(training):
    trained = TRAININGS[training](gpr(priors={"mean_function.value": Between(1.0, 2.0)})).model
    assert float(np.asarray(trained.mean_function.value).reshape(-1)[0]) == pytest.approx(1.0, abs=2e-2)
    lines = {"mean_function.weights[0, 0]": Between(0.5, 1.0)}
    linear = TRAININGS[training](gpr(mean_function=agp.LinearMean(), priors=lines)).model
    assert 0.5 - 1e-12 <= float(np.asarray(linear.mean_function.weights).reshape(-1)[0]) <= 1.0 + 1e-12
    found = agp.fit_regression(X, Y, priors={"mean_function.value": Between(1.0, 2.0)}).model
    assert float(np.asarray(found.mean_function.value).reshape(-1)[0]) >= 1.0 - 1e-12


def test_newtons_step_with_a_limited_mean_is_that_of_the_optimum():
    # a limit that does not bind changes neither the optimum nor the number of steps much
    free = agp.fit_newton(gpr(), X, Y)
    limited = agp.fit_newton(gpr(priors={"mean_function.value": Between(-50.0, 50.0)}), X, Y)
    assert float(limited.model.bound(X, Y)[0]) == pytest.approx(float(free.model.bound(X, Y)[0]), abs=2e-3)
    assert limited.steps <= 2 * free.steps + 5


def test_contradictions_and_entries_of_ordered_leaves_are_refused():
    with pytest.raises(ValueError, match="the limits of kernel.lengthscale contradict each other"):
        gpr(priors={"kernel.lengthscale": Between(1.0, 2.0), "kernel.lengthscale[0]": Between(3.0, 4.0)})
    levels = np.digitize(Y, [-0.5, 0.0, 0.5]).astype(float)
    ordinal = {"likelihood": agp.Ordinal(4), "num_inducing": 10, "posterior": "whitened"}
    with pytest.raises(ValueError, match="in ascending order, so single entries cannot be fixed"):
        agp.SVGP.from_data(X, levels, **ordinal, priors={"likelihood.edges[1]": Fixed()})
    with pytest.raises(ValueError, match="single entries cannot be fixed"):
        agp.flatten(agp.SVGP.from_data(X, levels, **ordinal), frozen="likelihood.edges[1]")
    with pytest.raises(ValueError, match="no parameter matches"):
        agp.train(gpr(), X, Y, steps=1, updates=[Adam(0.1, groups={"kernel.lengthscale[0]": Group(0.5)})])


def test_fixed_entries_keep_their_values_to_the_bit():
    for value in np.linspace(0.3, 2.9, 14):
        kernel = agp.RBF(lengthscale=[1.0, value])
        model = agp.GPR.from_data(X, Y, kernel=kernel, priors={"kernel.lengthscale[1]": Fixed()})
        for train in (agp.fit_newton, agp.fit_lbfgs):
            assert train(model, X, Y, max_iterations=3).model.kernel.lengthscale[1] == value


@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
def test_a_frozen_entry_of_q_is_kept():
    model = sparse(posterior="whitened")
    found = agp.fit(model, X, Y, frozen="process.posterior.mean[0, 0]", max_steps=20).model
    mean = np.asarray(found.process.posterior.mean)
    assert mean[0, 0] == np.asarray(model.process.posterior.mean)[0, 0]
    assert np.all(mean[1:, 0] != 0.0)


def test_everything_frozen_entry_by_entry_is_named():
    frozen = ("kernel.variance", "kernel.lengthscale[0]", "kernel.lengthscale[1]", "likelihood.*", "mean_function.*")
    with pytest.raises(ValueError, match="every parameter is frozen by"):
        agp.fit_lbfgs(gpr(), X, Y, frozen=frozen)


def test_limits_far_away_change_nothing():
    wide = {"kernel.*": Between(1e-8, 1e8), "likelihood.*": Between(1e-9), "mean_function.*": Between(-1e6, 1e6)}
    for fit in (agp.fit_newton, agp.fit_lbfgs, lambda *args: agp.train(*args, steps=20)):
        plain, limited = fit(gpr(), X, Y).model, fit(gpr(priors=wide), X, Y).model
        assert float(limited.bound(X, Y)[0]) == pytest.approx(float(plain.bound(X, Y)[0]), abs=2e-3)


def test_limits_have_the_units_of_the_parameter():
    scaled = {"kernel.lengthscale": Between(500.0, 1200.0), "likelihood.noise_variance": Between(0.05 * 1e-4)}
    plain = {"kernel.lengthscale": Between(0.5, 1.2), "likelihood.noise_variance": Between(0.05)}
    kernel = agp.RBF(lengthscale=[1000.0, 1500.0])
    with pytest.warns(UserWarning, match="is given as 1.5, but"):
        one = agp.fit(gpr(priors=plain), X, Y).model
    with pytest.warns(UserWarning, match="is given as 1500, but"):
        other = agp.fit(agp.GPR.from_data(1e3 * X, 1e-2 * Y, kernel=kernel, priors=scaled), 1e3 * X, 1e-2 * Y).model
    np.testing.assert_allclose(other.kernel.lengthscale, 1e3 * one.kernel.lengthscale, rtol=1e-4)
    np.testing.assert_allclose(other.predict(1e3 * X).mean, 1e-2 * one.predict(X).mean, rtol=1e-4, atol=1e-7)


def test_all_backends_take_the_same_steps(backend):
    priors = [*LIMITS.items(), ("kernel.lengthscale[0]", LogNormal(0.2, 0.4)), ("kernel.*", LogNormal(0.0, 1.0))]
    model = gpr(priors=priors)
    expected = agp.train(model, X, Y, steps=10).model
    found = agp.train(backend.move(model), backend.array(X), backend.array(Y), steps=10).model
    for name, x in tree.leaves(agp.to_backend(found, "numpy")).items():
        np.testing.assert_allclose(x, tree.leaves(expected)[name], rtol=1e-9)


# -- single entries ----------------------------------------------------------------------------------------------------


def test_priors_of_single_entries():
    prior, other = LogNormal(0.3, 0.5), LogNormal(-1.0, 2.0)
    model = gpr(priors={"kernel.lengthscale[1]": prior, "kernel.lengthscale": other})
    value, pull = log_prior(model)
    parts = [one.log_density(np.asarray([x])) for one, x in ((other, 1.0), (prior, 1.5))]
    assert float(value) == pytest.approx(sum(float(part) for part, _ in parts))
    slope = pull(2.0).kernel.lengthscale
    np.testing.assert_allclose(slope, [part(2.0)[0] for _, part in parts])
    alone = gpr(priors={"kernel.lengthscale[1]": prior})
    np.testing.assert_allclose(log_prior(alone)[1]().kernel.lengthscale, [0.0, parts[1][1](1.0)[0]])


def test_newtons_derivatives_without_fixed_entries_are_differences():
    priors = {"kernel.lengthscale[0]": Fixed(), "kernel.lengthscale[1]": LogNormal(0.3, 0.5)}
    model = gpr(priors=priors)
    objective = Evidence(model, Batch(X, Y[:, None]), newton_names(model))
    at = objective.coordinates.vector_of(model)
    assert len(at) == 4  # variance, one lengthscale, noise, mean
    point = objective(at)
    for i in np.flatnonzero(~objective.linear):
        step = 1e-5 * (np.arange(4) == i)
        difference = (objective(at + step).value - objective(at - step).value) / 2e-5
        profiled = point.slope[np.flatnonzero(~objective.linear) == i][0]
        # the gradient is that after the mean function is optimised, so remove the part along the mean
        if abs(point.mean.gain) < 1e-12:
            assert difference == pytest.approx(profiled, rel=1e-5)


def test_coordinates_return_what_they_were_given():
    model = gpr(priors={"kernel.lengthscale[0]": Fixed()})
    coordinates = Coordinates(model, newton_names(model), ("mean_function.value[0]",))
    vector = coordinates.vector_of(model)
    np.testing.assert_allclose(coordinates.vector_of(coordinates.model_at(vector + 0.1)), vector + 0.1)
    moved = coordinates.model_at(vector + 0.1)
    assert moved.kernel.lengthscale[0] == 1.0
    assert np.array_equal(moved.mean_function.value, model.mean_function.value)
    several = coordinates.values_at(np.stack([vector, vector + 0.1]))
    np.testing.assert_allclose(several["kernel.lengthscale"][1], moved.kernel.lengthscale)


def test_flatten_leaves_out_fixed_entries():
    model = gpr(priors={"kernel.lengthscale[0]": Fixed()})
    vector, unflatten = agp.flatten(model, frozen=("likelihood.*", "mean_function.value[0]"))
    assert unflatten.names == ("kernel.variance", "kernel.lengthscale[1]")
    moved = unflatten(vector + 0.3)
    assert moved.kernel.lengthscale[0] == 1.0
    np.testing.assert_allclose(agp.flatten(moved, frozen=("likelihood.*", "mean_function.*"))[0], vector + 0.3)
    jacobian, pull = unflatten.log_jacobian(vector)
    moved = [unflatten(vector + 1e-6 * e) for e in np.eye(2)]
    slopes = [
        (m.kernel.variance - model.kernel.variance) / 1e-6 if i == 0 else (m.kernel.lengthscale[1] - 1.5) / 1e-6
        for i, m in enumerate(moved)
    ]
    assert float(jacobian) == pytest.approx(np.sum(np.log(slopes)), abs=1e-4)
    assert pull().shape == (2,)


# -- lists of updates --------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
def test_fit_takes_lists_of_updates():
    updates = [Adam(0.05, frozen=("posterior.*", "kernel.lengthscale[0]")), NaturalGradient(0.5)]
    found = agp.fit(sparse(posterior="whitened"), X, Y, updates=updates, max_steps=30)
    assert found.steps == 30
    assert found.model.kernel.lengthscale[0] == 1.0
    same = agp.train(sparse(posterior="whitened"), X, Y, steps=30, updates=updates)
    np.testing.assert_array_equal(found.model.kernel.lengthscale, same.model.kernel.lengthscale)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"updates": Adam(0.05)}, "must be a list of updates"),
        ({"updates": [Adam]}, r"updates\[0\] is a class; write Adam\(\)"),
        ({"updates": "adam"}, "must be a list of updates"),
        ({"updates": []}, "updates is empty"),
        ({"updates": [Adam(0.05)], "frozen": "Z"}, "pass frozen to the updates"),
        ({"frozen": "kernel.lenthscale"}, "no parameter matches 'kernel.lenthscale'; did you mean"),
        (
            {"frozen": "kernel.lengthscale[2]"},
            r"names an entry of process.kernel.lengthscale, which has the shape \(2,\)",
        ),
        ({"frozen": "kernel.lengthscale[0, 0]"}, "names an entry of"),
        ({"frozen": 3}, "a pattern of leaf names is 3"),
        ({"priors": {"kernel.lengthscale": (0.1, 2.0)}}, "must be an instance of agp.priors.Prior"),
        ({"priors": {"kernel.lengthscale": Between(None, -1.0)}}, "is positive, but"),
        ({"priors": {"posterior.mean": Fixed()}}, "part of q"),
        ({"priors": {"kernel.scale": Fixed()}}, "no parameter matches"),
    ],
)
def test_wrong_arguments_are_named(options, said):
    with pytest.raises((TypeError, ValueError), match=said):
        agp.fit(sparse(posterior="whitened"), X, Y, **options)


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((), "both None"),
        ((2.0, 1.0), "low is 2 and high is 1"),
        ((np.inf,), "finite"),
        (("a",), "finite"),
        ((1, 1), "less"),
    ],
)
def test_wrong_limits_are_named(ends, said):
    with pytest.raises(ValueError, match=said):
        Between(*ends)


def test_limits_survive_files(tmp_path):
    model = gpr(priors=LIMITS)
    agp.save(model, tmp_path / "model.safetensors")
    assert agp.load(tmp_path / "model.safetensors").priors == model.priors


def test_the_summary_shows_limits_and_fixed_entries():
    priors = {"kernel.lengthscale": Between(0.5, 3.0), "kernel.lengthscale[1]": Fixed(), "likelihood.*": Fixed()}
    text = agp.summary(gpr(priors=priors))
    line = next(line for line in text.splitlines() if line.startswith("kernel.lengthscale"))
    assert "between 0.5 and 3" in line
    assert line.endswith("frozen: [1]")
    assert next(line for line in text.splitlines() if line.startswith("likelihood")).endswith("frozen")
    assert "frozen: [0]" in agp.summary(gpr(), frozen="kernel.lengthscale[0]")


def test_fixed_values_outside_their_limits_are_refused():
    with pytest.raises(ValueError, match=r"an entry of kernel.lengthscale is fixed at 1.5, but"):
        gpr(priors={"kernel.lengthscale": Between(0.5, 1.2), "kernel.lengthscale[1]": Fixed()})


def test_limits_of_lengthscales_do_not_prevent_transforms():
    y = np.exp(3.0 * Y)
    for limit in (Between(0.01, 50.0), Fixed()):
        assert agp.fit_regression(X, y, transforms="auto", priors={"kernel.*lengthscale": limit}).transform is not None
    floor = {"likelihood.noise_variance": Between(1e-6)}
    assert agp.fit_regression(X, y, transforms="auto", priors=floor).transform is None


def test_integration_by_differences_finds_the_mode():
    # for kernels without linearisations
    @agp.tree.model
    class Plain(agp.kernels.Stationary):
        def profile(self, r2, /):
            g = np.exp(-0.5 * r2)
            return g, lambda: -0.5 * g

        def linearise(self, X, /):
            return None

    rows = slice(0, 20)
    model = agp.GPR.from_data(X[rows], Y[rows], kernel=Plain())
    found = float(agp.integrate(model, settings=40).model.mode.bound(X[rows], Y[rows])[0])
    expected = agp.GPR.from_data(X[rows], Y[rows], kernel=agp.RBF())
    best = float(agp.integrate(expected, settings=40).model.mode.bound(X[rows], Y[rows])[0])
    assert found == pytest.approx(best, abs=0.05)


def test_calls_with_wrong_arguments_are_explained():
    with pytest.raises(TypeError, match=r"Fixed\(\) takes no argument by position"):
        Fixed(8.0)
    with pytest.raises(TypeError, match="its arguments are low, high"):
        Between(upper=3.0)


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
def test_result_lists_fixed_entries(training):
    found = TRAININGS[training](gpr(priors={"kernel.lengthscale[1]": Fixed(), "likelihood.*": Fixed()})).frozen
    assert set(found) == {"kernel.lengthscale[1]", "likelihood.noise_variance"}


@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
def test_growth_keeps_fixed_entries_and_limits():
    found = agp.fit_growing(sparse(agp.SGPR, priors=LIMITS), X, Y, most=24, max_steps=40).model
    assert found.kernel.lengthscale[1] == 1.5
    assert_within(found)


class SignSteps:
    """An update of a user: it knows neither limits nor fixed parameters, and moves what has no gradient, too."""

    def init(self, model, /):
        return {}

    def __call__(self, model, batch, state, /):
        bound, gradient = agp.gradient.gradient_of_batch(model, batch, "closed-form")
        raw = tree.unconstrain(model)
        moved = {name: x + 0.05 * np.sign(gradient[name] + 1e-12) for name, x in raw.items()}
        return tree.constrain(model, moved), state, {"bound": bound}


@pytest.mark.parametrize("model", [gpr, sparse], ids=["gpr", "svgp"])
@pytest.mark.parametrize("repeated", [False, True])
def test_training_keeps_limits_whatever_the_updates_do(model, repeated):
    updates = [agp.updates.Repeat(SignSteps(), 3) if repeated else SignSteps()]
    begun = model(priors=LIMITS | {"mean_function.*": Fixed()}, mean_function=agp.ConstantMean(0.25))
    found = agp.train(begun, X, Y, steps=40, updates=updates)
    assert_within(found.model)
    leaves = tree.leaves(found.model)
    assert all(np.asarray(x)[1] == 1.5 for name, x in leaves.items() if name.endswith("kernel.lengthscale"))
    assert all(np.all(x == 0.25) for name, x in leaves.items() if name.endswith("mean_function.value"))
    assert found.message == "all steps are done"


def test_results_name_the_callback_that_ended_the_training():
    class Patience:
        def __call__(self, seen):
            return seen.step == 3

    assert agp.train(gpr(), X, Y, steps=9, callbacks=[Patience()]).message == "the callback Patience ended the training"


ZERO = "likelihood.noise_variance is 0 and stays 0 in training, but 'likelihood.noise_variance' limits it to at least"


@pytest.mark.parametrize("kind", ["GPR", "SGPR", "SVGP", "NNGP", "estimator", "mixture"])
def test_a_parameter_that_stays_zero_cannot_be_limited_above_zero(kind):
    rng = np.random.default_rng(0)
    X, noise = rng.uniform(0.0, 6.0, (30, 1)), np.full(30, 0.01)
    y, likelihood = np.sin(X[:, 0]), agp.Gaussian(0.0)
    priors = {"likelihood.noise_variance": agp.priors.Between(1e-4)}
    given = {"likelihood": likelihood, "priors": priors}

    def build():
        if kind in ("estimator", "mixture"):
            settings = {} if kind == "estimator" else {"hyperparameters": "mixture"}
            return agp.GPRegressor(kernel="rbf", **given, **settings).fit(X, y, noise=noise)
        return vars(agp)[kind].from_data(X, y, noise=noise, **given)

    with pytest.raises(ValueError, match=ZERO):
        build()


def test_a_parameter_that_stays_zero_may_have_a_limit_that_it_satisfies():
    X = np.linspace(0.0, 6.0, 30)[:, None]
    priors = {"likelihood.noise_variance": agp.priors.Between(0.0, 1.0)}
    parts = {"likelihood": agp.Gaussian(0.0), "noise": np.full(30, 0.01), "priors": priors}
    assert agp.GPR.from_data(X, np.sin(X[:, 0]), **parts).likelihood.noise_variance == 0.0


# -- given values ------------------------------------------------------------------------------------------------------

PERIODIC = {"kernel": agp.Periodic(period=3.65), "priors": {"kernel*period": Between(3.0, 3.4)}}
GIVEN = {
    "kernel": (PERIODIC, r"kernel.period is given as 3.65, but 'kernel\*period' limits it to between 3 and 3.4"),
    "list": (
        {"kernel": agp.RBF(lengthscale=[1.0, 2.0]), "priors": {"kernel.lengthscale[1]": Between(high=1.5)}},
        r"kernel.lengthscale is given as 2, but 'kernel.lengthscale\[1\]' limits it to at most 1.5",
    ),
    "part": (
        {"kernel": agp.RBF().on((0,)) + agp.RBF(lengthscale=0.1).on((1,)), "priors": {"kernel.*": Between(0.5)}},
        r"kernel.parts.1.kernel.lengthscale is given as 0.1, but 'kernel.\*' limits it to at least 0.5",
    ),
    "likelihood": (
        {"likelihood": agp.Gaussian(0.1), "priors": {"likelihood.*": Between(0.2)}},
        r"likelihood.noise_variance is given as 0.1, but 'likelihood.\*' limits it to at least 0.2",
    ),
    "mean": (
        {"mean_function": agp.ConstantMean(5.0), "priors": {"mean_function.value": Between(0.0, 1.0)}},
        r"mean_function.value is given as 5, but 'mean_function.value' limits it to between 0 and 1",
    ),
}
WAYS = {
    "GPR": lambda **given: agp.GPR.from_data(X, Y, **given),
    "SGPR": lambda **given: agp.SGPR.from_data(X, Y, num_inducing=9, **given),
    "SVGP": lambda **given: agp.SVGP.from_data(X, Y, num_inducing=9, **given),
    "NNGP": lambda **given: agp.NNGP.from_data(X, Y, **given),
    "fit_regression": lambda **given: agp.fit_regression(X, Y, **given),
    "mixture": lambda **given: agp.fit_regression(X, Y, hyperparameters="mixture", **given),
    "estimator": lambda **given: agp.GPRegressor(method="sgpr", num_inducing=9, **given).fit(X, Y),
}


@pytest.mark.parametrize("case", GIVEN)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore::agp.errors.NoSignalWarning", "ignore::agp.errors.ConvergenceWarning")
def test_a_given_value_outside_its_limits_is_said_to_move(case, way):
    given, said = GIVEN[case]
    if case == "mean" and way == "mixture":
        pytest.skip("limits of a constant mean are not integrated over")
    with pytest.warns(UserWarning, match=said) as caught:
        WAYS[way](**given)
    assert sum("is given as" in str(one.message) for one in caught) == 1


def test_a_given_value_within_its_limits_and_computed_starts_do_not_warn():
    gpr(priors={"kernel.lengthscale": Between(0.9, 1.6), "kernel.variance": Between(None, 0.01)})
    agp.fit_regression(X, Y, kernel=KERNEL, priors={"kernel.*lengthscale": Between(0.9, 1.6)})


def test_the_period_of_a_season_is_named_as_a_constant():
    seasonal = agp.Seasonal(period=2.0)
    said = (
        r"no parameter matches 'kernel.period': kernel.period is a constant, .* the period of agp.Periodic is trained"
    )
    for prior in (Between(1.0, 3.0), LogNormal(0.0, 1.0), Fixed()):
        with pytest.raises(ValueError, match=said):
            agp.GPR.from_data(X, Y, kernel=seasonal, priors={"kernel.period": prior})
    model = agp.GPR.from_data(X, Y, kernel=seasonal)
    for fit in (agp.fit, agp.fit_newton, agp.fit_lbfgs):
        with pytest.raises(ValueError, match=said):
            fit(model, X, Y, frozen="kernel.period")
    with pytest.raises(ValueError, match=said):
        agp.summary(model, frozen="kernel.period")


def test_a_pattern_can_begin_at_the_beginning_of_the_name():
    kernel = agp.RBF() + (agp.RBF() * agp.Matern32()).on((0,))
    limits = {"^kernel.parts.0.lengthscale": Between(0.9, 1.1)}
    for model in (
        agp.GPR.from_data(X, Y, kernel=kernel, priors=limits),
        agp.SVGP.from_data(X, Y, kernel=kernel, priors=limits, num_inducing=9),
    ):
        shown = [line for line in agp.summary(model).splitlines() if "between 0.9 and 1.1" in line]
        assert len(shown) == 1
        assert shown[0].split()[0].removeprefix("process.") == "kernel.parts.0.lengthscale"
