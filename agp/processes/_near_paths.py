"""Function samples of the posterior in which each function value depends on the nearest rows."""

from typing import Any, ClassVar

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.processes._outputs import InputsOf
from agp.processes._paths import Paths, mean_of_samples, prior_samples


@tree.model
class NearPaths(InputsOf, Paths):
    """Function samples h(x) + g(x) + u^T (v - v_g) + B^T (y_c - h_c - g(X_c) - eps_c).

    By Matheron's rule, g is a sample of the prior, eps one of the noise, v one of the whitened inducing variables given
    the data, and v_g contains those of g. Since A(x) - A_c B = u, this is the prediction plus a sample of its error.
    """

    process: Any
    """The `NearestNeighbours`."""
    factor: Any
    """Its factor."""
    phi: Any
    """The features of the kernel, a function of X."""
    prior_weights: Array = tree.auxiliary()
    """The weights [P, F, S] of the prior samples."""
    noise: Array = tree.auxiliary()
    """Samples [N, P, S] of the noise of the training rows."""
    shift: Array | None = tree.constant(optional=True)
    """Samples [M, P, S] of v minus those of the prior samples, or None without inducing inputs."""

    takes_inputs_of: ClassVar[str] = "process"

    @property
    def count(self) -> int:
        return self.prior_weights.shape[2]

    @property
    def outputs(self) -> int:
        return self.prior_weights.shape[0]

    @property
    def floats_per_row(self) -> int:
        k = self.process.count
        per_neighbour = 3 * self.prior_weights.shape[1] + 3 * self.count * self.outputs
        return self.process.floats_per_row + k * per_neighbour

    def evaluate(self, X: Array, /) -> tuple[Array, Pullback]:
        xp, process, factor = backend_of(X).xp, self.process, self.factor
        rows = X if X.ndim == 2 else xp.reshape(X, (-1, X.shape[-1]))
        sets, found = process._condition(factor, rows)
        (n, k), P, S = sets.shape, self.outputs, self.count
        index = xp.reshape(sets, (-1,))
        union, place = xp.unique_inverse(index)
        at_rows = _prior_samples(self.phi(backend_of(X).rows_at(process.X, union))[0], self.prior_weights)
        at_rows = xp.take(factor.residual, union, axis=0)[:, :, None] - xp.take(self.noise, union, axis=0) - at_rows
        near = xp.reshape(xp.take(at_rows, xp.reshape(place, (-1,)), axis=0), (n, k, P * S))
        update = -(found.b[:, None, :-1] @ near)[:, 0, :]
        u = found.features
        shift = None if u is None else xp.reshape(self.shift, (-1, P * S))
        if shift is not None:
            update = update + u @ shift
        groups = X.shape[:-2]
        prior, pull_prior = prior_samples(self.phi, X, self.prior_weights)
        h, pull_h = mean_of_samples(process.mean_function, X)
        update = self._by_sample(xp.reshape(update, (n, P, S)), groups, xp)

        def pullback(bar):
            spread = self._spread(bar, groups, n, xp)
            B_bar = (near @ spread[:, :, None])[:, :, 0]
            u_bar = None if shift is None else spread @ shift.mT
            X_bar = process._pull(factor, rows, sets, B_bar, xp.zeros_like(found.variance), u_bar)
            return tree.add(tree.add(xp.reshape(X_bar, X.shape), pull_prior(bar)), pull_h(bar))

        return h + prior + update, pullback

    def _by_sample(self, update: Array, groups: tuple[int, ...], xp: Any) -> Array:
        """Return updates [S, N, P] from those of all samples at all rows [n, P, S]."""
        if not groups:
            return xp.permute_dims(update, (2, 0, 1))
        own = xp.reshape(update, (self.count, -1, self.outputs, self.count))
        return xp.stack([own[s, :, :, s] for s in range(self.count)])

    def _spread(self, bar: Array, groups: tuple[int, ...], n: int, xp: Any) -> Array:
        """Return the adjoint of `_by_sample`, as [n, P S]."""
        if not groups:
            return xp.reshape(xp.permute_dims(bar, (1, 2, 0)), (n, -1))
        parts = []
        for s in range(self.count):
            zeros = xp.zeros_like(bar[s, :, :])
            parts.append(xp.stack([bar[s, :, :] if t == s else zeros for t in range(self.count)], axis=2))
        return xp.reshape(xp.concat(parts, axis=0), (n, -1))


def _prior_samples(phi: Array, weights: Array) -> Array:
    """Return samples [N, P, S] from features [N, F] and weights [P, F, S]."""
    return backend_of(phi).xp.permute_dims(phi @ weights, (1, 0, 2))
