"""The evidence of Gaussian processes in which each row depends on few neighbours, and on inducing inputs.

With the conditional distributions of `agp.bounds._near_conditional`, e_n = b_n^T (y - h) [P], and the variances
V_n = D_n + noise of row n, the log evidence of each output is

    -1/2 sum_n [log(2 pi V_n) + e_n^2 / V_n] + 1/2 |c|^2 - 1/2 log|Q|,    Q = I + sum_n u_n u_n^T / V_n = LQ LQ^T,

with c = LQ^-1 sum_n u_n e_n / V_n. It is the evidence of a proper Gaussian model, and not a bound on that of the GP.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.bounds._expansion import Expansion, by_coordinate
from agp.bounds._near_conditional import NearConditional, condition_groups
from agp.bounds._row_noise import LOG_2PI, RowNoise, cotangent_with_noise
from agp.linalg import cholesky, diagonal, identity

LEAST_VARIANCE = 1e-15
"""The variance of a row given its neighbours is at least this fraction of its prior variance, so that its logarithm is
finite without noise."""


class NearRows(NamedTuple):
    """The data of a model with neighbours: all rows, from which groups are taken by number."""

    X: Array
    """[N, D]."""
    y: Array
    """Targets minus offsets [N, P]."""
    weights: Array | None
    """[N], or None."""
    noise: Array | None
    """Known noise variances [N], or None."""
    squares: Array | None
    """The sums [N] of squared deviations from the mean, over the observations that a row represents and over outputs;
    None means 0."""


class Group(NamedTuple):
    """G rows with their neighbours."""

    index: Array
    """The numbers [G, k + 1] of the rows; that of an absent neighbour is 0."""
    X: Array
    """Inputs [G, k + 1, D]; the last is the row itself."""
    y: Array
    """Targets [G, k + 1, P]."""
    absent: Array | None
    """Boolean [G, k]; None if no neighbour is absent."""
    known: Array | None
    """Known noise variances [G, k + 1], or None."""
    counts: Array | None
    """The number of observations [G, k + 1] in each entry, or None for one."""
    share: Array | None
    """The weight [G] of the log density of a row, or None for 1."""
    squares: Array | None
    """The squares [G] of the rows, or None."""
    spare: Array | None
    """1 / (w - 1) [G, k] where a neighbour stands for the other observations of the row itself, otherwise 0."""

    def noise(self, trained: Array, /) -> Array:
        """Return the noise variances [G, k + 1] for a trained noise variance (0-d)."""
        xp = backend_of(self.X).xp
        variance = trained if self.known is None else trained + self.known
        variance = variance if self.counts is None else variance / self.counts
        return xp.broadcast_to(variance, self.X.shape[:2])

    def pull_noise(self, bar: Array, /) -> Array:
        """Return the cotangent of the trained noise variance (0-d)."""
        return backend_of(bar).xp.sum(bar if self.counts is None else bar / self.counts)


def gather_group(data: NearRows, rows: Array, sets: Array, /, *, left_out: bool) -> Group:
    """Take rows [G] and their neighbours [G, k] from the data; -1 stands for an absent neighbour.

    If `left_out` is true, one observation of each row is predicted from its neighbours. A row of weight w > 1 is then
    among its own neighbours, with the other w - 1 observations.
    """
    B = backend_of(sets)
    xp = B.xp
    absent = sets < 0
    index = xp.concat([xp.where(absent, 0, sets), rows[:, None]], axis=1)
    G, C = index.shape

    def take(x: Array | None) -> Array | None:
        return None if x is None else xp.reshape(B.rows_at(x, xp.reshape(index, (-1,))), (G, C, *x.shape[1:]))

    weights, squares = take(data.weights), None if data.squares is None else B.rows_at(data.squares, rows)
    share = spare = counts = None
    if weights is not None:
        own = index[:, :-1] == rows[:, None]
        last = weights[:, -1:]
        if left_out:
            share, counts = weights[:, -1], xp.where(own, last - 1.0, weights[:, :-1])
            absent = absent | (counts <= 0.0)
            counts = xp.concat([xp.where(absent, 1.0, counts), xp.ones_like(last)], axis=1)
            spare = xp.where(own & ~absent, 1.0 / counts[:, :-1], 0.0)
        else:
            counts = weights
    X, y, known = take(data.X), take(data.y), take(data.noise)
    return Group(index, X, y, absent, known, counts, share, squares if left_out else None, spare)  # type: ignore[arg-type]


class NearSums(NamedTuple):
    """Sums over rows, from which the evidence follows."""

    logs: Array
    """The sum of log V (0-d)."""
    quadratic: Array
    """The sum of |e|^2 / V (0-d)."""
    count: Array
    """The number of terms (0-d)."""
    gram: Array | None
    """The sum of u u^T / V [M, M], or None without inducing inputs."""
    projected: Array | None
    """The sum of u e^T / V [M, P], or None."""


class _Terms(NamedTuple):
    """The terms of G rows."""

    found: NearConditional
    variance: Array
    """V [G]."""
    residual: Array
    """y - h of the group [G, k + 1, P]."""
    error: Array
    """e [G, P]."""
    lever: Array | None
    """1 + B / (w - 1) [G], the factor of deviations of observations from their mean; None without squares."""
    quadratic: Array
    """The squared errors [G] of all observations of a row, per unit of weight and summed over outputs."""


def _terms(model: Any, group: Group, F: Array | None, K: Array, pull_kernel: Any) -> tuple[_Terms, Pullback, Pullback]:
    """Return the terms of the rows, and the pullbacks of the conditional distributions and of the mean function."""
    xp = backend_of(K).xp
    G, C, D = group.X.shape
    h, pull_mean = model.mean_function(xp.reshape(group.X, (G * C, D)))
    residual = group.y - xp.reshape(h, (G, C, -1))
    noise = group.noise(model.likelihood.noise_variance)
    found, pull = condition_groups(K, pull_kernel, noise[:, :-1], group.absent, F)
    least = LEAST_VARIANCE * diagonal(K)[:, -1]
    variance = xp.maximum(found.variance + noise[:, -1], least)
    error = xp.sum(found.b[:, :, None] * residual, axis=1)
    squared, lever = xp.sum(error * error, axis=1), None
    squared = squared if group.share is None else group.share * squared
    if group.squares is not None and group.spare is not None:
        lever = 1.0 - xp.sum(found.b[:, :-1] * group.spare, axis=1)
        squared = squared + group.squares * lever * lever
    return _Terms(found, variance, residual, error, lever, squared), pull, pull_mean


def near_sums(params: tuple[Any, NearRows, Array | None], block: tuple[Array, Array], *, left_out: bool) -> Any:
    """Return the sums over a block of rows [G] with sets [G, k], and the pullback ``bar -> (model_bar, None, A_bar)``.

    The parameters are the model, the data, and the features A [N, M] of all rows, or None.
    """
    (model, data, A), (rows, sets) = params, block
    B = backend_of(sets)
    xp = B.xp
    group = gather_group(data, rows, sets, left_out=left_out)
    index = xp.reshape(group.index, (-1,))
    F = None if A is None else xp.reshape(xp.take(A, index, axis=0), (*group.X.shape[:2], A.shape[1]))
    terms, pull, pull_mean = _terms(model, group, F, *model.kernel.grouped_covariance(group.X))
    found, V, _, error, _, squared = terms
    u = found.features
    logs = xp.log(V)
    ones = xp.ones_like(V) if group.share is None else group.share
    sums = NearSums(
        xp.sum(logs * ones),
        xp.sum(squared / V),
        xp.sum(ones),
        None if u is None else (u.mT / V) @ u,
        None if u is None else (u.mT / V) @ error,
    )

    def pullback(bar):
        B_bar, V_bar, u_bar, error_bar = _pull_sums(bar, terms, group, ones)
        V_bar = xp.where(found.variance + group.noise(model.likelihood.noise_variance)[:, -1] < V, 0.0, V_bar)
        kernel_bar, _, noise_bar, F_bar = pull(B_bar, V_bar, u_bar)
        residual_bar = found.b[:, :, None] * error_bar[:, None, :]
        mean_bar = pull_mean(-xp.reshape(residual_bar, (-1, error.shape[1])))[0]
        bars = {"kernel": kernel_bar, "mean_function": mean_bar}
        model_bar = cotangent_with_noise(model, group.pull_noise(noise_bar), **bars)
        A_bar = None if A is None else B.sum_at(xp.reshape(F_bar, (-1, A.shape[1])), index, A.shape[0])
        return model_bar, None, A_bar

    return sums, pullback


def _pull_sums(bar: NearSums, terms: _Terms, group: Group, ones: Array) -> tuple[Array, Array, Any, Array]:
    """Return the cotangents of B, V, u and e from those of the sums over rows; that of `gram` is symmetric."""
    found, V, residual, error, lever, squared = terms
    xp, u = backend_of(V).xp, found.features
    V_bar = bar.logs * ones / V - bar.quadratic * squared / (V * V)
    error_bar = (2.0 * bar.quadratic * ones / V)[:, None] * error
    u_bar = None
    if u is not None:
        projected: Any = bar.projected
        along, half = u @ projected, u @ bar.gram
        V_bar = V_bar - (xp.sum(half * u, axis=1) + xp.sum(along * error, axis=1)) / (V * V)
        error_bar = error_bar + along / V[:, None]
        u_bar = (2.0 * half + error @ projected.mT) / V[:, None]
    B_bar = -xp.sum(residual[:, :-1, :] * error_bar[:, None, :], axis=2)
    if lever is not None:
        B_bar = B_bar + (2.0 * bar.quadratic * group.squares * lever / V)[:, None] * group.spare
    return B_bar, V_bar, u_bar, error_bar


def near_evidence(
    model: Any,
    data: NearRows,
    rows: Array,
    sets: Array,
    /,
    *,
    left_out: bool = False,
    features: tuple[Array, Pullback] | None = None,
    block_rows: int | None = None,
) -> tuple[Array, Pullback]:
    """Return the log evidence of rows given their neighbours, summed over the outputs.

    Parameters
    ----------
    model
        A model with a kernel, a mean function and a Gaussian likelihood.
    data
        All rows.
    rows, sets
        The numbers [n] of the rows in the sum, and those [n, k] of their neighbours, with -1 where a neighbour is
        absent. For the evidence of all rows, each row has neighbours among the rows before it, in any order.
    left_out
        If true, the result is the sum of the log densities of observations given their neighbours, and a row of weight
        above 1 may be its own neighbour.
    features
        The features A [N, M] of the inducing inputs, with their pullback ``A_bar -> model_bar``; None means that there
        are no inducing inputs. If given, `rows` must be all rows.
    block_rows
        The number of rows per block, by default all.

    Returns
    -------
    evidence
        A 0-d array.
    pullback
        A function ``bar -> model_bar``.
    """
    B, P = backend_of(sets), data.y.shape[1]
    A, pull_features = (None, None) if features is None else features

    def f(params: Any, block: Any) -> Any:
        return near_sums(params, block, left_out=left_out)

    sums, pull_sums = B.fold(f, (model, data, A), (rows, sets), block_rows or rows.shape[0], add=tree.add)
    value, pull_value = evidence_of_sums(sums, P)
    logs, pull_logs = (None, lambda _: None) if left_out else _corrections(model, data, rows)

    def pullback(bar):
        model_bar, _, A_bar = pull_sums(pull_value(bar))
        if pull_features is not None:
            model_bar = tree.add(model_bar, pull_features(A_bar))
        noise_bar = pull_logs(bar)
        return model_bar if noise_bar is None else tree.add(model_bar, cotangent_with_noise(model, noise_bar))

    return tree.add(value, logs), pullback


def evidence_of_sums(sums: NearSums, P: int, /) -> tuple[Array, Pullback]:
    """Return the evidence of P outputs from the sums over the rows, and the pullback ``bar -> sums_bar``."""
    xp = backend_of(sums.logs).xp
    value = -0.5 * (P * (sums.logs + sums.count * LOG_2PI) + sums.quadratic)
    half = -0.5 + xp.zeros_like(value)
    if sums.gram is None:
        return value, lambda bar: NearSums(P * half * bar, half * bar, 0.0 * bar, None, None)
    B = backend_of(sums.gram)
    LQ = cholesky(identity(sums.gram) + sums.gram)
    c = B.solve_triangular(LQ, sums.projected)
    value = value + 0.5 * xp.sum(c * c) - P * xp.sum(xp.log(diagonal(LQ)))

    def pullback(bar):
        m = B.solve_triangular(LQ, c, transpose=True)
        gram_bar = (-0.5 * bar) * (m @ m.mT + P * B.inverse_from_cholesky(LQ))
        return NearSums(P * half * bar, half * bar, 0.0 * bar, gram_bar, bar * m)

    return value, pullback


def _corrections(model: Any, data: NearRows, rows: Array) -> tuple[Array | None, Pullback]:
    """Return the terms of rows that represent several observations, and the pullback ``bar -> noise_bar``."""
    if data.weights is None:
        return None, lambda _: None
    xp, P = backend_of(rows).xp, data.y.shape[1]
    weights = xp.take(data.weights, rows)
    trained = model.likelihood.noise_variance
    variance = trained if data.noise is None else trained + xp.take(data.noise, rows)
    value, pull = RowNoise(variance, weights).correction(P)
    if data.squares is None:
        return value, pull
    squares = xp.take(data.squares, rows)
    slope = 0.5 * xp.sum(squares / (variance * variance))
    return value - 0.5 * xp.sum(squares / variance), lambda bar: pull(bar) + bar * slope


# -- densities of rows, and second order ------------------------------------------------------------------------------


def near_densities(model: Any, data: NearRows, rows: Array, sets: Array, /) -> Array:
    """Return the log densities [n] of an observation of each row given its neighbours, summed over outputs.

    The density of a row that represents several observations is the average over them.
    """
    xp, P = backend_of(sets).xp, data.y.shape[1]
    group = gather_group(data, rows, sets, left_out=True)
    terms = _terms(model, group, None, *model.kernel.grouped_covariance(group.X))[0]
    squared = terms.quadratic if group.share is None else terms.quadratic / group.share
    return -0.5 * (P * (LOG_2PI + xp.log(terms.variance)) + squared / terms.variance)


def expand_near(
    model: Any,
    data: NearRows,
    rows: Array,
    sets: Array,
    scales: Mapping[str, Array],
    /,
    *,
    left_out: bool,
    block_rows: int | None = None,
) -> Expansion | None:
    """Return the evidence of rows given their neighbours, without inducing inputs, to second order.

    The arguments are those of `near_evidence` and `agp.bounds.expand_evidence`. The curvature is that of the expected
    evidence: the sum over rows of V_i V_j / (2 V^2) + e_i e_j / V, for the derivatives V_i and e_i by coordinate i. The
    result is None if a part of the model does not support derivatives for each group.
    """
    B, P, n = backend_of(sets), data.y.shape[1], sum(math.prod(x.shape) for x in scales.values())
    xp, one = B.xp, data.X[:1, :]
    if model.kernel.linearise_groups(one[:, None, :]) is None or model.mean_function.basis(one, P) is None:
        return None

    def f(params: Any, block: Any) -> Any:
        return _expanded_rows(*params, *block, left_out=left_out), None

    params = (model, data, scales)
    found, _ = B.map_rows(f, params, (rows, sets), block_rows or rows.shape[0], add=tree.add)  # type: ignore[arg-type]
    share, density, slopes = found[:, 0], found[:, 1], xp.sum(found[:, 2 : 2 + n], axis=0)
    columns = xp.reshape(found[:, 2 + n :], (-1, n))
    value = xp.sum(density)
    logs, pull_logs = (None, lambda _: None) if left_out else _corrections(model, data, rows)
    noise_bar = pull_logs(1.0)
    if noise_bar is not None:
        bars = {"likelihood.noise_variance": noise_bar}
        parts = [xp.reshape(bars.get(name, 0.0) * scales[name], (-1,)) for name in sorted(scales)]
        slopes = slopes + xp.concat(parts)
    return Expansion(tree.add(value, logs), slopes, columns, value / xp.sum(share))


def _expanded_rows(
    model: Any,
    data: NearRows,
    scales: Mapping[str, Array],
    rows: Array,
    sets: Array,
    *,
    left_out: bool,
) -> Array:
    """Return the weight, log density, slopes [n] and whitened columns [1 + 2 P, n] of each row, side by side."""
    xp, P = backend_of(sets).xp, data.y.shape[1]
    group = gather_group(data, rows, sets, left_out=left_out)
    G, C, D = group.X.shape
    linear: Any = model.kernel.linearise_groups(group.X)
    terms, _, _ = _terms(model, group, None, linear.K, None)
    found, V, residual, error, lever, squared = terms
    b = found.b
    # the derivatives are dV = b^T dK b, de_p = -a_p^T dK b with a_p = R^-1 (y - h)_p, and dB = R^-1 dK b
    solved = _present(group, residual[:, :-1, :])
    if lever is not None and group.spare is not None:
        solved = xp.concat([solved, group.spare[:, :, None]], axis=2)
    solved = found.solve(solved)
    left = xp.concat([b[:, :, None], xp.concat([solved, xp.zeros_like(solved[:, :1, :])], axis=1)], axis=2)
    by_noise = b if group.counts is None else b / group.counts
    products = cotangent_with_noise(model, by_noise, kernel=linear.times(b, None))
    moved = {name: scale for name, scale in scales.items() if not name.startswith("mean_function.")}
    forms = left.mT @ by_coordinate(xp, products, moved, (G, C))  # [G, 1 + P (+ 1), m]
    V_slopes, error_slopes = forms[:, 0, :], -forms[:, 1 : P + 1, :]
    share = xp.ones_like(V) if group.share is None else group.share
    density = -0.5 * (P * share * (xp.log(V) + LOG_2PI) + squared / V)
    slopes = (-0.5 * (P * share / V - squared / (V * V)))[:, None] * V_slopes
    slopes = slopes - (share / V)[:, None] * xp.sum(error[:, :, None] * error_slopes, axis=1)
    if lever is not None:
        slopes = slopes - (group.squares * lever / V)[:, None] * forms[:, -1, :]  # type: ignore[operator]
    root = xp.sqrt(share / V)[:, None, None]
    of_V = (P**0.5 * xp.sqrt(share) / V)[:, None, None] * V_slopes[:, None, :]
    # twice, so that the information of the kernel is e_i e_j / V, and that of a coefficient of the mean half of this
    columns = xp.concat([of_V, root * error_slopes, root * error_slopes], axis=1)
    if len(moved) < len(scales):  # the mean function is linear in its coefficients
        leaves = {name: scale for name, scale in scales.items() if name not in moved}
        basis = model.mean_function.basis(xp.reshape(group.X, (G * C, D)), P)
        means = by_coordinate(xp, tree.cotangent(model, mean_function=basis), leaves, (G * C, P))
        means = xp.sum(b[:, :, None, None] * xp.reshape(means, (G, C, P, -1)), axis=1)
        of_mean = (share / V)[:, None] * xp.sum(error[:, :, None] * means, axis=1)
        slopes = xp.concat([slopes, of_mean], axis=1)
        zeros = xp.zeros_like(means)
        of_means = xp.concat([zeros[:, :1, :], -root * means, zeros], axis=1)  # de_p by a coefficient is -b^T dh_p
        columns = xp.concat([columns, of_means], axis=2)
    return xp.concat([share[:, None], density[:, None], slopes, xp.reshape(columns, (G, -1))], axis=1)


def _present(group: Group, x: Array) -> Array:
    """Return x [G, k, n] with zeros where a neighbour is absent."""
    return x if group.absent is None else backend_of(x).xp.where(group.absent[:, :, None], 0.0, x)
