"""What the names of methods mean: the model that each one builds, and the updates that train it."""

import numpy as np
import pytest
from helpers import process

import agp
from agp.actions import BlockActions, FixedActions
from agp.methods import LAYERS, METHODS, build, updates_of
from agp.models import CGGP, SOLVEGPR, TSVGP, TVGP, CaGP
from agp.posteriors import Dual, DualInverseFree, Orthogonal, PriorSpread, RelaxedOrthogonal, Whitened
from agp.updates import ActionsUpdate, Adam, InverseUpdate, NaturalGradient, SiteStep

POSTERIORS = {
    "deep-msvgp": agp.posteriors.Marginal,
    "deep-wsvgp": agp.posteriors.Whitened,
    "deep-lsvgp": agp.posteriors.LikelihoodForm,
    "deep-rsvgp": agp.posteriors.Relaxed,
    "deep-asvgp": agp.posteriors.InverseFree,
    "deep-solve": agp.posteriors.Orthogonal,
}
DEEP = [name for name, method in METHODS.items() if "layers" in method.takes]


@pytest.mark.parametrize("method", DEEP)
def test_deep_methods(method):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(20, 2))
    common = {"likelihood": agp.Gaussian(), "kernel": "matern32", "num_inducing": 4, "seed": 0}
    models = [build(method, X, np.sin(X[:, :1]), **common, **given) for given in ({}, {"layers": 3})]
    assert [len(model.process.layers) for model in models] == [LAYERS, 3]
    for model in models:
        assert {type(layer.posterior) for layer in model.process.layers} == {POSTERIORS[method]}
        assert {type(layer.kernel) for layer in model.process.layers} == {agp.Matern32}
        assert_wide(model.process.layers[0].kernel.lengthscale, X)
    if method == "deep-solve":
        few = build(method, X, np.sin(X[:, :1]), **common, num_orthogonal=3)
        assert {layer.posterior.sizes for layer in models[0].process.layers} == {(4, 4)}
        assert {layer.posterior.sizes for layer in few.process.layers} == {(4, 3)}


def assert_wide(lengthscale, X):
    """Layers are smooth at first: twice the spread of each column."""
    np.testing.assert_allclose(lengthscale, 2.0 * X.std(axis=0), rtol=1e-12)


def test_all_deep_methods_are_listed():
    assert list(POSTERIORS) == DEEP
    assert all("deep" in METHODS[name].description for name in DEEP)


def test_computation_aware_methods_and_conjugate_gradients():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(20, 2))
    common = {"likelihood": agp.Gaussian(), "kernel": "rbf", "num_inducing": 4, "seed": 0}
    learned = build("cagp-opt", X, np.sin(X[:, :1]), **common, num_actions=5, support=10)
    assert isinstance(learned, CaGP)
    assert isinstance(learned.actions, BlockActions)
    assert (learned.actions.count, learned.actions.support, learned.stochastic) == (5, 10, True)
    chosen = build("cagp-cg", X, np.sin(X[:, :1]), **common, num_actions=5, support=20)
    assert isinstance(chosen.actions, FixedActions)
    assert not chosen.stochastic
    updates = updates_of("cagp-cg", chosen, 10, rate=0.03, gradient="closed-form")
    assert [type(update) for update in updates] == [ActionsUpdate, Adam]
    assert isinstance(build("cggp", X, np.sin(X[:, :1]), **common), CGGP)


def test_dual_and_orthogonal_methods():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(20, 2))
    y = np.sin(X[:, :1])
    common = {"likelihood": agp.Gaussian(), "kernel": "rbf", "num_inducing": 4, "seed": 0}

    def built(method, **given):
        return build(method, X, y, **common, **given)

    assert isinstance(built("tvgp"), TVGP)
    assert isinstance(built("tsvgp"), TSVGP)
    assert METHODS["tsvgp"].storages == ("datum", "natural", "kernel", "white", "inverse-free")
    for storage in ("natural", "kernel", "white"):
        assert process(built("tsvgp", storage=storage)).posterior.tied == storage
    free = built("tsvgp", storage="inverse-free")
    assert isinstance(process(free).posterior, DualInverseFree)
    assert isinstance(built("solve-collapsed", num_orthogonal=3), SOLVEGPR)
    solve, decoupled = (
        process(built("solve", num_orthogonal=3)).posterior,
        process(built("odvgp", num_orthogonal=3)).posterior,
    )
    assert isinstance(solve, Orthogonal)
    assert [type(part) for part in solve.parts] == [Whitened, Whitened]
    assert [type(part) for part in decoupled.parts] == [Whitened, PriorSpread]
    assert solve.sizes == decoupled.sizes == (4, 3)
    assert isinstance(process(built("solve-relaxed", num_orthogonal=3)).posterior, RelaxedOrthogonal)

    def updates(method, **given):
        return updates_of(method, built(method, **given), 10, rate=0.03, gradient="closed-form")

    natural, adam = updates("qsvgp")
    assert isinstance(natural, NaturalGradient)
    assert adam.frozen == ("posterior.*",)
    assert [type(update) for update in updates("tsvgp")] == [SiteStep, Adam]
    assert updates("tsvgp")[0].rate == natural.rate
    assert [type(update) for update in updates("tsvgp", storage="inverse-free")] == [SiteStep, Adam, InverseUpdate]
    assert isinstance(process(built("qsvgp")).posterior, Whitened)
    assert not isinstance(process(built("qsvgp")).posterior, Dual)
