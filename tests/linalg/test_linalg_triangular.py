"""Products that know their triangles, against dense products."""

import numpy as np
import pytest
from helpers import assert_close

from agp import linalg
from agp.backend import Backend, get_backend
from agp.linalg import _triangular


def _random(shape, lower=False, symmetric=False, seed=0):
    A = np.random.default_rng([seed, *shape]).normal(size=shape)
    A = np.tril(A) if lower else A
    return A + A.swapaxes(-1, -2) if symmetric else A


PRODUCTS = {
    "lower_of": (lambda n, b: (_random((*b, n, n + 2)), _random((*b, n + 2, n), seed=1)), lambda X, Y: np.tril(X @ Y)),
    "times_lower": (lambda n, b: (_random((*b, n + 1, n)), _random((*b, n, n), True)), lambda A, L: A @ L),
    "lower_times": (lambda n, b: (_random((*b, n, n), True), _random((*b, n, n + 1))), lambda L, C: L @ C),
    "lower_transposed_times": (
        lambda n, b: (_random((*b, n, n), True), _random((*b, n, n + 1))),
        lambda L, C: L.swapaxes(-1, -2) @ C,
    ),
    "lower_product": (
        lambda n, b: (_random((*b, n, n)), _random((*b, n, n), True, seed=1)),
        lambda A, L: np.tril(A @ L),
    ),
    "lower_transposed_product": (
        lambda n, b: (_random((*b, n, n), True), _random((*b, n, n), True, seed=1)),
        lambda L, C: np.tril(L.swapaxes(-1, -2) @ C),
    ),
    "lower_times_lower": (
        lambda n, b: (_random((*b, n, n), True), _random((*b, n, n), True, seed=1)),
        lambda L, Y: L @ Y,
    ),
    "product_lower": (
        lambda n, b: (_random((*b, n, n), True), _random((*b, n, n), seed=1)),
        lambda L, X: np.tril(L @ X),
    ),
    "product_lower_transposed": (
        lambda n, b: (_random((*b, n, n), True), _random((*b, n, n), True, seed=1)),
        lambda C, L: np.tril(C @ L.swapaxes(-1, -2)),
    ),
    "gram": (
        lambda n, b: (_random((*b, n, n), symmetric=True), _random((*b, n, n), True, seed=1)),
        lambda A, L: np.tril(L.swapaxes(-1, -2) @ A @ L),
    ),
    "congruence": (
        lambda n, b: (_random((*b, n, n), True), _random((*b, n, n), symmetric=True, seed=1)),
        lambda L, X: L @ X @ L.swapaxes(-1, -2),
    ),
}


@pytest.mark.cover(2)
@pytest.mark.parametrize("batch", [(), (2,)], ids=["matrix", "batch"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 13, 16])
@pytest.mark.parametrize("name", PRODUCTS)
def test_product_is_dense(name, size, batch, backend, block):
    operands, dense = PRODUCTS[name]
    host = operands(size, batch)
    found = getattr(_triangular, name)(*(backend.array(x) for x in host))
    assert_close(backend.numpy(found), dense(*host), 1e-13)


@pytest.mark.cover(2)
@pytest.mark.parametrize("batch", [(), (2,)], ids=["matrix", "batch"])
@pytest.mark.parametrize("size", [257, 384, 500])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_by_panels_are_dense(name, size, batch):
    operands, dense = PRODUCTS[name]
    host = operands(size, batch)
    assert_close(getattr(_triangular, name)(*host), dense(*host), 1e-12)


@pytest.mark.cover(2)
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 13])
def test_the_lower_triangle_of_a_solution(size, transpose, backend, block):
    L, C = _random((size, size), True) + 4.0 * np.eye(size), _random((size, size), True, seed=1)
    found = _triangular.solve_lower(backend.array(L), backend.array(C), transpose=transpose)
    assert_close(backend.numpy(found), np.tril(np.linalg.solve(L.T if transpose else L, C)), 1e-13)


@pytest.mark.parametrize("transpose", [False, True])
def test_autodiff_of_the_lower_triangle_of_a_solution(transpose, torch_place, block):
    import torch

    L = torch_place.array(_random((7, 7), True) + 4.0 * np.eye(7)).requires_grad_()
    C = torch_place.array(_random((7, 7), True, seed=1)).requires_grad_()
    weights = torch_place.array(_random((7, 7), seed=2))
    dense = torch.tril(torch.linalg.solve(L.mT if transpose else L, C))
    found = _triangular.solve_lower(L, C, transpose=transpose)
    expected, ours = (torch.autograd.grad((weights * x).sum(), (L, C)) for x in (dense, found))
    for one, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(*(torch_place.numpy(torch.tril(x)) for x in (one, other)), atol=1e-13)


@pytest.mark.parametrize("batch", [(), (2,)], ids=["matrix", "batch"])
@pytest.mark.parametrize("size", [3, 128, 300])
def test_symmetric_from_lower_reads_one_triangle(size, batch):
    A = _random((*batch, size, size))
    found = linalg.symmetric_from_lower(A)
    np.testing.assert_array_equal(np.tril(found), np.tril(A))
    np.testing.assert_array_equal(found, found.swapaxes(-1, -2))


@pytest.mark.parametrize("name", PRODUCTS)
def test_float32_stays(name, backend, block):
    operands, dense = PRODUCTS[name]
    host = [x.astype(np.float32) for x in operands(7, ())]
    found = getattr(_triangular, name)(*(backend.array(x, "float32") for x in host))
    assert_close(backend.numpy(found, "float32"), dense(*host), 1e-5)


@pytest.mark.parametrize("size", [130, 257])
def test_default_block_recurses(size, torch_place):
    assert size > Backend.triangular_block
    A, L = _random((size, size), symmetric=True), _random((size, size), True, seed=1)
    found = linalg.gram(torch_place.array(A), torch_place.array(L))
    assert_close(torch_place.numpy(found), np.tril(L.T @ A @ L), 1e-12)


def test_phi_halves_the_diagonal(backend):
    A = _random((2, 4, 4))
    found = backend.numpy(linalg.phi(backend.array(A)))
    np.testing.assert_allclose(found, np.tril(A, -1) + 0.5 * np.tril(np.triu(A)), rtol=1e-15)


def test_a_plug_in_with_routines_of_its_own_is_asked_for_whole_matrices(monkeypatch):
    kind, asked = type(get_backend("numpy")), []

    def record(name):
        usual = getattr(Backend, name)
        return lambda self, *args, **options: (
            asked.append((name, args[0].shape, options)) or usual(self, *args, **options)
        )

    monkeypatch.setattr(kind, "triangular_product", record("triangular_product"))
    monkeypatch.setattr(kind, "triangular_block", 10_000, raising=False)
    L, C = _random((300, 300), True) + 30.0 * np.eye(300), _random((300, 4))
    assert_close(linalg.lower_times(L, C), L @ C, 1e-13)
    assert_close(linalg.lower_transposed_times(L, C), L.T @ C, 1e-13)
    assert_close(linalg.times_lower(C.T, L), C.T @ L, 1e-13)
    assert asked == [
        ("triangular_product", L.shape, {"left": "lower"}),
        ("triangular_product", L.shape, {"left": "upper"}),
        ("triangular_product", C.T.shape, {"right": "lower"}),
    ]


def test_symmetric_products_and_inverses_from_factors(backend):
    L = _random((6, 6), True) + 3.0 * np.eye(6)
    B = get_backend(backend.name)
    assert_close(backend.numpy(B.times_own_transpose(backend.array(L))), L @ L.T, 1e-14)
    assert_close(backend.numpy(B.inverse_from_cholesky(backend.array(L))), np.linalg.inv(L @ L.T), 1e-12)
