"""Predictors: the answers of the model, derivatives by closed form, batches, other libraries, copies and files."""

import pickle

import numpy as np
import pytest
import scipy.stats
from helpers import JAX, NUMPY, STRICT, TORCH, assert_close
from predictor_cases import (
    BATCH,
    CASES,
    DEEP,
    FEW,
    NEW,
    X,
    Y,
    model_of,
    new_targets,
    predictor_of,
    with_draws_for,
)

import agp
from agp import tree
from agp.predictors._mixture import mixture
from agp.processes import Iterative

EVERY = (*CASES, "cggp-iterative")
JOINT = tuple(name for name in CASES if name not in DEEP)


def questions(name):
    """What is asked of a model or its predictor, each by its name."""
    y = new_targets(name)
    asked = {
        "predict": lambda m: m.predict(NEW),
        "observed": lambda m: m.predict(NEW, observed=True),
        "mean": lambda m: [m.predict_mean(NEW)],
        "gradient": lambda m: m.gradient(NEW),
        "density": lambda m: [m.log_density(NEW, y), m.mean_log_density(NEW, y)],
        "quantile": lambda m: [m.quantile(NEW, 0.3), m.quantile(NEW, (0.1, 0.8))],
        "interval": lambda m: m.interval(NEW, 0.8),
    }
    if name not in DEEP:
        asked["covariance"] = lambda m: [m.predict_covariance(NEW), m.predict_covariance(NEW, cross_outputs=True)]
        asked["sample"] = lambda m: [m.sample(NEW, 3, seed=5)]
        asked["functions"] = lambda m: [m.sample_functions(2, seed=5, features=16)(NEW)]
    return asked


def bits(arrays):
    return [np.asarray(agp.to_numpy(x)).tobytes() for x in arrays]


# -- the model's answers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_a_predictor_answers_as_its_model_to_the_bit(name):
    model, predictor = model_of(name), predictor_of(name)
    for question, ask in questions(name).items():
        assert bits(ask(predictor)) == bits(ask(model)), question


@pytest.mark.parametrize("name", JOINT)
def test_the_answers_fit_each_other(name):
    predictor = predictor_of(name)
    mean, variance = predictor.predict(NEW)
    assert mean.shape == variance.shape == (len(NEW), predictor.outputs)
    assert (variance > 0.0).all()
    assert_close(predictor.predict_mean(NEW), mean, 1e-10)
    diagonals = np.diagonal(predictor.predict_covariance(NEW), axis1=1, axis2=2).T
    assert_close(diagonals, variance, 1e-9)
    cross = predictor.predict_covariance(NEW, cross_outputs=True)
    assert_close(np.einsum("npmp->pnm", cross), predictor.predict_covariance(NEW), 1e-10)


@pytest.mark.parametrize(
    ("name", "work"),
    [("sgpr", "agp.models._sgpr.collapsed_posterior"), ("gpr", "agp.posteriors._of_data.noisy_cholesky")],
)
def test_an_answer_costs_no_look_at_the_data(name, work, monkeypatch):
    predictor = predictor_of(name)
    expected = bits(predictor.predict(NEW))
    monkeypatch.setattr(work, None)
    assert bits(predictor.predict(NEW)) == expected
    with pytest.raises(TypeError):
        model_of(name).predict(NEW)


def test_iterative_predictions_are_the_exact_ones():
    exact, found = predictor_of("cggp"), predictor_of("cggp-iterative")
    assert isinstance(found.processes[0], Iterative)
    for kind in ("predict", "gradient"):
        for value, expected in zip(getattr(found, kind)(NEW), getattr(exact, kind)(NEW), strict=True):
            assert_close(value, expected, 1e-8)
    assert_close(found.predict_covariance(NEW), exact.predict_covariance(NEW), 1e-8)


# -- derivatives ------------------------------------------------------------------------------------------------------


def slopes_by_autograd(name):
    """The derivatives by torch through the forward formulas of the posterior alone."""
    torch = pytest.importorskip("torch")
    x = TORCH.array(NEW).requires_grad_()
    predictor = TORCH.move(predictor_of(name))
    moments, _ = with_draws_for(predictor.processes[0], x).project(predictor.factors[0], x)
    found = []
    for moment in mixture(moments, len(NEW)):
        slopes = [torch.autograd.grad(column.sum(), x, retain_graph=True)[0] for column in moment.T]
        found.append(torch.stack(slopes, dim=1).numpy())
    return found


@pytest.mark.parametrize("name", EVERY)
def test_gradients_are_those_of_autograd(name):
    for value, expected in zip(predictor_of(name).gradient(NEW), slopes_by_autograd(name), strict=True):
        assert_close(value, expected, 1e-8)


@pytest.mark.parametrize("name", EVERY)
def test_gradients_are_differences(name):
    predictor, h = predictor_of(name), 1e-4
    steps = h * np.eye(NEW.shape[1])
    for i, value in enumerate(predictor.gradient(NEW)):
        change = [(predictor.predict(NEW + s)[i] - predictor.predict(NEW - s)[i]) / (2.0 * h) for s in steps]
        assert_close(value, np.stack(change, axis=-1), 1e-5)


@pytest.mark.parametrize("name", FEW)
def test_answers_are_the_same_on_every_backend(name, backend):
    predictor = backend.move(predictor_of(name))
    for kind in ("predict", "gradient"):
        expected = getattr(predictor_of(name), kind)(NEW)
        for value, desired in zip(getattr(predictor, kind)(backend.array(NEW)), expected, strict=True):
            assert_close(backend.numpy(value), desired, 1e-9)


def test_gradients_come_in_chunks():
    for name in ("gpr", "deep-wsvgp"):
        whole, parts = predictor_of(name).gradient(NEW), predictor_of(name).gradient(NEW, memory=1e-6)
        for value, expected in zip(parts, whole, strict=True):
            assert_close(value, expected, 1e-11)


def weights(shape, seed=3):
    return np.random.default_rng(seed).normal(size=shape)


def weighted(predictor, inputs, a, b):
    """A number of means and variances."""
    mean, variance = predictor.predict(inputs)
    return (a * mean).sum() + (b * variance).sum()


@pytest.mark.cover(2, quick=1)
@pytest.mark.parametrize("inputs", [NEW, BATCH], ids=["rows", "batch"])
@pytest.mark.parametrize("name", EVERY)
def test_torch_differentiates_predictions_by_the_closed_form(name, inputs, torch_place):
    predictor = predictor_of(name)
    slopes = predictor.gradient(inputs)
    a, b = weights(slopes.mean.shape[:-1]), weights(slopes.mean.shape[:-1], 4)
    x = torch_place.array(inputs).requires_grad_()
    weighted(torch_place.move(predictor), x, torch_place.array(a), torch_place.array(b)).backward()
    expected = np.einsum("...p,...pd->...d", a, slopes.mean) + np.einsum("...p,...pd->...d", b, slopes.variance)
    assert_close(x.grad.numpy(), expected, 1e-9)


@pytest.mark.parametrize("name", FEW)
def test_torch_functions_differentiate_predictions(name, torch_place):
    torch = pytest.importorskip("torch")
    predictor = torch_place.move(predictor_of(name))
    slopes = predictor_of(name).gradient(NEW)
    for i in range(2):
        found = torch.func.grad(lambda x, i=i: predictor.predict(x[None, :])[i][0, 0])(torch_place.array(NEW[0]))
        assert_close(found.numpy(), slopes[i][0, 0], 1e-9)
        _, pull = torch.func.vjp(lambda x, i=i: predictor.predict(x)[i][:, 0], torch_place.array(NEW))
        assert_close(pull(torch_place.array(np.ones(len(NEW))))[0].numpy(), slopes[i][:, 0], 1e-9)


@pytest.mark.parametrize("name", FEW)
def test_torch_maps_predictions(name, torch_place):
    torch = pytest.importorskip("torch")
    predictor, x = torch_place.move(predictor_of(name)), torch_place.array(NEW)
    expected, slopes = predictor_of(name).predict(NEW), predictor_of(name).gradient(NEW)
    for i in range(2):
        one = torch.func.vmap(lambda row, i=i: predictor.predict(row[None, :])[i][0, 0])
        assert_close(one(x).numpy(), expected[i][:, 0], 1e-9)
        each = torch.func.vmap(torch.func.grad(lambda row, i=i: predictor.predict(row[None, :])[i][0, 0]))
        assert_close(each(x).numpy(), slopes[i][:, 0], 1e-9)


@pytest.mark.parametrize("name", FEW)
def test_jax_transforms_predictions(name, available):
    jax = pytest.importorskip("jax")
    predictor, x = available(JAX).move(predictor_of(name)), JAX.array(NEW)
    expected, slopes = predictor_of(name).predict(NEW), predictor_of(name).gradient(NEW)

    def at(row):
        mean, variance = predictor.predict(row[None, :])
        return mean[0, 0], variance[0, 0]

    compiled = jax.jit(lambda inputs: tuple(predictor.predict(inputs)))(x)
    for value, desired in zip(compiled, expected, strict=True):
        assert_close(np.asarray(value), desired, 1e-9)
    for i, found in enumerate(jax.vmap(at)(x)):
        assert_close(np.asarray(found), expected[i][:, 0], 1e-9)
        one = jax.jit(jax.vmap(jax.grad(lambda row, i=i: at(row)[i])))(x)
        assert_close(np.asarray(one), slopes[i][:, 0], 1e-9)


# -- batches ----------------------------------------------------------------------------------------------------------


def stacked(ask):
    """The answers for each set of the batch alone."""
    found = [[ask(inputs) for inputs in sets] for sets in BATCH]
    return [np.asarray([[one[i] for one in sets] for sets in found]) for i in range(len(found[0][0]))]


@pytest.mark.slow
@pytest.mark.sample(23)
@pytest.mark.parametrize("name", EVERY)
def test_a_batch_is_a_loop(name):
    predictor = predictor_of(name)
    asked = {
        "predict": predictor.predict,
        "observed": lambda x: predictor.predict(x, observed=True),
        "gradient": predictor.gradient,
        "quantile": lambda x: [predictor.quantile(x, 0.3)],
        "mean": lambda x: [predictor.predict_mean(x)],
    }
    if name not in DEEP:
        asked["covariance"] = lambda x: [predictor.predict_covariance(x)]
        asked["sample"] = lambda x: [predictor.sample(x, 2, seed=1)]
    for question, ask in asked.items():
        for value, expected in zip(ask(BATCH), stacked(ask), strict=True):
            assert_close(value, expected, 1e-6 if question == "sample" else 1e-9, question)


@pytest.mark.slow
def test_a_batch_of_targets_and_levels():
    predictor, y = predictor_of("poisson-wsvgp"), new_targets("poisson-wsvgp", 24)[:, 0].reshape(2, 3, 4)
    expected = [
        [predictor.log_density(x, t) for x, t in zip(*sets, strict=True)] for sets in zip(BATCH, y, strict=True)
    ]
    assert_close(predictor.log_density(BATCH, y), np.asarray(expected), 1e-10)
    assert_close(predictor.log_density(BATCH, y[..., None]), np.asarray(expected), 1e-10)
    several = predictor.quantile(BATCH, (0.1, 0.9))
    assert several.shape == (2, 2, 3, 4, 1)
    np.testing.assert_array_equal(several[1], predictor.quantile(BATCH, 0.9))


# -- copies and files -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_a_predictor_comes_back_to_the_bit(name, tmp_path):
    predictor = predictor_of(name)
    agp.save(predictor, tmp_path / "predictor.safetensors")
    for found in (pickle.loads(pickle.dumps(predictor)), agp.load(tmp_path / "predictor.safetensors")):
        assert type(found) is agp.Predictor
        for question, ask in questions(name).items():
            assert bits(ask(found)) == bits(ask(predictor)), question


def test_layers_of_several_processes_keep_their_factors(tmp_path, torch_place):
    def layer(outputs, inputs):
        parts = [agp.processes.Sparse.from_data(inputs, num_inducing=5, posterior="whitened") for _ in range(outputs)]
        return agp.processes.Stack(tuple(parts))

    process = agp.processes.Deep((layer(2, X), layer(1, X)), samples=3)
    predictor = agp.SVGP(process, agp.Gaussian(np.asarray(0.1))).predictor()
    agp.save(predictor, tmp_path / "predictor.safetensors")
    assert bits(agp.load(tmp_path / "predictor.safetensors").predict(NEW)) == bits(predictor.predict(NEW))
    moved = torch_place.move(predictor).predict(torch_place.array(NEW))
    for value, expected in zip(moved, predictor.predict(NEW), strict=True):
        assert_close(torch_place.numpy(value), expected, 1e-9)


@pytest.mark.parametrize("library", ["torch", "strict", "jax"])
@pytest.mark.parametrize("name", FEW)
def test_a_predictor_crosses_libraries(name, library, tmp_path, available):
    place = available({"torch": TORCH, "strict": STRICT, "jax": JAX}[library])
    predictor = predictor_of(name)
    there = place.move(predictor)
    agp.save(there, tmp_path / "there.safetensors")
    back = NUMPY.move(agp.load(tmp_path / "there.safetensors"))
    assert bits(back.predict(NEW)) == bits(predictor.predict(NEW))
    agp.save(predictor, tmp_path / "here.safetensors")
    found = agp.load(tmp_path / "here.safetensors", backend=place.name, device=place.device)
    for value, expected in zip(found.predict(place.array(NEW)), predictor.predict(NEW), strict=True):
        assert_close(place.numpy(value), expected, 1e-9)


@pytest.mark.parametrize("name", EVERY)
def test_predictors_in_float32(name, tmp_path):
    model = model_of("cggp" if name == "cggp-iterative" else name)
    predictor = NUMPY.move(model, "float32").predictor(**({"memory": 0.01} if name == "cggp-iterative" else {}))
    inputs = NEW.astype(np.float32)
    for found in predictor.predict(inputs), predictor.gradient(inputs):
        assert {x.dtype for x in found} == {np.dtype("float32")}
    assert_close(predictor.predict_mean(inputs), predictor_of(name).predict_mean(NEW), 0.02)
    agp.save(predictor, tmp_path / "p.safetensors")
    for found in (agp.load(tmp_path / "p.safetensors"), pickle.loads(pickle.dumps(predictor))):
        assert {k: x.dtype for k, x in tree.leaves(found).items()} == {
            k: x.dtype for k, x in tree.leaves(predictor).items()
        }
        assert bits(found.predict(inputs)) == bits(predictor.predict(inputs))


# -- intervals --------------------------------------------------------------------------------------------------------


def covered(predictor, inputs, y, level):
    lower, upper = predictor.interval(inputs, level)
    return float(np.mean((lower <= y) & (y <= upper)))


@pytest.mark.long
@pytest.mark.parametrize("level", [0.5, 0.9])
def test_intervals_hold_their_level_for_an_exact_gp(level):
    # functions of the prior, seen at 30 rows; intervals at others
    rng, count, inside = np.random.default_rng(4), 300, []
    kernel = agp.RBF(1.0, (1.0, 1.0))
    for _ in range(count):
        inputs = rng.uniform(-2.0, 2.0, (31, 2))
        distances = np.sum((inputs[:, None] - inputs) ** 2, axis=-1)
        K = np.exp(-0.5 * distances) + 0.1 * np.eye(31)
        y = np.linalg.cholesky(K) @ rng.normal(size=(31, 1))
        model = agp.GPR.from_data(inputs[:30], y[:30], kernel=kernel, likelihood=agp.Gaussian(0.1))
        inside.append(covered(model.predictor(), inputs[30:], y[30:], level))
    assert abs(np.mean(inside) - level) < 3.0 * np.sqrt(level * (1.0 - level) / count)


@pytest.mark.long
def test_intervals_of_counts_hold_at_least_their_level():
    rng = np.random.default_rng(5)
    inputs = rng.uniform(-2.0, 2.0, (2400, 1))
    y = rng.poisson(np.exp(1.0 + np.sin(2.0 * inputs))).astype(float)
    train, test = (inputs[:400], y[:400]), (inputs[400:], y[400:])
    model = agp.TSVGP.from_data(*train, kernel=agp.RBF(), likelihood=agp.Poisson(), num_inducing=12)
    predictor = agp.train(model, *train, steps=60).model.predictor()
    for level in (0.5, 0.9):
        found = covered(predictor, *test, level)
        assert found > level - 3.0 * np.sqrt(level * (1.0 - level) / 2000)
        assert found < level + 0.25  # whole numbers hold more, but not all
    lower, upper = predictor.interval(test[0], 0.9)
    assert ((upper - lower) < 12).all()


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpr", "poisson-wsvgp", "deep-wsvgp"])
def test_wrong_inputs_are_refused(name):
    predictor = predictor_of(name)
    with pytest.raises(ValueError, match="3 columns"):
        predictor.predict(np.zeros((2, 4, 3)))
    with pytest.raises(TypeError):
        predictor.predict(NEW.astype(np.float32))
    with pytest.raises(ValueError, match="pass one target for each row of X"):
        predictor.log_density(BATCH, np.zeros((3, 2, 4)))
    with pytest.raises(ValueError, match=r"finite|NaN|nan"):
        predictor.gradient(np.full((2, 2), np.nan))


def test_deep_predictors_have_no_joint_answers():
    predictor = predictor_of("deep-wsvgp")
    for ask in (predictor.predict_covariance, predictor.sample):
        with pytest.raises(TypeError):
            ask(NEW)


# -- estimators -------------------------------------------------------------------------------------------------------


@pytest.fixture
def estimators():
    """The module of estimators, or a skip."""
    pytest.importorskip("sklearn", reason="estimators need the extra sklearn")
    return pytest.importorskip("agp.estimators")


@pytest.fixture
def calls(monkeypatch):
    """One entry for each predictor that is computed."""
    made, own = [], agp.models.Model.predictor

    def counted(self, **options):
        made.append(self)
        return own(self, **options)

    monkeypatch.setattr(agp.models.Model, "predictor", counted)
    return made


QUICK = {"method": "wsvgp", "num_inducing": 8, "max_steps": 5, "random_state": 0}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
def test_an_estimator_computes_its_predictor_once(estimators, calls):
    found = estimators.GPRegressor(**QUICK).fit(X, Y[:, 0])
    calls.clear()
    first = found.predict(NEW)
    found.predict(NEW, return_std=True)
    found.sample_y(NEW, 2)
    assert len(calls) == 1
    assert found.predictor_ is found.predictor_
    assert bits([first]) == bits([found.predict(NEW)])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
def test_further_training_gives_an_estimator_another_predictor(estimators, calls):
    found = estimators.GPRegressor(**QUICK).partial_fit(X[:20], Y[:20, 0])
    before = found.predictor_
    first = found.predict(NEW)
    found.partial_fit(X[20:], Y[20:, 0])
    assert found.predictor_ is not before
    assert np.abs(found.predict(NEW) - first).max() > 1e-6
    calls.clear()
    found.predict(NEW)
    assert not calls


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
def test_pickles_of_estimators_do_not_hold_the_predictor(estimators):
    found = estimators.GPRegressor(**QUICK).fit(X, Y[:, 0])
    before = pickle.dumps(found)
    expected = found.predict(NEW)
    assert len(pickle.dumps(found)) == len(before)
    assert bits([pickle.loads(before).predict(NEW)]) == bits([expected])


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
def test_files_of_sparse_estimators_do_not_grow_with_the_rows(estimators, tmp_path):
    sizes = []
    for rows in (200, 2000):
        inputs = np.random.default_rng(0).uniform(-2.0, 2.0, (rows, 2))
        found = estimators.GPRegressor(**QUICK | {"method": "sgpr"}).fit(inputs, np.sin(inputs[:, 0]))
        agp.save(found, tmp_path / "estimator.safetensors")
        sizes.append((tmp_path / "estimator.safetensors").stat().st_size)
    assert sizes[1] == pytest.approx(sizes[0], rel=0.01)


@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 0, 2)])
@pytest.mark.parametrize("ask", ["predict", "predict_covariance", "gradient"])
def test_batches_without_rows_are_refused(shape, ask):
    predictor = predictor_of("gpr")
    with pytest.raises(ValueError, match="at least one row"):
        getattr(predictor, ask)(np.zeros((*shape[:-1], predictor.width)))


# -- distribution functions and scores --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
def test_every_predictor_has_transforms_and_scores(name):
    predictor, y = predictor_of(name), new_targets(name)
    pit, scores = predictor.pit(NEW, y), predictor.crps(NEW, y)
    assert pit.shape == scores.shape == y.shape
    assert np.all((pit > 0.0) & (pit < 1.0) & (scores > 0.0))


def test_targets_that_are_all_missing_have_no_transforms():
    y = np.asarray(np.arange(9) % 3, dtype=float)[:, None]
    model = agp.SVGP.from_data(X[:9], y, num_inducing=4, likelihood=agp.likelihoods.Ordinal(3))
    assert np.all(np.isnan(model.predictor().pit(NEW, np.full((len(NEW), 1), np.nan))))


@pytest.mark.slow
@pytest.mark.parametrize("backend", [STRICT, TORCH, JAX], ids=lambda b: b.name)
def test_transforms_and_scores_are_the_same_on_every_library(backend, available):
    for name in ("poisson-wsvgp", "outputs-shared"):
        here, y = predictor_of(name), new_targets(name)
        there = available(backend).move(here)
        for score in ("cdf", "pit", "crps"):
            found = getattr(there, score)(backend.array(NEW), backend.array(y))
            np.testing.assert_allclose(backend.numpy(found), getattr(here, score)(NEW, y), rtol=1e-9)


@pytest.mark.long
def test_transforms_are_uniform_where_predictions_are_right():
    rng, predictor = np.random.default_rng(1), predictor_of("poisson-wsvgp")
    rows = rng.uniform(-2.0, 2.0, (2000, 2))
    mean, variance = predictor.predict(rows)
    counts = 1.0 * rng.poisson(np.exp(mean + np.sqrt(variance) * rng.standard_normal(mean.shape)))
    pit = predictor.pit(rows, counts, seed=3)
    assert scipy.stats.kstest(pit[:, 0], "uniform").pvalue > 0.01
    np.testing.assert_array_equal(pit, predictor.pit(rows, counts, seed=3))
    assert (pit != predictor.pit(rows, counts, seed=4)).any()
    assert np.all((predictor.cdf(rows, counts - 1.0) <= pit) & (pit <= predictor.cdf(rows, counts)))
    assert predictor.crps(rows, counts).mean() < predictor.crps(rows, counts[::-1]).mean()


def test_scores_of_outputs_stand_side_by_side_and_missing_ones_are_missing():
    predictor = model_of("outputs-shared").predictor()
    y = np.zeros((len(NEW), 2))
    y[0, 1] = np.nan
    mean, variance = predictor.predict(NEW, observed=True)
    expected = scipy.stats.norm.cdf(0.0, mean, np.sqrt(variance))
    for found, known in ((predictor.cdf(NEW, y), expected), (predictor.pit(NEW, y), expected)):
        assert np.isnan(found[0, 1])
        np.testing.assert_allclose(np.delete(found.ravel(), 1), np.delete(known.ravel(), 1), rtol=1e-10)
    assert np.isnan(predictor.crps(NEW, y)).sum() == 1


def test_leading_axes_are_rows_of_scores_and_samples_one_mixture():
    predictor = model_of("deep-wsvgp").predictor()
    y = np.zeros((*BATCH.shape[:-1], 1))
    for name in ("cdf", "pit", "crps"):
        found = getattr(predictor, name)(BATCH, y)
        assert found.shape == y.shape
        np.testing.assert_array_equal(found[0, 0], getattr(predictor, name)(BATCH[0, 0], y[0, 0]))
    levels = predictor.cdf(NEW, predictor.quantile(NEW, 0.2))
    np.testing.assert_allclose(levels, 0.2, rtol=1e-8)


def test_transforms_of_impossible_targets_are_refused_and_thresholds_are_free():
    predictor = model_of("poisson-wsvgp").predictor()
    y = np.full((len(NEW), 1), 0.5)
    with pytest.raises(ValueError, match="counts must be whole numbers of at least 0"):
        predictor.pit(NEW, y)
    np.testing.assert_array_equal(predictor.cdf(NEW, y), predictor.cdf(NEW, 0.0 * y))
    with pytest.raises(ValueError, match="pass one target for each row of X"):
        predictor.crps(NEW, y[:2])
    with pytest.raises(ValueError, match="seed is -1"):
        predictor.pit(NEW, 0.0 * y, seed=-1)
