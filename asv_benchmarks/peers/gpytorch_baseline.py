"""A baseline: GPyTorch's whitened SVGP as its users run it, from agp's inducing inputs and hyperparameters."""

import argparse
import time
from typing import Any

import gpytorch
import numpy as np
import torch
from gpytorch_model import WhitenedSVGP
from real_data import arguments, datasets, keep
from training import scores

import agp
from agp.data import Dataset

TEST_ROWS = 2000
"""Rows predicted at once."""


def started(data: Dataset, count: int) -> Any:
    """agp's model before training: k-means, and its usual hyperparameters."""
    likelihood = agp.Gaussian()
    return agp.SVGP.from_data(data.X, data.y, posterior=agp.Whitened, likelihood=likelihood, num_inducing=count, seed=0)


def minibatches(rows: int, size: int, steps: int) -> Any:
    """The rows of each step: permutations with seed 0, cut in turn; what is left of each is dropped."""
    rng, done = np.random.default_rng(0), 0
    while done < steps:
        order = rng.permutation(rows)
        for i in range(min(rows // size, steps - done)):
            yield torch.from_numpy(order[i * size : (i + 1) * size])
            done += 1


@torch.no_grad()
def predicted(model: WhitenedSVGP, data: Dataset) -> dict[str, float]:
    """Scores of the test rows."""
    model.eval()
    parts = [model.likelihood(model(X)) for X in torch.split(torch.from_numpy(data.X_test), TEST_ROWS)]
    mean, variance = (torch.cat([part.mean for part in parts]), torch.cat([part.variance for part in parts]))
    model.train()
    return scores(mean.numpy(), variance.numpy(), data.y_test[:, 0], binary=False)


def baseline(name: str, data: Dataset, left_out: list[int], a: argparse.Namespace) -> None:
    """Train, and write scores at each look and the inducing inputs that training began with."""
    rows, size = len(data.X), min(len(data.X), a.batch_size)
    start = started(data, min(a.num_inducing, rows // 2))
    Z, kernel = np.array(start.process.inducing.Z), start.process.kernel
    lengthscale = np.broadcast_to(np.asarray(kernel.lengthscale, dtype=np.float64), (data.X.shape[1],)).copy()
    variance, noise = float(kernel.variance), float(start.likelihood.noise_variance)
    model = WhitenedSVGP(Z, lengthscale, variance, noise, jitter=None, constant_mean=True)
    facts = {
        "library": f"gpytorch {gpytorch.__version__}, torch {torch.__version__}",
        "split": a.split, "left_out": left_out, "rows": rows, "columns": data.X.shape[1],
        "test_rows": len(data.X_test), "num_inducing": len(Z), "batch_size": size, "rate": a.rate, "seed": 0,
        "start": {"lengthscale": lengthscale.tolist(), "variance": variance, "noise": noise, "mean": 0.0},
        "looks": {},
    }  # fmt: skip
    folder = a.out.parent / f"{a.out.stem}_Z"
    folder.mkdir(exist_ok=True)
    np.save(folder / f"{name}.npy", Z)
    X, y = torch.from_numpy(data.X), torch.from_numpy(data.y[:, 0])
    objective = gpytorch.mlls.VariationalELBO(model.likelihood, model, num_data=rows)
    adam = torch.optim.Adam(model.parameters(), lr=a.rate)
    model.train()
    seconds = 0.0
    for step, chosen in enumerate(minibatches(rows, size, max(a.looks)), 1):
        began = time.perf_counter()
        adam.zero_grad()
        loss = -objective(model(X[chosen]), y[chosen])
        loss.backward()
        adam.step()
        seconds += time.perf_counter() - began
        if step in a.looks:
            noise = float(model.likelihood.noise.detach())
            found = {"bound_per_datum": -float(loss.detach()), "seconds": seconds, "noise": noise}
            facts["looks"][str(step)] = {**predicted(model, data), **found}
            keep(a.out, name, facts)


def main() -> None:
    """The command."""
    parser = arguments(__doc__)
    parser.add_argument("--num-inducing", type=int, default=512, metavar="M", help="half of the rows at most")
    parser.add_argument("--batch-size", type=int, default=1024, metavar="B")
    parser.add_argument("--rate", type=float, default=0.01, help="of Adam, for all parameters")
    parser.add_argument("--looks", type=int, nargs="+", default=[2000, 5000, 10000], help="steps at which to score")
    a = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    for name, data, left_out in datasets(a):
        baseline(name, data, left_out, a)


if __name__ == "__main__":
    main()
