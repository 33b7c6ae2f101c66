"""What a computation-aware GP starts from: which rows, how many actions, and whether they will do."""

from typing import Any

from agp.actions import Actions
from agp.backend import Array, backend_of
from agp.checks import check_whole
from agp.random import generator

__all__ = [
    "check_action_sizes",
    "check_actions",
    "check_known",
    "check_one_choice",
    "checked_count",
    "random_rows",
    "taken",
]

LISTED = 10**7
"""Up to so many rows a support is drawn from a list of all."""
NUM_ACTIONS = 128
"""Actions where the user does not say how many."""


def taken(X: Array, y: Array, rows: Any) -> tuple[Array, Array]:
    """These rows of X [N, D] and y [N, P]; the numbers of the rows may be host numbers."""
    if type(rows) is not type(X):
        return backend_of(X).gathered(X, rows), backend_of(y).gathered(y, rows)
    B = backend_of(X)
    return B.rows_at(X, rows), B.rows_at(y, rows)


def random_rows(N: int, support: int | None, seed: int) -> Any:
    """The rows of the support, all of N by default, in random order on the host."""
    m = N if support is None else check_whole("support", support)
    if m > N:
        msg = f"support is {m}, but there are {N} data; cover at most all of them."
        raise ValueError(msg)
    rng = generator(check_whole("seed", seed, least=0), 7)
    return rng.permutation(N)[:m] if N <= LISTED else rng.choice(N, m, replace=False)


def checked_count(num_actions: int | None, m: int) -> int:
    """The number of sparse actions over m rows."""
    count = min(NUM_ACTIONS, m) if num_actions is None else check_whole("num_actions", num_actions)
    if count > m:
        msg = f"num_actions is {count}, but there are {m} rows to share out among them; use at most as many."
        raise ValueError(msg)
    return count


def check_known(name: str, value: Any, known: tuple[str, ...]) -> None:
    """ValueError unless the value is one of those known."""
    if value not in known:
        msg = f"unknown {name} {value!r}; known are {', '.join(known)}."
        raise ValueError(msg)


def check_one_choice(actions: Any, policy: Any, num_actions: int | None, support: int | None) -> None:
    """ValueError where options of `CaGP.from_data` contradict each other."""
    if policy is not None and (actions is not None or num_actions is not None):
        msg = "policy= chooses the actions and their number; leave actions= and num_actions= out."
        raise ValueError(msg)
    if actions is not None and (num_actions is not None or support is not None):
        msg = "actions= brings its own number and rows; leave num_actions= and support= out."
        raise ValueError(msg)
    if policy is not None and not callable(policy):
        msg = f"policy is {policy!r}, but must be a policy, such as agp.actions.ConjugateGradients(64)."
        raise TypeError(msg)


def check_actions(actions: Any, m: int, policy: Any = None) -> None:
    """TypeError or ValueError unless these, which the policy chose if there is one, are independent and over m rows."""
    check_action_sizes(actions, m, policy)
    if dependent := actions.dependent():
        msg = (
            f"actions {dependent} are zero, or lie in the span of those before them; leave them out "
            "(agp.actions.FixedActions.spanning does)."
        )
        raise ValueError(msg)


def check_action_sizes(actions: Any, m: int, policy: Any = None) -> None:
    """TypeError or ValueError unless these are actions over m rows, from one to as many."""
    if not isinstance(actions, Actions):
        msg = f"actions is {actions!r}, but must be an instance of agp's Actions."
        raise TypeError(msg)
    if actions.support != m:
        msg = f"the actions have {actions.support} rows, the data {m}; give one row for each datum."
        raise ValueError(msg)
    if not actions.count:
        whose = f"the policy {policy!r} chose none" if policy is not None else f"{type(actions).__name__} has none"
        msg = f"no actions: {whose} for {m} {'rows' if m > 1 else 'row'} of data; give at least one."
        raise ValueError(msg)
    if not 0 < actions.count <= m:
        msg = f"there are {actions.count} actions over {m} rows; use from one to as many as rows."
        raise ValueError(msg)
