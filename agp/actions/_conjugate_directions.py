"""The policy that chooses the residuals of conjugate gradients as actions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from agp.actions._dense import FixedActions
from agp.actions._policies import BUDGET, check_count, covariance_product
from agp.backend import Array, as_widest_float, backend_of, like, row_numbers
from agp.linalg import LOOK_EVERY

SPAN_TOLERANCE = 1e-10
"""An action s depends on earlier actions if at most this fraction of its energy s^T (K + sigma^2 I) s is new."""


@dataclass(frozen=True)
class ConjugateGradients:
    """Actions that are the normalised residuals of conjugate gradients on (K + sigma^2 I) v = y - h (CaGP-CG).

    Residuals and directions are orthogonalised twice, because the method would otherwise lose accuracy after a few
    dozen steps. With several outputs, each action is the residual of the output with the largest residual. The method
    takes O(m^2 i) operations, and O(m i) memory in addition to K. K is stored if it fits the budget, and computed in
    tiles otherwise.

    Parameters
    ----------
    count
        The maximum number of actions.
    tolerance
        The policy stops early once |residual| <= tolerance |y - h| for every output. Compiled steps do not stop early.
    memory
        The budget for covariances, in MiB.

    Source: Wenger et al., "Posterior and computational uncertainty in Gaussian processes", NeurIPS 2022.
    """

    count: int
    tolerance: float = 1e-4
    memory: float = BUDGET

    def __call__(self, model: Any, /) -> FixedActions:
        """Return at most i orthonormal columns [m, i].

        Raises
        ------
        ValueError
            If there are more actions than rows, if the targets equal the prior mean, or if one row of covariances does
            not fit the budget.
        """
        B, X = backend_of(model.X), model.X
        xp = B.xp
        m, count = X.shape[0], check_count(self.count, X.shape[0])
        covariances = covariance_product(model, self.memory)
        noise = as_widest_float(model._noise_by_row)
        concrete = B.is_concrete(X) and B.is_concrete(noise)
        r = _first_residual(model, concrete)
        limit = self.tolerance * _norms(r)
        column = row_numbers(count, X)

        def product(s: Array) -> Array:
            # (K + V) s [m]
            return as_widest_float(covariances(xp.astype(s, X.dtype)[:, None])[:, 0]) + noise * s

        def more(step, left):
            return (step < count) & xp.any(_norms(left) > limit) if concrete else step < count

        step = xp.zeros_like(column[0])
        blank = xp.zeros((m, count), **like(r))
        start = (step, blank, blank, blank, r, step == 0)
        body = _loop_body(product, column, more if concrete else None)
        found = B.while_loop(
            lambda *carry: carry[5] & more(carry[0], carry[4]), body, start, at_most=count, look_every=LOOK_EVERY
        )
        taken = int(found[0]) if concrete else count
        return FixedActions(xp.astype(found[1][:, :taken], X.dtype))


def _first_residual(model: Any, concrete: bool) -> Array:
    """Return y - h [m, P], divided by its maximum if its squares would underflow; raise ValueError if it is zero."""
    offset, xp = model._data.offset, backend_of(model.X).xp
    r = as_widest_float((model.y if offset is None else model.y - offset) - model.mean_function(model.X)[0])
    if concrete and not bool(xp.any(r != 0.0)):
        raise ValueError("the targets equal the prior mean, so there is no residual to start from; use another policy.")
    size = xp.max(xp.abs(r))
    return r / xp.where((size > 0.0) & (size < 1e-100), size, xp.ones_like(size))


def _loop_body(
    product: Callable[[Array], Array], column: Array, more: Callable[[Array, Array], Array] | None
) -> Callable[..., tuple]:
    """Return the body of the loop over actions, which adds a column to S, D and (K + sigma^2 I) D.

    Parameters
    ----------
    product
        A function that multiplies a vector [m] by K + sigma^2 I.
    column
        The column numbers [i] of S.
    more
        Whether another action is needed, given the number of actions and the residuals. With None, as in compiled
        steps, the loop does not stop early.
    """
    xp = backend_of(column).xp

    def body(step, S, D, KD, left, going):
        going = going if more is None else going & more(step, left)  # the host checks only rarely
        s = xp.take(left, xp.reshape(xp.argmax(_norms(left)), (1,)), axis=1)[:, 0]
        for _ in range(2):
            s = s - S @ (S.mT @ s)
        norm = _norms(s[:, None])[0]
        s = s / xp.where(norm > 0.0, norm, xp.ones_like(norm))
        z = product(s)
        d, Kd = s, z
        for _ in range(2):
            # the part of d that is conjugate to the earlier directions D, for which D^T (K + sigma^2 I) D = I
            shares = KD.mT @ d
            d, Kd = d - D @ shares, Kd - KD @ shares
        energy = xp.sum(d * Kd)
        going = going if more is None else going & (energy > SPAN_TOLERANCE * xp.sum(s * z))
        root = xp.sqrt(xp.where(energy > 0.0, energy, xp.ones_like(energy)))
        d, Kd = d / root, Kd / root
        here = xp.astype(column == step, s.dtype)[None, :]
        left = left - Kd[:, None] * (d @ left)[None, :]
        S, D, KD = S + s[:, None] * here, D + d[:, None] * here, KD + Kd[:, None] * here
        return step + xp.astype(going, step.dtype), S, D, KD, left, going

    return body


def _norms(r: Array) -> Array:
    """Return the norms [P] of the columns of r [m, P]."""
    xp = backend_of(r).xp
    return xp.sqrt(xp.sum(r * r, axis=0))
