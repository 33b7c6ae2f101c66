"""Panels of components and effects with one vertical scale, or each with its own."""

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("matplotlib", reason="the extra plot is not installed")

from agp.estimators import GPRegressor
from agp.plot import plot_components, plot_effects

RNG = np.random.default_rng(4)
N = 60
TABLE = pd.DataFrame({"year": np.arange(N) / 12.0, "temp": RNG.normal(size=N)})
SMALL = 0.2 * TABLE["temp"].to_numpy() ** 2
Y = 50.0 + 8.0 * np.sin(TABLE["year"].to_numpy()) + SMALL + 0.02 * RNG.normal(size=N)
GROUPS = {"trend": ["rbf.on(year)", "mean function"]}


def fitted(y=Y, columns=("year", "temp"), kernel="rbf.on(year) + centred(rbf).on(temp)", **settings):
    settings = {"hyperparameters": "mode", "random_state": 0} | settings
    return GPRegressor(kernel=kernel, **settings).fit(TABLE[[*columns]], y)


def heights(figure):
    """The lengths of the vertical axes."""
    return [float(np.ptp(ax.get_ylim())) for ax in figure.axes]


@pytest.mark.parametrize(("sharey", "same"), [(None, True), (True, True), (False, False)])
def test_components_of_several_columns(sharey, same):
    figure = plot_components(fitted(), TABLE, groups=GROUPS, sharey=sharey)
    assert (len(set(heights(figure))) == 1) == same
    if not same:  # the small effect fills its panel, and the labels of its axis are drawn
        assert heights(figure)[1] < 1.5 * np.ptp(SMALL) + 0.5
        assert figure.axes[1].yaxis.get_tick_params()["labelleft"]


@pytest.mark.parametrize(("sharey", "same"), [(None, False), (True, True), (False, False)])
def test_components_of_a_series(sharey, same):
    model = fitted(columns=["year"], kernel="linear + rbf")
    figure = plot_components(model, TABLE[["year"]], sharey=sharey)
    assert (len(set(heights(figure))) == 1) == same


@pytest.mark.parametrize("sharey", [True, False])
def test_effects(sharey):
    figure = plot_effects(fitted(), TABLE, sharey=sharey)
    assert (len(set(heights(figure))) == 1) == sharey


def test_effects_on_several_outputs():
    model = fitted(np.stack([Y, 0.1 * Y], axis=1), kernel="rbf", hyperparameters="auto", max_steps=500, tolerance=1e-2)
    figure = plot_effects(model, TABLE)
    first, second, third, fourth = heights(figure)
    assert (first, third) == (second, fourth)
    assert first != third
    assert len(set(heights(plot_effects(model, TABLE, sharey=False)))) == 4
