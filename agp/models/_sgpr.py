"""Sparse GP regression with the optimal q(u)."""

from dataclasses import replace
from typing import Any, Self, Unpack

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.bounds import Batch, Statistics, collapsed_bound, collapsed_posterior, collapsed_statistics
from agp.checks import as_columns
from agp.inducing import Inducing
from agp.kernels import Kernel
from agp.likelihoods import Gaussian
from agp.linalg import cholesky, identity
from agp.means import Mean, ZeroMean
from agp.models._gpr import GPR
from agp.models._growth import growing_part
from agp.models._parts import SparseParts
from agp.models._regression import SparseRegression, prepare_regression
from agp.models._start import held_data, initialise_model, sparse_parts
from agp.models._svgp import SVGP
from agp.posteriors import Whitened
from agp.priors import Priors
from agp.processes import Process, Sparse


def shared_covariance(mean: Array, L: Array) -> Whitened:
    """Return q(v_p) = N(m_p, (L L^T)^-1) for all outputs p, in whitened coordinates, from m [M, P] and L [M, M]."""
    B = backend_of(L)
    xp = B.xp
    M, P = mean.shape
    # Let J be the matrix that reverses the order of rows, and R the Cholesky factor of J (L L^T) J. Then the lower
    # factor of (L L^T)^-1 is J R^-T J.
    R = cholesky(xp.flip(L @ L.mT))
    scale = xp.tril(xp.flip(B.solve_triangular(R, identity(R), transpose=True)))
    return Whitened(mean, xp.asarray(xp.broadcast_to(scale, (P, M, M)), copy=True))


@tree.model
class SGPR(SparseRegression):
    """Sparse GP regression with Gaussian noise and the optimal q(u), in O(N M^2) time.

    Training optimises the inducing inputs and the parameters of the kernel, the noise and the mean function, but not
    q(u), which has a closed form. The bound is computed in blocks of rows, so its memory does not grow with N. The
    model also holds a copy of the data, and each call of a prediction method first makes a pass over all data. For
    a model that does not store the data, use `to_svgp`.

    Parameters
    ----------
    kernel, likelihood
        The prior covariance of f, and `Gaussian` noise.
    inducing
        The inducing variables, such as `agp.inducing.Points`.
    X, y
        The training inputs [N, D] and targets [N, P], which are also used for prediction. Checkpoints also contain X
        and y.
    jitter
        The number added to the diagonal of Kuu. By default, it is 1e-6 (float64) or 1e-4 (float32) times the mean of
        the diagonal.
    mean_function, priors
        See `SVGP`.
    weights, offset, noise
        What is known of the rows; see `GPR`.

    Source: Titsias, "Variational learning of inducing variables in sparse Gaussian processes", AISTATS 2009.

    Examples
    --------
    More inducing inputs raise the bound, at most to the log evidence of the exact GP.

    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(0.0, 6.0, 31)[:, None]
    >>> y = np.sin(X[:, 0])
    >>> parts = {"kernel": agp.RBF(1.0, 1.0), "likelihood": agp.Gaussian(0.01)}
    >>> for Z in (X[::10, :], X[::5, :], X[::3, :]):
    ...     bound, _ = agp.SGPR.from_data(X, y, Z=Z, **parts).bound(X, y)
    ...     print(len(Z), round(float(bound), 1))
    4 -250.3
    7 15.5
    11 21.1
    >>> round(float(agp.GPR.from_data(X, y, **parts).bound(X, y)[0]), 1)
    21.1
    """

    kernel: Kernel
    likelihood: Gaussian
    inducing: Inducing
    X: Array = tree.constant()
    y: Array = tree.constant()
    mean_function: Mean = ZeroMean()
    jitter: float | None = None
    priors: Priors = ()
    weights: Array | None = tree.constant(default=None, optional=True)
    offset: Array | None = tree.constant(default=None, optional=True)
    noise: Array | None = tree.constant(default=None, optional=True)

    @classmethod
    def from_data(cls, X: Array, y: Array, /, **parts: Unpack[SparseParts]) -> Self:
        """Build a model that is ready for training.

        Raises
        ------
        TypeError
            If the likelihood is not Gaussian.
        """
        data = prepare_regression(cls, X, y, parts)
        return initialise_model(cls(**sparse_parts(data), **held_data(X, y, data)), data)

    def _add_inducing(self, Z: Array, /, *, begun: bool = False) -> Self:  # noqa: ARG002
        return tree.replace(self, {"inducing": self.inducing.add_inducing(Z)})

    def _objective(self, batch: Batch, /, *, memory: float | None = None) -> tuple[Array, Pullback]:
        rows = {"block_rows": self._block_rows(batch.X, memory), "kept_rows": self._num_cached_rows(batch.X, memory)}
        return collapsed_bound(self, batch, **rows)

    def _statistics(self, *, memory: float | None = None) -> Statistics:
        """Compute the sums, over all rows, that determine the bound and the optimal q(u)."""
        return collapsed_statistics(self, self._data, block_rows=self._block_rows(self.X, memory))

    # -- prediction -------------------------------------------------------------------------------------------------

    def to_svgp(self, *, memory: float | None = None) -> SVGP:
        """Return a W-SVGP with the optimal q(u), the same bound and the same predictions, but without the data."""
        rows = self._block_rows(self.X, memory)
        _, LB, c, _ = collapsed_posterior(self, self._data, block_rows=rows)
        posterior = shared_covariance(backend_of(LB).solve_triangular(LB, c, transpose=True), LB)
        return SVGP(Sparse.of(self, posterior), self.likelihood, self.priors)

    def _drop_data(self) -> SVGP:
        return self.to_svgp()

    def _posterior_process(self, *, memory: float | None = None) -> Process:
        return self.to_svgp(memory=memory)._posterior_process()


def collapsed_model(model: Any, data: Batch, /) -> SGPR | None:
    """Return an `SGPR` with the prior, noise and inducing inputs of an `SVGP`, for all rows of a batch.

    Returns None if there is no equivalent `SGPR`, because the model is a mixture or its likelihood is not Gaussian with
    a single noise variance.
    """
    if isinstance(model, SGPR):
        return model
    path, part = growing_part(model)
    likelihood = model.likelihood
    if path != "process" or type(likelihood) is not Gaussian or likelihood.missing or likelihood.noise_variance.ndim:
        return None
    if data.noise is not None and data.noise.shape[1] > 1:
        return None
    known = dict(zip(("weights", "offset", "noise"), data.known, strict=True))
    y = as_columns(data.y)
    return SGPR(part.kernel, likelihood, part.inducing, data.X, y, part.mean_function, part.jitter, **known)


def exact_model(model: Any, data: Batch, /) -> GPR | None:
    """Return a `GPR` with the kernel, noise, mean function and priors; None if `collapsed_model` returns None."""
    found = collapsed_model(model, data)
    if found is None:
        return None
    known = dict(zip(("weights", "offset", "noise"), data.known, strict=True))
    parts = {"X": data.X, "y": as_columns(data.y), "mean_function": found.mean_function}
    exact = GPR(found.kernel, found.likelihood, **parts, **known)
    names = tree.leaves(exact, "parameter")
    kept = [(key, one) for key, one in model.priors if any(tree.matches(x, tree.whole_pattern(key)) for x in names)]
    return replace(exact, priors=tuple(kept))
