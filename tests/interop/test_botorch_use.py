"""What BoTorch's functions need beside posteriors: data of the models, lists of models, paths, and mixed columns."""

import numpy as np
import pytest
from helpers import assert_close

import agp
from agp import tree

torch = pytest.importorskip("torch", reason="torch is not installed: not executed")
botorch = pytest.importorskip("botorch", reason="botorch is not installed: not executed")
pathwise = pytest.importorskip("botorch.sampling.pathwise")
acquisitions, optimize_acqf = botorch.acquisition, botorch.optim.optimize_acqf
logei = pytest.importorskip("botorch.acquisition.multi_objective.logei")
SobolQMCNormalSampler = botorch.sampling.SobolQMCNormalSampler
BoTorchModel, BoTorchModelList = agp.interop.botorch.BoTorchModel, agp.interop.botorch.BoTorchModelList

RNG = np.random.default_rng(0)
ROWS, D = 16, 2
X = RNG.uniform(size=(ROWS, D))
F = np.sin(5.0 * X[:, :1]) + X[:, 1:] ** 2
PAIR = np.concatenate([F, 3.0 - 2.0 * F**2], axis=1) + 0.05 * RNG.normal(size=(ROWS, 2))
UNIT = torch.tensor([[0.0] * D, [1.0] * D], dtype=torch.float64)
BRIEF = {"num_restarts": 2, "raw_samples": 8, "options": {"maxiter": 10}}
REFERENCE = [-1.0, -2.0]


def tensor(x):
    return torch.as_tensor(np.asarray(x), dtype=torch.float64)


def exact(y, inputs=X):
    kernel = agp.Matern52(1.0, tuple([0.6] * inputs.shape[1]))
    return agp.GPR.from_data(inputs, y, kernel=kernel, likelihood=agp.Gaussian(0.01))


def sparse(y, **options):
    return agp.train(agp.SGPR.from_data(X, y, num_inducing=8, **options), X, y, steps=3).model


def mixture(y):
    return agp.integrate(agp.GPR.from_data(X, y, kernel=agp.Matern52()), settings=16).model


def found(acquisition, q=1, bounds=UNIT, **options):
    torch.manual_seed(0)
    x, value = optimize_acqf(acquisition, bounds, q=q, **BRIEF | options)
    assert x.shape == (q, bounds.shape[1])
    assert torch.isfinite(value).all()
    return x


# -- the data of a model ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [exact, mixture], ids=["exact", "mixture"])
def test_models_that_hold_data_show_them(build):
    model = BoTorchModel(build(PAIR[:, 0]))
    assert_close(model.train_inputs[0].numpy(), X, 0.0)
    assert_close(model.train_targets.numpy(), PAIR[:, 0], 0.0)
    more = model.condition_on_observations(tensor(X[:2]), tensor(PAIR[:2, :1]))
    assert more.train_inputs[0].shape == (*model.batch_shape, ROWS + 2, D)
    assert_close(more.train_targets[..., ROWS:].numpy(), np.broadcast_to(PAIR[:2, 0], (*model.batch_shape, 2)), 0.0)
    fantasies = model.fantasize(tensor(RNG.uniform(size=(3, 2, D))), SobolQMCNormalSampler(torch.Size([4])))
    assert fantasies.train_inputs[0].shape == (4, 3, *model.batch_shape, ROWS + 2, D)
    assert fantasies.train_targets.shape == (4, 3, *model.batch_shape, ROWS + 2)


def test_targets_of_several_outputs_come_first_as_in_gpytorch():
    model = BoTorchModel(exact(PAIR))
    assert_close(model.train_targets.numpy(), PAIR.T, 0.0)
    assert_close(model.subset_output([1]).train_targets.numpy(), PAIR[:, 1], 0.0)
    assert_close(model.subset_output([1, 0]).train_targets.numpy(), PAIR[:, ::-1].T, 0.0)
    more = model.condition_on_observations(tensor(RNG.uniform(size=(3, 2, D))), tensor(RNG.normal(size=(3, 2, 2))))
    assert more.train_targets.shape == (3, 2, ROWS + 2)


@pytest.mark.parametrize(
    "given",
    [lambda y: agp.SVGP.from_data(X, y, num_inducing=8), lambda y: exact(y).predictor()],
    ids=["sparse", "predictor"],
)
def test_data_can_be_passed(given):
    model = given(PAIR[:, :1])
    for name in ("train_inputs", "train_targets"):
        with pytest.raises(AttributeError, match=rf"pass data=\(X, y\) to BoTorchModel for {name}"):
            getattr(BoTorchModel(model), name)
    told = BoTorchModel(model, data=(X, PAIR[:, 0]))
    assert_close(told.train_inputs[0].numpy(), X, 0.0)
    assert told.train_targets.shape == (ROWS,)
    with pytest.raises(AttributeError, match="no attribute 'covar_module'"):
        told.covar_module  # noqa: B018


def test_functions_that_read_the_data():
    model = BoTorchModel(exact(PAIR[:, :1]))
    found(acquisitions.qMaxValueEntropy(model, torch.rand(20, D, dtype=torch.float64)))
    found(acquisitions.qLowerBoundMaxValueEntropy(model, torch.rand(20, D, dtype=torch.float64)))
    lookahead = acquisitions.multi_step_lookahead.qMultiStepLookahead(model, batch_sizes=[1], num_fantasies=[2])
    torch.manual_seed(0)
    assert lookahead(torch.rand(3, lookahead.get_augmented_q_batch_size(1), D, dtype=torch.float64)).shape == (3,)
    bounds = [(0.0, 1.0)] * D
    made = acquisitions.input_constructors.construct_inputs_NIPV(model, bounds=bounds, num_mc_points=8)
    found(acquisitions.active_learning.qNegIntegratedPosteriorVariance(**made))
    assert acquisitions.utils.get_infeasible_cost(tensor(X), model).item() > 0.0
    assert len(acquisitions.utils.prune_inferior_points(model, tensor(X))) < ROWS


# -- several objectives and constraints -------------------------------------------------------------------------------

SEVERAL = {
    "list": lambda: BoTorchModelList(exact(PAIR[:, :1]), sparse(PAIR[:, 1:])),
    "list-of-three": lambda: BoTorchModelList(BoTorchModel(exact(PAIR)), exact(F)).subset_output([0, 1]),
    "averages": lambda: BoTorchModelList(mixture(PAIR[:, 0]), mixture(PAIR[:, 1]), draws=3),
    "outputs": lambda: BoTorchModel(exact(PAIR)),
}


def test_a_list_has_the_posteriors_of_its_models():
    models = exact(PAIR[:, :1]), sparse(PAIR[:, 1:])
    together, at = BoTorchModelList(*models), tensor(RNG.uniform(size=(3, 4, D)))
    posterior, more_at = together.posterior(at), tensor(RNG.uniform(size=(2, 3, 1, D)))
    assert together.num_outputs == 2
    targets = tensor(RNG.normal(size=(2, 4, 2)))
    given = together.condition_on_observations(at[:2], targets, noise=torch.full_like(targets, 0.1))
    fantasies = together.fantasize(at, SobolQMCNormalSampler(torch.Size([2]), seed=0))
    for i, model in enumerate(models):
        one = BoTorchModel(model)
        assert_close(posterior.mean[..., [i]].numpy(), one.posterior(at).mean.numpy(), 1e-12)
        expected = one.condition_on_observations(at[:2], targets[..., [i]], noise=torch.full((4, 1), 0.1).double())
        assert_close(given.posterior(at[:2]).mean[..., [i]].numpy(), expected.posterior(at[:2]).mean.numpy(), 1e-7)
        assert fantasies.models[i].batch_shape == (2, 3)
    assert fantasies.posterior(more_at).mean.shape == (2, 3, 1, 2)
    each = together.condition_on_observations([at[:2]] * 2, targets)
    assert_close(
        each.posterior(at[:2]).mean.numpy(),
        together.condition_on_observations(at[:2], targets).posterior(at[:2]).mean.numpy(),
        1e-12,
    )
    with pytest.raises(ValueError, match="Y has 1 column, but the models have 2 outputs"):
        together.condition_on_observations(at[:2], targets[..., :1])


def test_a_list_shows_the_data_of_its_models():
    together = BoTorchModelList(exact(PAIR[:, :1]), BoTorchModel(sparse(PAIR[:, 1:]), data=(X, PAIR[:, 1])))
    assert_close(together.train_inputs[1][0].numpy(), X, 0.0)
    assert_close(together.train_targets[1].numpy(), PAIR[:, 1], 0.0)


@pytest.mark.parametrize("name", SEVERAL)
def test_hypervolumes_are_climbed(name):
    model = SEVERAL[name]()
    acquisition = logei.qLogNoisyExpectedHypervolumeImprovement(model, REFERENCE, tensor(X), prune_baseline=True)
    x = found(acquisition, q=2)
    chance = acquisition(torch.rand(16, 2, D, dtype=torch.float64))
    assert acquisition(x) > chance.median()


@pytest.mark.parametrize("name", SEVERAL)
def test_outcomes_have_constraints(name):
    model = SEVERAL[name]()
    options = {
        "objective": acquisitions.objective.GenericMCObjective(lambda Y, X=None: Y[..., 0]),
        "constraints": [lambda Y: 1.0 - Y[..., 1]],
    }
    found(acquisitions.qLogExpectedImprovement(model, best_f=0.5, **options), q=4)
    acquisition = acquisitions.qLogNoisyExpectedImprovement(model, tensor(X), **options)
    x = found(acquisition, options={"maxiter": 30})
    mean = model.posterior(x).mean
    assert mean.reshape(-1, 2)[:, 1].mean() > 0.9


# -- mixed columns ----------------------------------------------------------------------------------------------------

CODES, WHOLE = RNG.integers(0, 3, size=(30, 1)), RNG.integers(0, 5, size=(30, 1))
MIXED = np.concatenate([RNG.uniform(size=(30, 1)), WHOLE, CODES], axis=1).astype(float)
MIXED_Y = np.sin(5.0 * MIXED[:, :1]) - 0.2 * (MIXED[:, 1:2] - 3.0) ** 2 + 1.5 * (MIXED[:, 2:] == 2.0)
MIXED_Y = MIXED_Y + 0.1 * RNG.normal(size=MIXED_Y.shape)
RANGES = tensor([[0.0, 0.0, 0.0], [1.0, 4.0, 2.0]])


@pytest.fixture(scope="module", params=["exact", "average"])
def of_mixed_columns(request):
    kernel = agp.Matern52().with_categories(3, (2,))
    model = agp.GPR.from_data(MIXED, MIXED_Y, kernel=kernel, likelihood=agp.Gaussian(0.01))
    if request.param == "average":
        return BoTorchModel(agp.integrate(model, settings=24).model, draws=3)
    return BoTorchModel(agp.fit(model, MIXED, MIXED_Y).model)


@pytest.mark.filterwarnings("ignore:Optimization failed:RuntimeWarning")  # L-BFGS at the limit of rounding
def test_a_category_is_chosen(of_mixed_columns):
    acquisition = acquisitions.LogExpectedImprovement(of_mixed_columns, best_f=float(MIXED_Y.max()) - 0.2)
    torch.manual_seed(0)
    fixed = [{2: float(code)} for code in range(3)]
    x, _ = botorch.optim.optimize_acqf_mixed(acquisition, RANGES, q=1, fixed_features_list=fixed, **BRIEF)
    assert x[0, 2] == 2.0
    q, _ = botorch.optim.optimize_acqf_mixed(
        acquisitions.qLogNoisyExpectedImprovement(of_mixed_columns, tensor(MIXED), prune_baseline=True),
        RANGES,
        q=2,
        fixed_features_list=fixed,
        **BRIEF,
    )
    assert set(q[:, 2].tolist()) <= {0.0, 1.0, 2.0}


@pytest.mark.filterwarnings("ignore:Optimization failed:RuntimeWarning")  # likewise
def test_whole_numbers_and_categories_alternate(of_mixed_columns):
    acquisition = acquisitions.LogExpectedImprovement(of_mixed_columns, best_f=float(MIXED_Y.max()) - 0.2)
    torch.manual_seed(0)
    x, _ = botorch.optim.optimize_acqf_mixed_alternating(
        acquisition,
        RANGES,
        discrete_dims={1: [0.0, 1.0, 2.0, 3.0, 4.0]},
        cat_dims={2: [0.0, 1.0, 2.0]},
        num_restarts=2,
        raw_samples=16,
        options={"maxiter_alternating": 4, "maxiter_discrete": 4, "maxiter_continuous": 4},
    )
    assert x[0, 2] == 2.0
    assert x[0, 1] in (2.0, 3.0, 4.0)


# -- paths ------------------------------------------------------------------------------------------------------------


PATHS = {
    "exact": lambda: BoTorchModel(exact(PAIR[:, :1])),
    "sparse": lambda: BoTorchModel(sparse(PAIR[:, :1])),
    "outputs": lambda: BoTorchModel(exact(PAIR)),
    "shared": lambda: BoTorchModel(sparse(PAIR)),
    "average": lambda: BoTorchModel(mixture(PAIR[:, 0]), draws=3),
}


@pytest.mark.parametrize("name", PATHS)
def test_paths_have_the_moments_of_the_posterior(name):
    model = PATHS[name]()
    torch.manual_seed(0)
    drawn = pathwise.get_matheron_path_model(model, sample_shape=torch.Size([2000]))
    at = tensor(RNG.uniform(size=(5, D)))
    values, posterior = drawn(at), model.posterior(at)
    assert values.shape == (2000, *posterior.mean.shape)
    deviation = posterior.variance.sqrt()
    assert ((values.mean(dim=0) - posterior.mean).abs() < 0.2 * deviation + 0.01).all()
    assert ((values.std(dim=0) - deviation).abs() < 0.2 * deviation + 0.01).all()


@pytest.mark.parametrize("name", PATHS)
def test_paths_are_functions_of_batches(name):
    model = PATHS[name]()
    torch.manual_seed(0)
    drawn, (*batch, _, m) = pathwise.get_matheron_path_model(model, torch.Size([3])), model.posterior(UNIT).mean.shape
    at = tensor(RNG.uniform(size=(4, 3, 6, D)))
    values = drawn(at)  # each function at inputs of its own
    assert values.shape == (4, 3, *batch, 6, m)
    for i in range(3):
        assert_close(values[2, i].detach().numpy(), drawn(at[2, i])[i].detach().numpy(), 1e-9)
    assert drawn(at[:, :1]).shape == (4, 3, *batch, 6, m)
    assert torch.autograd.gradcheck(drawn, (at[:1, :, :2].clone().requires_grad_(),), atol=1e-5)
    single = pathwise.get_matheron_path_model(model)
    assert single(at).shape == (4, 3, *batch, 6, m)


@pytest.mark.parametrize("name", ["exact", "average"])
def test_paths_of_fantasies(name):
    model = PATHS[name]()
    fantasies = model.fantasize(tensor(X[:2] + 0.1), SobolQMCNormalSampler(torch.Size([3])))
    torch.manual_seed(0)
    paths = pathwise.draw_matheron_paths(fantasies, torch.Size([400]))
    values, posterior = paths(tensor(X[:4])), fantasies.posterior(tensor(X[:4]))
    assert values.shape == (400, *fantasies.batch_shape, 4)
    assert (values.mean(dim=0) - posterior.mean[..., 0]).abs().max() < 0.1


@pytest.mark.parametrize("name", PATHS)
def test_paths_are_maximised(name):
    model = PATHS[name]()
    torch.manual_seed(0)
    objective = None if model.num_outputs == 1 else acquisitions.objective.LinearMCObjective(tensor([1.0, 0.5]))
    inputs, values = acquisitions.utils.get_optimal_samples(
        model, UNIT, num_optima=3, raw_samples=16, num_restarts=2, objective=objective
    )
    assert inputs.shape == (3, *model.batch_shape, D)
    assert torch.isfinite(values).all()
    thompson = acquisitions.thompson_sampling.PathwiseThompsonSampling(model, objective=objective)
    x = found(thompson, q=3)
    assert (thompson(x) > thompson(torch.rand(16, 3, D, dtype=torch.float64)).median()).all()


def test_the_number_of_features_of_paths_is_chosen():
    for features, width in ((1024, 2048), (64, 128)):
        model = BoTorchModel(exact(PAIR[:, :1]), features=features).condition_on_observations(
            tensor(X[:1]), tensor(PAIR[:1, :1])
        )
        paths = pathwise.draw_matheron_paths(model, torch.Size([2]))
        assert paths._functions[()].paths.prior_weights.shape[1] == width
    with pytest.raises(ValueError, match="features"):
        BoTorchModel(exact(PAIR[:, :1]), features=0)


def test_paths_of_a_list():
    together = BoTorchModelList(exact(PAIR[:, :1]), sparse(PAIR[:, 1:]))
    torch.manual_seed(0)
    drawn = pathwise.get_matheron_path_model(together, sample_shape=torch.Size([500]))
    at = tensor(X[:4])
    assert (drawn(at).mean(dim=0) - together.posterior(at).mean).abs().max() < 0.1


def test_joint_entropy_search_uses_paths():
    model = BoTorchModel(exact(PAIR[:, :1]))
    torch.manual_seed(0)
    optima = acquisitions.utils.get_optimal_samples(model, UNIT, num_optima=3, raw_samples=16, num_restarts=2)
    found(acquisitions.joint_entropy_search.qJointEntropySearch(model, *optima))


def test_models_of_jax_and_numpy_are_alike():
    model = exact(PAIR[:, :1])
    one, other = (BoTorchModel(x) for x in (model, tree.to_backend(model, "torch")))
    assert_close(one.train_targets.numpy(), other.train_targets.numpy(), 0.0)


# -- conversions and errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [exact, sparse, mixture], ids=["exact", "sparse", "mixture"])
@pytest.mark.parametrize("convert", [lambda x: x.to(torch.float32), lambda x: x.float()], ids=["to", "float"])
def test_models_are_converted_like_modules(build, convert):
    at, y = tensor(RNG.uniform(size=(3, D))), PAIR[:, 0] if build is mixture else PAIR[:, :1]
    expected = BoTorchModel(build(y)).posterior(at)
    for make in (BoTorchModel, BoTorchModelList):
        model = convert(make(build(y)))
        found = model.posterior(at.float())
        assert found.mean.dtype == found.variance.dtype == torch.float32
        assert_close(found.mean.numpy(), expected.mean.numpy(), 1e-2)  # rounding, with little noise
        more = model.condition_on_observations(at.float(), torch.zeros(3, 1))
        assert more.posterior(at.float()).mean.dtype == torch.float32
        back = model.double().posterior(at)
        assert_close(back.mean.numpy(), expected.mean.numpy(), 1e-2)
    one = convert(BoTorchModel(exact(PAIR)))
    assert one.train_inputs[0].dtype == one.train_targets.dtype == torch.float32


def test_errors_name_remedies():
    model = exact(PAIR[:, :1])
    with pytest.raises(TypeError, match="input_transform.*train the model on"):
        BoTorchModel(model, input_transform=None)
    with pytest.raises(TypeError, match="outcome_transform"):
        BoTorchModel(model, outcome_transform=None)
    fitted = agp.estimators.GPRegressor(hyperparameters="mode").fit(X, PAIR[:, 0])
    for make in (BoTorchModel, BoTorchModelList, lambda one: agp.fit(one, X, PAIR)):
        with pytest.raises(TypeError, match=r"GPRegressor.*pass its attribute \.model_"):
            make(fitted)
    for one in (BoTorchModel(model), BoTorchModelList(model)):
        with pytest.raises(ValueError, match=r"shape \(2,\).*X\[0:1\]|shape \(2,\).*\[None, :\]"):
            one.posterior(tensor(X)[0])
