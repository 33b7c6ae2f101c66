"""Transforms of the targets as candidates of `fit_regression`: which one is chosen, and densities in units of y."""

import numpy as np
import pytest
from helpers import assert_close
from tables import bits

import agp
from agp import to_numpy
from agp.likelihoods import Log, Logit, YeoJohnson
from agp.selection import fit_regression, transform_of
from agp.selection._targets import Choice, choose_transform

pytestmark = pytest.mark.usefixtures("full_size")

N = 120
RNG = np.random.default_rng(3)
X = RNG.uniform(0.0, 6.0, (N, 1))
F = 1.5 * np.sin(X[:, 0]) + 0.2 * RNG.standard_normal(N)
KINDS = {
    "log": (np.exp(F), Log),
    "logit": (1.0 / (1.0 + np.exp(-2.0 * F)), Logit),
    "yeo-johnson": (5.0 - 40.0 * np.exp(1.5 * F), YeoJohnson),
    None: (F, type(None)),
}
MODE = {"hyperparameters": "mode", "transforms": "auto"}
WAYS = {
    "mixture": {"hyperparameters": "mixture", "transforms": "auto"},
    "exact": MODE | {"method": "gpr"},
    "collapsed": MODE | {"method": "sgpr"},
    "near": MODE | {"method": "nngp"},
}


@pytest.mark.parametrize("values", [[0.0, 1.0], [1.0, 1e3], [0.0, 0.0, 0.0, 5.0, 100.0]])
def test_few_different_targets_are_not_transformed(values):
    rng = np.random.default_rng(3)
    for _ in range(3):
        y, rows = rng.choice(values, 17), 1e8 + rng.standard_normal((17, 2))
        with pytest.warns(agp.errors.NoSignalWarning):
            found = fit_regression(rows, y, **WAYS["mixture"])
        assert found.transform is None
        mean = to_numpy(found.model.predict(rows).mean)
        assert min(values) - 0.2 * max(values) < mean.min() <= mean.max() < 1.2 * max(values)


@pytest.mark.parametrize("name", KINDS)
def test_the_transform_that_makes_the_targets_gaussian_is_chosen(name):
    y, kind = KINDS[name]
    assert isinstance(fit_regression(X, y, **WAYS["exact"]).transform, kind)


@pytest.mark.parametrize("way", WAYS)
def test_densities_are_those_of_the_targets_in_their_own_units(way):
    y = KINDS["log"][0]
    plain, found = (fit_regression(X, y, **WAYS[way] | {"transforms": asked}) for asked in (None, "auto"))
    assert plain.transform is None
    assert isinstance(found.transform, Log)
    assert found.log_density > plain.log_density + 0.05
    logs = np.log(y)
    assert_close(found.baseline, -0.5 * (np.log(2.0 * np.pi * np.var(logs)) + 1.0) - np.mean(logs), 1e-9)
    if way in ("mixture", "exact"):
        assert_close(found.log_density, np.mean(found.model.leave_one_out() - logs), 1e-6)
    if way == "exact":
        assert_close(found.bound, float(found.model.bound(X, logs[:, None])[0]) - np.sum(logs), 1e-6)
    assert any(one.kernel.endswith(" of log") for one in found.candidates)
    best = max(max(one.log_density, one.held_out) for one in found.candidates if " of " not in one.kernel)
    assert found.log_density > best
    mean = found.predictor().predict_mean(X, observed=True)[:, 0]
    assert np.corrcoef(mean, y)[0, 1] > 0.9
    density = found.predictor().log_density(X, y)
    assert_close(density, found.model.predictor().log_density(X, logs) - logs, 1e-9)
    assert "of the transform log" in found.message


def test_targets_that_need_no_transform_give_the_same_model():
    plain, found = (fit_regression(X, F, hyperparameters="mode", transforms=asked) for asked in (None, "auto"))
    assert bits(plain) == bits(found)
    positive = fit_regression(X, F - F.min() + 0.1, **MODE)
    assert positive.transform is None
    assert {" of log"} <= {one.kernel[-7:] for one in positive.candidates}


@pytest.fixture
def doubtful(monkeypatch):
    """The left-out rows of the kernel that is the best without a transform never prefer one."""
    asked = []

    def choose(*given):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("agp.selection._targets._simplest", lambda found, _: found[0])
            choice, tried = choose_transform(*given)
        asked.append(choice)
        return choice, tried

    monkeypatch.setattr("agp.selection._stages.choose_transform", choose)
    return asked


@pytest.mark.parametrize("way", ["exact", "collapsed", "near"])
def test_a_transform_that_only_the_evidence_prefers_has_a_search_of_its_own(way, doubtful):
    found = fit_regression(X, KINDS["log"][0], **WAYS[way])
    assert [(type(one.transform), one.is_doubtful) for one in doubtful] == [(Log, True)]
    assert isinstance(found.transform, Log)


@pytest.mark.parametrize("way", ["exact", "collapsed", "near"])
def test_the_search_with_a_doubtful_transform_is_forgotten_if_it_is_no_better(way, doubtful, monkeypatch):
    monkeypatch.setattr("agp.selection._stages.predicts_better", lambda *_: False)
    y = KINDS["log"][0]
    found, plain = fit_regression(X, y, **WAYS[way]), fit_regression(X, y, **WAYS[way] | {"transforms": None})
    assert doubtful[0].is_doubtful
    assert found.transform is None
    assert bits(found)[:2] == bits(plain)[:2]  # the model and its scores; the candidates with a transform are listed


def test_no_transform_is_doubtful_without_a_gain_in_evidence(doubtful):
    fit_regression(X, F - F.min() + 0.1, **MODE)
    assert doubtful == [Choice()]


@pytest.mark.parametrize("name", KINDS)
def test_the_unit_of_the_targets_does_not_matter(name):
    y, kind = KINDS[name]
    factor = 1.0 if name == "logit" else 1000.0
    found = fit_regression(X, factor * y, **WAYS["exact"])
    assert isinstance(found.transform, kind)
    plain = fit_regression(X, y, **WAYS["exact"])
    assert_close(found.log_density, plain.log_density - np.log(factor), 1e-4)


def test_weights_count_as_repetitions():
    y = KINDS["yeo-johnson"][0]
    repeated = np.repeat(np.arange(N), np.where(np.arange(N) < 10, 5, 1))
    weights = np.where(np.arange(N) < 10, 5.0, 1.0)
    one, other = transform_of("yeo-johnson", y, weights), transform_of("yeo-johnson", y[repeated])
    assert_close(np.asarray([one.power, one.centre, one.scale]), [other.power, other.centre, other.scale], 1e-9)
    assert isinstance(fit_regression(X, y, weights=weights, **WAYS["exact"]).transform, YeoJohnson)


def test_the_interval_is_widened_unless_targets_are_near_an_end_but_not_at_it():
    for y, ends in (
        ([0.02, 0.9], (0.0, 1.0)),
        ([0.2, 0.98], (0.0, 1.0)),
        ([0.0, 0.9], (-0.005, 1.005)),
        ([0.2, 0.9], (-0.005, 1.005)),
        ([3.0, 100.0], (-0.5, 100.5)),
        ([60.0, 90.0], (-0.5, 100.5)),
    ):
        assert transform_of("logit", np.asarray(y)).support == ends


@pytest.mark.filterwarnings("ignore::agp.errors.NoSignalWarning")
def test_prices_below_a_hundred_are_no_percentages():
    rng = np.random.default_rng(0)
    prices = np.exp(2.0 + rng.standard_normal(N))
    prices *= 97.0 / prices.max()
    found = fit_regression(X, prices, **WAYS["exact"])
    assert not any(one.kernel.endswith("logit") for one in found.candidates)


def test_a_resumed_fit_has_the_same_transform(tmp_path):
    y = KINDS["log"][0]
    path = tmp_path / "run.agp"
    found = fit_regression(X, y, checkpoint=path, **WAYS["exact"])
    again = fit_regression(X, y, checkpoint=path, **WAYS["exact"])
    assert bits(again) == bits(found)
    assert repr(again.transform) == repr(found.transform) == "Log()"
    assert again.steps == found.steps  # nothing was trained again
    with pytest.raises(ValueError, match="other values of transforms"):
        fit_regression(X, y, checkpoint=path, **WAYS["exact"] | {"transforms": ["log"]})


@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
@pytest.mark.parametrize("steps", [1, 30, 45, 50, 55, 70, 90])
def test_a_fit_that_ends_early_is_consistent(steps):
    y = KINDS["log"][0]
    found = fit_regression(X, y, callbacks=[lambda seen: seen.step >= steps], **WAYS["exact"])
    expected = y if found.transform is None else found.transform.forward(y)
    assert np.isin(to_numpy(found.model.y)[:, 0], expected).all()
    slopes = 0.0 if found.transform is None else np.mean(found.transform.log_slope(y))
    if found.model.X.shape[0] == N:
        assert_close(found.log_density, np.mean(found.model.leave_one_out()) + slopes, 1e-6)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"transforms": "log"}, TypeError, "transforms is 'log', but must be None, 'auto', or a list"),
        ({"transforms": ["sqrt"]}, ValueError, "transforms is 'sqrt', but must be 'log', 'yeo-johnson' or 'logit'"),
        ({"noise": 0.1 * np.ones(N)}, ValueError, "the noise of the rows is known in the unit of the targets"),
        ({"likelihood": agp.Gaussian(0.1)}, ValueError, "likelihood has values in the unit of the targets"),
        ({"kernel": agp.RBF(2.0, 1.0)}, ValueError, "kernel has values in the unit of the targets"),
    ],
)
def test_what_makes_no_sense_is_refused_unless_it_is_automatic(options, error, message):
    with pytest.raises(error, match=message):
        fit_regression(X, np.exp(F), **{"transforms": ["log"], "hyperparameters": "mode"} | options)
    if "transforms" not in options:
        assert fit_regression(X, np.exp(F), **MODE | options).transform is None


def test_several_columns_are_not_transformed():
    y = np.exp(np.stack([F, -F], axis=1))
    assert fit_regression(X, y, **WAYS["exact"]).transform is None
    with pytest.raises(ValueError, match="the transform 'yeo-johnson' is for one target, but y has 2"):
        transform_of("yeo-johnson", y)
