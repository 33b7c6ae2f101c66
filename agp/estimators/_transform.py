"""Targets that are modelled after a transform, but predicted in their own units."""

import dataclasses
import math
from abc import abstractmethod
from typing import Any

import numpy as np

from agp.backend import asarray_like, backend_of, to_numpy
from agp.estimators._arrays import as_output, resolve_seed
from agp.estimators._distribution import Distribution
from agp.estimators._observations import Observations
from agp.estimators._saturation import largest_targets
from agp.likelihoods import (
    Gaussian,
    LatentNoiseGaussian,
    Likelihood,
    Log,
    LogNormal,
    Transform,
    Transformed,
    YeoJohnson,
    with_transform,
)
from agp.predictors import Predictor
from agp.repairs import public
from agp.selection import transform_of
from agp.tree import replace


class TransformedTargets(Distribution):
    """Base class of estimators of numbers, which may be transformed. Data of the model have transformed targets."""

    target_transform: str | None

    @property
    @abstractmethod
    def _likelihood_class(self) -> type[Likelihood]:
        """The class of the likelihood that the user chose."""

    @property
    @abstractmethod
    def _likelihood_name(self) -> str:
        """The name of the likelihood in messages, as the user passed it."""

    @property
    def _given_transform(self) -> str | None:
        """The name of the transform that the user chose, or None."""
        return None if self.target_transform in (None, "none", "auto") else self.target_transform

    def _transform_targets(self, data: Observations, *, reset: bool) -> Observations:
        """Return the data with transformed targets if the user chose a transform; `reset` begins with new constants."""
        if reset:
            given = self._given_transform
            self.transform_ = None if given is None else self._transform_of(given, data)
        if self._given_transform is None or self.transform_ is None:
            return data
        self.transform_.check_targets(data.y)
        return data._replace(y=self.transform_.forward(data.y))

    def _transform_of(self, name: str, data: Observations) -> Transform:
        """Return the transform that the user chose, with constants for these targets."""
        y, weights = (None if x is None else to_numpy(backend_of(x).gather(x)) for x in (data.y, data.weights))
        return transform_of(name, y, weights)

    def _keep_transform(self, transform: Transform | None, data: Observations) -> None:
        """Store the transform that `fit_regression` chose for data, unless the user chose one."""
        if self._given_transform is None:
            self.transform_ = transform
            self._note_largest(data)

    @public(repairs=False, ignore=None)
    def log_density(self, X: Any, y: Any, exposure: Any = None, noise: Any = None) -> Any:
        at = self._predictor_at(X, exposure, noise)
        targets = self._prepare_targets(y, at.X)
        if self.transform_ is None or self._given_transform is not None:
            return as_output(at.predictor.log_density(at.X, targets, **at.known), host=at.host)
        # the user chose no transform, so targets beyond its support are improbable, but no errors
        xp, (low, high) = backend_of(targets).xp, self.transform_.support
        outside = (targets <= low) | (targets >= high)
        inside = self.transform_.inverse(xp.zeros_like(targets))
        density = at.predictor.log_density(at.X, xp.where(outside, inside, targets), **at.known)
        return as_output(xp.where(outside[:, 0], xp.full_like(density, -math.inf), density), host=at.host)

    @public(repairs=False, ignore=None)
    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Any:
        """Draw joint samples [N, n_samples] of the function at X [N, D], without noise.

        For several targets, the shape is [N, K, n_samples]. The samples are those of the likelihood's latent function
        or, if the targets are transformed, of this function in the unit of the targets. Deep models do not support this
        method; use `sample` to draw observations, or `predictor_.sample_functions` to draw functions.
        """
        predictor, A, _, host = self._predictor_at(X)
        seed = resolve_seed(random_state)
        samples = predictor.sample(A, n_samples, seed=seed)
        samples = backend_of(samples).xp.permute_dims(samples, (1, 2, 0))
        samples = samples if self.transform_ is None else self.transform_.inverse(samples)
        return self._reshape_targets(samples, host=host)

    def _without_noise(self, predictor: Predictor) -> Predictor:
        likelihood, function = predictor.likelihood, Gaussian(asarray_like(np.zeros(()), predictor.reference[1]))
        if self.transform_ is not None and isinstance(likelihood, Transformed):
            function = replace(likelihood, {likelihood.gaussian_name: function})
        return dataclasses.replace(predictor, likelihood=function, saturation=None, level_noise=None)

    def _likelihood_of(self, trained: Likelihood) -> Likelihood:
        return with_transform(trained, self.transform_)  # type: ignore[arg-type]

    def _note_largest(self, data: Observations) -> None:
        """Update the largest targets or rates of each column (for latent noise, their ranges), which limit moments."""
        kind, noise, transform = self._likelihood_class, self._likelihood_class is LatentNoiseGaussian, self.transform_
        unbounded = isinstance(transform, Log | YeoJohnson)
        if noise or unbounded or kind.log_link or kind is LogNormal:
            given = None if self._given_transform is None else transform
            own = data if given is None else data._replace(y=given.inverse(data.y))
            centre = transform.centre if isinstance(transform, YeoJohnson) else None
            self._largest = largest_targets(own, vars(self).get("_largest"), centre=centre, ranges=noise)

    def _log_jacobian(self, data: Observations) -> float:
        """Return the log density of y minus that of the transformed targets in `data`, summed over all rows."""
        if self.transform_ is None or self._given_transform is None:
            return 0.0
        xp = backend_of(data.y).xp
        slopes = self.transform_.log_slope(self.transform_.inverse(data.y))
        rows = xp.sum(xp.where(xp.isnan(data.y), xp.zeros_like(slopes), slopes), axis=1)
        return float(xp.sum(rows if data.weights is None else rows * data.weights))

    def _check_takes_noise(self) -> None:
        chosen = vars(self).get("transform_")
        transform = self._given_transform or (chosen.short_name if chosen is not None else None)
        if self._likelihood_class is not Gaussian or transform is not None:
            found = f"target_transform={transform!r}" if transform else f"likelihood={self._likelihood_name}"
            raise ValueError(
                f"noise is given, but {found} does not use it; use likelihood='gaussian' without a transform."
            )
