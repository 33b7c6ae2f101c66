"""Lists of models in BoTorch: outputs are independent for every sampler, as in `ModelListGP` and by brute force."""

import numpy as np
import pytest
from helpers import assert_close

import agp

torch = pytest.importorskip("torch", reason="torch is not installed: not executed")
botorch = pytest.importorskip("botorch", reason="botorch is not installed: not executed")
gpytorch = pytest.importorskip("gpytorch", reason="gpytorch is not installed: not executed")
logei = pytest.importorskip("botorch.acquisition.multi_objective.logei")
acquisitions, samplers = botorch.acquisition, botorch.sampling
get_sampler = pytest.importorskip("botorch.sampling.get_sampler").get_sampler
BoTorchModel, BoTorchModelList = agp.interop.botorch.BoTorchModel, agp.interop.botorch.BoTorchModelList
Deterministic = pytest.importorskip("botorch.models.deterministic").GenericDeterministicModel

RNG = np.random.default_rng(0)
ROWS, D = 12, 2
X = RNG.uniform(size=(ROWS, D))
PAIR = np.stack([-((X - 0.2) ** 2).sum(axis=1), -((X - 0.8) ** 2).sum(axis=1)], axis=1)
PAIR = PAIR + 0.05 * RNG.normal(size=(ROWS, 2))
AT, REFERENCE = torch.as_tensor(RNG.uniform(size=(5, 1, D))), [-1.0, -1.0]
JOINT = torch.as_tensor(RNG.uniform(size=(3, 4, D)))
SCALES, NOISE = (0.6, 0.9), 0.01


def tensor(x):
    return torch.as_tensor(np.asarray(x), dtype=torch.float64)


def exact(y, scale=0.6, **options):
    mean = agp.ConstantMean(0.3)
    kernel = agp.Matern52(1.2, (scale, scale))
    return agp.GPR.from_data(X, y, kernel=kernel, likelihood=agp.Gaussian(NOISE), mean_function=mean, **options)


def of_botorch(y, scale=0.6):
    """BoTorch's model with the same hyperparameters."""
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=D))
    noise = torch.full((ROWS, 1), NOISE, dtype=torch.float64)
    data = tensor(X), tensor(y)[:, None]
    model = botorch.models.SingleTaskGP(*data, train_Yvar=noise, covar_module=kernel, outcome_transform=None)
    model = model.to(torch.float64)
    kernel.base_kernel.lengthscale, kernel.outputscale = torch.full((1, D), scale).double(), 1.2
    model.mean_module.constant.data.fill_(0.3)
    return model.eval()


def mixture(y):
    return agp.integrate(agp.GPR.from_data(X, y, kernel=agp.Matern52()), settings=16).model


def both():
    each = [(PAIR[:, j], SCALES[j]) for j in range(2)]
    return BoTorchModelList(*(exact(*x) for x in each)), botorch.models.ModelListGP(*(of_botorch(*x) for x in each))


LISTS = {
    "exact": lambda: BoTorchModelList(exact(PAIR[:, 0]), exact(PAIR[:, 1])),
    "with-botorch": lambda: BoTorchModelList(exact(PAIR[:, 0]), of_botorch(PAIR[:, 1])),
    "outputs": lambda: BoTorchModelList(exact(PAIR), exact(PAIR[:, 1])),
    "coregionalised": lambda: BoTorchModelList(
        agp.SVGP.from_data(X, PAIR, num_inducing=8, outputs=agp.Coregionalised(latents=2), posterior="whitened"),
        exact(PAIR[:, 1]),
    ),
    "sparse": lambda: BoTorchModelList(exact(PAIR[:, 0]), agp.SGPR.from_data(X, PAIR[:, 1], num_inducing=6)),
    "averages": lambda: BoTorchModelList(mixture(PAIR[:, 0]), mixture(PAIR[:, 1]), draws=4),
    "average-and-exact": lambda: BoTorchModelList(mixture(PAIR[:, 0]), exact(PAIR[:, 1]), draws=4),
    "alone": lambda: BoTorchModelList(exact(PAIR[:, 0])),
}
UNLIKE = {
    "deterministic": lambda: BoTorchModelList(
        exact(PAIR[:, 0]), exact(PAIR[:, 1]), Deterministic(lambda X: X.sum(dim=-1, keepdim=True))
    ),
}


def dense(posterior):
    """Covariances [..., q, m, q, m]."""
    mvn, (q, m) = posterior.distribution, posterior.mean.shape[-2:]
    C = mvn.covariance_matrix
    if m == 1 or mvn._interleaved:
        return C.reshape(*C.shape[:-2], q, m, q, m)
    return C.reshape(*C.shape[:-2], m, q, m, q).transpose(-4, -3).transpose(-2, -1)


def expected_of(model, inputs):
    """The moments of independent models, side by side."""
    each = [one.posterior(inputs) for one in model.models]
    axes = max(one.mean.ndim for one in each)
    means = [one.mean if one.mean.ndim == axes else one.mean.unsqueeze(-3) for one in each]
    lead = torch.broadcast_shapes(*(x.shape[:-2] for x in means))
    q, m = inputs.shape[-2], model.num_outputs
    covariance, start = torch.zeros(*lead, q, m, q, m, dtype=torch.float64), 0
    for one in each:
        own = dense(one) if one.mean.ndim == axes else dense(one).unsqueeze(-5)
        stop = start + own.shape[-1]
        covariance[..., :, start:stop, :, start:stop] = own
        start = stop
    return torch.cat([x.expand(*lead, *x.shape[-2:]) for x in means], -1), covariance


@pytest.mark.parametrize("name", LISTS)
def test_the_posterior_of_a_list_is_joint_with_independent_models(name):
    model = LISTS[name]()
    for inputs in (JOINT, JOINT[0], AT):
        posterior = model.posterior(inputs)
        mean, covariance = expected_of(model, inputs)
        assert_close(posterior.mean.detach().numpy(), mean.detach().numpy(), 1e-10)
        assert_close(dense(posterior).detach().numpy(), covariance.detach().numpy(), 1e-9)
        assert botorch.utils.transforms.is_ensemble(model) == hasattr(posterior, "mixture_mean")


@pytest.mark.parametrize("name", LISTS | UNLIKE)
@pytest.mark.parametrize("given", ["sobol", "iid", "get_sampler"])
def test_every_sampler_draws_independent_outputs(name, given):
    model = (LISTS | UNLIKE)[name]()
    posterior, count = model.posterior(JOINT), torch.Size([4096])
    if given == "get_sampler":
        sampler = get_sampler(posterior, count, seed=1)
    elif name in UNLIKE:
        sampler = samplers.SobolQMCNormalSampler(count, seed=1)
        with pytest.raises(TypeError, match=r"sampler.*get_sampler\(posterior, sample_shape\)"):
            sampler(posterior)
        return
    else:
        kind = {"sobol": samplers.SobolQMCNormalSampler, "iid": samplers.IIDNormalSampler}[given]
        sampler = kind(count, seed=1)
    samples = sampler(posterior).detach()
    assert samples.shape == (4096, *posterior.mean.shape)
    flat = samples.reshape(4096, -1, *samples.shape[-2:])[:, 0].transpose(1, 2)  # [S, m, q]
    flat = (flat - flat.mean(dim=0)) / flat.std(dim=0).clamp_min(1e-9)
    blocks = ((0, 1), (2,)) if name in ("outputs", "coregionalised") else [(i,) for i in range(model.num_outputs)]
    for i, j in ((i, j) for one in blocks for other in blocks if one != other for i in one for j in other):
        assert (flat[:, i].mT @ flat[:, j] / 4096).abs().max() < 0.1


def test_acquisition_functions_are_those_of_botorchs_list():
    ours, theirs = both()
    sobol = samplers.SobolQMCNormalSampler(torch.Size([256]), seed=3)

    def improvements(model, sampler):
        hyper = logei.qLogNoisyExpectedHypervolumeImprovement(model, REFERENCE, tensor(X), sampler=sampler)
        options = {
            "objective": acquisitions.objective.GenericMCObjective(lambda Y, X=None: Y[..., 0]),
            "constraints": [lambda Y: -0.6 - Y[..., 1]],
        }
        single = acquisitions.qLogExpectedImprovement(model, best_f=-0.2, sampler=sampler, **options)
        return hyper(AT).detach(), single(AT).detach()

    for sampler in (
        sobol,
        get_sampler(ours.posterior(tensor(X)), torch.Size([256]), seed=5),
    ):
        for value, expected in zip(improvements(ours, sampler), improvements(theirs, sampler), strict=True):
            assert_close(value.numpy(), expected.numpy(), 2e-3)
    analytic = [
        acquisitions.analytic.LogConstrainedExpectedImprovement(
            model, best_f=-0.2, objective_index=0, constraints={1: [-0.6, None]}
        )(AT).detach()
        for model in (ours, theirs)
    ]
    assert_close(analytic[0].numpy(), analytic[1].numpy(), 1e-5)
    # Monte Carlo agrees with the analytic improvement
    options = {
        "objective": acquisitions.objective.GenericMCObjective(lambda Y, X=None: Y[..., 0]),
        "constraints": [lambda Y: -0.6 - Y[..., 1]],
        "sampler": samplers.SobolQMCNormalSampler(torch.Size([8192]), seed=0),
        "eta": 1e-5,
        "tau_relu": 1e-8,
    }
    many = acquisitions.qLogExpectedImprovement(ours, best_f=-0.2, **options)(AT).detach()
    assert_close(many.numpy(), analytic[0].numpy(), 0.1)


def test_hypervolume_improvements_are_those_by_brute_force():
    model, count = LISTS["exact"](), 2000
    Partitioning = botorch.utils.multi_objective.box_decompositions.dominated.DominatedPartitioning
    point = AT[0]
    inputs = torch.cat([tensor(X), point])
    rng, columns = np.random.default_rng(1), []
    for one in model.models:
        posterior = one.posterior(inputs)
        root = np.linalg.cholesky(posterior.distribution.covariance_matrix.numpy() + 1e-12 * np.eye(ROWS + 1))
        columns.append(posterior.mean[:, 0].numpy() + rng.standard_normal((count, ROWS + 1)) @ root.T)
    draws, reference = tensor(np.stack(columns, axis=-1)), tensor(REFERENCE)

    def volume(values):
        return Partitioning(ref_point=reference, Y=values).compute_hypervolume().item()

    gains = np.asarray([volume(one) - volume(one[:-1]) for one in draws])
    for sampler in (samplers.SobolQMCNormalSampler(torch.Size([1024]), seed=0), None):
        torch.manual_seed(0)
        found = logei.qLogNoisyExpectedHypervolumeImprovement(model, REFERENCE, tensor(X), sampler=sampler)(AT[:1])
        assert abs(found.exp().item() - gains.mean()) < 4.0 * gains.std() / count**0.5 + 0.05 * gains.mean()


@pytest.mark.parametrize("name", ["exact", "outputs", "averages", "average-and-exact"])
def test_fantasies_of_different_outputs_are_independent(name):
    model = LISTS[name]()
    sampler = samplers.SobolQMCNormalSampler(torch.Size([64]), seed=0)
    fantasies = model.fantasize(JOINT[:, :1], sampler)
    mean = fantasies.posterior(JOINT[:, :1]).mean.detach()
    assert mean.shape == (64, *model.posterior(JOINT[:, :1]).mean.shape)
    deviation = (mean - mean.mean(dim=0)) / mean.std(dim=0)
    correlation = (deviation[..., 0] * deviation[..., -1]).mean(dim=0)
    assert correlation.abs().max() < 0.6
    assert correlation.abs().mean() < 0.25
    each = samplers.list_sampler.ListSampler(*(samplers.IIDNormalSampler(torch.Size([3])) for _ in model.models))
    noise = torch.full((1, model.num_outputs), 0.1, dtype=torch.float64)
    noise = None if name == "outputs" else noise  # exact models of several outputs take one noise variance per row
    again = model.fantasize(JOINT[:, :1], each, observation_noise=noise)
    assert again.posterior(JOINT[:, :1]).mean.shape == (3, *model.posterior(JOINT[:, :1]).mean.shape)


def test_a_list_of_models_is_refused():
    with pytest.raises(TypeError, match=r"write BoTorchModelList\(\*models\)"):
        BoTorchModelList([BoTorchModel(mixture(PAIR[:, 0]), draws=3)])


def test_different_numbers_of_draws_are_refused():
    model = BoTorchModelList(BoTorchModel(mixture(PAIR[:, 0]), draws=3), BoTorchModel(mixture(PAIR[:, 1]), draws=4))
    with pytest.raises(ValueError, match=r"averages.* 3 and 4 draws.*draws="):
        model.posterior(JOINT)
