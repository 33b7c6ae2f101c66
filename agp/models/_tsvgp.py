"""t-SVGP with a site for each row of data and each output."""

import dataclasses
from operator import attrgetter
from typing import Any, ClassVar, Self, Unpack

from agp import tree
from agp.backend import Array, Pullback, backend_of, like
from agp.chunking import tile_rows
from agp.inducing import Inducing
from agp.kernels import Kernel
from agp.likelihoods import Likelihood
from agp.linalg import cholesky, relative_cholesky_pullback
from agp.means import Mean, ZeroMean
from agp.models._parts import SparseParts
from agp.models._sites import zero_sites
from agp.models._sparse_sites import SparseSites, white_site_sums
from agp.models._start import held_in_memory, initialise_model, prepare_data, sparse_parts
from agp.models._svgp import SVGP
from agp.posteriors import Dual, KeepsSums, Sums, Tied
from agp.priors import Priors

CACHED_SUMS = ("factor", "shift", "precision", "drift")
"""The names of the arrays that are cached between steps."""
MAX_ROUNDINGS = 4e3
"""The maximum error of the sums, in units of the rounding error of their largest entries."""


@tree.model
class TSVGP(SparseSites, KeepsSums):
    """A sparse variational GP for any likelihood, in the dual parameterisation with a Gaussian site for each datum.

    q(u_p) ~ N(0, Kuu) prod_n exp(lam1_np a_n^T u - lam2_np (a_n^T u)^2 / 2) with a_n = Kuu^-1 k_un. The sites consist
    of 2 N P numbers without gradients, which are trained by `agp.updates.SiteStep`. When the kernel or the inducing
    inputs change, q(u) stays close to its optimum; for Gaussian noise, q(u) stays optimal, and the bound is that of
    `SGPR`.

    Each evaluation of the bound makes a pass over all data in blocks of rows, but computes the expected log density
    only at the rows of the batch. The first site step also makes a pass over all data. Later site steps use only the
    rows of their batch, unless the kernel or the inducing variables have changed. To avoid the passes over all data and
    the copy of the inputs, use tied sites: an `SVGP` with `agp.posteriors.Dual`.

    Parameters
    ----------
    kernel, likelihood
        The prior covariance of f, and the likelihood p(y | f).
    inducing
        The inducing variables, such as `agp.inducing.Points`.
    X
        The inputs [N, D] of the sites. These inputs are constant: the pullback of the bound returns a cotangent for the
        rows of the batch, but not for the inputs of the sites.
    site_shift, site_precision
        The auxiliary arrays lam1 and lam2 [N, P]. A site with both entries 0 has no effect.
    jitter
        See `SGPR`.
    mean_function
        The prior mean h of f. Sites and q(u) refer to f - h.
    priors
        See `SVGP`.

    Source: Adam, Chang, Khan & Solin, "Dual parameterization of sparse variational Gaussian processes", NeurIPS 2021.

    Examples
    --------
    For Gaussian noise, one site step with all rows gives the optimal q(u), and so the bound of `SGPR`.

    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(0.0, 6.0, 30)[:, None]
    >>> y = np.sin(X[:, 0])
    >>> parts = {"Z": X[::4, :], "kernel": agp.RBF(1.0, 1.0), "likelihood": agp.Gaussian(0.01)}
    >>> model = agp.TSVGP.from_data(X, y, **parts)
    >>> step = agp.updates.SiteStep(1.0)
    >>> model = agp.train(model, X, y, steps=1, updates=[step]).model
    >>> collapsed = agp.SGPR.from_data(X, y, **parts)
    >>> bool(np.isclose(model.bound(X, y)[0], collapsed.bound(X, y)[0]))
    True
    """

    kernel: Kernel
    likelihood: Likelihood
    inducing: Inducing
    X: Array = tree.constant()
    site_shift: Array = tree.auxiliary()
    site_precision: Array = tree.auxiliary()
    mean_function: Mean = ZeroMean()
    jitter: float | None = None
    priors: Priors = ()

    stochastic: ClassVar[bool] = True

    @classmethod
    def from_data(cls, X: Array, y: Array, /, **parts: Unpack[SparseParts]) -> Self:
        """Build a model that is ready for training, with all sites 0."""
        data = prepare_data(X, y, parts)
        X = held_in_memory(cls, X, y, data)["X"]
        return initialise_model(cls(**sparse_parts(data), X=X, **zero_sites(X, data.outputs)), data)

    def _white_sites(self, *, memory: float | None = None) -> tuple[Sums, Pullback]:
        Kuu, pull_Kuu = self._inducing_covariance()
        Lu = cholesky(Kuu)
        rows = tile_rows(memory, self._floats_per_row, self.X)
        sums, pull = white_site_sums(self, Lu, self.X, self.site_shift, self.site_precision, block_rows=rows)

        def pullback(sums_bar):
            model_bar, change_bar = pull(sums_bar)
            return tree.add(model_bar, pull_Kuu(relative_cholesky_pullback(Lu, change_bar)))

        return sums, pullback

    def _no_sums(self) -> dict[str, Any]:
        M, P = self.inducing.count, self.outputs
        xp, new = backend_of(self.X).xp, like(self.X)
        shapes = {"factor": (M, M), "shift": (M, P), "precision": (P, M, M)}
        none = {name: xp.zeros(shape, **new) for name, shape in shapes.items()}
        at = {name: xp.full_like(x, float("nan")) for name, x in _dependencies(self).items()}
        return none | {"drift": xp.ones((2,), **new), "at": at}

    def _with_sums(self, kept: dict[str, Any], memory: float | None, /) -> "SummedSites":
        xp, now = backend_of(self.X).xp, _dependencies(self)
        same = [xp.all(kept["at"][name] == x) for name, x in now.items()]
        sizes = _sizes(Sums(kept["shift"], kept["precision"]))
        accurate = xp.all(kept["drift"] <= MAX_ROUNDINGS * float(xp.finfo(sizes.dtype).eps) * sizes)  # false for NaN
        fits = xp.all(xp.stack(same)) & accurate
        untouched = all(kept["at"][name] is x for name, x in now.items())  # true for frozen hyperparameters

        def old() -> tuple[Array, ...]:
            return tuple(kept[name] for name in CACHED_SUMS)

        def new() -> tuple[Array, ...]:
            Lu = cholesky(self._inducing_covariance()[0])
            return Lu, *self._white_sites(memory=memory)[0], xp.zeros_like(kept["drift"])

        held = dict(zip(CACHED_SUMS, backend_of(self.X).cond(fits, old, new, likely=untouched), strict=True))
        return SummedSites(model=self, **held, memory=memory)

    # -- conversion -------------------------------------------------------------------------------------------------

    def to_svgp(self, *, memory: float | None = None) -> SVGP:
        """Return a W-SVGP that has the same parameters, q(u), bound and predictions, but does not hold the data."""
        Kuu = self._inducing_covariance()[0]
        return self._sparse(Dual(*self._white_sites(memory=memory)[0], tied="white").to_whitened(Kuu))

    def to_tied(self, tied: Tied = "natural", *, memory: float | None = None) -> SVGP:
        """Return a t-SVGP with the same parameters and q(u), but with tied sites, as in `Dual`."""
        Lu = cholesky(self._inducing_covariance()[0])
        return self._sparse(Dual.from_white_sites(*self._white_sites(memory=memory)[0], Lu, tied=tied))


def _of_model(name: str) -> Any:
    """Return a property that reads an attribute of the field `model`."""
    return property(attrgetter(f"model.{name}"))


# -- sums between steps ------------------------------------------------------------------------------------------------


@tree.model
class SummedSites(SparseSites):
    """A TSVGP with cached sums over the sites of all rows, used during a site step.

    A step on a minibatch changes only the sites of its B rows. If the kernel and the inducing variables do not change,
    the sums can be updated in O(B M^2) operations, instead of O(N M^2) for all rows. Each update adds rounding errors.
    The sums are recomputed from all rows when a bound on these errors exceeds `MAX_ROUNDINGS`.

    The sums [M, P] and [P, M, M] refer to v = Lu^-1 u, and the field `factor` is Lu [M, M]. The field `drift` [2]
    bounds the errors of the two sums. The field `memory` is the budget for working arrays, in MiB.
    """

    model: SparseSites
    factor: Array = tree.auxiliary()
    shift: Array = tree.auxiliary()
    precision: Array = tree.auxiliary()
    drift: Array = tree.auxiliary()
    memory: float | None = None

    def _release_sums(self) -> tuple[SparseSites, dict[str, Any]]:
        """Separate the sums from the model; return the model without sums, and the sums."""
        return self.model, {name: getattr(self, name) for name in CACHED_SUMS} | {"at": _dependencies(self.model)}

    # -- parts of the model -----------------------------------------------------------------------------------------

    kernel = _of_model("kernel")
    likelihood = _of_model("likelihood")
    inducing = _of_model("inducing")
    mean_function = _of_model("mean_function")
    jitter = _of_model("jitter")
    priors = _of_model("priors")
    X = _of_model("X")
    site_shift = _of_model("site_shift")
    site_precision = _of_model("site_precision")

    # -- sums -------------------------------------------------------------------------------------------------------

    def _white_sites(self, *, memory: float | None = None) -> tuple[Sums, Pullback]:  # noqa: ARG002
        def pullback(_bar):
            raise TypeError("cached sums cannot be differentiated; use TSVGP instead of SummedSites.")

        return Sums(self.shift, self.precision), pullback

    def _with_sites(self, shift: Array, precision: Array, rows: Array | None = None, /) -> Self:
        moved = self.model._with_sites(shift, precision, rows)
        xp = backend_of(shift).xp
        placed = xp.sort(rows)
        # a row that occurs twice in a batch counts once
        first = xp.concat([placed[:1] == placed[:1], placed[1:] != placed[:-1]])
        weight = xp.astype(first, shift.dtype)[:, None]
        changes = [
            weight * (xp.take(getattr(moved, name), placed, axis=0) - xp.take(getattr(self, name), placed, axis=0))
            for name in ("site_shift", "site_precision")
        ]
        X = backend_of(self.X).rows_at(self.X, placed)
        block_rows = tile_rows(self.memory, self._floats_per_row, X)
        added = white_site_sums(self, self.factor, X, *changes, block_rows=block_rows)[0]
        sums = Sums(self.shift + added.shift, self.precision + added.precision)
        rounding = float(xp.finfo(shift.dtype).eps) * (_sizes(self) + _sizes(sums))
        return dataclasses.replace(self, model=moved, drift=self.drift + rounding, **sums._asdict())


def _dependencies(model: SparseSites) -> dict[str, Array]:
    """Return the arrays that determine the sums: the sites, and the leaves of the kernel and the inducing variables."""
    leaves = {part: tree.leaves(getattr(model, part)) for part in ("kernel", "inducing")}
    found = {tree.join_path(part, name): x for part, several in leaves.items() for name, x in several.items()}
    return found | {"site_shift": model.site_shift, "site_precision": model.site_precision}


def _sizes(sums: Any) -> Array:
    """Return the largest magnitude in each of the two sums, as an array [2]."""
    xp = backend_of(sums.shift).xp
    return xp.stack([xp.max(xp.abs(sums.shift)), xp.max(xp.abs(sums.precision))])
