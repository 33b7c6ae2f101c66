"""Two groups of inducing variables that are not points: patches, patches and points, and given ones."""

import numpy as np
import pytest

import agp
from agp.inducing import JointInducing, Patches, Points
from agp.posteriors import RelaxedUnion

RNG = np.random.default_rng(0)
X = RNG.standard_normal((20, 35))
Y = X[:, :1]
Z = RNG.standard_normal((7, 12))


def patches(**settings):
    return Patches((5, 7), (3, 4), **settings)


def solve(**parts):
    return agp.SOLVEGP.from_data(X, Y, **parts)


SIZES = {"num_inducing": 4, "num_orthogonal": 3}
WORKS = {
    "patches": lambda: solve(inducing=patches(), **SIZES),
    "located": lambda: solve(inducing=patches(located=True), **SIZES),
    "kernel": lambda: solve(inducing=patches(), kernel=agp.Matern32(), **SIZES),
    "relaxed": lambda: solve(inducing=patches(), posterior=RelaxedUnion, **SIZES),
    "patches and points": lambda: solve(inducing=JointInducing((patches(), Points())), **SIZES),
    "collapsed": lambda: agp.SOLVEGPR.from_data(X, Y, inducing=patches(), **SIZES),
    "given": lambda: solve(inducing=patches(Z=Z), num_orthogonal=3),
    "given, first size": lambda: solve(inducing=patches(Z=Z), num_inducing=4),
    "given points": lambda: solve(inducing=Points(X[:7, :]), num_orthogonal=3),
    "given, collapsed": lambda: agp.SOLVEGPR.from_data(X, Y, inducing=patches(Z=Z), num_orthogonal=3),
}


@pytest.mark.parametrize("name", WORKS)
def test_groups_are_trained(name):
    model = WORKS[name]()
    assert model.inducing.count == 7
    before = float(model.bound(X, Y)[0])
    trained = agp.train(model, X, Y, steps=5).model
    assert float(trained.bound(X, Y)[0]) > before
    assert np.isfinite(trained.predict(X).variance).all()


@pytest.mark.parametrize("count", [3, 0, 6])
def test_the_second_group_is_the_last_of_the_given_ones(count):
    model = solve(inducing=patches(Z=Z), num_orthogonal=count)
    assert [len(group) for group in model.groups] == [7 - count, count][: 2 if count else 1]


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: solve(inducing=patches(Z=Z)), ValueError, "inducing=Patches holds 7 inducing inputs; pass num_orth"),
        (
            lambda: solve(inducing=Points(X[:7, :]), num_inducing=4, num_orthogonal=5),
            ValueError,
            r"inducing=Points holds 7 inducing inputs, but num_inducing \+ num_orthogonal is 9; pass num_orthogonal=",
        ),
        (lambda: solve(inducing=patches(Z=Z), num_orthogonal=7), ValueError, "holds 7 inducing inputs"),
        (lambda: solve(inducing=patches(), Z=X[:4, :], O=X[4:7, :]), ValueError, r"inducing=Patches\(..., Z=Z\)"),
        (lambda: solve(inducing=Patches, **SIZES), TypeError, "inducing is the class Patches; pass an object"),
        (
            lambda: agp.SVGP.from_data(X, Y, inducing=Points, num_inducing=4),
            TypeError,
            "inducing is the class Points; pass an object",
        ),
        (
            lambda: agp.VIF.from_data(X, Y, inducing=patches(), num_inducing=4),
            TypeError,
            "inducing is Patches, but VIF evaluates its kernel between rows, and needs Points; use SVGP for Patches",
        ),
    ],
)
def test_what_does_not_fit_is_answered_by_the_way_that_works(call, error, says):
    with pytest.raises(error, match=says):
        call()
