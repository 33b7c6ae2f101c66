"""The posterior of the terms of a function, if the kernel is a sum."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from agp.backend import Array, asarray_like, backend_of, like
from agp.chunking import row_ranges, rows_within
from agp.errors import name_remedy
from agp.likelihoods import average_samples
from agp.linalg import nonnegative
from agp.processes import Process


class Components(NamedTuple):
    """The posterior of the terms f_1, f_2, ... of a latent function f, which is their sum.

    Sums over all K components are the mean and the variance of f: ``mean.sum(axis=-1)`` is the mean that
    `Predictor.predict` returns, and ``covariance.sum(axis=(-2, -1))`` is the variance.

    Given the data, the components depend on each other: if one of them is higher, another one is lower. Therefore the
    sum of `variance` over the components is not the variance of f, and is often much larger.

    Examples
    --------
    The sum of two components is `components.sums`.

    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(0.0, 4.0, 30)[:, None]
    >>> y = X[:, 0] + np.sin(6.0 * X[:, 0])
    >>> kernel = agp.Linear(1.0) + agp.Matern52(1.0, 2.0) + agp.RBF(1.0, 0.3)
    >>> predictor = agp.GPR.from_data(X, y, kernel=kernel, likelihood=agp.Gaussian(0.01)).predictor()
    >>> components = predictor.components(X)
    >>> components.names
    ('linear', 'matern52', 'rbf')
    >>> bool(np.allclose(components.mean.sum(axis=-1), predictor.predict(X).mean))
    True
    >>> two = components.sums({"trend": ["linear", "matern52"], "waves": ["rbf"]})
    >>> two.names, two.mean.shape
    (('trend', 'waves'), (30, 1, 2))
    """

    names: tuple[str, ...]
    """The names of the K components: the terms of the kernel as text, and "mean function" if there is one."""
    mean: Array
    """The means [..., N, P, K], in the unit of the latent function."""
    covariance: Array
    """The covariances [..., N, P, K, K] of the components with each other, at the same row."""
    columns: tuple[tuple[Any, ...], ...]
    """The numbers of the input columns on which each component depends; none for a constant."""

    @property
    def variance(self) -> Array:
        """The variances [..., N, P, K] of the components."""
        xp, K = backend_of(self.covariance).xp, len(self.names)
        return xp.stack([self.covariance[..., k, k] for k in range(K)], axis=-1)

    def sums(self, groups: Mapping[str, str | int | Sequence[str | int]], /) -> Self:
        """Return the sums of some components: their names, with the names or numbers of the components in each sum.

        A component that is in none of the sums stays as it is, after the sums.

        Raises
        ------
        ValueError
            If a component does not exist, or is in several sums.
        """
        chosen = {name: [self._place(x) for x in _several(members)] for name, members in groups.items()}
        used = [place for places in chosen.values() for place in places]
        twice = next((place for place in used if used.count(place) > 1), None)
        if twice is not None:
            raise ValueError(f"the component {self.names[twice]!r} is in several sums; name each component once.")
        rest = {self.names[k]: [k] for k in range(len(self.names)) if k not in used}
        everything = [*chosen.items(), *rest.items()]
        xp = backend_of(self.mean).xp
        mean = xp.stack([_sum(self.mean, k) for _, k in everything], axis=-1)
        rows = [xp.stack([_sum(_sum(self.covariance, j), i) for _, j in everything], axis=-1) for _, i in everything]
        names, columns = tuple(name for name, _ in everything), tuple(self._columns(k) for _, k in everything)
        return type(self)(names, mean, xp.stack(rows, axis=-2), columns)

    def _columns(self, places: Sequence[int]) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(column for k in places for column in self.columns[k]))

    def _place(self, component: str | int) -> int:
        if isinstance(component, int) and 0 <= component < len(self.names):
            return component
        if component not in self.names:
            raise ValueError(
                f"component {component!r} does not exist; {name_remedy(component, self.names, 'the components are')}"
            )
        return self.names.index(component)


def _several(members: str | int | Sequence[str | int]) -> Iterable[str | int]:
    return [members] if isinstance(members, (str, int)) else members


def _sum(x: Array, places: Sequence[int]) -> Array:
    """Return the sum of the entries of the last axis at these places."""
    total = x[..., places[0]]
    for place in places[1:]:
        total = total + x[..., place]
    return total


def latent_terms(
    memory: float | None, predictor: Any, process: Process, factor: Any, X: Array, /
) -> tuple[Array, Array]:
    """Compute the moments [S, n, P, K + 1] and [S, n, P, K + 1, K + 1] of all terms at X [n, D].

    Each of the K terms needs as much memory as f, so that fewer rows may fit into the budget.
    """
    xp, S = backend_of(X).xp, process.samples
    block = rows_within(memory, (len(process.terms()) + 1) * predictor.floats_per_row, X)
    found = [process.project_terms(factor, X[i:j, :]) for i, j in row_ranges(X.shape[0], block)]
    by_sample = ([xp.reshape(x, (S, -1, *x.shape[1:])) for x in several] for several in zip(*found, strict=True))
    mean, covariance = (xp.concat(parts, axis=1) for parts in by_sample)
    return mean, covariance


def mixture_of_terms(terms: tuple[Array, Array], shares: Array | None, /) -> tuple[Array, Array]:
    """Return the moments [n, P, K] and [n, P, K, K] of the mixture of S samples with weights [S], by default 1 / S."""
    mean, covariance = terms
    if mean.shape[0] == 1:
        return mean[0, ...], covariance[0, ...]
    centre = average_samples(mean, shares)
    apart = mean - centre
    return centre, average_samples(covariance + apart[..., :, None] * apart[..., None, :], shares)


def joint_terms(process: Process, factor: Any, X: Array, count: int, /) -> tuple[Array, Array]:
    """Return the means [n, P, K] and the joint covariances [P, K, n, K, n] of all `count` components at X [n, D].

    The mean function, if there is one, is the last component. In a mixture, its constant is a term of the kernel of a
    setting, to which the mean function is added.
    """
    xp = backend_of(X).xp
    mean, covariance = process.project_joint_terms(factor, X)
    P, K, n = covariance.shape[:3]
    if count == K:  # no mean function, or one that is a term of the kernel
        return xp.concat([mean[..., : K - 1], mean[..., K - 1 : K] + mean[..., K:]], axis=-1), covariance
    wide = xp.zeros((P, 1, n, K, n), **like(covariance))
    covariance = xp.concat([covariance, wide], axis=1)
    return mean, xp.concat([covariance, xp.zeros((P, K + 1, n, 1, n), **like(covariance))], axis=3)


def draw_terms(process: Process, factor: Any, count: int, X: Array, rng: Any, names: int, /) -> Array:
    """Draw joint samples [count, n, P, K] of the components of a Gaussian process at X [n, D]."""
    xp = backend_of(X).xp
    mean, covariance = joint_terms(process, factor, X, names)
    P, K, n = covariance.shape[:3]
    eigenvalues, vectors = xp.linalg.eigh(xp.reshape(covariance, (P, K * n, K * n)))
    scale = xp.sqrt(nonnegative(eigenvalues)[0])[:, None, :]
    noise = asarray_like(rng.standard_normal((count, P, K * n, 1)), X)
    drawn = (vectors * scale) @ (vectors.mT @ noise)  # the symmetric root is unique
    return mean + xp.permute_dims(xp.reshape(drawn, (count, P, K, n)), (0, 3, 1, 2))
