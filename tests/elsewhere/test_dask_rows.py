"""Data as dask arrays: whatever the chunks, the numbers are those of the rows in memory."""

import dataclasses
import subprocess
import sys
from functools import partial

import numpy as np
import pytest

import agp
from agp import tree
from agp.backend import backend_of, get_backend
from agp.bounds import Batch
from agp.errors import BackendError, WorkerError
from agp.repairs import collect_reports, report
from agp.training._batches import Pooled
from agp.updates import Adam

da = pytest.importorskip("dask.array")
dask = pytest.importorskip("dask")

N, D = 300, 3
CHUNKS = {"one": (N,), "even": 100, "ragged": (7, 150, 1, 142)}


@pytest.fixture(autouse=True)
def one_thread():
    """Tasks one after the other: what is tested is what they compute."""
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, D))
    return X, np.sin(X.sum(axis=1)) + 0.1 * rng.standard_normal(N)


def in_chunks(data, chunks):
    X, y = data
    return da.from_array(X, chunks=(chunks, D)), da.from_array(y, chunks=chunks)


def known_of(X):
    """Weights, an offset and noise of rows, as arrays like X."""
    return {"weights": 0.2 + X[:, 0] ** 2, "offset": 0.3 * X[:, 1], "noise": 0.1 + X[:, 2] ** 2}


BUILD = {
    "sgpr": lambda X, y: agp.SGPR.from_data(X, y, num_inducing=12),
    "relaxed": lambda X, y: agp.SVGP.from_data(X, y, num_inducing=12),
    "whitened": lambda X, y: agp.SVGP.from_data(X, y, num_inducing=12, posterior="whitened"),
    "marginal": lambda X, y: agp.SVGP.from_data(X, y, num_inducing=12, posterior="marginal"),
    "dual": lambda X, y: agp.SVGP.from_data(X, y, num_inducing=12, posterior="dual"),
    "orthogonal": lambda X, y: agp.SOLVEGP.from_data(X, y, num_inducing=8, num_orthogonal=6),
    "solvegpr": lambda X, y: agp.SOLVEGPR.from_data(X, y, num_inducing=8, num_orthogonal=6),
    "cagp": lambda X, y: agp.CaGP.from_data(X, y, num_actions=6, support=40),
    "cagp-projected": lambda X, y: dataclasses.replace(
        agp.CaGP.from_data(X, y, num_actions=6, support=40), loss="projected"
    ),
    "deep": lambda X, y: agp.DeepGP.from_data(X, y, num_inducing=8, layers=2),
    "known-sgpr": lambda X, y: agp.SGPR.from_data(X, y, num_inducing=12, **known_of(X)),
    "known-solvegpr": lambda X, y: agp.SOLVEGPR.from_data(X, y, num_inducing=8, num_orthogonal=6, **known_of(X)),
    "student": lambda X, y: agp.SVGP.from_data(X, y, num_inducing=12, likelihood=agp.StudentT()),
}


def moved(model):
    """The model away from its start, where gradients vanish but for rounding."""
    rng = np.random.default_rng(1)
    raw = {name: x + 0.1 * rng.standard_normal(x.shape) for name, x in tree.unconstrain(model).items()}
    return tree.constrain(model, raw)


def check_same(found, expected):
    (bound, slopes), (value, gradient) = found, expected
    assert abs(float(bound) - float(value)) <= 1e-10 * abs(float(value))
    assert slopes.keys() == gradient.keys()
    for name, x in gradient.items():
        x, other = agp.to_numpy(x), agp.to_numpy(slopes[name])
        assert np.max(np.abs(other - x)) <= 1e-10 * np.max(np.abs(x)), name


@pytest.mark.slow
@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("build", BUILD.values(), ids=BUILD)
def test_bounds_and_gradients_are_those_of_rows_in_memory(build, chunks, data):
    X, y = in_chunks(data, chunks)
    model, other = moved(build(*data)), moved(build(X, y))
    check_same(agp.value_and_gradient(other, X, y), agp.value_and_gradient(model, *data))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["whitened", "relaxed", "cagp", "deep"])
def test_what_is_known_of_rows_is_in_chunks_as_well(name, data):
    X, y = in_chunks(data, CHUNKS["ragged"])
    given, lazy = known_of(data[0]), known_of(X)
    build = BUILD[name] if name != "cagp" else partial(agp.CaGP.from_data, num_actions=6, support=40, **given)
    model = moved(build(*data))
    check_same(agp.value_and_gradient(model, X, y, **lazy), agp.value_and_gradient(model, *data, **given))


@pytest.mark.slow
@pytest.mark.parametrize("library", ["torch", "jax", "array_api_strict"])
@pytest.mark.parametrize("name", ["sgpr", "relaxed", "cagp", "deep"])
def test_the_parameters_decide_the_library(name, library, data):
    pytest.importorskip(library)
    X, y = in_chunks(data, 90)
    model = moved(BUILD[name](*data))
    there = {leaf: agp.to_backend(x, library) for leaf, x in tree.leaves(model).items()}
    there |= {leaf: x for leaf, x in {"X": X, "y": y[:, None]}.items() if name == "sgpr"}
    bound, slopes = agp.value_and_gradient(tree.with_leaves(model, there), X, y)
    assert backend_of(bound).name == library
    check_same((bound, slopes), agp.value_and_gradient(model, *data))


@pytest.mark.slow
@pytest.mark.parametrize("memory", [256.0, 0.02])
def test_tiles_of_a_budget_within_chunks_change_nothing(memory, data):
    X, y = in_chunks(data, 120)
    model = moved(BUILD["whitened"](*data))
    check_same(agp.value_and_gradient(model, X, y, memory=memory), agp.value_and_gradient(model, *data))


@pytest.mark.slow
@pytest.mark.parametrize("build", [BUILD[name] for name in ("sgpr", "relaxed", "cagp", "deep", "solvegpr")])
def test_predictions_are_dask_arrays_with_the_same_numbers(build, data):
    X, y = in_chunks(data, CHUNKS["ragged"])
    model, other = build(*data), build(X, y)
    for observed in (False, True):
        found, expected = other.predict(X, observed=observed), model.predict(data[0], observed=observed)
        for one, two in zip(found, expected, strict=True):
            assert isinstance(one, da.Array)
            assert one.chunks[0] == X.chunks[0]
            np.testing.assert_allclose(one.compute(), two, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(other.predict_mean(X).compute(), model.predict_mean(data[0]), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(other.log_density(X, y).compute(), model.log_density(*data), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(other.mean_log_density(X, y).compute(), model.mean_log_density(*data), atol=1e-9)
    if isinstance(model, agp.DeepGP):
        return
    few = X[:20].rechunk(7)
    np.testing.assert_allclose(other.predict_covariance(few), model.predict_covariance(data[0][:20]), atol=1e-10)
    assert other.sample(few, 3).shape == (3, 20, 1)


@pytest.mark.slow
def test_predictions_in_torch_come_back_as_arrays_that_dask_holds(data):
    X, _ = in_chunks(data, 100)
    model = agp.to_backend(BUILD["relaxed"](*data), "torch")
    mean = model.predict(X).mean
    assert isinstance(mean.compute(), np.ndarray)
    np.testing.assert_allclose(mean.compute(), agp.to_numpy(model.predict_mean(agp.to_backend(data[0], "torch"))))


@pytest.mark.slow
def test_an_upper_bound_and_a_svgp_of_lazy_rows(data):
    X, y = in_chunks(data, 100)
    model, other = BUILD["sgpr"](*data), BUILD["sgpr"](X, y)
    assert other.upper_bound(X, y) == pytest.approx(float(model.upper_bound(*data)), rel=1e-10)
    same = other.to_svgp()
    assert not any(isinstance(x, da.Array) for x in tree.leaves(same).values())
    np.testing.assert_allclose(same.predict(data[0]).mean, model.predict(data[0]).mean, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sgpr", "solvegpr", "whitened"])
def test_files_hold_models_without_rows(name, data, tmp_path):
    X, y = in_chunks(data, 100)
    model = BUILD[name](X, y)
    if name != "whitened":
        with pytest.raises(TypeError, match=r"its rows are lazy, .* save model.predictor\(\)"):
            agp.save(model, tmp_path / "m.safetensors")
    agp.save(model.predictor(), tmp_path / "m.safetensors")
    mean = agp.load(tmp_path / "m.safetensors").predict(data[0]).mean
    np.testing.assert_allclose(mean, model.predict(X).mean.compute(), atol=1e-10)
    functions = model.predictor().sample_functions(2)
    np.testing.assert_array_equal(functions(X), functions(data[0]))


@pytest.mark.slow
def test_starting_values_of_many_rows_come_from_a_sample(data, monkeypatch):
    monkeypatch.setattr("agp.models._start.MAX_ROWS", 100)
    X, y = in_chunks(data, 70)
    model, other = BUILD["whitened"](*data), BUILD["whitened"](X, y)
    for name, x in tree.leaves(model).items():
        np.testing.assert_array_equal(tree.leaves(other)[name], x)
    held = BUILD["sgpr"](*data)
    assert held.X.shape == (N, D)


# -- training ---------------------------------------------------------------------------------------------------------


def gap(a, b):
    """The largest difference of leaves, relative to their largest entries."""
    pairs = zip(tree.leaves(a).values(), tree.leaves(b).values(), strict=True)
    return max(float(np.max(np.abs(x - z)) / max(np.max(np.abs(x)), 1e-300)) for x, z in pairs)


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize(("name", "steps"), [("relaxed", 50), ("whitened", 50), ("cagp", 10), ("dual", 10)])
def test_data_parallel_steps_are_those_of_one_process(name, steps, data):
    X, y = in_chunks(data, 100)
    model = moved(BUILD[name](*data))
    how = {"steps": steps, "batch_size": 30, "seed": 3}
    here = agp.train(model, X, y, **how)
    there = agp.train(model, X, y, **how, data_parallel=True)
    assert gap(here.model, there.model) <= 1e-8
    np.testing.assert_allclose(here.trace["bound"], there.trace["bound"], rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["relaxed", "whitened"])
def test_whole_batches_train_as_in_memory(name, data):
    X, y = in_chunks(data, 110)
    model = moved(BUILD[name](*data))
    assert gap(agp.train(model, X, y, steps=20).model, agp.train(model, *data, steps=20).model) <= 1e-8
    lazy, given = (agp.train(model, *rows, steps=9, **known_of(rows[0])).model for rows in ((X, y), data))
    assert gap(lazy, given) <= 1e-8


@pytest.mark.parametrize("columns", [1, 9])
def test_the_memory_of_a_pool_does_not_depend_on_the_columns(columns, monkeypatch):
    monkeypatch.setattr("agp.training._batches.POOL_MIB", 8_000 / 2**20)  # of 1,000 numbers
    rows = tuple(da.ones((2_000, width), chunks=(10, width)) for width in (columns, 1))
    pooled = Pooled(rows, 1, 0, np.ones(1), in_place=False)
    assert len(pooled.pools.numbers(0, 0)) == 1_000 // (columns + 1)


@pytest.mark.slow
@pytest.mark.parametrize("data_parallel", [False, True])
def test_minibatches_of_chunks_have_what_is_known_of_their_rows(data_parallel, data):
    # a step of noise so large that the rows change nothing, unless it is that of other rows
    X, y = in_chunks(data, 100)
    model, noise = moved(BUILD["whitened"](*data)), np.where(np.arange(N) < 200, 0.01, 1e12)
    how = {"steps": 20, "batch_size": 30, "seed": 3, "updates": [Adam(0.01)], "data_parallel": data_parallel}
    known = {"noise": da.from_array(noise, chunks=100)}
    found = agp.train(model, X, da.where(da.arange(N, chunks=100) < 200, y, 1e3), **how, **known)
    expected = agp.train(model, X, da.where(da.arange(N, chunks=100) < 200, y, -1e3), **how, **known)
    assert gap(found.model, expected.model) <= 1e-4


@pytest.mark.slow
def test_predictions_of_lazy_rows_take_lazy_offsets_and_noise(data):
    X, _ = in_chunks(data, CHUNKS["ragged"])
    predictor = BUILD["whitened"](*data).predictor()
    (given, lazy) = ({name: x for name, x in known_of(x).items() if name != "weights"} for x in (data[0], X))
    expected = predictor.predict(data[0], observed=True, **given)
    for found, number in zip(predictor.predict(X, observed=True, **lazy), expected, strict=True):
        assert backend_of(found).name == "dask"
        np.testing.assert_allclose(found.compute(), number, rtol=1e-10)


@pytest.mark.slow
def test_lbfgs_takes_lazy_rows(data):
    X, y = in_chunks(data, 110)
    found = agp.fit_lbfgs(BUILD["sgpr"](X, y), X, y, max_iterations=15)
    expected = agp.fit_lbfgs(BUILD["sgpr"](*data), *data, max_iterations=15)
    np.testing.assert_allclose(found.trace["bound"], expected.trace["bound"], rtol=1e-6)


@pytest.mark.slow
def test_a_checkpoint_knows_its_rows_and_resumes(data, tmp_path):
    X, y = in_chunks(data, 40)
    model = moved(BUILD["whitened"](*data))
    how = {"batch_size": 30, "checkpoint": tmp_path / "run.safetensors", "updates": [Adam(0.01)]}
    agp.train(model, X, y, steps=13, **how)
    resumed = agp.train(model, X, y, steps=30, **how)
    whole = agp.train(model, X, y, steps=30, batch_size=30, updates=[Adam(0.01)])
    assert gap(resumed.model, whole.model) == 0.0
    with pytest.raises(ValueError, match="data"):
        agp.train(model, X + 1.0, y, steps=40, **how)


# -- what is said -----------------------------------------------------------------------------------------------------


def test_repairs_on_workers_are_told():
    def f(params, block):
        report("{0:.3g} was clipped", params[0], count=block[0, 0] > 0.0)
        return params[0], lambda bar: (bar,)

    X = da.from_array(np.arange(6.0)[:, None] - 2.5, chunks=(2, 1))
    with collect_reports() as reports:
        total, pull = get_backend("dask").fold(f, (np.asarray(0.5),), X, 10, add=lambda a, b: b if a is None else a + b)
        assert total == 1.5
        told = len(reports)
        pull(np.asarray(1.0))
    assert told == len(reports) == 1
    assert reports[0].numbers.tolist() == [1.0, 0.5]


@pytest.mark.parametrize("build", [agp.GPR, agp.CGGP, agp.TVGP, agp.TNNGP, agp.TSVGP, agp.CaGP])
def test_models_of_covariances_of_all_rows_say_so(build, data):
    X, y = in_chunks(data, 100)
    with pytest.raises(ValueError, match=f"{build.__name__} needs all rows in memory at once, but they are in a dask"):
        build.from_data(X, y)


@pytest.mark.slow
def test_bad_rows_are_named(data):
    X, y = in_chunks(data, 100)
    bad = data[0].copy()
    bad[201, 1] = np.nan
    with pytest.raises(ValueError, match="X has 1 NaN or infinite entries, the first in row 201"):
        agp.SVGP.from_data(da.from_array(bad, chunks=(50, D)), y)
    with pytest.raises(ValueError, match="X has 300 rows, but y has 299"):
        agp.SVGP.from_data(X, y[:-1])
    with pytest.raises(TypeError, match="y has dtype float32, X has float64"):
        agp.SVGP.from_data(X, y.astype("float32"))
    with pytest.raises(ValueError, match=r"X has chunks of unknown length; call X.compute_chunk_sizes"):
        agp.SVGP.from_data(X[X[:, 0] > 0.0], y)
    model = BUILD["whitened"](*data)
    with pytest.raises(BackendError, match="'dask' has no automatic differentiation; use gradient='closed-form'"):
        agp.value_and_gradient(model, X, y, gradient="autodiff")
    with pytest.raises(ValueError, match="data_parallel=True needs dask arrays, but X is in memory"):
        agp.train(model, *data, steps=1, data_parallel=True)
    with pytest.raises(BackendError, match="dask arrays hold rows of data and have no cholesky"):
        get_backend("dask").cholesky(X)


def test_the_next_pool_is_fetched_while_steps_run(data, monkeypatch):
    monkeypatch.setattr("agp.training._batches.POOL_MIB", 1e-6)
    pooled = Pooled(in_chunks(data, 100), 5, 0, data[0], in_place=False)  # three pools of a chunk each
    pooled.rows(0, 0, 5)
    assert list(pooled.fetched) == [(0, 0), (0, 1)]
    pooled.rows(0, 295, 300)
    assert list(pooled.fetched)[-2:] == [(0, 2), (1, 0)]


def test_a_task_without_memory_names_smaller_chunks(data):
    def exhausted(block):
        raise MemoryError

    X, y = in_chunks(data, 100)
    model = BUILD["whitened"](*data)
    broken = X.map_blocks(exhausted, dtype=X.dtype, meta=np.empty((0, 0)))
    batch = Batch(broken, y[:, None])
    with pytest.raises(WorkerError, match=r"chunks of 25 rows \(now 100\) for X and y \(X.rechunk\)"):
        model._objective(batch)


FIRST = """
import dask.array as da, numpy as np, agp
X = np.linspace(0.0, 1.0, 60)[:, None]
model = agp.SVGP.from_data(X, X, num_inducing=3)
rows = da.from_array(X, chunks=(20, 1))
first, then = model.predict(rows).mean.compute(), model.predict(rows).mean.compute()
assert (first == then).all()
da.ones(3).sum().compute()
"""


@pytest.mark.long
def test_the_first_evaluation_of_a_process_leaves_the_settings_of_dask_alone():
    """By a scheduler of its own choice, with nothing of dask imported but arrays."""
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
