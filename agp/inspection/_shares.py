"""How much of the variance of a function over rows each component explains."""

from typing import Any, NamedTuple

import numpy as np

from agp.backend import backend_of
from agp.errors import explain_call
from agp.inspection._subject import Host, host, subject_of
from agp.predictors import joint_terms

MAX_ROWS = 200
"""The maximum number of rows; of more, equally spaced ones are used."""
MAX_SETTINGS = 64
"""The maximum number of settings of a mixture; more are represented by this number."""


class VarianceShares(NamedTuple):
    """The variances of components over rows, with their posterior standard deviations."""

    names: tuple[str, ...]
    """The names of the K components."""
    variance: Host
    """The posterior means [P, K] of the variances over the rows."""
    deviation: Host
    """Their posterior standard deviations [P, K]."""
    total: Host
    """The posterior means [P] of the variance of the whole function over the rows."""

    @property
    def share(self) -> Host:
        """The variances as shares [P, K] of `total`.

        They add up to 1 up to the covariances of the components over the rows, and of their errors.
        """
        return self.variance / self.total[:, None]

    @property
    def share_deviation(self) -> Host:
        """The standard deviations of the variances as shares [P, K] of `total`, which is taken as known."""
        return self.deviation / self.total[:, None]


@explain_call
def variance_shares(model: Any, X: Any, /) -> VarianceShares:
    """Compute how much of the variance of a function over rows of a table each component explains, with error bars.

    The variance of a component over the rows, ``mean((f_i(x) - mean(f_i(x)))^2)``, is uncertain because f_i is. Its
    mean and standard deviation follow from the joint posterior of the component at all rows, in closed form, and for a
    mixture from those at its settings, of which 64 represent a larger number. With N rows of data, n rows of X and K
    components, each setting takes O(N^3 + N^2 n K + N n^2 K^2) operations; pass fewer rows if that is slow.

    Parameters
    ----------
    model
        An `agp.models.Model`, or a fitted `GPRegressor` or `GPClassifier`.
    X
        The rows as a table [N, D], such as the training rows. Of more than 200 rows, 200 equally spaced ones are used.

    Returns
    -------
    shares
        The variances in squared units of the components (`components`), and as shares of the variance of the function.

    Raises
    ------
    TypeError, ValueError
        For the reasons listed in `components` and `Predictor.sample_components`.

    Examples
    --------
    >>> import numpy as np
    >>> import agp
    >>> X = np.random.default_rng(0).uniform(0.0, 3.0, (60, 2))
    >>> y = np.sin(2.0 * X[:, :1]) + 0.2 * X[:, 1:]
    >>> model = agp.GPR.from_data(X, y, kernel=agp.kernels.additive(agp.RBF(), (0, 1)))
    >>> shares = agp.inspection.variance_shares(agp.fit(model, X, y).model, X)
    >>> shares.names[1:3], shares.share[0, 1:3].round(1).tolist()
    (('centred(rbf).on(input 1)', 'centred(rbf).on(input 2)'), [0.9, 0.1])
    """
    subject = subject_of(model)
    predictor, inputs = subject.predictor(), subject.inputs(X)
    rows = np.unique(np.linspace(0, inputs.shape[0] - 1, min(inputs.shape[0], MAX_ROWS)).astype(int)).tolist()
    xp = backend_of(inputs).xp
    inputs = xp.stack([inputs[i, :] for i in rows])
    process, names = predictor.processes[0], tuple(term.text for term in predictor.processes[0].terms(subject.sources))
    found = [
        (weight, *_moments(*map(host, joint_terms(one, factor, inputs, len(names)))))
        for weight, one, factor in process.gaussian_parts(predictor.factors[0], MAX_SETTINGS)
    ]
    w = np.asarray([one[0] for one in found])
    means, variances, totals = (np.stack([one[i] for one in found]) for i in (1, 2, 3))
    mean = np.tensordot(w, means, axes=1)
    variance = np.tensordot(w, variances + (means - mean) ** 2, axes=1)
    return VarianceShares(names, mean, np.sqrt(variance), np.tensordot(w, totals, axes=1))


def _moments(mean: Host, covariance: Host) -> tuple[Host, Host, Host]:
    """Return the means and variances [P, K] of variances over n rows, and the means [P] of that of the sum.

    For f ~ N(m, S), the variance f^T C f / n with the centring matrix C has the mean (tr(CS) + m^T C m) / n and the
    variance (2 tr(CSCS) + 4 m^T CSC m) / n^2.
    """
    n, P, K = mean.shape
    m = mean - mean.mean(axis=0)
    S = covariance - covariance.mean(axis=2, keepdims=True)
    S = S - S.mean(axis=4, keepdims=True)
    first, second = np.empty((P, K)), np.empty((P, K))
    for p, k in np.ndindex(P, K):
        own, at = S[p, k, :, k, :], m[:, p, k]
        first[p, k] = (np.trace(own) + at @ at) / n
        second[p, k] = (2.0 * np.sum(own * own) + 4.0 * at @ own @ at) / n**2
    total = (np.einsum("pinjn->p", S) + np.sum(m.sum(axis=2) ** 2, axis=0)) / n
    return first, np.maximum(second, 0.0), total
