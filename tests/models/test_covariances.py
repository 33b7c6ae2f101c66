"""Joint covariances of every model where rounding is as large as what is left of the variance."""

import functools
from typing import NamedTuple

import numpy as np
import pytest
from helpers import NUMPY, STRICT, TORCH

from agp import CGGP, GPR, RBF, SGPR, SVGP, TNNGP, TSVGP, TVGP, CaGP, Gaussian, tree
from agp.models import SOLVEGP, SOLVEGPR
from agp.posteriors import (
    DiagonalMarginal,
    DiagonalWhitened,
    Dual,
    DualInverseFree,
    FullSiteLikelihoodForm,
    FullSiteRelaxed,
    InverseFree,
    LikelihoodForm,
    Marginal,
    Relaxed,
    RelaxedOrthogonal,
    RelaxedUnion,
    Whitened,
)
from agp.repairs import collect_reports

ROWS = 12


def sparse(posterior):
    return functools.partial(SVGP.from_data, posterior=posterior, num_inducing=8)


MODELS = {
    "GPR": GPR.from_data,
    "CGGP": functools.partial(CGGP.from_data, rank=4),
    "CaGP": functools.partial(CaGP.from_data, num_actions=6),
    "CaGP, inverse-free": functools.partial(CaGP.from_data, num_actions=6, inverse_free=True),
    "SGPR": functools.partial(SGPR.from_data, num_inducing=8),
    "SOLVEGPR": functools.partial(SOLVEGPR.from_data, num_inducing=4),
    "TSVGP": functools.partial(TSVGP.from_data, num_inducing=8),
    "TVGP": TVGP.from_data,
    "TNNGP": TNNGP.from_data,
    "W": sparse(Whitened),
    "M": sparse(Marginal),
    "L": sparse(LikelihoodForm),
    "R": sparse(Relaxed),
    "A": sparse(InverseFree),
    "W, diagonal": sparse(DiagonalWhitened),
    "M, diagonal": sparse(DiagonalMarginal),
    "L, full site": sparse(FullSiteLikelihoodForm),
    "R, full site": sparse(FullSiteRelaxed),
    "dual": sparse(Dual),
    "dual, inverse-free": sparse(DualInverseFree),
    "SOLVE": functools.partial(SOLVEGP.from_data, num_inducing=4),
    "SOLVE, orthogonal": functools.partial(SOLVEGP.from_data, num_inducing=4, posterior=RelaxedOrthogonal),
    "SOLVE, union": functools.partial(SOLVEGP.from_data, num_inducing=4, posterior=RelaxedUnion),
}


class Extreme(NamedTuple):
    """A problem; the noise and the remaining uncertainty of q(u) are shares of the variance."""

    variance: float = 1.0
    lengthscale: float = 1.0
    noise: float = 1e-8
    copies: float = 1.0
    """How far half of the inputs are from the other half."""


PROBLEMS = {
    "usual": Extreme(),
    "near duplicates": Extreme(copies=1e-9, noise=1e-10),
    "short lengthscale": Extreme(lengthscale=1e-6, variance=1e-12),
    "long lengthscale": Extreme(lengthscale=1e6, variance=1e12),
    "near duplicates, tiny variance": Extreme(copies=1e-9, variance=1e-12, lengthscale=3.0),
}
PLACES = [(NUMPY, "float64"), (NUMPY, "float32"), (TORCH, "float32"), (STRICT, "float64")]


def built(method, problem, place, dtype):
    """A model without much uncertainty, and inputs at and near its data."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, size=(ROWS // 2, 2))
    X = np.concatenate([X, X + problem.copies * rng.uniform(-1.0, 1.0, size=X.shape)])
    y = np.sqrt(problem.variance) * np.sin(3.0 * X[:, :1])
    Xs = np.concatenate([X, X + 1e-7, rng.uniform(-1.0, 1.0, size=(6, 2))])
    noise = max(problem.noise, 1e-5 if dtype == "float32" else 0.0) * problem.variance
    parts = {"kernel": RBF(problem.variance, problem.lengthscale), "likelihood": Gaussian(noise)}
    X, y, Xs = (place.array(x, dtype) for x in (X, y, Xs))
    model = MODELS[method](X, y, **parts)
    certain = {name: 1e-3 * x for name, x in tree.leaves(model).items() if name.endswith((".scale", ".deviation"))}
    return tree.with_leaves(model, certain), Xs


@pytest.mark.sample(44)
@pytest.mark.cover(2, quick=1)
@pytest.mark.filterwarnings("ignore:(overflow|underflow|invalid value) encountered:RuntimeWarning")
@pytest.mark.parametrize(("place", "dtype"), PLACES, ids=lambda x: x if isinstance(x, str) else x.name)
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("method", MODELS)
def test_the_diagonal_of_a_covariance_is_the_variance(method, problem, place, dtype):
    pytest.importorskip(place.name, reason=f"{place.name} is not installed: not executed")
    with collect_reports():
        model, Xs = built(method, PROBLEMS[problem], place, dtype)
        found = place.numpy(model.predict_covariance(Xs), dtype)
        variance = place.numpy(model.predict(Xs).variance, dtype)
        samples = place.numpy(model.sample(Xs, 2), dtype)
    assert np.all(np.isfinite(found))
    assert np.all(np.isfinite(samples))
    np.testing.assert_array_equal(found, np.swapaxes(found, 1, 2))
    np.testing.assert_array_equal(np.diagonal(found, axis1=1, axis2=2).T, variance)
    assert np.all(variance >= 0.0)


@pytest.mark.parametrize("method", MODELS)
def test_away_from_the_diagonal_a_covariance_is_what_the_posterior_says(method):
    with collect_reports():
        model, Xs = built(method, Extreme(noise=1e-2), NUMPY, "float64")
        (process,), (factor,) = model.predictor().processes, model.predictor().factors
        found, expected = model.predict_covariance(Xs), process.project_covariance(factor, Xs)
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-9)
    assert np.linalg.eigvalsh(found).min() > -1e-9
