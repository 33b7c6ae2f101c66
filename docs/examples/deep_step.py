"""Fit a step with a GP and with a deep GP of two layers, and plot both fits.

python docs/examples/deep_step.py docs/pictures/deep-step.png [--steps STEPS]

This takes half a minute on one core. The script also prints the mean log density of new observations.
"""

import argparse

import numpy as np
from matplotlib.figure import Figure

import agp

LAYERS, INDUCING, SAMPLES = (1, 2), 20, 500


def data(rows, seed):
    """Draw inputs [N, 1], and noisy targets [N, 1] of a step from -1 to 1."""
    rng = np.random.default_rng(seed)
    X = np.sort(rng.uniform(-2.0, 2.0, (rows, 1)), axis=0)
    return X, np.where(X > 0.0, 1.0, -1.0) + 0.1 * rng.standard_normal((rows, 1))


def main():
    """Train the models, print the densities and plot the fits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", metavar="FILE.png")
    parser.add_argument("--steps", type=int, default=2000)
    a = parser.parse_args()
    X, y = data(200, 0)
    X_test, y_test = data(2000, 1)
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    panels = figure.subplots(1, len(LAYERS), sharey=True)
    for layers, panel in zip(LAYERS, panels, strict=True):
        model = agp.DeepGP.from_data(
            X, y, layers=layers, posterior="whitened", num_inducing=INDUCING, prediction_samples=SAMPLES
        )
        model = agp.train(model, X, y, steps=a.steps).model
        density = float(np.mean(model.log_density(X_test, y_test)))
        agp.plot.plot_fit(model, X, y, ax=panel)
        panel.set_xlabel(f"{layers} layer{'s' if layers > 1 else ''}: {density:.2f} nats per new observation")
        print(f"{layers}: {density:.3f}")
    for panel in panels[1:]:
        panel.get_legend().remove()  # the first panel has the legend
        panel.set_ylabel("")
    figure.savefig(a.picture, dpi=80)


if __name__ == "__main__":
    main()
