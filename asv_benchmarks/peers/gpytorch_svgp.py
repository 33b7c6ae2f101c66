"""Train GPyTorch's whitened SVGP as in a training run of agp, with the same start, minibatches and rates."""

import json
import time
from typing import Any

import gpytorch
import torch
from gpytorch_model import WhitenedSVGP
from training import Training, arguments, scores

TEST_ROWS = 2000
"""Number of rows per block of predictions."""


def fit(t: Training, model: WhitenedSVGP) -> dict[str, Any]:
    """Train the model; return the seconds of all steps and the bounds of the minibatches."""
    X, y = torch.from_numpy(t.X), torch.from_numpy(t.y)
    model.train()
    objective = gpytorch.mlls.VariationalELBO(model.likelihood, model, num_data=len(y))
    Z = model.variational_strategy.inducing_points
    others = [x for x in model.parameters() if x is not Z]
    adam = torch.optim.Adam(
        [{"params": others, "lr": t.rate}, {"params": [Z], "lr": 0.0, "betas": (t.Z_beta1, 0.999)}], eps=t.epsilon
    )
    rows_of = [torch.from_numpy(rows).long() for rows in t.batches]
    bounds, began = [], time.perf_counter()
    for step, rows in enumerate(rows_of):
        adam.param_groups[1]["lr"] = t.Z_rate if step >= t.frozen else 0.0
        adam.zero_grad()
        # the total instead of the mean over the rows, so that Adam's epsilon has the same effect on both sides
        loss = -len(y) * objective(model(X[rows]), y[rows])
        loss.backward()
        adam.step()
        bounds.append(-float(loss.detach()))
    return {"seconds": time.perf_counter() - began, "bounds": bounds}


@torch.no_grad()
def predict(t: Training, model: WhitenedSVGP) -> dict[str, float]:
    """Compute the scores of the test rows."""
    model.eval()
    means, variances = [], []
    for X in torch.split(torch.from_numpy(t.X_test), TEST_ROWS):
        f = model(X)
        means.append(f.mean)
        variances.append(f.variance if t.binary else f.variance + model.likelihood.noise)
    mean, variance = torch.cat(means), torch.cat(variances)
    if t.binary:
        mean = torch.special.ndtr(mean / torch.sqrt(1.0 + variance))
    return scores(mean.numpy(), variance.numpy(), t.y_test, binary=t.binary)


def main() -> None:
    """Run the command."""
    a = arguments(__doc__)
    t = Training.read(a.training)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    model = WhitenedSVGP(t.Z, t.lengthscale, t.variance, t.noise, jitter=None, binary=t.binary)
    fitted = fit(t, model)
    kernel = model.covar_module
    facts = {
        "library": f"gpytorch {gpytorch.__version__}",
        **predict(t, model),
        "ms_per_step": 1e3 * fitted["seconds"] / len(t.batches),
        "steps": len(t.batches),
        "bounds": fitted["bounds"][:: max(1, len(t.batches) // 50)],
        "lengthscale": kernel.base_kernel.lengthscale.detach().ravel().tolist(),
        "variance": float(kernel.outputscale.detach()),
        "noise": None if t.binary else float(model.likelihood.noise.detach()),
    }
    text = json.dumps(facts)
    print(text)
    if a.out:
        a.out.write_text(text)


if __name__ == "__main__":
    main()
