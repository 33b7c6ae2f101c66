"""What L-BFGS finds does not depend on the units of the data, and neither does what it says about itself."""

import numpy as np
import pytest
from helpers import toy_data

from agp import GPR, RBF, SGPR, SVGP, ConstantMean, StudentT, fit_lbfgs, tree
from agp.kernels import Constant, Linear, Periodic, White
from agp.means import LinearMean
from agp.posteriors import LikelihoodForm, Marginal, Whitened

BUILDERS = {
    "gpr": GPR.from_data,
    "gpr-level": lambda X, y: GPR.from_data(X, y, mean_function=ConstantMean()),
    "gpr-slopes": lambda X, y: GPR.from_data(X, y, mean_function=LinearMean()),
    "gpr-kernels": lambda X, y: GPR.from_data(X, y, kernel=3.0 * Linear() + Constant() * Periodic() + White()),
    "sgpr": lambda X, y: SGPR.from_data(X, y, num_inducing=8),
    "svgp": lambda X, y: SVGP.from_data(X, y, num_inducing=5, posterior=Whitened),
    "marginal": lambda X, y: SVGP.from_data(X, y, num_inducing=5, posterior=Marginal),
    "likelihood": lambda X, y: SVGP.from_data(X, y, num_inducing=5, posterior=LikelihoodForm),
    "diagonal-marginal": lambda X, y: SVGP.from_data(X, y, num_inducing=5, posterior="diagonal-marginal"),
    "diagonal-whitened": lambda X, y: SVGP.from_data(X, y, num_inducing=5, posterior="diagonal-whitened"),
    "likelihood-full-site": lambda X, y: SVGP.from_data(X, y, num_inducing=5, posterior="full-site-likelihood-form"),
    "student": lambda X, y: SVGP.from_data(X, y, num_inducing=5, posterior=Whitened, likelihood=StudentT()),
}
UNITS = [(1.0, 1e6), (1.0, 1e-6), (1e6, 1.0), (1e-6, 1.0)]


def fits(method, a, c, **options):
    """The results for X, y and for a X, c y, and the traces of the bound in the first units: p(c y) = p(y) / c."""
    X, y = toy_data(60, 2)
    here = fit_lbfgs(BUILDERS[method](X, y), X, y, **options)
    there = fit_lbfgs(BUILDERS[method](a * X, c * y), a * X, c * y, **options)
    return here, there, np.array(here.trace["bound"]), np.array(there.trace["bound"]) + y.size * np.log(c)


@pytest.mark.long
@pytest.mark.parametrize(("a", "c"), UNITS)
@pytest.mark.parametrize("method", ["gpr", "gpr-level", "gpr-slopes", "sgpr"])
def test_the_same_height_in_any_units(method, a, c):
    here, there, known, found = fits(method, a, c)
    assert abs(found[-1] - known[-1]) <= 1e-3 * 60
    if method != "sgpr":  # there the jitter leaves a floor of rounding, where some line searches give up
        assert here.converged
        assert there.converged


@pytest.mark.slow
@pytest.mark.parametrize(("a", "c"), [(1e3, 1e-2), (2.0**20, 1.0)])
@pytest.mark.parametrize("method", BUILDERS)
def test_the_same_iterates_in_any_units(method, a, c):
    _, _, known, found = fits(method, a, c, max_iterations=15)
    np.testing.assert_allclose(found, known, rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("given", [None, 2.0, [1.0, 2.0]])
def test_units_fit_what_a_user_gives(given):
    X, y = toy_data(60, 2)
    X = X * np.array([1e3, 1e-3])
    spreads = X.std(axis=0)
    for kernel, name, usual in (
        (RBF(lengthscale=given), "lengthscale", np.sqrt(2.0) * spreads),
        (Periodic(period=given), "period", spreads),
        (Linear(given), "variance", y.var(axis=0).mean() / (X**2).mean(axis=0)),
    ):
        kernel = GPR.from_data(X, y, kernel=kernel).kernel
        expected = np.exp(np.log(usual).mean()) if given == 2.0 else usual
        np.testing.assert_allclose(tree.leaves(kernel)[f"{name}_unit"], expected, rtol=1e-12)
        assert tree.leaves(kernel)[name].shape == tree.leaves(kernel)[f"{name}_unit"].shape
