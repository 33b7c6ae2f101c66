"""Bad input gives one clear error that names culprit and remedy; awkward but valid input just works."""

import math

import numpy as np
import pytest
from helpers import process, with_leaves

import agp
from agp import GPR, RBF, SVGP, Bernoulli, Gaussian, Matern32, to_backend, to_numpy, train, tree
from agp.errors import BackendError
from agp.posteriors import Relaxed, Whitened

METHODS = [pytest.param(Whitened, id="whitened"), pytest.param(Relaxed, id="relaxed")]


def data(N=20, D=2, P=1, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, D))
    return X, np.sin(2 * X[:, :1]) + 0.1 * rng.normal(size=(N, P))


def sparse(X, y, **options):
    return SVGP.from_data(X, y, **({"num_inducing": 5} | options))


BUILDERS = [pytest.param(sparse, id="svgp"), pytest.param(GPR.from_data, id="gpr")]


# -- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["X", "y"])
@pytest.mark.parametrize("build", BUILDERS)
def test_entries_that_are_not_finite_are_refused_with_their_row(build, name, value):
    X, y = data()
    for row in (7, 12):
        (X if name == "X" else y)[row, -1] = value
    with pytest.raises(ValueError, match=f"{name} has 2 NaN or infinite entries, the first in row 7; remove or impute"):
        build(X, y)


@pytest.mark.parametrize("library", ["torch", "array_api_strict"])
def test_other_libraries_name_the_row_too(library):
    pytest.importorskip(library)
    X, y = data()
    X[3, 0] = math.nan
    with pytest.raises(ValueError, match="X has 1 NaN or infinite entries, the first in row 3"):
        sparse(to_backend(X, library), to_backend(y, library))


def test_inducing_inputs_and_test_inputs_that_are_not_finite_are_refused():
    X, y = data()
    bad = X[:4].copy()
    bad[2] = math.nan
    with pytest.raises(ValueError, match="Z has 2 NaN or infinite entries, the first in row 2"):
        sparse(X, y, Z=bad)
    with pytest.raises(ValueError, match="X has 2 NaN or infinite entries, the first in row 2"):
        sparse(X, y).predict(bad)


def test_the_row_of_a_bad_test_input_counts_from_the_first_row_of_all_chunks():
    X, y = data()
    bad = np.zeros((1000, 2))
    bad[777] = math.nan
    with pytest.raises(ValueError, match="in row 777"):
        sparse(X, y).predict(bad, memory=0.01)


@pytest.mark.parametrize("labels", [(-1.0, 1.0), (0.0, 2.0), (0.0, 0.5), (1.0, 2.0)], ids=str)
def test_labels_outside_zero_and_one_are_refused(labels):
    X, _ = data()
    y = np.where(np.arange(20) % 2 == 0, *labels)
    outside = next(x for x in labels if x not in (0.0, 1.0))
    with pytest.raises(ValueError, match=f"labels must be 0 or 1 for the Bernoulli likelihood; found {outside:g}"):
        sparse(X, y, likelihood=Bernoulli())


def test_bad_labels_are_refused_in_training_and_scoring_too():
    X, y = data()
    model = sparse(X, (y > 0) * 1.0, likelihood=Bernoulli())
    with pytest.raises(ValueError, match="labels must be 0 or 1"):
        train(model, X, y, steps=1)
    with pytest.raises(ValueError, match="labels must be 0 or 1"):
        model.log_density(X, y)


def test_targets_that_are_not_finite_are_refused_in_scoring():
    X, y = data()
    model = sparse(X, y)
    y[4] = math.nan
    with pytest.raises(ValueError, match="y has 1 NaN or infinite entries, the first in row 4"):
        model.log_density(X, y)


# -- shapes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("X_shape", "y_shape", "message"),
    [
        ((20,), (20,), r"X has shape \(20,\), but must be 2-dimensional"),
        ((20, 2, 1), (20,), r"X has shape \(20, 2, 1\), but must be 2-dimensional"),
        ((20, 2), (), r"y has shape \(\), but must be 1-dimensional or 2-dimensional"),
        ((20, 2), (20, 1, 1), r"y has shape \(20, 1, 1\), but must be 1-dimensional or 2-dimensional"),
        ((20, 2), (19,), "X has 20 rows, but y has 19; pass one target for each row of X"),
        ((20, 2), (1, 20), "X has 20 rows, but y has 1; pass one target for each row of X"),
        ((0, 2), (0,), r"X has shape \(0, 2\), but must not be empty"),
        ((20, 0), (20,), r"X has shape \(20, 0\), but must not be empty"),
        ((20, 2), (20, 0), r"y has shape \(20, 0\), but must not be empty"),
    ],
)
@pytest.mark.parametrize("build", BUILDERS)
def test_wrong_shapes_are_refused(build, X_shape, y_shape, message):
    with pytest.raises(ValueError, match=message):
        build(np.zeros(X_shape), np.zeros(y_shape))


@pytest.mark.parametrize(
    ("Z", "message"),
    [
        (np.zeros((4, 3)), "Z has 3 columns, but X has 2 columns; pass Z with 2 columns"),
        (np.zeros(4), r"Z has shape \(4,\), but must be 2-dimensional"),
        (np.zeros((0, 2)), r"Z has shape \(0, 2\), but must not be empty"),
        (np.zeros((21, 2)), "Z has 21 rows, but X has 20 rows; use at most 20 inducing inputs"),
        (np.zeros((4, 2), dtype=np.float32), "Z has dtype float32, X has float64; convert one of them"),
        (
            np.zeros((4, 2), dtype=int),
            r"Z has dtype int64, but must be .*; pass Z\.astype\(.float64.\)",
        ),
    ],
    ids=["width", "1-D", "empty", "rows", "float32", "integer"],
)
def test_inducing_inputs_that_do_not_fit_are_refused(Z, message):
    X, y = data()
    with pytest.raises((TypeError, ValueError), match=message):
        sparse(X, y, Z=Z)


@pytest.mark.parametrize("count", [21, 0, -3])
def test_numbers_of_inducing_inputs_out_of_range_are_refused(count):
    X, y = data()
    with pytest.raises(ValueError, match=rf"num_inducing is {count}, but must be .*1"):
        sparse(X, y, num_inducing=count)


@pytest.mark.parametrize("count", [2.5, True, math.nan, "many"], ids=repr)
def test_numbers_of_inducing_inputs_that_are_not_whole_are_refused(count):
    X, y = data()
    with pytest.raises((TypeError, ValueError), match=f"num_inducing is {count!r}, but must be a whole number"):
        sparse(X, y, num_inducing=count)


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("method", ["predict", "predict_mean", "predict_covariance"])
@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.zeros((5, 3)), "X has 3 columns, but the model was built for 2"),
        (np.zeros(5), r"X has shape \(5,\), but must be 2-dimensional"),
        (np.zeros((0, 2)), r"X has shape \(0, 2\), but must not be empty"),
        (np.zeros((5, 2), dtype=np.float32), "X has dtype float32, (Z|the training data) has float64"),
        (
            np.zeros((5, 2), dtype=np.int64),
            r"X has dtype int64, but must be .*; pass X\.astype\(.float64.\)",
        ),
        ([[0.0, 0.0]], r"X is a list, not an array of a known library .*; pass numpy\.asarray\(X, dtype=float\)"),
    ],
    ids=["width", "1-D", "empty", "float32", "integer", "list"],
)
def test_predictions_refuse_inputs_that_are_not_like_the_model(build, method, X, message):
    model = build(*data())
    with pytest.raises((TypeError, ValueError), match=message):
        getattr(model, method)(X)


@pytest.mark.parametrize("build", BUILDERS)
def test_predictions_refuse_arrays_of_another_library(build):
    torch = pytest.importorskip("torch")
    with pytest.raises(TypeError, match="X is a torch array, but .* is a numpy array; move one with agp.to_backend"):
        build(*data()).predict(torch.zeros((5, 2), dtype=torch.float64))


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("shape", [(19,), (19, 1), (1,), (20, 2), (20, 1, 1), ()], ids=str)
def test_scoring_refuses_targets_of_another_shape(build, shape):
    X, y = data()
    with pytest.raises(ValueError, match="y has"):
        build(X, y).log_density(X, np.zeros(shape))


# -- kinds of arrays -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int64", "int32", "bool", "complex128", "float16", "longdouble", "object"])
@pytest.mark.parametrize("name", ["X", "y"])
def test_dtypes_that_are_not_float32_or_float64_are_refused(name, dtype):
    X, y = data()
    X, y = (X.astype(dtype), y) if name == "X" else (X, y.astype(dtype))
    with pytest.raises(TypeError, match=f"{name} has dtype .*, but must be float64 or float32; pass "):
        sparse(X, y)


def test_mixed_dtypes_are_refused():
    X, y = data()
    with pytest.raises(TypeError, match="y has dtype float32, X has float64; convert one of them"):
        sparse(X, y.astype(np.float32))


@pytest.mark.parametrize("build", BUILDERS)
def test_mixed_libraries_are_refused(build):
    pytest.importorskip("torch")
    X, y = data()
    with pytest.raises(TypeError, match="y is a torch array, but X is a numpy array; move one with agp.to_backend"):
        build(X, to_backend(y, "torch"))


@pytest.mark.parametrize("what", ["y", "Z", "prediction", "scoring"])
def test_mixed_devices_are_refused(what):
    pytest.importorskip("array_api_strict")
    X, y = data()
    here, there = (
        [to_backend(x, "array_api_strict", device=device) for x in (X, y)] for device in ("CPU_DEVICE", "device1")
    )
    calls = {
        "y": lambda: sparse(here[0], there[1]),
        "Z": lambda: sparse(*here, Z=there[0]),
        "prediction": lambda: sparse(*here).predict(there[0]),
        "scoring": lambda: sparse(*here).log_density(here[0], there[1]),
    }
    with pytest.raises(ValueError, match=r"is on device device1, .* on CPU_DEVICE; move one with agp\.to_backend"):
        calls[what]()


@pytest.mark.slow
def test_everything_stays_on_the_device_of_the_data():
    xp = pytest.importorskip("array_api_strict")
    X, y = (to_backend(x, "array_api_strict", device="device1") for x in data())
    result = train(sparse(X, y), X, y, steps=3, batch_size=6)
    arrays = [*tree.leaves(result.model).values(), *result.model.predict(X)]
    assert {x.device for x in arrays} == {xp.Device("device1")}


def test_lists_are_refused():
    with pytest.raises(TypeError, match=r"X is a list, not an array of a known library \(.*numpy.*torch.*\)"):
        sparse([[0.0], [1.0]], [0.0, 1.0])


# -- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [RBF, Matern32])
@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize(
    "lengthscale", [0.0, -1.0, math.nan, math.inf, [1.0, 0.0], [1.0, -2.0], [1.0, math.nan]], ids=str
)
def test_lengthscales_that_are_not_positive_are_refused(build, kernel, lengthscale):
    with pytest.raises(ValueError, match="lengthscale is .*, but must be positive and finite"):
        build(*data(), kernel=kernel(lengthscale=lengthscale))


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan])
def test_variances_that_are_not_positive_are_refused(value):
    with pytest.raises(ValueError, match="variance is .*, but must be positive and finite"):
        sparse(*data(), kernel=RBF(variance=value))


@pytest.mark.parametrize("value", [-1.0, math.nan])
def test_noise_variances_below_zero_are_refused(value):
    with pytest.raises(ValueError, match="noise_variance is .*, but must be zero or positive and finite"):
        sparse(*data(), likelihood=Gaussian(value))


@pytest.mark.parametrize("build", BUILDERS)
def test_rows_without_any_noise_are_refused_in_training(build):
    X, y = data()
    model = build(X, y, likelihood=Gaussian(0.0))
    with pytest.raises(ValueError, match="noise_variance is 0, but rows have no known noise; pass noise=, or omit"):
        train(model, X, y, steps=1)


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (
            RBF(1.0, [1.0, 2.0, 3.0]),
            r"RBF has lengthscales of shape \(3,\), but the inputs have 2 columns; pass one lengths",
        ),
        (Matern32(1.0, [1.0]), r"Matern32 has lengthscales of shape \(1,\), but the inputs have 2 columns"),
        (RBF(1.0, [[1.0, 2.0]]), r"RBF has lengthscales of shape \(1, 2\), but the inputs have 2 columns"),
        (RBF(1.0, [1.0] * 3) + Matern32(), r"RBF has lengthscales of shape \(3,\)"),
        (RBF([1.0, 2.0], 1.0), "variance"),
    ],
    ids=["too-long", "too-short", "matrix", "in-a-sum", "variance"],
)
def test_hyperparameters_of_another_shape_are_refused(build, kernel, message):
    with pytest.raises(ValueError, match=message):
        build(*data(), kernel=kernel)


def test_hyperparameters_of_another_library_are_refused():
    X, y = data()
    torch = pytest.importorskip("torch")
    other = RBF(lengthscale=torch.tensor(1.0, dtype=torch.float32))
    with pytest.raises(TypeError, match=r"lengthscale has dtype torch.float32, X has torch.float64"):
        sparse(torch.asarray(X), torch.asarray(y), kernel=other)
    with pytest.raises(TypeError, match="lengthscale is a torch array, but X is a numpy array"):
        sparse(X, y, kernel=RBF(lengthscale=torch.tensor(1.0, dtype=torch.float64)))


@pytest.mark.parametrize(
    "value",
    [
        1,
        0.5,
        np.float64(0.5),
        np.float32(0.5),
        np.int64(1),
        [0.5, 1],
        (0.5, 1.0),
        np.asarray(0.5),
        np.float32([0.5, 1]),
    ],
    ids=repr,
)
def test_hyperparameters_may_be_numbers_and_lists(value):
    X, y = data()
    model = sparse(X, y, kernel=RBF(lengthscale=value))
    np.testing.assert_array_equal(process(model).kernel.lengthscale, value)
    assert process(model).kernel.lengthscale.dtype == X.dtype


@pytest.mark.parametrize("jitter", [-1e-9, math.nan, math.inf])
def test_jitter_that_is_not_a_finite_number_from_zero_on_is_refused(jitter):
    with pytest.raises(ValueError, match=f"jitter is {jitter!r}, but must be"):
        sparse(*data(), jitter=jitter)


@pytest.mark.parametrize("memory", [0, -1.0, math.nan])
@pytest.mark.parametrize("method", ["predict", "predict_mean"])
def test_budgets_that_are_not_positive_are_refused(method, memory):
    X, y = data()
    with pytest.raises(ValueError, match=f"memory is {memory!r} MiB, but must be positive"):
        getattr(sparse(X, y), method)(X, memory=memory)


def test_other_likelihoods_for_the_exact_gp_are_refused():
    X, y = data()
    with pytest.raises(TypeError, match="needs the Gaussian likelihood, not Bernoulli; use SVGP"):
        GPR.from_data(X, (y > 0) * 1.0, likelihood=Bernoulli())


def test_unknown_backends_are_refused_with_the_known_ones():
    with pytest.raises(BackendError, match="unknown backend 'numpi'; did you mean 'numpy'"):
        to_backend(np.zeros(2), "numpi")
    with pytest.raises(BackendError, match="unknown backend 'numpi'"):
        agp.get_backend("numpi")


def test_devices_that_numpy_does_not_have_are_refused():
    with pytest.raises(ValueError, match="NumPy has no device 'cuda'; use 'cpu'"):
        to_backend(np.zeros(2), "numpy", device="cuda")


def test_unknown_leaves_are_refused_with_the_known_ones():
    model = sparse(*data())
    with pytest.raises(KeyError, match=r"no leaf kernel\.width; its leaves are process\.kernel\.variance, .*"):
        with_leaves(model, {"kernel.width": np.asarray(1.0)})


# -- awkward data that must work -------------------------------------------------------------------------------------


def constant(value):
    def change(X, y):
        X[:, 1] = value
        return X, y

    return change


def constant_targets(value):
    return lambda X, y: (X, np.full_like(y, value))


AWKWARD = {
    "constant column 0": constant(0.0),
    "constant column 0.1": constant(0.1),
    "constant column 1e6": constant(1e6),
    "constant targets 0": constant_targets(0.0),
    "constant targets 0.1": constant_targets(0.1),
    "constant targets 1e6": constant_targets(1e6),
    "duplicated rows": lambda X, y: (np.repeat(X[:3], 7, axis=0)[:20], y),
    "equal rows": lambda X, y: (np.full_like(X, 0.1), y),
    "one column": lambda X, y: (X[:, :1].copy(), y),
    "one-dimensional y": lambda X, y: (X, y[:, 0].copy()),
    "three outputs": lambda X, y: (X, np.concatenate([y, -y, y * 0], axis=1)),
    "time stamps": lambda X, y: (1.7e9 + 1e5 * X, y),
    "tiny targets": lambda X, y: (X, 1e-6 * y),
    "large targets": lambda X, y: (X, 1e6 * y),
    "many columns": lambda X, y: (np.concatenate([X] * 10, axis=1), y),
}


def assert_usable(model, X, y, **options):
    result = train(model, X, y, **({"steps": 6} | options))
    assert np.all(np.isfinite(result.trace["bound"]))
    mean, variance = (to_numpy(x) for x in result.model.predict(X))
    outputs = 1 if y.ndim == 1 else y.shape[1]
    assert mean.shape == variance.shape == (X.shape[0], outputs)
    assert np.all(np.isfinite(mean))
    assert np.all(np.isfinite(variance))
    assert np.all(variance >= 0)
    return result


@pytest.mark.cover(2, quick=1)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("posterior", METHODS)
@pytest.mark.parametrize("kind", AWKWARD)
def test_awkward_data_train_and_predict(kind, posterior, dtype):
    X, y = (x.astype(dtype) for x in AWKWARD[kind](*data()))
    assert_usable(sparse(X, y, posterior=posterior), X, y, batch_size=5)


@pytest.mark.parametrize("kind", AWKWARD)
def test_awkward_data_serve_the_exact_gp(kind):
    X, y = AWKWARD[kind](*data())
    assert_usable(GPR.from_data(X, y), X, y)


@pytest.mark.parametrize("value", [0.0, 0.1, 0.3, 1e6])
def test_constant_columns_start_by_their_size_and_constant_targets_at_one(value):
    # the spread of equal numbers is zero up to the rounding of their mean
    X, y = data()
    X[:, 1] = value
    model = GPR.from_data(X, np.full(20, value))
    np.testing.assert_allclose(process(model).kernel.lengthscale[1], (value or 1.0) * np.sqrt(2.0), rtol=1e-15)
    assert process(model).kernel.variance == 1.0


@pytest.mark.parametrize("posterior", METHODS)
@pytest.mark.parametrize("Z", ["coincide", "all equal", "far away", "rows of X"])
def test_awkward_inducing_inputs_train_and_predict(Z, posterior):
    X, y = data()
    choices = {
        "coincide": np.repeat(X[:2], 3, axis=0),
        "all equal": np.zeros((6, 2)),
        "far away": X[:6] + 1e6,
        "rows of X": X,
    }
    assert_usable(sparse(X, y, posterior=posterior, Z=choices[Z]), X, y)


@pytest.mark.parametrize("posterior", METHODS)
def test_a_single_row_is_enough(posterior):
    X, y = data(N=1)
    assert_usable(sparse(X, y, posterior=posterior, num_inducing=1), X, y)


def test_a_single_row_is_enough_for_the_exact_gp():
    X, y = data(N=1)
    assert_usable(GPR.from_data(X, y), X, y)


@pytest.mark.slow
@pytest.mark.parametrize("posterior", METHODS)
def test_batches_may_be_single_rows(posterior):
    X, y = data(P=3)
    assert_usable(sparse(X, y, posterior=posterior), X, y, batch_size=1, steps=45)


@pytest.mark.slow
@pytest.mark.parametrize("posterior", METHODS)
@pytest.mark.parametrize("label", [0.0, 1.0])
def test_labels_may_all_be_equal(label, posterior):
    X, _ = data()
    y = np.full(20, label)
    result = assert_usable(sparse(X, y, posterior=posterior, likelihood=Bernoulli()), X, y, steps=30)
    p = result.model.predict(X, observed=True).mean
    assert np.all((p > 0.5) == (label == 1.0))


@pytest.mark.parametrize("layout", ["fortran", "strided", "reversed", "read-only"])
def test_the_memory_layout_of_the_data_does_not_matter(layout):
    X, y = data()
    wide = np.zeros((20, 4))
    wide[:, ::2] = X
    read_only = X.copy()
    read_only.flags.writeable = False
    layouts = {
        "fortran": np.asfortranarray(X),
        "strided": wide[:, ::2],
        "reversed": X[::-1].copy()[::-1],
        "read-only": read_only,
    }
    expected = train(sparse(X, y), X, y, steps=4, batch_size=5).trace["bound"]
    found = train(sparse(layouts[layout], y), layouts[layout], y, steps=4, batch_size=5).trace["bound"]
    np.testing.assert_allclose(found, expected, rtol=1e-10)
