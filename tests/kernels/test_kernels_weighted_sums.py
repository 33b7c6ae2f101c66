"""Weighted sums of covariances with groups of inputs: what the kernel gives is what the whole matrices give."""

import numpy as np
import pytest
from helpers import assert_close, assert_closed_form_is_autograd
from kernel_cases import CASES, kernel_case, with_arrays

from agp import tree
from agp.kernels import Kernel

GROUPS, SIZE, ROWS = 3, 4, 5


def _leaves(columns):
    rng = np.random.default_rng(columns)
    return {
        "X": rng.normal(size=(ROWS, columns)),
        "Z": rng.normal(size=(GROUPS, SIZE, columns)),
        "w": rng.normal(size=(GROUPS, SIZE)),
    }


def _stage(kernel, call):
    """A call's value as a function of the kernel's leaves, its inputs and the weights."""

    def stage(leaves):
        k = with_arrays(kernel, leaves)
        inputs = ("X", "Z", "w") if call == "grouped_sums" else ("Z", "w")
        value, pull = getattr(k, call)(*(leaves[name] for name in inputs))

        def pullback(bar):
            kernel_bar, *input_bars = pull(bar)
            return tree.leaves(kernel_bar) | dict(zip(inputs, input_bars, strict=True))

        return (value,), pullback

    return stage


@pytest.mark.parametrize("columns", [3, 6])
@pytest.mark.parametrize("name", CASES)
def test_sums_are_those_of_the_matrices(name, columns, backend):
    kernel, (X, Z, w) = kernel_case(name, columns), _leaves(columns).values()
    sums = np.stack([kernel(X, z)[0] @ v for z, v in zip(Z, w, strict=True)])
    forms = np.stack([v @ kernel(z)[0] @ v for z, v in zip(Z, w, strict=True)])
    there, (X_, Z_, w_) = backend.move(kernel), (backend.array(x) for x in (X, Z, w))
    assert_close(backend.numpy(there.grouped_sums(X_, Z_, w_)[0]), sums, 1e-12, "sums")
    assert_close(backend.numpy(there.quadratic_forms(Z_, w_)[0]), forms, 1e-12, "forms")


@pytest.mark.parametrize("call", ["grouped_sums", "quadratic_forms"])
@pytest.mark.parametrize("columns", [3, 6])
@pytest.mark.parametrize("name", CASES)
def test_pullbacks_are_those_of_the_matrices(name, columns, call, torch_place):
    kernel, leaves = kernel_case(name, columns), _leaves(columns)
    if call == "quadratic_forms":
        leaves.pop("X")
    assert_closed_form_is_autograd(_stage(kernel, call), tree.leaves(kernel, "parameter") | leaves)


@pytest.mark.parametrize("call", ["grouped_sums", "quadratic_forms"])
@pytest.mark.parametrize("name", ["rbf", "matern52", "rq", "sum-ard"])
def test_a_kernel_of_ones_own_has_the_same_pullback(name, call, backend):
    kernel, leaves = kernel_case(name, 6), _leaves(6)
    inputs = [backend.array(x) for x in leaves.values()][0 if call == "grouped_sums" else 1 :]
    there = backend.move(kernel)
    (value, pull), (usual, usual_pull) = getattr(there, call)(*inputs), getattr(Kernel, call)(there, *inputs)
    assert_close(backend.numpy(value), backend.numpy(usual), 1e-12, "value")
    (kernel_bar, *bars), (usual_bar, *usual_bars) = pull(1.0 + value), usual_pull(1.0 + value)
    here, usually = [*tree.leaves(kernel_bar).values(), *bars], [*tree.leaves(usual_bar).values(), *usual_bars]
    for own, general in zip(here, usually, strict=True):
        assert_close(backend.numpy(own), backend.numpy(general), 1e-11, "bar")
