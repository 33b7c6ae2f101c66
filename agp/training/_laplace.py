"""The Laplace approximation: a normal distribution over the hyperparameters from the curvature of the bound."""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from agp import tree
from agp.actions import Actions
from agp.backend import Array
from agp.gradient import Unflatten
from agp.inducing import Inducing, some_rows
from agp.posteriors import NaturalSteps, SiteHolder, start_of
from agp.processes import Sparse
from agp.training._begun import check_training
from agp.training._lbfgs import why_not_lbfgs
from agp.training._objective import Objective, closed_form_leaves, inner_updates, moves_posteriors
from agp.updates import NaturalGradient, Repeat, leaves_of

STEP = 1e-4
"""The step of the finite differences, in raw coordinates."""
MAX_INDUCING = 300
"""The maximum number of inducing inputs; it is small because each evaluation solves for q(u)."""
PRIOR_STD = 3.0
"""The prior standard deviation of the log hyperparameters, which corresponds to a factor of 20."""
RATE, STEPS, ROUNDS = 0.8, 8, 5
"""For non-quadratic likelihoods: the rate and the number of natural-gradient steps of q(u) per evaluation, and the
number of initial evaluations, which bring q(u) to its optimum."""


class Laplace(NamedTuple):
    """A normal distribution over the hyperparameters in raw coordinates."""

    unflatten: Unflatten[Any]
    mean: npt.NDArray[np.float64]
    """The hyperparameters [n] of the model."""
    covariance: npt.NDArray[np.float64]
    """The covariance [n, n]."""


def laplace(
    model: Any,
    X: Array,
    y: Array,
    /,
    *,
    weights: Array | None = None,
    offset: Array | None = None,
    noise: Array | None = None,
) -> Laplace:
    """Compute the Laplace approximation to the posterior of the kernel, likelihood and mean function parameters.

    X [N, D] and y [N, K] are the training data; the keywords are those of `agp.models.Model.bound`. The objective is
    the bound at the optimal q(u) plus the log priors, as a function of the logarithms of positive parameters. The
    precision is the negative Hessian of the objective, computed by finite differences of the closed-form gradient with
    one evaluation per parameter. Inducing inputs are fixed, and at most 300 are used. The logarithms have a weak normal
    prior with standard deviation 3, which corresponds to a factor of 20. This prior keeps the covariance finite if the
    bound is flat or not at a maximum in some direction. The computation requires float64.

    Raises TypeError if the optimal q(u) cannot be computed or the bound uses random draws, ValueError if the data do
    not fit the model, and FloatingPointError if the bound or its gradient is not finite.

    Source: MacKay, "A practical Bayesian framework for backpropagation networks", Neural Computation 1992.
    """
    data = check_training(model, X, y, weights, offset, noise)
    model = _with_solvable_posteriors(model)
    inner = inner_updates(model, None)
    if not model.likelihood.quadratic and NaturalGradient.stepping(model):
        inner = [*inner, Repeat(NaturalGradient(RATE), STEPS)]
    if why := why_not_lbfgs(model, X.shape[0], inner):
        raise TypeError(why)
    if moves_posteriors(model, inner):
        msg = f"laplace needs natural gradients, but {type(model).__name__} does not support them; use another model."
        raise TypeError(msg)
    fixed = leaves_of(tree.nodes(model, Inducing) | tree.nodes(model, Actions)) | closed_form_leaves(model, inner)
    fixed |= tree.zero_leaves(model)
    moving = [name for name in tree.leaves(model, "parameter") if name not in fixed]
    objective = Objective(model, data, moving, inner, "closed-form", None)
    mean = objective.vector_of(model)
    for _ in range(1 if model.likelihood.quadratic else ROUNDS):
        objective.settled = _point(objective, mean).model
    from scipy.optimize import approx_fprime

    slopes: Any = approx_fprime(mean, lambda vector: _point(objective, vector).slope, STEP)
    hessian = objective.count * slopes
    # a raw value r with softplus(r) = v has dr / dlog v = v / (1 - exp(-v))
    values = np.logaddexp(mean, 0.0)
    scale = np.where(objective.positive, values / -np.expm1(-values), 1.0)
    curvatures, directions = np.linalg.eigh(0.5 * scale[:, None] * (hessian + hessian.T) * scale)
    root = scale[:, None] * directions / np.sqrt(np.maximum(curvatures, 0.0) + PRIOR_STD**-2)
    return Laplace(objective.unflatten, mean, root @ root.T)


def _with_solvable_posteriors(model: Any) -> Any:
    """Limit the number of inducing inputs, and replace each q(u) that has no natural gradients by a `Whitened` q(u)."""
    new = {}
    for path, node in tree.nodes(model, Sparse).items():
        inducing, many = node.inducing, node.inducing.count > MAX_INDUCING
        if many:
            found = tree.leaves(inducing)
            fewer = {name: some_rows(found[name], MAX_INDUCING, 0) for name in inducing.locations}
            inducing = tree.with_leaves(inducing, fewer)
        if many or not isinstance(node.posterior, (NaturalSteps, SiteHolder)):
            prior = replace(node, inducing=inducing)
            new[path] = Sparse.of(prior, start_of("whitened")(prior.inducing_covariance()[0], node.outputs))
    return tree.replace(model, new)


def _point(objective: Objective, vector: npt.NDArray[np.float64]) -> Any:
    if (point := objective(vector)) is None:
        reasons = " and ".join(objective.rejections)
        msg = f"{reasons} near the hyperparameters of the model."
        raise FloatingPointError(msg)
    return point
