"""Train agp's W-SVGP, with NumPy and closed-form gradients, as specified by a file from `dump_training.py`."""

import json

import numpy as np
from training import Training, arguments, scores

import agp
from agp.training import Batches, recipe, train


def main() -> None:
    """Run the command."""
    a = arguments(__doc__)
    t = Training.read(a.training)
    steps, size = t.batches.shape
    kernel = agp.RBF(t.variance, t.lengthscale)
    likelihood = agp.Bernoulli() if t.binary else agp.Gaussian(t.noise)
    parts = {"kernel": kernel, "likelihood": likelihood, "mean_function": agp.ZeroMean(), "Z": t.Z}
    model = agp.SVGP.from_data(t.X, t.y, posterior=agp.posteriors.Whitened, **parts)
    last = steps - 1
    expected = Batches(t.X, t.y[:, None], size, t.seed).indices(last) if size < len(t.X) else t.batches[last]
    if not np.array_equal(expected, t.batches[last]):
        msg = "the minibatches of the training run differ from those of its seed; repeat dump_training.py."
        raise SystemExit(msg)
    updates = recipe(model, steps, rate=t.rate, fall=1.0, natural=None)  # as in the other library
    result = train(model, t.X, t.y, steps=steps, batch_size=size, seed=t.seed, updates=updates)
    prediction = result.model.predict(t.X_test, observed=True)
    kernel, likelihood = result.model.process.kernel, result.model.likelihood
    facts = {
        "library": f"agp {agp.__version__}",
        **scores(prediction.mean[:, 0], prediction.variance[:, 0], t.y_test, binary=t.binary),
        "ms_per_step": 1e3 * result.seconds / steps,
        "steps": steps,
        "bounds": result.trace["bound"][:: max(1, steps // 50)],
        "lengthscale": kernel.lengthscale.tolist(),
        "variance": float(kernel.variance),
        "noise": None if t.binary else float(likelihood.noise_variance),
        "repairs": result.repairs.total(),
    }
    text = json.dumps(facts)
    print(text)
    if a.out:
        a.out.write_text(text)


if __name__ == "__main__":
    main()
