"""Rows given pseudo-observations of few near rows, for any likelihood, and the bound on their log densities.

Row n has the site exp(lam1_n (f_n - h_n) - lam2_n (f_n - h_n)^2 / 2). It is a pseudo-observation lam1 / lam2 of f - h
with the noise variance 1 / lam2. Given the pseudo-observations of other rows, f_n - h_n is normal with mean c_n and
variance v_n (`agp.bounds._near_conditional`). With its own site, it is N(m_n, s_n):

    w = 1 + lam2 v,    r = lam1 - lam2 c,    m = c + v r / w,    s = v / w.

By Jensen's inequality, the log density of y_n given the pseudo-observations of the others is at least

    E[log p(y_n | f_n)] - KL[N(m, s), N(c, v)],    KL = 1/2 sum_p [1 / w - 1 + log w + v r_p^2 / w^2].

Outputs share lam2, and therefore v, w and s.
"""

from typing import Any, NamedTuple

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.bounds._batch import Batch, expected_row_density
from agp.bounds._elbo import batch_of, rows_first, rows_of
from agp.bounds._near_conditional import condition_groups
from agp.bounds._near_evidence import LEAST_VARIANCE, NearRows, gather_group
from agp.linalg import diagonal

LEAST_PRECISION = 0.75
"""Precisions below eps to this power, divided by the prior variance, change next to nothing, and are raised to it."""


class Cavity(NamedTuple):
    """The normal distribution of f - h at G rows, given the pseudo-observations of other rows."""

    mean: Array
    """c [G, P]."""
    variance: Array
    """v [G]."""

    def times_site(self, shift: Array, precision: Array, /) -> tuple[Array, Array]:
        """Return m [G, P] and s [G] after multiplication with sites lam1 [G, P] and lam2 [G, 1]."""
        w = 1.0 + precision * self.variance[:, None]
        m = self.mean + self.variance[:, None] * (shift - precision * self.mean) / w
        return m, self.variance / w[:, 0]

    def divergence(self, shift: Array, precision: Array, /) -> tuple[Array, Pullback]:
        """Return the KL divergences [G] of N(m, s) from this distribution, summed over outputs.

        The pullback is that of N(m, s) and of KL together, ``(m_bar [G, P], s_bar [G], kl_bar [G]) -> (c_bar [G, P],
        v_bar [G])``. Sites are constants.
        """
        xp, P = backend_of(self.mean).xp, self.mean.shape[1]
        v, own = self.variance, precision[:, 0]
        w, r = 1.0 + own * v, shift - precision * self.mean
        square = xp.sum(r * r, axis=1) / (w * w)
        kl = 0.5 * (P * (1.0 / w - 1.0 + xp.log(w)) + v * square)

        def pullback(m_bar, s_bar, kl_bar):
            along = xp.sum(m_bar * r, axis=1) / w
            w_bar = -(v / w) * (along + s_bar / w)
            w_bar = w_bar + kl_bar * (0.5 * P * (w - 1.0) / (w * w) - v * square / w)
            r_bar = (v / w)[:, None] * (m_bar + (kl_bar / w)[:, None] * r)
            v_bar = along + s_bar / w + 0.5 * kl_bar * square + own * w_bar
            return m_bar - precision * r_bar, v_bar

        return kl, pullback


def site_noise(precision: Array, variance: Array, /) -> Array:
    """Return the noise variances 1 / lam2 of pseudo-observations, for prior variances of the same shape."""
    B = backend_of(precision)
    xp, variance = B.xp, B.stop_gradient(variance)
    variance = xp.where(variance > 0.0, variance, xp.ones_like(variance))  # f is 0 where it is 0
    return 1.0 / xp.maximum(precision, float(xp.finfo(precision.dtype).eps) ** LEAST_PRECISION / variance)


def cavity_of(model: Any, rows: Array, sets: Array, /) -> tuple[Cavity, Pullback]:
    """Return the distribution of f - h at rows [G] given the pseudo-observations of the rows in sets [G, k].

    The pullback is ``(c_bar, v_bar) -> kernel_bar``.
    """
    data = NearRows(model.X, model.site_shift, None, model.site_precision[:, 0], None)
    group: Any = gather_group(data, rows, sets, left_out=True)
    xp = backend_of(sets).xp
    K, pull_kernel = model.kernel.grouped_covariance(group.X)
    prior = diagonal(K)
    noise = site_noise(group.known[:, :-1], prior[:, :-1])
    observed = group.y[:, :-1, :] * noise[:, :, None]
    found, pull = condition_groups(K, pull_kernel, noise, group.absent, None)
    least = LEAST_VARIANCE * prior[:, -1]
    mean = -xp.sum(found.b[:, :-1, None] * observed, axis=1)

    def pullback(c_bar, v_bar):
        B_bar = xp.sum(observed * c_bar[:, None, :], axis=2)
        return pull(B_bar, xp.where(found.variance < least, 0.0, v_bar))[0]

    return Cavity(mean, xp.maximum(found.variance, least)), pullback


def near_site_bound(
    model: Any, batch: Batch, rows: Array, sets: Array, /, *, block_rows: int
) -> tuple[Array, Pullback]:
    """Return the sum of the lower bounds on log densities of rows given their neighbours, and its pullback.

    Parameters
    ----------
    model
        A model with sites, whose outputs share the precision of each row.
    batch
        The rows; the result is not scaled.
    rows, sets
        Their numbers [B], and those [B, k] of their neighbours, or -1 where there is none.
    block_rows
        The number of rows per block.

    Returns
    -------
    bound
        A 0-d array.
    pullback
        A function ``bar -> model_bar``. Sites and neighbours are constants.
    """
    blocks = (rows, sets, *rows_of(batch, first=True))
    return backend_of(sets).fold(_bound_of_block, model, blocks, block_rows, add=tree.add)


def _bound_of_block(model: Any, block: tuple[Any, ...]) -> tuple[Array, Pullback]:
    rows, sets, X, y, draws, *known = block
    xp = backend_of(sets).xp
    cavity, pull_cavity = cavity_of(model, rows, sets)
    own = xp.take(model.site_shift, rows, axis=0), xp.take(model.site_precision, rows, axis=0)
    m, s = cavity.times_site(*own)
    kl, pull_kl = cavity.divergence(*own)
    h, pull_mean = model.mean_function(X)
    var = xp.broadcast_to(s[:, None], m.shape)
    batch, noise = batch_of((X, y, rows_first(draws), *known), 1)
    ell, pull_likelihood = expected_row_density(model.likelihood, m + h, var, batch, noise)

    def pullback(bar):
        ones = bar * xp.ones_like(ell)
        likelihood_bar, mu_bar, var_bar = pull_likelihood(ones)
        kernel_bar = pull_cavity(*pull_kl(mu_bar, xp.sum(var_bar, axis=1), -ones))
        mean_bar = pull_mean(mu_bar)[0]
        return tree.cotangent(model, kernel=kernel_bar, likelihood=likelihood_bar, mean_function=mean_bar)

    return xp.sum(ell - kl), pullback


def near_cavities(model: Any, rows: Array, sets: Array, /, *, block_rows: int) -> Cavity:
    """Return the distributions of f - h at rows [B] given the pseudo-observations of their neighbours [B, k]."""

    def f(model: Any, block: Any) -> tuple[Array, None]:
        found = cavity_of(model, *block)[0]
        return backend_of(found.mean).xp.concat([found.mean, found.variance[:, None]], axis=1), None

    both, _ = backend_of(sets).map_rows(f, model, (rows, sets), block_rows, add=tree.add)  # type: ignore[arg-type]
    return Cavity(both[:, :-1], both[:, -1])
