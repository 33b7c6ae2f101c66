"""Predictions for rows with known offsets of the latent functions, and with known noise variances."""

import dataclasses

import numpy as np
import pytest
from helpers import NUMPY, assert_close
from predictor_cases import BATCH, NEW, model_of, new_targets, predictor_of

import agp
from agp.predictors import Imputations, Saturation

OFFSET = np.linspace(-1.0, 2.0, len(NEW))
NOISE = np.linspace(0.0, 0.7, len(NEW))
NAMES = ("poisson-wsvgp", "gpr", "cggp-iterative", "cagp-opt", "outputs-separate", "bernoulli-tvgp", "deep-wsvgp")
"""Predictors with an offset."""
NOISY = ("gpr", "sgpr", "rsvgp", "tvgp", "outputs-separate", "deep-wsvgp")
"""Predictors with known noise."""


def by_output(x, outputs):
    """A different number [N, P] for each output."""
    return x[:, None] * (1.0 + 0.5 * np.arange(outputs))


def scores(predictor, X, y, **known):
    """What is said of observations: densities, probabilities and quantiles, each by its name."""
    found = {
        "log density": predictor.log_density(X, y, **known),
        "mean log density": predictor.mean_log_density(X, y, **known),
        "quantile": predictor.quantile(X, 0.3, **known),
        "quantiles": predictor.quantile(X, (0.1, 0.8), **known),
        "interval": np.stack(predictor.interval(X, 0.8, **known)),
        "cdf": predictor.cdf(X, y, **known),
        "pit": predictor.pit(X, y, seed=1, **known),
        "crps": predictor.crps(X, y, **known),
    }
    return found | {"observed": np.stack(predictor.predict(X, observed=True, **known))}


# -- offsets ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_offsets_move_the_means_and_not_the_variances(name, backend):
    predictor, there = predictor_of(name), backend.move(predictor_of(name))
    mean, variance = predictor.predict(NEW)
    for offset in (OFFSET, by_output(OFFSET, predictor.outputs)):
        given = {"offset": backend.array(offset)}
        moved = there.predict(backend.array(NEW), **given)
        assert_close(backend.numpy(moved.mean), mean + offset.reshape(len(NEW), -1), 1e-9)
        assert_close(backend.numpy(moved.variance), variance, 1e-9)
        assert_close(backend.numpy(there.predict_mean(backend.array(NEW), **given)), backend.numpy(moved.mean), 1e-9)


@pytest.mark.parametrize("name", ["poisson-wsvgp", "poisson-tvgp"])
def test_an_offset_is_the_logarithm_of_an_exposure(name):
    model, y = model_of(name), new_targets(name)
    exposed = dataclasses.replace(model, likelihood=agp.Poisson(exposure=5.0)).predictor()
    found = scores(model.predictor(), NEW, y, offset=np.full(len(NEW), np.log(5.0)))
    for what, expected in scores(exposed, NEW, y).items():
        assert_close(found[what], expected, 1e-9, what)


def test_the_limits_of_rates_are_those_without_an_offset():
    predictor = predictor_of("poisson-wsvgp")
    limits, unit = predictor.predict(NEW).mean.mean(axis=0), np.ones(1)
    predictor = dataclasses.replace(predictor, saturation=Saturation(limits, unit))
    rates = predictor.predict(NEW, observed=True).mean
    found = predictor.predict(NEW, observed=True, offset=OFFSET).mean
    assert_close(found, np.exp(OFFSET)[:, None] * rates, 1e-12)


# -- known noise ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NOISY)
def test_known_noise_is_added_to_the_trained_noise(name, backend):
    predictor, there = predictor_of(name), backend.move(predictor_of(name))
    mean, variance = predictor.predict(NEW, observed=True)
    for noise in (NOISE, by_output(NOISE, predictor.outputs)):
        found = there.predict(backend.array(NEW), observed=True, noise=backend.array(noise))
        assert_close(backend.numpy(found.mean), mean, 1e-9)
        assert_close(backend.numpy(found.variance), variance + noise.reshape(len(NEW), -1), 1e-9)


@pytest.mark.parametrize("name", NOISY)
def test_equal_known_noise_is_a_larger_noise_variance(name):
    model, y = model_of(name), new_targets(name)
    predictor = model.predictor()
    larger = agp.Gaussian(predictor.likelihood.noise_variance + 0.3)
    found = scores(predictor, NEW, y, noise=np.full(len(NEW), 0.3))
    for what, expected in scores(dataclasses.replace(predictor, likelihood=larger), NEW, y).items():
        assert_close(found[what], expected, 1e-9, what)


# -- rows, chunks and leading axes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NOISY)
def test_each_row_has_its_own_offset_and_noise(name):
    predictor, y = predictor_of(name), new_targets(name)
    known = {"offset": by_output(OFFSET, predictor.outputs), "noise": by_output(NOISE, predictor.outputs)}
    whole = scores(predictor, NEW, y, **known)
    rows = [
        scores(predictor, NEW[i : i + 1], y[i : i + 1], **{key: x[i : i + 1] for key, x in known.items()})
        for i in range(len(NEW))
    ]
    for what, found in whole.items():
        if what == "pit" and predictor.likelihood.whole_numbers:
            continue  # random numbers by row
        axis = {1: 0, 2: 0, 3: 1}[found.ndim]
        assert_close(found, np.concatenate([row[what] for row in rows], axis=axis), 1e-9, what)
    for what, found in scores(predictor, NEW, y, memory=1e-6, **known).items():
        assert_close(found, whole[what], 1e-9, what)


@pytest.mark.parametrize("name", ["gpr", "outputs-separate", "deep-wsvgp"])
def test_offsets_and_noise_have_the_leading_axes_of_the_inputs(name, backend):
    predictor, there = predictor_of(name), backend.move(predictor_of(name))
    rng, P = np.random.default_rng(0), predictor.outputs
    shape = BATCH.shape[:-1]
    y = rng.normal(size=(*shape, P))
    for known in (
        {"offset": rng.normal(size=shape), "noise": rng.uniform(size=shape)},
        {"offset": rng.normal(size=(*shape, P)), "noise": rng.uniform(size=(*shape, P))},
    ):
        here = {key: backend.array(x) for key, x in known.items()}
        found = [*there.predict(backend.array(BATCH), observed=True, **here)]
        found.append(there.log_density(backend.array(BATCH), backend.array(y), **here))
        for i, j in np.ndindex(*BATCH.shape[:2]):
            own = {key: x[i, j] for key, x in known.items()}
            expected = [*predictor.predict(BATCH[i, j], observed=True, **own)]
            expected.append(predictor.log_density(BATCH[i, j], y[i, j], **own))
            for value, desired in zip(found, expected, strict=True):
                assert_close(backend.numpy(value)[i, j], desired, 1e-9)


def test_several_posteriors_share_the_offset_and_the_noise_of_a_row():
    more = predictor_of("gpr").condition_on(BATCH[0], np.ones(BATCH.shape[1:3]))
    mean, variance = more.predict(NEW, observed=True)
    moved = more.predict(NEW, observed=True, offset=OFFSET, noise=NOISE)
    assert_close(moved.mean, mean + OFFSET[:, None], 1e-12)
    assert_close(moved.variance, variance + NOISE[:, None], 1e-12)


@pytest.mark.parametrize("name", ["gpr", "deep-wsvgp"])
def test_rows_with_unknown_cells_keep_their_offset_and_noise(name):
    values = np.random.default_rng(1).uniform(-1.5, 1.5, (5, 2))
    imputations = Imputations(values, np.asarray([1.0, 1.5]))
    predictor = dataclasses.replace(predictor_of(name), imputations=imputations)
    gaps = NEW.copy()
    gaps[1, 0] = gaps[4, 1] = np.nan
    mean, variance = predictor.predict(gaps, observed=True)
    moved = predictor.predict(gaps, observed=True, offset=OFFSET, noise=NOISE)
    assert_close(moved.mean, mean + OFFSET[:, None], 1e-9)
    assert_close(moved.variance, variance + NOISE[:, None], 1e-9)


@pytest.mark.parametrize("name", ["gpr", "poisson-wsvgp", "deep-wsvgp"])
def test_models_answer_as_their_predictors(name):
    known = {"offset": OFFSET} if name == "poisson-wsvgp" else {"offset": OFFSET, "noise": NOISE}
    model, predictor, y = model_of(name), predictor_of(name), new_targets(name)
    for found, expected in (
        (model.predict(NEW, observed=True, **known), predictor.predict(NEW, observed=True, **known)),
        (model.interval(NEW, 0.8, **known), predictor.interval(NEW, 0.8, **known)),
        ([model.quantile(NEW, 0.3, **known)], [predictor.quantile(NEW, 0.3, **known)]),
        ([model.log_density(NEW, y, **known)], [predictor.log_density(NEW, y, **known)]),
        ([model.mean_log_density(NEW, y, **known)], [predictor.mean_log_density(NEW, y, **known)]),
        ([model.predict_mean(NEW, offset=OFFSET)], [predictor.predict_mean(NEW, offset=OFFSET)]),
    ):
        for value, desired in zip(found, expected, strict=True):
            np.testing.assert_array_equal(value, desired)


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["offset", "noise"])
@pytest.mark.parametrize("shape", [(), (1,), (len(NEW) + 1,), (len(NEW), 2), (1, len(NEW))])
def test_wrong_shapes_are_refused(what, shape):
    with pytest.raises(ValueError, match=rf"{what} has shape .*, but must have shape \({len(NEW)},\); pass one number"):
        predictor_of("gpr").predict(NEW, observed=True, **{what: np.zeros(shape)})


def test_other_leading_axes_are_refused():
    with pytest.raises(ValueError, match="offset has shape"):
        predictor_of("gpr").predict(BATCH, offset=np.zeros(BATCH.shape[1:-1]))


def test_offsets_of_another_library_or_dtype_are_refused(torch_place):
    with pytest.raises(TypeError, match="offset is a torch array, but X is a numpy array"):
        predictor_of("gpr").predict(NEW, offset=torch_place.array(OFFSET))
    with pytest.raises(TypeError, match="offset has dtype float32, X has float64"):
        predictor_of("gpr").predict(NEW, offset=NUMPY.array(OFFSET, "float32"))


def test_numbers_that_cannot_be_are_refused():
    predictor = predictor_of("gpr")
    with pytest.raises(ValueError, match="offset has 7 NaN or infinite entries, the first in row 0"):
        predictor.predict(NEW, offset=np.full(len(NEW), np.nan))
    with pytest.raises(ValueError, match="noise has 7 NaN or infinite entries, the first in row 0"):
        predictor.predict(NEW, observed=True, noise=np.full(len(NEW), np.inf))
    with pytest.raises(ValueError, match="noise variances must not be negative, but the smallest is -0.7"):
        predictor.quantile(NEW, 0.5, noise=-NOISE)


def test_noise_of_latent_functions_is_refused():
    for asked in (predictor_of("gpr"), model_of("gpr")):
        with pytest.raises(ValueError, match="noise is given, but latent functions have no noise; pass observed=True"):
            asked.predict(NEW, noise=NOISE)


@pytest.mark.parametrize("name", ["poisson-wsvgp", "bernoulli-tvgp"])
def test_noise_of_other_likelihoods_is_refused(name):
    predictor, y = predictor_of(name), new_targets(name)
    kind = type(predictor.likelihood).__name__
    for ask in (
        lambda: predictor.predict(NEW, observed=True, noise=NOISE),
        lambda: predictor.quantile(NEW, 0.5, noise=NOISE),
        lambda: predictor.log_density(NEW, y, noise=NOISE),
        lambda: predictor.cdf(NEW, y, noise=NOISE),
        lambda: predictor.crps(NEW, y, noise=NOISE),
        lambda: predictor.condition_on(NEW, y, noise=NOISE),
    ):
        with pytest.raises(TypeError, match=f"noise is given, but the likelihood is {kind}; omit noise=, or use"):
            ask()
