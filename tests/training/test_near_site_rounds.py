"""Rounds of site steps and Newton steps: what they learn, how they end, and who is trained otherwise."""

import dataclasses

import numpy as np
import pytest
from helpers import assert_close
from users_kernel import UsersKernel

import agp
from agp import TNNGP, to_numpy, tree
from agp.errors import ConvergenceWarning, Interrupted, NonFiniteError, NoSignalWarning
from agp.kernels import RBF, Kernel, Matern52
from agp.likelihoods import Bernoulli, Gaussian, Poisson, Softmax, StudentT
from agp.training import why_not_in_turn
from agp.training._near_sites import begin_sites, settle_sites

ENDED = pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")


def counts(rows=300, seed=0, columns=1):
    """Inputs, counts and their rates."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(0.0, 6.0, size=(rows, columns))
    rate = np.exp(1.0 + np.sin(2.0 * X[:, :1]))
    return X, rng.poisson(rate).astype(float), rate


X, Y, RATE = counts()


def poisson(X=X, y=Y, **parts):
    return TNNGP.from_data(X, y, **{"neighbours": 20, "likelihood": Poisson()} | parts)


def density(likelihood, f, y):
    """The mean log density of targets at known function values."""
    return float(np.mean(likelihood.predictive_log_density(f, 0.0 * f, y)))


def score_of(model, x, y):
    """The mean log density of targets under predictions."""
    return float(np.mean(model.log_density(x, y)))


# -- what is learned --------------------------------------------------------------------------------------------------


def test_counts_are_learned():
    found = agp.fit(poisson(), X, Y)
    assert found.converged
    assert found.learned
    assert found.steps == len(found.trace["bound"]) == len(found.trace["gain"])
    assert "a round gains less than 0.001 nats per row" in found.message
    x, y, rate = counts(seed=1)
    truth, score = density(Poisson(), np.log(rate), y), score_of(found.model, x, y)
    level = density(Poisson(), np.full_like(rate, np.log(np.mean(Y))), y)
    assert score > truth - 0.05 > level + 0.1
    assert np.median(np.abs(found.model.predict_mean(x, observed=True) / rate - 1.0)) < 0.15
    assert found.model.neighbours == 20
    assert found.model.sets.shape == (300, 20)


@pytest.mark.parametrize("likelihood", ["bernoulli", "student-t", "gaussian", "softmax"])
def test_other_targets_are_learned(likelihood):
    rng = np.random.default_rng(2)
    f = 2.0 * np.sin(2.0 * X)
    given, y = {
        "bernoulli": (Bernoulli(link="logit"), 1.0 * (rng.uniform(size=f.shape) < 1.0 / (1.0 + np.exp(-f)))),
        "student-t": (StudentT(), f + 0.2 * rng.standard_t(3.0, size=f.shape)),
        "gaussian": (Gaussian(), f + 0.2 * rng.normal(size=f.shape)),
        "softmax": (Softmax(3, fixed_samples=20), np.clip(np.rint(0.7 * f + 1.0), 0.0, 2.0)),
    }[likelihood]
    found = agp.fit(TNNGP.from_data(X, y, neighbours=20, likelihood=given), X, y)
    assert found.converged
    assert found.learned
    if likelihood == "student-t":
        assert 0.1 < float(found.model.likelihood.scale) < 0.4
    if likelihood == "gaussian":
        assert float(found.model.likelihood.noise_variance) == pytest.approx(0.04, rel=0.3)
    if likelihood != "softmax":
        assert np.corrcoef(found.model.predict_mean(X)[:, 0], f[:, 0])[0, 1] > 0.95


def test_predictions_are_about_as_good_as_those_of_tvgp():
    exact = agp.fit(agp.TVGP.from_data(X, Y, likelihood=Poisson()), X, Y).model
    near = agp.fit(poisson(neighbours=50), X, Y).model
    x, y, _ = counts(1000, seed=1)
    assert score_of(near, x, y) == pytest.approx(score_of(exact, x, y), abs=0.01)


def test_offsets_are_exposures():
    rng = np.random.default_rng(3)
    exposure = rng.uniform(0.2, 5.0, size=(len(X), 1))
    y = rng.poisson(RATE * exposure).astype(float)
    model = TNNGP.from_data(X, y, neighbours=20, likelihood=Poisson(), offset=np.log(exposure))
    found = agp.fit(model, X, y, offset=np.log(exposure)).model
    assert np.median(np.abs(found.predict_mean(X, observed=True) / RATE - 1.0)) < 0.1


def test_weights_are_numbers_of_observations():
    model = poisson()
    once, thrice = (agp.fit(model, X, Y, weights=np.full(len(X), w)).model for w in (1.0, 3.0))
    assert_close(once.site_shift, agp.fit(model, X, Y).model.site_shift, 1e-9)
    new = np.linspace(0.2, 5.8, 30)[:, None]
    assert np.all(thrice.predict(new).variance < once.predict(new).variance)


@pytest.mark.long
def test_many_counts_are_learned():
    x, y, _ = counts(13_000, columns=2)
    found = agp.fit(poisson(x, y, neighbours=50), x, y)
    assert found.converged
    assert found.learned
    assert found.model.X.shape == x.shape
    new, targets, rate = counts(1000, seed=1, columns=2)
    truth = density(Poisson(), np.log(rate), targets)
    level = density(Poisson(), np.full_like(rate, np.log(np.mean(y))), targets)
    assert score_of(found.model, new, targets) > truth - 0.02 > level + 0.1


@pytest.mark.parametrize("rows", [1, 2, 3])
@pytest.mark.filterwarnings("ignore::agp.errors.NoSignalWarning")
@ENDED
def test_few_rows_are_trained(rows):
    found = agp.fit(poisson(X[:rows], Y[:rows]), X[:rows], Y[:rows], max_steps=3)
    assert np.all(np.isfinite(found.model.predict(X).mean))


def test_noise_alone_is_not_learned():
    y = np.random.default_rng(4).poisson(3.0, size=Y.shape).astype(float)
    with pytest.warns(NoSignalWarning):
        assert not agp.fit(poisson(y=y), X, y).learned


# -- how it ends ------------------------------------------------------------------------------------------------------


def test_limits_end_it():
    with pytest.warns(ConvergenceWarning, match=r"after 1 steps: .*max_steps"):
        found = agp.fit(poisson(), X, Y, max_steps=1)
    assert (found.steps, found.converged) == (1, False)
    with pytest.warns(ConvergenceWarning, match=r"max_seconds"):
        found = agp.fit(poisson(), X, Y, max_seconds=1e-6)
    assert (found.steps, found.converged) == (1, False)
    assert np.all(np.isfinite(found.model.predict(X).mean))


def test_callbacks_see_the_rounds_and_end_them():
    seen = []

    def end(progress):
        seen.append((progress.step, float(progress.info["bound"])))
        assert progress.model.neighbours == 20
        assert np.isfinite(float(progress.model.bound(X, Y)[0]))
        return progress.step == 2

    with pytest.warns(ConvergenceWarning, match="the callback end ended the training"):
        found = agp.fit(poisson(), X, Y, callbacks=[end])
    assert [step for step, _ in seen] == [1, 2]
    assert found.trace["bound"] == [bound for _, bound in seen]


def stop_at(step):
    def interrupt(progress):
        if progress.step == step:
            raise KeyboardInterrupt

    return interrupt


def test_an_interruption_keeps_the_last_round():
    with pytest.raises(Interrupted, match="after 2 steps") as caught:
        agp.fit(poisson(), X, Y, callbacks=[stop_at(2)])
    found = caught.value.result
    assert (found.steps, len(found.trace["bound"])) == (2, 2)
    assert found.model.sets.shape == (300, 20)
    assert score_of(found.model, X, Y) > score_of(poisson(), X, Y)


@ENDED
def test_an_interruption_while_some_rows_are_trained_keeps_all_of_them(monkeypatch):
    monkeypatch.setattr("agp.training._near_sites.FEW_ROWS", 200)
    seen = []
    with pytest.raises(Interrupted) as caught:
        agp.fit(poisson(), X, Y, callbacks=[lambda progress: seen.append(progress.model), stop_at(1)])
    for model in (caught.value.result.model, *seen):
        assert model.X.shape == X.shape
        assert np.isfinite(float(model.bound(X, Y)[0]))
        assert np.all(model.site_precision > 0.0)  # also of rows that were not trained
    # bounds of some rows are scaled to all of them
    found = agp.fit(poisson(), X, Y)
    assert found.converged
    assert_close(np.asarray(found.trace["bound"]), np.full(found.steps, found.trace["bound"][-1]), 0.1)


def test_a_round_that_lowers_the_bound_is_undone_and_told(monkeypatch):
    monkeypatch.setattr("agp.training._near_sites.FALL", -10.0)  # a round must gain 10 nats per row
    with pytest.warns(ConvergenceWarning, match="a round lowered the bound, and was undone"):
        found = agp.fit(poisson(), X, Y)
    assert not found.converged
    assert found.steps == 0
    assert_close(found.model.kernel.lengthscale, poisson().kernel.lengthscale, 0.0)
    assert np.all(found.model.site_precision > 0.0)


def test_the_last_step_is_in_the_metric_of_the_trained_kernel():
    """Also with as many neighbours as the sites have during the rounds."""
    x, y, _ = counts(columns=2)
    found = agp.fit(poisson(x, y, neighbours=20), x, y).model
    np.testing.assert_array_equal(found.sets, found.renew_neighbours().sets)


def test_bounds_that_are_not_finite_end_it(monkeypatch):
    calls, right = [], TNNGP._objective

    def wrong(self, batch, **options):
        calls.append(1)
        value, pull = right(self, batch, **options)
        return (value if len(calls) < 2 else value * np.nan), pull

    monkeypatch.setattr(TNNGP, "_objective", wrong)
    with pytest.raises(NonFiniteError, match="the bound is not finite") as caught:
        agp.fit(poisson(), X, Y)
    found = caught.value.result
    assert (found.steps, found.model.X.shape) == (1, X.shape)
    assert np.isfinite(found.trace["bound"][0])


def test_training_twice_gives_the_same_bits():
    one, two = (agp.fit(poisson(), X, Y) for _ in "ab")
    assert one.trace == two.trace
    np.testing.assert_array_equal(one.model.site_shift, two.model.site_shift)


@ENDED
def test_every_library_takes_the_same_rounds(backend):
    x, y = X[:60], Y[:60]
    here = agp.fit(poisson(x, y, neighbours=8), x, y, max_steps=2)
    inputs, targets = backend.array(x), backend.array(y)
    there = agp.fit(poisson(inputs, targets, neighbours=8), inputs, targets, max_steps=2)
    np.testing.assert_allclose(there.trace["bound"], here.trace["bound"], rtol=1e-6)
    found = tree.leaves(there.model, "parameter")
    for name, value in tree.leaves(here.model, "parameter").items():
        np.testing.assert_allclose(to_numpy(found[name]), value, rtol=1e-4, err_msg=name)


# -- sites ------------------------------------------------------------------------------------------------------------


def test_sites_settle():
    model = poisson()
    batch = model._batch(X, Y)
    settled, height = settle_sites(model, batch, 100)
    assert_close(settle_sites(settled, batch, 1)[0].site_shift, settled.site_shift, 0.03)
    assert settled._objective(batch)[0] > model._objective(batch)[0]
    assert height == pytest.approx(float(settled._objective(batch)[0]), rel=0.01)


@pytest.mark.parametrize("level", [-3.3, 1.3])
@pytest.mark.parametrize("variance", [1.0, 30.0, 120.0])
def test_sites_settle_from_any_prior(variance, level):
    """At such priors, E[exp(f)] is astronomic, and steps from there would not converge."""
    rng = np.random.default_rng(3)
    inputs = rng.uniform(0.0, 6.0, size=(400, 2))
    counts = rng.poisson(np.exp(1.0 + np.sin(2.0 * inputs[:, :1]))).astype(float)
    parts = {"kernel": agp.RBF(variance, np.asarray([8.0, 1000.0])), "likelihood": Poisson()}
    model = TNNGP.from_data(inputs, counts, neighbours=20, mean_function=agp.ConstantMean(level), **parts)
    batch = model._batch(inputs, counts)
    settled, height = settle_sites(begin_sites(model, batch), batch, 20)
    assert height / 400 > -2.3
    assert np.mean(settled.leave_one_out(counts)) > -2.3


def test_labels_that_are_certain_do_not_let_sites_run_away():
    inputs = np.random.default_rng(4).uniform(0.0, 6.0, size=(400, 2))
    labels = np.where(np.sin(2.0 * inputs[:, :1]) > 0.0, 1.0, 0.0)
    parts = {"kernel": agp.Matern32(1e6, 10.0), "likelihood": agp.Bernoulli(link="logit")}
    model = TNNGP.from_data(inputs, labels, neighbours=20, **parts)
    batch = model._batch(inputs, labels)
    settled, _ = settle_sites(begin_sites(model, batch), batch, 40)
    assert np.mean(settled.leave_one_out(labels)) > -0.5
    assert np.max(np.abs(settled.site_shift / settled.site_precision)) < 1e3


def test_rows_that_rounds_have_not_reached_have_sites(monkeypatch):
    monkeypatch.setattr("agp.training._near_sites.FEW_ROWS", 100)
    with pytest.warns(agp.errors.ConvergenceWarning):
        found = agp.fit(poisson(), X, Y, max_steps=1)
    assert np.all(found.model.site_precision > 0.0)


def test_sites_of_outliers_keep_the_prediction():
    y = np.sin(2.0 * X) + 0.1 * np.random.default_rng(5).normal(size=X.shape)
    far = (np.arange(len(X)) % 17 == 3)[:, None]
    found = agp.fit(TNNGP.from_data(X, y + 20.0 * far, neighbours=20, likelihood=StudentT()), X, y + 20.0 * far)
    model = found.model
    assert np.all(model.site_precision >= 0.0)
    assert np.max(np.abs(model.predict_mean(X) - np.sin(2.0 * X))) < 0.35
    assert np.max(model.site_precision[far]) < np.median(model.site_precision[~far])


# -- trained otherwise ------------------------------------------------------------------------------------------------


@tree.model
class Own(UsersKernel):
    """A kernel of a user, which is not linearised."""

    inner: Kernel


def test_what_cannot_be_trained_in_turn_is_told():
    assert why_not_in_turn(poisson()) == ""
    assert why_not_in_turn(agp.TVGP.from_data(X, Y, likelihood=Poisson())) == "TVGP has no sites with neighbours"
    assert why_not_in_turn(agp.NNGP.from_data(X, Y)) == "NNGP has no sites with neighbours"


@ENDED
def test_a_kernel_of_the_user_is_trained_by_steps():
    model = poisson(kernel=Own(RBF()))
    assert why_not_in_turn(model) == "Own or a part of it has no method linearise_groups"
    found = agp.fit(model, X, Y, max_steps=60)
    assert found.steps == 60
    assert "gain" not in found.trace
    assert score_of(found.model, X, Y) > score_of(model, X, Y) + 0.3


@ENDED
@pytest.mark.parametrize("settings", [{"batch_size": 100}, {"updates": agp.recipe}])
def test_minibatches_and_updates_are_trained_by_steps(settings):
    found = agp.fit(poisson(), X, Y, max_steps=12, **settings)
    assert found.steps == 12
    assert "gain" not in found.trace
    assert np.any(found.model.site_precision > 0.0)


@ENDED
def test_a_checkpoint_is_written_by_steps(tmp_path):
    path = tmp_path / "run"
    found = agp.fit(poisson(), X, Y, max_steps=10, checkpoint=path)
    assert path.exists()
    again = agp.fit(poisson(), X, Y, max_steps=10, checkpoint=path)
    assert again.trace == found.trace
    np.testing.assert_array_equal(again.model.site_shift, found.model.site_shift)


def test_a_prior_is_compared_with_all_rows():
    from agp.priors import LogNormal

    wide, narrow = ({"kernel.lengthscale": LogNormal(np.log(3.0), spread)} for spread in (10.0, 0.001))
    free, held = (agp.fit(poisson(kernel=Matern52(), priors=p), X, Y).model for p in (wide, narrow))
    assert float(np.max(held.kernel.lengthscale)) == pytest.approx(3.0, rel=0.02)
    assert float(np.max(free.kernel.lengthscale)) < 2.0


def test_the_model_is_not_changed():
    model = poisson()
    before = {name: np.array(x) for name, x in tree.leaves(model).items()}
    agp.fit(model, X, Y)
    for name, x in tree.leaves(model).items():
        np.testing.assert_array_equal(x, before[name])
    assert dataclasses.replace(model) is not model
