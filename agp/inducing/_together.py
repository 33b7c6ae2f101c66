"""Inducing variables of several independent processes whose sum is f, for a joint q(u)."""

from functools import reduce
from typing import Any, Self

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.checks import check_equal, check_whole
from agp.errors import count_of
from agp.inducing._base import FeatureMap, Inducing
from agp.inducing._points import NUM_INDUCING
from agp.kernels import Features, Kernel, Sum
from agp.linalg import block_diagonal, groups_of


@tree.model
class JointInducing(Inducing):
    """The inducing variables of all terms of f = f_1 + f_2 + .... The kernel must be a `Sum` with one part per term.

    The terms are independent a priori, so Kuu is block-diagonal. In the joint q(u), the terms are dependent.

    Parameters
    ----------
    parts
        The inducing variables of each term, such as ``(Patches(...), Points())``.

    Source: van der Wilk, Rasmussen & Hensman, "Convolutional Gaussian processes", NeurIPS 2017, section 4.3.
    """

    parts: tuple[Inducing, ...]

    @property
    def count(self) -> int:
        return sum(self._sizes)

    @property
    def _sizes(self) -> list[int]:
        return [part.count for part in self.parts]

    @property
    def width(self) -> int:
        return self.parts[0].width

    @property
    def reference(self) -> tuple[str, Array]:
        return self.parts[0].reference

    def usual_kernel(self) -> Kernel:
        """Return the sum of the default kernels of the parts."""
        return Sum(tuple(part.usual_kernel() for part in self.parts))

    def _terms(self, kernel: Any) -> list[tuple[Inducing, Kernel]]:
        return list(zip(self.parts, kernel.parts, strict=True))

    def covariance(self, kernel: Kernel, /) -> tuple[Array, Pullback]:
        found = [part.covariance(k) for part, k in self._terms(kernel)]
        Kuu: Any = block_diagonal([K for K, _ in found], self._sizes)

        def pullback(bar):
            bars = [pull(bar[rows, rows]) for (_, pull), rows in zip(found, groups_of(self._sizes), strict=True)]
            return self._join_cotangents(kernel, bars)

        return Kuu, pullback

    def cross(self, kernel: Kernel, X: Array, /) -> tuple[Array, Pullback]:
        found = [part.cross(k, X) for part, k in self._terms(kernel)]

        def pullback(bar):
            bars = [pull(bar[rows, :]) for (_, pull), rows in zip(found, groups_of(self._sizes), strict=True)]
            return self._join_cotangents(kernel, bars)

        return backend_of(X).xp.concat([K for K, _ in found], axis=0), pullback

    def diag(self, kernel: Kernel, X: Array, /) -> tuple[Array, Pullback]:
        return self._sum_parts(kernel, [part.diag(k, X) for part, k in self._terms(kernel)])

    def full(self, kernel: Kernel, X: Array, /) -> tuple[Array, Pullback]:
        return self._sum_parts(kernel, [part.full(k, X) for part, k in self._terms(kernel)])

    def cross_terms(self, kernel: Kernel, X: Array, /) -> list[tuple[Array, Array]]:
        # each term depends on its own variables alone
        xp, found = backend_of(X).xp, []
        for (part, k), rows in zip(self._terms(kernel), groups_of(self._sizes), strict=True):
            for Kuf, kff in part.cross_terms(k, X):
                above, below = (xp.zeros((M, X.shape[0]), **like(Kuf)) for M in (rows.start, self.count - rows.stop))
                found.append((xp.concat([above, Kuf, below], axis=0), kff))
        return found

    def _sum_parts(self, kernel: Kernel, found: list[tuple[Array, Pullback]]) -> tuple[Array, Pullback]:
        first, *others = (value for value, _ in found)
        return sum(others, start=first), lambda bar: self._join_cotangents(kernel, [pull(bar) for _, pull in found])

    def _join_cotangents(self, kernel: Kernel, bars: list[tuple[Any, ...]]) -> tuple[Any, ...]:
        """Combine the cotangents of the terms: inducing_bar, kernel_bar and, if it is present, X_bar."""
        own, kernels, *inputs = zip(*bars, strict=True)
        joint = tree.cotangent(self, parts=own), tree.cotangent(kernel, parts=kernels)
        return *joint, *(reduce(tree.add, each) for each in inputs)

    def random_features(self, kernel: Kernel, rng: Any, count: int, /) -> tuple[FeatureMap, Array]:
        # the features of all terms are side by side; the variables of a term depend only on the features of that term
        maps, own = zip(*(part.random_features(k, rng, count) for part, k in self._terms(kernel)), strict=True)
        xp, widths = backend_of(self.reference[1]).xp, [phi.shape[1] for phi in own]
        rows = [[xp.zeros((phi.shape[0], width), **like(phi)) for width in widths] for phi in own]
        for i, phi in enumerate(own):
            rows[i][i] = phi
        return Features(maps), xp.concat([xp.concat(row, axis=1) for row in rows], axis=0)

    def floats_per_row(self, kernel: Kernel, /) -> int:
        return sum(part.floats_per_row(k) for part, k in self._terms(kernel))

    def check(self, kernel: Kernel, /) -> None:
        _check_sum(self, kernel)
        differ = "the parts of a JointInducing take inputs with different numbers of columns"
        check_equal(differ, (part.width for part in self.parts))
        for part, k in self._terms(kernel):
            part.check(k)

    def initialise(
        self, X: Array, kernel: Kernel, variance: float, /, *, num_inducing: int | None, how: Any, seed: int
    ) -> tuple[Self, Kernel]:
        _check_sum(self, kernel)
        n = len(self.parts)
        total = min(NUM_INDUCING, X.shape[0]) if num_inducing is None else check_whole("num_inducing", num_inducing)
        counts = [max(1, (total + i) // n) for i in range(n)]
        found = [
            part.initialise(X, k, variance / n, num_inducing=count, how=how, seed=seed)
            for (part, k), count in zip(self._terms(kernel), counts, strict=True)
        ]
        parts, kernels = zip(*found, strict=True)
        return type(self)(parts), Sum(kernels)


def _check_sum(together: JointInducing, kernel: Any) -> None:
    terms = kernel.parts if isinstance(kernel, Sum) else (kernel,)
    if len(terms) != len(together.parts):
        raise ValueError(
            f"JointInducing has {count_of(len(together.parts), 'part')}, but the kernel has {len(terms)} terms; "
            "pass a sum of "
            "kernels with one term for each part."
        )
