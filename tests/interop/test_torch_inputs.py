"""What `GPModule` does with inputs and targets: invalid labels, other dtypes, and autocast."""

import copy

import numpy as np
import pytest
from helpers import assert_close

import agp

torch = pytest.importorskip("torch", reason="torch is not installed: not executed")
GPModule = agp.interop.torch.GPModule

N = 12
SETTINGS = {"posterior": "whitened", "num_inducing": 4, "jitter": 1e-4}


def features(rows=N, dtype=torch.float64):
    return torch.from_numpy(np.random.default_rng(0).normal(size=(rows, 2))).to(dtype)


def head(y, likelihood=None, dtype=torch.float64):
    y = y.to(dtype)
    return GPModule(agp.SVGP.from_data(features(len(y), dtype), y, likelihood=likelihood, **SETTINGS))


# -- targets outside the support --------------------------------------------------------------------------------------

LABELS = {
    "softmax": (agp.Softmax(3), 3, [3.0, 0.5, -1.0], "labels must be"),
    "robust-max": (agp.RobustMax(3), 3, [3.0, 0.5, -1.0], "labels must be"),
    "ordinal": (agp.Ordinal(3), 3, [3.0, 0.5, -1.0], "labels must be"),
    "bernoulli": (agp.Bernoulli(), 2, [-1.0, 1.5, 3.0], "labels must be 0 or 1 for the Bernoulli likelihood; found"),
    "poisson": (agp.Poisson(), 4, [-1.0, 0.5], "counts must be whole numbers of at least 0 for the Poisson"),
    "negative-binomial": (agp.NegativeBinomial(), 4, [-1.0, 0.5], "counts must be whole numbers of at least 0"),
}


@pytest.mark.parametrize("name", LABELS)
def test_losses_refuse_targets_outside_the_support(name):
    likelihood, count, invalid, words = LABELS[name]
    y = torch.arange(float(N)).remainder(count).double()
    module, X = head(y, likelihood), features().requires_grad_()
    assert torch.isfinite(module.loss(X, y))
    for bad in invalid:
        y_bad = y.clone()
        y_bad[2] = bad
        with pytest.raises(ValueError, match=words):
            module.loss(X, y_bad)
        with pytest.raises(ValueError, match=words):
            module.loss(X[:4], y_bad[:4], scale=N / 4, gradient="autodiff")
    y[2] = torch.nan
    with pytest.raises(ValueError, match="y has 1 NaN or infinite entries, the first in row 2"):
        module.loss(X, y)


def test_losses_of_exact_heads_refuse_nan():
    X, y = features(), features()[:, 0].sin()
    module = GPModule(agp.GPR.from_data(X, y), store_data=False)
    y[1] = torch.nan
    with pytest.raises(ValueError, match="y has 1 NaN or infinite entries, the first in row 1"):
        module.loss(X, y)


def test_missing_targets_remain_possible():
    y = features().clone()
    module = head(y, agp.Gaussian(missing=True))
    y[1, 0] = torch.nan
    assert torch.isfinite(module.loss(features(), y))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_mapped_losses_are_nan_for_invalid_labels():
    y = torch.arange(float(N)).remainder(3).double()
    module = head(y, agp.Softmax(3)).eval()
    each = torch.stack([y, y + 1.0])
    values = torch.func.vmap(lambda y: module.loss(features(), y))(each)
    assert_close(values[0].detach().numpy(), module.loss(features(), y).detach().numpy(), 1e-10)
    assert torch.isnan(values[1])
