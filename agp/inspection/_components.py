"""The terms of an additive model at rows of a table."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from agp.errors import explain_call, name_remedy
from agp.inspection._subject import Host, host, subject_of
from agp.predictors import Components

Groups = Mapping[str, str | int | Sequence[str | int]]
"""Names or numbers of components to add up, by the name of the sum."""


@explain_call
def components(model: Any, X: Any, /, *, groups: Groups | None = None) -> Components:
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
    names, columns = subject.terms(predictor)
    found = Components(names, host(found.mean), host(found.covariance), columns)
    return found if groups is None else found.sums(groups)


class ComponentSamples(NamedTuple):
    """Joint samples of the terms of a function at rows of a table."""

    names: tuple[str, ...]
    """The names of the K components."""
    samples: Host
    """The samples [S, N, P, K] of the components of P functions at N rows."""

    def of(self, name: str, /) -> Host:
        """Return the samples [S, N, P] of the component with this name. Raise ValueError if it does not exist."""
        if name not in self.names:
            raise ValueError(
                f"component {name!r} does not exist; {name_remedy(name, self.names, 'the components are')}"
            )
        return self.samples[..., self.names.index(name)]


@explain_call
def sample_components(
    model: Any, X: Any, count: int = 1, /, *, seed: int = 0, groups: Groups | None = None
) -> ComponentSamples:
    """Draw joint samples of the terms of a function whose kernel is a sum, at rows of a table.

    Samples at different rows, and of different terms, depend on each other. Therefore, whatever is computed from each
    sample has an error bar: a difference between two rows, a slope over a decade, or the amplitude of a season.

    Parameters
    ----------
    model
        An `agp.models.Model`, or a fitted `GPRegressor` or `GPClassifier`.
    X
        The rows as a table [N, D]: an array or a data frame. Pass only the rows that you compare, because each setting
        of a mixture takes O(N^3 K^3) operations.
    count
        The number of samples S.
    seed
        The seed for the noise, which is drawn on the host.
    groups
        Components to add up, as in `components`.

    Returns
    -------
    found
        The names of the components, and NumPy arrays of samples, in the units of `components`.

    Raises
    ------
    TypeError, ValueError
        For the reasons listed in `components` and `Predictor.sample_components`, or if X has unknown cells.

    Examples
    --------
    The rise of a trend between two dates, with its standard deviation.

    >>> import numpy as np
    >>> import pandas as pd
    >>> import agp
    >>> t = np.arange(72)
    >>> table = pd.DataFrame({"month": pd.date_range("2018-01-01", periods=72, freq="MS")})
    >>> y = 20.0 + 0.1 * t + np.sin(2.0 * np.pi * t / 12.0)
    >>> kernel = "linear + matern32 + centred(seasonal(365.25))"
    >>> model = agp.GPRegressor(kernel=kernel, hyperparameters="mode").fit(table, y)
    >>> groups = {"trend": ["linear", "matern32", "mean function"]}
    >>> draws = agp.inspection.sample_components(model, table.iloc[[12, 60]], 1000, groups=groups)
    >>> draws.names, draws.samples.shape
    (('trend', 'centred(seasonal(365.25))'), (1000, 2, 1, 2))
    >>> trend = draws.of("trend")[:, :, 0]
    >>> rise = trend[:, 1] - trend[:, 0]
    >>> round(float(rise.mean()), 1), bool(rise.std() < 0.1)
    (4.8, True)
    """
    subject = subject_of(model)
    predictor = subject.predictor()
    samples = host(predictor.sample_components(subject.inputs(X), count, seed=seed))
    names, columns = subject.terms(predictor)
    if groups is None:
        return ComponentSamples(names, samples)
    sums = Components(names, np.eye(len(names)), np.zeros((len(names),) * 3), columns).sums(groups)
    return ComponentSamples(sums.names, samples @ sums.mean)
