"""Models that hold data as heads of networks: their data come anew in each call, so features are never stale."""

import copy
import pickle

import numpy as np
import pytest
from helpers import assert_close

import agp
from agp import tree
from agp.priors import Gamma

torch = pytest.importorskip("torch", reason="torch is not installed: not executed")
GPModule = agp.interop.torch.GPModule

SOLVE = {"num_inducing": 4, "num_orthogonal": 3}
HEADS = {
    "gpr": agp.GPR.from_data,
    "matern": lambda X, y: agp.GPR.from_data(X, y, kernel=agp.Matern52(), mean_function=agp.LinearMean()),
    "prior": lambda X, y: agp.GPR.from_data(X, y, priors={"kernel.lengthscale": Gamma(2.0, 1.0)}),
    "sgpr": lambda X, y: agp.SGPR.from_data(X, y, num_inducing=6),
    "solvegpr": lambda X, y: agp.SOLVEGPR.from_data(X, y, **SOLVE),
    "tight": lambda X, y: agp.SOLVEGPR.from_data(X, y, tight=True, **SOLVE),
    "second": lambda X, y: agp.SOLVEGPR.from_data(X, y, second="whitened", **SOLVE),
    "nngp": lambda X, y: agp.NNGP.from_data(X, y, neighbours=6),
    "others": lambda X, y: agp.NNGP.from_data(X, y, neighbours=6, among="others"),
    "vif": lambda X, y: agp.VIF.from_data(X, y, neighbours=6, num_inducing=4),
    "cggp": lambda X, y: agp.CGGP.from_data(X, y, rank=4, tolerance=1e-10),
}
"""Models that hold data, built from features and targets."""
BY_HAND = ("gpr", "matern", "prior", "sgpr", "solvegpr", "tight", "second")
"""Those with closed-form gradients of their inputs."""
N = 30


def table(seed=0, rows=N):
    rng = np.random.default_rng(seed)
    X = torch.from_numpy(rng.normal(size=(rows, 3)))
    return X, torch.sin(2.0 * X[:, :1]) + 0.1 * torch.from_numpy(rng.normal(size=(rows, 1)))


class DeepKernel(torch.nn.Module):
    """A network and a model that holds its outputs at the training rows."""

    def __init__(self, X, y, seed=0, build=agp.GPR.from_data, **options):
        super().__init__()
        torch.manual_seed(seed)
        self.network = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).to(X.dtype)
        self.gp = GPModule(build(self.network(X).detach(), y), store_data=False, **options)

    def loss(self, X, y, **options):
        return self.gp.loss(self.network(X), y, **options)

    def forward(self, X, data, **options):
        return self.gp(self.network(X), data=(self.network(data[0]), data[1]), **options)


def moved(module, seed=0):
    """The same module with its parameters off their starting values."""
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for x in module.parameters():
            x += 0.1 * torch.from_numpy(rng.normal(size=tuple(x.shape))).to(x.dtype)
    return module


def joined(prediction):
    return torch.cat([x.detach() for x in prediction], dim=1)


def trained(module, X, y, steps=40, **options):
    optimiser = torch.optim.Adam(module.parameters(), lr=0.02)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = module.loss(X, y, **options)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def slope_along(value, inputs, rng):
    """The derivative of a value along a random direction, by automatic and by finite differences."""
    slopes = torch.autograd.grad(value(), inputs)
    ways = [torch.from_numpy(rng.normal(size=tuple(x.shape))) for x in inputs]
    ends = []
    with torch.no_grad():
        for step in (1e-6, -2e-6):
            for x, way in zip(inputs, ways, strict=True):
                x += step * way
            ends.append(value())
        for x, way in zip(inputs, ways, strict=True):
            x += 1e-6 * way
    found = sum((a * b).sum() for a, b in zip(slopes, ways, strict=True))
    return found.numpy(), ((ends[0] - ends[1]) / 2e-6).numpy()


# -- values and gradients ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HEADS)
def test_loss_and_predictions_are_those_of_a_model_built_from_the_present_features(name):
    X, y = table()
    module = moved(DeepKernel(X, y, build=HEADS[name])).eval()
    F = module.network(X).detach()
    model = tree.constrain(HEADS[name](F, y), {})
    values = tree.leaves(module.gp.model(F, y))
    model = tree.with_leaves(model, {k: x.detach() for k, x in values.items() if k not in ("X", "y", "sets")})
    if "sets" in tree.leaves(model):
        model = model.renew_neighbours()
    log_prior = agp.priors.log_prior(model)[0] if model.priors else 0.0
    assert_close(-module.loss(X, y).detach().numpy(), (model.bound(F, y)[0] + log_prior).numpy(), 1e-9)
    points, _ = table(5)
    expected = model.predict(module.network(points).detach(), observed=True)
    assert_close(joined(module(points, (X, y), observed=True)).numpy(), joined(expected).numpy(), 1e-7)


@pytest.mark.parametrize("name", [name for name in HEADS if name != "cggp"])
@pytest.mark.parametrize("mode", ["closed-form", "autodiff"])
def test_gradients_of_the_loss_reach_the_network(name, mode):
    if mode == "closed-form" and name not in BY_HAND:
        pytest.skip("no closed form")
    X, y = table()
    module = moved(DeepKernel(X, y, build=HEADS[name]))
    found, wanted = slope_along(
        lambda: module.loss(X, y, gradient=mode), [*module.parameters()], np.random.default_rng(1)
    )
    assert_close(found, wanted, 1e-6)


def test_both_modes_give_the_same_gradients():
    X, y = table()
    module = moved(DeepKernel(X, y, build=HEADS["sgpr"]))
    both = [
        torch.autograd.grad(module.loss(X, y, gradient=m), [*module.parameters()]) for m in ("closed-form", "autodiff")
    ]
    for a, b in zip(*both, strict=True):
        assert_close(a.numpy(), b.numpy(), 1e-8)


@pytest.mark.slow
def test_conjugate_gradients_estimate_the_gradient_of_the_network():
    X, y = table()
    exact = DeepKernel(X, y)
    estimated = DeepKernel(X, y, build=lambda X, y: agp.CGGP.from_data(X, y, rank=4, tolerance=1e-10, probes=4000))
    wanted = torch.autograd.grad(exact.loss(X, y), [*exact.network.parameters()])
    found = torch.autograd.grad(estimated.loss(X, y, gradient="autodiff"), [*estimated.network.parameters()])
    scale = max(float(x.abs().max()) for x in wanted)
    for a, b in zip(found, wanted, strict=True):
        assert float((a - b).abs().max()) < 0.1 * scale


@pytest.mark.parametrize("name", ["nngp", "vif", "cggp"])
def test_models_without_closed_form_gradients_of_inputs_name_the_remedy(name):
    X, y = table()
    module = DeepKernel(X, y, build=HEADS[name])
    with pytest.raises(ValueError, match=r"X needs a gradient, .* in closed form; pass gradient='autodiff', detach X"):
        module.loss(X, y).backward()
    module.loss(X, y, gradient="autodiff").backward()
    assert all(x.grad.abs().max() > 0.0 for x in module.network.parameters())


@pytest.mark.parametrize("name", ["gpr", "sgpr", "solvegpr", "nngp"])
def test_predictions_can_be_differentiated_through_the_data(name):
    X, y = table()
    module = moved(DeepKernel(X, y, build=HEADS[name]))
    points = table(5)[0]

    def total():
        mean, variance = module(points, (X, y), observed=True)
        return mean.sin().sum() + variance.sum()

    found, wanted = slope_along(total, [*module.parameters()], np.random.default_rng(1))
    assert_close(found, wanted, 1e-5)


def test_weights_offsets_and_noise_come_with_the_rows():
    X, y = table()
    rng = np.random.default_rng(2)
    known = {"weights": torch.from_numpy(rng.uniform(0.5, 2.0, N)), "noise": torch.from_numpy(rng.uniform(size=(N, 1)))}
    known["offset"] = torch.from_numpy(rng.normal(size=(N, 1)))
    built = agp.GPR.from_data(X, y, **known)
    module = GPModule(built, store_data=False)
    assert_close(-module.loss(X, y, **known).detach().numpy(), built.bound(X, y)[0].numpy(), 1e-12)
    assert not torch.allclose(module.loss(X, y), module.loss(X, y, **known))
    found = module.model(X, y, **known).predict(X[:5] + 0.1)
    assert_close(joined(found).numpy(), joined(built.predict(X[:5] + 0.1)).numpy(), 1e-12)
    assert not set(module.state_dict()) & set(known)


# -- features cannot be out of date -----------------------------------------------------------------------------------


def test_the_module_holds_no_rows():
    X, y = table()
    module = DeepKernel(X, y)
    rows = {key: tuple(x.shape) for key, x in module.gp.state_dict().items() if N in x.shape or 0 in x.shape}
    assert rows == {"X": (0, 2), "y": (0, 1)}
    F = module.network(X).detach()
    stored = {key: x.clone() for key, x in module.state_dict().items()}
    module.gp.model(F, y).predict(F)
    module.loss(X, y)
    assert all(torch.equal(x, stored[key]) for key, x in module.state_dict().items())


@pytest.mark.parametrize("name", ["gpr", "sgpr", "vif"])
def test_predictions_without_data_are_refused(name):
    X, y = table()
    module = DeepKernel(X, y, build=HEADS[name])
    F = module.network(X)
    words = r"this module holds \w+ without its data; pass .* as model\(network\(X\), y\) or, in a prediction, as data="
    for call in (lambda: module.gp(F), lambda: module.gp.model(), lambda: module.gp.model(F)):
        with pytest.raises(ValueError, match=words):
            call()
    assert module.gp.values().keys() >= {"kernel.lengthscale", "likelihood.noise_variance"}


def test_data_are_refused_where_they_are_stored_or_needless():
    X, y = table()
    with pytest.raises(
        ValueError, match="this module stores the data of GPR; omit data=, or build .* store_data=False"
    ):
        GPModule(agp.GPR.from_data(X, y))(X, data=(X, y))
    sparse = agp.SVGP.from_data(X, y, posterior="whitened", num_inducing=5)
    with pytest.raises(ValueError, match="this module holds SVGP, which needs no data; omit data=.$"):
        GPModule(sparse)(X, data=(X, y))
    with pytest.raises(ValueError, match="X depends on parameters, but GPR .*build the module with store_data=False"):
        GPModule(agp.GPR.from_data(X, y)).loss(X.clone().requires_grad_(), y)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda X, y: agp.SVGP.from_data(X, y, num_inducing=5, posterior="whitened"), "SVGP .* it stores no data"),
        (lambda X, y: agp.DeepGP.from_data(X, y, num_inducing=4, posterior="whitened"), "DeepGP .* stores no data"),
        (lambda X, y: agp.CaGP.from_data(X, y, num_actions=4), "CaGP .* an array for each row"),
        (agp.TVGP.from_data, "TVGP .* an array for each row"),
        (lambda X, y: agp.TSVGP.from_data(X, y, num_inducing=5), "TSVGP .* an array for each row"),
    ],
)
def test_models_whose_data_cannot_be_replaced_are_refused(build, words):
    with pytest.raises(ValueError, match=rf"the data of {words}.*; use GPR or SGPR"):
        GPModule(build(*table()), store_data=False, frozen="*")


def test_the_data_are_checked():
    X, y = table()
    module = DeepKernel(X, y)
    F = module.network(X)
    with pytest.raises(ValueError, match="X has 1 column, but the model was built for 2"):
        module.gp.loss(F[:, :1], y)
    with pytest.raises(TypeError, match="float32"):
        module.gp.loss(F.float(), y.float())
    with pytest.raises(ValueError, match="y has 29"):
        module.gp.loss(F, y[1:])
    with pytest.raises(ValueError, match="y has 2 outputs, but the model has 1"):
        module.gp.loss(F, torch.cat([y, y], dim=1))
    with pytest.raises(ValueError, match=r"scale is 2.0"):
        module.gp.loss(F, y, scale=2.0)
    near = DeepKernel(X, y, build=HEADS["nngp"])
    with pytest.raises(ValueError, match=r"scale is 2.0, but X and y are all data of NNGP with store_data=False; omit"):
        near.loss(X[:15], y[:15], scale=2.0)


def test_other_rows_may_be_given():
    X, y = table()
    module = DeepKernel(X, y)
    more, targets = table(4, rows=47)
    module.loss(more, targets).backward()
    assert module(X, (more, targets)).mean.shape == (N, 1)
    assert module(X, (more, targets[:, 0])).mean.shape == (N, 1)


# -- training and state -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpr", "sgpr", "solvegpr", "nngp", "cggp"])
def test_a_head_is_trained_with_its_network_and_restored_to_the_bit(name):
    X, y = table(rows=60)
    mode = "closed-form" if name in BY_HAND else "autodiff"
    module = DeepKernel(X, y, build=HEADS[name])
    losses = trained(module, X, y, gradient=mode)
    assert losses[-1] < losses[0] - 5.0
    points, wanted = table(7)
    found = joined(module(points, (X, y), observed=True))
    assert float((found[:, :1] - wanted).pow(2).mean()) < 0.5 * float(wanted.var())
    other = DeepKernel(*table(3, rows=20), seed=1, build=HEADS[name])  # the number of rows does not matter
    other.load_state_dict(module.state_dict())
    assert torch.equal(joined(other(points, (X, y), observed=True)), found)
    for one in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(joined(one(points, (X, y), observed=True)), found)


@pytest.mark.parametrize("name", ["gpr", "sgpr", "solvegpr"])
def test_heads_change_their_precision(name):
    X, y = table()
    module = moved(DeepKernel(X, y, build=HEADS[name]))
    wanted = joined(module(X, (X, y), observed=True))
    module.to(torch.float32)
    assert {x.dtype for key, x in module.state_dict().items() if "_extra" not in key} == {torch.float32}
    single = X.float(), y.float()
    found = joined(module(single[0], single, observed=True))
    assert found.dtype is torch.float32
    assert_close(found.numpy(), wanted.numpy(), 1e-2)
    losses = trained(module, *single, steps=5)
    assert losses[-1] < losses[0]
    with pytest.raises(TypeError, match="float64"):
        module.gp.loss(module.network(single[0]).double(), y)


@pytest.mark.parametrize("name", ["gpr", "sgpr", "matern"])
def test_lbfgs_with_a_closure_and_schedulers(name):
    X, y = table()
    module = DeepKernel(X, y, build=HEADS[name])
    optimiser = torch.optim.LBFGS(module.parameters(), max_iter=15, line_search_fn="strong_wolfe")
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimiser, 0.9)

    def closure():
        optimiser.zero_grad()
        loss = module.loss(X, y)
        loss.backward()
        return loss

    losses = []
    for _ in range(3):
        losses.append(optimiser.step(closure).item())
        scheduler.step()
    assert losses[-1] < losses[0] - 5.0


@pytest.mark.parametrize(
    "scheduler",
    [
        lambda optimiser: torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.05, total_steps=10),
        lambda optimiser: torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 10),
        lambda optimiser: torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: 0.9**step),
    ],
)
def test_groups_of_rates_and_schedulers(scheduler):
    X, y = table()
    module = DeepKernel(X, y, build=HEADS["sgpr"])
    groups = [{"params": module.network.parameters(), "lr": 0.01}, {"params": module.gp.parameters(), "lr": 0.03}]
    optimiser = torch.optim.AdamW(groups, weight_decay=1e-4)
    schedule = scheduler(optimiser)
    before = module.loss(X, y).item()
    for _ in range(10):
        optimiser.zero_grad()
        module.loss(X, y).backward()
        optimiser.step()
        schedule.step()
    assert module.loss(X, y).item() < before


def test_frozen_leaves_stay():
    X, y = table()
    module = DeepKernel(X, y, frozen="likelihood.*")
    noise = module.gp.model(module.network(X), y).likelihood.noise_variance.clone()
    trained(module, X, y, steps=3)
    assert torch.equal(module.gp.model(module.network(X), y).likelihood.noise_variance, noise)
