"""`check_pullback` in every environment, and for kernels on some columns, on names, on spheres and on categories."""

import os
import subprocess
import sys

import numpy as np
import pytest

import agp
from agp import tree
from agp.kernels import OnSphere, Overlap, RandomEffects, Seasonal
from agp.testing import check_pullback
from agp.testing._inputs import number_names

RIGHT = {
    "first column": lambda: agp.RBF().on((0,)),
    "third column": lambda: agp.RBF().on((2,)),
    "names": lambda: agp.RBF().on(("a",)) * agp.Matern52().on(("b", "a")),
    "names in names": lambda: (agp.RBF().on(("b",)) + agp.Matern32()).on(("a", "b", "c")),
    "names and numbers": lambda: agp.RBF().on((1,)) + agp.RBF().on(("a",)),
    "lengthscales": lambda: agp.RBF(lengthscale=[1.0, 2.0, 3.0]),
    "sphere": lambda: OnSphere(agp.Matern52()),
    "sphere on columns": lambda: OnSphere(agp.RBF()).on((3, 1)),
    "season": lambda: Seasonal(period=2.0),
    "categories": lambda: Overlap(),
    "levels": lambda: RandomEffects(levels=5),
    "mixed": lambda: agp.RBF().on((0, 2)) * Overlap().on((1,)),
    "mixed names": lambda: agp.RBF().on(("a",)) * Overlap().on(("kind",)),
    "encoded": lambda: agp.Matern32().with_categories(3, (1,)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels_pass(name, torch_place):
    check_pullback(RIGHT[name](), backends=["torch"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["names", "sphere on columns", "mixed", "categories"])
def test_right_kernels_pass_on_jax(name):
    pytest.importorskip("jax")
    check_pullback(RIGHT[name](), backends=["jax"], differences=False)


@pytest.mark.parametrize("width", [1, 3, 5])
def test_the_width_may_be_given(width):
    check_pullback(agp.RBF(), width=width, backends=[])
    check_pullback(agp.LinearMean(), width=width, backends=[])
    check_pullback(agp.inducing.Points(), width=width, backends=[])


def test_inducing_variables_take_the_width_of_their_kernel():
    check_pullback(agp.inducing.Points(), kernel=agp.RBF().on((3,)), backends=[])
    check_pullback(agp.inducing.Points(), kernel=agp.RBF().on(("a",)) * agp.RBF().on(("b",)), backends=[])


def test_codes_in_given_inputs_stay():
    X = np.asarray([[0.3, 1.0], [0.1, 0.0], [-0.7, 1.0], [1.2, 2.0]])
    check_pullback(agp.RBF().on((0,)) * Overlap().on((1,)), X=X, backends=[])


def test_widths_that_do_not_fit():
    with pytest.raises(ValueError, match="RBF on columns \\(3,\\): the inputs have 2 columns"):
        check_pullback(agp.RBF().on((3,)), width=2, backends=[])
    with pytest.raises(ValueError, match="width is 3, but X has 1 column; pass one of them"):
        check_pullback(agp.RBF(), X=np.zeros((4, 1)), width=3, backends=[])
    with pytest.raises(ValueError, match="width is 0"):
        check_pullback(agp.RBF(), width=0, backends=[])
    with pytest.raises(ValueError, match="Seasonal has no period"):
        check_pullback(Seasonal(), backends=[])


@tree.model
class Mistaken(agp.kernels.Stationary):
    def profile(self, r2, /):
        g = 1.0 / (1.0 + r2)
        return g, lambda: -g


@pytest.mark.parametrize(
    "part",
    [
        lambda: Mistaken().on((2,)),
        lambda: Mistaken().on(("a",)) * Overlap().on(("kind",)),
        lambda: OnSphere(Mistaken()),
    ],
)
def test_mistakes_are_found_in_all_of_them(part):
    with pytest.raises(AssertionError, match="the pullback gives"):
        check_pullback(part(), backends=[])


def test_names_are_numbered_in_the_order_of_their_occurrence():
    kernel = number_names(agp.RBF().on(("b",)) + agp.RBF().on(("a", "b")).on(("a", "b")) + agp.RBF().on((4,)))
    columns = [part.columns for part in tree.nodes(kernel, agp.kernels.ActiveDims).values()]
    assert columns == [(5,), (6, 5), (0, 1), (4,)]


@pytest.mark.slow
def test_float64_is_enabled_only_during_the_check():
    pytest.importorskip("jax")
    program = (
        "import jax, agp; from agp.testing import check_pullback; check_pullback(agp.RBF(), differences=False); "
        "print(jax.config.jax_enable_x64, jax.numpy.ones(1).dtype)"
    )
    command, env = [sys.executable, "-W", "ignore", "-c", program], os.environ | {"JAX_ENABLE_X64": "0"}
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    assert found.stdout.split() == ["False", "float32"]
