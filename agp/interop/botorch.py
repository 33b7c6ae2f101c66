# pyright: reportMissingImports=false
"""`BoTorchModel`, a wrapper that makes any agp model usable with BoTorch's acquisition functions.

Means, covariances and updates with further data come from `agp.Predictor`, and are differentiable in X. The module
requires the extra ``botorch``.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self

from agp import tree
from agp.backend import backend_of
from agp.checks import check_finite, check_model, check_results, check_test_inputs
from agp.errors import count_of, missing_package_message
from agp.predictors import Predictor
from agp.tree import first_leaf

try:
    import torch
    from botorch.models.model import FantasizeMixin, Model
    from botorch.posteriors import GPyTorchPosterior, Posterior
    from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
    from linear_operator import LinearOperator, to_linear_operator
    from torch.utils._pytree import tree_map
except ImportError as error:
    raise ImportError(f"agp.interop.botorch needs {missing_package_message('botorch', 'botorch')}.") from error

__all__ = ["BoTorchModel"]

Tensor = torch.Tensor


class BoTorchModel(Model, FantasizeMixin):
    """A BoTorch model that wraps an agp model.

    Posteriors describe the latent functions in the units of the targets, so outcome transforms are not needed. BoTorch
    maximises; to minimise, train on the negative targets.

    Parameters
    ----------
    model
        A model or a predictor. Its arrays are moved to torch if necessary.

    Raises
    ------
    TypeError
        If `model` is neither a model nor a predictor.
    """

    def __init__(self, model: Any, /) -> None:
        super().__init__()
        if not isinstance(model, Predictor):
            check_model(model)
            model = model.predictor()
        if backend_of(first_leaf(model)).name != "torch":
            model = tree.to_backend(model, "torch")
        self._single, self._leaves = _stack(model)  # the first posterior, and the leaves [*batch, ...] of all
        self._batch, self._chosen = torch.Size(model.lead), tuple(range(model.outputs))

    def _with(self, **changed: Any) -> Self:
        new = copy.copy(self)
        for name, value in changed.items():
            setattr(new, name, value)
        return new

    @property
    def num_outputs(self) -> int:
        """The number of outputs in each posterior."""
        return len(self._chosen)

    @property
    def batch_shape(self) -> torch.Size:
        """The leading axes of a batch of posteriors, such as fantasies; empty for a single posterior."""
        return self._batch

    @property
    def likelihood(self) -> Any:
        """The likelihood p(y | f), an `agp.likelihoods.Likelihood`."""
        return self._single.likelihood

    def subset_output(self, idcs: list[int]) -> Self:
        """Return the model with only these outputs."""
        return self._with(_chosen=tuple(self._chosen[i] for i in idcs))

    # -- posteriors -------------------------------------------------------------------------------------------------

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: Any = None,
    ) -> Posterior:
        """Return the joint normal distribution over q points and m outputs, for each set of points X [..., q, D].

        Parameters
        ----------
        X
            Inputs. The leading axes of X are broadcast against `batch_shape`.
        output_indices
            The outputs; by default all.
        observation_noise
            If true, return the distribution of observations instead of function values, with the noise of the Gaussian
            likelihood. If a tensor [..., q, m], use its entries as noise variances instead.
        posterior_transform
            A BoTorch posterior transform, such as a scalarisation.

        Raises
        ------
        TypeError, ValueError
            As in `Predictor.predict_covariance`, or if `observation_noise` is True and the noise is not Gaussian.
        agp.errors.NonFiniteError
            If a mean or a covariance is NaN or infinite.
        """
        self._check(X)
        chosen = [self._chosen[i] for i in (range(self.num_outputs) if output_indices is None else output_indices)]
        posterior = GPyTorchPosterior(self._normal(X, chosen, self._noise_at(X, observation_noise, chosen)))
        return posterior if posterior_transform is None else posterior_transform(posterior=posterior, X=X)

    def _normal(self, X: Tensor, chosen: list[int], noise: Tensor | None) -> MultivariateNormal:
        predictor = self._single
        together = len(chosen) > 1 and predictor.processes[0].mixing is not None
        if X.shape[-2] == 1 and not self._batch and not together:
            mean, variance = predictor.predict(X)  # for single points, marginals suffice
            covariance = variance.mT[..., None]  # type: ignore[union-attr]
        else:
            mean, covariance = self._over_sets(lambda one, x: _joint(one, x, cross=together), X)
        remedy = "check the parameters of the kernel, or use float64"
        check_results("the predicted", {"mean": mean, "covariance": covariance}, remedy)
        mean = mean[..., chosen]
        if together:
            covariance = covariance[..., chosen, :, :][..., chosen]
            size = mean.shape[-2] * len(chosen)
            covariance = covariance.reshape(*covariance.shape[:-4], size, size)  # outputs of a point are adjacent
            if noise is not None:
                covariance = covariance + torch.diag_embed(noise.reshape(*noise.shape[:-2], size))
            return MultitaskMultivariateNormal(mean, _factorisable(covariance))
        covariance = covariance[..., chosen, :, :]
        if noise is not None:
            covariance = covariance + torch.diag_embed(noise.mT)
        if len(chosen) == 1:
            return MultivariateNormal(mean[..., 0], _factorisable(covariance[..., 0, :, :]))
        each = MultivariateNormal(mean.mT, _factorisable(covariance))
        return MultitaskMultivariateNormal.from_batch_mvn(each, task_dim=-1)

    def _noise_at(self, X: Tensor, asked: bool | Tensor, chosen: list[int]) -> Tensor | None:
        """Return noise variances [..., q, m], or None."""
        if not isinstance(asked, bool):
            return asked.expand(*asked.shape[:-2], X.shape[-2], len(chosen))
        if not asked:
            return None
        self._check_noise("observation_noise=True")
        zeros = X.new_zeros(X.shape[-2], self._single.outputs)
        return self.likelihood.predict(zeros, zeros).variance[:, chosen]

    def _check(self, X: Tensor) -> None:
        check_test_inputs(X, self._single.width, *self._single.reference)
        check_finite("X", X.reshape(-1, X.shape[-1]))

    def _check_noise(self, asked: str) -> None:
        if not self.likelihood.quadratic:
            raise TypeError(
                f"{asked} needs Gaussian noise, but the likelihood is {type(self.likelihood).__name__}; use "
                "the posterior of the function instead."
            )

    # -- further data -----------------------------------------------------------------------------------------------

    def condition_on_observations(self, X: Tensor, Y: Tensor, noise: Tensor | None = None) -> Self:
        """Return a copy conditioned on further observations, as in `Predictor.condition_on`; this model is unchanged.

        Parameters
        ----------
        X, Y
            Inputs [..., k, D] and targets [..., k, m]. Their leading axes are broadcast, and become the batch axes of
            the posterior.
        noise
            Noise variances [..., k, m] of these observations; by default the noise of the likelihood.

        Raises
        ------
        TypeError, ValueError
            As in `Predictor.condition_on`, or if the model has only some of the outputs (`subset_output`).
        """
        if len(self._chosen) < self._single.outputs:
            raise ValueError(
                f"this model has only the outputs {self._chosen}, but conditioning needs all "
                f"{count_of(self._single.outputs, 'output')}; condition the model before you call subset_output."
            )
        self._check(X)
        check_finite("Y", Y.reshape(-1, Y.shape[-1]))
        found: list[Predictor] = []

        def given(one: Predictor, X: Tensor, Y: Tensor, noise: Tensor | None = None) -> dict[str, Tensor]:
            likelihood = one.likelihood
            if noise is not None:  # it replaces the noise of the likelihood, to which `condition_on` would add it
                likelihood.check_takes_noise()
                zero = torch.zeros_like(first_leaf(likelihood))
                one = replace(one, likelihood=tree.with_leaves(likelihood, {"noise_variance": zero}))
            found.append(replace(one.condition_on(X, Y, noise=noise), likelihood=likelihood))
            return tree.leaves(found[-1])

        data = (X, Y) if noise is None else (X, Y, noise.expand(*noise.shape[:-2], *Y.shape[-2:]))
        looped = not self.likelihood.quadratic  # the number of dual steps differs between sets
        leaves = self._over_sets(given, *data, looped=looped)
        batch = self._batch_with(*data)
        first = {name: x[(0,) * len(batch)] for name, x in leaves.items()}
        return self._with(_single=tree.with_leaves(found[0], first), _leaves=leaves, _batch=batch)

    def fantasize(self, X: Tensor, sampler: Any, observation_noise: Tensor | None = None, **kwargs: Any) -> Self:
        """Draw S samples of observations at X [..., k, D], and return the batch [S, ...] of models conditioned on them.

        Parameters
        ----------
        X
            Inputs.
        sampler
            A BoTorch sampler that draws S samples.
        observation_noise
            Noise variances [..., k, m] or [..., 1, m]; by default the noise of the likelihood.
        kwargs
            Passed to `condition_on_observations`.

        Raises
        ------
        TypeError, ValueError
            As in `condition_on_observations`, or if the noise is not Gaussian.
        """
        self._check_noise("fantasize")
        return super().fantasize(X, sampler, observation_noise=observation_noise, **kwargs)

    # -- batches ----------------------------------------------------------------------------------------------------

    def _batch_with(self, *rows: Tensor) -> torch.Size:
        return torch.broadcast_shapes(self._batch, *(x.shape[:-2] for x in rows))

    def _over_sets(self, f: Callable[..., Any], *rows: Tensor, looped: bool = False) -> Any:
        """Compute ``f(predictor, *rows)`` for each set of rows [..., n, .] and its posterior."""
        batch = self._batch_with(*rows)
        names = list(self._leaves)
        counts = [len(self._batch)] * len(names) + [x.ndim - 2 for x in rows]
        several = zip((*self._leaves.values(), *rows), counts, strict=True)
        given = [_without_constant_axes(x, count, len(batch)) for x, count in several]

        def one(*arrays: Tensor) -> Any:
            leaves = dict(zip(names, arrays, strict=False))
            return f(tree.with_leaves(self._single, leaves), *arrays[len(names) :])

        looped = looped or not self._single.processes[0].fixed_shapes
        for axis in reversed(range(len(batch))):
            one = _along_axis(one, [axis in axes for _, axes in given], batch[axis], looped=looped)
        return one(*(x for x, _ in given))


def _stack(predictor: Predictor) -> tuple[Predictor, dict[str, Tensor]]:
    """Return the predictor of the first posterior, and the leaves [*lead, ...] of all posteriors."""
    several = [
        replace(predictor, processes=(process,), factors=(factor,), lead=())
        for process, factor in zip(predictor.processes, predictor.factors, strict=True)
    ]
    single = several[0]
    leaves, lead = tree.leaves(single), predictor.lead
    if not lead:
        return single, leaves
    each = [tree.leaves(one) for one in several]

    def together(name: str, x: Tensor) -> Tensor:
        parts = [one[name] for one in each]
        return (x.expand(len(parts), *x.shape) if all(y is x for y in parts) else torch.stack(parts)).unflatten(0, lead)

    return single, {name: together(name, x) for name, x in leaves.items()}


def _joint(predictor: Predictor, X: Tensor, *, cross: bool) -> tuple[Tensor, Tensor]:
    """Return means [q, P] and covariances, [q, P, q, P] if `cross` is true, otherwise [P, q, q], at X [q, D]."""
    return predictor.predict_mean(X), predictor.predict_covariance(X, cross_outputs=cross)


JITTERS = (1e-12, 1e-10, 1e-8, 1e-6)
"""Jitter, relative to the variances, for covariances that are singular because of rounding errors."""


def _factorisable(covariance: Tensor) -> LinearOperator:
    """Add relative jitter to covariances [..., q, q] where needed, because BoTorch's jitter is absolute."""
    variances = covariance.detach().diagonal(dim1=-2, dim2=-1)
    found = covariance.detach()
    added = torch.zeros_like(variances)
    for share in JITTERS:
        bad = torch.linalg.cholesky_ex(found).info[..., None] > 0
        if not bad.any():
            break
        added = torch.where(bad, share * variances, added)
        found = covariance.detach() + torch.diag_embed(added)
    return to_linear_operator(covariance + torch.diag_embed(added))


def _without_constant_axes(x: Tensor, count: int, axes: int) -> tuple[Tensor, list[int]]:
    """Return x without its constant batch axes, and the other ones.

    The first `count` axes of x are the last ones of the batch, which has so many axes.
    """
    varying = [i for i in range(count) if x.shape[i] > 1 and x.stride(i)]
    array = x[tuple(slice(None) if i in varying else 0 for i in range(count))]
    return array, [axes - count + i for i in varying]


def _along_axis(f: Callable[..., Any], have: Sequence[bool], size: int, *, looped: bool) -> Callable[..., Any]:
    """Map f over the first axis of those arrays that have it, by `torch.func.vmap` or in a loop.

    If no array has the axis, the result is computed once and expanded.
    """
    if not any(have):
        return lambda *arrays: tree_map(lambda x: x.expand(size, *x.shape), f(*arrays))
    if not looped:
        return torch.func.vmap(f, in_dims=tuple(0 if one else None for one in have))

    def stacked(*arrays: Tensor) -> Any:
        each = [f(*(x[i] if one else x for x, one in zip(arrays, have, strict=True))) for i in range(size)]
        return tree_map(lambda *parts: torch.stack(parts), *each)

    return stacked
