"""Joint covariances of outputs that are mixtures f = A g of independent functions."""

from agp.backend import Array, backend_of, like

__all__ = ["cross_covariances", "output_covariances", "with_own"]


def output_covariances(latent: Array, mixing: Array | None, /) -> Array:
    """The covariances [P, N, N] of each output with itself, from those of the functions [L, N, N] and A [P, L]."""
    return latent if mixing is None else _combined(mixing * mixing, latent)


def cross_covariances(latent: Array, mixing: Array | None, /) -> Array:
    """Cov[f_np, f_mq] = sum_l A_pl A_ql Cov_l[n, m], as [N, P, N, P]; without A the outputs are independent."""
    xp = backend_of(latent).xp
    A = xp.eye(latent.shape[0], **like(latent)) if mixing is None else mixing
    P, L = A.shape
    pairs = xp.reshape(A[:, None, :] * A[None, :, :], (P * P, L))
    N = latent.shape[-1]
    return xp.permute_dims(xp.reshape(_combined(pairs, latent), (P, P, N, N)), (2, 0, 3, 1))


def with_own(own: Array, cross: Array, /) -> Array:
    """The covariances [N, P, N, P], those of each output with itself given [P, N, N]."""
    xp = backend_of(own).xp
    outputs = xp.arange(own.shape[0], **{**like(own), "dtype": xp.int64})
    same = outputs[:, None, None] == outputs[None, None, :]
    return xp.where(same, xp.permute_dims(own, (1, 0, 2))[..., None], cross)


def _combined(weights: Array, latent: Array) -> Array:
    """sum_l weights_rl latent_l, [R, N, N]."""
    L, N, _ = latent.shape
    xp = backend_of(latent).xp
    return xp.reshape(weights @ xp.reshape(latent, (L, N * N)), (weights.shape[0], N, N))
