"""Compare deep GPs with one to three layers, in several parameterisations, on a data set with splits.

    python docs/examples/deep_models.py kin40k.npz --out runs --layers 1 2 3 --methods relaxed likelihoodform whitened \
        --num-inducing 100 --seeds 0 1 2 --steps 10000
    python docs/examples/deep_models.py kin40k.npz --out runs --print

Interrupted runs are resumed. The method "solve" has two groups with the given number of inducing inputs each.
"""

import argparse
import dataclasses
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from long_runs import read_split, run, scores

import agp
from agp.backend import to_numpy

SAMPLES = 100
"""Number of samples of the inner layers for computing scores."""
METHODS = {"relaxed": "R", "likelihoodform": "L", "whitened": "W", "solve": "SOLVE"}


def start(data, method, layers, num_inducing, seed):
    """Create the untrained model."""
    choice = {"num_inducing": num_inducing, "seed": seed}
    choice |= {"posterior": "whitened", "num_orthogonal": num_inducing} if method == "solve" else {"posterior": method}
    if layers > 1:
        return agp.DeepGP.from_data(data.X, data.y, layers=layers, **choice)
    kind = agp.SOLVEGP if method == "solve" else agp.SVGP
    return kind.from_data(data.X, data.y, **choice)


def score(model, data):
    """Return the NLPD of the mixture of all samples, the mean NLPD of the samples, and the RMSE of the mean."""
    if isinstance(model, agp.DeepGP):
        model = dataclasses.replace(model, prediction_samples=SAMPLES)
    X, y = data.X_test, data.y_test
    found = {"nlpd": -model.log_density(X, y), "nlpd of samples": -model.mean_log_density(X, y)}
    found["rmse"] = (model.predict_mean(X) - y) ** 2
    found = {name: float(np.mean(to_numpy(x))) for name, x in found.items()}
    return found | {"rmse": found["rmse"] ** 0.5}


def table(folder):
    """Return a Markdown table of the last scores in the folder, averaged over seeds."""
    runs = {}
    for path in sorted(Path(folder).glob("*.json")):
        *setting, _ = path.stem.split("-")
        runs.setdefault(tuple(setting), []).append(scores(folder, path.stem))
    lines = ["| layers | method | M | steps | NLPD | NLPD, mean over samples | RMSE | seconds |", "|" + "---|" * 8]
    for (layers, method, inducing), found in sorted(runs.items()):
        steps = min(max(one) for one in found)
        cells = [_cell([one[steps][name] for one in found]) for name in ("nlpd", "nlpd of samples", "rmse", "seconds")]
        lines.append("| " + " | ".join([layers[1:], METHODS[method], inducing[1:], f"{steps:,}", *cells]) + " |")
    return "\n".join(lines)


def _cell(values):
    mean = np.mean(values)
    if mean > 10.0:
        return f"{mean:,.0f}"
    error = f" ({np.std(values, ddof=1) / len(values) ** 0.5:.3f})" if len(values) > 1 else ""
    return f"{mean:.3f}{error}"


def main():
    """Complete all runs, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", default="diabetes")
    parser.add_argument("--out", required=True, help="folder for the results")
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["relaxed"])
    parser.add_argument("--num-inducing", type=int, default=100)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--every", type=int, default=1_000)
    parser.add_argument("--batch-size", type=int, default=1_000)
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--backend", default="numpy")
    parser.add_argument("--device", default=None)
    parser.add_argument("--print", action="store_true", help="only print the table of the stored results")
    given = parser.parse_args()
    if not given.print:
        host = read_split(given.data, given.split)
        data = SimpleNamespace(
            **{name: agp.to_backend(x, given.backend, device=given.device) for name, x in vars(host).items()}
        )
        settings = {"steps": given.steps, "every": given.every, "batch_size": min(given.batch_size, len(host.X))}
        for seed, layers, method in product(given.seeds, given.layers, given.methods):
            name = f"L{layers}-{method}-M{given.num_inducing}-s{seed}"
            begin = partial(start, data, method, layers, given.num_inducing, seed)
            run(given.out, name, begin, data, partial(score, data=data), seed=seed, **settings)
    print(table(given.out))


if __name__ == "__main__":
    main()
