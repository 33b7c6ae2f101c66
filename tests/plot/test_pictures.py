"""Pictures, by what they draw: lines, bands, labels and legends, for models, estimators and axes of every kind."""

import itertools
import subprocess
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from helpers import NUMPY, TORCH

pytest.importorskip("matplotlib", reason="the extra plot is not installed")
from matplotlib.figure import Figure

import agp
from agp.errors import ConvergenceWarning
from agp.estimators import GPClassifier, GPRegressor
from agp.kernels import RBF, Centred, Linear, Matern32, Seasonal, additive
from agp.metrics import coverage, reliability
from agp.plot import (
    plot_calibration,
    plot_components,
    plot_effects,
    plot_fit,
    plot_growth,
    plot_inducing,
    plot_learning,
    plot_pit,
)
from agp.tree import leaves

RNG = np.random.default_rng(0)
X = np.sort(RNG.uniform(0.0, 6.0, (50, 1)), axis=0)
Y = np.sin(2.0 * X) + 0.1 * RNG.standard_normal((50, 1))
WIDE = RNG.uniform(-2.0, 2.0, (60, 3))
Z95 = 1.959963984540054


@pytest.fixture(autouse=True)
def _short_trainings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def axes_of(count):
    """Axes of somebody else's figure."""
    return list(Figure().subplots(1, count, squeeze=False)[0])


def points(line):
    """The points [N, 2] of a line."""
    return np.stack([np.asarray(x, dtype=float) for x in line.get_data()], axis=1)


def lines(ax):
    """The lines of a picture by their names in the legend."""
    return {str(line.get_label()): points(line) for line in ax.lines}


def bands(ax):
    """The corners of the bands by their names in the legend."""
    return {str(found.get_label()): found.get_paths()[0].vertices for found in ax.collections}


def heights(vertices, x):
    """The lowest and the highest corner of a band at an input."""
    at = vertices[np.isclose(vertices[:, 0], x), 1]
    return at.min(), at.max()


def texts(ax):
    """What the legend says."""
    return [text.get_text() for text in ax.get_legend().get_texts()]


def saved(figure, folder):
    """Draw the picture, which fails for labels that cannot be set, and give it back."""
    figure.savefig(folder / "picture.png", dpi=40)
    assert (folder / "picture.png").read_bytes().startswith(b"\x89PNG")
    return figure


def labelled(X):
    """Labels of two classes."""
    return np.where(np.sin(2.0 * X[:, 0]) > 0.0, "up", "down")


# -- the fit ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("place", [NUMPY, TORCH], ids=lambda place: place.name)
def test_a_fit_shows_mean_both_intervals_data_and_inducing_inputs(place, available, tmp_path):
    place = available(place)
    host = agp.train(agp.SVGP.from_data(X, Y, num_inducing=7), X, Y, steps=20).model
    figure = saved(plot_fit(place.move(host), place.array(X), place.array(Y)), tmp_path)
    (ax,) = figure.axes
    grid = lines(ax)["mean"][:, :1]
    latent, observed = host.predict(grid), host.predict(grid, observed=True)
    np.testing.assert_allclose(lines(ax)["mean"][:, 1], observed.mean[:, 0], atol=1e-8)
    np.testing.assert_allclose(lines(ax)["data"], np.hstack([X, Y]))
    for name, variance in (("function, 95 %", latent.variance), ("new observations, 95 %", observed.variance)):
        low, high = heights(bands(ax)[name], grid[100, 0])
        assert high - low == pytest.approx(2.0 * Z95 * variance[100, 0] ** 0.5, rel=1e-6)
    np.testing.assert_allclose(lines(ax)["inducing inputs"][:, 0], leaves(host)["process.inducing.Z"][:, 0])
    assert texts(ax) == ["new observations, 95 %", "function, 95 %", "data", "mean", "inducing inputs"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("input", "output")
    assert grid[0, 0] < X.min() < X.max() < grid[-1, 0]


@pytest.mark.slow
def test_a_computation_aware_fit_splits_its_uncertainty(tmp_path):
    model = agp.CaGP.from_data(X, Y, num_actions=5)
    (ax,) = saved(plot_fit(model, X, Y), tmp_path).axes
    grid = lines(ax)["mean"][:, :1]
    combined, mathematical, _ = (v[200, 0] ** 0.5 for v in model.uncertainty(grid))
    low, high = heights(bands(ax)["function, mathematical"], grid[200, 0])
    assert high - low == pytest.approx(2.0 * Z95 * mathematical, rel=1e-6)
    low, high = heights(bands(ax)["function, computational"], grid[200, 0])
    assert high - low == pytest.approx(Z95 * (combined - mathematical), rel=1e-6)
    (ax,) = plot_fit(model, X, Y, computational=False).axes
    assert "function, 95 %" in bands(ax)
    assert "function, computational" not in bands(ax)


def test_a_split_that_takes_too_much_says_how_to_do_without(monkeypatch):
    model = agp.CaGP.from_data(X, Y, num_actions=5)

    def refused(*_):
        msg = "the exact posterior takes 9e9 MiB."
        raise ValueError(msg)

    monkeypatch.setattr(agp.CaGP, "uncertainty", refused)
    with pytest.raises(ValueError, match=r"9e9 MiB\. Alternatively, set computational=False to omit"):
        plot_fit(model, X, Y)


@pytest.mark.long
def test_several_outputs_have_a_panel_each(tmp_path):
    both = np.hstack([Y, 100.0 + 10.0 * Y])
    figure = saved(plot_fit(agp.GPR.from_data(X, both), X, both), tmp_path)
    assert [ax.get_ylabel() for ax in figure.axes] == ["output 1", "output 2"]
    assert lines(figure.axes[1])["data"][:, 1].mean() > 50.0
    given = axes_of(2)
    assert plot_fit(agp.GPR.from_data(X, both), X, both, ax=given) is given[0].figure
    assert all("mean" in lines(ax) for ax in given)
    with pytest.raises(ValueError, match="ax holds 1 axis, but the plot has 2 panels; pass 2 axes"):
        plot_fit(agp.GPR.from_data(X, both), X, both, ax=given[0])


@pytest.mark.long
def test_two_classes_are_a_probability_with_the_interval_of_the_function(tmp_path):
    estimator = GPClassifier(tolerance=0.05).fit(X, labelled(X))
    (ax,) = saved(plot_fit(estimator, X, labelled(X)), tmp_path).axes
    curve = lines(ax)["probability"]
    np.testing.assert_allclose(curve[:, 1], estimator.predict_proba(curve[:, :1])[:, 1], atol=1e-9)
    assert ax.get_ylabel() == "probability of up"
    low, high = heights(bands(ax)["function, 95 %"], curve[100, 0])
    assert 0.0 <= low < curve[100, 1] < high <= 1.0
    np.testing.assert_array_equal(lines(ax)["data"][:, 1], labelled(X) == "up")


@pytest.mark.long
def test_more_classes_are_a_line_each(tmp_path):
    labels = np.digitize(X[:, 0], [2.0, 4.0])
    names = np.asarray(["low", "middle", "high"])[labels]
    estimator = GPClassifier(tolerance=0.1, max_steps=30, num_inducing=6).fit(X, names)
    (ax,) = saved(plot_fit(estimator, X, names), tmp_path).axes
    assert [text for text in texts(ax) if text != "inducing inputs"] == ["high", "low", "middle"]
    total = sum(lines(ax)[name][:, 1] for name in ("high", "low", "middle"))
    np.testing.assert_allclose(total, 1.0, atol=1e-6)


@pytest.mark.long
def test_classes_in_an_order_are_drawn(tmp_path):
    words = pd.Series(np.asarray(["low", "mid", "high"])[np.digitize(X[:, 0], [2.0, 4.0])])
    words = words.astype(pd.CategoricalDtype(["low", "mid", "high"], ordered=True))
    found = GPClassifier(likelihood="ordinal", max_steps=5, random_state=0).fit(X, words)
    figure = plot_fit(found, X, words)
    figure.savefig(tmp_path / "x.png")
    drawn = lines(figure.axes[0])
    for c, name in enumerate(["high", "low", "mid"]):  # as `classes_` and the columns of predict_proba
        at = drawn[name]
        np.testing.assert_allclose(at[:, 1], found.predict_proba(at[:, :1])[:, c], rtol=1e-9)
    judged = lines(plot_calibration(found, X, words).axes[0])
    expected = reliability(found.predict_proba(X), found.classes_.searchsorted(words.to_numpy())[:, None], 10)
    assert f"average gap {expected.error:.3f}" in judged
    (panel,) = plot_effects(found, X).axes
    assert panel.get_ylabel() == "average class, from 0 (low) to 2 (high)"
    average = points(panel.lines[0])[:, 1]
    assert average[0] < 0.5 < 1.5 < average[-1]


@pytest.mark.long
def test_noise_that_depends_on_the_inputs_is_drawn_and_the_noise_function_is_not():
    y = Y[:, 0]
    found = GPRegressor(likelihood="latent-noise", num_inducing=10, max_steps=5, random_state=0).fit(X, y)
    (panel,) = plot_fit(found, X, y).axes
    at = lines(panel)["mean"]
    np.testing.assert_allclose(at[:, 1], found.predict(at[:, :1]), rtol=1e-9)
    (panel,) = plot_effects(found, X).axes
    assert len(panel.lines) == len(panel.collections) == 1
    assert len(plot_calibration(found, X, y).axes[0].lines) == 2


@pytest.mark.slow
def test_a_data_frame_gives_the_axis_its_name(tmp_path):
    table = pd.DataFrame({"depth [m]": X[:, 0]})
    estimator = GPRegressor(max_steps=10).fit(table, pd.Series(Y[:, 0], name="heat"))
    (ax,) = saved(plot_fit(estimator, table, pd.Series(Y[:, 0])), tmp_path).axes
    assert ax.get_xlabel() == "depth [m]"


@pytest.mark.long
def test_deep_models_and_counts_are_drawn(tmp_path):
    parts = [agp.SVGP.from_data(X, Y, num_inducing=5, posterior="whitened").process for _ in range(2)]
    model = agp.SVGP(agp.processes.Deep(tuple(parts), samples=2), agp.Gaussian(np.asarray(0.1)))
    assert "mean" in lines(saved(plot_fit(model, X, Y), tmp_path).axes[0])
    counts = np.floor(5.0 + 4.0 * Y)
    (ax,) = saved(plot_fit(agp.TVGP.from_data(X, counts, likelihood=agp.Poisson()), X, counts), tmp_path).axes
    assert np.asarray(bands(ax)["function, 95 %"])[:, 1].min() >= 0.0


def test_a_fit_of_more_columns_is_refused():
    model = agp.GPR.from_data(WIDE, WIDE[:, :1])
    with pytest.raises(ValueError, match=r"X has the columns input 1, input 2, input 3, but plot_fit needs one"):
        plot_fit(model, WIDE, WIDE[:, :1])


# -- learning curves --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_learning_curves_are_what_was_logged(tmp_path):
    model = agp.SVGP.from_data(X, Y, num_inducing=7, posterior="whitened")
    result = agp.train(model, X, Y, steps=30, batch_size=20)
    figure = saved(plot_learning(result), tmp_path)
    np.testing.assert_allclose(points(figure.axes[0].lines[0])[:, 1], result.trace["bound"])
    np.testing.assert_array_equal(points(figure.axes[0].lines[0])[:, 0], np.arange(1, 31))
    assert figure.axes[0].get_ylabel() == "bound on the log evidence [nats]"
    (ax, *_) = plot_learning(result, against="seconds").axes
    assert points(ax.lines[0])[:, 0][-1] == pytest.approx(result.seconds)
    assert ax.get_xlabel() == "training time [s]"


@pytest.mark.slow
def test_learning_curves_of_rates_scores_and_estimators():
    trace = {"bound": [1.0, 2.0], "rate of a": [1.0, 0.1], "rate of b": [1.0, 0.01], "zero": [0.0, 0.0]}
    trace["test_nlpd"] = [3.0, 2.0]
    bound, rates, score = plot_learning(trace).axes
    assert texts(rates) == ["a", "b"]
    assert rates.get_yscale() == "log"
    assert score.get_ylabel() == "test nlpd"
    estimator = GPRegressor(max_steps=5).fit(X, Y[:, 0])
    np.testing.assert_allclose(points(plot_learning(estimator).axes[0].lines[0])[:, 1], estimator.history_["bound"])
    with pytest.raises(ValueError, match="an estimator does not store times"):
        plot_learning(estimator, against="seconds")
    with pytest.raises(ValueError, match="against is 'hours', but must be 'steps' or 'seconds'"):
        plot_learning(trace, against="hours")
    with pytest.raises(TypeError, match="a GPRegressor has no learning curves"):
        plot_learning(GPRegressor())
    with pytest.raises(ValueError, match="nothing was logged"):
        plot_learning({"bound": []})


def test_a_noisy_bound_has_a_running_mean():
    noise = np.random.default_rng(1).standard_normal(1000)
    (ax,) = plot_learning({"bound": (5.0 + noise).tolist()}).axes
    mean = lines(ax)["running mean"][:, 1]
    assert mean[500] == pytest.approx(np.mean(5.0 + noise[488:513]))
    assert texts(ax) == ["each step", "running mean"]


# -- calibration ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_calibration_of_values_is_the_coverage_at_each_level(tmp_path):
    model = agp.GPR.from_data(X, Y)
    (ax,) = saved(plot_calibration(model, X, Y), tmp_path).axes
    (curve,) = [found for name, found in lines(ax).items() if name.startswith("mean deviation")]
    mean, variance = model.predict(X, observed=True)
    for level, share in curve[::12]:
        assert share == coverage(mean, variance, Y, level)
    deviation, error = np.mean(variance**0.5), np.mean((mean - Y) ** 2) ** 0.5
    assert texts(ax) == [f"mean deviation {deviation:.3g}, RMSE {error:.3g}", "chance, 95 %"]
    low, high = heights(bands(ax)["chance, 95 %"], 0.5)
    assert high - low == pytest.approx(2.0 * Z95 * 0.5 / 50**0.5)


def test_targets_that_were_not_observed_are_left_out():
    both = np.hstack([Y, Y])
    model = agp.GPR.from_data(X, both)
    both[:10, 1] = np.nan
    (ax,) = plot_calibration(model, X, both).axes
    mean, variance = model.predict(X, observed=True)
    (second,) = [found for name, found in lines(ax).items() if name.startswith("output 2")]
    assert second[24, 1] == coverage(mean[10:, 1:], variance[10:, 1:], both[10:, 1:], second[24, 0])


def test_known_noise_belongs_to_the_intervals():
    noise = np.full_like(Y, 100.0)
    model = agp.SVGP.from_data(X, Y, likelihood=agp.Gaussian(0.0), noise=noise, num_inducing=5)
    (ax,) = plot_calibration(model, X, Y, noise=noise).axes
    assert points(ax.lines[0])[24, 1] == 1.0  # intervals of +-6.7 hold everything
    (ax,) = plot_pit(model, X, Y, bins=4, noise=noise).axes
    assert ax.get_xlabel() == "probability integral transform"


@pytest.mark.long
def test_calibration_of_probabilities_is_a_reliability_diagram(tmp_path):
    labels = labelled(X)
    estimator = GPClassifier(tolerance=0.05).fit(X, labels)
    (ax,) = [ax for ax in saved(plot_calibration(estimator, X, labels, bins=5), tmp_path).axes if ax.get_xlabel()]
    expected = reliability(estimator.predict_proba(X)[:, 1], (labels == "up").astype(float), 5)
    np.testing.assert_allclose(points(ax.lines[0]), np.stack([expected.predicted, expected.observed], axis=1))
    assert texts(ax) == [f"average gap {expected.error:.3f}", "chance, 95 %"]
    assert ax.get_xlabel() == "predicted probability of up"


def test_calibration_refuses_what_cannot_be_judged():
    with pytest.raises(ValueError, match="X has 50 rows, but y has 3; give one target for each row"):
        plot_calibration(agp.GPR.from_data(X, Y), X, Y[:3])


COUNTED = agp.TVGP.from_data(X, 1.0 * RNG.poisson(np.exp(Y)), likelihood=agp.Poisson())


@pytest.mark.slow
def test_calibration_judges_the_distribution_of_any_likelihood():
    counts = 1.0 * RNG.poisson(np.exp(Y))
    (ax,) = plot_calibration(COUNTED, X, counts).axes
    inside = np.abs(2.0 * COUNTED.predictor().pit(X, counts) - 1.0)
    for level, share in points(ax.lines[0])[::12]:
        assert share == np.mean(inside <= level)
    heavy = agp.TVGP.from_data(X, Y, likelihood=agp.StudentT(degrees_of_freedom=1.5))
    assert texts(plot_calibration(heavy, X, Y).axes[0])[0].startswith("mean deviation inf")


@pytest.mark.slow
def test_transforms_are_a_histogram_for_each_output(tmp_path):
    counts = 1.0 * RNG.poisson(np.exp(Y))
    (ax,) = saved(plot_pit(COUNTED, X, counts, bins=5, seed=2), tmp_path).axes
    expected, _ = np.histogram(COUNTED.predictor().pit(X, counts, seed=2), 5, (0.0, 1.0), density=True)
    np.testing.assert_allclose(ax.patches[0].get_data().values, expected)
    low, high = heights(bands(ax)["chance, 95 %"], 1.0)
    assert high - low == pytest.approx(2.0 * Z95 * (0.2 * 0.8 / 50) ** 0.5 * 5)
    both = np.hstack([Y, Y])
    both[:10, 1] = np.nan
    (ax,) = plot_pit(agp.GPR.from_data(X, np.hstack([Y, Y])), X, both).axes
    assert texts(ax)[:2] == ["output 1", "output 2"]


@pytest.mark.long
def test_transforms_of_classes_and_single_bars_are_refused():
    with pytest.raises(TypeError, match="classes have no probability integral transforms; use plot_calibration"):
        plot_pit(GPClassifier(tolerance=0.05).fit(X, labelled(X)), X, labelled(X))
    with pytest.raises(ValueError, match="bins is 1, but must be at least 2"):
        plot_pit(COUNTED, X, Y, bins=1)


# -- effects ----------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_effects_have_a_panel_for_each_column(tmp_path):
    kind = np.where(WIDE[:, 1] > 0.0, "round", "square")
    table = pd.DataFrame({"size": WIDE[:, 0], "kind": kind})
    target = WIDE[:, 0] + 3.0 * (kind == "round") + 0.1 * RNG.standard_normal(60)
    estimator = GPRegressor(max_steps=50).fit(table, target)
    size, second = saved(plot_effects(estimator, table), tmp_path).axes
    assert (size.get_xlabel(), second.get_xlabel()) == ("size", "kind")
    assert size.get_ylabel() == "average prediction"
    assert sorted(text.get_text() for text in second.get_xticklabels()) == ["round", "square"]
    assert np.polyfit(*points(size.lines[0]).T, 1)[0] == pytest.approx(1.0, abs=0.1)
    (ax,) = plot_effects(estimator, table, columns="size").axes
    assert ax.get_xlabel() == "size"


@pytest.mark.long
def test_effects_of_several_outputs_have_a_row_each(tmp_path):
    both = np.stack([WIDE[:, 0], 10.0 * WIDE[:, 1]], axis=1)
    figure = saved(plot_effects(agp.GPR.from_data(WIDE, both), WIDE, columns=[0, 1]), tmp_path)
    assert [ax.get_ylabel() for ax in figure.axes] == ["average of output 1", "", "average of output 2", ""]
    assert [ax.get_xlabel() for ax in figure.axes] == ["input 1", "input 2"] * 2


@pytest.mark.long
def test_effects_on_several_classes_have_a_line_each(tmp_path):
    labels = np.digitize(WIDE[:, 0], [-0.7, 0.7])
    estimator = GPClassifier(tolerance=0.1, max_steps=20, num_inducing=6).fit(WIDE, labels)
    figure = saved(plot_effects(estimator, WIDE, columns=[0, 2], samples=5), tmp_path)
    assert texts(figure.axes[-1]) == ["0", "1", "2"]
    np.testing.assert_allclose(sum(points(line)[:, 1] for line in figure.axes[0].lines), 1.0, atol=1e-6)


@pytest.mark.slow
def test_dates_are_drawn_on_an_axis_of_dates(tmp_path):
    when = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(60) * 18, unit="D")
    table = pd.DataFrame({"when": when, "text": when.strftime("%Y-%m-%d"), "took": when - when[0]})
    y = np.sin(np.arange(60) / 10.0)
    model = GPRegressor(kernel="rbf", max_steps=5).fit(table, y)
    figure = saved(plot_effects(model, table), tmp_path)
    assert [ax.get_xlabel() for ax in figure.axes] == ["when", "text", "took [days]"]
    for ax in figure.axes[:2]:
        assert ax.lines[0].get_xdata().dtype.kind == "M"
        assert {"2020", "2021", "2022"} & {label.get_text() for label in ax.get_xticklabels()}
    assert figure.axes[2].lines[0].get_xdata().max() == pytest.approx(59 * 18, abs=20)
    model = GPRegressor(method="sgpr", kernel="rbf", num_inducing=7, max_steps=5).fit(table[["when"]], y)
    (ax,) = saved(plot_fit(model, table[["when"]], y), tmp_path).axes
    shown = {str(line.get_label()): line for line in ax.lines}
    np.testing.assert_array_equal(shown["data"].get_xdata(), when.to_numpy())
    Z = leaves(model.model_)["process.inducing.Z"][:, 0]
    for at in (shown["inducing inputs"], saved(plot_inducing(model, table[["when"]]), tmp_path).axes[0].lines[0]):
        days = (at.get_xdata() - np.datetime64("1970-01-01")) / np.timedelta64(1, "D")
        assert np.isin(days.round(6), Z.round(6)).all()
    (ax,) = plot_inducing(model, table[["when"]]).axes
    assert ax.get_xlabel() == "when"


def test_effects_of_many_columns_need_a_choice():
    many = RNG.standard_normal((20, 13))
    model = agp.GPR.from_data(many, many[:, :1])
    with pytest.raises(ValueError, match=r"X has 13 columns; choose the columns to draw, such as columns=\['input 1'"):
        plot_effects(model, many)


# -- inducing inputs --------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_inducing_inputs_lie_among_the_data(tmp_path):
    model = agp.SVGP.from_data(WIDE, WIDE[:, :1], num_inducing=7)
    Z = leaves(model)["process.inducing.Z"]
    (ax,) = saved(plot_inducing(model, WIDE), tmp_path).axes
    np.testing.assert_allclose(lines(ax)["7 inducing inputs"], Z[:, :2])
    np.testing.assert_allclose(lines(ax)["data"], WIDE[:, :2])
    (ax,) = plot_inducing(model, WIDE, columns=["input 3", 0]).axes
    np.testing.assert_allclose(lines(ax)["7 inducing inputs"], Z[:, [2, 0]])
    (ax,) = saved(plot_inducing(model, WIDE, columns=[1]), tmp_path).axes
    np.testing.assert_allclose(np.sort(lines(ax)["7 inducing inputs"][:, 0]), np.sort(Z[:, 1]))
    assert sum(bar.get_height() for bar in ax.patches) == 60


def test_inducing_inputs_beyond_the_data_are_counted():
    model = agp.SVGP.from_data(WIDE, WIDE[:, :1], num_inducing=7)
    Z = leaves(model)["process.inducing.Z"].copy()
    Z[:2] += 1e3
    model = agp.tree.with_leaves(model, {"process.inducing.Z": Z})
    (ax,) = plot_inducing(model, WIDE).axes
    np.testing.assert_allclose(lines(ax)["7 inducing inputs (2 beyond the plot)"], Z[2:, :2])
    assert ax.get_xlim()[1] < 10.0


@pytest.mark.long
def test_inducing_inputs_of_estimators_have_the_names_of_columns():
    table = pd.DataFrame(WIDE, columns=["a", "b", "c"])
    estimator = GPRegressor(method="sgpr", num_inducing=5, max_steps=3).fit(table, WIDE[:, 0])
    (ax,) = plot_inducing(estimator, table, columns=["c", "a"]).axes
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("c", "a")
    with pytest.raises(ValueError, match="columns has 3 entries, but must have one or two"):
        plot_inducing(estimator, table, columns=["a", "b", "c"])
    with pytest.raises(ValueError, match="the GPR has no inducing inputs in the space of X"):
        plot_inducing(agp.GPR.from_data(X, Y), X)


# -- all of them ------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_growth_shows_both_bounds_and_what_doublings_gained(tmp_path):
    result = agp.fit_growing(agp.SGPR.from_data(X, Y, num_inducing=3), X, Y)
    figure = plot_growth(result)
    left, right = figure.axes
    lines = {line.get_label(): line for line in (*left.lines, *right.lines)}
    assert set(lines) == {"bound", "upper bound", "gap", "gain of a doubling"}
    sizes = [one.num_inducing for one in result.rounds]
    np.testing.assert_array_equal(lines["bound"].get_xdata(), sizes)
    np.testing.assert_allclose(lines["upper bound"].get_ydata(), [one.upper for one in result.rounds])
    np.testing.assert_allclose(lines["gap"].get_ydata(), [one.gap for one in result.rounds])
    gains = np.asarray(lines["gain of a doubling"].get_ydata())
    assert len(gains) == len(set(sizes)) - 1
    assert gains[0] == pytest.approx(result.rounds[1].bound - result.rounds[0].bound)
    assert left.get_xlabel() == right.get_xlabel() == "inducing inputs M"
    figure.savefig(tmp_path / "growth.png")


@pytest.mark.long
def test_growth_without_an_upper_bound_and_of_estimators(monkeypatch):
    monkeypatch.setattr("agp.estimators._base.START_INDUCING", 3)
    settings = {"method": "wsvgp", "num_inducing": "auto", "tolerance": 0.05, "max_steps": 500}
    model = GPClassifier(**settings).fit(X, Y[:, 0] > 0.0)
    left, right = plot_growth(model, ax=axes_of(2)).axes
    assert [line.get_label() for line in left.lines] == ["bound"]
    assert [line.get_label() for line in right.lines] == ["gain of a doubling"]


@pytest.mark.parametrize("wrong", [agp.GPR.from_data(X, Y), GPRegressor(), GPRegressor, {"bound": [1.0]}])
def test_what_has_not_grown_has_no_such_picture(wrong):
    with pytest.raises(TypeError, match="has no record of growth"):
        plot_growth(wrong)


@pytest.mark.slow
def test_many_data_are_thinned_and_the_legend_says_so():
    many = np.linspace(0.0, 1.0, 3000)[:, None]
    model = agp.SVGP.from_data(many, many, num_inducing=5)
    (ax,) = plot_fit(model, many, many).axes
    assert len(lines(ax)["data (2,000 of 3,000)"]) == 2000


@pytest.mark.slow
def test_pictures_go_into_axes_that_are_given():
    model = agp.SVGP.from_data(X, Y, num_inducing=5)
    for draw in (
        lambda ax: plot_fit(model, X, Y, ax=ax),
        lambda ax: plot_learning({"bound": [1.0, 2.0]}, ax=ax),
        lambda ax: plot_calibration(model, X, Y, ax=ax),
        lambda ax: plot_pit(model, X, Y, ax=ax),
        lambda ax: plot_effects(model, X, ax=ax),
        lambda ax: plot_inducing(model, X, ax=ax),
    ):
        (ax,) = axes_of(1)
        assert draw(ax) is ax.figure
        assert len(ax.lines) > 0
        with pytest.raises(TypeError, match="ax is, or contains, a str; pass matplotlib axes"):
            draw(["axes"])


@pytest.mark.long
def test_the_state_of_pyplot_is_not_touched():
    program = """
import sys, numpy as np, agp
X = np.linspace(0.0, 1.0, 9)[:, None]
assert "matplotlib" not in sys.modules
agp.plot.plot_fit(agp.GPR.from_data(X, X), X, X)
assert "matplotlib.figure" in sys.modules and "matplotlib.pyplot" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


# -- labels of dates and levels ---------------------------------------------------------------------------------------

MONTHS = pd.date_range("2020-03-01", periods=36, freq="MS")
WAYS = 72
LONG = "a very long name of a category with sixty letters or so, no."
SHOWN = {
    "months": (MONTHS.repeat(2), None),
    "a zone": (pd.date_range("2020-01-01", periods=WAYS, freq="7D", tz="Europe/Berlin"), None),
    "dates": ([day.date() for day in pd.date_range("2020-01-01", periods=WAYS)], None),
    "texts of dates": ([str(day.date()) for day in pd.date_range("2020-01-01", periods=WAYS, freq="30D")], None),
    "hours of a day": (pd.date_range("2020-03-01", periods=WAYS, freq="20min"), None),
    "three dates": (MONTHS[[0, 1, 10]].repeat(24), None),
    "durations": (pd.to_timedelta(np.arange(WAYS), unit="h"), None),
    "years": (2019 + np.arange(WAYS) % 5, None),
    "ordered": (pd.Categorical(["low", "mid", "high"] * 24, ["low", "mid", "high"], ordered=True), "low mid high"),
    "Booleans": ([True, False, True] * 24, "True False"),
    "Booleans with gaps": ([True, False, True, None, True, False] * 12, "True False missing"),
    "whole numbers": (pd.Categorical([10, 20, 10, 300, 10, 20] * 12), "10 20 300"),
    "gaps": (["a", "a", "b", "a", "b", None] * 12, "a b missing"),
    "numbers as text": ([f"{x:.1f}" for x in np.linspace(-3.0, 3.0, WAYS)], None),
    "percentages": ([f"{x:.0f}%" for x in np.linspace(0.0, 100.0, WAYS)], None),
    "many levels": ([f"level {i % 30}" for i in range(WAYS)], " ".join(f"level{i}" for i in range(12))),
    "long names": ([f"{LONG} {i % 4}" for i in range(WAYS)], None),
}


def overlaps_of(axis, renderer):
    """Pairs of labels of an axis that overlap: boxes side by side, or slanted lines closer than their height."""
    labels = [label for label in axis.get_ticklabels() if label.get_visible() and label.get_text()]
    angle = np.deg2rad(labels[0].get_rotation()) if labels else 0.0
    boxes = [label.get_window_extent(renderer) for label in labels]
    if not angle:
        return [pair for pair in itertools.pairwise(boxes) if pair[0].overlaps(pair[1])]
    height = labels[0].get_fontsize() * labels[0].get_figure().dpi / 72.0
    steps = np.diff([label.get_transform().transform(label.get_position())[0] for label in labels])
    return [step for step in steps if step * np.sin(angle) < height]


@pytest.mark.filterwarnings("ignore::agp.errors.ColumnWarning")
@pytest.mark.parametrize("kind", SHOWN)
@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_labels_of_dates_and_levels_are_legible(kind, library):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    cells, names = SHOWN[kind]
    table = pd.DataFrame({kind: cells, "x": np.linspace(-1.0, 1.0, WAYS)})
    y = np.sin(3.0 * table["x"].to_numpy())
    if library == "polars":
        pl = pytest.importorskip("polars")
        if kind == "whole numbers":
            pytest.skip("polars reads such categories as numbers")
        table = pl.from_pandas(table)
    estimator = GPRegressor(hyperparameters="mode", missing="impute", max_steps=5).fit(table, y)
    figure = plot_effects(estimator, table)
    FigureCanvasAgg(figure)
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()
    shown = figure.axes[0].xaxis
    for ax in figure.axes:
        assert not overlaps_of(ax.xaxis, renderer)
        assert not overlaps_of(ax.yaxis, renderer)
        assert ax.get_window_extent(renderer).height > 0.25 * figure.bbox.height
    found = [label.get_text() for label in shown.get_ticklabels()]
    assert len(found) <= 12
    if names is not None:
        assert [one.replace(" ", "") for one in found] == names.split()


def test_long_names_keep_their_beginning_and_their_end():
    from agp.plot._panels import shorten

    assert shorten(["short", "a\nb", ""]) == ["short", "a b", "''"]
    first, second = shorten([f"{LONG} 1", f"{LONG} 2"])
    assert (first[:5], first[-1], second[-1]) == ("a ver", "1", "2")
    middle = [f"the same beginning of a name {i} and the same end of it" for i in range(3)]
    assert len({*shorten(middle)}) == 3
    assert all(len(one) <= 28 for one in shorten(middle))


# -- components -------------------------------------------------------------------------------------------------------


def test_trend_and_season_are_below_each_other():
    months = pd.DataFrame({"month": pd.date_range("2001-01-01", periods=60, freq="MS")})
    y = 0.05 * np.arange(60) + np.sin(2.0 * np.pi * np.arange(60) / 12.0) + 0.05 * RNG.standard_normal(60)
    kernel = Matern32() + Centred(Seasonal(period=365.25))
    model = GPRegressor(kernel=kernel, random_state=0).fit(months, y)
    figure = plot_components(model, months, groups={"trend": ["matern32", "mean function"], "season": 1})
    trend, season = figure.axes
    assert [ax.get_title() for ax in figure.axes] == ["trend", "season"]
    assert [ax.get_xlabel() for ax in figure.axes] == ["", "month"]
    assert [ax.get_ylabel() for ax in figure.axes] == ["component", "component"]
    found = agp.inspection.components(model, months)
    assert np.allclose(points(season.lines[0])[:, 1], found.mean[:, 0, 1])
    assert len(points(trend.lines[0])) == 60
    low, high = season.collections[0].get_paths()[0].vertices[:, 1].min(), season.lines[0].get_ydata().min()
    assert np.isclose(high - low, Z95 * np.sqrt(found.variance[:, 0, 1]).max(), rtol=0.5)


def test_components_of_columns_have_one_scale():
    table = pd.DataFrame({"age": RNG.uniform(20.0, 80.0, 60), "kind": ["a", "b", "c"] * 20})
    y = 0.1 * table["age"].to_numpy() + np.asarray([0.0, 2.0, -1.0] * 20) + 0.1 * RNG.standard_normal(60)
    model = GPRegressor(kernel=additive(RBF(), ["age", "kind"]), random_state=0).fit(table, y)
    figure = plot_components(model, table)
    age, kind = figure.axes
    assert age.get_ylim() == kind.get_ylim()
    assert [text.get_text() for text in kind.get_xticklabels()] == ["a", "b", "c"]
    assert (age.get_xlabel(), kind.get_xlabel()) == ("age", "kind")
    heights_of = kind.containers[0].lines[0].get_ydata()
    assert abs(heights_of[1] - heights_of[0] - 2.0) < 0.3
    assert figure.axes == plot_components(model, table, ax=figure.axes).axes


def test_components_of_several_columns_and_outputs():
    X = RNG.uniform(-1.0, 1.0, (50, 3))
    y = np.concatenate([X[:, :1], X[:, 1:2] * X[:, 2:]], axis=1)
    model = agp.GPR.from_data(X, y, kernel=Linear().on(0) + RBF().on((1, 2)))
    figure = plot_components(model, X)
    assert [ax.get_title() for ax in figure.axes] == [
        f"{name}, output {p}" for p in (1, 2) for name in ("linear.on(input 1)", "rbf.on(input 2, input 3)")
    ]
    assert [ax.get_xlabel() for ax in figure.axes[:2]] == ["input 1", "input 2"]
    assert len(figure.axes[1].containers[0].lines[0].get_xdata()) == 50


@pytest.mark.parametrize(
    ("likelihood", "y", "label"),
    [
        (agp.Poisson(), RNG.poisson(2.0, (50, 1)) * 1.0, "component of the latent function"),
        (agp.LogNormal(), np.exp(Y), "component of the transformed target"),
        (agp.StudentT(), Y, "component"),
    ],
)
def test_the_label_says_of_what_the_components_are(likelihood, y, label):
    model = agp.SVGP.from_data(X, y, likelihood=likelihood, kernel=RBF() + Linear(), num_inducing=6)
    assert plot_components(model, X).axes[0].get_ylabel() == label


def test_pictures_without_components_are_refused():
    model = agp.GPR.from_data(X, Y, kernel=agp.Constant())
    with pytest.raises(ValueError, match="no component depends on a column; the components are constant"):
        plot_components(model, X)
    many = RNG.standard_normal((30, 26))
    model = agp.GPR.from_data(many, Y[:30], kernel=additive(RBF(), range(26)))
    with pytest.raises(ValueError, match="there are 26 panels, but at most 24"):
        plot_components(model, many)
