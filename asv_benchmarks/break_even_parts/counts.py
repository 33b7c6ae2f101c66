"""Operations of a training step by kind, counted while torch runs the step on a CPU.

On a GPU, agp divides triangular products only down to larger blocks than on a CPU, to save launches. The counts are for
the block sizes of a GPU. For M above 1024, M, the batch, the number of probes and all block sizes are divided by a
common factor f, and the counted operations are multiplied by f^3, which gives the same number.
"""

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from benchmarks.common import COLUMNS, problem, protocol, sparse_model
from torch.utils._python_dispatch import TorchDispatchMode

from agp.backend import get_backend
from agp.linalg import _blocks, _cholesky, _triangular
from agp.posteriors._relaxed import EXACT_UP_TO, PROBES
from agp.training import Batches, recipe
from agp.updates import InverseUpdate
from agp_backends._cuda import LARGE, SMALL

BATCH = 1024
THIN = 64
"""A product of matrices with at most this number of rows, columns or inner columns counts by its bytes."""
METHODS = ("wsvgp", "lsvgp", "rsvgp")
BLOCKS = {"fast": LARGE, "slow": SMALL}
"""Block sizes in float64 on cards with fast and with slow float64; in float32, the size is always the first."""
WAYS: tuple[tuple[str, str | None], ...] = (
    ("float64", None),
    ("float64", "float32"),
    ("float32", None),
    ("float32", "bfloat16"),
)
"""Pairs of precisions: that of a model, and that of the products of its inversion."""
UNCOUNTED = ("empty", "_unsafe_view", "_reshape_alias")
"""Operations that launch no kernel."""
LOOSE = 1e6
"""A tolerance that every residual meets, so that an update takes the least number of inverse steps."""
POWERS = {"launches": 0, "rows": 1, "bytes": 2, "operations": 3}
"""The power of f by which each count grows."""


class Operations(TorchDispatchMode):
    """Counts launches, additions and multiplications by kind and dtype, rows of factors, and bytes of the rest.

    Sizes are multiplied by a factor (see the docstring of the module).
    """

    def __init__(self, factor: int = 1) -> None:
        super().__init__()
        self.factor = factor
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        aliases = [argument.alias_info for argument in func._schema.arguments]
        if any(alias is not None and not alias.is_write for alias in aliases):
            return out  # a view
        inputs = [x for x in tensors(args) if x.ndim]
        kind, operations, rows = kind_of(func._schema.name.removeprefix("aten::"), inputs, THIN // self.factor)
        if kind == "nothing":
            return out
        self.add("launches", 1, "launches")
        if kind == "bytes":
            inputs = [] if func._schema.name.endswith("_like") else inputs  # of which only the shape is read
            self.add("bytes", sum(map(size_of, (*inputs, *tensors((out,))))), "bytes")
        else:
            self.add(f"{kind} {name_of(inputs[-1])}", operations, "operations")
            self.add(f"{kind} rows", rows, "rows")
        return out

    def add(self, name: str, amount: int, what: str) -> None:
        """Add a number of launches, rows, bytes or operations."""
        if amount:
            self.found[name] += amount * self.factor ** POWERS[what]


def tensors(values: Any) -> list[torch.Tensor]:
    """The tensors in nested tuples and lists."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, tuple | list):
            found += tensors(value)
    return found


def kind_of(name: str, inputs: list[torch.Tensor], thin: int) -> tuple[str, int, int]:
    """The kind of an operation, its additions and multiplications, and the rows of a triangular factor.

    The kind of thin products, and of operations that are not linear algebra, is "bytes". The kind of operations that
    launch no kernel is "nothing".
    """
    if name.removeprefix("new_").startswith(UNCOUNTED):
        return "nothing", 0, 0
    if name in ("mm", "addmm", "bmm", "baddbmm"):
        X, Y = inputs[-2:]
        if min(*X.shape[-2:], Y.shape[-1]) > max(thin, COLUMNS):
            return "product", 2 * X.numel() * Y.shape[-1], 0
    if name.startswith("linalg_cholesky"):
        return "cholesky", inputs[0].numel() * inputs[0].shape[-1] // 3, inputs[0].shape[-1]
    if name == "linalg_solve_triangular":
        L, X = inputs
        return "solve", X.numel() * L.shape[-1], L.shape[-1]
    return "bytes", 0, 0


def size_of(x: torch.Tensor) -> int:
    """Bytes of a tensor; repeated entries of broadcast tensors count once."""
    return min(x.numel() * x.element_size(), x.untyped_storage().nbytes())


def name_of(x: torch.Tensor) -> str:
    """The name of a dtype, such as float32."""
    return str(x.dtype).removeprefix("torch.")


def counted(method: str, M: int, dtype: str, precision: str | None, block: int) -> dict[str, dict[str, int]]:
    """Operations of a training step with Adam on a batch of 1,024 rows.

    R-SVGP with t inverse steps takes the operations of the entry "step" and t times those of "inverse step". They are
    computed from training steps with one and with two inverse steps.
    """
    if method != "rsvgp":
        return {"step": dict(operations_of(method, M, dtype, None, 1, block))}
    one, two = (operations_of(method, M, dtype, precision, steps, block) for steps in (1, 2))
    each = {name: two[name] - one[name] for name in two}
    rest = {name: one[name] - each[name] for name in two}
    return {"step": nonzero(rest), "inverse step": nonzero(each)}


def nonzero(counts: dict[str, int]) -> dict[str, int]:
    """Without entries that are zero."""
    return {name: count for name, count in counts.items() if count}


def operations_of(
    method: str, M: int, dtype: str, precision: str | None, steps: int, block: int, factor: int | None = None
) -> Counter[str]:
    """Count the operations of a training step with a number of inverse steps."""
    factor = max(1, M // 1024) if factor is None else factor
    size, rows = M // factor, BATCH // factor
    B = get_backend("torch")
    B.enable_float64()
    X, y = problem(B, "cpu", rows=max(size, rows), dtype=dtype)
    model = sparse_model(method, X, y, size)
    if method == "rsvgp":
        posterior = dataclasses.replace(model.process.posterior, probes=PROBES // factor if M > EXACT_UP_TO else 0)
        model = dataclasses.replace(model, process=dataclasses.replace(model.process, posterior=posterior))
    updates = [
        dataclasses.replace(update, tolerance=LOOSE, least_steps=steps, max_steps=steps, precision=precision)
        if isinstance(update, InverseUpdate)
        else update
        for update in recipe(model, 100, natural=None)
    ]
    batch = Batches(X, y, rows, 0, protocol(model, "draws"))[0]
    states = [update.init(model) for update in updates]
    with gpu_blocks(type(B), block // factor, factor), torch.no_grad(), Operations(factor) as counter:
        for update, state in zip(updates, states, strict=True):
            model, _, _ = update(model, batch, state)
    return counter.found


@contextlib.contextmanager
def gpu_blocks(backend: type, double: int, factor: int) -> Iterator[None]:
    """Divide triangular matrices as on a GPU, with all block sizes divided by a factor.

    `double` is the size for float64; other precisions have the usual size.
    """

    def device_block(_: Any, x: torch.Tensor) -> float:
        return double if x.dtype == torch.float64 else LARGE // factor

    sizes = [(_triangular, "DENSE_BLOCK"), (_triangular, "SOLVE_BLOCK"), (_blocks, "SOLVE_BLOCK"), (_cholesky, "BLOCK")]
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(backend, "device_block", device_block))
        stack.enter_context(mock.patch.object(backend, "triangular_block", backend.triangular_block // factor))
        for module, name in sizes:
            stack.enter_context(mock.patch.object(module, name, vars(module)[name] // factor))
        yield


def all_counts(sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """The counts of all methods, sizes, precisions and block sizes."""
    return [
        {"method": method, "M": M, "dtype": dtype, "precision": precision, "blocks": blocks}
        | counted(method, M, dtype, precision, BLOCKS[blocks])
        for method in METHODS
        for M in sizes
        for dtype, precision in WAYS
        for blocks in BLOCKS
        if (precision is None or method == "rsvgp") and (blocks == "fast" or dtype == "float64")
    ]
