"""Bounds inside torch modules and JAX programs: their gradients are the hand-derived ones, and nothing is recorded."""

import gc
import weakref

import numpy as np
import pytest
from helpers import JAX, TORCH, assert_close, inducing_inputs, problem, toy_data, with_leaves

import agp
from agp import tree
from agp.errors import BackendError

torch = pytest.importorskip("torch", reason="torch is not installed: not executed")

AGREES = 1e-10
STALE = pytest.mark.filterwarnings("ignore:optimisers other than agp's do not update:agp.errors.UntouchedWarning")


def _models():
    X, y = toy_data(24)
    labels, probit = (y > 0.0) * 1.0, agp.Bernoulli()
    return {
        "whitened": (*problem("sum-ard", "whitened", outputs=2),),
        "relaxed": (*problem("rbf", "relaxed", "bernoulli"),),
        "likelihood": (*problem("matern32", "likelihood"),),
        "sgpr": (agp.SGPR.from_data(X, y, num_inducing=6), X, y),
        "gpr": (agp.GPR.from_data(X, y), X, y),
        "solve": (agp.SOLVEGP.from_data(X, y, num_inducing=5, num_orthogonal=4), X, y),
        "dual": (
            agp.SVGP.from_data(X, labels, posterior=agp.posteriors.Dual, likelihood=probit, num_inducing=5),
            X,
            labels,
        ),
        "inverse-free": (*problem("rbf", "inverse-free"),),  # its gradient is not the slope of its forward
    }


def _expected(model, X, y):
    value, pullback = model.bound(X, y, scale=1.0)
    model_bar, X_bar = pullback(1.0)
    return value, tree.pull_raw(model, model_bar), X_bar


class Module(torch.nn.Module):
    """What a user writes: the raw leaves as parameters, the bound as the loss."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.names = list(tree.unconstrain(model))
        self.raw = torch.nn.ParameterList([torch.nn.Parameter(x) for x in tree.unconstrain(model).values()])

    def forward(self, X, y, memory=256.0):
        model = tree.constrain(self.model, dict(zip(self.names, self.raw, strict=True)))
        return -model.bound(X, y, memory=memory)[0]


@STALE
@pytest.mark.parametrize("case", _models())
def test_a_torch_module_gets_the_closed_form(case):
    host, X, y = _models()[case]
    expected, gradient, X_bar = _expected(host, X, y)
    module, inputs = Module(TORCH.move(host)), TORCH.array(X).requires_grad_(X_bar is not None)
    seen = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append(x) or x, lambda x: x):
        loss = module(inputs, TORCH.array(y))
    assert sum(x.numel() for x in seen) <= 6 * sum(x.numel() for x in tree.leaves(module.model).values()) + 2 * X.size
    assert_close(-TORCH.numpy(loss.detach()), expected, 1e-12)
    loss.backward()
    for name, parameter in zip(module.names, module.raw, strict=True):
        scale = max(np.abs(gradient[name]).max(), 1e-3)
        assert np.abs(-TORCH.numpy(parameter.grad) - gradient[name]).max() <= AGREES * scale, name
    if X_bar is not None:
        assert_close(-TORCH.numpy(inputs.grad), X_bar, AGREES)


@pytest.mark.long
def test_a_module_is_trained_by_a_torch_optimiser_as_by_agp():
    X, y = toy_data(40)
    host = agp.SVGP.from_data(X, y, posterior=agp.posteriors.Whitened, num_inducing=6)
    expected = agp.train(TORCH.move(host), TORCH.array(X), TORCH.array(y), updates=[agp.updates.Adam(0.05)], steps=20)
    module = Module(TORCH.move(host))
    optimiser = torch.optim.Adam(module.parameters(), lr=0.05)
    losses = []
    for _ in range(20):
        optimiser.zero_grad()
        losses.append(module(TORCH.array(X), TORCH.array(y)))
        losses[-1].backward()
        optimiser.step()
    np.testing.assert_allclose(-losses[-1].item(), expected.trace["bound"][-1], rtol=1e-7)


def test_inputs_made_by_a_network_get_their_gradient():
    host, X, y = problem(posterior="whitened")
    model, weights = TORCH.move(host), TORCH.array(np.eye(3)).requires_grad_()
    model.bound(TORCH.array(X) @ weights, TORCH.array(y))[0].backward()
    assert_close(TORCH.numpy(weights.grad), X.T @ _expected(host, X, y)[2], AGREES)


@pytest.mark.slow
def test_rows_in_blocks_give_the_same_gradient_and_refuse_that_of_the_inputs():
    X, y = toy_data(400)
    host = agp.SVGP.from_data(X, y, posterior=agp.posteriors.Whitened, num_inducing=6)
    gradient = _expected(host, X, y)[1]
    module = Module(TORCH.move(host))
    module(TORCH.array(X), TORCH.array(y), memory=0.02).backward()
    for name, parameter in zip(module.names, module.raw, strict=True):
        scale = max(np.abs(gradient[name]).max(), 1.0)
        assert np.abs(TORCH.numpy(parameter.grad) + gradient[name]).max() <= AGREES * scale, name
    loss = module(TORCH.array(X).requires_grad_(), TORCH.array(y), memory=0.02)
    with pytest.raises(ValueError, match=r"X needs a gradient, .*increase memory"):
        loss.backward()


def test_targets_have_no_gradient_and_say_so():
    host, X, y = problem()
    value = TORCH.move(host).bound(TORCH.array(X), TORCH.array(y).requires_grad_())[0]
    with pytest.raises(ValueError, match="y needs a gradient, but bounds treat targets as constants"):
        value.backward()


@pytest.mark.parametrize("second", ["grad", "backward", "hessian"])
def test_second_derivatives_are_refused_on_torch(second):
    host, X, y = problem(posterior="whitened")
    module = Module(TORCH.move(host))
    loss = module(TORCH.array(X), TORCH.array(y))
    slopes = torch.autograd.grad(loss, list(module.raw), create_graph=True)
    penalty = sum((slope**2).sum() for slope in slopes)
    Z = inducing_inputs(module.model)

    def at(Z):
        return with_leaves(module.model, {"Z": Z}).bound(TORCH.array(X), TORCH.array(y))[0]

    ask = {
        "grad": lambda: torch.autograd.grad(penalty, module.raw[0]),
        "backward": lambda: penalty.backward(),
        "hessian": lambda: torch.autograd.functional.hessian(at, Z),
    }[second]
    with pytest.raises(BackendError, match="no second derivatives; leave out create_graph=True"):
        ask()


@pytest.mark.slow
def test_the_recorded_forward_has_second_derivatives():
    host, X, y = problem(posterior="whitened")
    model, inputs = TORCH.move(host), (TORCH.array(X), TORCH.array(y))
    Z = inducing_inputs(model)

    def bound(Z, gradient):
        return with_leaves(model, {"Z": Z}).bound(*inputs, gradient=gradient)[0]

    def slope(Z):
        return torch.autograd.functional.jacobian(lambda Z: bound(Z, "closed-form"), Z)

    assert float(bound(Z, "autodiff")) == float(bound(Z, "closed-form"))
    hessian = torch.autograd.functional.hessian(lambda Z: bound(Z, "autodiff"), Z)
    step, direction = 1e-5, torch.linspace(-1.0, 1.0, Z.numel(), dtype=Z.dtype).reshape(Z.shape)
    difference = (slope(Z + step * direction) - slope(Z - step * direction)) / (2.0 * step)
    along = torch.einsum("ijkl,kl->ij", hessian, direction)
    assert_close(TORCH.numpy(along), TORCH.numpy(difference), 1e-6)


def test_the_recorded_forward_needs_a_library_that_differentiates():
    host, X, y = problem(posterior="whitened")
    with pytest.raises(BackendError, match="'numpy' has no automatic differentiation; use gradient='closed-form'"):
        host.bound(X, y, gradient="autodiff")
    with pytest.raises(ValueError, match="gradient is 'forward', but must be"):
        host.bound(X, y, gradient="forward")


def test_without_leaves_that_ask_nothing_changes(monkeypatch):
    host, X, y = problem()
    model, X, y = TORCH.move(host), TORCH.array(X), TORCH.array(y)
    monkeypatch.setattr(type(agp.get_backend("torch")), "with_pullback", None)
    assert not model.bound(X, y)[0].requires_grad
    leaf = {"Z": inducing_inputs(model).clone().requires_grad_()}
    with torch.no_grad():
        assert not with_leaves(model, leaf).bound(X, y)[0].requires_grad
    agp.value_and_gradient(model, X, y, gradient="autodiff")


@STALE
def test_the_pullback_is_there_as_well():
    host, X, y = problem()
    module = Module(TORCH.move(host))
    model = tree.constrain(module.model, dict(zip(module.names, module.raw, strict=True)))
    value, pullback = model.bound(TORCH.array(X), TORCH.array(y))
    assert value.requires_grad
    bar, X_bar = pullback(2.0)
    assert_close(X_bar.detach().numpy(), 2.0 * _expected(host, X, y)[2], AGREES)
    assert inducing_inputs(bar).shape == inducing_inputs(host).shape


@STALE
def test_what_the_pullback_keeps_is_freed_with_the_value():
    host, X, y = problem()
    module = Module(TORCH.move(host))
    gc.collect()
    gc.disable()
    try:
        loss = module(TORCH.array(X), TORCH.array(y))
        node = weakref.ref(loss.grad_fn.next_functions[0][0])
        del loss
        assert node() is None
    finally:
        gc.enable()


# -- JAX --------------------------------------------------------------------------------------------------------------

PROGRAMS = ("jit-of-grad", "grad-of-jit", "grad", "checkpoint", "scan")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_jax_program_gets_the_closed_form(program):
    jax = pytest.importorskip("jax", reason="jax is not installed: not executed")
    host, X, y = problem("rbf", "inverse-free")  # its gradient is not the slope of its forward
    expected, gradient, X_bar = _expected(host, X, y)
    model, y_here = JAX.move(host), JAX.array(y)

    def bound(raw, X):
        return tree.constrain(model, raw).bound(X, y_here)[0]

    def scanned(raw, X):
        return jax.lax.scan(lambda total, _: (total + bound(raw, X), None), 0.0, None, length=3)[0] / 3.0

    both = (0, 1)
    run = {
        "jit-of-grad": jax.jit(jax.value_and_grad(bound, both)),
        "grad-of-jit": jax.value_and_grad(jax.jit(bound), both),
        "grad": jax.value_and_grad(bound, both),
        "checkpoint": jax.jit(jax.value_and_grad(jax.checkpoint(bound), both)),
        "scan": jax.jit(jax.value_and_grad(scanned, both)),
    }[program]
    value, (raw_bar, X_found) = run(tree.unconstrain(model), JAX.array(X))
    assert float(value) == pytest.approx(float(expected), rel=1e-12)
    for name, found in raw_bar.items():
        assert_close(np.asarray(found), gradient[name], AGREES, name)
    assert_close(np.asarray(X_found), X_bar, AGREES)


def test_jax_refuses_what_the_bound_does_not_give_while_it_traces():
    jax = pytest.importorskip("jax", reason="jax is not installed: not executed")
    host, X, y = problem()
    model = JAX.move(host)
    with pytest.raises(ValueError, match="y needs a gradient"):
        jax.jit(jax.grad(lambda y: model.bound(JAX.array(X), y)[0]))(JAX.array(y))


def test_other_libraries_give_the_value(backend):
    B = agp.get_backend(backend.name)
    x = backend.array([1.0, 2.0])
    value = B.with_pullback(lambda arrays: (B.xp.sum(arrays["x"]), None), {"x": x})
    assert backend.numpy(value) == 3.0
    assert not B.asks_gradient(x)


def test_a_pullback_that_holds_the_value_is_freed_with_it(torch_place):
    def f(arrays):
        value = torch.sum(arrays["x"] ** 2)
        return value, lambda bar, names: {name: 2.0 * bar * arrays[name] + 0.0 * value for name in names}

    x = torch_place.array([1.0, 2.0]).requires_grad_()
    gc.collect()
    gc.disable()
    try:
        value = agp.get_backend("torch").with_pullback(f, {"x": x})
        (slope,) = torch.autograd.grad(value, [x])
        np.testing.assert_array_equal(slope.numpy(), [2.0, 4.0])
        node = weakref.ref(value.grad_fn)
        del value
        assert node() is None
    finally:
        gc.enable()


# -- loops without agp's updates --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (agp.SVGP.from_data, "process.posterior.inverse_factor"),
        (lambda X, y, **k: agp.SVGP.from_data(X, y, posterior="inverse-free", **k), "process.posterior.inverse_factor"),
        (lambda X, y, **k: agp.SVGP.from_data(X, y, posterior="dual", **k), "posterior.shift, .*posterior.precision"),
        (agp.TSVGP.from_data, "site_shift, site_precision"),
    ],
)
def test_a_loop_that_leaves_arrays_stale_is_told_so(build, words):
    X, y = (torch.from_numpy(x) for x in toy_data(24))
    model = build(X, y, num_inducing=5)
    raw = {name: x.clone().requires_grad_() for name, x in tree.unconstrain(model).items()}
    with pytest.warns(agp.errors.UntouchedWarning, match=f"do not update .*{words}.*use a model without such arrays"):
        tree.constrain(model, raw).bound(X, y)
    tree.constrain(model, {name: x.detach() for name, x in raw.items()}).bound(X, y)
    model.bound(X.clone().requires_grad_(), y)
    q = {name: x for name, x in raw.items() if ".posterior." in name}
    tree.constrain(model, {name: x.detach() for name, x in raw.items()} | q).bound(X, y)


@pytest.mark.parametrize("posterior", ["whitened", "marginal"])
def test_a_loop_without_such_arrays_is_not(posterior):
    X, y = (torch.from_numpy(x) for x in toy_data(24))
    model = agp.SVGP.from_data(X, y, num_inducing=5, posterior=posterior)
    raw = {name: x.clone().requires_grad_() for name, x in tree.unconstrain(model).items()}
    tree.constrain(model, raw).bound(X, y)[0].backward()
    assert all(x.grad is not None for x in raw.values())
