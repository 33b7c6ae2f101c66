"""Compare the simple regrets of Bayesian optimisation with agp's models and with BoTorch's.

``python asv_benchmarks/bayesian_optimisation.py --json regret.json`` takes four minutes on one core, and requires
BoTorch (the extra ``botorch``). The problems are Branin and Hartmann-6, negated and without noise, on the unit cube.
All models start from the same Sobol points, maximise the same acquisition function with the same settings, and are
trained again after each evaluation.
"""

import argparse
import json
import math
import os
import time
import warnings
from functools import partial
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np
import torch
from botorch import fit_gpytorch_mll
from botorch.acquisition import qLogExpectedImprovement
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from botorch.optim import optimize_acqf
from botorch.test_functions import Branin, Hartmann
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.mlls import ExactMarginalLogLikelihood

import agp
from agp.interop.botorch import BoTorchModel
from agp.priors import LogNormal

PROBLEMS = {"branin": (lambda: Branin(negate=True), 30), "hartmann6": (lambda: Hartmann(dim=6, negate=True), 60)}
"""Each problem with its number of evaluations, including the initial design."""
KERNELS = {"rbf": agp.RBF, "matern52": agp.Matern52}
SIDES = ("agp", "botorch")
ACQUISITION = {"num_restarts": 4, "raw_samples": 64}


def agp_model(X, y, kernel="matern52", noise=None, prior=True):
    """Create an exact GP whose lengthscales have the prior of Hvarfner, Hellsten & Nardi (2024).

    The noise variance is trained, or is the given fraction of the targets' variance.
    """
    X, y = X.numpy(), y.numpy()
    lengthscale = LogNormal(math.sqrt(2.0) + 0.5 * math.log(X.shape[1]), math.sqrt(3.0))
    likelihood = None if noise is None else agp.Gaussian(noise * np.var(y))
    priors = {"kernel.lengthscale": lengthscale} if prior else None
    model = agp.GPR.from_data(X, y, kernel=KERNELS[kernel](), likelihood=likelihood, priors=priors)
    return BoTorchModel(agp.fit_lbfgs(model, X, y, frozen=() if noise is None else "likelihood.*").model)


def botorch_model(X, y, noise=None):
    """Create BoTorch's default model and train it with the default settings; the noise is as in `agp_model`."""
    known = None if noise is None else torch.full_like(y, noise * float(y.var(correction=0)))
    model = SingleTaskGP(X, y, known, outcome_transform=Standardize(m=1))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def regrets(name, build, seed, evaluations=None):
    """Run an optimisation; return the simple regrets, from the last initial point on, and the CPU seconds."""
    begun = time.process_time()
    make, usual = PROBLEMS[name]
    problem, evaluations = make().to(torch.float64), evaluations or usual
    low, high = problem.bounds
    unit = torch.stack([torch.zeros_like(low), torch.ones_like(low)])
    X = draw_sobol_samples(unit, n=2 * (len(low) + 1), q=1, seed=seed).squeeze(1)
    torch.manual_seed(seed)

    def evaluated(x):
        return problem(low + (high - low) * x)[:, None]

    y, found = evaluated(X), []
    while True:
        found.append(problem.optimal_value - float(y.max()))
        if len(y) >= evaluations:
            return found, time.process_time() - begun
        acquisition = qLogExpectedImprovement(build(X, y), best_f=y.max())
        x, _ = optimize_acqf(acquisition, bounds=unit, q=1, **ACQUISITION)
        X, y = torch.cat([X, x]), torch.cat([y, evaluated(x)])


def main():
    """Run the chosen optimisations, and print a row for each problem and model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--side", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--evaluations", type=int, help="number of evaluations (default: 30 for Branin, 60 for Hartmann-6)"
    )
    parser.add_argument("--kernel", choices=KERNELS, default="matern52")
    parser.add_argument(
        "--noise", type=float, help="known noise variance, as a fraction of the targets' variance (default: trained)"
    )
    parser.add_argument("--no-prior", action="store_true", help="train agp's lengthscales without a prior")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")

    builds = {
        "agp": partial(agp_model, kernel=chosen.kernel, noise=chosen.noise, prior=not chosen.no_prior),
        "botorch": partial(botorch_model, noise=chosen.noise),
    }
    results = {}
    for name in chosen.problem:
        for side in chosen.side:
            runs = [regrets(name, builds[side], seed, chosen.evaluations) for seed in range(chosen.seeds)]
            final = [found[-1] for found, _ in runs]
            seconds = sum(spent for _, spent in runs)
            each = " ".join(f"{x:.1e}" for x in final)
            print(f"{name:10s} {side:8s} median regret {np.median(final):.2e}  ({each})  {seconds:.0f} s", flush=True)
            results[f"{name} {side}"] = {"regrets": [found for found, _ in runs], "seconds": seconds}
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
