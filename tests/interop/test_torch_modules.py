"""Models inside torch modules: the state is the whole model, stale arrays are refused, gradients are agp's."""

import copy
import io
import pickle

import numpy as np
import pytest
from helpers import assert_close

import agp
from agp import tree
from agp.actions import ConjugateGradients
from agp.inducing import Patches
from agp.posteriors import LikelihoodForm, Marginal, RelaxedOrthogonal, RelaxedUnion, Whitened
from agp.priors import Between, Fixed, Gamma, Normal

torch = pytest.importorskip("torch", reason="torch is not installed: not executed")
GPModule = agp.interop.torch.GPModule

N = 24
SOLVE = {"num_inducing": 4, "num_orthogonal": 3}


def data(seed=0, rows=N):
    """Two columns and two targets; the scales of all of them depend on the seed."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 2))
    y = np.stack([np.sin(2.0 * X[:, 0]), X[:, 1] ** 2], axis=1) + 0.1 * rng.normal(size=(rows, 2))
    scales = 1.0 + seed + rng.uniform(size=4)
    return torch.from_numpy(scales[:2] * X + seed), torch.from_numpy(scales[2:] * y - seed)


def svgp(X, y, **options):
    return agp.SVGP.from_data(X, y, **({"posterior": "whitened", "num_inducing": 5} | options))


def first(y):
    return y[:, :1]


def signs(y):
    return (first(y) > first(y).median()).to(y.dtype)


def patches(X, y):
    images = torch.cat([X, X**2, X + 1.0], dim=1)  # [N, 6]
    return agp.SVGP.from_data(images, first(y), inducing=Patches((2, 3), (2, 2)), posterior="whitened", num_inducing=4)


TRAINED = {
    "whitened": (svgp, first),
    "marginal": (lambda X, y: svgp(X, y, posterior=Marginal), first),
    "likelihood-form": (lambda X, y: svgp(X, y, posterior=LikelihoodForm), first),
    "diagonal": (lambda X, y: svgp(X, y, posterior="diagonal-marginal"), first),
    "gpr": (lambda X, y: agp.GPR.from_data(X, y, weights=1.0 + X[:, 0] ** 2), first),
    "sgpr": (lambda X, y: agp.SGPR.from_data(X, y, num_inducing=5), first),
    "solve": (lambda X, y: agp.SOLVEGP.from_data(X, y, **SOLVE), first),
    "solvegpr": (lambda X, y: agp.SOLVEGPR.from_data(X, y, **SOLVE), first),
    "cggp": (lambda X, y: agp.CGGP.from_data(X, y, rank=4, tolerance=1e-10), first),
    "cagp": (lambda X, y: agp.CaGP.from_data(X, y, num_actions=5), first),
    "deep": (
        lambda X, y: agp.DeepGP.from_data(X, y, posterior="whitened", num_inducing=4, prediction_samples=3),
        first,
    ),
    "shared": (svgp, lambda y: y),
    "separate": (lambda X, y: svgp(X, y, outputs="separate"), lambda y: y),
    "coregionalised": (lambda X, y: svgp(X, y, outputs="coregionalised"), lambda y: y),
    "probit": (lambda X, y: svgp(X, y, likelihood=agp.Bernoulli()), signs),
    "periodic": (lambda X, y: svgp(X, y, kernel=agp.kernels.Periodic() + agp.Linear.centred(X)), first),
    "linear-mean": (lambda X, y: svgp(X, y, mean_function=agp.LinearMean()), first),
    "prior": (lambda X, y: svgp(X, y, priors={"kernel.lengthscale": Gamma(2.0, 1.0), "value": Normal()}), first),
}
"""Models for torch optimisers, built from X and y, and the targets of each."""
HELD = {
    "relaxed": (lambda X, y: agp.SVGP.from_data(X, y, num_inducing=5), first),
    "dual": (lambda X, y: svgp(X, y, posterior="dual"), first),
    "tsvgp": (lambda X, y: agp.TSVGP.from_data(X, y, num_inducing=5), first),
    "cagp-policy": (lambda X, y: agp.CaGP.from_data(X, y, policy=ConjugateGradients(4)), first),
}
"""Models that only agp trains."""


def built(name, seed=0):
    """The model of that name, moved off its starting values, with its data."""
    build, targets = (TRAINED | HELD)[name]
    X, y = data(seed)
    y = targets(y)
    model, rng = build(X, y), np.random.default_rng(seed)
    raw = {k: x + 0.1 * torch.from_numpy(rng.normal(size=tuple(x.shape))) for k, x in tree.unconstrain(model).items()}
    return tree.constrain(model, raw), X, y


def wrapped(name, seed=0):
    """A module with the model of that name, and its data."""
    model, X, y = built(name, seed)
    return GPModule(model, frozen="*" if name in HELD else ()), X, y


def predicted(module, X, **options):
    with torch.no_grad():
        return torch.cat(list(module(X, **options)), dim=1)


def from_file(state):
    """The state after a file, read as torch reads files of strangers."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


# -- the state is the whole model -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*TRAINED, *HELD])
def test_the_state_of_a_module_restores_one_built_from_other_data(name):
    module, X, y = wrapped(name)
    other, *_ = wrapped(name, seed=3)
    wanted = predicted(module, X, observed=True)
    assert not torch.allclose(predicted(other, X, observed=True), wanted)
    other.load_state_dict(from_file(module.state_dict()))
    assert torch.equal(predicted(other, X, observed=True), wanted)
    assert torch.equal(other.eval().loss(X, y), module.eval().loss(X, y))


def test_images_are_restored_as_well():
    X, y = data()
    module, other = GPModule(patches(X, y)), GPModule(patches(*data(3)))
    other.load_state_dict(from_file(module.state_dict()))
    images = torch.cat([X, X**2, X + 1.0], dim=1)
    assert torch.equal(predicted(other, images), predicted(module, images))


@pytest.mark.parametrize("name", ["whitened", "solve", "gpr", "relaxed"])
def test_a_state_that_lacks_the_constants_is_refused(name):
    module, *_ = wrapped(name)
    other, *_ = wrapped(name, seed=3)
    state = module.state_dict()
    assert state.keys() > {name for name, _ in module.named_parameters()} | {"_extra_state"}
    for missing in state.keys() - {name for name, _ in module.named_parameters()}:
        with pytest.raises(RuntimeError, match="Missing key"):
            other.load_state_dict({key: x for key, x in state.items() if key != missing})


def test_keys_are_the_names_of_the_leaves():
    module = GPModule(svgp(*data(), outputs="separate"), frozen=("Z", "likelihood.*"))
    leaves = tree.describe(module.model())
    keys = [key for key in module.state_dict() if key != "_extra_state"]
    assert sorted(key.replace("raw_", "") for key in keys) == sorted(leaf.name for leaf in leaves)
    parameters = {name.replace("raw_", "") for name, _ in module.named_parameters()}
    frozen = ("inducing.Z", "likelihood.noise_variance")
    assert parameters == {x.name for x in leaves if x.role == "parameter" and not x.name.endswith(frozen)}
    assert "process.parts.1.kernel.raw_lengthscale" in keys
    text = repr(module)
    assert "SVGP" in text
    assert "(kernel): RBF()" in text


@pytest.mark.slow
@pytest.mark.sample(5)
@pytest.mark.parametrize("name", TRAINED)
def test_copies_are_independent(name):
    module, X, _ = wrapped(name)
    wanted = predicted(module, X)
    copies = copy.deepcopy(module), pickle.loads(pickle.dumps(module))
    for x in (*module.parameters(), *module.buffers()):
        x.data.mul_(1.5)
    assert not torch.allclose(predicted(module, X), wanted)
    for one in copies:
        assert torch.equal(predicted(one, X), wanted)


def test_the_model_that_was_wrapped_does_not_change():
    model, X, y = built("gpr")
    before = {name: x.clone() for name, x in tree.leaves(model).items()}
    module = GPModule(model)
    module.loss(X, y).backward()
    torch.optim.SGD(module.parameters(), lr=1e-3).step()
    module.load_state_dict(wrapped("gpr", seed=3)[0].state_dict())
    assert not torch.equal(module.model().X, model.X)
    assert all(torch.equal(x, before[name]) for name, x in tree.leaves(model).items())


# -- states of other models -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kernel": agp.Matern52()}, "process.kernel is Matern52 in the state, but RBF in this module; build the"),
        ({"jitter": 1e-3}, "process.jitter is 0.001 in the state, but None in this module; build"),
        (
            {"likelihood": agp.StudentT(degrees_of_freedom=4.0)},
            r"likelihood is StudentT in the state, but Gaussian in this module \(and \d more differences\)",
        ),
        ({"priors": {"kernel.lengthscale": Gamma(2.0, 1.0)}}, r"priors is .*Gamma.* in the state, but \(\) in this"),
    ],
)
def test_a_state_of_other_parts_or_settings_is_refused(options, words):
    X, y = data()
    state = GPModule(svgp(X, first(y), **options)).state_dict()
    module = GPModule(svgp(X, first(y)))
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(ValueError, match=words):
        module.load_state_dict(state)
    assert all(torch.equal(x, before[key]) for key, x in module.state_dict().items())


@pytest.mark.parametrize(
    ("there", "here", "words"),
    [
        (
            lambda X, y: GPModule(svgp(X, first(y), num_inducing=6)),
            lambda X, y: GPModule(svgp(X, first(y))),
            r"process.inducing.raw_Z is an array \[6, 2\] in the state, but an array \[5, 2\] in this module",
        ),
        (  # torch would load the first variance for all outputs
            lambda X, y: GPModule(svgp(X, y)),
            lambda X, y: GPModule(svgp(X, y, likelihood=agp.Gaussian(0.1))),
            r"likelihood.raw_noise_variance is an array \[2\] in the state, but an array \[\] in this module",
        ),
        (
            lambda X, y: GPModule(svgp(X, first(y)), frozen="likelihood.*"),
            lambda X, y: GPModule(svgp(X, first(y))),
            r"noise_variance is an array \[\] in the state, but absent in this module \(and 1 more difference\)",
        ),
        (
            lambda X, y: GPModule(agp.GPR.from_data(X, first(y))),
            lambda X, y: GPModule(agp.GPR.from_data(X[1:], first(y)[1:])),
            r"X is an array \[24, 2\] in the state, but an array \[23, 2\] in this module",
        ),
    ],
)
def test_a_state_of_other_sizes_or_frozen_leaves_is_refused(there, here, words):
    with pytest.raises(ValueError, match=words):
        here(*data()).load_state_dict(there(*data()).state_dict())


# -- precision and devices --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["whitened", "marginal", "gpr", "sgpr", "solve", "deep", "separate", "relaxed"])
def test_parameters_and_buffers_change_their_precision_together(name):
    module, X, y = wrapped(name)
    wanted = predicted(module, X)
    module.to(torch.float32)
    assert {x.dtype for x in (*module.parameters(), *module.buffers())} == {torch.float32}
    assert_close(predicted(module, X.float()).numpy(), wanted.numpy(), 2e-3)
    assert module.loss(X.float(), y.float()).dtype is torch.float32
    assert predicted(module.double(), X).dtype is torch.float64


def test_parameters_and_buffers_change_their_device_together():
    module, *_ = wrapped("gpr")
    assert {x.device.type for x in module.to("meta").state_dict().values()} == {"meta", "cpu"}
    assert {x.device.type for x in (*module.parameters(), *module.buffers())} == {"meta"}


def test_leaves_that_are_numbers_become_arrays():
    X, y = data()
    process = agp.processes.Sparse.from_data(X, posterior="whitened", num_inducing=5)
    module = GPModule(agp.SVGP(process, agp.Gaussian(0.1)))
    assert module.likelihood.raw_noise_variance.dtype is X.dtype
    assert_close(module.model().likelihood.noise_variance.detach().numpy(), np.asarray(0.1), 1e-12)
    module.loss(X, first(y)).backward()
    assert module.likelihood.raw_noise_variance.grad != 0.0


# -- arrays that only agp's updates change ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "frozen", "words"),
    [
        (
            agp.SVGP.from_data,
            (),
            r"do not update process.posterior.inverse_factor of Relaxed, which only agp's updates",
        ),
        (agp.SVGP.from_data, ("kernel.*", "Z"), "inverse_factor of Relaxed"),
        (lambda X, y: svgp(X, y, posterior="full-site-relaxed"), ("kernel.*", "Z"), "of FullSiteRelaxed"),
        (lambda X, y: svgp(X, y, posterior="inverse-free"), (), "of InverseFree"),
        (lambda X, y: svgp(X, y, posterior="dual"), (), r"posterior.precision, process.posterior.shift of Dual,"),
        (lambda X, y: svgp(X, y, posterior="dual-inverse-free"), (), "prior_factor, .*site_factor of DualInverseFree"),
        (lambda X, y: agp.SOLVEGP.from_data(X, y, posterior=RelaxedOrthogonal, **SOLVE), (), "of RelaxedOrthogonal"),
        (lambda X, y: agp.SOLVEGP.from_data(X, y, posterior=RelaxedUnion, **SOLVE), ("kernel.*", "Z"), "RelaxedUnion"),
        (agp.TSVGP.from_data, (), "site_precision, site_shift of TSVGP"),
        (agp.TVGP.from_data, (), "of TVGP"),
        (lambda X, y: agp.CaGP.from_data(X, y, policy=ConjugateGradients(4)), (), "actions.values of FixedActions"),
        (lambda X, y: agp.CaGP.from_data(X, y, num_actions=4, inverse_free=True), (), "of ProjectedInverseFree"),
        (
            lambda X, y: agp.DeepGP.from_data(X, y, posterior=("whitened", "relaxed"), num_inducing=4),
            (),
            "process.layers.1.posterior.inverse_factor of Relaxed, .* use a model without .*posterior='whitened', or",
        ),
        (
            lambda X, y: agp.SVGP.from_data(X, torch.cat([y, -y], dim=1), outputs="separate"),
            (),
            r"parts.0.posterior.inverse_factor, process.parts.1.posterior.inverse_factor of Relaxed",
        ),
    ],
)
def test_models_that_need_updates_of_agp_are_refused(build, frozen, words):
    X, y = data()
    model = build(X, first(y))
    with pytest.raises(ValueError, match=words) as refused:
        GPModule(model, frozen=frozen)
    assert str(refused.value).endswith("train the model with agp.train and pass frozen='*'.")
    GPModule(model, frozen="*")


@pytest.mark.slow
@pytest.mark.parametrize("frozen", ["*", ("kernel.*", "Z", "site"), "inverse_factor"])
def test_a_trained_model_is_held_as_it_is(frozen):
    X, y = data()
    model = agp.train(agp.SVGP.from_data(X, first(y), num_inducing=5), X, first(y), steps=30).model
    module = GPModule(model, frozen=frozen)
    assert_close(predicted(module, X).numpy(), torch.cat(list(model.predict(X)), dim=1).numpy(), 1e-12)
    assert_close(-module.loss(X, first(y)).detach().numpy(), model.bound(X, first(y))[0].numpy(), 1e-12)
    assert bool(list(module.parameters())) == (frozen != "*")


# -- loss and gradients -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRAINED)
def test_the_gradient_is_that_of_agp(name):
    module, X, y = wrapped(name)
    loss = module.eval().loss(X, y)
    loss.backward()
    value, gradient = agp.value_and_gradient(tree.constrain(built(name)[0], {}), X, y)
    assert_close(-loss.detach().numpy(), value.numpy(), 1e-10)
    found = {key.replace("raw_", ""): x.grad for key, x in module.named_parameters()}
    assert found.keys() == gradient.keys()
    for key, x in gradient.items():
        assert (found[key] + x).abs().max() <= 1e-9 * max(1.0, float(x.abs().max())), key


def test_priors_count_once_and_minibatches_are_scaled():
    module, X, y = wrapped("prior")
    model = module.model()
    expected = model.bound(X[:6], y[:6], scale=4.0)[0] + agp.priors.log_prior(model)[0]
    assert torch.equal(module.loss(X[:6], y[:6], scale=4.0), -expected)


@pytest.mark.parametrize("name", ["whitened", "gpr", "sgpr", "solvegpr", "solve", "deep", "probit"])
def test_predictions_can_be_differentiated(name):
    module, X, _ = wrapped(name)
    rng = np.random.default_rng(0)
    points = X[:4].clone().requires_grad_()
    inputs = [*module.parameters(), points]

    def total():
        mean, variance = module(points, observed=True)
        return mean.sin().sum() + variance.sum()

    slopes = torch.autograd.grad(total(), inputs)
    ways = [torch.from_numpy(rng.normal(size=tuple(x.shape))) for x in inputs]
    step = 1e-6
    with torch.no_grad():
        ends = []
        for sign in (1.0, -1.0):
            for x, way in zip(inputs, ways, strict=True):
                x += sign * step * way
            ends.append(total())
            for x, way in zip(inputs, ways, strict=True):
                x -= sign * step * way
    along = sum((a * b).sum() for a, b in zip(slopes, ways, strict=True))
    assert_close(along.numpy(), ((ends[0] - ends[1]) / (2.0 * step)).numpy(), 1e-6)


def test_torch_can_call_the_module_with_other_parameters():
    module, X, _ = wrapped("whitened")
    other, *_ = wrapped("whitened", seed=3)
    values = {name: x for name, x in other.state_dict().items() if name != "_extra_state"}
    found = torch.func.functional_call(module, values, (X,), {"observed": True})
    assert torch.equal(torch.cat(list(found), dim=1), predicted(other, X, observed=True))
    module.load_state_dict(other.state_dict(), assign=True)
    assert torch.equal(predicted(module, X), predicted(other, X))


def test_deep_models_draw_new_numbers_in_training_only():
    module, X, y = wrapped("deep")
    torch.manual_seed(0)
    losses = [module.loss(X, y).item() for _ in range(3)]
    assert len(set(losses)) == 3
    torch.manual_seed(0)
    assert [module.loss(X, y).item() for _ in range(3)] == losses
    module.eval()
    fixed = module.loss(X, y).item()
    assert fixed == module.loss(X, y).item() == -module.model().bound(X, y)[0].item()
    before = torch.get_rng_state()
    other, X, y = wrapped("whitened")
    other.loss(X, y)
    assert torch.equal(torch.get_rng_state(), before)


# -- training ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["whitened", "marginal", "likelihood-form", "gpr", "sgpr", "solve", "coregionalised"])
def test_training_with_torch_is_training_with_agp(name):
    build, targets = TRAINED[name]
    X, y = data()
    y = targets(y)
    model, steps = build(X, y), 10
    expected = agp.train(model, X, y, updates=[agp.updates.Adam(0.05)], steps=steps)
    module = GPModule(model)
    optimiser = torch.optim.Adam(module.parameters(), lr=0.05, eps=1e-7)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        losses.append(module.loss(X, y))
        losses[-1].backward()
        optimiser.step()
    np.testing.assert_allclose([-x.item() for x in losses], expected.trace["bound"], rtol=1e-7)
    wanted = torch.cat(list(expected.model.predict(X)), dim=1)
    assert_close(predicted(module, X).numpy(), wanted.numpy(), 1e-6)


class DeepKernel(torch.nn.Module):
    """A network and a model of its outputs."""

    def __init__(self, X, y, seed, **options):
        super().__init__()
        torch.manual_seed(seed)
        layers = torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)
        self.network = torch.nn.Sequential(*layers).double()
        with torch.no_grad():
            self.gp = GPModule(svgp(self.network(X), y, **options))

    def forward(self, X):
        return self.gp(self.network(X), observed=True)

    def loss(self, X, y):
        return self.gp.loss(self.network(X), y)


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "options", [{}, {"posterior": Marginal}, {"likelihood": agp.StudentT()}, {"outputs": "shared"}]
)
def test_a_network_and_a_model_are_trained_together_and_restored(options):
    X, y = data(rows=60)
    y = y if "outputs" in options else first(y)
    module = DeepKernel(X, y, 0, **options)
    optimiser = torch.optim.Adam(module.parameters(), lr=0.02)
    losses = []
    for _ in range(60):
        optimiser.zero_grad()
        loss = module.loss(X, y)
        loss.backward()
        optimiser.step()
        losses.append(loss.item() / len(X))
    assert losses[-1] < losses[0] - 0.5
    assert all(x.grad is not None and x.grad.abs().max() > 0.0 for x in module.parameters())
    other = DeepKernel(*data(3, rows=60)[:1], y, 1, **options)
    other.load_state_dict(from_file(module.state_dict()))
    assert torch.equal(predicted(other, X), predicted(module, X))
    module.to(torch.float32)
    assert_close(predicted(module, X.float()).numpy(), predicted(other, X).numpy(), 1e-2)
    for _ in range(2):  # the restored module trains on
        optimiser = torch.optim.Adam(other.parameters(), lr=0.02)
        other.loss(X, y).backward()
        optimiser.step()
    assert other.loss(X, y) < losses[0] * len(X)


@pytest.mark.parametrize("name", ["gpr", "sgpr", "solvegpr", "cggp", "cagp"])
def test_stored_inputs_must_follow_the_inputs_of_the_loss(name):
    module, X, y = wrapped(name)
    with pytest.raises(
        ValueError, match=r"X depends on parameters, but .* predicts from the inputs that it stores.*store_data=False"
    ):
        module.loss((1.0 * X).requires_grad_(), y)
    if name != "cagp":  # its bound uses the stored data
        with pytest.raises(ValueError, match="predicts from the data with which it was built; train it on the same"):
            module.loss(X + 1.0, y)


# -- arguments --------------------------------------------------------------------------------------------------------


def test_the_arguments_are_checked():
    X, y = data()
    model = svgp(X, first(y))
    with pytest.raises(TypeError, match=r"model has the class RBF, which is not a model"):
        GPModule(agp.RBF())
    with pytest.raises(TypeError, match="model is the class SVGP"):
        GPModule(agp.SVGP)
    with pytest.raises(ValueError, match="no parameter matches 'kernel.period'; the parameters are process.kernel"):
        GPModule(model, frozen="kernel.period")
    with pytest.raises(ValueError, match="likelihood.noise_variance has no value; build the model with from_data"):
        GPModule(agp.SVGP(model.process, agp.Gaussian()))
    with pytest.raises(ValueError, match="X has 1 column, but the model was built for 2"):
        GPModule(model)(X[:, :1])
    on_numpy = agp.SVGP.from_data(X.numpy(), first(y).numpy(), posterior=Whitened, num_inducing=5)
    assert_close(predicted(GPModule(on_numpy), X).numpy(), predicted(GPModule(model), X).numpy(), 1e-9)
    assert agp.interop.torch.GPModule is GPModule


def test_fixed_leaves_are_buffers():
    X = agp.to_backend(np.random.default_rng(0).standard_normal((20, 2)), "torch")
    model = agp.GPR.from_data(X, torch.sin(X[:, :1]), kernel=agp.RBF(), priors={"kernel.lengthscale": Fixed()})
    assert "kernel.lengthscale" in dict(GPModule(model).named_buffers())


def test_equal_parts_stay_equal_under_a_torch_optimiser():
    X = agp.to_backend(np.random.default_rng(0).standard_normal((20, 2)), "torch")
    y, k = torch.sin(X[:, :1]), agp.RBF()
    module = GPModule(agp.GPR.from_data(X, y, kernel=k * agp.Linear() + k))
    optimiser = torch.optim.Adam(module.parameters(), lr=0.1)
    for _ in range(5):
        optimiser.zero_grad()
        module.loss(X, y).backward()
        optimiser.step()
    kernel = module.model().kernel
    assert torch.equal(kernel.parts[0].parts[0].lengthscale, kernel.parts[1].lengthscale)
    assert not any(name.startswith("kernel.parts.1.") for name, _ in module.named_parameters())


# -- values in place --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [lambda X, y, **o: svgp(X, y, **o), agp.GPR.from_data])
def test_values_are_set_in_place(build):
    X, y = data()
    module = GPModule(build(X, first(y), kernel=agp.RBF(1.0, [1.0, 2.0])), frozen="likelihood.*")
    held = dict(module.named_parameters()) | dict(module.named_buffers())
    module.set_values({"kernel.lengthscale": [0.5, 0.25], "noise_variance": 0.3})
    model = module.model()
    assert_close(model.kernel.lengthscale.detach().numpy(), np.asarray([0.5, 0.25]), 1e-12)
    assert model.likelihood.noise_variance == 0.3
    module.set_values({"lengthscale": torch.tensor(2.0), "lengthscale[1]": 3.0})
    assert_close(module.model().kernel.lengthscale.detach().numpy(), np.asarray([2.0, 3.0]), 1e-12)
    assert all(x is held[name] for name, x in [*module.named_parameters(), *module.named_buffers()])
    fresh = GPModule(tree.with_leaves(model, dict(tree.leaves(module.model()))), frozen="likelihood.*")
    assert_close(module.loss(X, first(y)).detach().numpy(), fresh.loss(X, first(y)).detach().numpy(), 1e-9)
    module.loss(X, first(y)).backward()


def test_values_of_tied_parts_and_of_several_parts_are_set_together():
    X, y = data()
    k = agp.RBF()
    tied = GPModule(agp.GPR.from_data(X, first(y), kernel=k * agp.Linear() + k))
    tied.set_values({"lengthscale": 0.7})
    assert_close(tied.model().kernel.parts[1].lengthscale.detach().numpy(), np.full(2, 0.7), 1e-12)
    separate = GPModule(svgp(X, y, outputs="separate"))
    separate.set_values({"kernel.variance": 0.7})
    assert all(abs(float(part.kernel.variance.detach()) - 0.7) < 1e-12 for part in separate.model().process.parts)


@pytest.mark.parametrize(
    ("values", "error", "words"),
    [
        ({"kernel.lengthscal": 1.0}, ValueError, "no parameter matches 'kernel.lengthscal'; .*kernel.lengthscale"),
        ({"kernel.lengthscale": [1.0, 2.0, 3.0]}, ValueError, r"lengthscale has the shape \(2,\), .* \(3,\)"),
        ({"kernel.lengthscale": -1.0}, ValueError, "lengthscale must be positive and finite, but .*-1"),
        ({"kernel.lengthscale[0]": float("nan")}, ValueError, "lengthscale must be positive and finite"),
        ({"kernel.variance": 3.0}, ValueError, "kernel.variance must be between 0 and 2, but .*3"),
        ({"kernel.lengthscale": "1"}, TypeError, "kernel.lengthscale .*'1'"),
    ],
)
def test_values_that_do_not_fit_are_refused_and_nothing_changes(values, error, words):
    X, y = data()
    kernel = agp.RBF(1.0, [1.0, 2.0])
    module = GPModule(agp.GPR.from_data(X, first(y), kernel=kernel, priors={"kernel.variance": Between(None, 2.0)}))
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(error, match=words):
        module.set_values({"noise_variance": 0.3, **values})
    assert all(torch.equal(x, before[name]) for name, x in module.state_dict().items())


def all_heads():
    """Models whose parameters are of all kinds: exact, sparse, frozen, with limits, tied and of several layers."""
    X, y = data()
    k, kernel, mean = agp.RBF(), agp.RBF(1.0, [1.0, 2.0]), agp.means.ConstantMean()
    limits = {"kernel.lengthscale": Between(0.1, 2.0), "noise_variance": Between(0.01, None)}
    return {
        "exact": lambda: GPModule(agp.GPR.from_data(X, first(y), kernel=kernel, mean_function=mean)),
        "without data": lambda: GPModule(agp.GPR.from_data(X, first(y), kernel=kernel), store_data=False),
        "sgpr": lambda: GPModule(agp.SGPR.from_data(X, first(y), num_inducing=5), store_data=False),
        "sparse": lambda: GPModule(svgp(X, first(y))),
        "frozen": lambda: GPModule(svgp(X, first(y), kernel=kernel), frozen=("likelihood.*", "lengthscale[0]")),
        "zero noise": lambda: GPModule(svgp(X, first(y), likelihood=agp.Gaussian(0.0)), frozen="likelihood.*"),
        "limits": lambda: GPModule(agp.GPR.from_data(X, first(y), kernel=kernel, priors=limits)),
        "tied": lambda: GPModule(agp.GPR.from_data(X, first(y), kernel=k * agp.Linear() + k)),
        "deep": lambda: GPModule(agp.DeepGP.from_data(X, first(y), num_inducing=4, posterior="whitened")),
    }


@pytest.mark.parametrize("name", all_heads())
def test_values_are_read_and_can_be_set_again(name):
    module = all_heads()[name]()
    before = module.values()
    described = {leaf.name: leaf for leaf in tree.describe(module._stored_model()) if leaf.role == "parameter"}
    assert list(before) == list(described)
    assert not any(x.requires_grad for x in before.values())
    for key, x in before.items():
        assert_close(x.numpy(), described[key].value.detach().numpy(), 1e-14)
    module.set_values(before)
    for key, x in module.values().items():
        assert_close(x.numpy(), before[key].numpy(), 1e-12)


def test_values_that_were_read_are_copies():
    X, y = data()
    module = GPModule(svgp(X, first(y)), frozen="likelihood.*")
    state = copy.deepcopy(module.state_dict())
    for x in module.values().values():
        x.fill_(7.0)
    assert all(torch.equal(x, state[key]) for key, x in module.state_dict().items())
    module.set_values({"noise_variance": 0.3})
    assert module.values()["likelihood.noise_variance"] == 0.3


def test_a_parameter_can_be_frozen_for_the_first_steps():
    X, y = data()
    module = GPModule(svgp(X, first(y)))
    raw = module.get_parameter("process.kernel.raw_lengthscale")
    before = raw.detach().clone()
    optimiser = torch.optim.Adam(module.parameters(), lr=0.1)
    for step in range(4):
        raw.requires_grad_(step >= 2)
        optimiser.zero_grad()
        module.loss(X, first(y)).backward()
        optimiser.step()
        assert torch.equal(raw.detach(), before) == (step < 2)


@pytest.mark.parametrize("likelihood", [None, agp.Bernoulli()])
def test_log_densities_of_held_out_rows(likelihood):
    X, y = data()
    y = first(y) if likelihood is None else signs(y)
    module = GPModule(svgp(X, y, likelihood=likelihood))
    assert torch.equal(module.log_density(X, y), module.model().log_density(X, y))
    exact = GPModule(agp.GPR.from_data(X, first(y)), store_data=False)
    wanted = exact.model(X, first(y)).log_density(X[:4], first(y)[:4])
    assert torch.equal(exact.log_density(X[:4], first(y)[:4], data=(X, first(y))), wanted)
    assert not module.log_density(X.clone().requires_grad_(), y).isnan().any()
