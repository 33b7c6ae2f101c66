"""Pictures and inspection of estimators whose tables have a column of measurement errors."""

import warnings

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("matplotlib", reason="the extra plot is not installed")

from matplotlib.figure import Figure

from agp.errors import ConvergenceWarning
from agp.estimators import GPRegressor
from agp.inspection import (
    components,
    kernel_relevance,
    partial_dependence,
    permutation_importance,
    sample_components,
    variance_shares,
)
from agp.plot import plot_calibration, plot_components, plot_effects, plot_fit, plot_inducing, plot_pit

RNG = np.random.default_rng(4)
N = 60
X = np.linspace(0.0, 6.0, N)
ERRORS = RNG.uniform(0.05, 0.6, N)
Y = np.sin(X) + ERRORS * RNG.normal(size=N)
TABLE = pd.DataFrame({"x": X, "err": ERRORS})
KERNEL = "linear + rbf"


def fitted(rows=TABLE, column="err", **settings):
    settings = {"kernel": KERNEL, "hyperparameters": "mode", "random_state": 0} | settings
    return GPRegressor(error_column=column, **settings).fit(rows, Y)


MODEL = fitted()

CALLS = {
    "plot_fit": lambda model, table: plot_fit(model, table, Y),
    "plot_effects": plot_effects,
    "plot_components": plot_components,
    "plot_calibration": lambda model, table: plot_calibration(model, table, Y),
    "plot_pit": lambda model, table: plot_pit(model, table, Y),
    "components": components,
    "sample_components": sample_components,
    "variance_shares": variance_shares,
    "partial_dependence": partial_dependence,
    "kernel_relevance": lambda model, table: kernel_relevance(model, table, Y),
    "permutation_importance": lambda model, table: permutation_importance(model, table, Y),
}


def names_of(found):
    """The columns that a result names."""
    return [ax.get_xlabel() for ax in found.axes] if isinstance(found, Figure) else []


@pytest.mark.parametrize("name", CALLS)
def test_the_column_of_errors_is_no_input(name):
    found = CALLS[name](MODEL, TABLE)
    assert not any("err" in label for label in names_of(found))
    array = fitted(TABLE.to_numpy(), 1)
    CALLS[name](array, TABLE.to_numpy())


@pytest.mark.parametrize("rows", [TABLE, TABLE[["x"]]], ids=["with errors", "without"])
def test_effects_are_those_of_the_inputs(rows):
    assert [ax.get_xlabel() for ax in plot_effects(MODEL, rows).axes] == ["x"]
    assert plot_fit(MODEL, rows, Y).axes[0].get_xlabel() == "x"
    with pytest.raises(ValueError, match="column 'err' does not exist"):
        partial_dependence(MODEL, rows, "err")
    assert kernel_relevance(MODEL, rows, Y).names == ("x",)
    assert permutation_importance(MODEL, rows, Y).names == ("x",)


def test_calibration_knows_the_errors():
    def curve(figure):
        return figure.axes[0].lines[0].get_ydata()

    found, noise = plot_calibration(MODEL, TABLE, Y), ERRORS**2
    np.testing.assert_allclose(curve(found), curve(plot_calibration(MODEL, TABLE[["x"]], Y, noise=noise)))
    assert not np.allclose(curve(found), curve(plot_calibration(MODEL, TABLE[["x"]], Y)))
    bars, others = (plot_pit(MODEL, *one).axes[0].patches[0].get_data() for one in [(TABLE, Y), (TABLE[["x"]], Y)])
    assert not np.allclose(bars.values, others.values)
    with pytest.raises(ValueError, match="noise is given, but X has the column 'err'"):
        plot_calibration(MODEL, TABLE, Y, noise=noise)


def test_inducing_inputs_beside_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = fitted(method="sgpr", num_inducing=8, hyperparameters="auto")
    assert plot_inducing(model, TABLE).axes[0].get_xlabel() == "x"
    plot_fit(model, TABLE, Y)
