# pyright: reportMissingImports=false
"""Function samples of agp as sample paths of BoTorch, for `draw_matheron_paths` and all that calls it."""

import itertools
from typing import Any

import torch
from botorch.sampling.pathwise import PathList, draw_matheron_paths
from botorch.sampling.pathwise.paths import SamplePath
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths

from agp.predictors import FunctionSamples

Tensor = torch.Tensor


class FunctionPaths(SamplePath):
    """Functions with the axes ``[*sample_shape, *batch]``, for a model with P outputs.

    The functions at X [..., q, D], whose leading axes are broadcast against these axes, have the values [..., q], or
    [..., P, q] for several outputs. In that case, X has a further axis of size 1 before q, as BoTorch's models pass it.
    """

    def __init__(
        self,
        functions: dict[tuple[int, ...], FunctionSamples],
        sample_shape: torch.Size,
        batch: torch.Size,
        chosen: tuple[int, ...],
        *,
        has_draws: bool,
    ) -> None:
        super().__init__()
        self._functions, self._sample_shape, self._batch, self._chosen = functions, sample_shape, batch, chosen
        self._has_draws, self._as_batch = has_draws, False

    def set_ensemble_as_batch(self, ensemble_as_batch: bool) -> None:
        """Set whether inputs have an axis for the draws of hyperparameters."""
        self._as_batch = ensemble_as_batch

    def forward(self, X: Tensor) -> Tensor:
        """Evaluate the functions."""
        several = len(self._chosen) > 1
        X = X.squeeze(-3) if several else X
        X = X.unsqueeze(-3) if self._has_draws and not self._as_batch else X
        own = len(self._sample_shape) + len(self._batch)
        X = X.reshape(*([1] * max(own + 2 - X.ndim, 0)), *X.shape)
        split = X.ndim - 2 - len(self._batch)
        values = []
        for index in itertools.product(*map(range, self._batch)):
            at = tuple(i if size > 1 else 0 for i, size in zip(index, X.shape[split:-2], strict=True))
            values.append(self._at(self._functions[index], X[(slice(None),) * split + at]))
        found = torch.stack(values, -3).unflatten(-3, self._batch) if self._batch else values[0]
        found = found[..., self._chosen]
        return found.mT if several else found[..., 0]

    def _at(self, functions: FunctionSamples, X: Tensor) -> Tensor:
        """Evaluate functions at X [..., *sample_shape, q, D], where axes may have size 1; return [..., q, P]."""
        own = len(self._sample_shape)
        lead, q, D = X.shape[: X.ndim - 2 - own], X.shape[-2], X.shape[-1]
        rows = X if X.shape[len(lead) : -2].numel() == 1 else X.expand(*lead, *self._sample_shape, q, D)
        rows = rows.reshape(lead.numel(), -1, q, D).transpose(0, 1)  # [1 or n, ..., q, D]
        flat = rows.reshape(rows.shape[0], -1, D)
        values = functions(flat[0] if flat.shape[0] == 1 else flat)
        values = values.reshape(functions.count, lead.numel(), q, -1).transpose(0, 1)
        return values.reshape(*lead, *self._sample_shape, q, values.shape[-1])


def register_paths(model: type, model_list: type, /) -> None:
    """Make these classes of models, and of lists of models, known to `draw_matheron_paths`."""

    @DrawMatheronPaths.register(model)
    def draw(model: Any, *, sample_shape: torch.Size, **options: Any) -> FunctionPaths:  # noqa: ARG001 - of GPyTorch
        seeds = torch.randint(2**31 - 1, (model.batch_shape.numel(),)).tolist()
        count = sample_shape.numel()
        each = zip(model._each_posterior(), seeds, strict=True)
        functions = {
            index: predictor.sample_functions(count, seed=seed, features=model._features)
            for (index, predictor), seed in each
        }
        axes = sample_shape, model.batch_shape
        return FunctionPaths(functions, *axes, model._chosen, has_draws=model._has_draws)

    @DrawMatheronPaths.register(model_list)
    def draw_each(model: Any, *, sample_shape: torch.Size, **options: Any) -> PathList:
        return PathList([draw_matheron_paths(one, sample_shape, **options) for one in model.models])
