"""Plot digits, the first layer's outputs in a deep convolutional model, and the patch weights of the last layer.

python docs/examples/convolutional.py --picture docs/pictures/convolutional.png
"""

import argparse

import matplotlib as mpl
import numpy as np
from sklearn.datasets import load_digits

import agp

mpl.use("agg")
import matplotlib.pyplot as plt

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--steps", type=int, default=120)
parser.add_argument("--picture", default="convolutional.png")
arguments = parser.parse_args()

rows, labels = load_digits(return_X_y=True)
X, y = rows / 16.0, labels[:, None].astype(float)
model = agp.DeepGP.convolutional(
    X[:1000],
    y[:1000],
    image=(8, 8),
    patch=3,
    channels=(3,),
    located=(False, True),
    likelihood=agp.RobustMax(10),
    posterior="whitened",
    num_inducing=40,
)
model = agp.train(model, X[:1000], y[:1000], steps=arguments.steps, batch_size=100).model

first, last = model.process.layers
digits = X[[0, 1, 2, 4]]
channels = first.project_mean(first.factorise()[0], digits).reshape(len(digits), *first.grid.shape, 3)

figure = plt.figure(figsize=(7.0, 5.2), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=(4.0, 1.4))
axes = left.subplots(len(digits), 4)
largest = np.abs(channels).max()
for row, (digit, made) in enumerate(zip(digits, channels, strict=True)):
    axes[row, 0].imshow(digit.reshape(8, 8), cmap="gray_r")
    for c in range(3):
        shown = axes[row, 1 + c].imshow(made[:, :, c], cmap="RdBu_r", vmin=-largest, vmax=largest)
for ax, title in zip(axes[0], ["digit", "channel 0", "channel 1", "channel 2"], strict=True):
    ax.set_title(title, fontsize=9)
left.colorbar(shown, ax=axes, shrink=0.6, aspect=40, location="bottom", label="mean of the first layer")
weights = right.subplots()
shown = weights.imshow(last.inducing.weights.reshape(last.inducing.grid.shape), cmap="viridis")
weights.set_title("weights of the\nlast layer's patches", fontsize=9)
right.colorbar(shown, ax=weights, location="bottom")
for ax in [*axes.ravel(), weights]:
    ax.set_xticks([])
    ax.set_yticks([])
figure.savefig(arguments.picture, dpi=80)
