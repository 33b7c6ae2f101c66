"""Few rows: exact GPs whose hyperparameters are integrated over instead of chosen."""

import dataclasses
import math
from typing import Any

import numpy as np

from agp import tree
from agp.backend import backend_of
from agp.kernels import RBF, Constant, Kernel, Linear, Matern52
from agp.models import GPR
from agp.priors import as_priors, check_priors
from agp.selection._climb import exact_gp
from agp.selection._given import Data, Plan, finite_average
from agp.selection._trial import Candidate, Found
from agp.training import Progress, columns_to_tie, fit, integrate

FEW_ROWS, FEW_PARAMETERS, MOST_ROWS = 200, 30, 1000
"""The maximum numbers of rows and of hyperparameters for which "auto" integrates, and the maximum number of rows for
"mixture"."""
ONE_KERNEL_ROWS = 100
"""Up to this number of rows, only one kernel is used."""
CONSTANT_SHARE = 0.1
"""The prior probability that the function is constant, relative to that of another kernel."""
LEAST_SECONDS = 2.0
"""The minimum time limit for which "auto" integrates."""


def takes_mixture(plan: Plan, data: Data, hyperparameters: str, method: str, limit: float | None) -> bool:
    """Whether to integrate over the hyperparameters. Raise ValueError if this was asked for but is not possible."""
    rows, lazy = data.X.shape[0], backend_of(data.X).is_lazy
    if hyperparameters == "mixture" and (lazy or rows > MOST_ROWS):
        where = "in an array that is not in memory" if lazy else f"{rows:,} rows"
        msg = (
            f"hyperparameters is 'mixture', which is for at most {MOST_ROWS:,} rows in memory, not {where}; use 'auto'."
        )
        raise ValueError(msg)
    if hyperparameters != "auto":
        return hyperparameters == "mixture"
    few = not lazy and method in ("auto", "gpr") and 1 < rows <= FEW_ROWS and (limit is None or limit >= LEAST_SECONDS)
    return few and _parameters(plan, data) <= FEW_PARAMETERS


def _parameters(plan: Plan, data: Data) -> int:
    """Return the number of hyperparameters of the first kernel."""
    if isinstance(plan.kernel, str):
        columns, tied = data.X.shape[1], len(columns_to_tie(data.at().X))
        return columns - max(tied - 1, 0) + 3
    kernel = exact_gp(data.at(), kernel=plan.kernel, likelihood=plan.likelihood).kernel
    return 1 + sum(math.prod(x.shape) for x in tree.leaves(kernel, "parameter").values())


def kernels_to_mix(plan: Plan, data: Data) -> dict[str, Kernel]:
    """Return the kernels to average, by name."""
    if not isinstance(plan.kernel, str):
        return plan.kernels()
    X = data.repeat_rows()[0]
    kinds = {"matern52": Matern52()} if X.shape[0] <= ONE_KERNEL_ROWS else {"matern52": Matern52(), "rbf": RBF()}
    found: dict[str, Kernel] = {f"{name} + linear": kernel + Linear.centred(X) for name, kernel in kinds.items()}
    return found | {"constant": Constant()}


def mix(plan: Plan, data: Data, watch: Any) -> tuple[Found, list[Candidate], bool]:
    """Integrate over the hyperparameters of exact GPs of these rows.

    Return the result, its candidates, and whether the function is certainly not constant.
    """
    kernels = kernels_to_mix(plan, data)
    models = [_start(plan, kernel, data) for kernel in kernels.values()]
    found = integrate(models, shares=[CONSTANT_SHARE if name == "constant" else 1.0 for name in kernels])
    density = finite_average(found.model.leave_one_out(), data.weights)
    rows, count = data.X.shape[0], data.observations
    evidence = dict(zip(kernels, found.by_kernel, strict=True))
    candidates = [Candidate(name, rows, value / count, density) for name, value in evidence.items()]
    watch(Progress(0, found.model.mode, {"bound": np.asarray(found.log_evidence)}, 0.0))
    best = max(evidence, key=lambda name: evidence[name])
    certain = "constant" in kernels and not any(isinstance(one.kernel, Constant) for one in found.model.models)
    kind = f"averaged over {found.model.shares.shape[0]} settings of the hyperparameters, given {rows} rows"
    return Found(found.model, best, kind, found.log_evidence, data, density, held_out=False), candidates, certain


def _start(plan: Plan, kernel: Kernel, data: Data) -> GPR:
    """Return the untrained model, or a trained one if the coefficients of its mean function are not integrated over."""
    parts = plan.parts(kernel, data)
    priors = None if isinstance(plan.priors, str) else parts["priors"]
    model = exact_gp(data, kernel=kernel, **parts | {"priors": None})
    if priors and isinstance(plan.kernel, str) and isinstance(kernel, Constant):  # it has few of the parameters
        names = [*tree.leaves(model, "parameter")]
        priors = {at: prior for at, prior in priors.items() if any(tree.matches(name, at) for name in names)}
    model = dataclasses.replace(model, priors=as_priors(priors))
    check_priors(model)
    known = model.mean_function.is_constant or not tree.leaves(model.mean_function, "parameter")
    return model if known else fit(model, data.X, data.y).model
