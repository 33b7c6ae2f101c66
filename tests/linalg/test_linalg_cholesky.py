"""The Cholesky factorisation: one answer to failure, everywhere."""

import warnings

import numpy as np
import pytest

from agp.errors import NotPositiveDefiniteError, RepairWarning
from agp.linalg import add_jitter, cholesky, default_jitter
from agp.repairs import Tally, collect_reports


def _almost(smallest):
    """Symmetric, of mean diagonal 1, with one eigenvalue -smallest."""
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.normal(size=(5, 5)))[0]
    A = Q @ np.diag([-smallest, 1.0, 1.0, 1.0, 2.0 + smallest]) @ Q.T
    return 0.5 * (A + A.T)


def test_factor(backend):
    A = np.array([[4.0, 2.0], [2.0, 5.0]])
    L = backend.numpy(cholesky(backend.array(A)))
    np.testing.assert_allclose(L, [[2.0, 0.0], [1.0, 2.0]], rtol=1e-15)


@pytest.mark.parametrize(("smallest", "jitter", "attempt"), [(5e-6, 1e-5, 1), (5e-5, 1e-4, 2), (5e-4, 1e-3, 3)])
def test_repair_adds_ten_times_more_until_it_works(smallest, jitter, attempt, backend):
    A = _almost(smallest)
    with pytest.warns(RepairWarning, match=f"attempt {attempt} of 3") as caught:
        L = backend.numpy(cholesky(backend.array(A)))
    assert f"{jitter:.3g} was added" in str(caught[0].message)
    np.testing.assert_allclose(L @ L.T, A + jitter * np.eye(5), atol=1e-12)


def test_repair_in_float32_starts_higher(backend):
    A = _almost(5e-4)
    with pytest.warns(RepairWarning, match="jitter 0.001 was added"):
        L = backend.numpy(cholesky(backend.array(A, "float32")), "float32")
    np.testing.assert_allclose(L @ L.T, A + 1e-3 * np.eye(5), atol=1e-5)


@pytest.mark.parametrize(
    ("A", "cause"),
    [
        (_almost(0.1), "duplicated or nearly equal inputs"),
        (np.full((3, 3), np.nan), "NaN or infinite entries"),
        (-np.eye(3), r"returned a negative variance \(-1\)"),
        (np.zeros((3, 3)), "diagonal has zeros"),
    ],
    ids=["indefinite", "nan", "negative", "zero"],
)
def test_failure_names_the_cause(A, cause, backend):
    with pytest.raises(NotPositiveDefiniteError, match=cause):
        cholesky(backend.array(A))


def test_repairs_are_recorded(backend):
    with warnings.catch_warnings(), collect_reports() as reports:
        warnings.simplefilter("error")
        cholesky(backend.array(_almost(5e-6)))
        cholesky(backend.array(np.eye(2)))
        cholesky(backend.array(_almost(5e-5)))
    (message, count), *others = Tally(reports).messages.items()
    assert not others
    assert count == 2
    assert "attempt 1 of 3" in message


def test_records_end_with_the_block(backend):
    with collect_reports() as outer:
        with collect_reports() as inner:
            cholesky(backend.array(_almost(5e-6)))
        assert (Tally(outer).total, Tally(inner).total) == (0, 1)
    with pytest.warns(RepairWarning):
        cholesky(backend.array(_almost(5e-6)))


@pytest.mark.parametrize(("dtype", "relative"), [("float64", 1e-6), ("float32", 1e-4)])
def test_default_jitter_is_relative(dtype, relative, backend):
    A = backend.array(np.diag([1.0, 2.0, 6.0]), dtype)
    np.testing.assert_allclose(backend.numpy(default_jitter(A), dtype), 3.0 * relative, rtol=1e-6)
    found = backend.numpy(add_jitter(A), dtype)
    np.testing.assert_allclose(np.diag(found) - [1.0, 2.0, 6.0], 3.0 * relative, rtol=1e-2)


def test_explicit_jitter_is_absolute(backend):
    found = backend.numpy(add_jitter(backend.array(10.0 * np.eye(2)), 0.5))
    np.testing.assert_allclose(found, 10.5 * np.eye(2))


def test_default_jitter_is_differentiated_and_its_own_pullback(torch_place):
    A = torch_place.array(np.diag([1.0, 2.0, 6.0])).requires_grad_()
    bar = torch_place.array(np.diag([1.0, -1.0, 3.0]))
    (add_jitter(A) * bar).sum().backward()
    np.testing.assert_allclose(torch_place.numpy(A.grad), torch_place.numpy(add_jitter(bar)), rtol=1e-12)


@pytest.mark.parametrize("shape", [(3, 3), (2, 3, 3)], ids=["matrix", "batch"])
def test_backends_answer_failure_with_nan(shape, backend):
    from agp.backend import get_backend

    A = backend.array(np.broadcast_to(-np.eye(3), shape))
    found = backend.numpy(get_backend(backend.name).cholesky(A))
    assert found.shape == shape
    assert np.isnan(np.diagonal(found, axis1=-2, axis2=-1)).all()


@pytest.mark.parametrize("transpose", [False, True])
def test_triangular_solves(transpose, backend):
    from agp.backend import get_backend

    rng = np.random.default_rng(0)
    L, B = np.tril(rng.normal(size=(4, 4))) + 3.0 * np.eye(4), rng.normal(size=(4, 2))
    found = get_backend(backend.name).solve_triangular(backend.array(L), backend.array(B), transpose=transpose)
    np.testing.assert_allclose((L.T if transpose else L) @ backend.numpy(found), B, atol=1e-13)
