"""`agp.testing.check_pullback` passes what is right, and catches a wrong pullback of every kind of part."""

import numpy as np
import pytest
from helpers import toy_data

import agp
from agp import tree
from agp.backend import backend_of
from agp.testing import check_pullback

COUNTS = np.asarray([[0.0, 3.0], [1.0, 2.0], [7.0, 0.0], [2.0, 1.0]])
LABELS = np.asarray([[0.0], [2.0], [1.0], [2.0], [0.0]])


def _process(outputs=1, posterior="whitened"):
    X, _ = toy_data(20)
    return agp.processes.Sparse.from_data(X, outputs=outputs, num_inducing=4, posterior=posterior)


RIGHT = {
    "kernel": (lambda: agp.Matern32(0.7, [1.0, 2.0]) + 2.0 * agp.RBF().on((1,)), {}),
    "mean": (lambda: agp.LinearMean(), {}),
    "constant-mean": (lambda: agp.ZeroMean(), {}),
    "likelihood": (lambda: agp.StudentT(), {"y": COUNTS}),
    "sampled-likelihood": (lambda: agp.Softmax(3), {"y": LABELS}),
    "posterior": (lambda: "relaxed", {}),
    "posterior-of-class": (lambda: agp.posteriors.Orthogonal, {}),
    "posterior-object": (lambda: agp.posteriors.Whitened.from_prior(np.eye(3), 2), {"inducing": 3}),
    "inducing": (lambda: agp.inducing.Points(), {"kernel": agp.Matern52()}),
    "process": (lambda: agp.processes.LinearMixing(_process(2), np.asarray([[0.5, 1.0], [-0.3, 0.2], [1.0, 1.0]])), {}),
    "deep": (lambda: agp.processes.Deep((_process(2), _process(1))), {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_right_pullbacks_pass(name, torch_place):
    part, options = RIGHT[name]
    check_pullback(part(), backends=["torch"], **options)


@pytest.mark.parametrize("name", ["kernel", "likelihood", "posterior-of-class"])
def test_right_pullbacks_pass_on_jax(name):
    pytest.importorskip("jax")
    part, options = RIGHT[name]
    check_pullback(part(), backends=["jax"], differences=False, **options)


@pytest.mark.slow
def test_a_forward_that_holds_something_constant_is_left_to_automatic_differentiation(torch_place):
    with pytest.raises(AssertionError, match="differences"):
        check_pullback("inverse-free", backends=[])
    check_pullback("inverse-free", backends=["torch"], differences=False)


# -- wrong ones -------------------------------------------------------------------------------------------------------


@tree.model
class SlopeTwice(agp.kernels.Stationary):
    """g = exp(-r2), with the slope of exp(-2 r2)."""

    def profile(self, r2, /):
        g = backend_of(r2).xp.exp(-r2)
        return g, lambda: -2.0 * g


@tree.model
class NoSlopeOfInputs(agp.RBF):
    def diag(self, X, /):
        # depends on the inputs, and does not say so
        return self.variance * (1.0 + X[:, 0] ** 2), lambda bar: (
            tree.cotangent(self, variance=backend_of(X).xp.sum(bar * (1.0 + X[:, 0] ** 2))),
            None,
        )


@tree.model
class ForgetsOutputs(agp.LinearMean):
    def __call__(self, X, /):
        h, pull = super().__call__(X)

        def pullback(h_bar):
            bar, X_bar = pull(h_bar)
            return tree.cotangent(self, weights=bar.weights, offset=-bar.offset), X_bar

        return h, pullback


@tree.model
class LosesVariance(agp.Poisson):
    def expected_log_density(self, mu, var, y, /, draws=None):
        value, pull = super().expected_log_density(mu, var, y, draws)

        def pullback(bar):
            likelihood_bar, mu_bar, var_bar = pull(bar)
            return likelihood_bar, mu_bar, 2.0 * var_bar

        return value, pullback


@tree.model
class FreePrior(agp.posteriors.Whitened):
    def white_kl(self):
        kl, _ = super().white_kl()
        return kl, lambda bar: tree.cotangent(self, mean=bar * self.mean)


@tree.model
class FixedPoints(agp.inducing.Points):
    def cross(self, kernel, X, /):
        Kuf, pull = super().cross(kernel, X)
        return Kuf, lambda bar: (None, *pull(bar)[1:])


@tree.model
class LosesInputs(agp.processes.Sparse):
    def project(self, factor, X, /):
        value, pull = super().project(factor, X)
        return value, lambda *bars: (*pull(*bars)[:2], None)


WRONG = {
    "kernel": (lambda: SlopeTwice(), {}, r"SlopeTwice, k\(X, Z\), (leaf lengthscale|input [XZ])\[[\d, ]+\]"),
    "diagonal": (lambda: NoSlopeOfInputs(), {}, r"NoSlopeOfInputs, diag\(X\), input X\[\d, 0\]"),
    "mean": (lambda: ForgetsOutputs(), {}, r"ForgetsOutputs, h\(X\), leaf offset\[\d\]"),
    "likelihood": (lambda: LosesVariance(), {"y": COUNTS}, r"expected_log_density, input var\[\d, \d\]"),
    "posterior": (lambda: FreePrior, {}, r"FreePrior, .*kl_divergence, leaf scale\[\d, \d, \d\]"),
    "inducing": (lambda: FixedPoints(), {}, r"FixedPoints, cross, leaf inducing.Z\[\d, \d\]"),
    "process": (
        lambda: LosesInputs.of(_process(), _process().posterior),
        {},
        r"LosesInputs, .*project.*, input X\[\d, \d\]",
    ),
}


@pytest.mark.parametrize("judge", ["differences", "torch"])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_pullback_of_each_kind_is_caught_by_each_judge(name, judge, torch_place):
    part, options, where = WRONG[name]
    how = {"backends": []} if judge == "differences" else {"backends": ["torch"], "differences": False}
    said = where + r": the pullback gives \S+, .* gives? \S+; relative error \S+\.$"
    with pytest.raises(AssertionError, match=said) as error:
        check_pullback(part(), **how, **options)
    assert ("differences" in str(error.value)) == (judge == "differences")


@tree.model
class SharedLengthscale(agp.RBF):
    def __call__(self, X, Z=None, /):
        K, pull = super().__call__(X, Z)

        def pullback(bar):
            kernel_bar, *others = pull(bar)
            total = backend_of(K).xp.sum(kernel_bar.lengthscale)
            return tree.cotangent(self, variance=kernel_bar.variance, lengthscale=total), *others

        return K, pullback


def test_a_cotangent_of_another_shape_is_named():
    with pytest.raises(
        AssertionError, match=r"leaf lengthscale: the cotangent has shape \(\), but the leaf has shape \(2,\)"
    ):
        check_pullback(SharedLengthscale(), backends=[])


@tree.model
class OtherValues(agp.RBF):
    """A profile that is another one on torch."""

    def profile(self, r2, /):
        B = backend_of(r2)
        g = (1.0 if B.name == "numpy" else 1.5) * B.xp.exp(-0.5 * r2)
        return g, lambda: -0.5 * g


def test_a_value_that_differs_between_libraries_is_named(torch_place):
    with pytest.raises(
        AssertionError, match=r"OtherValues, k\(X, Z\), value 0\[\d, \d\]: torch gives \S+, NumPy gives"
    ):
        check_pullback(OtherValues(), backends=["torch"])


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (agp.Poisson(), r"the likelihood Poisson needs targets; pass valid targets \[N, K\] as y="),
        (agp.RBF, "part is the class RBF"),
        (3.0, "float has no pullback to check"),
    ],
)
def test_what_cannot_be_checked_is_said(part, said):
    with pytest.raises(TypeError, match=said):
        check_pullback(part)


def test_targets_outside_the_support_are_refused():
    with pytest.raises(ValueError, match="counts must be whole numbers"):
        check_pullback(agp.Poisson(), y=[0.5])


def test_the_default_asks_every_library_that_differentiates(monkeypatch):
    asked = []
    monkeypatch.setattr("agp.testing._pullbacks.known_backends", lambda: asked.append(1) or [])
    check_pullback(agp.RBF())
    assert asked == [1]
    for part, given in ((agp.RBF(), {}), (agp.Poisson(), {"y": [2.0]}), (agp.ConstantMean(), {})):
        with pytest.raises(agp.errors.BackendError, match=r"contains 'numpy', which .*; omit it.* backends=\[\]"):
            check_pullback(part, backends=["numpy"], **given)
        check_pullback(part, backends=[], **given)
