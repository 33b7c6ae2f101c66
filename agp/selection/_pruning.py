"""The removal of columns from the best kernel, if the rest explains the targets as well."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from agp import tree
from agp.kernels import (
    ActiveDims,
    Constant,
    Kernel,
    Overlap,
    Product,
    RandomEffects,
    Sum,
    Warped,
    pair_rows,
    variance_shares,
)
from agp.priors import log_prior
from agp.random import generator
from agp.selection._climb import Climber, on_rows
from agp.selection._given import KERNELS, Data, Plan
from agp.selection._trial import Trial

IRRELEVANT, FEW_ROWS_IRRELEVANT = 0.01, 0.03
"""Columns may be removed if at most this share of the kernel's prior variance depends on them, the second number if
lengthscales have priors."""
ALLOWED = 0.1
"""The fall of the log evidence for each removed column, in nats, that still counts as none."""
HOPELESS = 3.0
"""No training follows if the evidence falls by more nats than this for each removed column."""
STEPS, FEW_ROWS_STEPS = 4, 20
"""The maximum numbers of evaluations after columns were removed, the second one if lengthscales have priors."""
LEAST_RATIO = 0.99
"""The least noise variance after columns were removed, relative to the one before."""
TRIES = 3
"""The maximum number of attempts."""
PAIRS = 600
"""The approximate number of pairs of rows for the shares of columns."""
MAX_WORK = 3e9
"""All columns are kept if the pairs times the square of the number of columns are more, which takes half a minute."""


def prune(plan: Plan, climb: Climber, best: Trial) -> Trial | None:
    """Return the best candidate without its least relevant columns, or None if all columns are needed.

    Columns are removed at once. If the evidence falls, bisection finds how many of the least relevant can be removed.

    Many columns that do not matter take part in fitting the noise, so the density of left-out rows favours them.
    The criterion is therefore the evidence, without the priors, whose number depends on that of the columns. If
    lengthscales have priors, there is only one attempt, because the evidence also rises by chance if some are removed;
    both must rise.
    """
    model = best.model
    if plan.limits or tree.followers(model.kernel):  # entries have the numbers of all columns
        return None
    sample = Data(model.X, model.y, model.weights, None if model.noise is None else model.noise[:, 0])
    few, width = sample.has_few_rows, sample.X.shape[1]
    shares = relevances(best.model.kernel, sample.X)
    low = FEW_ROWS_IRRELEVANT if few else IRRELEVANT
    order = [int(d) for d in np.argsort(shares, kind="stable") if shares[d] < low]
    found, least, most = None, 0, len(order)
    count = most
    for _ in range(1 if few else TRIES):
        if not least < count < width:
            break
        kept = tuple(d for d in range(width) if d not in order[:count])
        one = _without(plan, sample, climb, best, kept, train=few)
        if _is_enough(one, best, count, few=few):
            found, least = one, count
        else:
            most = count
        count = (least + most) // 2
    return found


def _is_enough(one: Trial, best: Trial, count: int, *, few: bool) -> bool:
    """Whether a candidate without so many columns is as good as the best one.

    If columns only fitted the noise, the noise variance rises. If it falls, the other columns are fitted too closely.
    """
    if float(one.model.likelihood.noise_variance) < LEAST_RATIO * float(best.model.likelihood.noise_variance):
        return False
    if few:
        return one.scores.log_density > best.scores.log_density and _gain(one, best) > 0.0
    return _gain(one, best) > -ALLOWED * count


def _without(plan: Plan, sample: Data, climb: Climber, best: Trial, kept: tuple[int, ...], *, train: bool) -> Trial:
    """Return a candidate that depends on these columns alone.

    It keeps the hyperparameters if they will do or if it is hopeless, unless `train` is true.
    """
    narrow = narrow_kernel(best.model.kernel, kept, sample.X.shape[1])
    assert narrow is not None  # a column is kept
    kernel = narrow.on(kept)
    model = on_rows(best.model, sample, plan.parts(kernel, sample)["priors"], kernel)
    if train:
        return climb("prune", best.kernel, model, FEW_ROWS_STEPS)
    one = climb("prune", best.kernel, model, 1)
    each = _gain(one, best) / (sample.X.shape[1] - len(kept))
    return climb("prune", best.kernel, one.model, STEPS) if -HOPELESS < each <= -ALLOWED else one


def _gain(one: Trial, other: Trial) -> float:
    """Return the difference between the log evidences of two candidates for the same rows, without priors, in nats."""
    a, b = (
        Data(x.model.X, x.model.y, x.model.weights).observations * x.scores.evidence
        - (float(log_prior(x.model)[0]) if x.model.priors else 0.0)
        for x in (one, other)
    )
    return a - b


def relevances(kernel: Kernel, X: Any) -> npt.NDArray[np.float64]:
    """Return the share [D] of the prior variance of differences between rows of X [N, D] due to each column.

    See `agp.inspection.kernel_relevance`. If the function is constant, there is one row, or there are too many columns
    (`MAX_WORK`), all shares are 1: no column is removed.
    """
    if X.shape[0] == 1 or min(PAIRS, X.shape[0] * (X.shape[0] - 1)) * X.shape[1] ** 2 > MAX_WORK:
        return np.ones(X.shape[1])
    pairs = pair_rows(X, PAIRS, generator(0, 36))
    shares = variance_shares(kernel, *pairs, ([d] for d in range(X.shape[1])))
    return np.ones(X.shape[1]) if shares is None else np.asarray(shares)


def narrow_kernel(kernel: Kernel, kept: Sequence[int], width: int) -> Kernel | None:
    """Return a kernel of `width` columns, which "auto" compares, as a kernel of some of these columns alone.

    Other columns are taken to be constant. Return None if the kernel depends on none of the columns that are kept.
    """
    if isinstance(kernel, Sum):
        parts = [part for part in (narrow_kernel(one, kept, width) for one in kernel.parts) if part is not None]
        return Sum(tuple(parts)) if len(parts) > 1 else next(iter(parts), None)
    if isinstance(kernel, Product):
        return _narrow_product(kernel, kept, width)
    if isinstance(kernel, ActiveDims):
        inside = [i for i, column in enumerate(kernel.columns) if column in kept]
        narrow = narrow_kernel(kernel.kernel, inside, len(kernel.columns)) if inside else None
        return None if narrow is None else narrow.on(kept.index(kernel.columns[i]) for i in inside)  # type: ignore[arg-type]
    if isinstance(kernel, Warped):
        narrow = narrow_kernel(kernel.kernel, kept, width)
        warp = [x[[*kept]] for x in (kernel.warp.centre, kernel.warp.scale)]
        return None if narrow is None else Warped(narrow, *warp)
    leaves = tree.leaves(kernel).items()
    new: dict[str, Any] = {name: x[[*kept]] for name, x in leaves if np.shape(x) == (width,)}
    if isinstance(kernel, Overlap | RandomEffects) and not isinstance(kernel.levels, int):
        new["levels"] = tuple(kernel.levels[d] for d in kept)
    return dataclasses.replace(kernel, **new)  # type: ignore[arg-type]


def _narrow_product(kernel: Product, kept: Sequence[int], width: int) -> Kernel | None:
    """Return a product of which parts that depend on no column are constant."""
    pairs = [(part, narrow_kernel(part, kept, width)) for part in kernel.parts]
    found = [narrow for _, narrow in pairs if narrow is not None]
    if not found:
        return None
    for part, narrow in pairs:
        base = part.kernel if isinstance(part, ActiveDims) else part
        if narrow is None and isinstance(base, tuple(KERNELS.values())):
            found.insert(0, Constant(variance=base.variance, variance_unit=base.variance_unit))
    return Product(tuple(found)) if len(found) > 1 else found[0]
