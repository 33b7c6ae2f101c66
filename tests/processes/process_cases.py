"""Small processes of every composition, far from any optimum, on images of 3 x 4 pixels."""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg
from helpers import as_arrays, posterior_of

from agp import tree
from agp.inducing import Inducing, JointInducing, Patches, PatchGrid, Points
from agp.kernels import RBF, Matern32, Matern52
from agp.likelihoods import Bernoulli, Gaussian, Poisson
from agp.means import ConstantMean, LinearMean
from agp.models import SVGP
from agp.posteriors import Dual, DualInverseFree, Orthogonal, RelaxedOrthogonal, Whitened
from agp.processes import Deep, LinearMixing, Patchwise, Process, Sparse, Stack

IMAGE, PATCH, COLUMNS, NUMBER = (3, 4), (2, 2), 12, 6
"""The shape of an input and of its patches, and how many columns and patches that makes."""
JITTER, ROWS, SAMPLES = 1e-3, 9, 4

POSTERIORS = (
    "whitened",
    "marginal",
    "likelihood",
    "likelihood-plain",
    "relaxed",
    "relaxed-plain",
    "inverse-free",
    "dual-natural",
    "dual-kernel",
    "dual-white",
    "dual-inverse-free",
    "orthogonal",
    "orthogonal-dual",
    "relaxed-orthogonal",
    "diagonal-whitened",
    "diagonal-marginal",
    "likelihood-full-site",
    "relaxed-full-site",
    "relaxed-root",
)
COVERING = ("whitened", "marginal", "likelihood", "relaxed", "inverse-free", "dual-natural", "orthogonal")
"""One of each kind of q(u), for what is slow."""
WITH_SITES = ("dual-natural", "dual-kernel", "dual-white", "dual-inverse-free", "orthogonal-dual")
FOLLOWS_ITS_INVERSE = ("inverse-free", "dual-inverse-free")
"""Those whose gradient follows the exact inverse, while the forward holds the factor: no slope of the forward."""


# -- q(u) -------------------------------------------------------------------------------------------------------------


def q_of(kind: str, Kuu: np.ndarray, outputs: int, rng: np.random.Generator) -> Any:
    """A random q(u) on the host; inverse factors are off by a few per cent."""
    M = len(Kuu)
    if kind in ("orthogonal", "orthogonal-dual"):
        first = M - M // 2
        parts = [q_of("whitened", Kuu[s, s], outputs, rng) for s in (slice(None, first), slice(first, None))]
        if kind == "orthogonal-dual":
            parts[1] = q_of("dual-natural", Kuu[first:, first:], outputs, rng)
        return Orthogonal(tuple(parts), (first, M - first))
    if kind.startswith("dual-") and kind != "dual-inverse-free":
        return Dual.from_posterior(q_of("whitened", Kuu, outputs, rng), Kuu, tied=kind.removeprefix("dual-"))
    if kind in ("dual-inverse-free", "relaxed-orthogonal"):
        cls = DualInverseFree if kind == "dual-inverse-free" else RelaxedOrthogonal
        q = cls.from_prior(Kuu, outputs)
        q = tree.with_leaves(q, {name: _bent(name, x, rng) for name, x in tree.leaves(q).items()})
        for name in q.inverse_factors:
            near = q.invert(Kuu, name).factor
            q = tree.with_leaves(q, {name: near * (1.0 + 0.01 * rng.normal(size=near.shape))})
        return q
    return posterior_of(kind, Kuu, outputs, rng)


def _bent(name: str, x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A starting leaf, elsewhere."""
    if name == "mean":
        return rng.normal(size=x.shape)
    if name == "site":
        return x + 0.1 + rng.uniform(size=x.shape)
    if name == "shift":
        return 0.3 * rng.normal(size=x.shape)
    if name == "precision":
        root = rng.normal(size=x.shape)
        return 0.1 * root @ np.swapaxes(root, -1, -2)
    return x


# -- parts ------------------------------------------------------------------------------------------------------------


def sparse(kernel: Any, inducing: Inducing, kind: str, outputs: int, rng: Any, mean: Any = None) -> Sparse:
    """A sparse process with a random q(u) of this kind."""
    mean = ConstantMean(rng.normal(size=outputs)) if mean is None else mean
    fields = {"kernel": as_arrays(kernel), "inducing": inducing, "mean_function": as_arrays(mean), "jitter": JITTER}
    blank = Sparse(posterior=None, **fields)
    return Sparse(posterior=q_of(kind, blank.inducing_covariance()[0], outputs, rng), **fields)


def points(M: int, width: int, rng: Any) -> Points:
    return Points(rng.normal(size=(M, width)))


def patches(M: int, rng: Any, *, weighted: bool = False) -> Patches:
    weights = rng.uniform(0.5, 1.5, size=NUMBER) if weighted else None
    return Patches(IMAGE, PATCH, rng.normal(size=(M, 4)), weights)


def _points(kind: str, rng: Any, outputs: int = 1, *, kernel: Any = None, M: int = 5, width: int = COLUMNS) -> Sparse:
    kernel = RBF(0.9, tuple(np.linspace(2.0, 3.5, width))) if kernel is None else kernel
    return sparse(kernel, points(M, width, rng), kind, outputs, rng)


def _conv(kind: str, rng: Any, outputs: int = 1, *, weighted: bool = True) -> Sparse:
    return sparse(RBF(1.4, 1.7), patches(4, rng, weighted=weighted), kind, outputs, rng)


def _stack(kind: str, rng: Any) -> Stack:
    return Stack((_points(kind, rng), _points(kind, rng, kernel=Matern52(0.7, 3.0), M=4)))


def strided(M: int, rng: Any) -> Patches:
    """Images of 2 x 3 pixels with two channels, zeros around them, and steps of two pixels: four patches."""
    settings = {"stride": 2, "padding": 1, "channels": 2}
    return Patches((2, 3), PATCH, rng.normal(size=(M, 8)), rng.uniform(0.5, 1.5, size=4), **settings)


def per_channel(M: int, rng: Any) -> Patches:
    """Images of 3 x 2 pixels with two channels, and a response to each of these: four patches."""
    weights = rng.uniform(0.5, 1.5, size=4)
    return Patches((3, 2), PATCH, rng.normal(size=(M, 4)), weights, channels=2, per_channel=True)


def located(M: int, rng: Any) -> Patches:
    """Patches that know their places."""
    Z = np.concatenate([rng.normal(size=(M, 4)), rng.uniform(0.5, 2.5, size=(M, 2))], axis=1)
    return Patches(IMAGE, PATCH, Z, rng.uniform(0.5, 1.5, size=NUMBER), located=True)


def _located(kind: str, rng: Any) -> Sparse:
    kernel = RBF(1.4, 1.7).on(range(4)) * Matern32(0.9, (1.5, 2.0)).on((4, 5))
    return sparse(kernel, located(4, rng), kind, 2, rng)


def _conv_and_points(kind: str, rng: Any) -> LinearMixing:
    return LinearMixing(Stack((_conv(kind, rng), _points(kind, rng))), np.ones((1, 2)))


def _together(kind: str, rng: Any) -> Sparse:
    kernel = RBF(1.4, 1.7) + Matern32(0.6, tuple(np.linspace(2.0, 3.5, COLUMNS)))
    return sparse(kernel, JointInducing((patches(3, rng, weighted=True), points(4, COLUMNS, rng))), kind, 2, rng)


def _inner(kind: str) -> str:
    """The q(u) of inner layers, which keep no sites."""
    return "whitened" if kind in WITH_SITES else kind


def _linear(width: int, outputs: int, rng: Any) -> LinearMean:
    return LinearMean(0.4 * rng.normal(size=(width, outputs)), np.zeros(outputs))


def _deep(kind: str, rng: Any) -> Deep:
    first = sparse(RBF(0.6, 3.0), points(5, COLUMNS, rng), _inner(kind), 2, rng, _linear(COLUMNS, 2, rng))
    return Deep((first, _points(kind, rng, 2, kernel=RBF(1.2, (1.0, 1.5)), width=2)), samples=SAMPLES)


def _deep_conv(kind: str, rng: Any) -> Deep:
    first = _conv(_inner(kind), rng, 2)
    return Deep((first, _points(kind, rng, kernel=Matern52(1.1, 1.3), width=2)), samples=SAMPLES)


def _deep_compositions(kind: str, rng: Any) -> Deep:
    inner = _inner(kind)
    first = LinearMixing(Stack((_conv(inner, rng), _points(inner, rng))), rng.normal(size=(3, 2)))
    second = Stack(
        (
            _points(inner, rng, kernel=RBF(0.8, 1.5), width=3),
            sparse(Matern52(0.7, 2.0), points(4, 3, rng), inner, 1, rng, _linear(3, 1, rng)),
        )
    )
    last = LinearMixing(Stack((_points(kind, rng, width=2), _points(kind, rng, M=4, width=2))), rng.normal(size=(2, 2)))
    return Deep((first, second, last), samples=SAMPLES)


def _deep_images(kind: str, rng: Any) -> Deep:
    """From images to images of 2 x 3 pixels with two channels, and to a response to their patches."""
    first = sparse(RBF(0.6, 2.0), points(5, 4, rng), _inner(kind), 2, rng, _linear(4, 2, rng))
    weights = rng.uniform(0.5, 1.5, size=2)
    place = Patches((2, 3), PATCH, rng.normal(size=(4, 8)), weights, channels=2)
    last = sparse(RBF(1.3, 2.5), place, kind, 1, rng)
    return Deep((Patchwise(first, PatchGrid(IMAGE, PATCH)), last), samples=SAMPLES)


def _deep_places(kind: str, rng: Any) -> Deep:
    """Two layers from images to images, the first of which sees where patches are."""
    inner = _inner(kind)
    kernel = RBF(0.8, 1.7).on(range(4)) * Matern32(1.1, (1.5, 2.0)).on((4, 5))
    first = LinearMixing(sparse(kernel, Points(located(4, rng).Z), inner, 2, rng), rng.normal(size=(2, 2)))
    second = sparse(Matern52(0.7, 2.5), points(5, 8, rng), inner, 1, rng, _linear(8, 1, rng))
    grids = PatchGrid(IMAGE, PATCH, stride=2, padding=1, located=True), PatchGrid((2, 3), PATCH, channels=2)
    layers = Patchwise(first, grids[0]), Patchwise(second, grids[1]), _points(kind, rng, width=2)
    return Deep(layers, samples=SAMPLES)


PROCESSES: dict[str, Callable[[str, Any], Process]] = {
    "points": lambda kind, rng: _points(kind, rng, 2),
    "separate": _stack,
    "lmc": lambda kind, rng: LinearMixing(_stack(kind, rng), rng.normal(size=(3, 2))),
    "intrinsic": lambda kind, rng: LinearMixing(_points(kind, rng, 2), rng.normal(size=(3, 2))),
    "patches": lambda kind, rng: _conv(kind, rng, 2, weighted=False),
    "patches-weighted": lambda kind, rng: _conv(kind, rng, 2),
    "patches-strided": lambda kind, rng: sparse(RBF(1.4, 2.1), strided(4, rng), kind, 2, rng),
    "patches-per-channel": lambda kind, rng: sparse(Matern52(1.4, 1.7), per_channel(4, rng), kind, 2, rng),
    "patches-located": _located,
    "conv+rbf": _conv_and_points,
    "together": _together,
    "deep": _deep,
    "deep-conv": _deep_conv,
    "deep-compositions": _deep_compositions,
    "deep-images": _deep_images,
    "deep-places": _deep_places,
}
DEEP = tuple(name for name in PROCESSES if name.startswith("deep"))
SHALLOW = tuple(name for name in PROCESSES if name not in DEEP)

LIKELIHOODS: dict[str, Callable[[], Any]] = {
    "gaussian": lambda: Gaussian(0.2),
    "bernoulli": lambda: Bernoulli(),
    "poisson": lambda: Poisson(),
}


def process_case(name: str, kind: str = "whitened", seed: int = 0) -> Process:
    """A process on the host."""
    return PROCESSES[name](kind, np.random.default_rng([seed, list(PROCESSES).index(name), POSTERIORS.index(kind)]))


def data(outputs: int, likelihood: str = "gaussian", rows: int = ROWS, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Images [N, 12] and targets [N, P]."""
    rng = np.random.default_rng([seed, rows, outputs])
    X = rng.normal(size=(rows, COLUMNS))
    y = rng.normal(size=(rows, outputs))
    return X, {"gaussian": y, "bernoulli": 1.0 * (y > 0), "poisson": np.floor(np.exp(np.clip(y, -1.0, 2.0)))}[
        likelihood
    ]


def case(name: str, kind: str = "whitened", likelihood: str = "gaussian") -> tuple[SVGP, np.ndarray, np.ndarray]:
    """A model with its data, on the host."""
    process = process_case(name, kind)
    model = SVGP(process=process, likelihood=as_arrays(LIKELIHOODS[likelihood]()))
    return model, *data(process.outputs, likelihood)


# -- the same by dense formulas, in plain NumPy -----------------------------------------------------------------------


def _dense_response(inducing: Any, kernel: Any, X: np.ndarray) -> tuple[Any, Any, Any]:
    """Kuu without jitter, Kuf and Kff, image by image and patch by patch."""
    if isinstance(inducing, JointInducing):
        terms = [_dense_response(*pair, X) for pair in zip(inducing.parts, kernel.parts, strict=True)]
        Kuu = scipy.linalg.block_diag(*(term[0] for term in terms))
        return Kuu, np.concatenate([term[1] for term in terms]), sum(term[2] for term in terms)
    k = lambda A, B: kernel(A, B)[0]  # noqa: E731
    if isinstance(inducing, Points):
        return k(inducing.Z, inducing.Z), k(inducing.Z, X), k(X, X)
    cut = cut_by_loops(inducing.grid, X)
    N, Q, _ = cut.shape
    w = np.ones(Q) if inducing.weights is None else inducing.weights
    Kuf = np.stack([k(inducing.Z, cut[n]) @ w for n in range(N)], axis=1) / Q
    Kff = np.array([[w @ k(cut[n], cut[m]) @ w for m in range(N)] for n in range(N)]) / Q**2
    return k(inducing.Z, inducing.Z), Kuf, Kff


def cut_by_loops(grid: Any, X: np.ndarray) -> np.ndarray:
    """The patches [N, Q, .] of images, pixel by pixel."""
    (H, W), (h, v), C, around, step = grid.image, grid.patch, grid.channels, grid.padding, grid.stride
    found = []
    for image in X.reshape(-1, H, W, C):
        patches = []
        for top in range(-around, H + around - h + 1, step):
            for left in range(-around, W + around - v + 1, step):
                inside = [
                    [image[i, j] if 0 <= i < H and 0 <= j < W else np.zeros(C) for j in range(left, left + v)]
                    for i in range(top, top + h)
                ]
                place = [top + 0.5 * (h - 1), left + 0.5 * (v - 1)] if grid.located else []
                cubes = [np.asarray(inside)]
                if grid.per_channel:
                    cubes = [np.asarray(inside)[:, :, c] for c in range(C)]
                patches += [[*cube.ravel(), *place] for cube in cubes]
        found.append(patches)
    return np.asarray(found)


def joint_of(process: Process, factor: Any, X: np.ndarray) -> np.ndarray:
    """The covariances [P, N, N] of each output with itself, mixed from those of independent functions."""
    latent, A = process.project_covariance(factor, X), process.mixing
    return latent if A is None else np.einsum("pl,lnm->pnm", A * A, latent)


def _moments_of_u(sparse: Sparse, Kuu: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean [M, P] and covariances [P, M, M] of a whitened or a marginal q(u)."""
    q = sparse.posterior
    L = np.linalg.cholesky(Kuu) if isinstance(q, Whitened) else np.eye(len(Kuu))
    roots = L @ q.scale
    return L @ q.mean, roots @ np.swapaxes(roots, 1, 2)


def dense(process: Any, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means [N, P] and covariances [P, N, N]; q(u) whitened or marginal."""
    if isinstance(process, Stack):
        parts = [dense(part, X) for part in process.parts]
        return np.concatenate([part[0] for part in parts], axis=1), np.concatenate([part[1] for part in parts])
    if isinstance(process, LinearMixing):
        mean, covariance = dense(process.process, X)
        return mean @ process.weights.T, np.einsum("pl,lnm->pnm", process.weights**2, covariance)
    Kuu, Kuf, Kff = _dense_response(process.inducing, process.kernel, X)
    Kuu = Kuu + process.jitter * np.eye(len(Kuu))
    mean, covariance = _moments_of_u(process, Kuu)
    A = np.linalg.solve(Kuu, Kuf)
    return process.mean_function(X)[0] + A.T @ mean, Kff + A.T @ (covariance - Kuu) @ A


def dense_kl(process: Any) -> float:
    """KL[q || p], summed over all that is uncertain."""
    total = 0.0
    for sparse in tree.nodes(process, Sparse).values():
        Kuu = sparse.inducing_covariance()[0]
        mean, covariance = _moments_of_u(sparse, Kuu)
        for m, S in zip(mean.T, covariance, strict=True):
            logs = np.linalg.slogdet(Kuu)[1] - np.linalg.slogdet(S)[1]
            total += 0.5 * (np.trace(np.linalg.solve(Kuu, S)) + m @ np.linalg.solve(Kuu, m) - len(m) + logs)
    return total


def dense_moments(process: Any, X: np.ndarray, *, common: bool) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances [S, N, P]; the samples of a deep process one after the other.

    Their noise is the same for all rows, as predictions take it, or each row has its own, as in bounds.
    """
    if not isinstance(process, Deep):
        mean, covariance = dense(process, X)
        return mean[None], np.diagonal(covariance, axis1=1, axis2=2).T[None]
    draws = process.common_draws(0, len(X)) if common else process.row_draws(0, 0, len(X))
    noise, found = draws.by_row["noise"], []
    for eps in noise:
        H, used = X, 0
        for layer in process.layers[:-1]:
            H = _dense_sample(layer, H, eps[:, used : used + layer.latents])
            used += layer.latents
        found.append(dense_moments(process.layers[-1], H, common=common))
    return np.concatenate([mean for mean, _ in found]), np.concatenate([variance for _, variance in found])


def _dense_sample(layer: Any, H: np.ndarray, eps: np.ndarray) -> np.ndarray:
    """A sample [N, P] at each row by itself; noise [N, latents]."""
    if isinstance(layer, Patchwise):
        cut, N = cut_by_loops(layer.grid, H), len(H)
        own = eps.reshape(N, cut.shape[1], -1)
        pixels = [_dense_sample(layer.process, cut[:, q], own[:, q]) for q in range(cut.shape[1])]
        return np.stack(pixels, axis=1).reshape(N, -1)
    if isinstance(layer, LinearMixing):
        return _dense_sample(layer.process, H, eps) @ layer.weights.T
    mean, covariance = dense(layer, H)
    return mean + np.sqrt(np.diagonal(covariance, axis1=1, axis2=2).T) * eps
