"""Compare SOLVE-GP with two groups of M inducing inputs with sparse GPs with M and 2 M inducing inputs.

usage: python solve_gp.py --data FILE.npz --split 0 --num-inducing 256 --steps 2000
"""

import argparse
import time

import numpy as np
from long_runs import read_split

import agp

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", default="diabetes")
parser.add_argument("--split", type=int, default=0)
parser.add_argument("--num-inducing", type=int, default=16)
parser.add_argument("--steps", type=int, default=50)
given = parser.parse_args()

data = read_split(given.data, given.split)
M, batch_size = given.num_inducing, min(1000, len(data.X))
common = {"kernel": agp.Matern32(lengthscale=1.0), "posterior": agp.posteriors.Whitened, "seed": given.split}
common["mean_function"] = agp.ZeroMean()
models = {
    "SVGP(M)": agp.SVGP.from_data(data.X, data.y, num_inducing=M, **common),
    "SVGP(2M)": agp.SVGP.from_data(data.X, data.y, num_inducing=2 * M, **common),
    "SOLVE(M + M)": agp.SOLVEGP.from_data(data.X, data.y, num_inducing=M, num_orthogonal=M, **common),
}
for name, start in models.items():
    began = time.process_time()
    plain = agp.recipe(start, given.steps, rate=0.01, fall=1.0, natural=None)
    settings = {"steps": given.steps, "batch_size": batch_size, "seed": given.split, "updates": plain}
    model = agp.train(start, data.X, data.y, **settings).model
    cost = 1e3 * (time.process_time() - began) / given.steps
    density = np.mean(model.log_density(data.X_test, data.y_test))
    error = np.sqrt(np.mean((model.predict_mean(data.X_test) - data.y_test) ** 2))
    print(f"{name:12s} log density {density:8.4f}  RMSE {error:7.4f}  {cost:6.1f} ms of CPU time per step")
