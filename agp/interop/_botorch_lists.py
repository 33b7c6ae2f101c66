# pyright: reportMissingImports=false
"""Posteriors of lists of models: one joint normal distribution whose outputs are independent between the models."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import torch
from botorch.models.model import Model
from botorch.posteriors import GPyTorchPosterior, Posterior, PosteriorList
from botorch.posteriors.fully_bayesian import MCMC_DIM, GaussianMixturePosterior
from botorch.sampling import IIDNormalSampler, SobolQMCNormalSampler
from botorch.sampling.get_sampler import GetSampler, get_sampler
from botorch.sampling.list_sampler import ListSampler
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator import to_linear_operator
from linear_operator.operators import BlockDiagLinearOperator

Tensor = torch.Tensor


class IndependentPosteriors(PosteriorList):
    """Independent posteriors that are not all normal, such as those of deterministic models."""

    @property
    def base_sample_shape(self) -> NoReturn:  # type: ignore[override]
        """Refuse samplers of normal distributions."""
        kinds = sorted({type(one).__name__ for one in self.posteriors})
        raise TypeError(
            f"the posteriors of this list have the types {', '.join(kinds)}, and this sampler is for normal "
            "distributions; pass sampler=get_sampler(posterior, sample_shape) of botorch.sampling.get_sampler."
        )


@GetSampler.register(IndependentPosteriors)
def _sampler_of_each(
    posterior: IndependentPosteriors, sample_shape: torch.Size, *, seed: int | None = None
) -> ListSampler:
    """Return samplers with different seeds, since those with the same seed correlate the outputs."""
    found = []
    for i, one in enumerate(posterior.posteriors):
        own = None if seed is None else seed + i
        sampler = get_sampler(one, sample_shape, seed=own)
        normal = isinstance(sampler, SobolQMCNormalSampler)  # Sobol sequences of the same dimension are correlated
        found.append(IIDNormalSampler(sample_shape, seed=own) if normal else sampler)
    return ListSampler(*found)


def each_wrapped(models: Sequence[Any], wrap: Callable[[Any], Model]) -> Iterator[Model]:
    """Yield the models, wrapped unless they are models of BoTorch. Raise TypeError if they are in a list."""
    if len(models) == 1 and isinstance(models[0], list | tuple):
        raise TypeError("BoTorchModelList takes models, not a list of models; write BoTorchModelList(*models).")
    yield from (one if isinstance(one, Model) else wrap(one) for one in models)


def sampler_of_each(sampler: Any, count: int) -> ListSampler:
    """Return independent samplers of normal variables for `count` models, with the shape and seed of a sampler."""
    return ListSampler(*(IIDNormalSampler(sampler.sample_shape, seed=sampler.seed + i) for i in range(count)))


def joint_posterior(posteriors: Sequence[Posterior]) -> Posterior:
    """Return the joint posterior of independent ones, as one normal distribution or mixture if all are such.

    Posteriors without draws of hyperparameters are the same for each draw of the others.
    """
    if len(posteriors) == 1:
        return posteriors[0]
    if not all(type(one) in (GPyTorchPosterior, GaussianMixturePosterior) for one in posteriors):
        return IndependentPosteriors(*posteriors)
    mixed = [isinstance(one, GaussianMixturePosterior) for one in posteriors]
    sizes = sorted({one.mean.shape[MCMC_DIM] for one, has in zip(posteriors, mixed, strict=True) if has})
    if len(sizes) > 1:
        numbers = " and ".join(str(size) for size in sizes)
        raise ValueError(
            f"the averages over hyperparameters in this list have {numbers} draws; use the same draws= for all models."
        )
    means, blocks = [], []
    for one, has in zip(posteriors, mixed, strict=True):
        mean, own = _moments(one)
        if any(mixed) and not has:
            mean, own = mean.unsqueeze(MCMC_DIM), own.unsqueeze(-4)
        means.append(mean)
        blocks.append(own)
    lead = torch.broadcast_shapes(*(mean.shape[:-2] for mean in means))
    mean = torch.cat([x.expand(*lead, *x.shape[-2:]) for x in means], -1)
    distribution = _with_blocks(mean, [x.expand(*lead, *x.shape[-3:]) for x in blocks])
    return GaussianMixturePosterior(distribution) if any(mixed) else GPyTorchPosterior(distribution)


def _moments(posterior: GPyTorchPosterior) -> tuple[Tensor, Tensor]:
    """Return means [..., q, m], and covariances of each output [..., m, q, q], or of all [..., 1, m q, m q].

    In the latter, the points of an output are adjacent.
    """
    normal, mean = posterior.distribution, posterior.mean
    if not isinstance(normal, MultitaskMultivariateNormal):
        return mean, normal.covariance_matrix[..., None, :, :]
    lazy, (q, m) = normal.lazy_covariance_matrix, mean.shape[-2:]
    if not normal._interleaved:
        own = lazy.base_linear_op.to_dense() if isinstance(lazy, BlockDiagLinearOperator) else None
        return mean, lazy.to_dense()[..., None, :, :] if own is None or own.shape[-1] != q else own
    by_point = lazy.to_dense().unflatten(-1, (q, m)).unflatten(-3, (q, m))
    by_output = by_point.transpose(-4, -3).transpose(-2, -1)
    return mean, by_output.reshape(*lazy.shape[:-2], 1, q * m, q * m)


def _with_blocks(mean: Tensor, blocks: list[Tensor]) -> MultitaskMultivariateNormal:
    """Return the normal distribution with the mean [..., q, m] and diagonal blocks [..., b, n, n] of its covariance."""
    if all(block.shape[-1] == mean.shape[-2] for block in blocks):
        each = MultivariateNormal(mean.mT, to_linear_operator(torch.cat(blocks, -3)))
        return MultitaskMultivariateNormal.from_batch_mvn(each, task_dim=-1)
    apart = [one for block in blocks for one in block.unbind(-3)]
    size, start, rows = mean.shape[-1] * mean.shape[-2], 0, []
    for one in apart:
        after = size - start - one.shape[-1]
        rows.append(torch.nn.functional.pad(one, (start, after)))
        start += one.shape[-1]
    covariance = to_linear_operator(torch.cat(rows, -2))
    return MultitaskMultivariateNormal(mean, covariance, interleaved=False)
