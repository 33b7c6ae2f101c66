"""Priors, limits, frozen parameters and mean functions of estimators."""

import json

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import agp
from agp import GPClassifier, GPRegressor, tree
from agp.priors import Between, Fixed, Gamma, LogNormal, Relative, log_prior

RNG = np.random.default_rng(7)
X = RNG.standard_normal((260, 2))
Y = np.sin(X[:, 0]) + 0.1 * RNG.standard_normal(260)
LABELS = np.where(Y > 0.0, "up", "down")
KERNEL = agp.RBF(lengthscale=[0.7, 0.9])
LIMITS = {"kernel.*lengthscale": Between(0.5, 1.0), "likelihood.noise_variance": Between(0.05)}


def leaves(estimator, ending):
    return [np.asarray(x) for name, x in tree.leaves(estimator.model_).items() if name.endswith(ending)]


def assert_within(estimator):
    for x in leaves(estimator, "lengthscale"):
        assert np.all((x >= 0.5 - 1e-12) & (x <= 1.0 + 1e-12))
    for x in leaves(estimator, "noise_variance"):
        assert np.all(x >= 0.05 - 1e-12)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kernel": "matern52"},
        {"kernel": KERNEL},
        {"method": "gpr"},
        {"method": "sgpr", "num_inducing": 20},
        {"method": "sgpr"},
        {"method": "nngp"},
        {"method": "cagp-opt", "max_steps": 20},
        {"method": "wsvgp", "max_steps": 20},
        {"method": "rsvgp", "max_steps": 20},
        {"target_transform": None},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning", "ignore::agp.errors.NoSignalWarning")
def test_limits_hold_for_every_regressor(options):
    assert_within(GPRegressor(priors=LIMITS, **options).fit(X, Y))
    assert_within(GPRegressor(priors=LIMITS, **options).fit(X[:50], Y[:50]))


@pytest.mark.parametrize("options", [{}, {"kernel": KERNEL}, {"method": "wsvgp", "max_steps": 10}], ids=str)
@pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")
def test_limits_hold_for_every_classifier(options):
    limits = {name: limit for name, limit in LIMITS.items() if name.startswith("kernel")}
    assert_within(GPClassifier(priors=limits, **options).fit(X, LABELS))


@pytest.mark.parametrize("rows", [40, 260])
def test_a_frozen_entry_keeps_its_value(rows):
    found = GPRegressor(kernel=KERNEL, frozen="kernel.lengthscale[1]").fit(X[:rows], Y[:rows])
    for x in leaves(found, "lengthscale"):
        assert np.all(x[..., 1] == 0.9)
        assert np.all(x[..., 0] != 0.7)


@pytest.mark.parametrize("rows", [40, 260])
@pytest.mark.parametrize("kernel", ["auto", KERNEL], ids=["auto", "given"])
def test_frozen_noise_keeps_its_value(rows, kernel):
    found = GPRegressor(kernel=kernel, likelihood=agp.Gaussian(0.03), frozen="likelihood.*").fit(X[:rows], Y[:rows])
    assert all(np.all(x == 0.03) for x in leaves(found, "noise_variance"))


def test_a_frozen_kernel_of_a_classifier_keeps_its_values():
    found = GPClassifier(kernel=KERNEL, frozen="kernel.lengthscale").fit(X, LABELS)
    assert all(np.array_equal(x, [0.7, 0.9]) for x in leaves(found, "lengthscale"))


def test_densities_are_part_of_the_objective():
    tight = {"kernel.lengthscale": LogNormal(np.log(0.4), 0.01)}
    free, held = (GPRegressor(kernel=agp.RBF(), priors=priors).fit(X, Y) for priors in ("auto", tight))
    np.testing.assert_allclose(leaves(held, "lengthscale")[0], 0.4, rtol=0.1)
    assert np.all(leaves(free, "lengthscale")[0] > 0.8)
    assert float(log_prior(held.model_)[0]) != 0.0


@pytest.mark.parametrize("rows", [40, 260])
def test_the_mean_function_is_used(rows):
    X, trend = np.linspace(0.0, 1.0, rows)[:, None], np.linspace(0.0, 50.0, rows)
    y = trend + np.sin(20.0 * X[:, 0])
    found = GPRegressor(mean_function=agp.LinearMean(), target_transform=None).fit(X, y)
    assert any(name.endswith("mean_function.weights") for name in tree.leaves(found.model_))
    weights = next(x for name, x in tree.leaves(found.model_).items() if name.endswith("mean_function.weights"))
    assert np.all(np.asarray(weights) > 10.0)
    zero = GPRegressor(mean_function=agp.ZeroMean(), method="gpr", num_inducing=None).fit(X, y)
    assert not any("mean_function" in name for name in tree.leaves(zero.model_))


def test_partial_fit_keeps_limits():
    found = GPRegressor(method="wsvgp", priors=LIMITS, frozen="kernel.lengthscale[0]", kernel=KERNEL)
    for start in range(0, 240, 60):
        found.partial_fit(X[start : start + 60], Y[start : start + 60])
    assert_within(found)
    assert leaves(found, "lengthscale")[0][0] == 0.7


def test_scikit_learns_tools_see_the_parameters():
    estimator = GPRegressor(priors=LIMITS, frozen=("kernel.lengthscale[1]",), mean_function=agp.ZeroMean())
    assert clone(estimator).get_params()["priors"] == LIMITS
    kernels = [agp.RBF(lengthscale=length) for length in (0.1, 1.0)]
    search = GridSearchCV(GPRegressor(frozen="kernel.lengthscale"), {"kernel": kernels}, cv=2).fit(X[:60], Y[:60])
    assert search.best_params_["kernel"] is kernels[1]


def test_files_hold_priors_and_frozen_parameters(tmp_path):
    priors = {
        "kernel.*lengthscale": Between(0.5, 1.0),
        "kernel.*variance": Relative(Gamma(2.0, 1.0)),
        "kernel.lengthscale[0]": Fixed(),
    }
    found = GPRegressor(kernel=KERNEL, priors=priors, frozen="likelihood.*", mean_function=agp.ZeroMean()).fit(X, Y)
    agp.save(found, tmp_path / "model.safetensors")
    loaded = agp.load(tmp_path / "model.safetensors")
    assert loaded.priors == priors
    assert loaded.frozen == "likelihood.*"
    assert isinstance(loaded.mean_function, agp.ZeroMean)
    np.testing.assert_array_equal(loaded.predict(X), found.predict(X))
    again = clone(loaded).fit(X, Y)
    np.testing.assert_allclose(again.predict(X), found.predict(X))
    json.dumps([str(loaded)])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"priors": {"kernel.lenthscale": Between(0.5)}}, "no parameter matches 'kernel.lenthscale'; did you mean"),
        ({"priors": {"kernel.lengthscale": (0.5, 1.0)}}, "must be an instance of agp.priors.Prior"),
        ({"priors": 3}, "priors is 3, but must be 'auto', None or a dictionary"),
        ({"priors": "none"}, "priors is 'none'"),
        ({"frozen": "noise"}, "no parameter matches 'noise'"),
        ({"frozen": 3}, "a pattern of leaf names is 3"),
        ({"frozen": "kernel.lengthscale[5]"}, "names an entry of"),
        ({"mean_function": "linear"}, "mean_function is 'linear'"),
        ({"method": "wsvgp", "priors": {"kernel.lenthscale": Between(0.5)}}, "no parameter matches"),
    ],
)
def test_wrong_parameters_are_named(options, said):
    with pytest.raises((TypeError, ValueError), match=said):
        GPRegressor(**options).fit(X[:40], Y[:40])


LEVELS = RNG.permutation(np.repeat(["a", "b"], 130))
TABLES = {  # the compared kernels are sums, products over columns of categories, or have seasons
    "numbers": {"first": X[:, 0], "second": X[:, 1]},
    "categories": {"first": X[:, 0], "level": LEVELS},
    "dates": {"day": np.datetime64("2020-01-01") + np.arange(260), "first": X[:, 0]},
}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("options", [{}, {"hyperparameters": "mode"}, {"labels": True}], ids=str)
@pytest.mark.filterwarnings("ignore::agp.errors.NoSignalWarning")
def test_short_names_hold_for_every_compared_kernel(table, options):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(TABLES[table])[:90]
    limits = {"kernel.lengthscale": Between(7.0, 9.0)}
    labels = options == {"labels": True}
    kind = GPClassifier if labels else GPRegressor
    found = kind(priors=limits, **({} if labels else options)).fit(frame, LABELS[:90] if labels else Y[:90])
    compared = [
        np.asarray(node.lengthscale)
        for path, node in tree.nodes(found.model_, agp.kernels.Stationary).items()
        if type(node) in (agp.RBF, agp.Matern32, agp.Matern52) and not _is_part_of_season(found.model_, path)
    ]
    assert compared
    for x in compared:
        assert np.all((x >= 7.0 - 1e-9) & (x <= 9.0 + 1e-9))


def _is_part_of_season(model, path):
    products = tree.nodes(model, agp.kernels.Product)
    seasonal = [at for at, one in products.items() if any(isinstance(part, agp.Seasonal) for part in one.parts)]
    return any(path.startswith(f"{at}.") for at in seasonal)
