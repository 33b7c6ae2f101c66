"""Covariances within groups of inputs, and weighted sums of them: what kernels give is what whole matrices give."""

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


@pytest.mark.cover(2, quick=1)
@pytest.mark.parametrize("alone", [True, False], ids=["one input", "two inputs"])
@pytest.mark.parametrize("columns", [3, 6])
@pytest.mark.parametrize("name", CASES)
def test_groups_are_what_calls_for_each_are(name, columns, alone, backend):
    kernel, rng = kernel_case(name, columns), np.random.default_rng(1)
    inputs = [rng.normal(size=(GROUPS, rows, columns)) for rows in ([SIZE] if alone else [SIZE, ROWS])]
    calls = [kernel(*group) for group in zip(*inputs, strict=True)]
    K, pull = backend.move(kernel).grouped_covariance(*map(backend.array, inputs))
    assert_close(backend.numpy(K), np.stack([one for one, _ in calls]), 1e-12, "K")
    bar = rng.normal(size=K.shape)
    kernel_bar, *bars = pull(backend.array(bar))
    pulled = [one_pull(one_bar) for (_, one_pull), one_bar in zip(calls, bar, strict=True)]
    for found, expected in zip(bars, zip(*(rest for _, *rest in pulled), strict=True), strict=True):
        assert_close(backend.numpy(found), np.stack(expected), 1e-11, "inputs")
    for path, x in tree.leaves(kernel_bar).items():
        assert_close(backend.numpy(x), sum(tree.leaves(one)[path] for one, *_ in pulled), 1e-11, path)


@pytest.mark.parametrize("name", ["sum-ard", "product-of-three", "scaled", "on"])
def test_a_kernel_that_takes_no_groups_is_called_for_each(name, monkeypatch):
    kernel, leaves = kernel_case(name, 3), _leaves(3)
    (K, pull), (forms, pull_forms) = (
        kernel.grouped_covariance(leaves["Z"]),
        kernel.quadratic_forms(leaves["Z"], leaves["w"]),
    )
    for part in tree.nodes(kernel, Kernel).values():
        monkeypatch.setattr(type(part), "takes_groups", False)
    (each, pull_each), (usual, pull_usual) = (
        kernel.grouped_covariance(leaves["Z"]),
        kernel.quadratic_forms(leaves["Z"], leaves["w"]),
    )
    assert_close(each, K, 1e-13, "K")
    assert_close(usual, forms, 1e-13, "forms")
    found, expected = (pull_each(K), pull_usual(forms)), (pull(K), pull_forms(forms))
    for one, other in zip(found, expected, strict=True):
        for x, y in zip(one[1:], other[1:], strict=True):
            assert_close(x, y, 1e-12, "inputs")
        for path, x in tree.leaves(other[0]).items():
            assert_close(tree.leaves(one[0])[path], x, 1e-12, path)


@pytest.mark.cover(2, quick=1)
@pytest.mark.parametrize("columns", [3, 6])
@pytest.mark.parametrize("name", CASES)
def test_sums_are_those_of_the_matrices(name, columns, backend):
    kernel, (X, Z, w) = kernel_case(name, columns), _leaves(columns).values()
    sums = np.stack([kernel(X, z)[0] @ v for z, v in zip(Z, w, strict=True)])
    forms = np.stack([v @ kernel(z)[0] @ v for z, v in zip(Z, w, strict=True)])
    there, (X_, Z_, w_) = backend.move(kernel), (backend.array(x) for x in (X, Z, w))
    assert_close(backend.numpy(there.grouped_sums(X_, Z_, w_)[0]), sums, 1e-12, "sums")
    assert_close(backend.numpy(there.quadratic_forms(Z_, w_)[0]), forms, 1e-12, "forms")


@pytest.mark.cover(2, quick=1)
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
