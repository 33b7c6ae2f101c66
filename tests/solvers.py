"""Every factorisation, solve and decomposition made to raise: what inverse-free methods may never use."""

import importlib
import importlib.util

from agp.backend import get_backend, known_backends
from agp.distributions._quantiles import gauss_hermite, gauss_legendre
from agp.likelihoods._panels import NODES

SOLVERS = {
    "numpy.linalg": """cholesky cond det eig eigh eigvals eigvalsh inv lstsq matrix_rank pinv qr slogdet solve svd
        svdvals tensorinv tensorsolve""",
    "scipy.linalg": """cho_factor cho_solve cholesky cholesky_banded det eig eigh eigvals eigvalsh get_lapack_funcs inv
        ldl lstsq lu lu_factor lu_solve null_space orth pinv pinvh qr schur solve solve_banded solve_triangular sqrtm
        svd svdvals""",
    "torch.linalg": """cholesky cholesky_ex det eig eigh eigvals eigvalsh inv inv_ex ldl_factor lstsq lu lu_factor
        lu_solve pinv qr slogdet solve solve_ex solve_triangular svd svdvals""",
    "torch": """cholesky cholesky_solve cholesky_inverse inverse logdet lu_solve pinverse qr slogdet svd
        triangular_solve""",
    "jax.numpy.linalg": """cholesky cond det eig eigh eigvals eigvalsh inv lstsq matrix_rank pinv qr slogdet solve svd
        svdvals tensorinv tensorsolve""",
    "jax.scipy.linalg": """cho_factor cho_solve cholesky det eigh eigh_tridiagonal expm inv lu lu_factor lu_solve polar
        qr schur solve solve_triangular sqrtm svd""",
    "jax.lax.linalg": "cholesky eig eigh lu qr schur svd triangular_solve tridiagonal_solve",
}


class Forbidden(AssertionError):
    """A factorisation or a solve was called."""


def _forbidden(*args, **kwargs):
    raise Forbidden


def forbid(monkeypatch):
    """Let every one that can be reached raise.

    The nodes of quadratures, constants on the host, are eigenvalues: NumPy finds them once, before.
    """
    gauss_hermite(20)
    gauss_legendre(NODES)
    for module, names in SOLVERS.items():
        if importlib.util.find_spec(module.split(".")[0]) is None:
            continue
        target = importlib.import_module(module)
        for name in names.split():
            monkeypatch.setattr(target, name, _forbidden)
    for status in filter(lambda status: status.usable, known_backends()):
        cls = type(get_backend(status.name))
        monkeypatch.setattr(cls, "cholesky", _forbidden)
        monkeypatch.setattr(cls, "solve_triangular", _forbidden)
