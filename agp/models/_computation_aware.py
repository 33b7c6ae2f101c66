"""Computation-aware GPs, which condition on a few projections of the targets."""

import dataclasses
from dataclasses import KW_ONLY
from typing import Any, ClassVar, NamedTuple, Self, Unpack, get_args

from agp import tree
from agp.actions import Actions, FixedActions, Init, Layout, Policy, initialise_blocks, order_rows
from agp.backend import Array, Pullback, backend_of, like
from agp.bounds import Batch, Loss, computation_aware_bound, projection_of, support_moments, targets_of
from agp.checks import as_columns, check_choice, check_test_inputs, check_whole
from agp.chunking import budget, column_spreads, mebibytes, tile_rows
from agp.errors import count_of, there_are
from agp.linalg import nonnegative
from agp.models._gpr import GPR
from agp.models._parts import ExactParts
from agp.models._regression import WithData, check_without_white, prepare_regression
from agp.models._start import exact_parts, initialise_model, refuse_lazy_rows
from agp.posteriors import InverseOwner, Projected, ProjectedCholesky, ProjectedInverseFree
from agp.processes import ComputationAware, Process
from agp.random import generator
from agp.repairs import public
from agp.tree import constant_data, copy_array

EXACT_MEMORY = 1024.0
"""The maximum memory for computing the exact posterior in a comparison, in MiB."""
LISTED = 10**7
"""The maximum number of rows for which the support is drawn from a permutation of all rows."""
NUM_ACTIONS = 128
"""The default number of actions."""


class Uncertainty(NamedTuple):
    """The variances [N, P] of the latent functions, split into mathematical and computational uncertainty."""

    combined: Array
    """The variance of the computation-aware posterior."""
    mathematical: Array
    """The variance of the exact posterior with the same hyperparameters: the uncertainty due to limited data."""
    computational: Array
    """The difference `combined` - `mathematical`, at least 0: the uncertainty due to limited computation."""


@tree.model
class CaGP(WithData, InverseOwner):
    """Computation-aware GP regression with Gaussian noise: the variance includes the approximation error.

    Let S be a matrix of i actions. The posterior is that of an exact GP given the i observations S^T y. The posterior
    variance is never below that of the exact GP with the same hyperparameters, and each further action reduces it. The
    model stores no N x N, N x m or N x i array: it evaluates covariances in tiles that fit a memory budget, and
    re-evaluates the tiles in the pullback.

    The support is the set of m rows that the actions cover. If the support contains all N rows, computing the bound and
    its gradient takes about 2 N^2 kernel evaluations. If the support is capped, it takes about 2 (N + m) m evaluations,
    or 2 (B + m) m for a minibatch of B rows. With a capped support, the bound still depends on the targets of all rows,
    but the posterior mean depends only on the targets in the support.

    Parameters
    ----------
    kernel, likelihood
        The prior covariance of f, and `Gaussian` noise. White noise belongs in the likelihood.
    actions
        The actions S [m, i] over the m rows of the support.
    X, y
        The inputs [m, D] and targets [m, P] of the support, which are the rows with non-zero entries in S.
    posterior
        The method for inverting S^T (K + sigma^2 I) S: `ProjectedCholesky`, or `ProjectedInverseFree`, which uses only
        matrix products.
    mean_function, priors
        See `SVGP`.
    weights, offset, noise
        What is known of the rows of the support; see `GPR`.
    loss
        "elbo" is a lower bound on the log evidence. "projected" is the log density of S^T y, which is not a bound and
        is only for fixed actions; training with it tends to overestimate the noise.
    capped
        Whether some rows of the data are outside the support. If True, the bound accepts minibatches, which give
        unbiased estimates.

    Source: Wenger et al., "Computation-aware Gaussian processes: model selection and linear-time inference", NeurIPS
    2024; "Posterior and computational uncertainty in Gaussian processes", NeurIPS 2022.

    Examples
    --------
    With few actions, variances are large. They fall towards those of the exact GP, which come last.

    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(0.0, 6.0, 40)[:, None]
    >>> y = np.sin(X[:, 0])
    >>> parts = {"kernel": agp.RBF(1.0, 1.0), "likelihood": agp.Gaussian(0.01)}
    >>> models = [agp.CaGP.from_data(X, y, num_actions=i, **parts) for i in (2, 5, 20)]
    >>> models.append(agp.GPR.from_data(X, y, **parts))
    >>> [round(float(np.mean(model.predict(X).variance)), 3) for model in models]
    [0.355, 0.03, 0.002, 0.002]
    """

    _: KW_ONLY
    actions: Actions
    posterior: Projected = ProjectedCholesky()
    loss: Loss = "elbo"
    capped: bool = False

    inducing: ClassVar[None] = None

    @classmethod
    def from_data(
        cls,
        X: Array,
        y: Array,
        /,
        *,
        num_actions: int | None = None,
        support: int | None = None,
        layout: Layout = "tree",
        init: Init = "constant",
        actions: Actions | None = None,
        policy: Policy | None = None,
        inverse_free: bool = False,
        loss: Loss = "elbo",
        seed: int = 0,
        **parts: Unpack[ExactParts],
    ) -> Self:
        """Build a model that is ready for training.

        By default, training learns sparse actions over all rows of the data (CaGP-Opt).

        Parameters
        ----------
        num_actions
            The number of actions i. The default is 128, or N if N is less than 128.
        support
            The number of random rows covered by sparse actions or by a policy's actions. The default is all rows.
        layout
            The grouping of rows into sparse actions: "tree" groups neighbours in input space, and "random" groups
            random rows, as in the paper.
        init
            The initial entries of sparse actions: "constant", "normal" (as in the paper), or "residual", which is
            y - h.
        actions
            Actions over all N rows, in the order of the data, to use instead of sparse actions.
        policy
            A function that chooses the actions at the starting hyperparameters, to use instead of sparse actions. Use
            `agp.updates.ActionsUpdate` to choose new actions during training.
        inverse_free
            Whether to use `ProjectedInverseFree`.
        loss
            The training objective: "elbo" is a lower bound on the log evidence, and "projected" is the log density of
            S^T y, which is not a bound.
        seed
            Seed for the row order and the initial actions.

        Raises
        ------
        TypeError
            If the likelihood is not Gaussian.
        ValueError
            If the kernel has a `White` part, if there are more actions than rows in the support, if `support` exceeds
            N, if actions are zero or linearly dependent, or if options contradict each other.
        """
        _check_one_choice(actions, policy, num_actions, support)
        for name, value, known in (("loss", loss, Loss), ("layout", layout, Layout), ("init", init, Init)):
            check_choice(name, value, get_args(known))
        data = prepare_regression(cls, X, y, parts)
        fields, N = exact_parts(data), X.shape[0]
        check_without_white(cls, fields["kernel"], X)
        if support is None or actions is not None or policy is not None:
            refuse_lazy_rows(cls, X, y)
        rows = Batch(*constant_data(X, as_columns(y)), **data.known)
        if support is not None or (actions is None and policy is None):
            covered = _random_rows(N, support, seed)
            rows = rows.take(lambda x: backend_of(x).gather(x, covered))
        if policy is not None:
            actions = policy(cls(**fields, actions=None, **_fields_of(rows)))  # type: ignore[arg-type]
        if actions is None:
            m = rows.X.shape[0]
            count = min(NUM_ACTIONS, m) if num_actions is None else check_whole("num_actions", num_actions)
            if count > m:
                raise ValueError(f"num_actions is {count}, but must be at most the number of rows in the support, {m}.")
            if layout == "tree":
                ordered = order_rows(rows.X / column_spreads(rows.X), count)
                rows = rows.take(lambda x: backend_of(x).rows_at(x, ordered))
            actions = initialise_blocks(targets_of(rows) - fields["mean_function"](rows.X)[0], count, init, seed)
        _check_actions(actions, rows.X.shape[0], policy)
        if loss == "projected" and tree.leaves(actions, "parameter"):
            raise ValueError(
                "loss is 'projected', but the actions are learned, which lets the noise variance collapse; use "
                "loss='elbo', or fixed actions, such as policy=agp.actions.ConjugateGradients(8)."
            )
        capped = rows.X.shape[0] < N
        start = cls(**fields, **_fields_of(rows.take(copy_array)), actions=actions, loss=loss, capped=capped)
        if inverse_free:
            posterior = ProjectedInverseFree(None).invert_from_scratch(start._matrix_to_invert())
            start = dataclasses.replace(start, posterior=posterior)
        return initialise_model(start, data)

    @property
    def stochastic(self) -> bool:  # type: ignore[override]
        """Whether the bound accepts minibatches, which requires a capped support and the loss "elbo"."""
        return self.capped and self.loss == "elbo"

    # -- bound ------------------------------------------------------------------------------------------------------

    def _batch(self, X: Array, y: Array, /, **known: Any) -> Batch:
        batch = super()._batch(X, y, **known)
        for name in ("weights", "offset", "noise"):
            given, held = getattr(batch, name), getattr(self, name)
            if (held is None and given is not None) or (given is None and held is not None and self.capped):
                raise ValueError(
                    f"{name} was given only to {'from_data' if given is None else 'training'}; give {name} to both."
                )
        return batch

    def _check(self, batch: Batch, /) -> None:
        super()._check(batch)
        check_without_white(type(self), self.kernel, self.X)
        B = backend_of(self.X)
        for name in ("weights", "offset", "noise"):
            given, held = getattr(batch, name), getattr(self, name)
            if self.capped or given is None or batch.X.shape != self.X.shape:
                continue
            if not B.same_rows(B.xp.sort(given, axis=0), B.xp.sort(held, axis=0)):  # the rows may be in another order
                raise ValueError(
                    f"{name} differs from what {type(self).__name__} was built with; pass {name} to from_data."
                )
        if not self.capped and batch.X.shape != self.X.shape:
            raise ValueError(
                f"the actions of {type(self).__name__} cover {count_of(self.X.shape[0], 'row')}, but the data have "
                f"{batch.X.shape[0]}; train on the data with which the model was built, or build it with support=."
            )

    def _on_first_datum(self) -> Self:
        small = super()._on_first_datum()
        m, i = self.X.shape[0], self.actions.count
        _check_action_sizes(self.actions, m)
        ones = backend_of(self.X).xp.ones((1, m), **like(self.X))
        factors = {name: getattr(self.posterior, name) for name in self.posterior.inverse_factors}
        wanted = {"the actions": (self.actions.times(ones)[0], (1, i))}
        wanted |= {name: (x, (i, i)) for name, x in factors.items()}
        for name, (x, shape) in wanted.items():
            if tuple(x.shape) != shape:
                raise ValueError(
                    f"{name} has shape {tuple(x.shape)}, but must have shape {shape} for {count_of(i, 'action')}."
                )
        return dataclasses.replace(small, actions=FixedActions(ones[:, :1]), posterior=ProjectedCholesky())

    def _objective(self, batch: Batch, /, *, memory: float | None = None) -> tuple[Array, Pullback]:
        rows, shared = self._block_rows(memory), not self.capped
        return computation_aware_bound(self, self._data if shared else batch, shared=shared, block_rows=rows)

    def _matrix_to_invert(self) -> Array:
        """Return G = S^T (K + V) S [i, i] for the noise variances V of the rows."""
        moments, _ = support_moments(self, self._block_rows(None))
        return backend_of(self.X).xp.astype(projection_of(self, moments.A)[0].G, self.X.dtype)

    def _block_rows(self, memory: float | None) -> int:
        allowed, needed = budget(memory, self.X), mebibytes(self._floats_per_row, self.X)
        if allowed < needed:
            raise ValueError(
                f"memory is {allowed!r} MiB, but one row of covariances with the {self.X.shape[0]} rows of the support "
                f"takes {needed:.3g} MiB; increase memory=, or use a smaller support."
            )
        return tile_rows(memory, self._floats_per_row, self.X)

    @property
    def _floats_per_row(self) -> int:
        return self.X.shape[0] * (self.kernel.floats_per_entry + 3) + 6 * self.actions.count

    # -- prediction -------------------------------------------------------------------------------------------------

    def _posterior_process(self, *, memory: float | None = None) -> Process:
        moments, _ = support_moments(self, tile_rows(memory, self._floats_per_row, self.X))
        covariance, observations = projection_of(self, moments.A)[0]
        parts = self.kernel, self.mean_function, self.actions, self.posterior, self._noise_by_row
        return ComputationAware(*parts, self.X, covariance, observations)

    @public(repairs=False, ignore="underflow")
    def uncertainty(self, X: Array, /, inputs: Array | None = None, *, memory: float = EXACT_MEMORY) -> Uncertainty:
        """Split the variances of the latent functions at X [N, D] into mathematical and computational uncertainty.

        Use this method only for small problems, because it computes the exact posterior by a Cholesky factorisation in
        O(n^3) operations for n rows of data.

        Parameters
        ----------
        X
            Test inputs [N, D].
        inputs
            The inputs [n, D] of all data; required if the support is capped.
        memory
            The maximum memory for the exact posterior, in MiB.

        Raises
        ------
        TypeError, ValueError
            For the reasons listed in `predict`, if `inputs` is required but missing, or if the exact posterior needs
            more memory than allowed.
        """
        if inputs is None and self.capped:
            raise ValueError(
                "the exact variance depends on the inputs of all data, but only the support is stored; pass inputs=."
            )
        known: Array = self.X if inputs is None else inputs
        check_test_inputs(known, self._width, *self._reference())
        xp, n = backend_of(X).xp, known.shape[0]
        needed = mebibytes(4.0 * n * n, self.X)
        if memory < needed:
            raise ValueError(
                f"memory is {memory!r} MiB, but the exact posterior of {n} rows needs {needed:.3g} MiB; increase "
                "memory=."
            )
        combined = self.predict(X).variance
        held: dict[str, Any] = {"weights": self.weights, "noise": self.noise} if inputs is None else {}
        exact = GPR(self.kernel, self.likelihood, X=known, y=xp.zeros_like(known[:, :1]), **held).predict(X).variance
        exact = xp.broadcast_to(exact, combined.shape)
        return Uncertainty(combined, exact, nonnegative(combined - exact)[0])

    def _reference(self) -> tuple[str, Array]:
        return "the support", self.X


def _fields_of(rows: Batch) -> dict[str, Any]:
    """Return the fields of the model that hold the rows."""
    return {name: getattr(rows, name) for name in ("X", "y", "weights", "offset", "noise")}


# -- rows and actions --------------------------------------------------------------------------------------------------


def _random_rows(N: int, support: int | None, seed: int) -> Any:
    """Return the rows of the support (all N rows by default) in random order, on the host."""
    m = N if support is None else check_whole("support", support)
    if m > N:
        raise ValueError(f"support is {m}, but must be at most the number of rows, {N}.")
    rng = generator(check_whole("seed", seed, least=0), 7)
    return rng.permutation(N)[:m] if N <= LISTED else rng.choice(N, m, replace=False)


def _check_one_choice(actions: Any, policy: Any, num_actions: int | None, support: int | None) -> None:
    """Raise ValueError if options of `CaGP.from_data` contradict each other."""
    if policy is not None and (actions is not None or num_actions is not None):
        raise ValueError("policy= chooses the actions and their number; omit actions= and num_actions=.")
    if actions is not None and (num_actions is not None or support is not None):
        raise ValueError("actions= already defines the number of actions and the rows; omit num_actions= and support=.")
    if policy is not None and not callable(policy):
        raise TypeError(f"policy is {policy!r}, but must be a policy, such as agp.actions.ConjugateGradients(64).")


def _check_actions(actions: Any, m: int, policy: Any) -> None:
    """Raise TypeError or ValueError unless the actions are linearly independent and cover m rows."""
    _check_action_sizes(actions, m, policy)
    if dependent := actions.dependent_columns():
        raise ValueError(
            f"actions {dependent} are zero, or linear combinations of earlier actions; remove them, for example with "
            "agp.actions.FixedActions.spanning."
        )


def _check_action_sizes(actions: Any, m: int, policy: Any = None) -> None:
    """Raise TypeError or ValueError unless the number of actions over m rows is from 1 to m."""
    if not isinstance(actions, Actions):
        raise TypeError(f"actions is {actions!r}, but must be an instance of agp's Actions.")
    if actions.support != m:
        raise ValueError(
            f"the actions have {count_of(actions.support, 'row')}, but the data have {m}; pass actions with one row "
            "per datum."
        )
    if not actions.count:
        source = f"the policy {policy!r}" if policy is not None else type(actions).__name__
        rows = "rows" if m > 1 else "row"
        raise ValueError(f"{source} gives no actions for {m} {rows} of data; at least one action is required.")
    if actions.count > m:
        raise ValueError(
            f"{there_are(actions.count, 'action')} over {count_of(m, 'row')}; use at most one action for each row."
        )
