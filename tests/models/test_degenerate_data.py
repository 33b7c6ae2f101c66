"""Data from which no model can be built: the error names what the user gave."""

import numpy as np
import pytest

from agp import RBF, SGPR, SVGP, Gaussian, ZeroMean, train
from agp.actions import ConjugateGradients, FixedActions
from agp.errors import NonFiniteError
from agp.kernels import Constant, Linear
from agp.models import SOLVEGP, SOLVEGPR, TSVGP, CaGP
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
    Whitened,
)

SPARSE = {
    q.__name__: (lambda *data, q=q, **parts: SVGP.from_data(*data, posterior=q, **parts))
    for q in (
        *(Whitened, Marginal, LikelihoodForm, Relaxed, InverseFree, Dual, DualInverseFree),
        *(DiagonalWhitened, DiagonalMarginal, FullSiteLikelihoodForm, FullSiteRelaxed),
    )
}
SPARSE |= {m.__name__: m.from_data for m in (SGPR, SOLVEGP, SOLVEGPR, TSVGP)}


def zeros():
    return np.zeros((10, 2)), np.random.default_rng(0).normal(size=(10, 1))


@pytest.mark.parametrize("model", SPARSE)
def test_a_kernel_that_is_zero_at_every_input_is_refused(model, backend):
    X, y = (backend.array(x) for x in zeros())
    with pytest.raises(ValueError, match=r"the kernel Linear has variance 0 at every .*all inducing inputs are zero"):
        SPARSE[model](X, y, kernel=Linear())
    SPARSE[model](X, y, kernel=Linear() + Constant())


def test_inducing_inputs_at_which_a_kernel_is_zero_are_refused():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(10, 2)), rng.normal(size=(10, 1))
    with pytest.raises(ValueError, match=r"the kernel Linear has variance 0 at every .*; add agp.kernels.Constant"):
        SVGP.from_data(X, y, kernel=Linear(), Z=np.zeros((3, 2)))
    with pytest.raises(ValueError, match="the kernel ActiveDims has variance 0 at every inducing input; add"):
        SVGP.from_data(X * [0.0, 1.0], y, kernel=Linear().on((0,)), num_inducing=3)


@pytest.mark.parametrize("model", [SOLVEGP, SOLVEGPR])
def test_one_row_is_too_few_for_two_groups(model):
    X, y = np.ones((1, 2)), np.ones((1, 1))
    with pytest.raises(ValueError, match="X has 1 row, but two groups of inducing inputs need at least 2; use SVGP"):
        model.from_data(X, y)
    SOLVEGP.from_data(X, y, num_inducing=1, num_orthogonal=0)


def test_no_actions_name_where_they_come_from():
    X, y = np.ones((1, 2)), np.ones((1, 1))
    with pytest.raises(ValueError, match="FixedActions gives no actions for 1 row of data"):
        CaGP.from_data(X, y, actions=FixedActions(np.zeros((1, 0))))
    with pytest.raises(ValueError, match=r"the policy <.*> gives no actions for 1 row of data"):
        CaGP.from_data(X, y, policy=lambda model: FixedActions(np.zeros((1, 0))))


@pytest.mark.parametrize("rows", [1, 12])
def test_conjugate_directions_have_no_scale(rows):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(rows, 2)), rng.normal(size=(rows, 1))
    policy = ConjugateGradients(min(rows, 3))

    def span(y):
        parts = {"kernel": RBF(1.0, 1.0), "likelihood": Gaussian(0.1), "mean_function": ZeroMean()}
        model = CaGP.from_data(X, y, policy=policy, **parts)
        return model.actions.values @ model.actions.values.T

    np.testing.assert_allclose(span(1e-200 * y), span(y), rtol=1e-9, atol=1e-12)


def test_errors_of_training_are_a_sentence_and_details():
    X, y = zeros()
    model = SVGP.from_data(X + np.arange(10.0)[:, None], y, num_inducing=3)

    class Factorisation:
        def init(self, model):
            return {}

        def __call__(self, model, batch, state):
            from agp.linalg import cholesky

            cholesky(-np.eye(3))

    with pytest.raises(NonFiniteError) as caught:
        train(model, X + np.arange(10.0)[:, None], y, steps=3, updates=[Factorisation()])
    first, *details = str(caught.value).splitlines()
    assert first == (
        "a factorisation failed in step 1; try a smaller learning rate, standardised data, more jitter or float64."
    )
    assert caught.value.details.splitlines() == details
    assert details[0].startswith("Reason: a 3 x 3 covariance matrix is not positive definite")
    assert caught.value.result.steps == 0
    assert NonFiniteError("only this").details == ""
