"""Computation-aware GPs: exact inference for i projections of the data, whose price shows in the variance."""

import dataclasses
from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import NamedTuple, Self, get_args

from agp import tree
from agp._context import public
from agp.actions import Actions, FixedActions, Init, Layout, Policy, arranged, column_spread, started_blocks
from agp.backend import Array, Pullback, backend_of, like
from agp.batch import Batch
from agp.bounds import Loss, computation_aware_bound, projection_of, support_moments
from agp.chunking import budget, mebibytes, tile_rows
from agp.kernels import Kernel
from agp.likelihoods import Gaussian, Likelihood
from agp.linalg import nonnegative
from agp.means import Mean, ZeroMean
from agp.models._actions import (
    check_action_sizes,
    check_actions,
    check_known,
    check_one_choice,
    checked_count,
    random_rows,
    taken,
)
from agp.models._base import Model
from agp.models._gpr import GPR
from agp.models._parts import WithoutInducing
from agp.models._regression import check_without_white, first_datum, gaussian_only
from agp.models._start import refuse_rows_elsewhere, started, started_model
from agp.posteriors import (
    FollowsInverse,
    InverseOwner,
    Projected,
    ProjectedCholesky,
    ProjectedInverse,
    ProjectedInverseFree,
)
from agp.predictors import ActionConditional, Conditional, check_test_inputs
from agp.priors import Prior, Priors, as_priors
from agp.tree import copied

__all__ = ["CaGP", "Uncertainty"]

EXACT_MEMORY = 1024.0
"""The most that an exact posterior may take where it is only compared with, in MiB."""


class Uncertainty(NamedTuple):
    """Variances [N, P] of the latent functions, and what they consist of."""

    combined: Array
    """What the computation-aware posterior says."""
    mathematical: Array
    """The exact posterior's, with the same hyperparameters: what the data leave open."""
    computational: Array
    """The rest, not negative: what was not computed."""


@tree.model
class CaGP(Model, InverseOwner, WithoutInducing):
    """A computation-aware GP: regression with Gaussian noise that accounts for the computation that it leaves out.

    The posterior of an exact GP for the i observations S^T y. Its variance is never below that of the exact GP with
    the same hyperparameters, and falls with every action. Nothing of the size N x N, N x m or N x i is held:
    covariances are evaluated in tiles of a memory budget, and again in the pullback.

    With full support (every row belongs to an action) a bound with its gradient costs about 2 N^2 evaluations of the
    kernel. With capped support, m rows, it costs about 2 (N + m) m, linear in N, and minibatches of B rows cost
    2 (B + m) m: the bound still scores every row, but the mean follows the targets of the support alone.

    Parameters
    ----------
    kernel, likelihood
        The prior covariance of f, and `Gaussian` noise. White noise belongs into the likelihood.
    actions
        S [m, i] over the rows of the support.
    X, y
        The support [m, D] and [m, P]: the rows of the data on which the actions are not zero.
    posterior
        `ProjectedCholesky`, or `ProjectedInverseFree`, which trains and predicts by matrix products alone.
    mean_function, priors
        As `SVGP`.
    loss
        "elbo", a lower bound on the log evidence; or "projected", the log density of S^T y, which is none and is known
        to overestimate the noise.
    capped
        Whether there are data beyond the support. The bound of a minibatch is then an unbiased estimate.

    Source: Wenger et al., "Computation-aware Gaussian processes: model selection and linear-time inference", NeurIPS
    2024; "Posterior and computational uncertainty in Gaussian processes", NeurIPS 2022.
    """

    kernel: Kernel
    likelihood: Gaussian  # type: ignore[assignment]
    _: KW_ONLY
    actions: Actions
    X: Array = tree.constant()
    y: Array = tree.constant()
    posterior: Projected = ProjectedCholesky()
    mean_function: Mean = ZeroMean()
    priors: Priors = ()
    loss: Loss = "elbo"
    capped: bool = False

    @classmethod
    def from_data(
        cls,
        X: Array,
        y: Array,
        /,
        *,
        kernel: Kernel | None = None,
        likelihood: Likelihood | None = None,
        mean_function: Mean | None = None,
        num_actions: int | None = None,
        support: int | None = None,
        layout: Layout = "tree",
        init: Init = "constant",
        actions: Actions | None = None,
        policy: Policy | None = None,
        inverse_free: bool = False,
        loss: Loss = "elbo",
        priors: Mapping[str, Prior] | None = None,
        seed: int = 0,
    ) -> Self:
        """A model ready to be trained, by default with learned sparse actions on all data (CaGP-Opt).

        Parameters
        ----------
        X, y
            Inputs [N, D] and targets [N] or [N, P].
        kernel, likelihood, mean_function, priors
            As for `SVGP.from_data`.
        num_actions
            i; by default 128, or N if that is less.
        support
            How many rows, drawn at random, the sparse actions or those of a policy cover; all by default.
        layout
            Which rows share a sparse action: neighbours in input space ("tree"), or chance ("random", as in the paper).
        init
            Where its entries start: "constant", "normal" (as in the paper), or the "residual" y - h.
        actions
            Actions over all N rows in their order, instead of sparse ones.
        policy
            What chooses the actions at the starting hyperparameters, instead of sparse ones;
            `agp.updates.ActionsUpdate` goes on doing so in training.
        inverse_free
            Whether to use `ProjectedInverseFree`.
        loss
            "elbo" or "projected".
        seed
            Of the rows' order and the actions' starting values.

        Raises
        ------
        TypeError, ValueError
            As `SVGP.from_data`; if the likelihood is not Gaussian; if there are more actions than rows in their
            support, or a support beyond the data; if the kernel has a `White` part; if actions are zero or linearly
            dependent; if options contradict each other.
        """
        check_one_choice(actions, policy, num_actions, support)
        for name, value, known in (("loss", loss, Loss), ("layout", layout, Layout), ("init", init, Init)):
            check_known(name, value, get_args(known))
        X, y, kernel, likelihood, mean_function = started(
            X, y, kernel, gaussian_only(cls, likelihood), mean_function, by_output=False
        )
        check_without_white(cls, kernel, X)
        if support is None or actions is not None or policy is not None:
            refuse_rows_elsewhere(cls, X, y)
        N = X.shape[0]
        if support is not None or (actions is None and policy is None):
            X, y = taken(X, y, random_rows(N, support, seed))
        if policy is not None:
            blank = cls(kernel, likelihood, actions=None, X=X, y=y, mean_function=mean_function)  # type: ignore[arg-type]
            actions = policy(blank)
        if actions is None:
            count = checked_count(num_actions, X.shape[0])
            if layout == "tree":
                X, y = taken(X, y, arranged(X / column_spread(X), count))
            actions = started_blocks(y - mean_function(X)[0], count, init, seed)
        check_actions(actions, X.shape[0], policy)
        start = cls(
            kernel,
            likelihood,  # type: ignore[arg-type]
            actions=actions,
            X=copied(X),
            y=copied(y),
            mean_function=mean_function,
            priors=as_priors(priors),
            loss=loss,
            capped=X.shape[0] < N,
        )
        if inverse_free:
            posterior = ProjectedInverseFree.for_covariance(start._followed_matrix())
            start = dataclasses.replace(start, posterior=posterior)
        return started_model(start)

    @property
    def stochastic(self) -> bool:  # type: ignore[override]
        """Whether minibatches of the data will do: with capped support."""
        return self.capped and self.loss == "elbo"

    @property
    def outputs(self) -> int:
        return self.y.shape[1]

    # -- bound ------------------------------------------------------------------------------------------------------

    def _check(self, X: Array, y: Array, /) -> None:
        super()._check(X, y)
        check_without_white(type(self), self.kernel, self.X)
        if not self.capped and X.shape != self.X.shape:
            msg = (
                f"the actions of {type(self).__name__} cover {self.X.shape[0]} rows, the data have {X.shape[0]}; train "
                "it on the data that it was built with, or build it with support=."
            )
            raise ValueError(msg)

    def _on_first_datum(self) -> Self:
        first = first_datum(self.X, self.y)
        m, i = self.X.shape[0], self.actions.count
        check_action_sizes(self.actions, m)
        ones = backend_of(self.X).xp.ones((1, m), **like(self.X))
        factors = {name: getattr(self.posterior, name) for name in self.posterior.inverse_factors}
        wanted = {"the actions": (self.actions.times(ones)[0], (1, i))}
        wanted |= {name: (x, (i, i)) for name, x in factors.items()}
        for name, (x, shape) in wanted.items():
            if tuple(x.shape) != shape:
                msg = f"{name} of shape {tuple(x.shape)} stand where {i} actions need {shape}."
                raise ValueError(msg)
        return dataclasses.replace(self, **first, actions=FixedActions(ones[:, :1]), posterior=ProjectedCholesky())

    def _objective(self, batch: Batch, /, *, memory: float | None = None) -> tuple[Array, Pullback]:
        rows = self._block_rows(memory)
        shared = not self.capped
        X, y = (self.X, self.y) if shared else (batch.X, batch.y)
        return computation_aware_bound(self, X, y, scale=batch.scale, shared=shared, block_rows=rows)

    def _followed_matrix(self, *, memory: float | None = None) -> Array:
        """G = S^T (K + sigma^2 I) S [i, i]."""
        moments, _ = support_moments(self, self._block_rows(memory))
        return backend_of(self.X).xp.astype(projection_of(self, moments.A)[0].G, self.X.dtype)

    def _inverted_matrices(self) -> tuple[Array, ...]:
        """G."""
        return (self._followed_matrix(),)

    def _block_rows(self, memory: float | None) -> int:
        allowed, needed = budget(memory, self.X), mebibytes(self._floats_per_row, self.X)
        if allowed < needed:
            msg = (
                f"memory is {allowed!r} MiB, but one row of covariances with the {self.X.shape[0]} rows of the support "
                f"takes {needed:.3g} MiB; allow that, or give the actions less support."
            )
            raise ValueError(msg)
        return tile_rows(memory, self._floats_per_row, self.X)

    @property
    def _floats_per_row(self) -> int:
        return self.X.shape[0] * (self.kernel.floats_per_entry + 3) + 6 * self.actions.count

    # -- prediction -------------------------------------------------------------------------------------------------

    def _solved(self, memory: float | None) -> tuple[Array, ProjectedInverse]:
        """b = S^T (y - h) [i, P], and the stand-ins for G^-1."""
        moments, _ = support_moments(self, tile_rows(memory, self._floats_per_row, self.X))
        (G, b), _, _ = projection_of(self, moments.A)
        posterior = self.posterior
        if isinstance(posterior, FollowsInverse):
            posterior = posterior.refreshed(backend_of(G).xp.astype(G, self.X.dtype))
        return b, posterior.inverted_covariance(G)  # type: ignore[attr-defined]

    def _conditional(self, *, memory: float | None = None) -> Conditional:
        b, found = self._solved(memory)
        known = {"noise_variance": self.likelihood.noise_variance, "tangent": found.T, "inverse": found.P}
        return ActionConditional(self.kernel, self.mean_function, self.actions, X=self.X, weights=found.P @ b, **known)

    @public(repairs=False, ignore="underflow")
    def uncertainty(self, X: Array, /, inputs: Array | None = None, *, memory: float = EXACT_MEMORY) -> Uncertainty:
        """The variances of the latent functions at X [N, D], split into what data and computation leave open.

        The exact posterior is found by a Cholesky factorisation, O(n^3) for n data: for looking at small problems.

        Parameters
        ----------
        X
            Test inputs, like the inputs of training.
        inputs
            The inputs [n, D] of all data, needed where the support is capped.
        memory
            The most that the exact posterior may take, in MiB.

        Raises
        ------
        TypeError, ValueError
            As `predict`; if the inputs of all data are needed, or the exact posterior takes more memory than allowed.
        """
        if inputs is None and self.capped:
            msg = "the exact variance needs the inputs of all data, of which this model has a part; pass inputs=."
            raise ValueError(msg)
        known: Array = self.X if inputs is None else inputs
        check_test_inputs(known, self._width, *self._reference())
        xp, n = backend_of(X).xp, known.shape[0]
        needed = mebibytes(4.0 * n * n, self.X)
        if memory < needed:
            msg = f"memory is {memory!r} MiB, but the exact posterior of {n} data takes {needed:.3g} MiB; allow that."
            raise ValueError(msg)
        combined = self.predict(X).variance
        assert combined is not None
        exact = GPR(self.kernel, self.likelihood, X=known, y=xp.zeros_like(known[:, :1])).predict(X).variance
        exact = xp.broadcast_to(exact, combined.shape)
        return Uncertainty(combined, exact, nonnegative(combined - exact)[0])

    def _reference(self) -> tuple[str, Array]:
        return "the support", self.X
