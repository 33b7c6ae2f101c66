"""The terms of an additive model at rows of a table."""

from collections.abc import Mapping, Sequence
from typing import Any

from agp.errors import explain_call
from agp.inspection._subject import host, subject_of
from agp.predictors import Components


@explain_call
def components(
    model: Any, X: Any, /, *, groups: Mapping[str, str | int | Sequence[str | int]] | None = None
) -> Components:
    """Compute the posterior of each term of a function whose kernel is a sum, at rows of a table.

    For example, the kernel ``"matern32 + seasonal(365.25) * rbf"`` of a series has two terms, trend and season, and
    `agp.kernels.additive` has one for each column. The components add up to the function: their means to its mean, and
    their covariances to its variance. The constant of the mean function is a component of its own.

    Parameters
    ----------
    model
        An `agp.models.Model`, or a fitted `GPRegressor` or `GPClassifier`.
    X
        The rows as a table [N, D]: an array or a data frame.
    groups
        Components to add up, as for `Components.sums`, such as ``{"trend": ["linear", "matern32"]}``.

    Returns
    -------
    components
        Components as NumPy arrays: means [N, P, K] and covariances [N, P, K, K] of K components of P functions. Names
        and columns are those of the table. Components of a regression are in the units of the targets. If the targets
        are transformed (`transform_`), or the likelihood has a link, as for counts and classes, they are components of
        the latent function, without the offset of exposures: with a logarithm, their exponentials are factors of the
        median.

    Raises
    ------
    TypeError, ValueError
        If the arguments are not a model and a table, or for the reasons listed in `Predictor.components` and
        `Components.sums`.

    Examples
    --------
    >>> import numpy as np
    >>> import agp
    >>> from agp.estimators import GPRegressor
    >>> x = np.linspace(0.0, 10.0, 80)[:, None]
    >>> y = 0.5 * x[:, 0] + np.sin(2.0 * np.pi * x[:, 0])
    >>> model = GPRegressor(kernel="linear + seasonal(1)", random_state=0).fit(x, y)
    >>> found = agp.inspection.components(model, x, groups={"trend": ["linear", "mean function"]})
    >>> found.names
    ('trend', 'seasonal(1)')
    >>> bool(np.allclose(found.mean.sum(axis=-1)[:, 0], model.predict(x)))
    True
    """
    subject = subject_of(model)
    predictor = subject.predictor()
    found = predictor.components(subject.inputs(X))
    sources = subject.sources
    terms = predictor.processes[0].terms(sources)
    columns = tuple(tuple(dict.fromkeys(sources[d] for d in term.columns)) for term in terms)
    names = tuple(term.text for term in terms)
    found = Components(names, host(found.mean), host(found.covariance), columns)
    return found if groups is None else found.sums(groups)
