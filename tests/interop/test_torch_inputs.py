"""What `GPModule` does with inputs and targets: invalid labels, other dtypes, and autocast."""

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
    return moved(GPModule(agp.SVGP.from_data(features(len(y), dtype), y, likelihood=likelihood, **SETTINGS)))


def moved(module):
    """The module with another mean of q(u), because the mean of the prior has no gradient."""
    with torch.no_grad():
        for name, x in module.named_parameters():
            x += 0.1 * name.endswith("raw_mean")
    return module


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


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_losses_refuse_features_that_are_not_finite(value):
    X, y = torch.linspace(0.0, 6.0, 20, dtype=torch.float64)[:, None], torch.zeros(20, 1, dtype=torch.float64)
    for model in (agp.SVGP.from_data(X, y, posterior="whitened", num_inducing=5), agp.GPR.from_data(X, y + X)):
        head = GPModule(model) if isinstance(model, agp.SVGP) else GPModule(model, store_data=False)
        broken = X.clone()
        broken[3, 0] = value
        with pytest.raises(ValueError, match="X has 1 NaN or infinite entries, the first in row 3; check"):
            head.loss(broken, y)


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


@pytest.mark.parametrize("convert", [lambda x: x.half(), lambda x: x.bfloat16(), lambda x: x.to(torch.float16)])
def test_modules_in_half_precision_are_refused(convert):
    module = torch.nn.Sequential(torch.nn.Linear(1, 1), head(features()[:, 0].sin()))
    with pytest.raises(TypeError, match="GPModule computes in float32 or float64, not torch"):
        convert(module)


# -- other dtypes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("of_head", [torch.float32, torch.float64])
def test_the_advice_for_other_dtypes_keeps_the_gradient(dtype, of_head):
    y = features(dtype=of_head)[:, 0].sin()
    module, exact = head(y, dtype=of_head), GPModule(agp.GPR.from_data(features(dtype=of_head), y), store_data=False)
    X, advice = features().to(dtype), f"pass X.to({of_head})."
    calls = {
        "loss": lambda X: module.loss(X, y),
        "predict": lambda X: module(X).mean.sum(),
        "exact": lambda X: exact.loss(X, y),
        "data": lambda X: exact(features(dtype=of_head), data=(X, y)).mean.sum(),
        "exact-predict": lambda X: exact(X, data=(features(dtype=of_head), y)).mean.sum(),
    }
    for call in calls.values():
        with pytest.raises(TypeError) as found:
            call(X)
        assert str(found.value) == f"X has dtype {dtype}, but must be float64 or float32; {advice}"
        if dtype.is_floating_point:
            leaf = X.clone().requires_grad_()
            call(leaf.to(of_head)).backward()
            assert leaf.grad.abs().max() > 0.0
    if dtype.is_floating_point:
        with pytest.raises(TypeError, match=rf"y has dtype {dtype}, but must be .*; pass y\.to\({of_head}\)"):
            module.loss(features(dtype=of_head), y.to(dtype))


@pytest.mark.parametrize("likelihood", [agp.Softmax(3), agp.RobustMax(3), agp.Poisson()])
def test_integer_targets_are_numbers(likelihood):
    y = torch.arange(N).remainder(3)
    module = head(y.double(), likelihood).eval()
    X = features()
    assert torch.equal(module.loss(X, y), module.loss(X, y.double()))
    assert torch.equal(module.log_density(X, y), module.log_density(X, y.double()))
    assert torch.equal(module.loss(X, y.to(torch.int8)), module.loss(X, y.double()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_converted_by_to_backend(dtype):
    x = torch.tensor([1.0, 2.5, -3.0], dtype=dtype)
    for name in ("torch", "numpy"):
        assert agp.to_backend(x, name, dtype="float64").tolist() == [1.0, 2.5, -3.0]
        assert agp.to_backend(x, name).tolist() == [1.0, 2.5, -3.0]


def test_half_precision_of_jax_is_converted_by_to_backend():
    jax = pytest.importorskip("jax")
    x = jax.numpy.asarray([1.0, 2.5, -3.0], dtype=jax.numpy.bfloat16)
    for name in ("torch", "numpy", "jax"):
        assert agp.to_backend(x, name, dtype="float32").tolist() == [1.0, 2.5, -3.0]
        assert agp.to_backend(x, name).tolist() == [1.0, 2.5, -3.0]
    with pytest.raises(TypeError, match=r'X has dtype bfloat16, .*; pass X\.astype\("float\d\d"\)'):
        agp.GPR.from_data(x[:, None], x)


# -- autocast ---------------------------------------------------------------------------------------------------------


class Network(torch.nn.Module):
    """A network [N, 2] -> [N, 2], and a sparse or exact process of its outputs, in float32."""

    def __init__(self, y, *, exact):
        super().__init__()
        torch.manual_seed(0)
        self.network = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        F, self.exact = self.network(features(len(y), torch.float32)).detach(), exact
        model = agp.GPR.from_data(F, y) if exact else agp.SVGP.from_data(F, y, **SETTINGS)
        self.gp = moved(GPModule(model, store_data=not exact))

    def values(self, F, y):
        data = {"data": (F, y)} if self.exact else {}
        rows = (F, y) if self.exact else ()
        return [self.gp.loss(F, y), *self.gp(F, **data), *self.gp.model(*rows).predict(F, observed=True)]


@pytest.mark.parametrize("exact", [True, False])
def test_autocast_does_not_change_the_head(exact):
    y = features(40, torch.float32)[:, 0].sin()
    module = Network(y, exact=exact)
    F = module.network(features(40, torch.float32)).detach().requires_grad_()
    wanted = module.values(F, y)
    slopes = torch.autograd.grad(wanted[0], [F, *module.gp.parameters()])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = module.values(F, y)
        inside = torch.autograd.grad(found[0], [F, *module.gp.parameters()])
        autodiff = module.gp.loss(F, y, gradient="autodiff")
        bound = -module.gp.model(*((F, y) if exact else ())).bound(F, y)[0]
    for a, b in zip((*found, *inside, bound), (*wanted, *slopes, wanted[0]), strict=True):
        assert a.dtype is torch.float32
        assert torch.equal(a, b)
    assert_close(autodiff.detach().numpy(), wanted[0].detach().numpy(), 1e-5)


@pytest.mark.parametrize("exact", [True, False])
def test_a_network_under_autocast_is_trained(exact):
    y = features(40, torch.float32)[:, 0].sin()
    module, X = Network(y, exact=exact), features(40, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        F = module.network(X)
        assert F.dtype is torch.bfloat16
        loss, mean = module.gp.loss(F, y), module.gp(F, data=(F, y) if exact else None).mean
    assert loss.dtype is mean.dtype is torch.float32
    assert torch.equal(loss, module.gp.loss(F.float(), y))
    loss.backward()
    assert all(x.grad is not None and x.grad.abs().max() > 0.0 for x in module.network.parameters())
    with pytest.raises(TypeError, match=r"pass X.to\(torch.float32\)"):
        module.gp.loss(F, y)  # outside of autocast
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(TypeError, match="X has dtype torch.float64"):
        module.gp.loss(F.double(), y)
