"""Exact GPs at several weighted settings of their hyperparameters: the predictive distribution is a mixture.

Given the data, f is a GP with the moments of the setting s with probability w_s. At x, the mean of setting s is
h(x) + k_s(x, X) a_s, and the variance is k_s(x, x) - |E_s k_s(X, x)|^2, where E_s is the inverse of the Cholesky factor
of C_s = k_s(X, X) + diag(noise_s), and a_s = C_s^-1 (y - h). All settings are evaluated at once.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NoReturn

from agp import tree
from agp.backend import Array, Pullback, backend_of, like, to_numpy
from agp.bounds import Batch, RowNoise, stacked_evidence
from agp.errors import there_are
from agp.inducing import Points
from agp.kernels import Constant, Kernel, terms_of
from agp.likelihoods import Likelihood
from agp.linalg import each_inverse, groups_of, noisy_cholesky, nonnegative
from agp.means import ConstantMean, Mean, ZeroMean
from agp.posteriors import Exact, ExactFactor
from agp.processes._base import Process
from agp.processes._further import refuse_data
from agp.processes._of_data import HoldsRows, no_pullback
from agp.processes._paths import JoinedPaths, Paths
from agp.processes._sparse import Sparse
from agp.processes._terms import Moments, Term, common_terms, covariance_of_terms, describe_terms
from agp.random import numbers_of_draws


@tree.model
class Settings:
    """S settings of a kernel and of the noise.

    Parameters
    ----------
    kernel
        A kernel whose parameters have a leading axis S.
    noise
        The trained noise variances [S].
    """

    kernel: Kernel
    noise: Array = tree.constant()

    @property
    def count(self) -> int:
        """The number of settings S."""
        return self.noise.shape[0]


@tree.model
class SettingsFactor:
    """The factors of exact GPs at S settings."""

    root: Array = tree.auxiliary()
    """E [S, N, N], the inverses of Cholesky factors."""
    weights: Array = tree.auxiliary()
    """C^-1 (y - h) [S, N, P]."""


@tree.model
class ExactMixture(HoldsRows):
    """The mixture of exact GPs with the same data, for weighted settings of the hyperparameters.

    Parameters
    ----------
    settings
        The settings of each kernel.
    probabilities
        The weights w [S] of all settings, which sum to 1, in the order of `settings`.
    X, residual
        The training inputs [N, D], and the targets minus the prior mean, y - h [N, P].
    mean_function
        The prior mean h, which is the same for all settings.
    level
        The prior variance of a constant (0-d), which is added to all covariances; None means 0.
    weights, noise
        The weights [N] of the rows, and their known noise variances [N]; see `agp.GPR`.
    """

    settings: tuple[Settings, ...]
    probabilities: Array = tree.constant()
    X: Array = tree.constant()
    residual: Array = tree.constant()
    mean_function: Mean
    level: Array | None = tree.constant(default=None, optional=True)
    weights: Array | None = tree.constant(default=None, optional=True)
    noise: Array | None = tree.constant(default=None, optional=True)

    @property
    def samples(self) -> int:
        return self.probabilities.shape[0]

    @property
    def shares(self) -> Array:
        return self.probabilities

    @property
    def outputs(self) -> int:
        return self.residual.shape[1]

    @property
    def floats_per_row(self) -> int:
        per_entry = max(one.kernel.floats_per_entry for one in self.settings)
        return self.samples * ((per_entry + 1) * self.X.shape[0] + 4 * self.outputs)

    @property
    def _places(self) -> list[slice]:
        """The places of the settings of each kernel among all settings."""
        return groups_of([one.count for one in self.settings])

    @property
    def _batch(self) -> Batch:
        known = None if self.noise is None else self.noise[:, None]
        return Batch(self.X, self.residual, weights=self.weights, noise=known)

    def _row_noise(self, trained: Array) -> Array:
        """Return the noise variances of the rows: [S], or [S, N] if rows have weights or known noise."""
        known = self.weights is not None or self.noise is not None
        return RowNoise.of(trained[:, None] if known else trained, self._batch).by_row

    def factorise(self) -> tuple[tuple[SettingsFactor, ...], Pullback]:
        found = []
        for one in self.settings:
            K = _plus(one.kernel.stacked_covariance(self.X)[0], self.level)
            L = noisy_cholesky(K, self._row_noise(one.noise))
            root = each_inverse(L)
            found.append(SettingsFactor(root, root.mT @ (root @ self.residual)))
        return tuple(found), no_pullback

    def project(self, factor: Any, X: Array, /) -> tuple[tuple[Array, Array], Pullback]:
        xp = backend_of(X).xp
        h, pull_mean = self.mean_function(X)
        parts = [
            _project(one, factor_of, self.level, self.X, X)
            for one, factor_of in zip(self.settings, factor, strict=True)
        ]
        mean = xp.concat([change for (change, _), _ in parts], axis=0) + h
        var = xp.concat([var for (_, var), _ in parts], axis=0)
        shape, spread = (-1, self.outputs), (*var.shape, self.outputs)

        def pullback(mu_bar, var_bar):
            mu_bar, var_bar = (xp.reshape(bar, spread) for bar in (mu_bar, var_bar))
            X_bar = pull_mean(xp.sum(mu_bar, axis=0))[1]
            for place, (_, pull) in zip(self._places, parts, strict=True):
                X_bar = tree.add(X_bar, pull(mu_bar[place, ...], xp.sum(var_bar[place, ...], axis=-1)))
            return None, None, X_bar

        return (xp.reshape(mean, shape), xp.reshape(xp.broadcast_to(var[..., None], spread), shape)), pullback

    def project_mean(self, factor: Any, X: Array, /) -> Array:
        xp = backend_of(X).xp
        changes = [
            _plus(one.kernel.stacked_covariance(self.X, X)[0], self.level).mT @ factor_of.weights
            for one, factor_of in zip(self.settings, factor, strict=True)
        ]
        return xp.reshape(xp.concat(changes, axis=0) + self.mean_function(X)[0], (-1, self.outputs))

    def project_covariance(self, factor: Any, X: Array, /) -> Array:
        """Return the covariances [P, n, n] of the mixture: the average within settings plus that between them."""
        xp, w = backend_of(X).xp, self.shares
        within = 0.0
        for one, factor_of, place in zip(self.settings, factor, self._places, strict=True):
            A = factor_of.root @ _plus(one.kernel.stacked_covariance(self.X, X)[0], self.level)
            each = _plus(one.kernel.stacked_covariance(X)[0], self.level) - A.mT @ A
            within = within + xp.tensordot(w[place], each, axes=1)
        means = xp.permute_dims(xp.reshape(self.project_mean(factor, X), (self.samples, -1, self.outputs)), (2, 0, 1))
        apart = xp.sqrt(w)[:, None] * (means - (w @ means)[:, None, :])
        return within + apart.mT @ apart

    # -- terms ------------------------------------------------------------------------------------------------------

    def terms(self, names: Sequence[str] = (), /) -> tuple[Term, ...]:
        mean = ConstantMean(self.level) if self.level is not None else None
        mean = mean if isinstance(self.mean_function, ZeroMean) else self.mean_function
        found = [describe_terms(one.kernel, mean, self.width, names) for one in self.settings]
        return common_terms("the kernels of a mixture", found)

    def project_terms(self, factor: Any, X: Array, /) -> Moments:
        self.terms()  # raises if the terms do not correspond
        xp, h = backend_of(X).xp, self.mean_function(X)[0]
        found = [self._project_terms(*one, X) for one in zip(self.settings, factor, strict=True)]
        mean, covariance = (xp.concat(list(several), axis=0) for several in zip(*found, strict=True))
        last = xp.broadcast_to(h, (X.shape[0], self.outputs))[:, :, None]
        mean = mean + xp.concat([0.0 * mean[0, :, :, :-1], last], axis=2)
        both = (xp.reshape(x, (-1, *x.shape[2:])) for x in (mean, covariance))
        return next(both), next(both)

    def _project_terms(self, one: Settings, factor: SettingsFactor, X: Array) -> Moments:
        """Return the moments [S, n, P, K + 1] and [S, n, P, K + 1, K + 1] at the settings of a kernel.

        The last term is the constant.
        """
        xp, n = backend_of(X).xp, X.shape[0]
        terms = terms_of(one.kernel)
        cross = [term.stacked_covariance(self.X, X)[0] for term in terms]
        prior = [term.stacked_variances(X)[0] for term in terms]
        level = xp.zeros_like(one.noise[0, ...]) if self.level is None else self.level
        cross.append(xp.broadcast_to(level, cross[0].shape))
        prior.append(xp.broadcast_to(level, prior[0].shape))
        A = xp.stack([factor.root @ Kuf for Kuf in cross], axis=-1)  # [S, N, n, K + 1]
        A = xp.permute_dims(A, (0, 2, 1, 3))
        covariance = covariance_of_terms(xp.stack(prior, axis=-1), A.mT @ A)[:, :, None, :, :]
        shape = (one.count, n, self.outputs, len(cross), len(cross))
        return xp.stack([Kuf.mT @ factor.weights for Kuf in cross], axis=-1), xp.broadcast_to(covariance, shape)

    # -- draws ------------------------------------------------------------------------------------------------------

    def parts_of_draws(self, factor: Any, count: int, rng: Any, /) -> list[tuple[Process, Any, int]]:
        return [(*self._setting(factor, s), number) for s, number in self.numbers_of_draws(count, rng)]

    def gaussian_parts(self, factor: Any, most: int, /) -> list[tuple[float, Process, Any]]:
        shares = to_numpy(self.shares).tolist()
        kept = dict(enumerate(shares))
        if len(shares) > most:  # each of `most` equal parts of the probability is represented by a setting
            ends, last = list(accumulate(shares)), len(shares) - 1
            middles = [(i + 0.5) / most for i in range(most)]
            kept = Counter(next((s for s, end in enumerate(ends) if end >= middle), last) for middle in middles)
        total = sum(kept.values())
        return [(share / total, *self._setting(factor, s)) for s, share in kept.items()]

    def numbers_of_draws(self, count: int, rng: Any, /) -> list[tuple[int, int]]:
        return numbers_of_draws(to_numpy(self.shares), count, rng)

    def _setting(self, factor: Any, s: int) -> tuple[Sparse, ExactFactor]:
        """Return the exact GP of a setting, and its factor."""
        i = next(i for i, place in enumerate(self._places) if s < place.stop)
        one, factor_of, place = self.settings[i], factor[i], s - self._places[i].start
        noise = self._row_noise(one.noise)[place, ...]
        root, weights = factor_of.root[place, ...], factor_of.weights[place, ...]
        kernel = one.kernel.setting(place)
        kernel = kernel if self.level is None else kernel + Constant(self.level)
        L = noisy_cholesky(kernel(self.X)[0], noise)
        process = Sparse(kernel, Points(self.X), Exact(self.residual, noise), self.mean_function, jitter=0.0)
        return process, ExactFactor(L, root @ self.residual, weights)

    def paths(self, factor: Any, rng: Any, count: int, features: int, /) -> Paths:
        parts = self.parts_of_draws(factor, count, rng)
        return JoinedPaths(tuple(process.paths(own, rng, number, features) for process, own, number in parts))

    # -- further data -----------------------------------------------------------------------------------------------

    def condition_on(self, factor: Any, batch: Batch, likelihood: Likelihood, /) -> tuple[Process, Any]:
        """Return the mixture given k further rows; the weights are multiplied by the densities of the rows."""
        del factor, likelihood
        xp = backend_of(self.X).xp
        y = batch.y if batch.offset is None else batch.y - batch.offset
        rows = {
            "X": xp.concat([self.X, batch.X], axis=0),
            "residual": xp.concat([self.residual, y - self.mean_function(batch.X)[0]], axis=0),
            "weights": _join_rows(self.weights, batch.weights, self.X, batch.X, 1.0),
            "noise": _join_rows(self.noise, None if batch.noise is None else batch.noise[:, 0], self.X, batch.X, 0.0),
        }
        more = dataclasses.replace(self, **rows)
        gain = more.log_evidence() - self.log_evidence()
        shares = self.shares * xp.exp(gain - xp.max(gain))
        more = dataclasses.replace(more, probabilities=shares / xp.sum(shares))
        return more, more.factorise()[0]

    def log_evidence(self) -> Array:
        """Return the log evidence [S] of the data for each setting."""
        parts = [stacked_evidence(one.kernel, one.noise, self._batch, level=self.level) for one in self.settings]
        return backend_of(self.X).xp.concat(parts, axis=0)

    def places(self, factor: Any, batch: Batch, /) -> NoReturn:
        refuse_data("a part of a process that is a mixture")

    def check(self) -> None:
        count = sum(one.count for one in self.settings)
        if tuple(self.probabilities.shape) != (count,):
            raise ValueError(
                f"probabilities has shape {tuple(self.probabilities.shape)}, but {there_are(count, 'setting')}."
            )


def _plus(K: Array, level: Array | None) -> Array:
    return K if level is None else K + level


def _project(
    settings: Settings, factor: SettingsFactor, level: Array | None, train: Array, X: Array
) -> tuple[tuple[Array, Array], Pullback]:
    """Return the changes of the means [S, n, P] and the variances [S, n] at X [n, D], and their pullback to X."""
    xp = backend_of(X).xp
    Kuf, pull_cross = settings.kernel.stacked_covariance(train, X)
    kff, pull_diag = settings.kernel.stacked_variances(X)
    Kuf, kff = _plus(Kuf, level), _plus(kff, level)
    A = factor.root @ Kuf
    var, pull_var = nonnegative(kff - xp.sum(A * A, axis=1))

    def pullback(mu_bar, var_bar):
        left = pull_var(var_bar)
        through = factor.root.mT @ (A * left[:, None, :])
        X_bar = pull_cross(factor.weights @ mu_bar.mT - 2.0 * through)[1]
        return tree.add(X_bar, pull_diag(left))

    return (Kuf.mT @ factor.weights, var), pullback


def _join_rows(old: Array | None, new: Array | None, X: Array, others: Array, usual: float) -> Array | None:
    """Concatenate numbers of old and new rows; numbers that are None have the usual value."""
    if old is None and new is None:
        return None
    xp = backend_of(X).xp
    parts = [xp.full((x.shape[0],), usual, **like(X)) if one is None else one for one, x in ((old, X), (new, others))]
    return xp.concat(parts, axis=0)
