"""Rows with weights, offsets and known noise variances: exact formulas, gradients, minibatches, and what is refused."""

import dataclasses

import numpy as np
import pytest
from helpers import EXACT, JAX, assert_close
from row_cases import (
    AGAIN,
    ANY_LIKELIHOOD,
    DEEP,
    EXACT_OR_COLLAPSED,
    KNOWN,
    MODELS,
    NEW,
    NOISE,
    ROWS,
    VARIANCE,
    W,
    X,
    Y,
    at,
    brute_force,
    moved,
    parts,
    with_sites,
)

import agp
from agp import CGGP, GPR, SGPR, SOLVEGPR, TVGP, CaGP, tree
from agp.actions import FixedActions
from agp.backend import get_backend
from agp.bounds import Batch
from agp.gradient import gradient_of_batch
from agp.methods import METHODS, updates_of
from agp.models import collapsed_model, exact_model
from agp.posteriors import ProjectedInverseFree
from agp.training import laplace

JITTER = 1e-6
ZERO = 1e-12
"""Slopes below this value are rounding errors: inducing inputs do not matter if all rows are neighbours."""
MODES = ("closed-form", "autodiff")
SETS = {
    "all": (NOISE, ("weights", "offset", "noise")),
    "noise": (NOISE, ("noise",)),
    "weights": (NOISE, ("weights",)),
    "offset": (NOISE, ("offset",)),
    "known-noise-alone": (0.0, ("weights", "offset", "noise")),
}
"""The trained noise variance, and what is known of rows."""


def given(names):
    return {name: KNOWN[name] for name in names}


# -- exact formulas ---------------------------------------------------------------------------------------------------

EXACT_MODELS = {
    "gpr": lambda x, y, **more: GPR.from_data(x, y, **more),
    "sgpr": lambda x, y, **more: SGPR.from_data(x, y, Z=x, jitter=JITTER, **more),
    "sgpr-few": lambda x, y, **more: SGPR.from_data(x, y, Z=x[:5, :], jitter=JITTER, **more),
    "solve-collapsed": lambda x, y, **more: SOLVEGPR.from_data(x, y, Z=x[:5, :], O=x[5:9, :], jitter=JITTER, **more),
    "cagp": lambda x, y, **more: CaGP.from_data(x, y, num_actions=ROWS, **more),
    "cggp": lambda x, y, **more: CGGP.from_data(x, y, rank=x.shape[0], tolerance=1e-12, **more),
    "tvgp": lambda x, y, **more: TVGP.from_data(x, y, **more).with_gaussian_sites(y, **_without(more)),
}
GROUPS = {"sgpr": [X], "sgpr-few": [X[:5]], "solve-collapsed": [X[:5], X[5:9]]}


def _without(more):
    return {name: x for name, x in more.items() if name in KNOWN}


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("kind", EXACT_MODELS)
def test_evidence_and_predictions_are_those_of_dense_formulas(kind, name, backend):
    trained, names = SETS[name]
    known = given(names)
    value, mean, variance = brute_force(GROUPS.get(kind), JITTER, trained, **known)
    known = at(backend, known)
    x, y = backend.array(X), backend.array(Y)
    model = EXACT_MODELS[kind](x, y, **parts(trained), **known)
    assert_close(backend.numpy(model.bound(x, y, **known)[0]), value, 1e-10)
    found = model.predict(backend.array(NEW))
    assert_close(backend.numpy(found.mean)[:, 0], mean, 1e-10)
    assert np.max(np.abs(backend.numpy(found.variance)[:, 0] - variance)) < 1e-10 * VARIANCE


# -- gradients --------------------------------------------------------------------------------------------------------


def case(kind, place):
    """A model of a place away from its start, and a batch of all rows with all that can be known."""
    host = moved(MODELS[kind](X, Y, **KNOWN))
    model = with_sites(host, host._batch(X, Y, **KNOWN))
    return place.move(model), Batch(place.array(X), place.array(Y), **at(place, KNOWN))


def assert_same_gradients(place, closed, auto):
    assert_close(place.numpy(closed[0]), place.numpy(auto[0]), 1e-12)
    for name, slope in auto[1].items():
        if np.max(np.abs(place.numpy(slope))) > ZERO:
            assert_close(place.numpy(closed[1][name]), place.numpy(slope), EXACT, name)
        else:
            np.testing.assert_allclose(place.numpy(closed[1][name]), 0.0, atol=ZERO, err_msg=name)


@pytest.mark.parametrize("kind", MODELS)
def test_the_closed_form_is_that_of_autodiff(kind, torch_place):
    model, batch = case(kind, torch_place)
    assert_same_gradients(torch_place, *(gradient_of_batch(model, batch, mode) for mode in MODES))


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("kind", MODELS)
def test_the_closed_form_is_that_of_jax(kind, available):
    place = available(JAX)
    found = get_backend("jax").compile(lambda *given: [gradient_of_batch(*given, mode) for mode in MODES])
    assert_same_gradients(place, *found(*case(kind, place)))


# -- invariances of every method ---------------------------------------------------------------------------------------


UNLIKE = {
    "tnngp": "a row of some weight is left out as a whole, and repeated rows one by one",
    "cagp-cg": "conjugate gradients of averages are no averages of conjugate gradients",
    "cagp-inverse-free": "an inverse is approximated in another basis",
    "cagp-projected": "repeated rows have more projections",
    "cagp-support": "and another support",
}
"""Methods of which repeated rows are another approximation; see `test_actions_spread_over_repeated_rows`."""
OF_ROWS = ("X", "y", "weights", "offset", "noise")
STALE = pytest.mark.filterwarnings("ignore:.*inaccurate .residual:agp.errors.RepairWarning")


def pair_of(kind, *sets):
    """A model for each set of rows (x, y, known), away from the start, at the same parameters, and its batch."""
    found, leaves = [], {}
    for x, y, known in sets:
        more = {"num_actions": len(x)} if kind == "cagp-opt" else {}
        model = moved(MODELS[kind](x, y, **more, **known))
        if kind == "cggp":  # exact
            model = dataclasses.replace(model, rank=len(x), tolerance=1e-12)
        here = {name: leaf.shape for name, leaf in tree.leaves(model).items() if name not in OF_ROWS}
        model = tree.with_leaves(model, {name: x for name, x in leaves.items() if here.get(name) == x.shape})
        leaves = tree.leaves(model)
        batch = model._batch(x, y, **known)
        found.append((with_sites(model, batch), batch))
    return found


def assert_same_answers(one, two, difference=0.0, apart=("actions",)):
    """The bounds, up to a known difference, the gradients except those of some leaves, and the predictions."""
    (value, pull), (expected, pull_expected) = (model._objective(batch) for model, batch in (one, two))
    np.testing.assert_allclose(value - difference, expected, rtol=1e-9)
    slopes = tree.leaves(pull(1.0)[0])
    for name, slope in tree.leaves(pull_expected(1.0)[0]).items():
        if not name.startswith(apart):
            np.testing.assert_allclose(
                slopes[name], slope, rtol=1e-7, atol=ZERO + 1e-8 * np.max(np.abs(slope)), err_msg=name
            )
    for found, known in zip(one[0].predict(NEW), two[0].predict(NEW), strict=True):
        np.testing.assert_allclose(found, known, rtol=1e-7, atol=1e-9)


@STALE
@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind not in UNLIKE])
def test_whole_weights_are_repeated_rows(kind):
    rest = given(("offset", "noise"))
    again = {name: x[AGAIN] for name, x in rest.items()}
    (model, batch), (other, more) = pair_of(kind, (X, Y, {"weights": W} | rest), (X[AGAIN], Y[AGAIN], again))
    if kind in DEEP:  # each row has draws
        draws = model._draws(np.random.default_rng(1), ROWS)
        batch = batch._replace(draws=draws)
        more = more._replace(draws=draws._replace(by_row={name: x[:, AGAIN] for name, x in draws.by_row.items()}))
    assert_same_answers((model, batch), (other, more), apart=("",) if kind == "cggp" else ("actions",))


STEPPED = [kind for kind in MODELS if kind.partition("-")[0] not in ("cagp", "cggp", "deep") and kind not in UNLIKE]
"""Methods whose steps are the same for repeated rows: they draw nothing, and hold no actions for rows."""


@STALE
@pytest.mark.parametrize("kind", STEPPED)
def test_steps_are_those_of_repeated_rows(kind):
    rest = given(("offset", "noise"))
    again = {name: x[AGAIN] for name, x in rest.items()}
    found = []
    for model, batch in pair_of(kind, (X, Y, {"weights": W} | rest), (X[AGAIN], Y[AGAIN], again)):
        updates = updates_of(kind if kind in METHODS else kind.partition("-")[0], model, 3)
        known = dict(zip(OF_ROWS[2:], batch.known, strict=True))
        trained = agp.train(model, batch.X, batch.y, steps=3, updates=updates, **known).model
        found.append((trained._objective(batch)[0], *trained.predict(NEW)))
    for one, two in zip(*found, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-6, atol=1e-7)


@STALE
@pytest.mark.parametrize("kind", MODELS)
def test_an_offset_is_taken_off_the_targets(kind):
    rest, offset = given(("weights", "noise")), KNOWN["offset"]
    one, two = pair_of(kind, (X, Y, {"offset": offset} | rest), (X, Y - offset, rest))
    assert_same_answers(one, two)
    model, targets, added = one[0].predictor(), Y[:5], offset[:5]
    for mean in (model.predict(NEW, offset=added).mean, model.predict_mean(NEW, offset=added)):
        np.testing.assert_allclose(mean, model.predict(NEW).mean + added)
    for score in ("log_density", "cdf", "crps"):
        found, expected = getattr(model, score)(NEW, targets, offset=added), getattr(model, score)(NEW, targets - added)
        np.testing.assert_allclose(found, expected, rtol=1e-8)
    np.testing.assert_allclose(model.quantile(NEW, 0.7, offset=added), model.quantile(NEW, 0.7) + added, rtol=1e-8)


@STALE
@pytest.mark.parametrize("kind", MODELS)
def test_known_noise_adds_to_the_trained_noise(kind):
    rest, known = given(("weights", "offset")), np.full((ROWS, 1), 0.2)
    ((model, *_),) = pair_of(kind, (X, Y, {"noise": known} | rest))
    whole = tree.with_leaves(model, {"likelihood.noise_variance": np.asarray(NOISE + 0.2)})
    whole = dataclasses.replace(whole, noise=None) if hasattr(whole, "noise") else whole
    (value, pull), (expected, pull_expected) = model.bound(X, Y, noise=known, **rest), whole.bound(X, Y, **rest)
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    slopes = tree.leaves(pull()[0])
    for name, slope in tree.leaves(pull_expected()[0]).items():
        np.testing.assert_allclose(slopes[name], slope, rtol=1e-7, atol=1e-9)
    targets, noise = Y[:5], np.full((5, 1), 0.2)
    model, whole = model.predictor(), whole.predictor()
    for how in ({}, {"observed": True}):
        found, expected = model.predict(NEW, **how, **({"noise": noise} if how else {})), whole.predict(NEW, **how)
        np.testing.assert_allclose(found.variance, expected.variance, rtol=1e-9)
    for score in ("log_density", "cdf", "crps", "pit", "mean_log_density"):
        found, expected = getattr(model, score)(NEW, targets, noise=noise), getattr(whole, score)(NEW, targets)
        np.testing.assert_allclose(found, expected, rtol=1e-8)
    np.testing.assert_allclose(model.interval(NEW, 0.7, noise=noise), whole.interval(NEW, 0.7), rtol=1e-8)


@STALE
@pytest.mark.parametrize("kind", MODELS)
def test_known_noise_of_a_row_is_a_smaller_weight(kind):
    # N(y; f, s)^w is N(y; f, s / w) times a constant, and the projected density has no constants
    weights = np.linspace(0.2, 1.0, ROWS)
    constant = -0.5 * np.sum((weights - 1.0) * np.log(2.0 * np.pi * NOISE) + np.log(weights))
    one, two = pair_of(kind, (X, Y, {"noise": NOISE / weights - NOISE}), (X, Y, {"weights": weights}))
    assert_same_answers(one, two, 0.0 if kind == "cagp-projected" else -constant, ("actions", "likelihood"))


# -- blocks, minibatches and actions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind not in ("gpr", "tvgp", "solve-tight", "cggp")])
def test_blocks_of_rows_carry_what_is_known(kind):
    host = moved(MODELS[kind](X, Y, **KNOWN))
    batch = host._batch(X, Y, **KNOWN)
    model = with_sites(host, batch)
    (value, pull), (blocked, pull_blocks) = model._objective(batch), model._objective(batch, memory=3e-3)
    np.testing.assert_allclose(blocked, value, rtol=1e-11)
    expected = tree.leaves(pull(1.0)[0])
    for name, slope in tree.leaves(pull_blocks(1.0)[0]).items():
        np.testing.assert_allclose(slope, expected[name], rtol=1e-8, atol=ZERO + 1e-10 * np.max(np.abs(expected[name])))


@pytest.mark.parametrize(
    "kind", [kind for kind in MODELS if MODELS[kind](X, Y).stochastic and kind not in (*DEEP, "nngp", "tnngp")]
)
def test_minibatches_are_unbiased(kind):
    host = moved(MODELS[kind](X, Y, **KNOWN))
    model = with_sites(host, host._batch(X, Y, **KNOWN))
    whole, pull = model.bound(X, Y, **KNOWN)
    parts = []
    for start in (0, 4, 8):
        rows = slice(start, start + 4)
        parts.append(model.bound(X[rows], Y[rows], scale=3.0, **{name: x[rows] for name, x in KNOWN.items()}))
    np.testing.assert_allclose(np.mean([value for value, _ in parts]), whole, rtol=1e-10)
    slopes = [tree.leaves(pull()[0]) for _, pull in parts]
    for name, slope in tree.leaves(pull()[0]).items():
        mean = np.mean([one[name] for one in slopes], axis=0)
        np.testing.assert_allclose(mean, slope, rtol=1e-8, atol=1e-10 * np.max(np.abs(slope)))


class Seen:
    """An update that moves nothing and keeps the batches."""

    def __init__(self):
        self.batches = []

    def init(self, model):
        return {}

    def __call__(self, model, batch, state):
        self.batches.append(batch)
        return model, state, {}


def test_a_minibatch_has_what_is_known_of_its_rows():
    seen = Seen()
    updates = [seen, agp.updates.Adam(0.01)]
    agp.train(MODELS["wsvgp"](X, Y, **KNOWN), X, Y, steps=5, batch_size=5, updates=updates, **KNOWN)
    for batch in seen.batches:
        (rows,) = np.nonzero((batch.X[:, None] == X).all(axis=-1).T.any(axis=1))
        order = [int(np.flatnonzero((x == X).all(axis=1))[0]) for x in batch.X]
        assert len(rows) == 5
        np.testing.assert_array_equal(batch.y, Y[order])
        for name, x in KNOWN.items():
            np.testing.assert_array_equal(getattr(batch, name), x[order])


def test_training_in_minibatches_takes_an_offset_off_the_targets():
    rest, offset = given(("weights", "noise")), KNOWN["offset"]
    found = []
    for y, known in ((Y, {"offset": offset} | rest), (Y - offset, rest)):
        model = MODELS["wsvgp"](X, y, **known)
        found.append(agp.train(model, X, y, steps=5, batch_size=4, **known))
    np.testing.assert_allclose(found[0].trace["bound"], found[1].trace["bound"], rtol=1e-10)
    for name, leaf in tree.leaves(found[1].model).items():
        np.testing.assert_allclose(tree.leaves(found[0].model)[name], leaf, rtol=1e-9, atol=1e-12)


ACTIONS = {
    "elbo": {},
    "projected": {"loss": "projected"},
    "support": {"capped": True},
    "inverse-free": {"inverse_free": True},
}


@pytest.mark.parametrize("form", ACTIONS)
def test_actions_spread_over_repeated_rows(form):
    settings = dict(ACTIONS[form])
    inverse_free = settings.pop("inverse_free", False)
    S, rest = np.random.default_rng(2).normal(size=(ROWS, 4)), given(("offset", "noise"))
    pair = []
    for rows, weights, actions in ((np.arange(ROWS), W, S), (AGAIN, None, (S / W[:, None])[AGAIN])):
        x, y, known = X[rows], Y[rows], {name: x[rows] for name, x in rest.items()}
        some = np.flatnonzero(rows < 7) if settings.get("capped") else slice(None)  # the support
        held = {name: z[some] for name, z in known.items()} | {"weights": weights if weights is None else weights[some]}
        start = CaGP.from_data(x, y, **parts(), inverse_free=inverse_free, actions=FixedActions(actions), **known)
        start = dataclasses.replace(
            start, X=x[some], y=y[some], actions=FixedActions(actions[some]), **held, **settings
        )
        if inverse_free:
            posterior = ProjectedInverseFree(None).invert_from_scratch(start._matrix_to_invert())
            start = dataclasses.replace(start, posterior=posterior)
        pair.append((start, start._batch(x, y, weights=weights, **known)))
    assert_same_answers(*pair)


# -- noise that is known completely ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", METHODS)
def test_zero_trained_noise_stays_zero_in_training(kind):
    known = given(("noise",))
    model = MODELS[kind](X, Y, likelihood=agp.Gaussian(0.0), **known)
    assert agp.value_and_gradient(model, X, Y, **known)[1]["likelihood.noise_variance"] == 0.0
    result = agp.train(model, X, Y, steps=3, updates=updates_of(kind, model, 3), **known)
    assert result.model.likelihood.noise_variance == 0.0
    assert np.isfinite(result.trace["bound"]).all()
    assert any(np.any(x != tree.leaves(model)[name]) for name, x in tree.leaves(result.model, "parameter").items())


@pytest.mark.parametrize("kind", ["gpr", "sgpr", "solve-collapsed", "wsvgp"])
def test_zero_trained_noise_stays_zero_in_lbfgs(kind):
    known = given(("noise", "weights"))
    model = MODELS[kind](X, Y, likelihood=agp.Gaussian(0.0), **known)
    result = agp.fit_lbfgs(model, X, Y, max_iterations=3, **known)
    assert result.model.likelihood.noise_variance == 0.0
    assert result.trace["bound"][-1] > model.bound(X, Y, **known)[0]


def test_zero_trained_noise_is_not_uncertain():
    model = MODELS["gpr"](X, Y, likelihood=agp.Gaussian(0.0), **KNOWN)
    found = laplace(model, X, Y, **KNOWN)
    assert "likelihood.noise_variance" not in found.unflatten.names
    assert np.isfinite(found.covariance).all()
    assert found.unflatten(found.mean).likelihood.noise_variance == 0.0


@pytest.mark.parametrize("train", [agp.fit_lbfgs, agp.train])
def test_zero_noise_of_one_output_stays_zero(train):
    y, noise = np.concatenate([Y, np.cos(X[:, :1])], axis=1), np.tile(KNOWN["noise"], 2)
    options = {"posterior": "whitened", "num_inducing": 5, "likelihood": agp.Gaussian((0.0, 0.3))}
    model = agp.SVGP.from_data(X, y, **options, noise=noise)
    steps = {"max_iterations": 5} if train is agp.fit_lbfgs else {"steps": 5}
    trained = train(model, X, y, noise=noise, **steps).model
    first, second = trained.likelihood.noise_variance
    assert first == 0.0
    assert second != 0.3
    assert trained.bound(X, y, noise=noise)[0] > model.bound(X, y, noise=noise)[0]


# -- other answers of exact models -------------------------------------------------------------------------------------


def test_a_row_is_left_out_with_its_offset_and_its_noise():
    known = given(("offset", "noise"))
    found = GPR.from_data(X, Y, **parts(), **known).leave_one_out()
    for n in (0, 5):
        rest = np.arange(ROWS) != n
        others = GPR.from_data(X[rest], Y[rest], **parts(), **{name: x[rest] for name, x in known.items()})
        one = {name: x[[n]] for name, x in known.items()}
        np.testing.assert_allclose(found[n], others.log_density(X[[n]], Y[[n]], **one)[0], rtol=1e-9)


@pytest.mark.parametrize("kind", ["gpr", "cggp", "tvgp"])
def test_further_rows_are_rows_of_the_data(kind):
    whole, first, last = (
        {name: x[rows] for name, x in KNOWN.items()} for rows in (slice(None), slice(0, 9), slice(9, None))
    )
    models = [EXACT_MODELS[kind](X[:n], Y[:n], **parts(), **known) for n, known in ((9, first), (ROWS, whole))]
    found = models[0].predictor().condition_on(X[9:], Y[9:], **last).predict(NEW)
    for one, two in zip(found, models[1].predict(NEW), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-8)


def test_the_evidence_is_between_its_bounds():
    evidence = brute_force(**KNOWN)[0]
    model = EXACT_MODELS["sgpr-few"](X, Y, **parts(), **KNOWN)
    assert model.bound(X, Y)[0] < evidence < model.upper_bound(X, Y)
    svgp = MODELS["wsvgp"](X, Y, **KNOWN)
    batch = svgp._batch(X, Y, **KNOWN)
    assert_close(exact_model(svgp, batch).bound(X, Y)[0], evidence, 1e-10)
    assert svgp.bound(X, Y, **KNOWN)[0] < collapsed_model(svgp, batch).bound(X, Y)[0] < evidence


def test_all_actions_leave_no_computational_uncertainty():
    model = EXACT_MODELS["cagp"](X, Y, **parts(), **KNOWN)
    variance = brute_force(**KNOWN)[2][:, None]
    found = model.uncertainty(NEW)
    np.testing.assert_allclose(found.mathematical, variance, rtol=1e-9)
    np.testing.assert_allclose(found.computational, 0.0, atol=1e-10)


# -- refusals ---------------------------------------------------------------------------------------------------------

WRONG = {
    "few": (lambda x: x[:-1], r"has shape \(11,.*\), but must have shape \(12,\); pass one number for each row of X"),
    "columns": (lambda x: np.stack([x, x], axis=-1), r"has shape \(12, 2.*\), but must have shape \(12,\)"),
    "nan": (lambda x: np.where(np.arange(ROWS) == 2, np.nan, x), "has 1 NaN or infinite entries, the first in row 2"),
}


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("kind", METHODS)
def test_what_cannot_be_known_is_refused(kind, name):
    cases = [(change, f"{name} {message}") for change, message in WRONG.values()]
    if name != "offset":
        cases.append((lambda x: -x, f"{name}.* must (not be negative|be positive)"))
    for change, message in cases:
        wrong = {name: change(KNOWN[name].reshape(ROWS))}
        with pytest.raises(ValueError, match=message):
            MODELS[kind](X, Y, **wrong)
        with pytest.raises(ValueError, match=message):
            MODELS[kind](X, Y).bound(X, Y, **wrong)


@pytest.mark.parametrize("name", KNOWN)
def test_other_arrays_than_those_of_the_data_are_refused(name):
    with pytest.raises(TypeError, match=f"{name} has dtype float32, X has float64"):
        GPR.from_data(X, Y, **{name: KNOWN[name].astype(np.float32)})
    with pytest.raises(TypeError, match=f"{name} .*list"):
        GPR.from_data(X, Y, **{name: KNOWN[name].tolist()})


@pytest.mark.parametrize("kind", METHODS)
def test_rows_of_weight_zero_are_left_out_or_refused(kind):
    weights = np.where(np.arange(ROWS) < 3, 0.0, 1.0)
    if kind in EXACT_OR_COLLAPSED:
        with pytest.raises(ValueError, match="weights must be positive .* remove rows of weight 0"):
            MODELS[kind](X, Y, weights=weights)
        return
    model = MODELS[kind](X, Y, weights=weights)
    value, other = model.bound(X, Y, weights=weights)[0], model.bound(X, Y + (weights == 0.0)[:, None], weights=weights)
    assert value == other[0]


@pytest.mark.parametrize("kind", ANY_LIKELIHOOD)
def test_noise_is_known_for_gaussian_noise_alone(kind):
    noise, y, message = (
        KNOWN["noise"],
        np.round(np.exp(Y)),
        "noise is given, but the likelihood is Poisson; omit noise=",
    )
    with pytest.raises(TypeError, match=message):
        MODELS[kind](X, y, likelihood=agp.Poisson(), mean_function=None, noise=noise)
    model = MODELS[kind](X, y, likelihood=agp.Poisson(), mean_function=None)
    for call in (model.bound, model.log_density, lambda *data, **more: agp.train(model, *data, steps=1, **more)):
        with pytest.raises(TypeError, match=message):
            call(X, y, noise=noise)
    with pytest.raises(TypeError, match=message):
        model.predict(NEW, observed=True, noise=noise[:5])


@pytest.mark.parametrize("kind", [*EXACT_OR_COLLAPSED, "wsvgp", "tvgp", "tnngp", "tsvgp"])
def test_outputs_with_one_covariance_share_known_noise(kind):
    y, noise = np.tile(Y, 2), np.tile(KNOWN["noise"], 2)
    if kind not in EXACT_OR_COLLAPSED:
        assert np.isfinite(MODELS[kind](X, y, noise=noise).bound(X, y, noise=noise)[0])
        return
    with pytest.raises(ValueError, match="noise has 2 columns, but the outputs of .* share one covariance matrix"):
        MODELS[kind](X, y, noise=noise)
    with pytest.raises(ValueError, match="noise has 2 columns"):
        MODELS[kind](X, y).bound(X, y, noise=noise)


@pytest.mark.parametrize("kind", METHODS)
def test_rows_without_any_noise_have_the_least_noise(kind):
    noise = np.where(np.arange(ROWS) == 4, 0.0, 0.2)
    least = np.where(np.arange(ROWS) == 4, 1e-9 * np.var(Y), 0.2)
    model, raised = (MODELS[kind](X, Y, likelihood=agp.Gaussian(0.0), noise=given) for given in (noise, least))
    values = [one.bound(X, Y, noise=given)[0] for one, given in ((model, noise), (raised, least), (model, least))]
    assert np.isfinite(values[0])
    np.testing.assert_allclose(values, values[0], rtol=1e-9)
    if model._holds_data and kind not in ("tvgp", "tnngp", "tsvgp"):
        assert model.bound(X, Y)[0] == values[0]
        assert np.min(model.noise) in (0.2, pytest.approx(1e-9 * np.var(Y)))  # CaGP may hold other rows
    else:
        with pytest.raises(ValueError, match="noise_variance is 0, but rows have no known noise; pass noise="):
            agp.train(model, X, Y, steps=1)


@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
@pytest.mark.parametrize("kind", ["gpr", "sgpr", "nngp"])
def test_exact_rows_are_added_trained_and_predicted(kind):
    noise = np.where(np.arange(ROWS) < 4, 0.0, 0.2)
    result = agp.fit(MODELS[kind](X, Y, likelihood=agp.Gaussian(0.0), noise=noise), X, Y, noise=noise, max_steps=3)
    predictor = result.model.predictor()
    assert np.isfinite(predictor.predict(NEW, observed=True, noise=np.zeros(5)).variance).all()
    latent, observed = (predictor.predict(NEW, observed=x).variance for x in (False, True))
    np.testing.assert_array_equal(latent, observed)  # predictions use the noise as it is
    more = predictor.condition_on(NEW, np.zeros((5, 1)), noise=np.zeros(5))
    if kind == "gpr":
        np.testing.assert_allclose(more.predict(NEW).mean, 0.0, atol=1e-4)


def test_rows_without_noise_and_without_a_unit_are_refused():
    model = MODELS["gpr"](X, Y, likelihood=agp.Gaussian(0.0), noise=np.full(ROWS, 0.2))
    bare = dataclasses.replace(model, likelihood=agp.Gaussian(np.asarray(0.0)), noise=np.zeros((ROWS, 1)))
    with pytest.raises(ValueError, match="noise of row 0; pass at least 1e-09 times the variance of the targets"):
        agp.train(bare, X, Y, steps=1)


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("kind", EXACT_OR_COLLAPSED)
def test_models_are_trained_with_what_they_were_built_with(kind, name):
    plain, model = MODELS[kind](X, Y), MODELS[kind](X, Y, **{name: KNOWN[name]})
    for one, known in ((plain, KNOWN[name]), (model, KNOWN[name] + 0.1)):
        with pytest.raises(ValueError, match=f"{name} .*(to from_data|to both)"):
            agp.train(one, X, Y, steps=1, updates=updates_of(kind, one, 1), **{name: known})
    values = [model.bound(X, Y, **known)[0] for known in ({}, {name: KNOWN[name]})]
    assert values[0] == values[1]


@pytest.mark.parametrize("name", ["noise", "weights", "offset"])
def test_numbers_for_all_rows_are_refused_with_a_remedy(name):
    said = f"{name} is 0.04, but must be an array with one number for each row of X; pass an array of shape \\(12,\\)"
    for number in (0.04, np.float64(0.04)):
        with pytest.raises(TypeError, match=said):
            GPR.from_data(X, Y, **{name: number})


def test_negative_numbers_of_rows_name_the_row():
    wrong = np.where(np.arange(ROWS) == 7, -0.5, 0.1)
    with pytest.raises(ValueError, match="noise variances must not be negative, but the smallest is -0.5, in row 7"):
        GPR.from_data(X, Y, noise=wrong)
    with pytest.raises(ValueError, match="weights must not be negative, but the smallest is -0.5, in row 7"):
        GPR.from_data(X, Y, weights=wrong)
    model = GPR.from_data(X, Y)
    with pytest.raises(ValueError, match="noise variances must not be negative, but the smallest is -0.5, in row 7"):
        model.predict(X, observed=True, noise=wrong)
