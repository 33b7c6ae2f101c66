"""Compare deep kernels of agp and GPyTorch: the same network, inducing inputs, batches, optimiser and schedule.

    python docs/examples/deep_kernels.py --data TABLE.npz

The file has the arrays X [N, D] and y [N]; without one, the diabetes table of scikit-learn is used. For each seed, the
script draws training and test rows, standardises the columns, and trains a network with a GP on its outputs by
minibatches: agp's SVGP in a `GPModule`, and a GPyTorch `ApproximateGP` with a `VariationalStrategy`. Both have a
whitened q(u), an RBF kernel with a lengthscale for each feature, and a constant mean. Both start from the same weights
and the same inducing inputs, and see the same batches. The script prints the NLPD and the RMSE of test rows, in
standard deviations of the targets, and the seconds of the training loop.

`--start data` lets agp choose its starting values from the features of the untrained network, and `--plain` leaves out
the last layer, which standardises the features.
"""

import argparse
import copy
import time
from dataclasses import dataclass

import gpytorch
import numpy as np
import torch
from sklearn.datasets import load_diabetes

import agp
from agp.interop.torch import GPModule


@dataclass
class Rows:
    """Training and test rows, standardised, in float32."""

    X: torch.Tensor
    y: torch.Tensor
    X_test: torch.Tensor
    y_test: torch.Tensor


def read_rows(path, without, count, seed):
    """Draw at most `count` rows and a fifth as many test rows, and scale both by the training rows."""
    X, y = load_diabetes(return_X_y=True)
    if path is not None:
        with np.load(path) as file:
            X, y = file["X"].astype(float), file["y"].astype(float)
    X = np.delete(X, without, axis=1)
    order = np.random.default_rng(seed).permutation(len(X))
    tests = min(count, len(X)) // 5
    test, train = order[:tests], order[tests : tests + count]
    centre, spread = X[train].mean(axis=0), X[train].std(axis=0)
    X = (X - centre) / np.where(spread > 1e-10, spread, 1.0)
    y = (y - y[train].mean()) / y[train].std()
    return Rows(*(torch.tensor(x, dtype=torch.float32) for x in (X[train], y[train], X[test], y[test])))


def make_network(columns, features, *, plain):
    """Return a network from the columns of a table to a few features, which it standardises unless it is plain."""
    first, second, third = torch.nn.Linear(columns, 64), torch.nn.Linear(64, 64), torch.nn.Linear(64, features)
    layers = [first, torch.nn.ReLU(), second, torch.nn.ReLU(), third]
    return torch.nn.Sequential(*layers, *([] if plain else [torch.nn.BatchNorm1d(features, affine=False)]))


class OfAgp(torch.nn.Module):
    """A network and agp's SVGP."""

    def __init__(self, network, rows, Z, start):
        super().__init__()
        self.network, self.rows = network, len(rows.y)
        parts = {}
        if start == "smooth":
            parts = {"kernel": agp.RBF(1.0, [Z.shape[1] ** 0.5] * Z.shape[1]), "likelihood": agp.Gaussian(0.5)}
        with torch.no_grad():
            self.gp = GPModule(agp.SVGP.from_data(network(rows.X), rows.y, Z=Z, posterior="whitened", **parts))

    def loss(self, X, y):
        """Return the loss per row."""
        return self.gp.loss(self.network(X), y, scale=self.rows / len(y)) / self.rows

    def forward(self, X):
        """Return the means and variances [N] of observations."""
        return (x[:, 0] for x in self.gp(self.network(X), observed=True))


class OfGPyTorch(torch.nn.Module):
    """A network and GPyTorch's ApproximateGP."""

    def __init__(self, network, rows, Z, _):
        super().__init__()
        self.network, self.gp = network, Head(Z)
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood()
        self.bound = gpytorch.mlls.VariationalELBO(self.likelihood, self.gp, num_data=len(rows.y))

    def loss(self, X, y):
        """Return the loss per row."""
        return -self.bound(self.gp(self.network(X)), y)

    def forward(self, X):
        """Return the means and variances [N] of observations."""
        found = self.likelihood(self.gp(self.network(X)))
        return found.mean, found.variance


class Head(gpytorch.models.ApproximateGP):
    """A sparse GP with a whitened q(u)."""

    def __init__(self, Z):
        q = gpytorch.variational.CholeskyVariationalDistribution(len(Z))
        super().__init__(gpytorch.variational.VariationalStrategy(self, Z, q, learn_inducing_locations=True))
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=Z.shape[1]))

    def forward(self, x):
        """Return the prior at the features."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def train_module(module, rows, batches, rate):
    """Train by Adam with a cosine schedule on the given batches of row numbers; return the seconds."""
    optimiser = torch.optim.Adam(module.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, len(batches))
    began = time.perf_counter()
    for batch in batches:
        optimiser.zero_grad()
        module.loss(rows.X[batch], rows.y[batch]).backward()
        optimiser.step()
        schedule.step()
    return time.perf_counter() - began


def score_module(module, rows):
    """Return the NLPD and the RMSE of the test rows."""
    with torch.no_grad():
        mean, variance = module.eval()(rows.X_test)
    apart = (rows.y_test - mean).double()
    variance = variance.double()
    nlpd = 0.5 * (torch.log(2.0 * torch.pi * variance) + apart**2 / variance).mean()
    return float(nlpd), float((apart**2).mean().sqrt())


def compare(given, seed):
    """Train both modules for a seed; return NLPD, RMSE and seconds of each."""
    rows = read_rows(given.data, given.without, given.rows, seed)
    torch.manual_seed(seed)
    network = make_network(rows.X.shape[1], given.features, plain=given.plain)
    with torch.no_grad():
        features = network(rows.X)
    start = agp.SVGP.from_data(features, rows.y, num_inducing=given.num_inducing, posterior="whitened", seed=seed)
    Z = start.inducing.Z
    rng = np.random.default_rng(seed)
    batches = [torch.from_numpy(rng.choice(len(rows.y), given.batch_size)) for _ in range(given.steps)]
    found = {}
    for name, kind in (("agp", OfAgp), ("GPyTorch", OfGPyTorch)):
        module = kind(copy.deepcopy(network), rows, Z.clone(), given.start)
        seconds = train_module(module, rows, batches, given.rate)
        found[name] = (*score_module(module, rows), seconds)
        nlpd, rmse, _ = found[name]
        print(f"seed {seed}  {name:10s} NLPD {nlpd:7.3f}  RMSE {rmse:.3f}  {seconds:6.1f} s", flush=True)
    return found


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data")
parser.add_argument("--without", type=int, nargs="*", default=[], help="columns to leave out")
parser.add_argument("--rows", type=int, default=8000)
parser.add_argument("--features", type=int, default=4)
parser.add_argument("--num-inducing", type=int, default=256)
parser.add_argument("--batch-size", type=int, default=512)
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--rate", type=float, default=0.01)
parser.add_argument("--start", choices=("smooth", "data"), default="smooth")
parser.add_argument("--plain", action="store_true")
parser.add_argument("--seeds", type=int, default=3)
given = parser.parse_args()

results = [compare(given, seed) for seed in range(given.seeds)]
for name in ("agp", "GPyTorch"):
    nlpd, rmse, seconds = np.mean([found[name] for found in results], axis=0)
    print(f"mean    {name:10s} NLPD {nlpd:7.3f}  RMSE {rmse:.3f}  {seconds:6.1f} s")
