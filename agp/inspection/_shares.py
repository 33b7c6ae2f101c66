"""How much of the variance of a function over rows each component explains."""

from typing import Any, NamedTuple

import numpy as np

from agp.backend import backend_of
from agp.checks import check_finite
from agp.errors import explain_call
from agp.inspection._components import Groups
from agp.inspection._subject import Host, host, subject_of
from agp.predictors import Components, joint_terms

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

    share_deviation: Host
    """The posterior standard deviations [P, K] of the shares of the variance of the function.

    The variance of the function is uncertain, too, and varies with those of its components. Standard deviations of
    ratios are those of their linear approximations (the delta method).
    """

    @property
    def share(self) -> Host:
        """The variances as shares [P, K] of `total`.

        They add up to 1 up to the covariances of the components over the rows, and of their errors.
        """
        return self.variance / self.total[:, None]


@explain_call
def variance_shares(model: Any, X: Any, /, *, groups: Groups | None = None) -> VarianceShares:
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
    groups
        Components to add up, as in `components`, such as ``{"trend": ["linear", "matern32"]}``. The variance of a sum
        includes the covariances of its components.

    Returns
    -------
    shares
        The variances in squared units of the components (`components`), and as shares of the variance of the function.

    Raises
    ------
    TypeError, ValueError
        For the reasons listed in `components` and `Predictor.sample_components`, or if X has unknown cells.

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
    check_finite("X", inputs)
    rows = np.unique(np.linspace(0, inputs.shape[0] - 1, min(inputs.shape[0], MAX_ROWS)).astype(int)).tolist()
    inputs = backend_of(inputs).xp.stack([inputs[i, :] for i in rows])
    process, (names, columns) = predictor.processes[0], subject.terms(predictor)
    found, shown = [], names
    for weight, one, factor in process.gaussian_parts(predictor.factors[0], MAX_SETTINGS):
        mean, covariance = map(host, joint_terms(one, factor, inputs, len(names)))
        joint = Components(names, mean, np.transpose(covariance, (0, 2, 4, 1, 3)), columns)
        joint = joint if groups is None else joint.sums(groups)
        found.append((weight, *_moments(joint.mean, joint.covariance)))
        shown = joint.names
    w = np.asarray([one[0] for one in found])
    means, variances, totals, shares, errors = (np.stack([one[i] for one in found]) for i in range(1, 6))
    mean, variance = _mixture(w, means, variances)
    total, error = np.tensordot(w, totals, axes=1), _mixture(w, shares, errors)[1]
    return VarianceShares(shown, mean, np.sqrt(variance), total, np.sqrt(error))


def _mixture(w: Host, means: Host, variances: Host) -> tuple[Host, Host]:
    """Return the mean and the variance of a mixture with weights w [S], given those at its settings [S, P, K]."""
    mean = np.tensordot(w, means, axes=1)
    return mean, np.tensordot(w, variances + (means - mean) ** 2, axes=1)


def _moments(mean: Host, covariance: Host) -> tuple[Host, Host, Host, Host, Host]:
    """Return the means and variances [P, K] of variances over n rows, the means [P] of the total, and those of shares.

    The arguments are the means [n, P, K] and covariances [P, n, n, K, K] of the components. With the centring matrix C,
    and S_ij the covariances of f_i ~ N(m_i, S_ii) and f_j over the rows, v_i = f_i^T C f_i / n has the moments

        E[v_i] = (tr(C S_ii) + m_i^T C m_i) / n,
        Cov[v_i, v_j] = (2 tr(C S_ij C S_ji) + 4 m_i^T C S_ij C m_j) / n^2,

    also if f_j is their sum f, of which v is the variance. The share v_i / v is about r + (v_i - r v) / E[v] with
    r = E[v_i] / E[v], so that its variance is (Var[v_i] - 2 r Cov[v_i, v] + r^2 Var[v]) / E[v]^2.
    """
    n, P, K = mean.shape
    m = mean - mean.mean(axis=0)
    S = covariance - covariance.mean(axis=1, keepdims=True)
    S = S - S.mean(axis=2, keepdims=True)
    m = np.concatenate([m, m.sum(axis=2, keepdims=True)], axis=2)
    beside = np.concatenate([S, S.sum(axis=4, keepdims=True)], axis=4)  # [P, n, n, K, K + 1]
    first, second, common = np.empty((P, K + 1)), np.empty((P, K + 1)), np.empty((P, K + 1))
    for p, k in np.ndindex(P, K + 1):
        with_total = beside[p, :, :, k, K] if k < K else beside[p, :, :, :, K].sum(axis=2)
        own = beside[p, :, :, k, k] if k < K else with_total
        at, total = m[:, p, k], m[:, p, K]
        first[p, k] = (np.trace(own) + at @ at) / n
        second[p, k] = (2.0 * np.sum(own * own) + 4.0 * at @ own @ at) / n**2
        common[p, k] = (2.0 * np.sum(with_total * with_total) + 4.0 * at @ with_total @ total) / n**2
    second, whole = np.maximum(second, 0.0), first[:, K:]
    share = first / whole
    error = (second - 2.0 * share * common + share**2 * second[:, K:]) / whole**2
    return first[:, :K], second[:, :K], whole[:, 0], share[:, :K], np.maximum(error[:, :K], 0.0)
