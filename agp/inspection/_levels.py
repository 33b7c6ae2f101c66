"""The learned correlations of the levels of categories."""

from typing import Any, NamedTuple

import numpy as np

from agp import tree
from agp.errors import explain_call
from agp.inspection._subject import Host, Subject, host, subject_of
from agp.kernels import ActiveDims, Kernel
from agp.summaries import columns_by_kernel


class LevelCorrelations(NamedTuple):
    """The prior covariances of the functions of the levels of a category, according to a part of the kernel."""

    column: str
    """The column of the table."""
    part: str
    """The path of the part in the model, such as "kernel.parts.1.kernel"."""
    levels: tuple[Any, ...]
    """The values of the column at the L levels, or their codes."""
    correlations: Host
    """The correlations [L, L]."""
    variances: Host
    """The variances [L] of the part, without those of other factors."""


@explain_call
def level_correlations(model: Any, /) -> list[LevelCorrelations]:
    """Compute the correlations of the levels of categories, for each part of the kernel that compares levels.

    These are correlations under the prior, with the trained hyperparameters, between the values of the part for two
    levels of a column, where the other columns are equal. With `agp.kernels.LevelCovariance`, they are the learned
    correlations; all pairs of levels have the same one with `agp.Overlap`, and none with `agp.RandomEffects`.

    Parameters
    ----------
    model
        An `agp.models.Model`, or a fitted `GPRegressor` or `GPClassifier`. For a `GPRMixture`, covariances are averages
        over its settings with the largest weights.

    Returns
    -------
    found
        One entry for each column of each part that takes codes (`Kernel.takes_codes`), in the order of the kernel.
        Parts whose number of levels is not known are left out.

    Raises
    ------
    TypeError
        If the first argument is neither a model nor a fitted estimator.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> import agp
    >>> rng = np.random.default_rng(0)
    >>> code, x = rng.integers(0, 3, 90), rng.uniform(0.0, 6.0, 90)
    >>> y = np.asarray([1.0, 1.0, -1.0])[code] * np.sin(x) + 0.1 * rng.standard_normal(90)
    >>> table = pd.DataFrame({"x": x, "machine": np.asarray(["A", "B", "C"])[code]})
    >>> kernel = agp.RBF().on("x") * agp.kernels.LevelCovariance().on("machine")
    >>> model = agp.GPRegressor(kernel=kernel).fit(table, y)
    >>> (found,) = agp.inspection.level_correlations(model)
    >>> found.column, found.levels
    ('machine', ('A', 'B', 'C'))
    >>> print(pd.DataFrame(found.correlations, found.levels, found.levels).round(1) + 0.0)
         A    B    C
    A  1.0  0.9 -0.9
    B  0.9  1.0 -0.9
    C -0.9 -0.9  1.0
    """
    subject = subject_of(model)
    settings = subject.model._weighted_settings()
    several = [_covariances(one, subject) for _, one in settings]
    found = []
    for (path, column), first in several[0].items():
        same = [(w, one[path, column]) for (w, _), one in zip(settings, several, strict=True) if (path, column) in one]
        total = sum(weight for weight, _ in same)
        K = np.sum([weight / total * K for weight, K in same], axis=0) if total > 0.0 else first
        variances = np.diagonal(K)
        scale = np.sqrt(variances)
        levels = tuple(subject.levels.get(column, range(len(K))))
        source = dict(zip(subject.columns, subject.sources, strict=True))[column]
        found.append(LevelCorrelations(source, path, levels, K / scale / scale[:, None], variances))
    return found


def _covariances(model: Any, subject: Subject) -> dict[tuple[str, str], Host]:
    """Return the covariances [L, L] of the levels of each model column of each part that takes codes."""
    nodes, found = tree.nodes(model, Kernel), {}
    declared = {path for path, part in nodes.items() if part.takes_codes}
    declared |= {
        tree.join_path(path, "kernel") for path, part in nodes.items() if isinstance(part, ActiveDims) and part.codes
    }
    for path, columns in columns_by_kernel(model, subject.columns).items():
        if path not in declared:
            continue
        part = tree.to_backend(nodes[path], "numpy", dtype="float64")
        counts = part.category_levels(len(columns))
        for d, column in enumerate(columns):
            count = len(subject.levels.get(column, ())) or counts.get(d, 0)
            if count:
                rows = np.zeros((count, len(columns)))
                rows[:, d] = np.arange(count)
                found[path, column] = host(part(rows)[0])
    return found
