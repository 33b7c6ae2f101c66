"""Train on all 60,000 training images of MNIST, with an RBF kernel on pixels or a weighted convolution of patches.

    python docs/examples/mnist.py mnist.npz --out runs --kernels conv --methods relaxed --steps 10000
    python docs/examples/mnist.py mnist.npz --out runs --backend torch --device cuda:0 --steps 450000
    python docs/examples/mnist.py --out runs --print --picture curves.png

The file has square images X [70000, 784], one in each row, their digits y, and the train_mask. Without a file, the
script uses the small digits of scikit-learn. Interrupted runs are resumed. All models have the robust-max likelihood
and use minibatches of 200 images. Pixels are divided by the largest pixel value.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from long_runs import run, scores
from sklearn.datasets import load_digits

import agp
from agp.backend import backend_of, to_numpy

PATCH = 5
BATCH = 200


class Images(NamedTuple):
    """Images in rows, and digits in a column, on the device."""

    X: Any
    y: Any
    X_test: Any
    y_test: Any


def images(path, backend, device):
    """Load the images and digits of the file in float32."""
    if path is None:
        X, y = load_digits(return_X_y=True)
        train = np.arange(len(y)) % 5 > 0
    else:
        with np.load(path) as file:
            X, y, train = file["X"], file["y"], file["train_mask"]
    X, y = (X / X.max()).astype(np.float32), y.astype(np.float32)[:, None]
    parts = X[train], y[train], X[~train], y[~train]
    return Images(*(agp.to_backend(x, backend, device=device) for x in parts))


def start(data, kernel, method, num_inducing, seed):
    """Create the untrained model."""
    settings = {"posterior": method, "likelihood": agp.RobustMax(10), "num_inducing": num_inducing, "seed": seed}
    pixels = data.X.shape[1]
    if kernel == "rbf":  # a lengthscale per pixel; the distance between images of 784 pixels is about 10
        wide = agp.to_backend(np.full(pixels, 0.18 * pixels**0.5, np.float32), **place(data.X))
        return agp.SVGP.from_data(data.X, data.y, inducing="random", kernel=agp.RBF(lengthscale=wide), **settings)
    side = round(pixels**0.5)
    weights = agp.to_backend(np.ones((side - PATCH + 1) ** 2, np.float32), **place(data.X))
    patches = agp.inducing.Patches((side, side), (PATCH, PATCH), weights=weights)
    return agp.SVGP.from_data(data.X, data.y, inducing=patches, kernel=agp.RBF(lengthscale=1.0), **settings)


def place(x):
    """Return the library and the device of an array, as arguments for `agp.to_backend`."""
    B = backend_of(x)
    return {"name": B.name, "device": B.device_name(x)}


def score(model, data):
    """Return the error rate in percent and the NLPD of the test images."""
    digits = to_numpy(data.y_test)[:, 0].astype(int)
    probabilities = to_numpy(model.predict(data.X_test, observed=True).mean)
    wrong = np.mean(np.argmax(probabilities, axis=1) != digits)
    found = np.mean(np.log(probabilities[np.arange(len(digits)), digits]))
    return {"error %": 100.0 * float(wrong), "nlpd": -float(found)}


def table(folder):
    """Return a Markdown table of the scores in the folder: every stored step of each run."""
    lines = ["| kernel | method | M | steps | hours | error % | NLPD |", "|" + "---|" * 7]
    for path in sorted(Path(folder).glob("mnist-*.json")):
        _, kernel, method, inducing, _ = path.stem.split("-")
        for steps, facts in sorted(scores(folder, path.stem).items()):
            numbers = [f"{facts['seconds'] / 3600:.2f}", f"{facts['error %']:.2f}", f"{facts['nlpd']:.4f}"]
            lines.append("| " + " | ".join([kernel, method, inducing[1:], f"{steps:,}", *numbers]) + " |")
    return "\n".join(lines)


def draw(folder, path):
    """Plot the error rate and NLPD of each run against its steps."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator

    figure = Figure(figsize=(9.0, 3.4), layout="constrained")
    panels = figure.subplots(1, 2)
    for file in sorted(Path(folder).glob("mnist-*.json")):
        _, kernel, method, *_ = file.stem.split("-")
        style = {"color": "C0" if method == "relaxed" else "C1", "linestyle": "-" if kernel == "conv" else "--"}
        steps, facts = zip(*sorted(scores(folder, file.stem).items()), strict=True)
        for ax, what in zip(panels, ("error %", "nlpd"), strict=True):
            ax.plot(steps, [one[what] for one in facts], label=f"{kernel}, {method}", **style)
    for ax, what in zip(panels, ("error % of the test images", "NLPD"), strict=True):
        ax.set(xlabel="steps", ylabel=what, yscale="log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_locator(NullLocator())
    panels[0].legend(fontsize=8)
    figure.savefig(path, dpi=110)


def main():
    """Complete all runs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?")
    parser.add_argument("--out", required=True, help="folder for the results")
    parser.add_argument("--kernels", nargs="+", choices=["rbf", "conv"], default=["conv"])
    parser.add_argument("--methods", nargs="+", default=["relaxed", "whitened"])
    parser.add_argument("--num-inducing", type=int, default=750)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="numpy")
    parser.add_argument("--device", default=None)
    parser.add_argument("--print", action="store_true", help="only print the table of the stored results")
    parser.add_argument("--picture", help="where to save the curves")
    given = parser.parse_args()
    if not given.print:
        data = images(given.data, given.backend, given.device)
        for kernel in given.kernels:
            for method in given.methods:
                name = f"mnist-{kernel}-{method}-M{given.num_inducing}-s{given.seed}"
                begin = partial(start, data, kernel, method, given.num_inducing, given.seed)
                settings = {"steps": given.steps, "every": given.every, "batch_size": BATCH, "seed": given.seed}
                run(given.out, name, begin, data, partial(score, data=data), **settings)
    print(table(given.out))
    if given.picture:
        draw(given.out, given.picture)


if __name__ == "__main__":
    main()
