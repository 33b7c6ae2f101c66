"""The table of a model's leaves."""

import numpy as np
import pytest

import agp
from agp.priors import Gamma

RNG = np.random.default_rng(0)
X = RNG.normal(size=(30, 2))
Y = np.sin(X[:, :1])


def _rows(text):
    return {line.split()[0]: line for line in text.splitlines()[2:]}


def test_every_leaf_stands_in_the_table_and_units_in_a_column():
    model = agp.SVGP.from_data(X, Y, num_inducing=7, posterior="relaxed")
    text = agp.summary(model)
    assert text.splitlines()[0] == "SVGP"
    expected = [name for name in agp.tree.leaves(model) if not name.endswith("_unit")]
    assert list(_rows(text)) == expected
    assert text.count(f"{float(model.likelihood.noise_variance_unit):.4g}") >= 1


def test_values_constraints_and_roles_are_told():
    model = agp.SVGP.from_data(X, Y, num_inducing=7, posterior="relaxed")
    rows = _rows(agp.summary(model, frozen="likelihood.*"))
    value = float(model.likelihood.noise_variance)
    assert f"{value:.4g}" in rows["likelihood.noise_variance"]
    assert rows["likelihood.noise_variance"].endswith("frozen")
    assert "positive" in rows["process.kernel.lengthscale"]
    assert rows["process.kernel.lengthscale"].endswith("yes")
    assert "[7 x 2] in" in rows["process.inducing.Z"]
    assert rows["process.posterior.inverse_factor"].endswith("auxiliary")


def test_priors_stand_beside_their_parameters():
    model = agp.GPR.from_data(X, Y, priors={"kernel.lengthscale": Gamma(2.0, 1.0)})
    rows = _rows(agp.summary(model))
    assert "Gamma" in rows["kernel.lengthscale"]
    assert "Gamma" not in rows["kernel.variance"]


def test_a_pattern_that_matches_nothing_is_refused():
    with pytest.raises(ValueError, match="no parameter matches 'kernle"):
        agp.summary(agp.GPR.from_data(X, Y), frozen="kernle.*")
