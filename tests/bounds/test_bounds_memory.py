"""The blocked bound holds one block: its value and its gradient, in both gradient modes."""

import numpy as np
import pytest
from helpers import peak

from agp import SGPR, SVGP, tree
from agp.bounds import elbo
from agp.posteriors import InverseFree, Relaxed, Whitened

ROWS, COLUMNS, INDUCING = 20_000, 2, 32
WHOLE = ROWS * INDUCING * 8 / 2**20
"""One array of the size of Kuf, in MiB; the unblocked bound holds several."""


def problem():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(ROWS, COLUMNS))
    return X, np.sin(X[:, :1])


def value_and_bar(bound):
    value, pullback = bound
    return value, pullback(1.0)[0]


@pytest.mark.slow
@pytest.mark.parametrize("posterior", [Whitened, Relaxed])
def test_the_closed_form_holds_one_block(posterior):
    X, y = problem()
    model = SVGP.from_data(X, y, posterior=posterior, Z=X[:INDUCING])
    blocked = peak(lambda: value_and_bar(elbo(model, X, y, block_rows=500)))
    assert blocked < 0.5 * WHOLE
    assert peak(lambda: value_and_bar(elbo(model, X, y))) > 4 * WHOLE  # so the limit above means something


@pytest.mark.slow
@pytest.mark.parametrize("posterior", [Whitened, Relaxed])
def test_autodiff_keeps_no_block(posterior):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    X, y = (tree.to_backend(x, "torch") for x in problem())
    model = SVGP.from_data(X, y, posterior=posterior, Z=X[:INDUCING, :])
    raw = {name: x.clone().requires_grad_() for name, x in tree.unconstrain(model).items()}
    kept = []

    def pack(x):
        kept.append(x.numel() * x.element_size() / 2**20)
        return x

    def kept_by(bound):
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            bound(tree.constrain(model, raw))
        return sum(kept)

    assert kept_by(lambda m: elbo(m, X, y, block_rows=500)[0]) < 2 * WHOLE
    assert kept_by(lambda m: elbo(m, X, y)[0]) > 4 * WHOLE


@pytest.mark.slow
@pytest.mark.parametrize("method", [SGPR, Whitened, Relaxed, InverseFree])
def test_predictions_hold_what_the_budget_allows(method):
    X, y = problem()
    few, options = X[:200], {"Z": X[:INDUCING]}
    if method is SGPR:
        model = SGPR.from_data(few, y[:200], **options)
    else:
        model = SVGP.from_data(few, y[:200], posterior=method, **options)
    results = 4 * ROWS * 8 / 2**20  # means and variances, in parts and joined
    for predict in (model.predict, model.predict_mean, lambda X, memory: model.log_density(X, y, memory=memory)):
        assert peak(lambda predict=predict: predict(X, memory=0.5)) < 0.75 + results
    assert peak(lambda: model.predict(X, memory=1000.0)) > 2 * WHOLE  # so the limit above means something
