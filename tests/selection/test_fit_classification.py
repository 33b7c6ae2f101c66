"""Classification with automatic model selection: the search, posteriors of all rows, inducing inputs, its endings."""

import time
from functools import partial

import numpy as np
import pytest
from helpers import assert_close

import agp
from agp import tree
from agp.bounds import Batch, laplace_evidence
from agp.errors import ConvergenceWarning, Interrupted, NoSignalWarning
from agp.likelihoods import Bernoulli, Softmax
from agp.models import SVGP, TVGP, Ensemble
from agp.priors import LogNormal
from agp.selection import ClassificationResult, _class_fit, _watch, fit_classification
from agp.selection._class_fit import ClassPlan, sample_rows
from agp.selection._class_kernels import (
    LaplaceLoss,
    by_column,
    isotropic,
    isotropic_plus_linear,
    start_model,
    starting_scales,
)
from agp.selection._class_posteriors import Extrapolation, settle, stack
from agp.selection._given import Columns, Data
from agp.updates import SiteStep

LOGIT = Bernoulli(link="logit")
COLUMNS = Columns(3)


def likelihood_of(classes):
    return LOGIT if classes == 2 else Softmax(classes)


def labels(classes=2, rows=60, columns=3, seed=0, noise=0.3):
    """Labels that depend on two columns of different size, the second of them not monotonically."""
    rng = np.random.default_rng([seed, classes])
    X = rng.normal(size=(rows, columns)) * np.array([1.0, 20.0, 0.3, 5.0, 1.0])[:columns]
    f = X[:, 0] + (X[:, 1] / 20.0) ** 2 + noise * rng.normal(size=rows)
    ends = np.quantile(f, np.arange(1, classes) / classes)
    return X, np.digitize(f, ends).astype(float)


def log_loss(model, X, y):
    return -float(np.mean(model.log_density(X, y)))


def entropy(y):
    share = np.unique(y, return_counts=True)[1] / len(y)
    return -float(share @ np.log(share))


def plan(priors):
    return ClassPlan("auto", LOGIT, priors, None, 100, 0, COLUMNS)


# -- hyperparameters --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [isotropic, isotropic_plus_linear, by_column])
@pytest.mark.parametrize("classes", [2, 4])
def test_the_gradient_of_the_search(classes, start, exact_modes):
    X, y = labels(classes, rows=30)
    data = Data(X, y[:, None], np.linspace(0.5, 1.5, 30))
    one = start_model(start(X, starting_scales(X, COLUMNS)[0], COLUMNS), data, likelihood_of(classes), plan("auto"))
    loss = LaplaceLoss(one.model, data, tied=one.start.tied, priors=True)
    assert_gradient_is_that_of_differences(loss)


def test_priors_of_users_are_part_of_the_search(exact_modes):
    X, y = labels(rows=30)
    data, priors = Data(X, y[:, None]), {"kernel.lengthscale": LogNormal(0.3, 0.5)}
    start = by_column(X, starting_scales(X, COLUMNS)[0], COLUMNS)._replace(kernel=agp.RBF().from_data(X, 4.0))
    one = start_model(start, data, LOGIT, plan(priors))
    loss = LaplaceLoss(one.model, data, tied=False, priors=False)
    plain = LaplaceLoss(start_model(start, data, LOGIT, plan(None)).model, data, tied=False, priors=False)
    zero = np.zeros(4)
    density = LogNormal(0.3, 0.5).log_density(one.model.kernel.lengthscale)[0]
    assert_close(loss(zero)[0], plain(zero)[0] - float(density), 1e-9)
    assert_gradient_is_that_of_differences(loss)


@pytest.fixture
def exact_modes(monkeypatch):
    """Newton's method to rounding errors."""
    exact = partial(laplace_evidence, tolerance=1e-13)
    monkeypatch.setattr("agp.selection._class_kernels.laplace_evidence", exact)


def assert_gradient_is_that_of_differences(loss):
    rng = np.random.default_rng(0)
    at = 0.3 * rng.normal(size=len(loss.precisions))
    direction, h = rng.normal(size=len(at)), 1e-3

    def value(t):
        loss.weights = None
        return loss(at + t * direction)[0]

    _, slope = loss(at)
    first, second = (value(t * h) - value(-t * h) for t in (1.0, 2.0))
    expected = (8.0 * first - second) / (12.0 * h)
    assert abs(slope @ direction - expected) <= 1e-7 * np.abs(slope * direction).sum()


def test_tied_lengthscales_keep_their_ratios():
    X, y = labels()
    found = fit_classification(X, y, likelihood=LOGIT, method="tvgp")
    parts = found.model.models if isinstance(found.model, Ensemble) else (found.model,)
    rbf = next(model.kernel.parts[1] for model in parts if isinstance(model.kernel.parts[1], agp.RBF))
    ratios = rbf.lengthscale / starting_scales(X, COLUMNS)[0]
    assert_close(ratios, np.full(3, ratios[0]), 1e-12)


def test_units_of_columns_that_are_compared():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 3)) * np.array([1.0, 3.0, 0.0])
    spreads, common = starting_scales(X, COLUMNS)
    assert_close(spreads[:2], X[:, :2].std(axis=0), 1e-14)
    assert_close(common[:2], np.full(2, np.sqrt(np.mean(X[:, :2].var(axis=0)))), 1e-14)
    assert len(starting_scales(X[:, :2] / X[:, :2].std(axis=0), Columns(2))) == 1
    assert len(starting_scales(X * np.array([1.0, 1e6, 1.0]), COLUMNS)) == 1
    assert len(starting_scales(np.zeros((4, 2)), Columns(2))) == 1
    codes = np.column_stack([X[:, :2], rng.integers(0, 40, 50)])
    (spreads, common), plain = starting_scales(codes, Columns(3, (2,))), starting_scales(X[:, :2], Columns(2))
    for found, expected in zip((spreads, common), plain, strict=True):  # codes have no scale
        assert_close(found, [*expected, 1.0], 1e-14)


def test_a_given_kernel_is_the_only_one():
    X, y = labels()
    kernel = agp.Matern32() + agp.kernels.Linear(variance=np.asarray(0.5))
    found = fit_classification(X, y, likelihood=LOGIT, kernel=kernel)
    assert {one.kernel for one in found.candidates} == {"matern32 + linear"}
    assert isinstance(found.model, TVGP)
    assert isinstance(found.model.kernel.parts[0], agp.Matern32)
    assert float(found.model.kernel.parts[1].variance) != 0.5
    held = fit_classification(X, y, likelihood=LOGIT, kernel=kernel, frozen="kernel.parts.1.variance")
    assert float(held.model.kernel.parts[1].variance) == 0.5
    with pytest.raises(ValueError, match="no parameter matches 'kernel.nothing'"):
        fit_classification(X, y, likelihood=LOGIT, kernel=kernel, frozen="kernel.nothing")


def _plan(likelihood):
    return ClassPlan("auto", likelihood, "auto", None, 1024, 0, Columns(1, ()))


def test_samples_keep_rare_classes():
    y = np.zeros(1000)
    y[:3], y[3:10] = 2.0, 1.0
    sample = sample_rows(Data(np.arange(1000.0)[:, None], y[:, None]), _plan(Softmax(3)), 100)
    counts = np.bincount(sample.data.y[:, 0].astype(int))
    assert counts.sum() == 100
    assert counts[2] == 3
    assert counts[1] >= 5
    assert sample.likelihood.classes == 3


def test_samples_of_many_classes_have_the_most_frequent_ones():
    y = np.repeat(np.arange(40), np.arange(1, 41)).astype(float)
    sample = sample_rows(Data(np.arange(len(y))[:, None] * 1.0, y[:, None]), _plan(Softmax(40)), 90)
    assert sample.likelihood.classes == 10
    assert set(np.unique(y[sample.data.X[:, 0].astype(int)])) == set(range(30, 40))
    assert set(np.unique(sample.data.y)) == set(range(10))


# -- posteriors -------------------------------------------------------------------------------------------------------


def test_two_classes_have_the_optimal_posterior():
    """t-VGP, whose site steps maximise the bound."""
    X, y = labels(rows=40)
    kernel = agp.RBF(variance=np.asarray(4.0), lengthscale=np.array([1.0, 20.0, 0.5]))
    model = TVGP.from_data(X, y, likelihood=LOGIT, kernel=kernel)
    batch = Batch(X, y[:, None])
    again = model
    update = SiteStep(1.0)
    state = update.init(model)
    for _ in range(60):
        again, state, _ = update(again, batch, state)
    found = closely_settled(model, batch)
    assert_close(found.bound, float(again.bound(X, y)[0]), 1e-10)
    assert_close(found.model.predict(X + 0.1).mean, again.predict(X + 0.1).mean, 1e-8)
    assert_close(found.model.predict(X + 0.1).variance, again.predict(X + 0.1).variance, 1e-8)


def closely_settled(model, batch):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("agp.selection._class_posteriors.TOLERANCE", 1e-12)
        patch.setattr("agp.selection._class_posteriors.CHANGE", 1e-12)
        patch.setattr("agp.selection._class_posteriors.MOST_FACTORISATIONS", 60)
        patch.setattr("agp.selection._class_posteriors.SITE_SAMPLES", 200)
        patch.setattr("agp.selection._class_posteriors.LEAST_SHARE", 0.9)
        return settle("rbf", model, batch, memory=None, is_over=lambda: False, like=None)


@pytest.mark.parametrize("weighted", [False, True])
def test_more_classes_have_the_fixed_point_of_site_steps(weighted):
    X, y = labels(3, rows=40)
    weights = np.linspace(0.5, 2.0, 40) if weighted else None
    kernel = agp.RBF(variance=np.asarray(2.0), lengthscale=np.array([1.0, 20.0, 0.5]))
    model = TVGP.from_data(X, y, likelihood=Softmax(3), kernel=kernel, shared_precision=True)
    batch = Batch(X, y[:, None], weights=weights)
    found = closely_settled(model, batch)
    alpha, beta, mu = found.model._site_gradients(batch)[""].sums
    assert_close(found.model.site_shift, alpha + beta * mu, 1e-7)
    assert_close(found.model.site_precision, beta, 1e-7)
    assert_close(found.bound, float(found.model.bound(X, y, weights=weights)[0]), 1e-10)
    similar = settle("rbf", model, batch, memory=None, is_over=lambda: False, like=found)
    assert_close(similar.model.site_precision, found.model.site_precision, 1e-2)


def test_extrapolation_solves_linear_fixed_points():
    rng = np.random.default_rng(0)
    A = np.diag(np.linspace(0.0, 0.99, 4))
    b = rng.normal(size=(4, 1))
    steps, x = Extrapolation(), np.zeros((4, 1))
    for _ in range(7):
        x = steps.after(x, A @ x + b - x)
    assert_close(x, np.linalg.solve(np.eye(4) - A, b), 1e-5)


def test_stacking_maximises_the_density_of_the_mixture():
    rng = np.random.default_rng(0)
    logs, weights = rng.normal(size=(200, 3)), rng.uniform(0.5, 2.0, 200)
    found = stack(logs, weights)
    assert abs(found.sum() - 1.0) < 1e-12

    def density(share):  # with the pseudo-rows of each model
        return float(weights @ np.log(np.exp(logs) @ share)) / weights.sum() + 0.01 * float(np.log(share).sum())

    for change in ((1, -1, 0), (0, 1, -1), (-1, 0, 1)):
        assert density(found) >= density(found + 1e-3 * np.asarray(change)) - 1e-9
    assert stack(logs[:, :1], None).tolist() == [1.0]


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_it_learns_and_says_what_it_did(classes):
    X, y = labels(classes, rows=150)
    found = fit_classification(X[:100], y[:100], likelihood=likelihood_of(classes))
    assert isinstance(found, ClassificationResult)
    assert found.converged
    assert found.learned
    assert found.holds_data
    assert log_loss(found.model, X[100:], y[100:]) < 0.6 * entropy(y)
    assert abs(found.baseline + entropy(y[:100])) < 1e-12
    assert found.log_density > found.baseline
    assert_close(found.bound, float(found.model.bound(X[:100], y[:100])[0]), 1e-6)
    assert "a posterior of all 100 rows" in found.describe()
    names = {one.kernel for one in found.candidates}
    assert names == {"rbf", "rbf + linear", "matern52"}
    averaged = [one for one in found.candidates if np.isfinite(one.log_density)]
    assert len(averaged) == len(found.kernel.split(", "))


@pytest.mark.parametrize("classes", [2, pytest.param(3, marks=pytest.mark.long)])
def test_inducing_inputs(classes, monkeypatch):
    monkeypatch.setattr(_class_fit, "LEAST", 16)
    X, y = labels(classes, rows=700)
    found = fit_classification(X[:500], y[:500], likelihood=likelihood_of(classes), method="svgp", most=64)
    assert not found.holds_data
    model = found.model.models[0] if isinstance(found.model, Ensemble) else found.model
    assert isinstance(model, SVGP)
    assert model.process.inducing.count in (32, 64)
    assert model.process.posterior.precision.shape[0] == 1
    assert log_loss(found.model, X[500:], y[500:]) < 0.5 * entropy(y)
    full = fit_classification(X[:500], y[:500], likelihood=likelihood_of(classes), method="tvgp")
    assert log_loss(found.model, X[500:], y[500:]) < log_loss(full.model, X[500:], y[500:]) + 0.1


def test_labels_without_signal():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(120, 4)), rng.integers(0, 2, 120).astype(float)
    with pytest.warns(NoSignalWarning, match="do not predict the labels: the probabilities of the best model"):
        found = fit_classification(X, y, likelihood=LOGIT)
    assert not found.learned
    chances = found.model.predict(X, observed=True).mean
    assert np.abs(chances - y.mean()).max() < 0.25


# -- the same answer --------------------------------------------------------------------------------------------------


def test_heavy_rows_do_not_let_the_means_diverge():
    """Few distinct rows of large weight, for which full steps overshoot."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (60, 5)).astype(float)
    X = np.concatenate([X, rng.normal(size=(60, 1))], axis=1)
    y = (X[:, 0] + X[:, 5] + rng.normal(size=60) > 0.5).astype(float)
    weights = rng.uniform(1.0, 60.0, 60)
    found = fit_classification(X, y, likelihood=LOGIT, weights=weights)
    assert found.converged
    assert float(np.mean(found.model.log_density(X, y))) > -1.5


@pytest.mark.parametrize("classes", [2, 3])
def test_libraries_agree(classes, backend):
    X, y = labels(classes, rows=50)
    expected = fit_classification(X, y, likelihood=likelihood_of(classes))
    found = fit_classification(backend.array(X), backend.array(y), likelihood=likelihood_of(classes))
    assert found.kernel == expected.kernel
    chances = found.model.predict(backend.array(X), observed=True).mean
    assert_close(backend.numpy(chances), expected.model.predict(X, observed=True).mean, 1e-7)


@pytest.mark.parametrize("classes", [2, 3])
def test_units_do_not_matter(classes):
    X, y = labels(classes, rows=60)
    scales = np.array([1e-6, 1e6, 3.0])
    found = fit_classification(X, y, likelihood=likelihood_of(classes))
    other = fit_classification(X * scales + 1e3 * scales, y, likelihood=likelihood_of(classes), kernel="auto")
    a = found.model.predict(X, observed=True).mean
    b = other.model.predict(X * scales + 1e3 * scales, observed=True).mean
    # the ratio of units decides whether a common unit is tried
    assert np.abs(a - b).max() < 0.2
    same = fit_classification(1e5 * X, y, likelihood=likelihood_of(classes))
    assert_close(same.model.predict(1e5 * X, observed=True).mean, a, 1e-6)


@pytest.mark.parametrize("classes", [2, 3])
def test_weights_are_numbers_of_rows_or_nearly(classes):
    """The search and the posteriors see the same; left-out observations have the same moments."""
    X, y = labels(classes, rows=30)
    counts = 1 + np.arange(30) % 2
    rows = np.repeat(np.arange(30), counts)
    once = fit_classification(X, y, likelihood=likelihood_of(classes), weights=counts.astype(float))
    many = fit_classification(X[rows], y[rows], likelihood=likelihood_of(classes))
    a, b = (found.model.predict(X, observed=True).mean for found in (once, many))
    assert np.abs(a - b).max() < 0.05


# -- endings ----------------------------------------------------------------------------------------------------------


def test_checkpoints_resume_to_the_bit(tmp_path):
    X, y = labels(3)
    whole = fit_classification(X, y, likelihood=Softmax(3))
    file = tmp_path / "fit.ckpt"
    seen = []

    def stop(progress):
        seen.append(progress.step)
        return len(seen) > 9

    with pytest.warns(ConvergenceWarning, match="the callback stop ended the fit|a callback ended the fit"):
        fit_classification(X, y, likelihood=Softmax(3), checkpoint=file, callbacks=[stop])
    again = fit_classification(X, y, likelihood=Softmax(3), checkpoint=file)
    third = fit_classification(X, y, likelihood=Softmax(3), checkpoint=file)
    for found in (again, third):
        for name, x in tree.leaves(whole.model).items():
            assert np.array_equal(np.asarray(x), np.asarray(tree.leaves(found.model)[name])), name
    with pytest.raises(ValueError, match="was written by a fit with other values of seed"):
        fit_classification(X, y, likelihood=Softmax(3), checkpoint=file, seed=1)
    with pytest.raises(ValueError, match="is not a checkpoint of fit_regression"):
        agp.fit_regression(X, y, checkpoint=file)


def test_time_limits():
    X, y = labels(4, rows=1500, columns=5)
    began = time.perf_counter()
    with pytest.warns(ConvergenceWarning, match=r"the limit of 0\.05 s \(max_seconds\) was reached"):
        found = fit_classification(X, y, likelihood=Softmax(4), max_seconds=0.05)
    assert time.perf_counter() - began < 20.0
    assert found.model.predict(X[:5], observed=True).mean.shape == (5, 4)
    assert not found.converged


@pytest.mark.parametrize("when", ["first step", "later step", "posterior"])
def test_interrupts_keep_the_best_model(when):
    X, y = labels(rows=120)
    seen = []

    def interrupt(progress):
        seen.append(progress)
        posterior = bool(np.any(progress.model.site_precision > 0.0))
        if len(seen) == {"first step": 1, "later step": 8}.get(when) or (when == "posterior" and posterior):
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        fit_classification(X, y, likelihood=LOGIT, callbacks=[interrupt])
    found = caught.value.result
    assert not found.converged
    assert log_loss(found.model, X, y) < 0.8 * entropy(y)
    assert ("all 120 rows" in found.message) == (when == "posterior")


def test_a_stage_that_is_cut_is_said(monkeypatch):
    X, y = labels(rows=700)
    late = []
    monkeypatch.setattr(_watch.Watch, "elapsed", lambda self: 75.0 if late else 0.0)

    def jump(progress):
        if progress.model.X.shape[0] == 700:
            late.append(True)

    with pytest.warns(ConvergenceWarning, match=r"the limit of 100 s \(max_seconds\) was reached"):
        found = fit_classification(X, y, likelihood=LOGIT, max_seconds=100.0, callbacks=[jump])
    assert not found.converged
    assert found.learned


def test_separable_labels_of_float32(backend):
    rng = np.random.default_rng(2)
    X = np.sign(rng.normal(size=(200, 1))) * 4.0 + 0.3 * rng.normal(size=(200, 1))
    y = (X[:, 0] > 0.0).astype(float)
    kernel = agp.RBF(variance=100.0, lengthscale=3.0)
    given = backend.array(X, "float32"), backend.array(y, "float32")
    found = fit_classification(*given, likelihood=LOGIT, kernel=kernel, frozen="kernel.variance")
    wide = fit_classification(X, y, likelihood=LOGIT, kernel=kernel, frozen="kernel.variance")
    assert abs(found.bound - wide.bound) < 0.05
    again, update = wide.model, SiteStep(0.3)
    for _ in range(100):
        again = update(again, again._batch(X, y), update.init(again))[0]
    assert abs(wide.bound - float(again.bound(X, y)[0])) < 0.02
    x = np.asarray([[-4.0], [0.5], [4.0]])
    assert np.abs(wide.model.predict(x).mean - again.predict(x).mean).max() < 0.3


def test_a_known_kernel():
    X, y = labels()
    kernel = agp.RBF(variance=3.0, lengthscale=np.array([1.0, 20.0, 0.5]))
    found = fit_classification(X, y, likelihood=LOGIT, kernel=kernel, frozen="kernel.*")
    assert float(found.model.kernel.variance) == 3.0
    assert found.learned


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"likelihood": Bernoulli()}, TypeError, "must be Softmax, or Bernoulli with link='logit'"),
        ({"likelihood": LOGIT, "method": "gpr"}, ValueError, "must be 'auto', 'tvgp' or 'svgp'"),
        ({"likelihood": LOGIT, "kernel": "rbf"}, TypeError, "must be 'auto' or an instance"),
        ({"likelihood": LOGIT, "priors": 3}, TypeError, "must be 'auto', None or a dictionary"),
        ({"likelihood": LOGIT, "most": 0}, ValueError, "most"),
        ({"likelihood": LOGIT, "memory": -1.0}, ValueError, "memory"),
        ({"likelihood": LOGIT, "weights": np.zeros(60)}, ValueError, "weights"),
        (
            {"likelihood": "softmax"},
            TypeError,
            "likelihood is 'softmax', but must be .*; write Softmax",
        ),
        ({"likelihood": Softmax(2)}, ValueError, None),
    ],
)
def test_wrong_arguments(given, error, text):
    X, y = labels(3 if isinstance(given["likelihood"], Softmax) else 2)
    with pytest.raises(error, match=text):
        fit_classification(X, y, **given)


def test_shapes_that_do_not_fit():
    X, y = labels()
    with pytest.raises(ValueError, match=r"y has shape \(60, 2\), but must have one column of labels"):
        fit_classification(X, np.stack([y, y], axis=1), likelihood=LOGIT)
    with pytest.raises(ValueError, match="X has one row, but inducing inputs need two"):
        fit_classification(X[:1], y[:1], likelihood=LOGIT, method="svgp")
