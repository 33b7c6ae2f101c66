"""Priors on the parameters of models: what training maximises, in both gradient modes, on every backend."""

import dataclasses

import numpy as np
import pytest
import scipy.stats
from helpers import (
    EXACT,
    assert_close,
    assert_closed_form_is_autograd,
    assert_closed_form_is_slope,
    named,
    process,
    relative_error,
    short_names,
    toy_data,
    value_and_gradient,
    with_leaves,
)

from agp import GPR, RBF, SGPR, SVGP, fit_lbfgs, get_backend, train, tree
from agp.backend import backend_of
from agp.kernels import Linear, Matern52
from agp.posteriors import Relaxed, Whitened
from agp.priors import Gamma, InverseGamma, LogNormal, Normal, Priors, Relative, as_priors, check_priors, log_prior
from agp.updates import Adam


@tree.model
class MapGPR(GPR):
    priors: Priors = ()


@tree.model
class MapSGPR(SGPR):
    priors: Priors = ()


@tree.model
class MapSVGP(SVGP):
    priors: Priors = ()


CLASSES = {GPR: MapGPR, SGPR: MapSGPR, SVGP: MapSVGP}
PRIORS = {
    "kernel.lengthscale": LogNormal(0.5, 0.3),
    "likelihood.*": InverseGamma(3.0, 0.4),
    "kernel.*": Gamma(2.0, 1.5),
}
BUILDERS = {
    "gpr": lambda X, y: GPR.from_data(X, y),
    "sgpr": lambda X, y: SGPR.from_data(X, y, num_inducing=6),
    "whitened": lambda X, y: SVGP.from_data(X, y, posterior=Whitened, num_inducing=6),
    "relaxed": lambda X, y: SVGP.from_data(X, y, posterior=Relaxed, num_inducing=6),
}


def with_priors(model, priors):
    values = {field.name: getattr(model, field.name) for field in dataclasses.fields(model)}
    return CLASSES[type(model)](**(values | {"priors": as_priors(priors)}))


def problem(kind, priors, rows=20):
    X, y = toy_data(rows)
    model = BUILDERS[kind](X, y)
    # away from the average of the targets, where the gradient by the level is zero but for rounding
    level = {name: x + 0.3 for name, x in named(model).items() if name == "mean_function.value"}
    return with_priors(with_leaves(model, level), priors), X, y


def scipy_log_prior(model):
    """By SciPy, for PRIORS."""
    return (
        np.sum(scipy.stats.lognorm(0.3, scale=np.exp(0.5)).logpdf(process(model).kernel.lengthscale))
        + scipy.stats.gamma(2.0, scale=1.0 / 1.5).logpdf(process(model).kernel.variance)
        + scipy.stats.invgamma(3.0, scale=0.4).logpdf(model.likelihood.noise_variance)
    )


# -- the log prior ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BUILDERS)
def test_the_log_prior_is_the_sum_over_parameters_by_first_pattern(kind, backend):
    model, _, _ = problem(kind, PRIORS)
    value, pullback = log_prior(backend.move(model))
    assert float(backend.numpy(value)) == pytest.approx(scipy_log_prior(model), rel=1e-12)
    bar = pullback(2.0)
    assert type(bar) is type(model)
    expected = PRIORS["kernel.lengthscale"].log_density(process(model).kernel.lengthscale)[1](2.0)
    assert_close(backend.numpy(process(bar).kernel.lengthscale), expected, 1e-12)
    assert named(bar).keys() == {"kernel.lengthscale", "kernel.variance", "likelihood.noise_variance"}


def test_a_model_without_priors_has_a_log_prior_of_zero(backend):
    X, y = toy_data(20)
    for model in (GPR.from_data(X, y), problem("gpr", {})[0]):
        value, pullback = log_prior(backend.move(model))
        assert float(backend.numpy(value)) == 0.0
        assert value.shape == ()
        assert named(pullback()) == {}


def stage_of(model):
    def stage(leaves):
        B = backend_of(leaves["kernel.variance"])
        others = {k: B.from_numpy(v) for k, v in named(model).items() if k not in leaves}
        value, pullback = log_prior(with_leaves(model, others | dict(leaves)))
        return (value,), lambda bar: named(pullback(bar))

    return stage


def test_the_pullback_of_the_log_prior_is_its_gradient(torch_place):
    model, _, _ = problem("sgpr", PRIORS | {"Z": Normal(0.3, 2.0)})
    parameters = named(model, "parameter")
    assert_closed_form_is_autograd(stage_of(model), parameters)
    assert_closed_form_is_slope(stage_of(model), parameters)


# -- what is maximised ------------------------------------------------------------------------------------------------


def assert_sum_is_maximised(kind, place):
    host, X, y = problem(kind, PRIORS)
    model, X, y = place.move(host), place.array(X), place.array(y)
    value, gradient = value_and_gradient(model, X, y)
    bound, pullback = model.bound(X, y)
    assert float(value) == pytest.approx(float(bound) + scipy_log_prior(host), rel=1e-12)
    without = short_names(tree.pull_raw(model, pullback(1.0)[0]))
    assert gradient.keys() == without.keys()
    assert relative_error(place.numpy(gradient["kernel.variance"]), place.numpy(without["kernel.variance"])) > 1e-3
    if "autodiff" in get_backend(place.name).gradients:
        again, automatic = value_and_gradient(model, X, y, gradient="autodiff")
        assert float(again) == pytest.approx(float(value), rel=1e-12)
        for name, expected in automatic.items():
            assert_close(place.numpy(gradient[name]), place.numpy(expected), EXACT, name)


def test_both_modes_maximise_bound_plus_log_prior(backend):
    assert_sum_is_maximised("relaxed", backend)


@pytest.mark.parametrize("kind", [kind for kind in BUILDERS if kind != "relaxed"])
def test_both_modes_agree_for_every_model(kind, torch_place):
    assert_sum_is_maximised(kind, torch_place)


def test_there_is_no_jacobian():
    # d/draw log p(v(raw)) = p'(v) / p(v) dv/draw and nothing else
    model, X, y = problem("gpr", PRIORS)
    plain = dataclasses.replace(model, priors=())
    added = (
        value_and_gradient(model, X, y)[1]["kernel.variance"] - value_and_gradient(plain, X, y)[1]["kernel.variance"]
    )
    slope = (2.0 - 1.0) / process(model).kernel.variance - 1.5
    bar = tree.cotangent(model, kernel=tree.cotangent(model.kernel, variance=slope))
    assert float(added) == pytest.approx(float(tree.pull_raw(model, bar)["kernel.variance"]), rel=1e-10)


def test_the_bound_stays_the_bound_and_the_prior_counts_once():
    model, X, y = problem("whitened", PRIORS)
    plain = dataclasses.replace(model, priors=())
    assert model.bound(X, y)[0] == plain.bound(X, y)[0]
    differences = [
        value_and_gradient(model, X, y, scale=scale)[0] - value_and_gradient(plain, X, y, scale=scale)[0]
        for scale in (1.0, 7.0)
    ]
    np.testing.assert_allclose(differences, scipy_log_prior(model), rtol=1e-10)


def test_a_compiled_value_and_gradient():
    jax = pytest.importorskip("jax")
    model, X, y = problem("gpr", PRIORS)
    expected, gradient = value_and_gradient(model, X, y)
    here = [tree.to_backend(x, "jax") for x in (model, X, y)]
    value, found = jax.jit(value_and_gradient)(*here)
    assert float(value) == pytest.approx(float(expected), rel=1e-12)
    for name, leaf in gradient.items():
        assert_close(np.asarray(found[name]), leaf, 1e-10, name)


# -- training ---------------------------------------------------------------------------------------------------------


def test_the_trace_of_training_shows_what_is_maximised(backend):
    host, X, y = problem("relaxed", PRIORS)
    model, X, y = backend.move(host), backend.array(X), backend.array(y)
    result = train(model, X, y, steps=3, updates=[Adam(0.05, frozen="inverse_factor")])
    first = float(model.bound(X, y)[0]) + float(log_prior(model)[0])
    assert result.trace["bound"][0] == pytest.approx(first, rel=1e-12)
    assert result.trace["bound"][-1] > first
    assert result.model.priors == model.priors


def test_lbfgs_maximises_the_sum(backend):
    host, X, y = problem("gpr", PRIORS)
    model, Xb, yb = backend.move(host), backend.array(X), backend.array(y)
    result = fit_lbfgs(model, Xb, yb, max_iterations=5)
    value = float(result.model.bound(Xb, yb)[0]) + float(log_prior(result.model)[0])
    assert result.trace["bound"][-1] == pytest.approx(value, rel=1e-12)
    assert result.bounds == [pytest.approx(value, rel=1e-12)]
    expected = fit_lbfgs(host, X, y, max_iterations=5)
    np.testing.assert_allclose(result.trace["bound"], expected.trace["bound"], rtol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("target", [0.5, 6.0])
def test_the_map_lies_between_the_maximum_of_the_likelihood_and_the_prior(target):
    X, y = toy_data(40)
    plain = GPR.from_data(X, y, kernel=RBF(1.0, 1.5))
    alone = float(process(fit_lbfgs(plain, X, y).model).kernel.lengthscale)
    distances = [abs(np.log(alone / target))]
    for deviation in (0.5, 0.1, 0.01, 1e-4):
        model = with_priors(plain, {"kernel.lengthscale": LogNormal(np.log(target), deviation)})
        found = fit_lbfgs(model, X, y)
        lengthscale = float(process(found.model).kernel.lengthscale)
        distances.append(abs(np.log(lengthscale / target)))
        assert min(alone, target) * (1.0 - 1e-6) < lengthscale < max(alone, target) * (1.0 + 1e-6)
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 1e-3


RELATIVE = {
    "kernel.lengthscale": Relative(LogNormal(-0.5, 0.4)),
    "kernel.variance": Relative(LogNormal(0.0, 1.0)),
    "noise_variance": Relative(InverseGamma(3.0, 0.4)),
}


@pytest.mark.slow
@pytest.mark.parametrize(("a", "b", "c"), [(1e3, 0.0, 1.0), (1e-4, 2.0, 1.0), (1.0, 0.0, 1e2), (50.0, -3.0, 1e-3)])
@pytest.mark.parametrize("kernel", [None, "matern52", "given"])
def test_relative_priors_have_the_same_map_in_any_units(kernel, a, b, c):
    X, y = toy_data(30, 2)
    scale = np.asarray([a, 1.0 / a])

    def fitted(X, y, unit):
        kernels = {"given": lambda: RBF(lengthscale=0.7 * unit), "matern52": Matern52}
        start = GPR.from_data(X, y, kernel=kernels.get(kernel, lambda: None)(), priors=RELATIVE)
        found = fit_lbfgs(start, X, y, tolerance=1e-9).model
        return found, float(log_prior(found)[0])

    (here, prior), (there, same) = fitted(X, y, np.ones(2)), fitted(scale * X + b, c * y, scale)
    assert same == pytest.approx(prior, abs=1e-4)
    np.testing.assert_allclose(there.kernel.lengthscale / scale, here.kernel.lengthscale, rtol=1e-3)
    np.testing.assert_allclose(there.kernel.variance / c**2, here.kernel.variance, rtol=1e-3)
    np.testing.assert_allclose(there.likelihood.noise_variance / c**2, here.likelihood.noise_variance, rtol=1e-3)
    plain = fit_lbfgs(GPR.from_data(X, y), X, y, tolerance=1e-9).model
    assert np.max(np.abs(np.log(plain.kernel.lengthscale / here.kernel.lengthscale))) > 0.05  # the prior counts


@pytest.mark.parametrize("kind", BUILDERS)
def test_relative_priors_are_maximised_in_both_modes(kind, backend):
    host, X, y = problem(kind, RELATIVE)
    model = backend.move(host)
    unit = process(model).kernel.lengthscale_unit
    value, pullback = log_prior(model)
    by_hand = sum(
        prior.prior.log_density(leaf.value / leaf.unit)[0]
        for name, prior in RELATIVE.items()
        for leaf in tree.describe(model)
        if tree.matches(leaf.name, name) and leaf.role == "parameter"
    )
    assert float(value) == pytest.approx(float(by_hand), rel=1e-12)
    assert unit is not None
    X, y = backend.array(X), backend.array(y)
    closed = value_and_gradient(model, X, y)
    assert float(closed[0]) == pytest.approx(float(model.bound(X, y)[0]) + float(value), rel=1e-12)
    if "autodiff" in get_backend(backend.name).gradients:
        for name, expected in value_and_gradient(model, X, y, gradient="autodiff")[1].items():
            assert_close(backend.numpy(closed[1][name]), backend.numpy(expected), EXACT, name)


def test_a_relative_density_of_positive_numbers_needs_positive_parameters():
    X, y = toy_data(20)
    with pytest.raises(ValueError, match="defined only for positive numbers"):
        GPR.from_data(X, y, priors={"mean_function.value": Relative(LogNormal(0.0, 1.0))})


def test_the_map_is_stationary():
    model, X, y = problem("gpr", PRIORS)
    found = fit_lbfgs(model, X, y, tolerance=1e-8).model
    at = tree.unconstrain(found)

    def height(name, step):
        moved = tree.constrain(found, at | {name: at[name] + step})
        return float(moved.bound(X, y)[0]) + scipy_log_prior(moved)

    for name in at:
        step = 1e-2 * np.ones_like(at[name])
        assert height(name, step) < height(name, 0.0) > height(name, -step)


def test_a_checkpoint_of_other_priors_is_refused(tmp_path):
    model, X, y = problem("gpr", PRIORS)
    path = tmp_path / "run.safetensors"
    expected = train(model, X, y, steps=4, updates=[Adam(0.1)])
    train(model, X, y, steps=2, updates=[Adam(0.1)], checkpoint=path)
    other = with_priors(GPR.from_data(X, y), PRIORS | {"kernel.*": Gamma(2.0, 1.6)})
    with pytest.raises(ValueError, match=r"run\.safetensors was written by a run with model="):
        train(other, X, y, steps=4, updates=[Adam(0.1)], checkpoint=path)
    assert train(model, X, y, steps=4, updates=[Adam(0.1)], checkpoint=path).trace == expected.trace


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("priors", "message"),
    [
        (
            {"kernel.lengthscales": Gamma(1.0, 1.0)},
            "no parameter matches 'kernel.lengthscales'; did you mean 'kernel.lengthscale'",
        ),
        ({"kernel.*": Gamma(1.0, 1.0), "X": Normal()}, "no parameter matches 'X'"),
        ({"posterior.mean": Normal()}, "'posterior.mean' matches process.posterior.mean, which is a part of q"),
        ({"*": Normal()}, "matches process.posterior.mean, which is a part of q"),
        (
            {"Z": Gamma(1.0, 1.0)},
            r"Gamma\(.*\) is defined only for positive numbers, but 'Z' matches process.inducing.Z, which is real",
        ),
    ],
    ids=["name", "second", "posterior", "star", "support"],
)
@pytest.mark.parametrize("use", [check_priors, log_prior, Adam().init], ids=["check", "log_prior", "adam"])
def test_priors_that_do_not_fit_the_model_are_refused(priors, message, use):
    model, _, _ = problem("whitened", priors)
    with pytest.raises(ValueError, match=message):
        use(model)


def test_training_refuses_them_before_the_first_step():
    model, X, y = problem("gpr", {"kernel.nothing": Normal()})
    with pytest.raises(ValueError, match="no parameter matches 'kernel.nothing'"):
        train(model, X, y, steps=3)
    with pytest.raises(ValueError, match="no parameter matches 'kernel.nothing'"):
        fit_lbfgs(model, X, y)


def test_a_real_density_fits_every_parameter():
    model, _, _ = problem("sgpr", {"kernel.*": Normal(), "Z": Normal()})
    check_priors(model)
    X, y = toy_data(20)
    check_priors(with_priors(GPR.from_data(X, y, kernel=Linear()), {"kernel.variance": Gamma(2.0, 1.0)}))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kernel.*": 2.0}, r"the prior of 'kernel.\*' is 2.0, but must be an instance of agp.priors.Prior"),
        ({"kernel.*": Gamma}, r"write Gamma\(...\)"),
        ({3: Normal()}, "must map names to priors"),
        (["kernel.*"], "priors contains 'kernel.*', but must map names to priors"),
        ([("kernel.*", Normal(), 1)], "must map names to priors"),
    ],
)
def test_what_is_no_mapping_of_priors_is_refused(given, message):
    with pytest.raises(TypeError, match=message):
        as_priors(given)


def test_mappings_and_pairs_are_taken_in_their_order():
    assert as_priors(None) == ()
    assert as_priors(PRIORS) == tuple(PRIORS.items())
    assert as_priors(as_priors(PRIORS)) == as_priors(PRIORS)
