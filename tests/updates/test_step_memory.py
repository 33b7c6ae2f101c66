"""`memory=` binds in steps of q(u) and in what predictions do before they see their inputs."""

import numpy as np
import pytest
from helpers import peak

import agp
from agp.updates import NaturalGradient, SiteStep

N, M = 8000, 50
BUDGET = 1.0
"""MiB; one array [M, N] takes 3."""
MORE = 3.0
"""What the data, arrays [M, M] and arrays [N, P] may add."""


def problem():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3.0, 3.0, (N, 2))
    return X, np.sin(2.0 * X[:, :1]) + 0.1 * rng.standard_normal((N, 1))


MODELS = {
    "natural": (lambda X, y, Z: agp.SVGP.from_data(X, y, posterior="whitened", Z=Z), NaturalGradient),
    "tied": (lambda X, y, Z: agp.SVGP.from_data(X, y, posterior="dual", Z=Z), SiteStep),
    "datum": (lambda X, y, Z: agp.TSVGP.from_data(X, y, Z=Z), SiteStep),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_steps_keep_to_the_budget(kind):
    X, y = problem()
    make, kind_of_step = MODELS[kind]
    model = make(X, y, X[:M].copy())
    batch = model._batch(X, y)
    used, moved = {}, {}
    for memory in (BUDGET, 256.0):
        step = kind_of_step(0.5, memory=memory)
        state = step.init(model)
        used[memory] = peak(lambda step=step, state=state: step(model, batch, state))
        moved[memory] = step(model, batch, state)[0].predict(X[:5])
    assert used[BUDGET] < BUDGET + MORE < used[256.0]
    for found, desired in zip(moved[BUDGET], moved[256.0], strict=True):
        np.testing.assert_allclose(found, desired, rtol=1e-9)


@pytest.mark.slow
def test_conditioning_keeps_to_the_budget():
    X, y = problem()
    model = agp.SGPR.from_data(X, y, Z=X[:M].copy())
    used = {memory: peak(lambda memory=memory: model.predict(X[:5], memory=memory)) for memory in (BUDGET, 256.0)}
    assert used[BUDGET] < BUDGET + MORE < used[256.0]
