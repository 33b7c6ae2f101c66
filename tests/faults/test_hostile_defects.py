"""What hostile problems once brought to light, each in a few lines."""

import warnings

import numpy as np
import pytest
from helpers import named

import agp
from agp import RBF, SOLVEGPR, SVGP, CaGP, Gaussian, Matern12, Poisson, train, value_and_gradient
from agp.errors import NonFiniteError, RepairWarning
from agp.kernels import Constant, White
from agp.models import GPR
from agp.posteriors import Dual, DualInverseFree
from agp.processes import Deep, LinearMixing, Sparse
from agp.updates import Adam, SiteStep


def values(dtype="float64", rows=20):
    """X [N, 2] and y [N, 1]."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 2))
    return X.astype(dtype), (np.sin(X[:, :1]) + 0.1 * rng.normal(size=(rows, 1))).astype(dtype)


def with_outlier(dtype="float32"):
    X, y = values(dtype)
    y[3, 0] = 1e8
    return X, y


# -- huge gradients ---------------------------------------------------------------------------------------------------


def test_a_gradient_whose_square_overflows_does_not_stop_a_leaf():
    # in float32 the square of the noise's gradient, 1e16 / 1e-6, is infinite, and so was its second moment ever after
    X, y = with_outlier()
    model = SVGP.from_data(X, y, posterior="whitened", likelihood=Gaussian(1e-6), num_inducing=4)
    slope = value_and_gradient(model, X, y)[1]["likelihood.noise_variance"]
    assert abs(float(slope)) > float(np.finfo("float32").max) ** 0.5
    update = Adam(0.1)
    moved, state, _ = update(model, model._batch(X, y), update.init(model))
    assert all(np.isfinite(x).all() for x in state["second"].values())
    assert float(moved.likelihood.noise_variance) > float(model.likelihood.noise_variance)


def test_a_gradient_that_is_not_finite_is_not_cut():
    update, X, y = Adam(0.1), *values()
    model = GPR.from_data(X, y, kernel=RBF(1.0, 1.0), likelihood=Gaussian(1e-300))
    with np.errstate(all="ignore"):
        moved = update(model, model._batch(X, 1e200 * y), update.init(model))[0]
    assert not all(np.isfinite(x).all() for x in named(moved).values())


def test_a_raw_gradient_is_finite_where_the_products_on_the_way_are_not():
    # d bound / d noise is 2e34 here, the unit of the noise 1e15: their product overflows, and times the slope is 1e25
    X, y = with_outlier()
    model = SVGP.from_data(X, y, posterior="whitened", likelihood=Gaussian(1e-9), num_inducing=4)
    gradient = value_and_gradient(model, X, y)[1]["likelihood.noise_variance"]
    assert 1e20 < abs(float(gradient)) < np.inf


# -- what is not finite is refused ------------------------------------------------------------------------------------


def test_a_gradient_beyond_the_largest_float_is_refused():
    X, y = with_outlier()
    model = SVGP.from_data(X, y, posterior="whitened", likelihood=Gaussian(1e-20), num_inducing=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NonFiniteError, match=r"likelihood\.noise_variance.* not finite in float32; try"):
            value_and_gradient(model, X, y)


@pytest.mark.parametrize("what", ["predict", "predict_mean", "predict_covariance", "sample"])
def test_predictions_beyond_the_largest_float_are_refused(what):
    X, y = values("float32")
    part = Sparse.from_data(X, num_inducing=4, posterior="marginal")
    weights = np.asarray([[3e38]], dtype="float32") if what != "predict_mean" else np.asarray([[1e38]], dtype="float32")
    part = agp.tree.with_leaves(part, {"posterior.mean": np.full_like(part.posterior.mean, 1e3)})
    model = SVGP(process=LinearMixing(part, weights), likelihood=Gaussian(np.asarray(0.1, dtype="float32")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NonFiniteError, match="the predicted .* not finite in float32; check"):
            getattr(model, what)(X)


def test_targets_whose_squares_overflow_are_refused_by_name():
    y = np.asarray([0.0, 1e30, -1e30, 1.0], dtype="float32")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(
            ValueError,
            match=r"values up to 1e\+30, so its variance exceeds .* divide y by",
        ):
            SVGP.from_data(np.arange(4.0, dtype="float32")[:, None], y, num_inducing=2)


def test_training_that_diverges_says_so_once():
    X, y = with_outlier()
    model = SVGP.from_data(X, y, posterior="whitened", likelihood=Gaussian(1e-20), num_inducing=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NonFiniteError) as caught:
            train(model, X, y, steps=3)
    assert caught.value.result.model is not None


def test_overflow_in_training_stays_what_the_user_made_it():
    X, y = with_outlier()
    model = SVGP.from_data(X, y, posterior="whitened", likelihood=Gaussian(1e-20), num_inducing=4)
    with np.errstate(all="raise"), pytest.raises(FloatingPointError):
        train(model, X, y, steps=3)


# -- and more ---------------------------------------------------------------------------------------------------------


def test_inverse_factors_left_behind_in_training_come_with_the_last_model():
    X, y = values()
    model = SVGP.from_data(X, y, posterior=DualInverseFree, kernel=RBF(1.0, 1.0), num_inducing=6)
    with pytest.raises(NonFiniteError, match="the residual of the inverse factors is") as caught:
        train(model, X, y, steps=20, updates=[Adam(1.0, frozen="posterior.*")])
    assert caught.value.result.model is not None
    assert "In the last finite model" in str(caught.value)


def test_regression_refuses_sites_that_nothing_moves():
    X, y = values()
    with pytest.raises(ValueError, match="SOLVEGPR cannot train the sites of Dual; use SOLVEGP"):
        SOLVEGPR.from_data(X, y, second="dual", num_inducing=4, num_orthogonal=4)


def test_site_steps_refuse_a_model_whose_sites_they_cannot_reach():
    X, y = values()
    model = SOLVEGPR.from_data(X, y, second="whitened", num_inducing=4, num_orthogonal=4)
    L = np.linalg.cholesky(model._inducing_covariance()[0])[4:, 4:]
    model = agp.tree.replace(model, {"second": Dual.from_posterior(model.second, L @ L.T)})
    with pytest.raises(TypeError, match="has no sites that SiteStep can update"):
        SiteStep().init(model)


def test_a_mixture_of_the_largest_variances_is_the_largest_float():
    X, _ = values()
    first = Sparse.from_data(X, outputs=2, num_inducing=4, posterior="whitened")
    last = Sparse.from_data(X, num_inducing=4, posterior="whitened", kernel=Constant(1e6) + White(1.0))
    model = SVGP(process=Deep((first, last), samples=2), likelihood=Poisson())
    with pytest.warns(RepairWarning, match="too large"):
        mean, variance = model.predict(X, observed=True)
    assert np.isfinite(mean).all()
    assert (variance == np.finfo("float64").max).all()


def test_nothing_is_divided_by_zero_where_no_rescue_is_needed():
    rng = np.random.default_rng(0)
    X = np.repeat(6.0 + rng.normal(size=(1, 1)), 17, axis=0).astype("float32")
    y = np.full((17, 1), 4.0, dtype="float32")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        warnings.simplefilter("ignore", RepairWarning)
        CaGP.from_data(X, y, kernel=Matern12(), likelihood=Gaussian(7e-10), num_actions=11, inverse_free=True)


def test_a_small_negative_variance_is_repaired_and_told():
    A = np.diag([1.0, 1.0, -1e-9])
    with pytest.warns(RepairWarning, match=r"jitter 6.67e-06 was added .* returned a negative variance \(-1e-09\)"):
        agp.linalg.cholesky(A)
