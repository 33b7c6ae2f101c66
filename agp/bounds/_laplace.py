"""The Laplace approximation of the log evidence, for two or more classes with logistic links.

The latent functions f_c share the prior covariance K [N, N]. The modes F = K A + offset maximise

    psi = sum_n w_n log p(y_n | f_n) - 1/2 tr(A^T K A),

with the weights w_n of the rows. Let W be minus the second derivatives of the first term at the modes, and
R = (K + W^-1)^-1. The log evidence is then approximately psi - 1/2 log|I + K W|.

For two classes there is one function, and W is diagonal. For C classes with the probabilities p_c [N], let
D_c = diag(w p_c) and E_c = D_c^(1/2) (I + D_c^(1/2) K D_c^(1/2))^-1 D_c^(1/2). Then, with S = sum_c E_c,

    (R V)_c = E_c (v_c - S^-1 sum_d E_d v_d),   log|I + K W| = sum_c log|I + D_c K| + log|S| - sum_n log w_n.

Source: Rasmussen & Williams, "Gaussian processes for machine learning", 2006, sections 3.4, 3.5 and 5.5.
"""

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any, NamedTuple, Self

from agp.backend import Array, Pullback, backend_of
from agp.bounds._batch import Batch
from agp.linalg import add_diagonal, cholesky, diagonal, each_cholesky, each_times, solve_each

LEAST_CURVATURE, LEAST_PROBABILITY = 1e-7, 1e-12
"""The smallest p (1 - p) of two classes, and the smallest probability of several classes, in W."""
MOST_STEPS, LEAST_STEP, ROUNDING = 30, 1e-3, 1e-9
"""The maximum number of Newton steps, the smallest step, and the decrease of psi that rounding errors may cause."""


class LaplaceEvidence(NamedTuple):
    """The result of `laplace_evidence`."""

    value: Array
    """The approximate log evidence (0-d)."""
    weights: Array
    """A [N, P], from which the search for the modes of a similar K should start."""


def laplace_evidence(
    likelihood: Any, K: Array, batch: Batch, /, start: Array | None = None, *, tolerance: float = 1e-3
) -> tuple[LaplaceEvidence, Pullback]:
    """Compute the Laplace approximation of the log evidence, and its pullback ``bar -> K_bar`` [N, N].

    Parameters
    ----------
    likelihood
        `Softmax`, or `Bernoulli` with the link "logit".
    K
        The prior covariance [N, N] of each latent function.
    batch
        All rows, of which the labels, the weights and the offset are used.
    start
        The weights A [N, P] of the first iterate; zero by default.
    tolerance
        Newton's method ends when a step increases psi by less than this number of nats.

    Each Newton step and the pullback take O(C N^3) operations, or O(N^3) for two classes.

    Raises
    ------
    TypeError
        If the likelihood has another link.
    """
    if not likelihood.is_logistic:
        raise TypeError(f"the likelihood is {likelihood!r}, but must be Softmax, or Bernoulli with link='logit'.")
    several = likelihood.latents(1) > 1
    labels = likelihood.proxies(batch.y) if several else batch.y
    kind = _ManyClasses if several else _TwoClasses
    rows = Rows(labels, batch.weights, batch.offset)
    A, psi = _find_mode(kind, K, rows, start, tolerance)
    at = kind.at(K, K @ A, rows)

    def pullback(bar: Any = 1.0) -> Array:
        # G = 1/2 [A A^T - sum_c R_cc + U A^T + A U^T], with A = dlog p/dF at the mode, whose derivative gives U
        slope = at.slope
        U = at.skewness(K)
        U = U - at.times(K @ U)
        outer = U @ slope.mT
        return (0.5 * bar) * (slope @ slope.mT - at.sum_of_blocks() + outer + outer.mT)

    return LaplaceEvidence(psi - 0.5 * at.log_determinant(), A), pullback


class Rows(NamedTuple):
    """Labels in one-hot encoding [N, P], or 0 and 1 [N, 1], the weights [N] and the offset [N, 1 or P] of the rows."""

    labels: Array
    weights: Array | None
    offset: Array | None

    def weigh(self, x: Array) -> Array:
        """Multiply x [N, P] by the weights of the rows."""
        return x if self.weights is None else self.weights[:, None] * x

    def shift(self, f: Array) -> Array:
        """Add the offset to f [N, P]."""
        return f if self.offset is None else f + self.offset


def _find_mode(kind: Any, K: Array, rows: Rows, start: Array | None, tolerance: float) -> tuple[Array, Array]:
    """Return A [N, P] and psi by Newton's method, whose steps are halved until psi does not decrease."""
    xp = backend_of(K).xp

    def objective(A: Array, F: Array) -> Array:
        return kind.log_density(F, rows) - 0.5 * xp.sum(A * F)

    A = xp.zeros_like(rows.labels)
    F, psi = A, objective(A, A)
    if start is not None and float(other := objective(start, K @ start)) > float(psi):
        A, F, psi = start, K @ start, other
    for _ in range(MOST_STEPS):
        change = kind.at(K, F, rows).newton_step(K, F) - A
        moved, share = K @ change, 1.0
        while True:
            new = objective(A + share * change, F + share * moved)
            if float(new) >= float(psi) - ROUNDING or share < LEAST_STEP:
                break
            share *= 0.5
        gain = float(new) - float(psi)
        A, F, psi = A + share * change, F + share * moved, new
        if not gain >= tolerance:
            break
    return A, psi


class _Curvature(ABC):
    """The first two derivatives of the log density at latent functions K A, and solutions with R."""

    slope: Array
    """The derivatives [N, P] of the log density."""

    @classmethod
    @abstractmethod
    def at(cls, K: Array, G: Array, rows: Rows) -> Self:
        """Return the derivatives at the latent functions without offset G = K A [N, P]."""

    @staticmethod
    @abstractmethod
    def log_density(G: Array, rows: Rows) -> Array:
        """Return the log density of all rows (0-d)."""

    @abstractmethod
    def curve(self, V: Array) -> Array:
        """Return W V [N, P]."""

    @abstractmethod
    def times(self, V: Array) -> Array:
        """Return R V [N, P]."""

    @abstractmethod
    def log_determinant(self) -> Array:
        """Return log|I + K W| (0-d)."""

    @abstractmethod
    def sum_of_blocks(self) -> Array:
        """Return the sum of the blocks R_cc [N, N]."""

    @abstractmethod
    def skewness(self, K: Array) -> Array:
        """Return the derivatives [N, P] of -1/2 log|I + K W| with respect to F."""

    def newton_step(self, K: Array, G: Array) -> Array:
        """Return the next A [N, P]."""
        b = self.curve(G) + self.slope
        return b - self.times(K @ b)


class _TwoClasses(_Curvature):
    """Two classes, with p = 1 / (1 + exp(-f)) and W = diag(w p (1 - p))."""

    def __init__(self, K: Array, p: Array, slope: Array, curvature: Array) -> None:
        self.p, self.slope, self.curvature = p, slope, curvature
        self.B, self.xp = backend_of(K), backend_of(K).xp
        self.root = self.xp.sqrt(curvature)
        self.L = cholesky(add_diagonal(self.root * K * self.root.mT, 1.0))

    @classmethod
    def at(cls, K: Array, G: Array, rows: Rows) -> Self:
        xp = backend_of(G).xp
        p = 0.5 * (1.0 + xp.tanh(0.5 * rows.shift(G)))
        curvature = rows.weigh(xp.maximum(p * (1.0 - p), xp.full_like(p, LEAST_CURVATURE)))
        return cls(K, p, rows.weigh(rows.labels - p), curvature)

    @staticmethod
    def log_density(G: Array, rows: Rows) -> Array:
        xp, f = backend_of(G).xp, rows.shift(G)
        return xp.sum(rows.weigh(rows.labels * f - xp.logaddexp(f, xp.zeros_like(f))))

    def curve(self, V: Array) -> Array:
        return self.curvature * V

    def times(self, V: Array) -> Array:
        half = self.B.solve_triangular(self.L, self.root * V)
        return self.root * self.B.solve_triangular(self.L, half, transpose=True)

    def log_determinant(self) -> Array:
        return 2.0 * self.xp.sum(self.xp.log(diagonal(self.L)))

    @cached_property
    def inverse(self) -> Array:
        """The inverse [N, N] of I + W^(1/2) K W^(1/2)."""
        return self.B.inverse_from_cholesky(self.L)

    def sum_of_blocks(self) -> Array:
        return self.root * self.inverse * self.root.mT

    def skewness(self, K: Array) -> Array:  # noqa: ARG002 - the variances follow from the inverse
        # the posterior variance times W_nn is 1 - (I + W^(1/2) K W^(1/2))^-1_nn
        return -0.5 * (1.0 - diagonal(self.inverse)[:, None]) * (1.0 - 2.0 * self.p)


class _ManyClasses(_Curvature):
    """C classes, with p = softmax(f) and W_n = w_n (diag(p_n) - p_n p_n^T)."""

    def __init__(self, K: Array, P: Array, rows: Rows) -> None:
        self.P, self.rows = P, rows
        self.B, self.xp = backend_of(K), backend_of(K).xp
        self.slope = rows.weigh(rows.labels - P)
        root = self.xp.sqrt(rows.weigh(self.xp.maximum(P, self.xp.full_like(P, LEAST_PROBABILITY)))).mT
        self.L = each_cholesky(add_diagonal(root[:, :, None] * K * root[:, None, :], 1.0))
        inverses = [self.B.inverse_from_cholesky(self.L[c, ...]) for c in range(P.shape[1])]
        self.E = root[:, :, None] * self.xp.stack(inverses) * root[:, None, :]
        self.LS = cholesky(self.xp.sum(self.E, axis=0))

    @classmethod
    def at(cls, K: Array, G: Array, rows: Rows) -> Self:
        f = rows.shift(G)
        xp = backend_of(f).xp
        e = xp.exp(f - xp.max(f, axis=1, keepdims=True))
        return cls(K, e / xp.sum(e, axis=1, keepdims=True), rows)

    @staticmethod
    def log_density(G: Array, rows: Rows) -> Array:
        xp, f = backend_of(G).xp, rows.shift(G)
        centred = f - xp.max(f, axis=1, keepdims=True)
        normaliser = xp.log(xp.sum(xp.exp(centred), axis=1, keepdims=True))
        return xp.sum(rows.weigh(rows.labels * (centred - normaliser)))

    def curve(self, V: Array) -> Array:
        weighted = self.P * V
        return self.rows.weigh(weighted - self.P * self.xp.sum(weighted, axis=1, keepdims=True))

    def times(self, V: Array) -> Array:
        each = each_times(self.E, V)
        half = self.B.solve_triangular(self.LS, self.xp.sum(each, axis=1, keepdims=True))
        return each - (self.E @ self.B.solve_triangular(self.LS, half, transpose=True))[:, :, 0].mT

    def log_determinant(self) -> Array:
        xp = self.xp
        value = 2.0 * xp.sum(xp.log(diagonal(self.L))) + 2.0 * xp.sum(xp.log(diagonal(self.LS)))
        return value if self.rows.weights is None else value - xp.sum(xp.log(self.rows.weights))

    def sum_of_blocks(self) -> Array:
        Q = solve_each(self.LS, self.E)  # R_cc = E_c - Q_c^T Q_c
        return self.xp.sum(self.E - Q.mT @ Q, axis=0)

    def skewness(self, K: Array) -> Array:
        # -1/2 W_n v_n with v_n = diag V_n - 2 V_n p_n, for the posterior covariance V_n [C, C] of the functions at n,
        # V_n = diag(K_nn - (K E_c K)_nn) + T_n^T T_n with T_c = LS^-1 E_c K
        xp, P = self.xp, self.P
        T = solve_each(self.LS, self.E) @ K  # [C, N, N]
        own = (diagonal(K) - xp.sum(K * (self.E @ K), axis=-2)).mT
        expected = xp.sum(P.mT[:, None, :] * T, axis=0)
        variances = own + xp.sum(T * T, axis=-2).mT
        v = variances - 2.0 * (own * P + xp.sum(T * expected, axis=-2).mT)
        return -0.5 * self.curve(v)
