"""Raw data in, honest answers out: an untrained model is its prior, and what is learned does not depend on units."""

import warnings
from functools import partial

import numpy as np
import pytest
from helpers import toy_data

import agp
from agp import methods, tree
from agp.posteriors import (
    DiagonalWhitened,
    Dual,
    DualInverseFree,
    FullSiteLikelihoodForm,
    FullSiteRelaxed,
    InverseFree,
    LikelihoodForm,
    Marginal,
    PriorSpread,
    Relaxed,
    RelaxedOrthogonal,
    RelaxedUnion,
    Whitened,
)
from agp.training import initial_state
from agp.updates import Adam, InverseUpdate

X, Y = toy_data(60, 1)
NEAR = np.concatenate([X[:20], X[:20] + 1e-3, X[:20] + 0.1])
"""Inputs at which an uncertain q(u) and a certain one differ most: among the data."""

SPARSE = {
    "marginal": Marginal,
    "whitened": Whitened,
    "diagonal-whitened": DiagonalWhitened,
    "inverse-free": InverseFree,
    "likelihood": LikelihoodForm,
    "likelihood-plain": partial(LikelihoodForm.from_prior, preconditioned=False),
    "likelihood-full-site": FullSiteLikelihoodForm,
    "relaxed": Relaxed,
    "relaxed-plain": partial(Relaxed.from_prior, preconditioned=False),
    "relaxed-root": partial(Relaxed.from_prior, preconditioned="root"),
    "relaxed-full-site": FullSiteRelaxed,
    "relaxed-probes": partial(Relaxed.from_prior, probes=4),
    "relaxed-orthogonal": RelaxedOrthogonal,
    "relaxed-union": RelaxedUnion,
    "prior-spread": PriorSpread,
    "dual-natural": partial(Dual.from_prior, tied="natural"),
    "dual-kernel": partial(Dual.from_prior, tied="kernel"),
    "dual-white": partial(Dual.from_prior, tied="white"),
    "dual-inverse-free": DualInverseFree,
}
UNTRAINED = {name: partial(agp.SVGP.from_data, posterior=q, num_inducing=30) for name, q in SPARSE.items()} | {
    "solve": partial(agp.SOLVEGP.from_data, num_inducing=15),
    "odvgp": partial(agp.SOLVEGP.from_data, second=PriorSpread, num_inducing=15),
    "solve-marginal": partial(agp.SOLVEGP.from_data, posterior=Marginal, num_inducing=15),
    "solve-relaxed": partial(agp.SOLVEGP.from_data, posterior=RelaxedOrthogonal, num_inducing=15),
    "tvgp": agp.TVGP.from_data,
    "tnngp": agp.TNNGP.from_data,
    "tsvgp": partial(agp.TSVGP.from_data, num_inducing=30),
}
"""All but the models that condition on data from the start (GPR, SGPR, SOLVEGPR, CaGP, CGGP)."""


@pytest.mark.cover(2, quick=1)
@pytest.mark.parametrize("kernel", [agp.RBF(), agp.Matern12(), agp.kernels.Linear() + agp.kernels.Constant()])
@pytest.mark.parametrize("name", UNTRAINED)
def test_an_untrained_model_predicts_its_prior(name, kernel):
    model = UNTRAINED[name](1e3 * X, 1e-3 * Y + 5.0, kernel=kernel)
    mean, variance = model.predict(1e3 * NEAR)
    prior = getattr(model, "process", model)
    np.testing.assert_array_equal(mean, np.broadcast_to(prior.mean_function(1e3 * NEAR)[0], mean.shape))
    np.testing.assert_allclose(variance[:, 0], prior.kernel.diag(1e3 * NEAR)[0], rtol=0.02)


def test_the_diagonal_q_of_u_starts_nearest_to_the_prior_in_kl():
    process = UNTRAINED["whitened"](X, Y).process
    Kuu = process.inducing_covariance()[0]
    q = agp.posteriors.DiagonalMarginal.from_prior(Kuu, 2)
    np.testing.assert_array_equal(q.mean, 0.0)
    np.testing.assert_allclose(q.deviation, np.stack([np.diag(np.linalg.inv(Kuu)) ** -0.5] * 2, axis=1), rtol=1e-6)
    nearest = q.kl_divergence(q.factorise(Kuu)[0])[0]
    for factor in (0.9, 1.1):
        other = tree.with_leaves(q, {"deviation": factor * q.deviation})
        assert other.kl_divergence(other.factorise(Kuu)[0])[0] > nearest


# -- what training does first -----------------------------------------------------------------------------------------

BEGINNING = [
    *("likelihood", "likelihood-plain", "likelihood-full-site", "relaxed", "relaxed-plain", "relaxed-root"),
    *("relaxed-full-site", "relaxed-probes", "solve-relaxed"),
]


@pytest.mark.parametrize("name", UNTRAINED)
def test_training_begins_with_small_sites(name):
    model = UNTRAINED[name](X, Y)
    first = initial_state(model)
    assert (first is model) == (name not in [*BEGINNING, "relaxed-orthogonal", "relaxed-union"])
    assert initial_state(first) is first
    if first is not model:
        for leaf, x in tree.leaves(first).items():
            if leaf.endswith(("posterior.site", "posterior.site_scale")):
                S, start = (x @ x.T, 1e-2) if leaf.endswith("site_scale") else (np.diag(x), 1e-4)
                np.testing.assert_allclose(S, start * first.process.kernel.variance * np.eye(len(S)), rtol=1e-5)
            elif "inverse" not in leaf:
                assert x is tree.leaves(model)[leaf]
        posterior, Kuu = first.process.posterior, first.process._matrix_to_invert()
        assert posterior.recompute_factors(Kuu) is posterior


@pytest.mark.parametrize("name", BEGINNING)
def test_the_first_step_is_that_of_a_model_which_has_begun(name):
    model = UNTRAINED[name](X, Y)
    once = agp.train(model, X, Y, steps=3)
    again = agp.train(initial_state(model), X, Y, steps=3)
    assert once.trace == again.trace
    untouched = tree.leaves(agp.train(model, X, Y, steps=0).model)
    assert all(np.array_equal(x, untouched[name]) for name, x in tree.leaves(model).items())


def test_layers_begin_one_by_one():
    layer = agp.processes.Sparse.from_data(X, outputs=2, num_inducing=5)
    trained = tree.replace(layer, {"posterior": tree.with_leaves(layer.posterior, {"mean": np.ones((5, 2))})})
    model = agp.SVGP(
        agp.processes.Deep((trained, agp.processes.Sparse.from_data(X, num_inducing=5))), agp.Gaussian(np.asarray(0.1))
    )
    first = initial_state(model)
    assert first.process.layers[0] is trained
    assert np.max(first.process.layers[1].posterior.site) == pytest.approx(1e-4, rel=1e-5)


@pytest.mark.parametrize("kept", ["posterior.site", "posterior.*"])
def test_a_frozen_start_is_not_touched(kept):
    model = UNTRAINED["relaxed"](X, Y)
    updates = [Adam(0.05, frozen=f"process.{kept}"), InverseUpdate()]
    trained = agp.train(model, X, Y, steps=2, updates=updates).model
    np.testing.assert_array_equal(trained.process.posterior.site, model.process.posterior.site)


def test_a_frozen_factor_keeps_its_sites():
    model = UNTRAINED["relaxed"](X, Y)
    trained = agp.train(model, X, Y, steps=2, updates=[Adam(1e-3, frozen="inverse_factor")]).model
    np.testing.assert_allclose(trained.process.posterior.site, model.process.posterior.site, rtol=1e-2)
    assert trained.process.posterior.inverse_factor is model.process.posterior.inverse_factor


def test_an_update_that_does_not_tell_may_move_everything():
    model = UNTRAINED["relaxed"](X, Y)

    class Own:
        def init(self, model):
            return {}

        def __call__(self, model, batch, state):
            return model, state, {}

    trained = agp.train(model, X, Y, steps=1, updates=[Own()]).model
    np.testing.assert_array_equal(trained.process.posterior.site, initial_state(model).process.posterior.site)


# -- any units --------------------------------------------------------------------------------------------------------

ROWS, STEPS = 60, 60
MIXED = np.array([1e-6, 1.0, 1e6])
CHANGES = {
    "small-X-large-y": (1e-6, 1e6, 0.0),
    "large-X-small-y": (1e6, 1e-6, 0.0),
    "mixed-X": (MIXED, 1.0, 0.0),
    "far-y": (1.0, 1.0, 1e6),
}
"""Factors of X and of y, and an offset of y in its deviations."""
VARIANTS = [*methods.METHODS, *(f"tsvgp:{storage}" for storage in methods.METHODS["tsvgp"].storages[1:])]


def rows_of_data():
    """Inputs [N, 3] and targets [N] for training, and as many as a fourth for testing."""
    rng = np.random.default_rng(3)
    inputs = rng.standard_normal((ROWS + ROWS // 4, 3))
    targets = np.sin(1.5 * inputs[:, 0]) + 0.5 * inputs[:, 1] + 0.2 * rng.standard_normal(len(inputs))
    return inputs[:ROWS], targets[:ROWS], inputs[ROWS:], targets[ROWS:]


def scores(variant, a, c, d):
    """Negative log predictive densities of test rows, standardised, of the untrained and of the trained model."""
    inputs, targets, test_inputs, test_targets = rows_of_data()
    scale, offset = c * targets.std(), c * d * targets.std()
    inputs, targets = a * inputs, c * targets + offset
    method, _, storage = variant.partition(":")
    parts = {"num_inducing": 10, "num_orthogonal": 6, "num_actions": 10, "seed": 0, "storage": storage or None}
    model = methods.build(method, inputs, targets, kernel="rbf", likelihood=agp.Gaussian(), **parts)
    updates = methods.updates_of(method, model, STEPS, rate=0.05, gradient="closed-form")
    size = ROWS // 2 if model.stochastic else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a repair is the same in any units, and no matter here
        trained = agp.train(model, inputs, targets, steps=STEPS, updates=updates, batch_size=size).model

    def score(model):
        densities = model.log_density(a * test_inputs, c * test_targets + offset)
        return -float(np.mean(densities)) - np.log(scale)

    return score(model), score(trained)


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_depends_on_units(variant):
    before, after = scores(variant, 1.0, 1.0, 0.0)
    assert after < before - 0.05  # there was something to learn
    for name, change in CHANGES.items():
        start, end = scores(variant, *change)
        assert abs(start - before) <= 1e-6, name
        assert abs(end - after) <= 1e-3, name
