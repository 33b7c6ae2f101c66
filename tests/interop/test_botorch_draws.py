"""Averages over hyperparameters in BoTorch: an axis of draws, each of which is the exact GP of one setting."""

import numpy as np
import pytest
from helpers import assert_close

import agp
from agp import tree
from agp.random import generator

torch = pytest.importorskip("torch", reason="torch is not installed: not executed")
botorch = pytest.importorskip("botorch", reason="botorch is not installed: not executed")
acquisitions, optimize_acqf = botorch.acquisition, botorch.optim.optimize_acqf
SobolQMCNormalSampler = botorch.sampling.SobolQMCNormalSampler
BoTorchModel, BoTorchModelList = agp.interop.botorch.BoTorchModel, agp.interop.botorch.BoTorchModelList

RNG = np.random.default_rng(0)
ROWS, D, S = 14, 2, 6
X = RNG.uniform(size=(ROWS, D))
F = np.sin(5.0 * X[:, :1]) + X[:, 1:] ** 2
Y = F + 0.05 * RNG.normal(size=F.shape)
UNIT = torch.tensor([[0.0] * D, [1.0] * D], dtype=torch.float64)
draw_matheron_paths = botorch.sampling.pathwise.draw_matheron_paths
BRIEF = {"num_restarts": 2, "raw_samples": 8, "options": {"maxiter": 5}}


def tensor(x):
    return torch.as_tensor(np.asarray(x), dtype=torch.float64)


def _mixture(*kernels, y=Y, **options):
    return agp.integrate([agp.GPR.from_data(X, y, kernel=kernel, **options) for kernel in kernels], settings=24).model


MIXTURES = {
    "one-kernel": lambda: _mixture(agp.Matern52()),
    "kernels": lambda: _mixture(agp.Matern52() + agp.Linear.centred(X), agp.RBF(), agp.Matern32()),
    "known-noise": lambda: _mixture(agp.Matern52(), likelihood=agp.Gaussian(0.0), noise=np.full(ROWS, 1e-3)),
}
MADE = {}


@pytest.fixture(params=MIXTURES)
def made(request):
    """The predictors of the draws, and the model of BoTorch."""
    if request.param not in MADE:
        MADE[request.param] = MIXTURES[request.param]()
    mixture = MADE[request.param]
    return drawn(mixture), BoTorchModel(mixture, draws=S)


def drawn(mixture):
    """The predictors of the draws, one by one."""
    predictor = tree.to_backend(mixture.predictor(), "torch")
    parts = predictor.processes[0].parts_of_draws(predictor.factors[0], S, generator(0, 22))
    each = [(process, factor) for process, factor, number in parts for _ in range(number)]
    noises = predictor.likelihood_of_draws(S).noise_variance.reshape(-1).expand(S)
    return [
        agp.Predictor((process,), (factor,), agp.Gaussian(noise))
        for (process, factor), noise in zip(each, noises, strict=True)
    ]


def covariances(posterior):
    return posterior.distribution.covariance_matrix


# -- posteriors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3,), (1,), (4, 1), (4, 3), (2, 4, 1), (2, 1, 3)], ids=str)
def test_each_draw_is_the_exact_gp_of_a_setting(made, shape):
    each, model = made
    inputs = tensor(RNG.uniform(size=(*shape, D)))
    posterior = model.posterior(inputs)
    assert posterior.mean.shape == (*shape[:-1], S, shape[-1], 1)
    assert posterior.mixture_mean.shape == (*shape, 1)
    assert model.batch_shape == (S,)
    assert botorch.utils.transforms.is_fully_bayesian(model)
    for s, one in enumerate(each):
        assert_close(posterior.mean[..., s, :, :].numpy(), one.predict_mean(inputs).numpy(), 1e-8)
        expected = one.predict_covariance(inputs)[..., 0, :, :]
        assert_close(covariances(posterior)[..., s, :, :].numpy(), expected.numpy(), 1e-8)


def test_many_draws_average_to_the_mixture():
    mixture = MIXTURES["kernels"]()
    posterior = BoTorchModel(mixture, draws=400).posterior(tensor(X + 0.05))
    mean, variance = mixture.predict(X + 0.05)
    assert_close(posterior.mixture_mean.numpy(), mean, 2e-3)
    assert_close(posterior.mixture_variance.numpy(), variance, 2e-2)


def test_without_draws_there_is_a_single_normal_distribution():
    mixture = MIXTURES["kernels"]()
    model = BoTorchModel(mixture, draws=0)
    posterior = model.posterior(tensor(X[:3] + 0.05))
    assert model.batch_shape == ()
    assert_close(posterior.mean.numpy(), mixture.predict_mean(X[:3] + 0.05), 1e-10)
    assert_close(covariances(posterior).numpy(), mixture.predict_covariance(X[:3] + 0.05)[0], 1e-8)


def test_observations_have_the_noise_of_their_draw(made):
    each, model = made
    inputs = tensor(RNG.uniform(size=(4, 3, D)))
    added = covariances(model.posterior(inputs, observation_noise=True)) - covariances(model.posterior(inputs))
    for s, one in enumerate(each):
        expected = one.likelihood.noise_variance * torch.eye(3, dtype=torch.float64)
        assert_close(added[:, s].numpy(), expected.expand(4, 3, 3).numpy(), 1e-6)
    for noise in (tensor([[0.3]]), tensor(RNG.uniform(size=(4, 3, 1)))):
        known = covariances(model.posterior(inputs, observation_noise=noise)) - covariances(model.posterior(inputs))
        expected = torch.diag_embed(noise.expand(4, 3, 1)[..., 0])[:, None].expand(4, S, 3, 3)
        assert_close(known.numpy(), expected.numpy(), 1e-8)


@pytest.mark.parametrize("name", ["kernels", "known-noise"])
def test_posteriors_and_fantasies_are_differentiable(name):
    model = BoTorchModel(MIXTURES[name](), draws=2)

    def moments(x):
        fantasies = model.fantasize(x, SobolQMCNormalSampler(torch.Size([1]), seed=3))
        posteriors = model.posterior(x), model.posterior(x[:, :1]), fantasies.posterior(tensor(X[:2] + 0.1))
        return tuple(x for one in posteriors for x in (one.mean, one.variance))

    assert torch.autograd.gradcheck(moments, (tensor(RNG.uniform(size=(1, 2, D))).requires_grad_(),), atol=1e-4)


# -- further data -----------------------------------------------------------------------------------------------------


def test_all_draws_see_further_observations(made):
    each, model = made
    inputs, targets = tensor(RNG.uniform(size=(3, D))), tensor(RNG.normal(size=(3, 1)))
    noise = tensor(RNG.uniform(0.1, 0.2, size=(3, 1)))
    by_draw = tensor(RNG.normal(size=(2, S, 3, 1)))
    at = tensor(X + 0.05)
    found = model.condition_on_observations(inputs, targets, noise=noise).posterior(at)
    several = model.condition_on_observations(inputs, by_draw, noise=noise).posterior(at)
    assert several.mean.shape == (2, S, ROWS, 1)
    for s, one in enumerate(each):
        more = noise - one.likelihood.noise_variance  # BoTorch's noise replaces that of the likelihood
        pairs = (found.mean[s], targets), (several.mean[1, s], by_draw[1, s])
        for value, seen in pairs:
            expected = one.condition_on(inputs, seen, noise=more).predict_mean(at)
            assert_close(value.numpy(), expected.numpy(), 1e-7)


def test_fantasies_belong_to_their_draw():
    mixture = MIXTURES["kernels"]()
    each, model = drawn(mixture), BoTorchModel(mixture, draws=S)
    inputs, at = tensor(RNG.uniform(size=(2, 3, D))), tensor(X + 0.05)
    fantasies = model.fantasize(inputs, SobolQMCNormalSampler(torch.Size([4]), seed=1))
    assert fantasies.batch_shape == (4, 2, S)
    assert not botorch.utils.transforms.is_ensemble(fantasies)
    seen = SobolQMCNormalSampler(torch.Size([4]), seed=1)(model.posterior(inputs, observation_noise=True))
    posterior = fantasies.posterior(at)
    for s in (0, S - 1):
        expected = each[s].condition_on(inputs[1], seen[3, 1, s])
        assert_close(posterior.mean[3, 1, s].numpy(), expected.predict_mean(at).numpy(), 1e-7)
    known = model.fantasize(inputs, SobolQMCNormalSampler(torch.Size([4])), observation_noise=tensor([[[0.1]] * 3] * 2))
    assert known.batch_shape == (4, 2, S)


@pytest.mark.parametrize("noise", [1e-4, 1e-2])
def test_without_noise_new_rows_are_known_like_the_old_ones(noise):
    mixture = _mixture(agp.Matern52(), likelihood=agp.Gaussian(0.0), noise=np.full(ROWS, noise))
    inputs, targets, at = tensor([[0.3, 0.6]]), tensor([[1.5]]), tensor(X + 0.05)
    found = BoTorchModel(mixture, draws=S).condition_on_observations(inputs, targets).posterior(at)
    for s, one in enumerate(drawn(mixture)):
        expected = one.condition_on(inputs, targets, noise=tensor([[noise]]))
        assert_close(found.mean[s].numpy(), expected.predict_mean(at).numpy(), 1e-7)


def test_without_draws_of_its_noise_a_new_row_has_the_mean_of_the_known_ones():
    known = np.linspace(1e-3, 1e-1, ROWS)
    mixture = _mixture(agp.Matern52(), likelihood=agp.Gaussian(0.0), noise=known)
    assert_close(np.ravel(mixture.noise), known, 1e-12)
    inputs, targets, at = tensor([[0.3, 0.6]]), tensor([[1.5]]), tensor(X + 0.05)
    found = BoTorchModel(mixture, draws=S).condition_on_observations(inputs, targets).posterior(at)
    for s, one in enumerate(drawn(mixture)):
        expected = one.condition_on(inputs, targets, noise=tensor([[known.mean()]]))
        assert_close(found.mean[s].numpy(), expected.predict_mean(at).numpy(), 1e-7)


def test_the_draws_are_settings_of_one_path_each():
    model = BoTorchModel(_mixture(agp.Matern52()), draws=4)
    paths = draw_matheron_paths(model, torch.Size([]))
    assert paths(tensor(X)).shape == (4, ROWS)
    assert draw_matheron_paths(model, torch.Size([3]))(tensor(X)).shape == (3, 4, ROWS)


@pytest.mark.parametrize("columns", [5, 6, 9])
def test_more_columns(columns):
    X = RNG.uniform(size=(20, columns))
    y = np.sin(3.0 * X[:, :1]) + X[:, 1:2]
    inputs, targets = tensor(RNG.uniform(size=(2, 3, columns))), tensor(RNG.normal(size=(2, 3, 1)))
    predictor = tree.to_backend(agp.GPR.from_data(X, y, likelihood=agp.Gaussian(0.01)).predictor(), "torch")
    found = BoTorchModel(predictor).condition_on_observations(inputs, targets)
    at = tensor(X).requires_grad_()
    slope = torch.autograd.grad(found.posterior(at).mean[1].sum(), at)[0]
    expected = predictor.condition_on(inputs[1], targets[1])
    assert_close(found.posterior(at).mean[1].detach().numpy(), expected.predict_mean(tensor(X)).numpy(), 1e-9)
    assert_close(slope.numpy(), expected.gradient(tensor(X)).mean[:, 0].numpy(), 1e-8)


# -- acquisition functions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernels", ["one-kernel", "kernels"])
def test_acquisition_functions_average_over_draws(kernels):
    model = BoTorchModel(MIXTURES[kernels](), draws=S)
    best = float(Y.max())
    improvement = acquisitions.LogExpectedImprovement(model, best_f=best)
    points = torch.rand(5, 1, D, dtype=torch.float64)
    posterior = model.posterior(points)
    z = (posterior.mean - best) / posterior.variance.sqrt()
    normal = torch.distributions.Normal(tensor(0.0), tensor(1.0))
    expected = posterior.variance.sqrt() * (z * normal.cdf(z) + normal.log_prob(z).exp())
    assert_close(improvement(points).exp().numpy(), expected.mean(dim=1)[:, 0, 0].numpy(), 1e-6)
    for acquisition, q in (
        (improvement, 1),
        (acquisitions.qLogExpectedImprovement(model, best_f=best), 4),
        (acquisitions.qLogNoisyExpectedImprovement(model, tensor(X), prune_baseline=True), 2),
        (acquisitions.qKnowledgeGradient(model, num_fantasies=3), 1),
    ):
        torch.manual_seed(0)
        x, value = optimize_acqf(acquisition, UNIT, q=q, **BRIEF)
        assert x.shape == (q, D)
        assert torch.isfinite(value).all()


def test_hypervolumes_of_two_averages():
    model = BoTorchModelList(_mixture(agp.Matern52()), _mixture(agp.Matern52(), y=1.0 - F**2), draws=4)
    logei = botorch.acquisition.multi_objective.logei
    acquisition = logei.qLogNoisyExpectedHypervolumeImprovement(model, [-1.0, -1.0], tensor(X), prune_baseline=True)
    x, value = optimize_acqf(acquisition, UNIT, q=2, **BRIEF)
    assert x.shape == (2, D)
    assert torch.isfinite(value).all()
    fantasies = model.fantasize(tensor(X[:2]), SobolQMCNormalSampler(torch.Size([3])))
    assert fantasies.posterior(tensor(X[:5])).mean.shape == (3, 4, 5, 2)


# -- what is refused --------------------------------------------------------------------------------------------------


def test_wrong_draws_are_refused():
    mixture = MIXTURES["one-kernel"]()
    with pytest.raises(ValueError, match="draws"):
        BoTorchModel(mixture, draws=-1)
    several = mixture.predictor().condition_on(RNG.uniform(size=(3, 1, D)), RNG.normal(size=(3, 1)))
    with pytest.raises(ValueError, match=r"conditioned on sets of data with the axes \(3,\)"):
        BoTorchModel(several)
    model = BoTorchModel(mixture, draws=S)
    for size in (S + 1, 2):
        with pytest.raises(ValueError, match=f"must have the size 1 or {S}, the number of draws"):
            model.condition_on_observations(tensor(X[:1]), torch.zeros(size, 1, 1, dtype=torch.float64))
