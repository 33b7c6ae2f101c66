"""Write the training run that both sides of `learning.py` use, with the start of `agp compare`."""

import argparse
from typing import Any

import numpy as np
from agp.data import load
from training import Training

import agp
from agp.training import Batches, recipe
from agp.updates import Adam, delayed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that define a training run."""
    parser.add_argument("--data", default="diabetes", help="as for `agp compare`: data set, .csv or .npz file")
    parser.add_argument("--split", type=int, default=0, metavar="S", help="column of test_masks in an .npz file")
    parser.add_argument("--num-inducing", type=int, default=500, metavar="M")
    parser.add_argument("--batch-size", type=int, default=1000, metavar="B")
    parser.add_argument("--iterations", type=int, default=5000, metavar="T")
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0, help="seed of inducing inputs and minibatches")


def training_of(a: argparse.Namespace) -> Training:
    """Create a run with the k-means centres, starting values, batches and recipe of `agp compare --method wsvgp`."""
    data = load(a.data, split=a.split, seed=a.seed)
    size, M = min(a.batch_size, len(data.X)), min(a.num_inducing, len(data.X))
    X, y = np.ascontiguousarray(data.X), np.ascontiguousarray(data.y)
    likelihood = agp.Bernoulli() if data.binary else agp.Gaussian()
    parts = {"likelihood": likelihood, "mean_function": agp.ZeroMean(), "num_inducing": M, "seed": a.seed}
    model = agp.SVGP.from_data(X, y, posterior=agp.posteriors.Whitened, **parts)
    noise = 0.0 if data.binary else float(model.likelihood.noise_variance)
    batches = Batches(X, y, size, a.seed)
    adam = recipe(model, a.iterations, rate=a.rate, fall=1.0, natural=None)[0]
    assert isinstance(adam, Adam)
    process: Any = model.process
    group = adam.groups["process.inducing.Z"]
    assert isinstance(group.rate, delayed)
    rows = np.arange(size)[None] if size == len(X) else np.stack([batches.indices(t) for t in range(a.iterations)])
    return Training(
        X, y[:, 0], data.X_test, data.y_test[:, 0], process.inducing.Z, process.kernel.lengthscale,
        float(process.kernel.variance), noise, data.binary, rows.astype(np.int32), a.rate, group.rate.start,
        group.rate.rate, group.beta1, adam.epsilon, a.seed,
    )  # fmt: skip


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--out", required=True, metavar="FILE", help="the .npz file to write")
    a = parser.parse_args()
    training_of(a).write(a.out)


if __name__ == "__main__":
    main()
