"""The start, the kernel and the number of neighbours of nearest-neighbour models with sites."""

import dataclasses
import time

import numpy as np
import pytest
from helpers import assert_close

import agp
from agp import TNNGP, tree
from agp.kernels import Matern32
from agp.likelihoods import Bernoulli, Poisson, StudentT
from agp.selection import _near_sites as near_sites
from agp.selection import fit_near_rows, is_searched_quickly
from agp.selection._near_sites import choose_neighbours, choose_start

ENDED = pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
RNG = np.random.default_rng(0)
X = RNG.uniform(0.0, 6.0, size=(400, 2))
F = 1.0 + np.sin(2.0 * X[:, :1])
Y = RNG.poisson(np.exp(F)).astype(float)
KINDS = {"periodic": agp.Periodic(), "rbf": agp.RBF(), "white": agp.RBF() + agp.White()}


def poisson(**parts):
    return TNNGP.from_data(X, Y, **{"neighbours": 20, "likelihood": Poisson()} | parts)


def test_the_kernel_is_chosen_and_the_model_trained():
    found = fit_near_rows(poisson(), X, Y)
    assert found.converged
    assert found.model.sets.shape == (400, 20)  # of the sites; predictions may have more neighbours
    alone = agp.fit(poisson(), X, Y).model
    new = np.random.default_rng(1).uniform(0.0, 6.0, size=(500, 2))
    y = np.random.default_rng(2).poisson(np.exp(1.0 + np.sin(2.0 * new[:, :1]))).astype(float)
    assert np.mean(found.model.log_density(new, y)) > np.mean(alone.log_density(new, y)) - 0.02
    # the second column says nothing
    scales = np.asarray(found.model.kernel.lengthscale)
    assert scales[1] > 1.5 * scales[0]


def test_without_kernels_the_kernel_and_its_values_are_kept(monkeypatch):
    model = poisson(kernel=Matern32())
    found = fit_near_rows(model, X, Y, kernels={})
    assert isinstance(found.model.kernel, Matern32)
    plain = agp.fit(model, X, Y)
    assert found.trace == plain.trace
    np.testing.assert_array_equal(found.model.kernel.lengthscale, plain.model.kernel.lengthscale)


@ENDED
@pytest.mark.parametrize("seconds", [1e-3, 0.3])
def test_a_time_limit_is_kept(seconds, monkeypatch):
    monkeypatch.setattr(near_sites, "LEAST_SECONDS", 0.1)
    began = time.monotonic()
    found = fit_near_rows(poisson(), X, Y, max_seconds=seconds, tolerance=1e-12)
    assert time.monotonic() - began < seconds + 5.0
    assert not found.converged
    assert "max_seconds" in found.message
    assert found.model.neighbours == 20


def test_more_neighbours_keep_their_sets(monkeypatch):
    monkeypatch.setattr(near_sites, "NUMBERS", (40, 60))
    few = agp.fit(poisson(neighbours=3), X, Y).model
    batch = few._batch(X, Y)
    chosen = choose_neighbours(few, batch)
    assert chosen.neighbours in (40, 60)
    assert chosen.sets is few.sets
    assert np.mean(chosen.renew_neighbours().leave_one_out(Y)) > np.mean(few.leave_one_out(Y))
    monkeypatch.setattr(near_sites, "exceeds", lambda *_: False)
    assert choose_neighbours(few, batch).neighbours == 3


def test_no_more_neighbours_than_other_rows_are_compared():
    model = TNNGP.from_data(X[:90], Y[:90], neighbours=20, likelihood=Poisson())
    assert choose_neighbours(model, model._batch(X[:90], Y[:90])).neighbours == 20


@pytest.mark.parametrize("known", ["weights", "offset"])
def test_what_is_known_of_rows_is_taken_along(known):
    given = {"weights": RNG.integers(1, 4, len(X)).astype(float), "offset": 0.3 * RNG.normal(size=(len(X), 1))}
    rows = {known: given[known]}
    found = fit_near_rows(poisson(**rows), X, Y, **rows)
    assert found.converged
    plain = fit_near_rows(poisson(), X, Y)
    assert np.max(np.abs(found.model.site_shift - plain.model.site_shift)) > 1e-3


@pytest.mark.parametrize("likelihood", ["bernoulli", "student-t"])
def test_the_start_has_sites_of_all_rows(likelihood):
    given, y = {
        "bernoulli": (Bernoulli(link="logit"), 1.0 * (F > 1.0)),
        "student-t": (StudentT(), F + 0.1 * RNG.standard_t(3.0, size=F.shape)),
    }[likelihood]
    model = TNNGP.from_data(X, y, neighbours=20, likelihood=given)
    started = choose_start(model, model._batch(X, y), near_sites.KERNELS, 0)
    assert np.all(started.site_precision > 0.0)
    assert started.X is model.X
    for name, x in tree.leaves(started, "parameter").items():
        assert np.all(np.isfinite(x)), name


def test_two_seeds_that_are_equal_give_the_same_bits():
    one, two = (fit_near_rows(poisson(), X, Y, seed=3) for _ in "ab")
    assert str(one.model.kernel) == str(two.model.kernel)
    assert_close(one.model.site_shift, two.model.site_shift, 0.0)


@ENDED
def test_every_library_is_taken(backend):
    rows = slice(0, 80)
    x, y = backend.array(X[rows]), backend.array(Y[rows])
    model = TNNGP.from_data(x, y, neighbours=6, likelihood=Poisson())
    kernels = {"matern32": Matern32}
    found = fit_near_rows(model, x, y, kernels=kernels, max_steps=1)
    here = TNNGP.from_data(X[rows], Y[rows], neighbours=6, likelihood=Poisson())
    expected = fit_near_rows(here, X[rows], Y[rows], kernels=kernels, max_steps=1)
    assert type(found.model.kernel) is type(expected.model.kernel)
    assert_close(backend.numpy(found.model.site_shift), expected.model.site_shift, 1e-4)


def test_many_rows_of_many_columns_are_not_searched():
    assert is_searched_quickly(10**7, 8)
    assert is_searched_quickly(20_000, 20)
    assert not is_searched_quickly(50_000, 20)


def test_the_trained_model_is_a_model_of_its_class():
    found = fit_near_rows(poisson(), X, Y)
    assert dataclasses.replace(found.model, sets=None).predict(X[:3]).mean.shape == (3, 1)


def test_weights_count_in_the_choices():
    weights = RNG.uniform(0.1, 3.0, len(X))
    model = poisson(weights=weights)
    batch = model._batch(X, Y, weights=weights)
    each = near_sites._densities(model, batch)
    expected = np.average(model.leave_one_out(Y, weights=weights), weights=weights)
    assert np.mean(each) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_labels_with_any_kernel_are_fitted(kind, monkeypatch):
    monkeypatch.setattr("agp.selection._class_fit.EXACT_ROWS", 100)
    monkeypatch.setattr("agp.selection._fits.ALL_ROWS", 100)
    labels = 1.0 * (Y > 2.0)
    found = agp.fit_classification(X, labels, kernel=KINDS[kind])
    assert found.method in ("tsvgp", "tnngp")
    assert found.holds_data == (found.method == "tnngp")
    compared = sum(np.isfinite(one.held_out) for one in found.candidates)
    assert compared == (2 if kind == "rbf" else 1)


def test_labels_with_nearest_rows_include_the_held_out_rows(monkeypatch):
    monkeypatch.setattr("agp.selection._class_fit.EXACT_ROWS", 100)
    monkeypatch.setattr("agp.selection._class_fit.LEAST_GAIN", -1.0)
    monkeypatch.setattr("agp.selection._fits.ALL_ROWS", 100)
    found = agp.fit_classification(X, 1.0 * (Y > 2.0))
    assert found.method == "tnngp"
    assert found.model.X.shape == X.shape
    assert np.all(found.model.site_precision > 0.0)
    assert found.log_density > found.baseline
