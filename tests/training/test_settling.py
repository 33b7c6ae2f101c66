"""After training by minibatches, q(u) is at its optimum on all rows."""

import numpy as np
import pytest

import agp
from agp.training._objective import inner_updates
from agp.training._result import Result
from agp.training._settling import moves_any, settle_posterior, settling_updates

RNG = np.random.default_rng(5)
X = RNG.uniform(-3.0, 3.0, (300, 1))
F = np.sin(2.0 * X)
NOISE = RNG.standard_normal((300, 1))
TARGETS = {
    "gaussian": (agp.Gaussian(), F + 0.2 * NOISE),
    "poisson": (agp.Poisson(), RNG.poisson(np.exp(F)).astype(float)),
    "bernoulli": (agp.Bernoulli(), (F + NOISE > 0.0).astype(float)),
    "student-t": (agp.StudentT(), F + 0.1 * RNG.standard_t(3, (300, 1))),
    "softmax": (agp.Softmax(3), np.digitize(F + 0.3 * NOISE, [-0.5, 0.5]).astype(float)),
}
BATCHES = {"batch_size": 60, "max_steps": 120}


def made(name, posterior, **settings):
    likelihood, y = TARGETS[name]
    return agp.SVGP.from_data(X, y, likelihood=likelihood, posterior=posterior, num_inducing=10, **settings), y


def settled(model, y, memory=None):
    """Return a model after further settling, and the gain of the bound in nats."""
    data = model._batch(X, y)
    updates = settling_updates(model, 300, inner_updates(model, memory), (), memory)
    found = settle_posterior(Result(model, 0, 0.0), data, updates, memory).model
    return found, float(found.bound(X, y)[0]) - float(model.bound(X, y)[0])


POSTERIORS = ["whitened", "marginal", "relaxed", "likelihood-form", "dual"]
CASES = [(name, posterior) for name in TARGETS if name != "softmax" for posterior in POSTERIORS[:3]]


@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
@pytest.mark.parametrize(("name", "posterior"), [*CASES, ("gaussian", "likelihood-form"), ("gaussian", "dual")])
def test_q_is_at_its_optimum_after_minibatches(name, posterior):
    model, y = made(name, posterior)
    trained = agp.train(model, X, y, steps=120, batch_size=60, updates=agp.recipe(model, 120)).model
    left, now = settled(trained, y)[1], settled(agp.fit(model, X, y, **BATCHES).model, y)[1]
    assert left > 0.005
    assert 0.0 <= now < 0.1 * left


@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
@pytest.mark.parametrize("outputs", ["shared", "separate", "coregionalised"])
@pytest.mark.parametrize("posterior", ["relaxed", "whitened"])
def test_q_of_several_outputs_is_at_its_optimum(posterior, outputs):
    y = np.concatenate([F + 0.2 * NOISE, -5.0 * np.cos(X) + NOISE[::-1]], axis=1)
    model = agp.SVGP.from_data(X, y, posterior=posterior, num_inducing=10, outputs=outputs)
    trained = agp.train(model, X, y, steps=120, batch_size=60, updates=agp.recipe(model, 120)).model
    left, now = settled(trained, y)[1], settled(agp.fit(model, X, y, **BATCHES).model, y)[1]
    assert left > 0.005
    assert -1e-9 <= now < 0.1 * left


@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
def test_q_is_at_its_optimum_after_a_callback_ends_the_training():
    model, y = made("gaussian", "relaxed")
    ended = agp.fit(model, X, y, batch_size=60, callbacks=[lambda seen: seen.step == 30]).model
    assert settled(ended, y)[1] < 0.01


@pytest.mark.parametrize("posterior", POSTERIORS)
def test_blocks_lead_to_the_same_optimum(posterior):
    model, y = made("gaussian", posterior)
    model = agp.train(model, X, y, steps=20, batch_size=60).model
    one, other = settled(model, y)[0].predict(X[:20]), settled(model, y, memory=0.01)[0].predict(X[:20])
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(one.variance, other.variance, rtol=1e-6)


def test_what_has_no_such_optimum_is_left_as_it_is():
    deep = agp.DeepGP.from_data(X, F, num_inducing=8)
    for model, frozen in (
        (made("softmax", "whitened")[0], ()),
        (made("poisson", "whitened")[0], ("posterior.mean",)),
        (made("gaussian", "relaxed")[0], ("posterior.site",)),
        (deep, ()),
    ):
        inner = [update for update in inner_updates(model, None) if not moves_any(update, model, frozen)]
        assert settling_updates(model, 300, inner, frozen, None) == []
    model = made("gaussian", "relaxed")[0]
    assert len(settling_updates(model, 300, inner_updates(model, None), ("kernel.*",), None)) == 1


def test_steps_that_fail_or_lower_the_bound_are_not_taken():
    class Wrong:
        def __init__(self, leaf):
            self.leaf = leaf

        def init(self, _model):
            return {}

        def __call__(self, model, _batch, state):
            if self.leaf is None:
                raise agp.errors.NonFiniteError("a test")
            return agp.tree.with_leaves(model, {self.leaf: 9.0 + agp.tree.leaves(model)[self.leaf]}), state, {}

    model, y = made("gaussian", "whitened")
    result = Result(model, 3, 0.0)
    for leaf in (None, "process.posterior.mean"):
        found = settle_posterior(result, model._batch(X, y), [Wrong(leaf)], None)
        assert found.steps == 3
        for name, x in agp.tree.leaves(found.model).items():
            np.testing.assert_array_equal(x, agp.tree.leaves(model)[name])
