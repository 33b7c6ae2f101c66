"""One warning where a list of updates forgets an inverse factor, sites or actions."""

import warnings

import numpy as np
import pytest

import agp
from agp.actions import ConjugateGradients
from agp.errors import RepairWarning, UntouchedWarning
from agp.updates import ActionsUpdate, Adam, InverseUpdate, NaturalGradient, Repeat, SiteStep

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2))
Y = np.sin(X[:, 0]) + 0.1 * RNG.normal(size=40)


def relaxed():
    return agp.SVGP.from_data(X, Y, posterior=agp.posteriors.Relaxed, num_inducing=6)


def full_sites():
    return agp.SVGP.from_data(X, Y, posterior=agp.posteriors.FullSiteRelaxed, num_inducing=6)


def union():
    posterior = agp.posteriors.RelaxedUnion
    return agp.SOLVEGP.from_data(X, Y, posterior=posterior, num_inducing=4, num_orthogonal=4)


def inverse_free():
    return agp.SVGP.from_data(X, Y, posterior=agp.posteriors.InverseFree, num_inducing=6)


def whitened():
    return agp.SVGP.from_data(X, Y, posterior=agp.posteriors.Whitened, num_inducing=6)


def dual(posterior=agp.posteriors.Dual):
    return agp.SVGP.from_data(X, Y, posterior=posterior, num_inducing=6)


def by_policy():
    return agp.CaGP.from_data(X, Y, policy=ConjugateGradients(4))


def layers():
    inner = agp.processes.Sparse.from_data(
        X, outputs=2, num_inducing=5, posterior=agp.posteriors.Relaxed, mean_function=agp.ZeroMean()
    )
    outer = agp.processes.Sparse.from_data(X, outputs=1, num_inducing=5, posterior=agp.posteriors.Relaxed)
    return agp.SVGP(agp.processes.Deep((inner, outer), samples=1), agp.Gaussian(np.asarray(0.1)))


@pytest.mark.parametrize(
    ("model", "updates", "words"),
    [
        (
            relaxed,
            [Adam()],
            r"no update moves process.posterior.inverse_factor \(add InverseUpdate\(\) as the last update\)\. To keep",
        ),
        (lambda: agp.TSVGP.from_data(X, Y, num_inducing=6), [Adam()], r"site_precision, site_shift \(add SiteStep"),
        (lambda: agp.TNNGP.from_data(X, Y), [Adam()], r"no update moves site_precision, site_shift \(add SiteStep"),
        (lambda: agp.TVGP.from_data(X, Y), [Adam()], r"no update moves site_precision, site_shift \(add SiteStep"),
        (dual, [Adam()], r"posterior.precision, process.posterior.shift \(add SiteStep\(0.1\) as the first update\)\."),
        (by_policy, [Adam()], r"no update moves actions.values \(add ActionsUpdate\(policy\) as the first update\)"),
        (
            lambda: dual(agp.posteriors.DualInverseFree),
            [Adam()],
            r"shift \(add SiteStep.*; or .*prior_factor, .*\(add InverseUpdate",
        ),
        (layers, [Adam()], "process.layers.0.posterior.inverse_factor, process.layers.1.posterior.inverse_factor"),
        (relaxed, [Repeat(Adam(), 2)], "inverse_factor"),
        (relaxed, [Adam(frozen=("kernel.*", "inducing.*"))], r"inverse_factor \(add InverseUpdate"),
        (full_sites, [Adam(frozen=("kernel.*", "inducing.*"))], r"inverse_factor \(add InverseUpdate"),
        (union, [Adam(frozen=("kernel.*", "inducing.*"))], r"first_inverse, .*second_inverse \(add InverseUpdate"),
        (lambda: dual(agp.posteriors.DualInverseFree), [Adam(), InverseUpdate()], "no update moves [^;]*shift [^;]*$"),
    ],
)
def test_what_no_update_moves_is_named_once(model, updates, words):
    with pytest.warns(UntouchedWarning, match=words) as seen:
        agp.train(model(), X, Y, steps=3, updates=updates)
    assert [one.category for one in seen].count(UntouchedWarning) == 1
    assert seen[0].filename == __file__


class Own:
    """An update of a user, which does not say what it moves."""

    def init(self, model, /):
        return {}

    def __call__(self, model, batch, state, /):
        return model, state, {}


@pytest.mark.parametrize(
    ("model", "updates"),
    [
        (relaxed, [Adam(), InverseUpdate()]),
        (relaxed, [Repeat([Adam(), InverseUpdate()], 2)]),
        (relaxed, [Adam(frozen="inverse_factor")]),
        (relaxed, [Adam(frozen=("kernel.*", "inducing.*", "site"))]),
        (union, [Adam(frozen=("kernel.*", "inducing.*", "posterior.site"))]),
        (inverse_free, [Adam(frozen=("kernel.*", "inducing.*"))]),
        (relaxed, [Adam(), Own()]),
        (relaxed, [Adam(), Repeat(Own(), 2)]),
        (relaxed, None),
        (dual, [SiteStep(0.5), Adam()]),
        (dual, [SiteStep(0.5)]),
        (lambda: dual(agp.posteriors.DualInverseFree), [SiteStep(0.5), Adam()]),
        (lambda: dual(agp.posteriors.DualInverseFree), None),
        (lambda: agp.TVGP.from_data(X, Y), [SiteStep(0.5), Adam()]),
        (lambda: agp.TNNGP.from_data(X, Y), [SiteStep(0.5), Adam()]),
        (lambda: agp.TNNGP.from_data(X, Y), None),
        (lambda: agp.TSVGP.from_data(X, Y, num_inducing=6), [Adam(frozen="site_*")]),
        (whitened, [Adam()]),
        (whitened, [NaturalGradient(0.5)]),
        (by_policy, [ActionsUpdate(ConjugateGradients(4)), Adam()]),
        (lambda: agp.CaGP.from_data(X, Y, num_actions=4), [Adam()]),
        (layers, [Adam(), InverseUpdate()]),
    ],
)
def test_nothing_is_said_where_all_is_well_or_meant(model, updates):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UntouchedWarning)
        agp.train(model(), X, Y, steps=2, updates=updates)


@pytest.mark.slow
def test_the_variances_of_pseudo_observations_make_an_inverse_factor_stale():
    """They are part of the matrix to invert."""
    adam = Adam(0.1, frozen=("kernel.*", "inducing.*"))
    with pytest.warns(UntouchedWarning, match="inverse_factor"):
        stale = agp.train(relaxed(), X, Y, steps=60, updates=[adam])
    followed = agp.train(relaxed(), X, Y, steps=60, updates=[adam, InverseUpdate()])
    assert stale.trace["bound"][-1] < followed.trace["bound"][-1] - 0.5
    followed.model.predict(X)
    with pytest.warns(RepairWarning, match="the inverse factor was inaccurate"):
        stale.model.predict(X)


def test_groups_of_sites_can_alternate():
    both = agp.SOLVEGP.from_data(
        X, Y, num_inducing=4, num_orthogonal=4, posterior=agp.posteriors.Dual, second=agp.posteriors.Dual
    )
    agp.train(both, X, Y, steps=2, updates=[SiteStep(0.5, groups=(0,)), SiteStep(0.5, groups=(1,)), Adam()])
    with pytest.warns(
        UntouchedWarning, match=r"no update moves process.posterior.parts.1.precision, .*parts.1.shift \("
    ):
        agp.train(both, X, Y, steps=2, updates=[SiteStep(0.5, groups=(0,)), Adam()])


def test_a_training_of_no_steps_says_nothing():
    agp.train(relaxed(), X, Y, steps=0, updates=[Adam()])
