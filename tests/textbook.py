"""Formulas as textbooks have them, with explicit inverses in plain NumPy, and random problems to check them on."""

import math
from dataclasses import dataclass

import numpy as np
from helpers import svgp
from hypothesis import settings
from hypothesis import strategies as st

from agp import RBF, Gaussian, Matern32
from agp.posteriors import Relaxed, Whitened

JITTER = 1e-6
PROFILES = {RBF: lambda r2: np.exp(-0.5 * r2), Matern32: lambda r2: (1 + np.sqrt(3 * r2)) * np.exp(-np.sqrt(3 * r2))}

deterministic = settings(derandomize=True, max_examples=60, deadline=None, database=None)


# -- textbook --------------------------------------------------------------------------------------------------------


def textbook_kernel(kind, variance, lengthscale, X, Z):
    r2 = np.sum(((X[:, None, :] - Z[None, :, :]) / lengthscale) ** 2, axis=-1)
    return variance * PROFILES[kind](r2)


def log_det(A):
    return np.log(np.linalg.det(A))  # analytic, so that complex steps differentiate it


def log_normal(y, K):
    """Log N(y; 0, K), summed over the columns of y."""
    fit = np.sum(y * np.linalg.solve(K, y))
    return -0.5 * (fit + y.shape[1] * np.linalg.slogdet(K)[1] + y.size * math.log(2 * math.pi))


def gaussian_elbo(mu, var, kl, noise, y):
    """Log densities expected under N(mu, var), var [N] the same for all outputs, minus kl."""
    square = np.sum((y - mu) ** 2) + y.shape[1] * np.sum(var)
    return -0.5 * (y.size * np.log(2 * math.pi * noise) + square / noise) - kl


def textbook_sgpr(Kuu, Kuf, kff, noise, y):
    """Titsias' collapsed bound in its N x N form."""
    Qff = Kuf.T @ np.linalg.solve(Kuu, Kuf)
    slack = np.sum(kff) - np.trace(Qff)
    return log_normal(y, Qff + noise * np.eye(len(y))) - 0.5 * y.shape[1] * slack / noise


def l_svgp(Kuu, Kuf, kff, m, s, preconditioned):
    """Mu, var and KL of q(u) = N(Kuu mh, Kuu - Kuu Kt^-1 Kuu), with explicit inverses."""
    M, P = m.shape
    Kt = Kuu + np.diag(s)
    inverse = np.linalg.inv(Kt)
    mh = inverse @ m if preconditioned else m
    var = kff - np.sum(Kuf * (inverse @ Kuf), axis=0)
    kl = 0.5 * (np.sum(mh * (Kuu @ mh)) + P * (-np.trace(inverse @ Kuu) + log_det(Kt) - np.sum(np.log(s))))
    return Kuf.T @ mh, var, kl


def normal_kl(mean, S, K):
    """KL[N(mean_p, S) || N(0, K)] summed over p."""
    M, P = mean.shape
    shape = np.trace(np.linalg.solve(K, S)) - M + np.linalg.slogdet(K)[1] - np.linalg.slogdet(S)[1]
    return 0.5 * (np.sum(mean * np.linalg.solve(K, mean)) + P * shape)


# -- random problems -------------------------------------------------------------------------------------------------


@dataclass
class Problem:
    """Data, hyperparameters and random variational parameters."""

    seed: int
    N: int
    M: int
    D: int
    P: int
    kind: type
    noise: float
    spread: float
    distance: float

    def __post_init__(self):
        rng = np.random.default_rng(self.seed)
        self.rng = rng
        self.X = rng.normal(size=(self.N, self.D))
        self.Z = rng.normal(size=(self.M, self.D))
        self.y = rng.normal(size=(self.N, self.P)) + np.sin(2 * self.X[:, :1])
        self.variance = float(np.exp(rng.normal()))
        self.lengthscale = self.spread * np.exp(0.3 * rng.normal(size=self.D))
        self.m = rng.normal(size=(self.M, self.P))
        self.s = np.exp(rng.uniform(-4, 1, size=self.M))
        self.C = np.tril(rng.normal(size=(self.P, self.M, self.M))) + 2 * np.eye(self.M)
        self.Kuu = self.k(self.Z, self.Z) + JITTER * np.eye(self.M)
        self.Kuf = self.k(self.Z, self.X)
        self.kff = np.full(self.N, self.variance)
        self.Kt = self.Kuu + np.diag(self.s)
        self.L_exact = np.linalg.cholesky(np.linalg.inv(self.Kt))
        bend = np.eye(self.M) + self.distance * np.tril(rng.uniform(-1, 1, size=(self.M, self.M)))
        self.L = np.tril(self.L_exact @ bend)

    def k(self, X, Z):
        return textbook_kernel(self.kind, self.variance, self.lengthscale, X, Z)

    def lml(self):
        return log_normal(self.y, self.k(self.X, self.X) + self.noise * np.eye(self.N))

    def parts(self):
        return self.kind(np.asarray(self.variance), self.lengthscale), Gaussian(np.asarray(self.noise))

    def whitened(self, m=None, C=None):
        posterior = Whitened(self.m if m is None else m, self.C if C is None else C)
        return svgp(*self.parts(), posterior, self.Z, JITTER)

    def relaxed(self, L=None, preconditioned=True):
        posterior = Relaxed(self.m, self.s, self.L if L is None else L, preconditioned)
        return svgp(*self.parts(), posterior, self.Z, JITTER)

    def bound(self, model):
        return float(model.bound(self.X, self.y)[0])

    def slack(self, value):
        return 1e-9 * (1 + abs(value))


seeds = st.integers(0, 2**32 - 1)
problems = st.builds(
    Problem,
    seed=seeds,
    N=st.integers(8, 20),
    M=st.integers(1, 7),
    D=st.integers(1, 3),
    P=st.sampled_from([1, 3]),
    kind=st.sampled_from([RBF, Matern32]),
    noise=st.sampled_from([0.01, 0.1, 1.0]),
    spread=st.sampled_from([0.3, 1.0, 3.0]),
    distance=st.sampled_from([0.0, 1e-3, 0.1, 0.5]),
)
preconditioned = st.booleans()
