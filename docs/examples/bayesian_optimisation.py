"""Compare fully Bayesian optimisation with agp's models and BoTorch's `SaasFullyBayesianSingleTaskGP`.

usage: OMP_NUM_THREADS=1 python bayesian_optimisation.py --results regret.jsonl

By default, 20 seeds of two problems without noise, Branin and Hartmann-6, are run. For each problem, seed and model, a
line is appended to the file, with the simple regret after each evaluation and the CPU seconds. A run that was
interrupted continues where it stopped. Both models start from the same Sobol points, maximise the same acquisition
function with the same settings, and integrate over their hyperparameters again after each evaluation. BoTorch's model
is sampled by NUTS with the settings of its tutorial, by a program that is compiled once for each number of rows.
BoTorch's own function compiles for each data set, which takes most of its time. The script needs the extra ``botorch``
and, for BoTorch's model, JAX and NumPyro.
"""

import argparse
import functools
import json
import os
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.optim import optimize_acqf
from botorch.test_functions import Branin, Hartmann
from botorch.utils.sampling import draw_sobol_samples

import agp
from agp.interop.botorch import BoTorchModel

PROBLEMS = {"branin": (lambda: Branin(negate=True), 5, 15), "hartmann6": (lambda: Hartmann(6, negate=True), 10, 20)}
"""Each problem with the numbers of initial points and of further evaluations."""
ACQUISITION = {"num_restarts": 5, "raw_samples": 128}
WARMUP, SAMPLES, THINNING = 256, 128, 16


def mixture_of_agp(X, y, seed, **options):
    """Return the average of exact GPs that `agp.fit_regression` computes for few rows; the targets have no noise."""
    return BoTorchModel(agp.fit_regression(X.numpy(), y.numpy(), likelihood=agp.Gaussian(0.0), **options).model)


@functools.cache
def chain_of(rows, columns):
    """Return the sampler of `fit_fully_bayesian_model_nuts`, which compiles once for all data of this shape."""
    from botorch.models.fully_bayesian import SaasPyroModel
    from numpyro.infer import MCMC, NUTS

    def sample(X, y, noise):
        given = SaasPyroModel()
        given.train_X_jax, given.train_Y_jax, given.train_Yvar_jax = X, y, noise
        given.ard_num_dims = X.shape[-1]
        given.sample()

    kernel = NUTS(sample, dense_mass=True, max_tree_depth=6)
    return MCMC(kernel, num_warmup=WARMUP, num_samples=SAMPLES, progress_bar=False, jit_model_args=True)


def saas(X, y, seed):
    """Return BoTorch's fully Bayesian model, as in its tutorial."""
    import jax
    from botorch.models.fully_bayesian import SaasFullyBayesianSingleTaskGP
    from botorch.models.transforms import Standardize

    noise = torch.full_like(y, 1e-6)
    model = SaasFullyBayesianSingleTaskGP(X, y, train_Yvar=noise, outcome_transform=Standardize(m=1))
    model.train()
    chain, given = chain_of(*X.shape), model.pyro_model
    chain.run(jax.random.PRNGKey(seed), given.train_X_jax, given.train_Y_jax, given.train_Yvar_jax)
    samples = given.postprocess_mcmc_samples(mcmc_samples=chain.get_samples())
    model.load_mcmc_samples({name: x[::THINNING] for name, x in samples.items()})
    return model.eval()


MODELS = {
    "agp": mixture_of_agp,
    "agp-matern52": functools.partial(mixture_of_agp, kernel=agp.Matern52()),  # without a linear part
    "saas": saas,
}


def run(name, build, seed, evaluations=None):
    """Run an optimisation; return the regrets from the last initial point on, and the CPU seconds of both steps."""
    make, initial, further = PROBLEMS[name]
    problem = make().to(torch.float64)
    low, high = problem.bounds
    unit = torch.stack([torch.zeros_like(low), torch.ones_like(low)])
    X = draw_sobol_samples(unit, n=initial, q=1, seed=seed).squeeze(1)
    torch.manual_seed(seed)

    def evaluated(x):
        return problem(low + (high - low) * x)[:, None]

    y, seconds = evaluated(X), np.zeros(2)
    regrets = [problem.optimal_value - float(y.max())]
    for _ in range(further if evaluations is None else evaluations):
        times = [time.process_time()]
        model = build(X, y, seed)
        times.append(time.process_time())
        acquisition = qLogExpectedImprovement(model, best_f=y.max())
        x, _ = optimize_acqf(acquisition, bounds=unit, q=1, **ACQUISITION)
        times.append(time.process_time())
        seconds += np.diff(times)
        X, y = torch.cat([X, x]), torch.cat([y, evaluated(x)])
        regrets.append(problem.optimal_value - float(y.max()))
    return {"regrets": regrets, "fit_seconds": seconds[0], "acquisition_seconds": seconds[1]}


def table(lines):
    """Return rows of text for each problem and model, with paired differences of the last regrets from BoTorch's."""
    rows = []
    for problem in dict.fromkeys(one["problem"] for one in lines):
        found = {}
        for one in lines:
            if one["problem"] == problem:
                found.setdefault(one["model"], {})[one["seed"]] = one
        for model, by_seed in found.items():
            last = np.asarray([one["regrets"][-1] for one in by_seed.values()])
            fit, climb = (
                np.mean([one[f"{step}_seconds"] for one in by_seed.values()]) for step in ("fit", "acquisition")
            )
            quartiles = " ".join(f"{x:.1e}" for x in np.quantile(last, (0.25, 0.5, 0.75)))
            rows.append(
                f"{problem:10s} {model:13s} {len(last):3d} seeds  regret: mean {last.mean():.2e}, quartiles {quartiles}"
                f"  CPU s: fits {fit:.1f}, acquisition {climb:.1f}"
            )
            seeds = sorted(by_seed.keys() & found.get("saas", {}).keys())
            if model == "saas" or len(seeds) < 2:
                continue
            both = np.asarray([[found[name][seed]["regrets"][-1] for name in (model, "saas")] for seed in seeds])
            for kind, values in (("regret", both), ("log10 regret", np.log10(np.maximum(both, 1e-10)))):
                apart = values[:, 0] - values[:, 1]
                error = apart.std(ddof=1) / len(apart) ** 0.5
                rows.append(f"{'':10s} {model} - saas, {kind}: {apart.mean():+.3f} +- {error:.3f} ({len(apart)} pairs)")
    return rows


def main():
    """Run what is missing in the file, and print a table of all its lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, required=True, help="file with a JSON text in each line")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--seeds", type=int, default=20, help="number of seeds")
    parser.add_argument("--evaluations", type=int, help="number of evaluations after the initial ones")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if "saas" in chosen.models:
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
        import jax

        jax.config.update("jax_enable_x64", True)

    def read():
        texts = chosen.results.read_text(encoding="utf-8").splitlines() if chosen.results.exists() else []
        return [json.loads(text) for text in texts]

    done = {(one["problem"], one["seed"], one["model"]) for one in read()}
    for seed in range(chosen.seeds):
        for problem in chosen.problems:
            for model in chosen.models:
                if (problem, seed, model) not in done:
                    line = {"problem": problem, "seed": seed, "model": model} | run(
                        problem, MODELS[model], seed, chosen.evaluations
                    )
                    with chosen.results.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")
    print("\n".join(table(read())))


if __name__ == "__main__":
    main()
