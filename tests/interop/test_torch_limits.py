"""`GPModule` keeps to the limits of parameters with any torch optimiser, and to fixed entries."""

import copy
import io

import numpy as np
import pytest

import agp
from agp import tree
from agp.priors import Between, Fixed

torch = pytest.importorskip("torch", reason="torch is not installed: not executed")
GPModule = agp.interop.torch.GPModule

RNG = np.random.default_rng(3)
X = torch.from_numpy(RNG.standard_normal((60, 2)))
Y = torch.sin(1.5 * X[:, :1]) + 0.1 * torch.from_numpy(RNG.standard_normal((60, 1)))
LIMITS = {
    "kernel.lengthscale[0]": Between(0.5, 1.0),
    "kernel.variance": Between(None, 0.2),
    "likelihood.noise_variance": Between(0.05),
    "mean_function.value": Between(0.3, 0.6),
    "kernel.lengthscale[1]": Fixed(),
}
"""The optimum without limits has a smaller noise variance, a larger variance, and a mean near zero."""


def gpr(priors=None, dtype=torch.float64):
    kernel = agp.RBF(lengthscale=[0.7, 1.5])
    return agp.GPR.from_data(X.to(dtype), Y.to(dtype), kernel=kernel, priors=LIMITS if priors is None else priors)


def svgp(priors=None, dtype=torch.float64, **options):
    kernel, settings = agp.RBF(lengthscale=[0.7, 1.5]), {"posterior": "whitened", "num_inducing": 8}
    priors = LIMITS if priors is None else priors
    return agp.SVGP.from_data(X.to(dtype), Y.to(dtype), kernel=kernel, priors=priors, **settings, **options)


def values(model):
    names = ("lengthscale", "kernel.variance", "noise_variance", "mean_function.value")
    return {name.split("process.")[-1]: x.detach() for name, x in tree.leaves(model).items() if name.endswith(names)}


def assert_within(model):
    found = values(model)
    lengthscale = found["kernel.lengthscale"]
    rounding = float(torch.finfo(lengthscale.dtype).eps)
    assert 0.5 <= lengthscale[0] <= 1.0
    assert lengthscale[1] == 1.5
    assert found["kernel.variance"] <= 0.2 * (1.0 + rounding)
    assert found["likelihood.noise_variance"] >= 0.05 * (1.0 - rounding)
    assert 0.3 * (1.0 - rounding) <= found["mean_function.value"] <= 0.6 * (1.0 + rounding)


OPTIMISERS = {
    "adam": (lambda module: torch.optim.Adam(module.parameters(), lr=0.1), 250),
    "adamw": (lambda module: torch.optim.AdamW(module.parameters(), lr=0.1, weight_decay=1e-3), 250),
    "sgd": (lambda module: torch.optim.SGD(module.parameters(), lr=0.02, momentum=0.9), 400),
    "lbfgs": (
        lambda module: torch.optim.LBFGS(module.parameters(), max_iter=25, line_search_fn="strong_wolfe"),
        8,
    ),
}


def trained(module, name, dtype=torch.float64, after=None):
    build, steps = OPTIMISERS[name]
    optimiser = build(module)

    def closure():
        optimiser.zero_grad()
        loss = module.loss(X.to(dtype), Y.to(dtype))
        loss.backward()
        assert all(torch.isfinite(x.grad).all() for x in module.parameters())
        return loss

    for _ in range(steps):
        optimiser.step(closure)
        if after is not None:
            after()
    return module.model()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    "name", [one if one in ("adam", "lbfgs") else pytest.param(one, marks=pytest.mark.long) for one in OPTIMISERS]
)
def test_optimisers_reach_the_limits_and_never_leave_them(name, dtype):
    module = GPModule(gpr(dtype=dtype))
    found = trained(module, name, dtype, lambda: assert_within(module.model()))
    fitted = agp.fit(gpr(), X, Y).model
    for leaf, x in values(fitted).items():
        assert torch.allclose(values(found)[leaf].double(), x, rtol=1e-2, atol=1e-2 * 0.2), leaf
    assert float(fitted.bound(X, Y)[0] + module.loss(X.to(dtype), Y.to(dtype)).detach()) < 0.3


def test_far_from_limits_the_coordinates_are_those_without_limits():
    wide = {"kernel.lengthscale": Between(1e-9, 1e9), "mean_function.value": Between(-1e9, 1e9)}
    for build in (gpr, svgp):
        with_limits, without = GPModule(build(wide)), GPModule(build({}))
        named = dict(without.named_parameters())
        assert all(torch.allclose(x, named[name], rtol=1e-6) for name, x in with_limits.named_parameters())


@pytest.mark.parametrize("build", [gpr, svgp])
def test_a_module_starts_at_the_model(build):
    model = build({**LIMITS, "kernel.lengthscale[0]": Between(0.5, 1.5)})
    start = {name: x for name, x in values(model).items() if name == "kernel.lengthscale"}
    found = values(GPModule(model).model())
    assert all(torch.allclose(found[name], x, rtol=1e-12) for name, x in start.items())


@pytest.mark.parametrize("limits", [Between(2.0), Between(None, 0.1), Between(0.7, 5.0), Between(0.1, 0.7)])
@pytest.mark.filterwarnings("ignore:.* is given as .* limits it to:UserWarning")
def test_a_start_at_a_limit_is_moved_inside_by_one_percent(limits):
    model = gpr({"kernel.lengthscale": limits})
    before, after = (values(x)["kernel.lengthscale"] for x in (model, GPModule(model).model()))
    low, high = limits.low or 0.0, limits.high or np.inf
    assert bool(((before == low) | (before == high) | ((before > low) & (before < high))).all())
    assert bool(((after > low) & (after < high)).all())
    assert bool(((after - before).abs() <= 0.0101 * before).all())


def test_narrow_intervals_keep_their_values():
    model = gpr({"kernel.lengthscale[0]": Between(0.7 - 1e-7, 0.7 + 1e-7)})
    module = GPModule(model)
    assert abs(float(trained(module, "adam").kernel.lengthscale[0].detach()) - 0.7) <= 1.01e-7


@pytest.mark.parametrize("build", [gpr, svgp])
def test_fixed_entries_are_constant_and_the_others_move(build):
    for module in (
        GPModule(build({"kernel.lengthscale[1]": Fixed()})),
        GPModule(build({}), frozen="kernel.lengthscale[1]"),
    ):
        before = values(module.model())["kernel.lengthscale"]
        after = values(trained(module, "adamw"))["kernel.lengthscale"]
        assert before[1] == after[1] == 1.5
        assert before[0] != after[0]


@pytest.mark.parametrize("build", [gpr, svgp])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_state_is_restored_to_the_bit(build, dtype):
    module = GPModule(build(dtype=dtype))
    optimiser = torch.optim.Adam(module.parameters(), lr=0.1)
    for _ in range(5):
        module.loss(X.to(dtype), Y.to(dtype)).backward()
        optimiser.step()
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other = GPModule(build(dtype=dtype))
    other.load_state_dict(torch.load(file, weights_only=True))
    for one in (other, copy.deepcopy(module)):
        assert torch.equal(one.loss(X.to(dtype), Y.to(dtype)), module.loss(X.to(dtype), Y.to(dtype)))
        leaves = tree.leaves(module.model())
        assert all(torch.equal(x, leaves[name]) for name, x in tree.leaves(one.model()).items())
    assert all(x.dtype is torch.float32 for x in [*other.to(torch.float32).parameters(), *other.buffers()])


@pytest.mark.parametrize(
    ("there", "here", "words"),
    [
        (lambda: GPModule(gpr()), lambda: GPModule(gpr({})), r"priors is .*Between\(low=0.5, high=1.0\)"),
        (
            lambda: GPModule(gpr({"kernel.variance": Between(0.1)})),
            lambda: GPModule(gpr({"kernel.variance": Between(0.2)})),
            r"priors is .*Between\(low=0.1.* in the state, but .*Between\(low=0.2",
        ),
        (
            lambda: GPModule(gpr({}), frozen="kernel.lengthscale[0]"),
            lambda: GPModule(gpr({}), frozen="kernel.lengthscale[1]"),
            r"the limits of kernel.lengthscale is \['fixed', 'between 0 and inf'\] in the state, but \['between 0",
        ),
    ],
)
def test_a_state_of_other_limits_is_refused(there, here, words):
    with pytest.raises(ValueError, match=words):
        here().load_state_dict(there().state_dict())


@pytest.mark.parametrize("build", [gpr, svgp])
def test_gradients_are_those_of_finite_differences(build):
    module = GPModule(build())
    slopes = torch.autograd.grad(module.loss(X, Y), [*module.parameters()])
    for x, slope in zip(module.parameters(), slopes, strict=True):
        step = torch.from_numpy(np.random.default_rng(0).normal(size=tuple(x.shape)))
        with torch.no_grad():
            ends = [float(module.loss(X, Y)) for move in (1e-5, -2e-5, 1e-5) if x.add_(move * step) is x]
        assert (slope * step).sum().item() == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-4, abs=1e-4)


def test_functional_calls_and_vmap():
    module = GPModule(gpr())
    parameters = {name: x.detach() for name, x in module.named_parameters()}

    def losses(shift):
        moved = {name: x + shift for name, x in parameters.items()}
        return torch.func.functional_call(Loss(module), {f"gp.{name}": x for name, x in moved.items()}, (X, Y))

    shifts = torch.tensor([0.0, 0.3], dtype=X.dtype)
    found = torch.func.vmap(losses)(shifts)
    assert torch.allclose(found, torch.stack([losses(shift) for shift in shifts]), rtol=1e-8)
    assert torch.isfinite(torch.func.grad(losses)(shifts[0]))


class Loss(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.gp = module

    def forward(self, X, y):
        return self.gp.loss(X, y)


def test_limits_of_leaves_that_are_not_trained_have_no_buffers():
    module = GPModule(gpr(), frozen="*")
    assert not list(module.parameters())
    assert not [name for name, _ in module.named_buffers() if "low_" in name or "high_" in name]
    assert torch.equal(module.model().kernel.variance, gpr().kernel.variance)
