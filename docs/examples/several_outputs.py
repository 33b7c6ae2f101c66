"""Compare models with several outputs (shared, separate, coregionalised, intrinsic), also with missing targets.

usage: python several_outputs.py [FILE.npz] --seeds 5 --steps 500 --num-inducing 64

The file has inputs X [N, D] and targets Y [N, P]. By default, the script uses the handwritten digits of scikit-learn.
The inputs are the 32 pixels of the left half of an image. The targets are the pixel sums over four pairs of rows in the
right half. The script prints a Markdown table of scores, averaged over the seeds. Each seed selects different training
rows, and the scores are computed on all other rows, in standard deviations of the targets. The table also shows the
difference between the NLPD and that of the shared model, with its standard deviation over the seeds.
"""

import argparse

import numpy as np

import agp

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("data", nargs="?")
parser.add_argument("--rows", type=int, default=400, help="number of training rows")
parser.add_argument("--seeds", type=int, default=5)
parser.add_argument("--steps", type=int, default=500)
parser.add_argument("--num-inducing", type=int, default=64)
parser.add_argument("--missing", type=float, nargs="*", default=[0.0, 0.1])
given = parser.parse_args()


def digits():
    """Load inputs [1797, 32] and targets [1797, 4]."""
    from sklearn.datasets import load_digits

    images = load_digits().images
    ink = images[:, :, 4:].reshape(len(images), 4, 2 * 4).sum(axis=-1)
    return images[:, :, :4].reshape(len(images), -1), ink


def models(outputs):
    """Return the values of `outputs=` to compare, by name."""
    fewer = max(1, outputs // 2)
    return {
        "shared": "shared",
        "separate": "separate",
        f"coregionalised, L = {outputs}": "coregionalised",
        f"coregionalised, L = {fewer}": agp.Coregionalised(latents=fewer),
        f"intrinsic, L = {outputs}": "intrinsic",
    }


def measured(X, Y, outputs, missing, seed):
    """Return the NLPD per target and the RMSE of each output [P], on the rows that were not used in training."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(X))
    train, test = order[: given.rows], order[given.rows :]
    seen = Y[train].copy()
    spread = seen.std(axis=0)
    seen[rng.uniform(size=seen.shape) < missing] = np.nan
    model = agp.SVGP.from_data(
        X[train],
        seen,
        outputs=outputs,
        likelihood=agp.Gaussian(missing=True),
        posterior="whitened",
        kernel=agp.RBF(lengthscale=4.0 * X[train].std()),
        num_inducing=given.num_inducing,
        seed=seed,
    )
    model = agp.train(model, X[train], seen, steps=given.steps, seed=seed).model
    nlpd = -np.mean(model.log_density(X[test], Y[test])) / Y.shape[1] - np.mean(np.log(spread))
    return nlpd, np.sqrt(np.mean(((model.predict_mean(X[test]) - Y[test]) / spread) ** 2, axis=0))


X, Y = digits() if given.data is None else (np.load(given.data)[name].astype(np.float64) for name in ("X", "Y"))
print("| targets missing | outputs | NLPD | difference | RMSE of each output |\n|---|---|---|---|---|")
for missing in given.missing:
    first = None
    for name, outputs in models(Y.shape[1]).items():
        found = [measured(X, Y, outputs, missing, seed) for seed in range(given.seeds)]
        nlpd, errors = np.asarray([one[0] for one in found]), np.mean([one[1] for one in found], axis=0)
        first = nlpd if first is None else first
        apart = nlpd - first
        told = f"{apart.mean():+.3f} ± {apart.std():.3f}" if name != "shared" else ""
        print(
            f"| {missing:.0%} | {name} | {nlpd.mean():.3f} | {told} | {', '.join(f'{e:.3f}' for e in errors)} |",
            flush=True,
        )
