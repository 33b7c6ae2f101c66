"""Draw the plots for docs/pictures.md and some other pages, from synthetic data.

python docs/examples/pictures.py docs/pictures
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import agp
from agp.estimators import GPClassifier, GPRegressor

folder = Path(sys.argv[1])
rng = np.random.default_rng(0)


def save(name, figure, dpi=80):
    """Save a figure at a low resolution, to limit the size of the repository."""
    figure.savefig(folder / f"{name}.png", dpi=dpi)


X = np.sort(rng.uniform(0.0, 10.0, (300, 1)), axis=0)
X = X[(X[:, 0] < 4.5) | (X[:, 0] > 6.0)]
y = np.sin(2.0 * X) + 0.2 * rng.standard_normal(X.shape)
result = agp.train(agp.SVGP.from_data(X, y, num_inducing=20), X, y, steps=600, batch_size=100)
save("fit", agp.plot.plot_fit(result.model, X, y))
save("learning", agp.plot.plot_learning(result), dpi=60)

few = agp.CaGP.from_data(X, y, num_actions=10)
few = agp.train(few, X, y, steps=60, updates=agp.recipe(few, 60, rate=0.1)).model
save("fit-cagp", agp.plot.plot_fit(few, X, y))

side = rng.uniform(-2.0, 2.0, (120, 1))
label = np.where(np.sin(2.0 * side[:, 0]) + 0.5 * rng.standard_normal(120) > 0.0, "late", "on time")
save("fit-classes", agp.plot.plot_fit(GPClassifier(tolerance=0.01).fit(side, label), side, label))


def houses(rows):
    """Simulate houses and their prices."""
    area, age = rng.uniform(40.0, 200.0, rows), rng.uniform(0.0, 80.0, rows)
    kind = rng.choice(["flat", "house", "farm"], rows)
    base = np.select([kind == "flat", kind == "house"], [50.0, 90.0], 70.0)
    price = base + 2.0 * area + 0.02 * (age - 50.0) ** 2 + 30.0 * rng.standard_normal(rows)
    return pd.DataFrame({"area": area, "age": age, "kind": kind}), pd.Series(price, name="price")


table, price = houses(500)
test, truth = houses(400)
regressor = GPRegressor(random_state=0).fit(table, price)
save("calibration", agp.plot.plot_calibration(regressor, test, truth))
save("effects", agp.plot.plot_effects(regressor, table))

more = np.random.default_rng(1)
counts, again = 1.0 * more.poisson(np.exp(y) * more.gamma(2.0, 0.5, (2, *y.shape)))
counted = agp.TVGP.from_data(X, counts, likelihood=agp.Poisson())
save("pit", agp.plot.plot_pit(agp.fit(counted, X, counts).model, X, again))

ring = rng.standard_normal((600, 2))
ring += 2.0 * ring / np.linalg.norm(ring, axis=1, keepdims=True)
waves = np.sin(ring[:, :1]) * np.cos(ring[:, 1:]) + 0.1 * rng.standard_normal((600, 1))
sparse = agp.train(agp.SVGP.from_data(ring, waves, num_inducing=40), ring, waves, steps=100, batch_size=200).model
save("inducing", agp.plot.plot_inducing(sparse, ring))


def dear(prices):
    """Label houses as dear or cheap by their price, with some wrong labels."""
    return np.where(prices + 40.0 * rng.standard_normal(len(prices)) > 350.0, "dear", "cheap")


table, price = houses(250)
classifier = GPClassifier(tolerance=0.01, random_state=0).fit(table, dear(price))
save("reliability", agp.plot.plot_calibration(classifier, test, dear(truth)))


def helped():
    """Plot an output with ten measurements, modelled alone and together with a related output."""
    own = np.random.default_rng(4)
    place = np.sort(own.uniform(-3.0, 3.0, (200, 1)), axis=0)
    wave = np.sin(2.0 * place[:, 0]) + 0.3 * place[:, 0]
    both = np.stack([wave, 30.0 - 10.0 * wave], axis=1) + np.asarray([0.1, 1.0]) * own.standard_normal((200, 2))
    both[own.permutation(200)[10:], 1] = np.nan
    grid = np.linspace(-3.0, 3.0, 301)[:, None]
    figure, panels = plt.subplots(1, 2, figsize=(9.0, 3.2), sharey=True, layout="constrained")
    for panel, outputs in zip(panels, ("separate", "coregionalised"), strict=True):
        settings = {"likelihood": agp.Gaussian(missing=True), "posterior": "whitened", "num_inducing": 20}
        model = agp.SVGP.from_data(place, both, outputs=outputs, **settings)
        model = agp.train(model, place, both, steps=600).model
        mean, variance = (x[:, 1] for x in model.predict(grid))
        band = 1.96 * np.sqrt(variance)
        panel.fill_between(grid[:, 0], mean - band, mean + band, alpha=0.3, label="function, 95 %")
        panel.plot(grid[:, 0], mean, label="mean")
        panel.plot(grid[:, 0], 30.0 - 10.0 * (np.sin(2.0 * grid[:, 0]) + 0.3 * grid[:, 0]), "k--", lw=1, label="truth")
        panel.plot(place[:, 0], both[:, 1], "k.", label="measured")
        panel.set(title=outputs, xlabel="x")
    panels[0].set_ylabel("output with ten measurements")
    panels[0].legend(fontsize=8)
    return figure


save("several-outputs", helped())

additive = agp.kernels.additive(agp.RBF(), ["area", "age", "kind"])
save("components", agp.plot.plot_components(GPRegressor(kernel=additive, random_state=0).fit(table, price), table))

months = pd.DataFrame({"month": pd.date_range("2004-01-01", periods=120, freq="MS")})
at, own = np.arange(120.0), np.random.default_rng(2)
visitors = (
    300.0 + np.cumsum(own.normal(0.3, 1.0, 120)) + 12.0 * np.sin(2.0 * np.pi * at / 12.0) + own.normal(0.0, 4.0, 120)
)
kernel = agp.Matern32() + agp.kernels.Centred(agp.Seasonal(period=365.25))
series = GPRegressor(kernel=kernel, random_state=0).fit(months, visitors)
groups = {"trend": ["matern32", "mean function"], "season": "centred(seasonal(365.25))"}
save("components-series", agp.plot.plot_components(series, months, groups=groups))
