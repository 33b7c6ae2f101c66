"""Models in BoTorch: posteriors are the predictor's, derivatives are right, batches are loops, acquisitions climb."""

import numpy as np
import pytest
from helpers import assert_close

import agp
from agp import tree
from agp.inducing import Points

torch = pytest.importorskip("torch", reason="torch is not installed: not executed")
botorch = pytest.importorskip("botorch", reason="botorch is not installed: not executed")
acquisitions, optimize_acqf = botorch.acquisition, botorch.optim.optimize_acqf
LinearMCObjective = acquisitions.objective.LinearMCObjective
ScalarizedPosteriorTransform = acquisitions.objective.ScalarizedPosteriorTransform
SobolQMCNormalSampler = botorch.sampling.SobolQMCNormalSampler
BoTorchModel, BoTorchModelList = agp.interop.botorch.BoTorchModel, agp.interop.botorch.BoTorchModelList

RNG = np.random.default_rng(0)
ROWS, D = 24, 2
X = RNG.uniform(size=(ROWS, D))
F = np.sin(5.0 * X[:, :1]) + X[:, 1:] ** 2
Y = F + 0.05 * RNG.normal(size=F.shape)
PAIR = np.concatenate([Y, 3.0 - 2.0 * F + 0.1 * RNG.normal(size=F.shape)], axis=1)
UNIT = torch.tensor([[0.0] * D, [1.0] * D], dtype=torch.float64)
SETS = RNG.uniform(size=(3, 2, 4, D))


def _exact(y):
    model = agp.GPR.from_data(X, y, kernel=agp.Matern52(1.0, (0.5, 0.7)), likelihood=agp.Gaussian(0.01))
    return agp.fit_lbfgs(model, X, y, max_iterations=5).model


def _sparse(kind, y=Y, **options):
    return agp.train(kind.from_data(X, y, num_inducing=8, **options), X, y, steps=5).model


MAKE = {
    "gpr": lambda: _exact(Y),
    "sgpr": lambda: _sparse(agp.SGPR),
    "wsvgp": lambda: _sparse(agp.SVGP, posterior="whitened"),
    "rsvgp": lambda: _sparse(agp.SVGP),
    "tvgp": lambda: agp.TVGP.from_data(X, Y, likelihood=agp.Gaussian(0.02)),
    "nngp": lambda: agp.NNGP.from_data(X, Y, likelihood=agp.Gaussian(0.02), neighbours=10),
    "tnngp": lambda: agp.TNNGP.from_data(X, Y, likelihood=agp.Gaussian(0.02), neighbours=10),
    "cagp": lambda: agp.CaGP.from_data(X, Y, num_actions=5),
    "bernoulli": lambda: _sparse(agp.SVGP, 1.0 * (Y > 0.5), likelihood=agp.Bernoulli(), posterior="whitened"),
    "gpr-pair": lambda: _exact(PAIR),
    "shared": lambda: _sparse(agp.SVGP, PAIR, outputs="shared", posterior="whitened"),
    "separate": lambda: _sparse(agp.SVGP, PAIR, outputs="separate", posterior="whitened"),
    "coregionalised": lambda: _sparse(agp.SVGP, PAIR, outputs=agp.Coregionalised(latents=2), posterior="whitened"),
}
GROWS = ("gpr", "sgpr", "wsvgp", "rsvgp", "tvgp", "nngp", "tnngp", "gpr-pair", "shared", "separate")
"""Those to which further data come."""
MODELS = {}


@pytest.fixture
def made(request):
    """The predictor of that name on torch, and its model of BoTorch."""
    name = request.param
    if name not in MODELS:
        MODELS[name] = tree.to_backend(MAKE[name]().predictor(), "torch")
    return MODELS[name], BoTorchModel(MODELS[name])


def tensor(x):
    return torch.as_tensor(np.asarray(x), dtype=torch.float64)


def joint(posterior):
    """The covariances [..., q, m, q, m], in whichever order the distribution has them."""
    mvn = posterior.distribution
    C, (q, m) = mvn.covariance_matrix, posterior.mean.shape[-2:]
    C = C.reshape(*C.shape[:-2], *((q, m, q, m) if m == 1 or mvn._interleaved else (m, q, m, q)))
    return C if m == 1 or mvn._interleaved else C.transpose(-4, -3).transpose(-2, -1)


# -- posteriors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4,), (1,), (2, 1), (3, 4), (3, 2, 4)], ids=str)
@pytest.mark.parametrize("made", MAKE, indirect=True)
def test_a_posterior_is_what_the_predictor_says_of_each_set(made, shape):
    predictor, model = made
    inputs = tensor(RNG.uniform(size=(*shape, D)))
    posterior = model.posterior(inputs)
    assert posterior.mean.shape == (*shape, model.num_outputs)
    found, expected = joint(posterior), predictor.predict_covariance(inputs, cross_outputs=True)
    assert_close(posterior.mean.numpy(), predictor.predict_mean(inputs).numpy(), 1e-10)
    assert_close(posterior.variance.numpy(), predictor.predict(inputs).variance.numpy(), 1e-9)
    assert_close(found.numpy(), expected.numpy(), 1e-9)
    assert posterior.rsample(torch.Size([5])).shape == (5, *shape, model.num_outputs)


@pytest.mark.parametrize("made", MAKE, indirect=True)
def test_posteriors_are_differentiable_in_the_inputs(made):
    _, model = made

    def moments(x):
        posterior = model.posterior(x)
        return posterior.mean, joint(posterior)

    for inputs in (SETS[0], SETS[0][:, :1]):
        assert torch.autograd.gradcheck(moments, (tensor(inputs).requires_grad_(),))


@pytest.mark.parametrize("made", ["coregionalised", "gpr-pair"], indirect=True)
def test_outputs_are_chosen_and_scalarised(made):
    predictor, model = made
    inputs, weights = tensor(SETS[0]), tensor([0.3, -1.2])
    cross = predictor.predict_covariance(inputs, cross_outputs=True)
    scalar = model.posterior(inputs, posterior_transform=ScalarizedPosteriorTransform(weights))
    assert_close(scalar.mean[..., 0].numpy(), (predictor.predict_mean(inputs) @ weights).numpy(), 1e-9)
    expected = torch.einsum("p,bnpmr,r->bnm", weights, cross, weights)
    assert_close(scalar.distribution.covariance_matrix.numpy(), expected.numpy(), 1e-9)
    for i in range(2):
        for one in (model.posterior(inputs, output_indices=[i]), model.subset_output([i]).posterior(inputs)):
            assert_close(one.mean.numpy(), predictor.predict_mean(inputs)[..., [i]].numpy(), 1e-10)
            assert_close(one.distribution.covariance_matrix.numpy(), cross[:, :, i, :, i].numpy(), 1e-9)
    turned = model.subset_output([1, 0])
    assert turned.num_outputs == 2
    assert_close(turned.posterior(inputs).mean.numpy(), predictor.predict_mean(inputs).flip(-1).numpy(), 1e-10)
    assert_close(joint(turned.posterior(inputs)).numpy(), cross.flip(2, 4).numpy(), 1e-9)
    assert turned.subset_output([0]).posterior(inputs, output_indices=[0]).mean.shape == (2, 4, 1)


@pytest.mark.parametrize("made", ["gpr", "coregionalised", "gpr-pair"], indirect=True)
def test_observations_have_noise(made):
    predictor, model = made
    inputs = tensor(SETS[0])
    cross, observed = joint(model.posterior(inputs)), joint(model.posterior(inputs, observation_noise=True))
    q, m = inputs.shape[-2], model.num_outputs
    noise = predictor.predict(inputs, observed=True).variance - predictor.predict(inputs).variance
    added = torch.diag_embed(noise.reshape(2, q * m)).reshape(2, q, m, q, m)
    assert_close((observed - cross).numpy(), added.numpy(), 1e-8)
    given = tensor(RNG.uniform(size=(1, m)))
    known = joint(model.posterior(inputs, observation_noise=given)) - cross
    expected = torch.diag_embed(given.expand(2, q, m).reshape(2, q * m)).reshape(2, q, m, q, m)
    assert_close(known.numpy(), expected.numpy(), 1e-10)


@pytest.mark.parametrize("unit", [1e-7, 1.0, 1e5])
def test_points_that_coincide_are_sampled_in_any_unit(unit):
    model = agp.GPR.from_data(X, unit * PAIR, kernel=agp.RBF(), likelihood=agp.Gaussian(1e-12 * unit**2))
    inputs = tensor(np.concatenate([SETS[0], SETS[0], X[None, :3].repeat(2, axis=0)], axis=1))
    posterior = BoTorchModel(model).posterior(inputs)
    samples = posterior.rsample(torch.Size([2000]))
    assert_close(samples[:, :, :4].numpy(), samples[:, :, 4:8].numpy(), 2e-2)
    C = joint(posterior)
    deviation = torch.einsum("bnpnp->bnp", C).clamp_min(0.0).sqrt()
    assert ((samples.std(dim=0) - deviation).abs() < 0.2 * deviation + 2e-3 * unit).all()


def test_single_points_of_layers_have_a_posterior():
    model = agp.DeepGP.from_data(X, Y, layers=2, num_inducing=6)
    predictor, inputs = tree.to_backend(model.predictor(), "torch"), tensor(SETS[0][:, :1])
    posterior = BoTorchModel(model).posterior(inputs)
    assert_close(posterior.variance.numpy(), predictor.predict(inputs).variance.numpy(), 1e-10)
    with pytest.raises(TypeError):
        BoTorchModel(model).posterior(tensor(SETS[0]))


def test_models_come_from_any_library_and_modes_change_nothing():
    model, inputs = MAKE["gpr"](), tensor(SETS[0])
    expected = BoTorchModel(tree.to_backend(model, "torch")).posterior(inputs).mean
    for found in (BoTorchModel(model), BoTorchModel(model.predictor()).train(), BoTorchModel(model).eval()):
        assert_close(found.posterior(inputs).mean.numpy(), expected.numpy(), 1e-12)
        assert found.batch_shape == torch.Size()
        assert not list(found.parameters())


# -- further data -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", GROWS, indirect=True)
def test_further_observations_are_those_of_the_predictor(made):
    predictor, model = made
    m = model.num_outputs
    inputs, targets = tensor(SETS[0]), tensor(RNG.normal(size=(5, 2, 4, m)))
    found = model.condition_on_observations(inputs, targets)
    assert found.batch_shape == (5, 2)
    posterior = found.posterior(tensor(SETS[1]))
    for i, j in ((0, 0), (4, 1), (2, 0)):
        expected = predictor.condition_on(inputs[j], targets[i, j])
        at = tensor(SETS[1][j])
        assert_close(posterior.mean[i, j].numpy(), expected.predict_mean(at).numpy(), 1e-9)
        cross = expected.predict_covariance(at, cross_outputs=True)
        assert_close(joint(posterior)[i, j].numpy(), cross.numpy(), 1e-9)
    once = model.condition_on_observations(inputs[0], targets[0, 0])
    assert once.batch_shape == torch.Size()
    twice = once.condition_on_observations(inputs, targets[0])
    expected = predictor.condition_on(inputs[0], targets[0, 0]).condition_on(inputs[1], targets[0, 1])
    at = tensor(SETS[1][0])
    assert_close(twice.posterior(at).mean[1].numpy(), expected.predict_mean(at).numpy(), 1e-9)


def test_an_exact_model_with_further_observations_is_that_of_all_rows():
    options = {"kernel": agp.RBF(1.1, (0.5, 0.7)), "likelihood": agp.Gaussian(0.02), "mean_function": agp.ZeroMean()}
    old, whole = (BoTorchModel(agp.GPR.from_data(X[:n], PAIR[:n], **options)) for n in (16, ROWS))
    found = old.condition_on_observations(tensor(X[16:]), tensor(PAIR[16:]))
    value, expected = (one.posterior(tensor(SETS[0])) for one in (found, whole))
    assert_close(value.mean.numpy(), expected.mean.numpy(), 1e-9)
    assert_close(joint(value).numpy(), joint(expected).numpy(), 1e-9)


def test_known_noise_of_observations():
    predictor = tree.to_backend(MAKE["gpr"]().predictor(), "torch")
    inputs, targets, noise = (tensor(RNG.uniform(0.1, 1.0, (2, 4, k))) for k in (D, 1, 1))
    for given in (noise, noise[:1, :1]):
        found = BoTorchModel(predictor).condition_on_observations(inputs, targets, noise=given)
        for i in range(2):
            full = given.expand(2, 4, 1)[i]
            more = full - predictor.likelihood.noise_variance  # BoTorch's noise replaces that of the likelihood
            expected = predictor.condition_on(inputs[i], targets[i], noise=more).predict(tensor(X))
            assert_close(found.posterior(tensor(X)).mean[i].numpy(), expected.mean.numpy(), 1e-9)
    fantasies = BoTorchModel(predictor).fantasize(
        inputs, SobolQMCNormalSampler(torch.Size([3]), seed=0), observation_noise=noise[0]
    )
    assert fantasies.batch_shape == (3, 2)


VARIANCES = np.linspace(0.01, 0.4, len(X))


def known_noise(y=Y):
    model = agp.GPR.from_data(X, y, kernel=agp.Matern52(), likelihood=agp.Gaussian(0.0), noise=VARIANCES)
    return BoTorchModel(model)


def test_new_rows_have_the_mean_of_the_known_noise_variances():
    model, inputs, targets, at = known_noise(), tensor(SETS[0, 0]), tensor(SETS[0, 0][:, :1]), tensor(X)
    mean = torch.full_like(targets, VARIANCES.mean())
    found = model.condition_on_observations(inputs, targets)
    expected = model.condition_on_observations(inputs, targets, noise=mean)
    assert_close(found.posterior(at).variance.detach().numpy(), expected.posterior(at).variance.detach().numpy(), 1e-9)


@pytest.mark.parametrize("of", [lambda model: model, lambda model: BoTorchModelList(model, known_noise(Y[::-1]))])
def test_fantasies_have_the_mean_of_the_known_noise_variances(of):
    model, inputs, at = of(known_noise()), tensor(SETS[0, 0]), tensor(X)
    given = torch.full((1, model.num_outputs), VARIANCES.mean(), dtype=torch.float64)
    found = [
        model.fantasize(inputs, SobolQMCNormalSampler(torch.Size([3]), seed=0), **more).posterior(at)
        for more in ({}, {"observation_noise": given})
    ]
    assert_close(found[0].mean.detach().numpy(), found[1].mean.detach().numpy(), 1e-9)
    assert_close(found[0].variance.detach().numpy(), found[1].variance.detach().numpy(), 1e-9)


@pytest.mark.parametrize("shape", [(3, 1), (2, 2), (2,), (3, 2, 1)])
def test_noise_variances_of_another_shape_are_refused(shape):
    inputs, targets, noise = tensor(X[:2]), tensor(np.zeros((4, 2, 1))), torch.ones(shape, dtype=torch.float64)
    for model in (known_noise(), BoTorchModelList(known_noise())):
        with pytest.raises(
            ValueError, match=r"^noise has shape .* must fit targets of shape \(4, 2, 1\); pass a noise "
        ):
            model.condition_on_observations(inputs, targets, noise=noise)
    if len(shape) < 3:
        with pytest.raises(ValueError, match=r"^observation_noise has shape .*\[\.\.\., 2, 1\]"):
            known_noise().posterior(inputs, observation_noise=noise)
        for model in (known_noise(), BoTorchModelList(known_noise())):
            with pytest.raises(ValueError, match="noise has shape"):
                model.fantasize(inputs, SobolQMCNormalSampler(torch.Size([3])), observation_noise=noise)
    with pytest.raises(ValueError, match="noise has an entry that is negative"):
        known_noise().condition_on_observations(inputs, targets, noise=-torch.ones(2, 1, dtype=torch.float64))


@pytest.mark.parametrize("of", [lambda one: one, lambda one: BoTorchModelList(one, one)])
def test_one_number_is_the_noise_variance_of_all_targets(of):
    model, inputs, at = of(known_noise()), tensor(X[:2]), tensor(X)
    targets, whole = tensor(np.ones((2, model.num_outputs))), torch.full((2, model.num_outputs), 0.5)
    found = [model.condition_on_observations(inputs, targets, noise=noise).posterior(at) for noise in (0.5, whole)]
    assert_close(found[0].mean.detach().numpy(), found[1].mean.detach().numpy(), 1e-12)
    fantasies = [
        model.fantasize(inputs, SobolQMCNormalSampler(torch.Size([3]), seed=0), observation_noise=noise).posterior(at)
        for noise in (0.5, whole)
    ]
    assert_close(fantasies[0].mean.detach().numpy(), fantasies[1].mean.detach().numpy(), 1e-12)
    noisy = [model.posterior(at, observation_noise=noise) for noise in (0.5, whole[:1])]
    assert_close(noisy[0].variance.detach().numpy(), noisy[1].variance.detach().numpy(), 1e-12)
    both = BoTorchModel(agp.GPR.from_data(X, np.concatenate([X[:, :1], X[:, :1] ** 2], axis=1)).predictor())
    targets = tensor(np.ones((2, 2)))
    assert both.condition_on_observations(inputs, targets, noise=0.5).posterior(at).mean.shape == (len(X), 2)
    for noise in (True, False):
        with pytest.raises(TypeError, match=f"noise is {noise}, but must be noise variances; leave it out"):
            both.condition_on_observations(inputs, targets, noise=noise)


@pytest.mark.parametrize("name", ["gpr", "wsvgp"])
def test_a_posterior_evaluates_the_kernel_once(name, monkeypatch):
    model, calls, cross = BoTorchModel(MAKE[name]()), [], Points.cross
    monkeypatch.setattr(Points, "cross", lambda *args: calls.append(1) or cross(*args))
    model.posterior(tensor(SETS[0]))
    assert len(calls) == 1


@pytest.mark.parametrize("made", GROWS, indirect=True)
def test_fantasies_lead_and_are_as_if_seen(made):
    predictor, model = made
    sampler, inputs = SobolQMCNormalSampler(torch.Size([5]), seed=1), tensor(SETS[0])
    fantasies = model.fantasize(inputs, sampler)
    assert fantasies.batch_shape == (5, 2)
    seen = SobolQMCNormalSampler(torch.Size([5]), seed=1)(model.posterior(inputs, observation_noise=True))
    at = tensor(SETS[1][0])
    posterior = fantasies.posterior(at)
    assert posterior.mean.shape == (5, 2, 4, model.num_outputs)
    expected = predictor.condition_on(inputs[1], seen[3, 1])
    assert_close(posterior.mean[3, 1].numpy(), expected.predict_mean(at).numpy(), 1e-9)
    assert fantasies.posterior(tensor(RNG.uniform(size=(5, 2, 1, D)))).mean.shape == (5, 2, 1, model.num_outputs)
    assert fantasies.posterior(tensor(RNG.uniform(size=(4, 1, 2, 3, D)))).mean.shape[:4] == (4, 5, 2, 3)
    twice = fantasies.fantasize(tensor(SETS[2]), SobolQMCNormalSampler(torch.Size([2]), seed=2))
    assert twice.batch_shape == (2, 5, 2)


@pytest.mark.parametrize("made", GROWS, indirect=True)
def test_fantasies_are_differentiable_in_what_was_seen(made):
    _, model = made

    def moments(x):
        fantasies = model.fantasize(x, SobolQMCNormalSampler(torch.Size([2]), seed=3))
        posterior = fantasies.posterior(tensor(SETS[1][0][:2]))
        return posterior.mean, posterior.variance

    assert torch.autograd.gradcheck(moments, (tensor(SETS[0][:, :2]).requires_grad_(),), atol=1e-4)


@pytest.mark.filterwarnings("ignore::agp.errors.RepairWarning")
def test_predictors_of_several_posteriors_come_with_their_axes():
    predictor = tree.to_backend(MAKE["sgpr"]().predictor(), "torch")
    inputs, targets = tensor(SETS), tensor(RNG.normal(size=(3, 2, 4, 1)))
    seen = predictor.condition_on(inputs, targets)
    model = BoTorchModel(seen)
    assert model.batch_shape == (3, 2)
    at = tensor(X)
    assert_close(model.posterior(at).mean.numpy(), seen.predict_mean(at).numpy(), 1e-9)


def test_sites_of_counts_settle_in_each_set_by_itself():
    counts = RNG.poisson(np.exp(F)).astype(float)
    predictor = tree.to_backend(
        _sparse(agp.SVGP, counts, likelihood=agp.Poisson(), posterior="whitened").predictor(), "torch"
    )
    inputs, targets = tensor(SETS[0]), tensor(RNG.poisson(2.0, size=(3, 2, 4, 1)))
    posterior = BoTorchModel(predictor).condition_on_observations(inputs, targets).posterior(tensor(X))
    for i, j in ((0, 1), (2, 0)):
        expected = predictor.condition_on(inputs[j], targets[i, j]).predict_mean(tensor(X))
        assert_close(posterior.mean[i, j].numpy(), expected.numpy(), 1e-9)


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", ["bernoulli"], indirect=True)
def test_observations_that_are_not_normal_are_refused(made):
    _, model = made
    with pytest.raises(TypeError, match="observation_noise=True needs Gaussian noise, but the likelihood is Bernoulli"):
        model.posterior(tensor(SETS[0]), observation_noise=True)
    with pytest.raises(TypeError, match="fantasize needs Gaussian noise"):
        model.fantasize(tensor(SETS[0]), SobolQMCNormalSampler(torch.Size([2])))


@pytest.mark.parametrize("made", ["gpr-pair"], indirect=True)
def test_observations_of_some_of_the_outputs_are_refused(made):
    _, model = made
    with pytest.raises(ValueError, match=r"has only the outputs \(1,\), but conditioning needs all 2 outputs"):
        model.subset_output([1]).condition_on_observations(tensor(SETS[0]), tensor(SETS[0][..., :1]))


@pytest.mark.parametrize("made", ["gpr"], indirect=True)
def test_wrong_inputs_are_refused(made):
    _, model = made
    with pytest.raises(TypeError, match="class GPR"):
        BoTorchModel(agp.GPR)
    for shape in ((2, 4, D), (2, 1, D)):
        with pytest.raises(ValueError, match="columns"):
            model.posterior(torch.zeros(*shape[:-1], D + 1, dtype=torch.float64))
        with pytest.raises(ValueError, match="NaN or infinite"):
            model.posterior(torch.full(shape, torch.nan, dtype=torch.float64))


# -- acquisition functions --------------------------------------------------------------------------------------------


def climbed(acquisition, q=1, **options):
    """Where BoTorch ends, and by how much it is better than random points."""
    torch.manual_seed(0)
    x, value = optimize_acqf(acquisition, UNIT, q=q, num_restarts=3, raw_samples=16, **options)
    assert x.shape == (q, D)
    assert ((x >= 0.0) & (x <= 1.0)).all()
    chance = acquisition(torch.rand(64, q, D, dtype=torch.float64))
    return value.max().item() - chance.max().item()


@pytest.mark.parametrize("made", ["gpr", "sgpr", "wsvgp", "rsvgp", "cagp"], indirect=True)
def test_the_expected_improvement_is_climbed(made):
    _, model = made
    best = float(Y.max())
    assert climbed(acquisitions.qLogExpectedImprovement(model, best_f=best)) >= 0.0
    assert climbed(acquisitions.LogExpectedImprovement(model, best_f=best)) >= 0.0
    assert climbed(acquisitions.UpperConfidenceBound(model, beta=2.0)) >= 0.0


@pytest.mark.parametrize("made", ["gpr", "sgpr", "wsvgp"], indirect=True)
def test_several_points_at_once_and_noisy_improvements(made):
    _, model = made
    assert climbed(acquisitions.qLogExpectedImprovement(model, best_f=float(Y.max())), q=2) >= 0.0
    assert climbed(acquisitions.qLogNoisyExpectedImprovement(model, tensor(X)), q=1) >= 0.0
    sequential = acquisitions.qLogNoisyExpectedImprovement(model, tensor(X), prune_baseline=True)
    climbed(sequential, q=2, sequential=True)


@pytest.mark.parametrize("made", ["gpr", "sgpr", "wsvgp"], indirect=True)
def test_the_knowledge_gradient_looks_ahead(made):
    _, model = made
    acquisition = acquisitions.qKnowledgeGradient(model, num_fantasies=4)
    torch.manual_seed(0)
    x, value = optimize_acqf(acquisition, UNIT, q=1, num_restarts=2, raw_samples=8, options={"maxiter": 20})
    assert x.shape == (1, D)
    assert torch.isfinite(value)
    inputs = torch.rand(2, 5, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    assert torch.autograd.gradcheck(acquisition, (inputs,), atol=1e-4)


@pytest.mark.parametrize("made", ["gpr-pair", "shared", "separate", "coregionalised"], indirect=True)
def test_two_outputs_are_weighed(made):
    _, model = made
    weights = tensor([1.0, 0.5])
    best = float((PAIR @ weights.numpy()).max())
    objective = LinearMCObjective(weights)
    assert climbed(acquisitions.qLogExpectedImprovement(model, best_f=best, objective=objective)) >= 0.0
    transform = ScalarizedPosteriorTransform(weights)
    found = acquisitions.LogExpectedImprovement(model, best_f=best, posterior_transform=transform)
    assert climbed(found) >= 0.0
