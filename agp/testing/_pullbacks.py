"""Checks of pullbacks against finite differences on the host, and against automatic differentiation.

A stage is a differentiable function of a part. The outputs of a stage, multiplied by random cotangents and summed, give
a scalar. The pullback computes the gradient of this scalar. The reference gradient is computed from the forward code
alone.
"""

import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from agp import tree
from agp.backend import Array, Backend, get_backend, known_backends
from agp.checks import check_whole
from agp.errors import BackendError, count_of
from agp.kernels import Kernel
from agp.testing._inputs import draw_inputs, number_names
from agp.testing._stages import Points, Stage, stages_of

STEP = 3e-4
"""The step of the fourth-order differences. At this value, truncation and rounding errors are about 1e-11."""
SMALL = 1e-6
"""The minimum denominator of relative errors, as a share of the largest entry in the gradients of all leaves."""
SPREAD = 0.3
"""The standard deviation of random changes to raw leaves, without which gradients may vanish by symmetry."""


class _Mistake(NamedTuple):
    error: float
    leaf: str
    entry: tuple[int, ...]
    found: float
    expected: float


def check_pullback(
    part: Any,
    /,
    *,
    X: Array | None = None,
    width: int | None = None,
    y: Array | None = None,
    kernel: Kernel | None = None,
    outputs: int = 2,
    inducing: int = 5,
    seed: int = 0,
    differences: bool = True,
    backends: Iterable[str] | None = None,
    tolerance: float = 1e-6,
) -> None:
    """Compare the pullbacks of a model part with finite differences and automatic differentiation.

    On NumPy, pullbacks are compared with central differences. On torch and JAX, pullbacks are compared with automatic
    differentiation of the same forward code, and values are compared with those of NumPy. All computations use float64,
    parameters near those of the part, and random inputs and cotangents. Gradients are taken with respect to raw leaves,
    as in training, so the check includes constraints and units.

    Parameters
    ----------
    part
        A kernel, a mean function, a likelihood, an `agp.inducing.Inducing` or an `agp.processes.Process`. Missing
        leaves get starting values. The part may also be a posterior: a class, the name of a class, or an object whose
        size matches `inducing` and `outputs`.
    X
        Inputs [N, D] at which the part is checked. The default is eight random rows. Columns of categories contain
        codes of levels, and are constant.
    width
        The number of columns of the random rows. The default is two, or the number that a kernel, a mean function or a
        process requires. Columns that a kernel selects by name are numbered in the order of their occurrence.
    y
        Targets [N] or [N, K]. They are required to check a likelihood.
    kernel
        The kernel of the process if the part is an `Inducing`. The default is `RBF`.
    outputs
        The number of outputs P, for a mean function or a posterior class.
    inducing
        The number of inducing variables M, for a posterior or inducing variables.
    seed
        The seed for all random numbers.
    differences
        Whether to compare with central differences. Pass False if the forward code calls `Backend.stop_gradient`,
        because differences ignore that call.
    backends
        The names of the libraries whose automatic differentiation is used. The default is all installed libraries.
    tolerance
        The maximum error, relative to the largest entry of the leaf's gradient.

    Raises
    ------
    AssertionError
        If an entry of a gradient or a value is wrong, or the shape of a cotangent differs from that of its leaf. The
        message gives the leaf, the wrong value, the expected value and the relative error.
    TypeError
        If the part is of another kind, or is a likelihood and `y` is missing.
    ValueError
        If the part does not accept inputs with these columns, or if `width` differs from the width of `X`.
    agp.errors.BackendError
        If one of `backends` cannot differentiate.
    """
    rng = np.random.default_rng(seed)
    if tree.is_model(part):
        part = _on(get_backend("numpy"), number_names(part) if isinstance(part, Kernel) else part)
    kernel = kernel if kernel is None else number_names(kernel)
    width = width if width is None else check_whole("width", width)
    if X is None:
        X = draw_inputs(part, kernel, width, outputs, rng)
    elif width is not None and width != X.shape[1]:
        raise ValueError(f"width is {width}, but X has {count_of(X.shape[1], 'column')}; pass one of them.")
    if backends is None:
        backends = [status.name for status in known_backends() if status.usable and "autodiff" in status.gradients]
    others = [_check_autodiff(get_backend(name)) for name in backends]
    label = type(part).__name__ if tree.is_model(part) else part.__name__ if isinstance(part, type) else str(part)
    for stage in stages_of(part, Points(np.asarray(X), y, kernel, outputs, inducing, rng)):
        problem = _Problem(stage, label, rng)
        values, gradient = problem.closed_form(get_backend("numpy"))
        if differences:
            problem.compare("differences give", gradient, problem.differences(), tolerance)
        for B in others:
            with B.float64_context():
                problem.compare_library(B, values, tolerance)


def _check_autodiff(B: Backend) -> Backend:
    if "autodiff" not in B.gradients:
        raise BackendError(
            f"backends contains {B.name!r}, which has no automatic differentiation; omit it. With backends=[], "
            "pullbacks are compared with differences on NumPy alone."
        )
    return B


def _on(B: Backend, part: Any) -> Any:
    """Convert the arrays of the part to float64 arrays of a library; other leaves stay unchanged."""
    arrays = {name: x for name, x in tree.leaves(part).items() if not isinstance(x, (int, float, list, tuple))}
    moved = {name: tree.to_backend(x, B.name, dtype="float64") for name, x in arrays.items()}
    return tree.with_leaves(part, moved)


class _Problem:
    """A stage with random cotangents, which turn its outputs into a scalar function of raw leaves and inputs."""

    def __init__(self, stage: Stage, label: str, rng: np.random.Generator) -> None:
        self.stage, self.label = stage, label
        raw = {name: np.asarray(x) for name, x in tree.unconstrain(stage.part).items()}
        moved = {name: np.asarray(x + SPREAD * rng.standard_normal(x.shape)) for name, x in raw.items()}
        self.leaves = moved | {f"input {name}": np.asarray(x) for name, x in stage.inputs.items()}
        outputs = self._evaluate(stage.part, self.leaves)[1]
        self.bars = [rng.standard_normal(x.shape) for x in outputs]

    def _evaluate(self, part: Any, leaves: Mapping[str, Array]) -> tuple[Any, tuple[Array, ...], Callable]:
        raw = {name: x for name, x in leaves.items() if not name.startswith("input ")}
        inputs = {name.removeprefix("input "): x for name, x in leaves.items() if name not in raw}
        here = tree.constrain(part, raw)
        return here, *self.stage.run(here, inputs)

    def _total(self, B: Backend, part: Any, bars: list[Array], leaves: Mapping[str, Array]) -> Array:
        products = (B.xp.sum(bar * x) for bar, x in zip(bars, self._evaluate(part, leaves)[1], strict=True))
        return functools.reduce(operator.add, products)

    def _there(self, B: Backend) -> tuple[Any, list[Array], dict[str, Array]]:
        """Return the part, the cotangents and the leaves as arrays of a library."""
        leaves = {name: B.from_numpy(x, dtype="float64") for name, x in self.leaves.items()}
        bars = [B.from_numpy(x, dtype="float64") for x in self.bars]
        return _on(B, self.stage.part), bars, leaves

    def closed_form(self, B: Backend) -> tuple[list[Any], dict[str, Any]]:
        """Return the outputs, and the gradient from the pullback, by name. Zero replaces None."""
        part, bars, leaves = self._there(B)

        def evaluated(leaves: dict[str, Array]) -> tuple[tuple[Array, ...], dict[str, Array]]:
            here, outputs, pullback = self._evaluate(part, leaves)
            part_bar, input_bars = pullback(*bars)
            given = tree.leaves(part_bar) if part_bar is not None else {}
            given |= {f"input {name}": bar for name, bar in input_bars.items() if bar is not None}
            self._check_shapes(given, tree.leaves(here) | leaves)
            inputs = {name: x for name, x in leaves.items() if name.startswith("input ")}
            found = {name: given.get(name, B.xp.zeros_like(x)) for name, x in inputs.items()}
            return outputs, tree.pull_raw(here, part_bar) | found

        outputs, gradient = B.compile(evaluated)(leaves)
        return [B.to_numpy(x) for x in outputs], {name: B.to_numpy(x) for name, x in gradient.items()}

    def _check_shapes(self, bars: Mapping[str, Array], values: Mapping[str, Array]) -> None:
        for name, bar in bars.items():
            here, there = tuple(bar.shape), tuple(values[name].shape)
            if here != there:
                raise AssertionError(
                    f"{self._of(name)}: the cotangent has shape {here}, but the leaf has shape {there}."
                )

    def differences(self) -> dict[str, Any]:
        """Return the gradient from fourth-order central differences."""
        B = get_backend("numpy")

        def slope(name: str, entry: tuple[int, ...]) -> float:
            def at(step: float) -> float:
                moved = self.leaves[name].copy()
                moved[entry] += step
                return float(self._total(B, self.stage.part, self.bars, self.leaves | {name: moved}))

            return (8.0 * (at(STEP) - at(-STEP)) - (at(2.0 * STEP) - at(-2.0 * STEP))) / (12.0 * STEP)

        return {
            name: np.asarray([slope(name, entry) for entry in np.ndindex(x.shape)]).reshape(x.shape)
            for name, x in self.leaves.items()
        }

    def autodiff(self, B: Backend) -> dict[str, Any]:
        """Return the gradient from the automatic differentiation of a library."""
        part, bars, leaves = self._there(B)

        def total(leaves: dict[str, Array]) -> Array:
            # adds zero times each leaf, so that every leaf is in the graph of the library
            zero = sum(0.0 * B.xp.sum(x) for x in leaves.values())
            return self._total(B, part, bars, leaves) + zero

        found = B.compile(lambda leaves: B.value_and_grad(total, leaves)[1])(leaves)
        return {name: B.to_numpy(x) for name, x in found.items()}

    # -- comparison -------------------------------------------------------------------------------------------------

    def _of(self, name: str) -> str:
        return f"{self.label}, {self.stage.name}, {name if name.startswith('input ') else f'leaf {name}'}"

    def compare_library(self, B: Backend, values: list[Any], tolerance: float) -> None:
        """Compare values with those of a library, and its pullback with its automatic differentiation."""
        values_there, gradient_there = self.closed_form(B)
        self.compare_values(B, values_there, values, tolerance)
        judge = f"automatic differentiation by {B.name} gives"
        self.compare(judge, gradient_there, self.autodiff(B), tolerance)

    def compare_values(self, B: Backend, found: list[Any], expected: list[Any], tolerance: float) -> None:
        """Raise AssertionError if a library's values differ from NumPy's."""
        for i, values in enumerate(zip(found, expected, strict=True)):
            mistake = _largest("", *values, floor=0.0)
            if not mistake.error <= tolerance:
                raise AssertionError(
                    f"{self.label}, {self.stage.name}, value {i}{_at(mistake.entry)}: {B.name} gives "
                    f"{mistake.found:.9g}, NumPy gives {mistake.expected:.9g}; relative error {mistake.error:.2g}."
                )

    def compare(self, judge: str, found: Mapping[str, Any], expected: Mapping[str, Any], tolerance: float) -> None:
        """Raise AssertionError for the leaf with the largest error, if this error is too large."""
        floor = SMALL * max((_size(x) for x in expected.values()), default=0.0)
        worst = max((_largest(name, found[name], expected[name], floor) for name in expected), default=None)
        if worst is not None and not worst.error <= tolerance:
            raise AssertionError(
                f"{self._of(worst.leaf)}{_at(worst.entry)}: the pullback gives {worst.found:.9g}, {judge} "
                f"{worst.expected:.9g}; relative error {worst.error:.2g}."
            )


def _size(x: Any) -> float:
    return float(np.max(np.abs(x), initial=0.0))


def _largest(leaf: str, found: Any, expected: Any, floor: float) -> _Mistake:
    """Return the entry with the largest error. Entries that are not finite count as infinite errors."""
    apart = np.abs(np.asarray(found) - np.asarray(expected)) / max(_size(expected), floor, 1e-300)
    apart = np.where(np.isfinite(apart), apart, np.inf)
    entry = np.unravel_index(int(np.argmax(apart)), apart.shape) if apart.ndim else ()
    entry = tuple(int(i) for i in entry)
    return _Mistake(float(apart[entry]), leaf, entry, float(found[entry]), float(expected[entry]))


def _at(entry: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, entry))}]" if entry else ""
