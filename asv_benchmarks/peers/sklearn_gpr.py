"""A baseline: scikit-learn's exact GP regression, on so many training rows as it can take."""

import time

import numpy as np
import sklearn
from real_data import arguments, datasets, keep
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from training import scores

from agp.data import Dataset


def baseline(data: Dataset, rows: int, restarts: int) -> dict[str, object]:
    """Fit on a draw of the training rows; scores of all test rows."""
    chosen = np.arange(len(data.X))
    if len(data.X) > rows:
        chosen = np.random.default_rng(0).choice(len(data.X), rows, replace=False)
    kernel = ConstantKernel() * RBF(np.ones(data.X.shape[1])) + WhiteKernel()
    model = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=restarts, random_state=0)
    began = time.perf_counter()
    model.fit(data.X[chosen], data.y[chosen, 0])
    fitted = time.perf_counter() - began
    mean, deviation = model.predict(data.X_test, return_std=True)
    return {
        "library": f"scikit-learn {sklearn.__version__}",
        "rows": len(chosen),
        "columns": data.X.shape[1],
        "test_rows": len(data.X_test),
        "restarts": restarts,
        **scores(mean, deviation**2, data.y_test[:, 0], binary=False),
        "seconds": fitted,
        "seconds_prediction": time.perf_counter() - began - fitted,
        "kernel": str(model.kernel_),
        "log_marginal_likelihood": float(model.log_marginal_likelihood_value_),
    }


def main() -> None:
    """The command."""
    parser = arguments(__doc__)
    parser.add_argument("--rows", type=int, default=1000, help="training rows at most, drawn with seed 0")
    parser.add_argument("--restarts", type=int, default=2, help="starts of the optimiser after the first")
    a = parser.parse_args()
    for name, data, left_out in datasets(a):
        keep(a.out, name, {"split": a.split, "left_out": left_out, **baseline(data, a.rows, a.restarts)})


if __name__ == "__main__":
    main()
