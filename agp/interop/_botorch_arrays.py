# pyright: reportMissingImports=false
"""Arrays of `agp.interop.botorch`: joined rows, noise variances, and covariances that can be factorised."""

from typing import Any

import torch
from linear_operator import LinearOperator, to_linear_operator

Tensor = torch.Tensor

JITTERS = (1e-12, 1e-10, 1e-8, 1e-6)
"""Jitter, relative to the variances, for covariances that are singular because of rounding errors."""


def concat(parts: list[Tensor], axis: int) -> Tensor:
    """Concatenate arrays, without a copy of a single one."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, axis)


def join_rows(pair: tuple[Tensor, Tensor], batch: torch.Size) -> Tensor:
    """Concatenate rows [..., n, .], with all axes of the batch."""
    return torch.cat([x.expand(*batch, *x.shape[-2:]) for x in pair], -2)


def noise_variances(name: str, noise: Any, like: Tensor, shape: tuple[int, ...], /) -> Tensor:
    """Return noise variances [..., k or 1, m or 1], given an array or one number for all targets.

    Raise TypeError or ValueError unless they are positive or zero, and fit targets of the shape [..., k, m].
    """
    if isinstance(noise, bool):
        raise TypeError(f"{name} is {noise}, but must be noise variances; leave it out for the usual noise.")
    noise = torch.as_tensor(noise, dtype=like.dtype, device=like.device)
    noise = noise[None, None] if noise.ndim == 0 else noise
    lead = noise.shape[:-2], shape[:-2]
    fits = noise.ndim >= 2 and all(one in (1, size) for one, size in zip(noise.shape[-2:], shape[-2:], strict=True))
    fits = fits and all(1 in pair or pair[0] == pair[1] for pair in zip(*(x[::-1] for x in lead), strict=False))
    if not fits:
        k, m = shape[-2:]
        raise ValueError(
            f"{name} has shape {tuple(noise.shape)}, but must fit targets of shape {tuple(shape)}; pass a noise "
            f"variance for each target, [..., {k}, {m}], or the same ones for all points, [..., 1, {m}]."
        )
    if not bool((noise >= 0.0).all()):
        raise ValueError(f"{name} has an entry that is negative or NaN; pass noise variances, which are zero or more.")
    return noise


def noise_of_each(name: str, noise: Any, like: Tensor, shape: tuple[int, ...], /) -> Tensor:
    """Return `noise_variances` with a column for each target."""
    found = noise_variances(name, noise, like, shape)
    return found.expand(*found.shape[:-1], shape[-1])


def factorisable(covariance: Tensor) -> LinearOperator:
    """Add relative jitter to covariances [..., q, q] where needed, because BoTorch's jitter is absolute."""
    given = found = covariance.detach()
    variances = given.diagonal(dim1=-2, dim2=-1)
    added = torch.zeros_like(variances)
    for share in JITTERS:
        bad = torch.linalg.cholesky_ex(found).info[..., None] > 0
        if not bad.any():
            break
        added = torch.where(bad, share * variances, added)
        found = given + torch.diag_embed(added)
    return to_linear_operator(covariance if found is given else covariance + torch.diag_embed(added))
