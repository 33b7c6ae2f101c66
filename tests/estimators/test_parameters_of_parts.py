"""Parameters of the kernels and likelihoods that are parameters of estimators."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.ensemble import VotingRegressor
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import agp
from agp.estimators import GPClassifier, GPRegressor

RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, size=(60, 2))
Y = np.sin(3.0 * X[:, 0]) + 0.1 * RNG.standard_normal(60)

pytestmark = pytest.mark.filterwarnings("ignore::agp.errors.ConvergenceWarning")


def nested(estimator):
    return {name: value for name, value in estimator.get_params().items() if "__" in name}


def test_leaves_and_settings_of_parts_are_parameters():
    kernel = agp.RBF(2.0, 0.5) + agp.Linear() * agp.Matern32().on(("a",))
    model = GPRegressor(kernel=kernel, likelihood=agp.StudentT(degrees_of_freedom=5.0))
    found = nested(model)
    assert found["kernel__parts__0__lengthscale"] == 0.5
    assert found["kernel__parts__0__variance"] == 2.0
    assert found["kernel__parts__1__parts__0__variance"] is None
    assert found["kernel__parts__1__parts__1__columns"] == ("a",)
    assert "kernel__parts__1__parts__1__kernel__lengthscale" in found
    assert found["kernel__parts__1"] is kernel.parts[1]
    assert found["likelihood__degrees_of_freedom"] == 5.0
    assert not any("unit" in name for name in found)
    for name in agp.tree.leaves(kernel):
        assert f"kernel__{name.replace('.', '__')}" in found
    assert not nested(GPRegressor(kernel="rbf + linear", likelihood="student-t"))
    assert not {name for name in model.get_params(deep=False) if "__" in name}


def test_set_parameters_make_a_new_kernel():
    kernel = agp.RBF(2.0, 0.5) + agp.kernels.Scaled(3.0, agp.Matern32())
    model = GPRegressor(kernel=kernel)
    same = model.set_params(kernel__parts__0__lengthscale=1.5, kernel__parts__1__kernel=agp.RBF())
    assert same is model
    assert (kernel.parts[0].lengthscale, type(kernel.parts[1].kernel).__name__) == (0.5, "Matern32")
    assert repr(model.kernel.parts[0]) == repr(agp.RBF(2.0, 1.5))
    assert repr(model.kernel.parts[1]) == repr(agp.kernels.Scaled(3.0, agp.RBF()))
    model.set_params(kernel__parts__0__lengthscale=None)
    assert model.kernel.parts[0].lengthscale is None
    both = GPRegressor(kernel="rbf").set_params(kernel__lengthscale=(1.0, 2.0), kernel=agp.Matern52())
    assert repr(both.kernel) == repr(agp.Matern52(lengthscale=(1.0, 2.0)))
    inner = model.set_params(kernel__parts__0__variance=4.0, kernel__parts__0=agp.Matern12())
    assert repr(inner.kernel.parts[0]) == repr(agp.Matern12(4.0))
    copy = clone(model)
    assert repr(copy.kernel) == repr(model.kernel)


def test_set_parameters_make_a_new_likelihood():
    likelihood = agp.StudentT(degrees_of_freedom=5.0)
    model = GPRegressor(likelihood=likelihood).set_params(likelihood__degrees_of_freedom=3.0)
    assert (model.likelihood.degrees_of_freedom, likelihood.degrees_of_freedom) == (3.0, 5.0)


@pytest.mark.parametrize(
    ("settings", "given", "message"),
    [
        (
            {"kernel": agp.RBF()},
            {"kernel__lengthscal": 1.0},
            "'kernel__lengthscal' for RBF; did you mean 'kernel__leng",
        ),
        ({"kernel": agp.RBF() + agp.Linear()}, {"kernel__variance": 1.0}, "for Sum; did you mean 'kernel__parts__"),
        ({"kernel": agp.RBF()}, {"kernl__lengthscale": 1.0}, "'kernl' for GPRegressor; did you mean 'kernel'?"),
        ({"kernel": "rbf"}, {"kernel__lengthscale": 1.0}, "kernel is 'rbf', .*pass an object such as kernel=agp.RBF()"),
        ({"likelihood": "gamma"}, {"likelihood__shape": 1.0}, "likelihood is 'gamma', which has no parameters to set"),
        ({}, {"method__steps": 1}, "method is 'auto', which has no parameters to set; set method to a new value."),
    ],
)
def test_names_that_parts_do_not_have_are_refused(settings, given, message):
    model = GPRegressor(**settings)
    before = dict(vars(model))
    with pytest.raises(ValueError, match=message.replace("()", r"\(\)").replace("?", r"\?")):
        model.set_params(random_state=3, **given)
    assert vars(model) == before


def test_parts_are_replaced_by_parts():
    with pytest.raises(TypeError, match="kernel__parts__0 is 'rbf', but must be an instance of agp's Kernel"):
        GPRegressor(kernel=agp.RBF() + agp.Linear()).set_params(kernel__parts__0="rbf")
    with pytest.raises(ValueError, match="lengthscale is -1.0, but must be positive"):
        GPRegressor(kernel=agp.RBF()).set_params(kernel__lengthscale=-1.0).fit(X, Y)


def test_trained_kernels_are_taken_as_starts():
    trained = GPRegressor(kernel=agp.RBF(), hyperparameters="mode").fit(X, Y).model_.kernel
    model = GPRegressor(kernel=trained, hyperparameters="mode", max_steps=1)
    model.set_params(kernel__lengthscale=0.5).fit(X, Y)
    assert model.kernel.lengthscale == 0.5
    assert trained.lengthscale.shape == (2,)


def test_a_grid_over_lengthscales():
    base = GPRegressor(kernel=agp.RBF(variance=1.0), hyperparameters="mode", max_steps=1)
    search = GridSearchCV(base, {"kernel__lengthscale": [0.05, 0.7, 100.0]}, cv=2, n_jobs=2).fit(X, Y)
    assert search.best_params_ == {"kernel__lengthscale": 0.7}
    assert repr(search.best_estimator_.kernel) == repr(agp.RBF(1.0, 0.7))
    assert repr(base.kernel) == repr(agp.RBF(1.0))


def test_a_grid_in_a_pipeline():
    steps = make_pipeline(StandardScaler(), GPClassifier(kernel=agp.RBF(), max_steps=3))
    grid = {"gpclassifier__kernel__lengthscale": [0.5, (1.0, 5.0)], "gpclassifier__kernel": [agp.RBF(), agp.Matern52()]}
    search = GridSearchCV(steps, grid, cv=2).fit(X, Y > 0.0)
    assert len(search.cv_results_["params"]) == 4
    assert search.best_estimator_[-1].kernel.lengthscale in (0.5, (1.0, 5.0))
    vote = VotingRegressor([("gp", GPRegressor(kernel=agp.RBF()))]).set_params(gp__kernel__lengthscale=2.0)
    assert repr(vote.estimators[0][1].kernel) == repr(agp.RBF(lengthscale=2.0))


def test_notebooks_show_parameters_of_parts():
    assert "kernel__lengthscale" in GPRegressor(kernel=agp.RBF(1.0, 0.5))._repr_html_()
    assert repr(GPRegressor(kernel=agp.RBF(1.0, 0.5))) == "GPRegressor(kernel=RBF(variance=1.0, lengthscale=0.5))"
