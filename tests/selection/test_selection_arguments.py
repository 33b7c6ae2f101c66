"""Parts of the user's stay what they are; hostile tables and arguments end in a finite answer or in one clear error."""

import warnings
from functools import partial

import numpy as np
import pytest
from helpers import process
from tables import WAYS, assert_predicts, table
from users_kernel import UsersKernel

import agp
from agp import selection, tree
from agp.kernels import Constant, Kernel, Linear, Matern32, White
from agp.priors import LogNormal

fit_regression = partial(selection.fit_regression, hyperparameters="mode")
"""The search for one setting; `test_few_rows.py` tests the integration over settings."""

pytestmark = pytest.mark.filterwarnings("ignore::agp.errors.NoSignalWarning")

MANY = ("exact", "collapsed", "near", "both")


def fit(way, columns=2, **options):
    rows, method = WAYS[way]
    X, y = table(rows, columns)
    return fit_regression(X, y, method=method, **options)


# -- parts of the user's -----------------------------------------------------------------------------------------------


@tree.model
class Cosine(UsersKernel):
    """A kernel without a variance: prod_d cos(x_d - z_d) exp(-|x - z|^2 / 50), written by a user with an RBF inside."""

    inner: Kernel


KERNELS = {
    "lengthscale": lambda: agp.RBF(lengthscale=0.8),
    "lengthscales": lambda: agp.Matern52(1.5, (0.5, 2.0)),
    "sum": lambda: agp.RBF() + Linear() + White(),
    "product": lambda: agp.RBF() * Matern32(lengthscale=1.0) + Constant(),
    "multiple": lambda: 2.0 * Matern32(),
    "columns": lambda: agp.RBF().on([0]) + Linear().on([1]),
    "a user's": lambda: Cosine(agp.RBF()),
}
TEXTS = {
    "lengthscale": "rbf",
    "lengthscales": "matern52",
    "sum": "rbf + linear + white",
    "product": "rbf * matern32 + constant",
    "multiple": "matern32",
    "columns": "rbf.on(0) + linear.on(1)",
    "a user's": "cosine",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("way", MANY)
def test_a_kernel_of_the_user(way, name):
    kernel = KERNELS[name]()
    if way == "both" and tree.nodes(kernel, White):
        with pytest.raises(ValueError, match="method is 'vif', but the kernel contains white noise"):
            fit(way, kernel=kernel)
        return
    found = fit(way, kernel=kernel)
    assert {one.kernel for one in found.candidates} == {TEXTS[name]}
    model = process(found.model).kernel
    if not (way != "exact" and isinstance(kernel, Cosine)):  # it has become a multiple of itself
        assert type(model) is type(kernel)
    assert_predicts(found.model, table(9)[0])


@pytest.mark.slow
@pytest.mark.parametrize("way", MANY)
def test_a_given_lengthscale_is_where_it_starts(way):
    near, far = (fit(way, kernel=agp.RBF(lengthscale=x), priors=None) for x in (0.9, 1.1))
    assert abs(near.bound - far.bound) < 0.5 * WAYS[way][0]


@pytest.mark.slow
@pytest.mark.parametrize("way", MANY)
def test_given_noise(way):
    found = fit(way, kernel=agp.RBF(), likelihood=agp.Gaussian(0.02))
    assert found.learned
    assert 0.0 < float(found.model.likelihood.noise_variance) < 0.2


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_no_mean_function(way):
    found = fit(way, mean_function=agp.ZeroMean())
    assert isinstance(process(found.model).mean_function, agp.ZeroMean)
    assert_predicts(found.model, table(9)[0])


PRIORS = {
    "none": None,
    "empty": {},
    "by pattern": {"kernel.*lengthscale": LogNormal(0.0, 1.0)},
    "by name": {"kernel.variance": LogNormal(0.0, 1.0), "likelihood.noise_variance": LogNormal(-3.0, 1.0)},
}


@pytest.mark.long
@pytest.mark.parametrize("priors", PRIORS.values(), ids=PRIORS)
@pytest.mark.parametrize("way", WAYS)
def test_priors_of_the_user(way, priors):
    assert_predicts(fit(way, priors=priors).model, table(9)[0])


@pytest.mark.long
def test_priors_by_name_go_with_a_linear_part():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, size=(36, 2))
    y = 8.0 * X[:, 0] - 3.0 * X[:, 1] + np.sin(4.0 * X[:, 0]) + 0.1 * rng.normal(size=36)
    found = fit_regression(X, y, priors={"kernel.variance": LogNormal(0.0, 2.0)})
    assert found.kernel.endswith(" + linear")
    assert [name for name, _ in found.model.priors] == ["kernel.parts.0.variance"]


@pytest.mark.slow
def test_a_strong_prior_is_heeded():
    found = fit("exact", kernel=agp.RBF(), priors={"kernel.lengthscale": LogNormal(1.0, 0.01)})
    np.testing.assert_allclose(found.model.kernel.lengthscale, np.e, rtol=0.1)


@pytest.mark.slow
def test_few_rows_for_many_columns_have_priors():
    wide, tall = (fit_regression(*table(20, columns), kernel=agp.RBF()) for columns in (6, 2))
    assert [name for name, _ in wide.model.priors] == ["kernel.*lengthscale"]
    assert not tall.model.priors


# -- hostile tables ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("method", ["auto", "gpr", "sgpr", "nngp", "vif"])
@pytest.mark.parametrize("rows", [2, 3, 5, 12])
def test_few_rows(rows, method):
    X, y = table(rows)
    assert_predicts(fit_regression(X, y, method=method).model, table(9)[0])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sgpr", "nngp", "vif"])
def test_one_row(method):
    X, y = table(1)
    assert_predicts(fit_regression(X, y).model, X)
    with pytest.raises(ValueError, match="X has one row, but two are needed"):
        fit_regression(X, y, method=method)


CHANGES = {
    "a constant column": lambda X, y: (np.column_stack([X[:, 0], np.full(len(X), 7.0)]), y),
    "constant columns": lambda X, y: (np.ones_like(X), y),
    "constant targets": lambda X, y: (X, np.full_like(y, 3.7)),
    "zeros": lambda X, y: (X, np.zeros_like(y)),
    "duplicates": lambda X, y: (X[np.arange(len(X)) // 3], y[np.arange(len(X)) // 3]),
    "duplicates that differ": lambda X, y: (X[np.arange(len(X)) // 3], y),
    "one column": lambda X, y: (X[:, :1], y),
    "more columns than rows": lambda X, y: (np.random.default_rng(0).normal(size=(len(X), len(X) + 20)), y),
    "huge": lambda X, y: (X, 1e150 * y),
    "tiny": lambda X, y: (X, 1e-150 * y),
    "huge inputs": lambda X, y: (1e150 * X, y),
    "tiny inputs": lambda X, y: (1e-150 * X, y),
    "an outlier": lambda X, y: (X, np.where(np.arange(len(y)) == 3, 1e9, y)),
    "a far row": lambda X, y: (np.where(np.arange(len(y))[:, None] == 3, 1e9, X), y),
    "whole numbers": lambda X, y: (np.round(X), np.round(y)),
    "targets of two values": lambda X, y: (X, (y > 0.5) * 1.0),
}


@pytest.mark.long
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("way", MANY)
def test_hostile_tables(way, change):
    rows, method = WAYS[way]
    X, y = change(*table(rows))
    found = fit_regression(X, y, method=method)
    assert_predicts(found.model, X)
    assert np.isfinite([found.bound, found.baseline, found.log_density]).all()
    assert found.describe()


def drawn_table(seed):
    """A table, a dtype and a method that nobody would choose."""
    rng = np.random.default_rng(seed)
    rows, columns, outputs = rng.choice([2, 3, 12, 26, 45, 70]), rng.choice([1, 2, 30]), rng.choice([1, 3])
    X = rng.normal(size=(rows, columns))
    y = [
        lambda: np.sin(2.0 * X[:, :1]) + 0.1 * rng.normal(size=(rows, outputs)),
        lambda: rng.standard_cauchy(size=(rows, outputs)),
        lambda: np.full((rows, outputs), 3.7),
        lambda: np.exp(4.0 * rng.normal(size=(rows, outputs))),
        lambda: np.sin(2.0 * X[:, :1]) + np.zeros((1, outputs)),
    ][rng.integers(5)]()
    changes = [
        lambda X, y: (np.where(np.arange(columns) == 0, 5.0, X), y),
        lambda X, y: (X[np.arange(rows) // 2], y),
        lambda X, y: (X[np.zeros(rows, dtype=int)], y),
        lambda X, y: (X * 10.0 ** rng.uniform(-15.0, 15.0, size=columns), y),
        lambda X, y: (X, y * 10.0 ** rng.uniform(-15.0, 15.0)),
        lambda X, y: (X + 1e6 * np.abs(X).max(), y),
        lambda X, y: (X, y + 1e6 * np.abs(y).max()),
        lambda X, y: (np.where(np.arange(rows)[:, None] == 0, 1e3 * np.abs(X).max(), X), y),
        lambda X, y: (X[:, np.zeros(columns, dtype=int)], y),
    ]
    for i in rng.integers(len(changes), size=rng.integers(4)):
        X, y = changes[i](X, y)
    dtype, method = (
        rng.choice(["float64", "float64", "float32"]),
        str(rng.choice(["auto", "gpr", "sgpr", "nngp", "vif"])),
    )
    kernel = ["auto", agp.RBF(), agp.Matern52(lengthscale=1.0), Linear(), agp.RBF().on([0])][rng.integers(5)]
    return X.astype(dtype), y.astype(dtype), {"method": method, "kernel": kernel}


def check_drawn_table(seed):
    X, y, options = drawn_table(seed)
    state = np.geterr()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", agp.errors.NoSignalWarning)
        warnings.simplefilter("ignore", agp.errors.RepairWarning)
        try:
            found = fit_regression(X, y, **options)
        except (TypeError, ValueError) as error:
            assert "\n" not in str(error), seed  # noqa: PT017
            return
        assert_predicts(found.model, X)
    assert np.isfinite([found.bound, found.baseline, found.log_density]).all(), seed
    assert np.geterr() == state


@pytest.mark.slow
@pytest.mark.sample(15)
@pytest.mark.parametrize("seed", range(30))
def test_drawn_tables(seed):
    check_drawn_table(seed)


@pytest.mark.long
def test_many_drawn_tables():
    for seed in range(100, 350):
        check_drawn_table(seed)


# -- refused -----------------------------------------------------------------------------------------------------------

X, Y = table(20)
REFUSED = {
    "kernel": ({"kernel": "rbf"}, TypeError, "kernel is 'rbf', but must be 'auto' or an instance"),
    "kernel class": ({"kernel": agp.RBF}, TypeError, "kernel is the class RBF"),
    "kernel array": ({"kernel": X}, TypeError, "kernel is array"),
    "wide kernel": ({"kernel": agp.RBF(lengthscale=[1.0, 2.0, 3.0])}, ValueError, "RBF has lengthscales of shape"),
    "columns": ({"kernel": agp.RBF().on([5])}, ValueError, "the inputs have 2 columns"),
    "method": ({"method": "svgp"}, ValueError, "method is 'svgp', but must be 'auto', 'gpr', 'sgpr'"),
    "method list": ({"method": ["gpr"]}, ValueError, "method is"),
    "method array": ({"method": X}, ValueError, "method is"),
    "most": ({"most": 0}, ValueError, "most is 0, but must be a whole number of at least 1"),
    "tolerance": ({"tolerance": 0.0}, ValueError, "tolerance is 0, but must be a finite number above zero"),
    "half": ({"most": 2.5}, ValueError, "most is 2.5"),
    "seconds": ({"max_seconds": -1.0}, ValueError, "max_seconds is -1"),
    "no seconds": ({"max_seconds": float("nan")}, ValueError, "max_seconds is nan"),
    "seconds text": ({"max_seconds": "1"}, ValueError, "max_seconds is '1'"),
    "seed": ({"seed": -1}, ValueError, "seed is -1"),
    "callback": ({"callbacks": print}, TypeError, "callbacks is"),
    "callbacks": ({"callbacks": [1]}, TypeError, "callbacks.0. is 1"),
    "priors": ({"priors": "none"}, TypeError, "priors is 'none', but must be 'auto', None or a dictionary"),
    "priors number": ({"priors": 5}, TypeError, "priors is 5"),
    "no prior": ({"priors": {"kernel*": 1}}, TypeError, "the prior of 'kernel.' is 1"),
    "unknown leaf": ({"priors": {"foo*": LogNormal(0.0, 1.0)}}, ValueError, "no parameter matches 'foo.'"),
    "likelihood": ({"likelihood": agp.Bernoulli()}, TypeError, "fit_regression needs Gaussian noise, not Bern"),
    "likelihood text": ({"likelihood": "gaussian"}, TypeError, "likelihood is 'gaussian'"),
    "mean": ({"mean_function": "zero"}, TypeError, "mean_function is 'zero'"),
    "memory": ({"memory": -1.0}, ValueError, "memory is -1.0 MiB, but must be positive"),
    "memory text": ({"memory": "a"}, TypeError, "memory is 'a'"),
}
DATA = {
    "NaN": (X, np.where(Y > 1.0, np.nan, Y), ValueError, "y has .* NaN or infinite entries"),
    "infinite": (np.where(X > 1.0, np.inf, X), Y, ValueError, "X has .* NaN or infinite entries"),
    "lengths": (X, Y[1:], ValueError, "X has 20 rows, but y has 19"),
    "a vector": (X[:, 0], Y, ValueError, "X has shape .20,., but must be 2-dimensional"),
    "no rows": (X[:0], Y[:0], ValueError, "must not be empty"),
    "no columns": (X[:, :0], Y, ValueError, "must not be empty"),
    "lists": (X.tolist(), Y, TypeError, "X is a list"),
    "integers": (X.astype(int), Y, TypeError, "X has dtype int64"),
    "dtypes": (X, Y.astype("float32"), TypeError, "y has dtype float32, X has float64"),
    "text": (X.astype(str), Y, TypeError, "X has dtype"),
}


@pytest.mark.parametrize(("options", "error", "match"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("method", ["gpr", "sgpr", "nngp"])
def test_one_clear_error(method, options, error, match):
    with pytest.raises(error, match=match):
        fit_regression(X, Y, **({"method": method} | options))


@pytest.mark.parametrize(("inputs", "targets", "error", "match"), DATA.values(), ids=DATA)
def test_data_that_are_refused(inputs, targets, error, match):
    with pytest.raises(error, match=match):
        fit_regression(inputs, targets)
