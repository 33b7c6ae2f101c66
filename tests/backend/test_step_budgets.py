"""What a step of training asks of a device, method by method: launches, reads of the host and uploads, on the stand-in.

D = 8, float64, the recipe with all defaults, M = B = 257: beyond 256 rows the leaves of q(u) are too large to be joined
with others, and up to 1,024 matrices are worked on at once, so that the counts are those of M = B = 1,024.
"""

import numpy as np
import pytest

import agp
from agp.backend import get_backend
from agp.methods import build, updates_of
from agp.training._batches import Batches
from agp.training._run import Run
from agp.updates import Adam

pytest.importorskip("torch")
from standins.counts import Asking, counted

SIZE = 257
WITHOUT_INDUCING = ("gpr", "tvgp", "cggp", "cagp-opt", "cagp-cg")
ALL_ROWS = ("sgpr", "solve-collapsed", *WITHOUT_INDUCING)

BUDGETS = {
    "wsvgp": (340, 1),
    "rsvgp": (527, 1),
    "lsvgp": (316, 1),
    "asvgp": (596, 1),
    "msvgp": (360, 1),
    "qsvgp": (417, 1),
    "gpr": (125, 1),
    "sgpr": (289, 1),
    "cggp": (1190, 7),
    "tsvgp": (806, 1),
    "tvgp": (315, 1),
    "solve": (440, 1),
    "solve-collapsed": (319, 1),
    "solve-relaxed": (968, 1),
    "cagp-opt": (302, 1),
    "cagp-cg": (1200, 6),
    "deep-wsvgp": (560, 1),
    "deep-rsvgp": (995, 3),
    "deep-asvgp": (1844, 9),
}
"""Launches and reads of a step; there are no uploads. Conjugate gradients, and inverses of layers, are looked at."""

BEFORE = {"asvgp": 13, "solve-relaxed": 25}
"""Steps before, where the first ones need more than one step of an inverse, and guesses are given up for a while.

None is the first of an epoch, with which the order of its rows travels.
"""


def started(method, place, size=SIZE, columns=8, updates=None):
    """A training of a method: minibatches of a quarter of the rows where it takes any, else all of them."""
    rng = np.random.default_rng(0)
    rows = size if method in WITHOUT_INDUCING else 4 * size
    X = place.array(rng.normal(size=(rows, columns)))
    y = place.array(np.sin(rng.normal(size=(rows, 1))))
    model = build(method, X, y, likelihood=agp.Gaussian(), kernel="rbf", num_inducing=size, num_actions=16, seed=0)
    updates = updates_of(method, model, 1000) if updates is None else updates
    batches = Batches(X, y, rows if method in ALL_ROWS else size, 0, model._draws)
    return Run(model, updates, batches, None, {})


def counts_of_a_step(run, before=2):
    """What a step asks for, once so many have been taken."""
    for _ in range(before):
        run._advance()
    with counted() as counts:
        run._advance()
    return counts


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("method", BUDGETS)
def test_a_step_launches_reads_and_uploads_no_more(method, torch_device):
    counts = counts_of_a_step(started(method, torch_device), BEFORE.get(method, 2))
    launches, reads = BUDGETS[method]
    assert counts.uploads.total() == 0, counts
    assert counts.reads.total() <= reads, counts
    assert counts.launches.total() <= launches, counts


@pytest.mark.slow
def test_launches_do_not_depend_on_the_number_of_columns_or_rows(torch_device):
    few = counts_of_a_step(started("wsvgp", torch_device)).totals
    assert counts_of_a_step(started("wsvgp", torch_device, 300, 20)).totals == few


ASKING = {
    "a launch": (lambda x: x + 1.0, (1, 0, 0)),
    "a view": (lambda x: x[1:].mT, (0, 0, 0)),
    "a number": (lambda x: float(x[0, 0]), (0, 1, 0)),
    "a decision": (lambda x: bool(x[0, 0] > 0.0), (1, 1, 0)),
    "a copy to the host": (lambda x: x.cpu(), (0, 1, 0)),
    "a mask": (lambda x: x[x > 0.0], (2, 1, 0)),
    "positions": (lambda x: x[[0, 1]], (1, 0, 1)),
    "numbers of the host": (lambda x: get_backend("torch").from_numpy([1.0], device="cuda:0"), (0, 0, 1)),
    "a number as an array": (lambda x: get_backend("torch").xp.minimum(x, 1.0), (1, 0, 1)),
    "a factor whose failure is read": (lambda x: get_backend("torch").xp.linalg.eigh(x[:8, :8]), (1, 1, 0)),
}


@pytest.mark.slow
@pytest.mark.sample(5)
@pytest.mark.parametrize("what", ASKING)
def test_what_is_asked_for_in_a_step_is_counted_with_its_line(what, torch_device):
    ask, more = ASKING[what]
    least = counts_of_a_step(started("wsvgp", torch_device, 8, updates=[Adam(1e-2)]))
    counts = counts_of_a_step(started("wsvgp", torch_device, 8, updates=[Adam(1e-2), Asking(ask)]))
    assert tuple(b - a for a, b in zip(least.totals, counts.totals, strict=True)) == more
    for new, old in ((counts.launches, least.launches), (counts.reads, least.reads), (counts.uploads, least.uploads)):
        assert all(":" in line for line in new - old)


def test_a_tensor_of_the_host_beside_one_of_the_device_is_refused(torch_device):
    import torch

    x, y = torch_device.array([1.0, 2.0]), torch.tensor([1.0, 2.0], dtype=torch.float64)
    for meet in (lambda: x + y, lambda: torch.stack([x, y]), lambda: x @ y, lambda: torch.where(x > 0.0, x, y)):
        with pytest.raises(RuntimeError, match="same device"):
            meet()
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        np.asarray(x)
    with counted() as counts:
        assert (x + torch.tensor(1.0, dtype=torch.float64)).tolist() == [2.0, 3.0]  # 0-d: torch takes it, at a price
    assert counts.totals == (1, 1, 1)
