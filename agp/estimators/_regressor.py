"""Regression with the conventions of scikit-learn."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils import check_array
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_consistent_length

from agp._context import public
from agp.backend import Array, backend_of, like, placed, to_numpy
from agp.checks import as_columns, check_whole
from agp.estimators._arrays import (
    answered,
    check_choice,
    floating,
    is_foreign,
    on_host,
    placed_in_range,
    refuse_cells,
    refuse_words,
    seed_of,
    unmasked,
)
from agp.estimators._base import all_or_nothing, takes_parts
from agp.estimators._columns import as_frame
from agp.estimators._distribution import Distribution
from agp.estimators._observations import Observations, row_numbers
from agp.likelihoods import Beta, Gamma, Gaussian, LatentNoiseGaussian, Likelihood, LogNormal, StudentT
from agp.means import ConstantMean
from agp.methods import (
    GAUSSIAN_METHODS,
    GROWING_METHODS,
    LIKELIHOODS,
    OUTPUT_METHODS,
    WEIGHTED_METHODS,
    kernel_or_auto,
)
from agp.models import GPR, Coregionalised
from agp.repairs import outside
from agp.scaling import column_spreads
from agp.selection import EXACT_ROWS, Candidate, fit_regression

__all__ = ["GPRegressor"]

KINDS = ("shared", "separate", "coregionalised", "intrinsic")
TRANSFORMS = (None, "log")
GROWING_KINDS = ("shared", "intrinsic")
"""The outputs whose inducing inputs are those of one kernel: their number can be found in training."""
NOISE_KINDS = ("shared", "separate")
"""The outputs that noise functions stand beside: independent ones."""
SPREAD_LEARNED = (Gaussian, StudentT, LatentNoiseGaussian, Gamma, Beta)
"""Likelihoods with a parameter, or a function, that copies of observations tell nothing of."""
MISSING_TARGETS = ("refuse", "ignore")
LEFT_OUT = "leave such rows out, or set missing_targets='ignore'"
NO_TARGET = "y has no target: every entry is NaN."
UNLIKE = 10.0
"""By what factor the sizes of targets may differ where a method has one noise for all."""


@dataclass(kw_only=True, eq=False, repr=False)
class GPRegressor(RegressorMixin, Distribution):
    """Gaussian-process regression: means with error bars.

    Parameters
    ----------
    method
        "auto", or the short name of a method of `agp compare` for Gaussian noise: "gpr" (exact), "sgpr" (collapsed),
        "wsvgp", "rsvgp" (inverse-free), "deep-rsvgp" and so on. By default exact up to 4,000 rows and collapsed beyond
        (`agp.fit_regression`); for several targets, whose noise may differ, W-SVGP. `partial_fit` begins with W-SVGP.
    kernel
        An `agp.kernels.Kernel`, text such as ``"matern32 + seasonal(365.25) * rbf"``, or "auto": the one under which
        rows are predicted best from others. Deep methods then take RBF.
    num_inducing
        The number of inducing inputs (of each group of the methods with two, of each layer of deep ones, of actions in
        computation-aware GPs), or what the rows allow. For one target `agp.fit_regression` chooses it by default, up to
        4,096. Elsewhere the default is 2 square roots of N, from 128 to 1,000, of less than 384 rows a third; "auto"
        finds it by training (`agp.fit_growing`), for the M-, W-, L-, R- and A-SVGP.
    layers
        How many layers a deep method has, two by default; other methods have none.
    outputs
        What several columns of targets share: "shared" (one kernel), "separate" (a kernel for each), "coregionalised"
        or "intrinsic" (mixtures of latent functions with a kernel each, or with one), as `SVGP.from_data`. But for the
        first, of methods with sparse posteriors alone.
    num_latents
        The number of latent functions of coregionalised outputs; by default one for each output.
    likelihood
        "gaussian": noise of one size (for each target); "student-t": with outliers; "latent-noise": noise whose size is
        a function of X, too; "poisson" or "negative-binomial": counts; "gamma" or "exponential": positive numbers;
        "beta": shares between 0 and 1; or an `agp.likelihoods.Likelihood`. All but the first take a variational method,
        by default W-SVGP.
    target_transform
        "log": the logarithms of positive targets are predicted; answers are of the targets themselves, densities and
        `bound_` included. For the likelihood "gaussian", which then is `agp.LogNormal`.
    missing
        What happens to missing cells of X: "refuse", or "impute" by the mean, with a further column that says where.
    missing_targets
        What NaN in y means: "refuse", or "ignore": such a target was not observed, and counts for nothing. Rows without
        any target are left out; of several targets some may be missing in a row, which takes a variational method.
    backend, device, dtype
        Where, and how precisely, to compute: names as for `agp.to_backend`; by default as the inputs are.
    tolerance, max_steps, max_seconds
        When training ends: as `agp.fit`.
    batch_size
        On how many rows a step looks, all of them if there are fewer: as `agp.fit`. "auto" leaves it aside while a
        method without minibatches will do.
    total_rows
        For `partial_fit`: how many rows there are in all, if they will be shown more than once. By default those that
        have come so far, each call with new ones.
    random_state
        A seed, a NumPy generator of the old kind, or None; of inducing inputs and minibatches.
    verbose
        Show a progress bar.

    Attributes
    ----------
    model_
        The trained `agp.models.Model`; of collapsed methods the sparse model with the optimal q(u), without the rows.
    method_
        The method that "auto" stands for.
    bound_
        The bound on the log evidence of the training data.
    history_
        What each step logged, by name.
    growth_, growth_reason_
        Where the number of inducing inputs was found in training: what each one reached, by the names of
        `agp.training.Round`, and why there are no more.
    kernel_, candidates_
        Where `agp.fit_regression` chose the model: the kernel, and what was compared, by the names of
        `agp.selection.Candidate`.
    learned_
        Whether the inputs tell anything of the targets.
    n_iter_, converged_
        Steps taken, and whether training ended by its tolerance.
    n_rows_seen_
        The rows of `fit`, and of each `partial_fit` since.
    n_features_in_, feature_names_in_
        As in every estimator of scikit-learn.
    """

    outputs: str = "shared"
    num_latents: int | None = None
    likelihood: Any = "gaussian"
    target_transform: str | None = None
    missing_targets: str = "refuse"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    @public(repairs=False, ignore=None)
    @all_or_nothing
    def fit(self, X: Any, y: Any, sample_weight: Any = None, exposure: Any = None) -> "GPRegressor":
        """Train on X, a table [N, D] of any kind, and targets y [N] or [N, K].

        Targets that are all the same warn, and nothing is trained: there is no noise to learn from.

        Parameters
        ----------
        X, y
            The rows and their targets.
        sample_weight
            How often each row was observed [N]; zero leaves it out. Copies of a row tell nothing of the size of the
            noise: where that is learned ("gaussian", "student-t", "latent-noise", "gamma", "beta"), weights are
            relative, unless most inputs were observed with different targets. For all methods but SOLVE-GP's collapsed
            form, CGGP and computation-aware GPs.
        exposure
            What the rate of each row is multiplied with [N]: the time, area or number of items that a count belongs to.
            For likelihoods with a logarithmic link, such as "poisson".
        """
        data = self._data(X, y, sample_weight, exposure, reset=True)
        rows = data.X.shape[0]
        if self._method(rows, parts=backend_of(data.X).is_lazy) in WEIGHTED_METHODS:
            data = data.distinct(spread_learned=self._likelihood_class in SPREAD_LEARNED)
        constant = _is_constant(data.y)
        if not constant and self._chooses(data):
            self._fit_regression(data)
        elif constant:
            text = "all targets are the same: the error bars are those of a model that has learned nothing."
            warnings.warn(text, UserWarning, stacklevel=outside())
            self._keep_untrained(self._model(data, parts=False), data)
        else:
            self._fit(self._model(data, parts=False), data)
        self.bound_ -= self._log_jacobian(data)
        self.n_rows_seen_ = rows
        return self

    @available_if(takes_parts)
    @public(repairs=False, ignore=None)
    @all_or_nothing
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, exposure: Any = None) -> "GPRegressor":
        """A training step on some more rows; the first call also sets the model up, and should be representative.

        Arguments as `fit`, but weights are never relative; weights and exposures that the first call has are 1 where
        later ones have none.
        """
        first = not self._is_started
        data = self._data(X, y, sample_weight, exposure, reset=first)
        if first:
            self._start_parts(self._model(data, parts=True))
        self._fit_part(data)
        self.bound_ -= self._log_jacobian(data)
        return self

    @public(repairs=False, ignore=None)
    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False, exposure: Any = None) -> Any:
        """Means [N] or [N, K] of new observations at X [N, D].

        Parameters
        ----------
        X
            Rows [N, D].
        return_std
            Also return their standard deviations, noise included, of the same shape.
        return_cov
            Also return their joint covariances [N, N] or [N, N, K]; for Gaussian noise that does not depend on X, and
            not of deep models.
        exposure
            What the rate of each row is multiplied with [N]; None is 1.
        """
        if return_std and return_cov:
            msg = "at most one of return_std and return_cov can be asked for."
            raise ValueError(msg)
        predictor, A, host = self._predictor_at(X, exposure)
        mean, variance = predictor.predict(A, observed=True)
        if return_cov:
            covariance = self._joint_covariance(A, mean, variance)
            stacked = backend_of(covariance).xp.permute_dims(covariance, (1, 2, 0))
            return self._targets_shaped(mean, host=host), self._shaped(stacked, host=host)
        if return_std:
            deviation = backend_of(variance).xp.sqrt(variance)
            return self._targets_shaped(mean, host=host), self._targets_shaped(deviation, host=host)
        return self._targets_shaped(mean, host=host)

    def _joint_covariance(self, A: Array, mean: Array, variance: Array) -> Array:
        """The covariances [K, N, N] of observations with these means and variances [N, K]."""
        likelihood, K = self.predictor_.likelihood, mean.shape[1]  # other functions are of the noise
        if not isinstance(likelihood, Gaussian | LatentNoiseGaussian):
            name = type(likelihood).__name__
            msg = f"joint covariances are of observations with Gaussian noise, not {name}; draw samples instead."
            raise TypeError(msg)
        covariance = self.predictor_.predict_covariance(A)[:K, :, :]
        B = backend_of(covariance)
        latent: Any = self.predictor_.predict(A).variance
        noise = variance - latent[:, :K]
        if backend_of(noise) is not B:  # of rows that lie elsewhere
            noise = placed(to_numpy(noise), covariance)
        return covariance + noise.mT[:, :, None] * B.xp.eye(covariance.shape[-1], **like(covariance))

    @public(repairs=False, ignore=None)
    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Any:
        """Joint samples of the function at X [N, D], without noise: [N, n_samples] or [N, K, n_samples].

        That is the latent function of the likelihood; with `target_transform="log"` its exponential. Deep models have
        none: `sample` draws observations of them, and `predictor_.sample_functions` whole functions.
        """
        A, host = self._fitted_inputs(X)
        seed = seed_of(random_state)
        samples = self.predictor_.sample(A, n_samples, seed=seed)
        functions = self.model_.outputs // self.model_.likelihood.latents(1)  # others are of the noise
        samples = backend_of(samples).xp.permute_dims(samples[:, :, :functions], (1, 2, 0))
        samples = samples if self.target_transform is None else backend_of(samples).xp.exp(samples)
        return self._targets_shaped(samples, host=host)

    @public(repairs=False, ignore=None)
    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R^2 of the predicted means, averaged over the targets; of those observed, if missing targets are ignored."""
        found, weight = on_host(self.predict(X)), on_host(sample_weight)
        if self.missing_targets != "ignore":
            return float(r2_score(unmasked(on_host(y)), found, sample_weight=weight))
        known, found = as_columns(self._numbers(on_host(y))), as_columns(found)
        check_consistent_length(known, found, weight)
        if known.shape[1] != found.shape[1]:
            msg = f"y has shape {known.shape}, but must have as many columns as in training, {found.shape[1]}."
            raise ValueError(msg)
        return _observed_score(known, found, weight)

    # -- inside -----------------------------------------------------------------------------------------------------

    @property
    def _is_gaussian(self) -> bool:
        """Whether the noise is Gaussian, of one size."""
        return isinstance(self.likelihood, Gaussian) or self.likelihood == "gaussian"

    def _chooses(self, data: Observations) -> bool:
        """Whether `fit_regression` chooses what is left open, rather than a method trains a model that is built."""
        plain = (self.outputs, self.layers) == ("shared", None) and self._is_gaussian and data.y.shape[1] == 1
        open_size = self.num_inducing in (None, "auto") and (self.batch_size is None or self.method == "auto")
        moved = backend_of(data.X).is_lazy and (self.backend, self.device) != (None, None)
        return plain and open_size and not moved and self.method in ("auto", "gpr", "sgpr")

    def _fit_regression(self, data: Observations) -> None:
        self._seed = seed_of(self.random_state)
        steps = None if self.max_steps is None else check_whole("max_steps", self.max_steps)
        result = fit_regression(
            data.X,
            data.y,
            kernel=kernel_or_auto(self.kernel),
            likelihood=self.likelihood if isinstance(self.likelihood, Gaussian) else None,
            mean_function=ConstantMean(),
            method=self.method,  # type: ignore[arg-type]
            weights=data.weights,
            tolerance=self.tolerance,
            max_seconds=self.max_seconds,
            seed=self._seed,
            callbacks=[] if steps is None else [lambda seen: seen.step >= steps],
            progress=bool(self.verbose),
        )
        self.model_, self.n_iter_, self.n_rows_seen_ = result.model, result.steps, data.X.shape[0]
        self.method_ = "gpr" if isinstance(result.model, GPR) else "sgpr"
        self.history_, self.bound_ = result.trace, result.bound
        self.converged_, self.learned_ = result.converged, result.learned
        self._forget_growth()
        self._forget_updates()
        self.kernel_ = result.kernel
        columns = zip(*result.candidates, strict=True)
        self.candidates_ = {name: [*column] for name, column in zip(Candidate._fields, columns, strict=True)}

    def _usual_method(self, rows: int) -> str:
        if self.outputs != "shared" or not self._single or not self._is_gaussian:
            return "wsvgp"
        return "gpr" if rows <= EXACT_ROWS else "sgpr"

    def _check_grows(self, *, parts: bool) -> None:
        super()._check_grows(parts=parts)
        if self.outputs not in GROWING_KINDS and self.method_ in GROWING_METHODS:
            known = " or ".join(f"outputs={kind!r}" for kind in GROWING_KINDS)
            msg = f"num_inducing is 'auto', but outputs={self.outputs!r} does not grow; give a number, or use {known}."
            raise ValueError(msg)

    def _model(self, data: Observations, *, parts: bool) -> Any:
        method = self._method(data.X.shape[0], parts=parts or backend_of(data.X).is_lazy)
        outputs = self._outputs(data.y.shape[1])
        likelihood = self._likelihood(data.y, method)
        if not self._is_gaussian:
            likelihood.check_targets(data.y)
        if data.weights is not None and method not in WEIGHTED_METHODS:
            known = ", ".join(WEIGHTED_METHODS)
            msg = f"sample_weight is given, which the method {method} does not take; use auto, or one of {known}."
            raise ValueError(msg)
        if method not in OUTPUT_METHODS:
            known = ", ".join(OUTPUT_METHODS)
            if outputs is not None:
                asked = f"outputs is {self.outputs!r}, which the method {method} does not take"
                msg = f"{asked}; use auto, or one of {known}."
                raise ValueError(msg)
            if _are_unlike(data.y):
                text = (
                    f"the targets differ in size by a factor of more than {UNLIKE:g}, but the method {method} has one "
                    f"variance for all; bring them to one unit, or use auto, or one of {known}."
                )
                warnings.warn(text, UserWarning, stacklevel=outside())
        return self._built(data, likelihood, parts=parts, mean_function=ConstantMean(), outputs=outputs)

    def _likelihood(self, y: Array, method: str) -> Likelihood:
        """That of the method for targets [N, K]. ValueError where they do not fit each other."""
        exact = method in GAUSSIAN_METHODS
        known = ", ".join(name for name in self._methods() if name not in GAUSSIAN_METHODS)
        if exact and not self._is_gaussian:
            msg = (
                f"likelihood is {self._likelihood_name}, which the method {method} does not take; use auto, or {known}."
            )
            raise ValueError(msg)
        if exact and _are_missing(y):
            msg = f"y has rows with some targets, and the method {method} needs all or none; use auto, or {known}."
            raise ValueError(msg)
        if not isinstance(self.likelihood, str):
            return self.likelihood
        if self.likelihood == "gaussian":
            return Gaussian(missing=self.missing_targets == "ignore" and y.shape[1] > 1 and not exact)
        return LIKELIHOODS[self.likelihood]()

    def _likelihood_of(self, trained: Likelihood) -> Likelihood:
        trained = super()._likelihood_of(trained)
        return trained if self.target_transform is None else LogNormal(trained)  # type: ignore[arg-type]

    @property
    def _likelihood_class(self) -> type[Likelihood]:
        return LIKELIHOODS[self.likelihood] if isinstance(self.likelihood, str) else type(self.likelihood)

    @property
    def _likelihood_name(self) -> str:
        """The likelihood as it was asked for."""
        return repr(self.likelihood) if isinstance(self.likelihood, str) else type(self.likelihood).__name__

    def _check_choices(self) -> None:
        """TypeError or ValueError for parameters that no data could suit."""
        if isinstance(self.likelihood, str):
            check_choice("likelihood", self.likelihood, tuple(LIKELIHOODS))
        elif not isinstance(self.likelihood, Likelihood):
            known = ", ".join(map(repr, LIKELIHOODS))
            msg = f"likelihood is {self.likelihood!r}, but must be one of {known}, or an agp.likelihoods.Likelihood."
            raise TypeError(msg)
        check_choice("target_transform", self.target_transform, TRANSFORMS)
        check_choice("missing_targets", self.missing_targets, MISSING_TARGETS)
        if self.target_transform is not None and not self._is_gaussian:
            msg = (
                f"target_transform={self.target_transform!r} is for likelihood='gaussian', not {self._likelihood_name}."
            )
            raise ValueError(msg)

    def _check_takes_exposure(self) -> None:
        if not self._likelihood_class.log_link:
            known = ", ".join(repr(name) for name, one in LIKELIHOODS.items() if one.log_link)
            msg = f"exposure is given, but likelihood={self._likelihood_name} has none; use one of {known}."
            raise ValueError(msg)

    def _outputs(self, count: int) -> Any:
        """What so many outputs share, as `SVGP.from_data` takes it; None if they share one kernel."""
        if self.outputs not in KINDS:
            msg = f"unknown outputs {self.outputs!r}; known are {', '.join(KINDS)}."
            raise ValueError(msg)
        noise = self.likelihood == "latent-noise" or isinstance(self.likelihood, LatentNoiseGaussian)
        if noise and self.outputs not in NOISE_KINDS:
            known = " or ".join(map(repr, NOISE_KINDS))
            msg = f"outputs is {self.outputs!r}, but likelihood={self._likelihood_name} takes {known} alone."
            raise ValueError(msg)
        if self.outputs != "shared" and count == 1 and not noise:
            msg = f"outputs is {self.outputs!r}, but y has one column; leave it out, or give y as [N, K]."
            raise ValueError(msg)
        if self.outputs in ("coregionalised", "intrinsic"):
            return Coregionalised(self._latents(count), intrinsic=self.outputs == "intrinsic")
        if self.num_latents is not None:
            msg = f"num_latents is {self.num_latents!r}, but outputs={self.outputs!r} has none to count; leave it out."
            raise ValueError(msg)
        return None if self.outputs == "shared" else self.outputs

    def _latents(self, outputs: int) -> int | None:
        """The number of latent functions, as it was asked for. ValueError unless there is an output for each."""
        if self.num_latents is None:
            return None
        if check_whole("num_latents", self.num_latents) > outputs:
            msg = f"num_latents is {self.num_latents}, but y has {outputs} columns; take no more latent functions."
            raise ValueError(msg)
        return int(self.num_latents)

    def _data(self, X: Any, y: Any, sample_weight: Any, exposure: Any, *, reset: bool) -> Observations:
        self._check_choices()
        if y is None:
            msg = f"{type(self).__name__} requires y to be passed, but the target y is None."
            raise ValueError(msg)
        if exposure is not None:
            self._check_takes_exposure()
        A = self._placed(self._inputs(X, reset=reset))
        targets = self._known_targets(X, y, A, reset=reset)
        weights, exposures = (
            row_numbers("sample_weight", sample_weight, A),
            row_numbers("exposure", exposure, A, positive=True),
        )
        data = self._with_targets(Observations(A, targets, weights, exposures))
        data = data.weighted()
        return data if self.target_transform is None else data._replace(y=_logarithms(data.y))

    def _known_targets(self, X: Any, y: Any, A: Array, *, reset: bool = False) -> Array:
        targets = self._foreign_targets(y, A) if is_foreign(y) else self._host_targets(X, y, A)
        if reset:
            self._single = targets.ndim == 1
        return as_columns(targets)

    def _with_targets(self, data: Observations) -> Observations:
        """The rows that have a target. ValueError for missing ones that are not ignored."""
        X, y = data.X, data.y
        if y.ndim != 2 or y.shape[0] != X.shape[0] or backend_of(y) is not backend_of(X) or not _are_missing(y):
            return data  # what does not fit is refused with the model
        xp = backend_of(y).xp
        if self.missing_targets == "refuse":
            refuse_cells("y", to_numpy(y[:, 0] if self._single else y), LEFT_OUT)
        rows = xp.any(~xp.isnan(y), axis=1)
        if not bool(xp.any(rows)):
            raise ValueError(NO_TARGET)
        data = data.where(rows)
        if not self._is_gaussian and _are_missing(data.y):
            msg = (
                f"y has rows with some targets, and likelihood={self._likelihood_name} needs all or none; use "
                "'gaussian'."
            )
            raise ValueError(msg)
        return data

    def _log_jacobian(self, data: Observations) -> float:
        """By what the log density of log y exceeds that of y, over all rows."""
        if self.target_transform is None:
            return 0.0
        xp = backend_of(data.y).xp
        rows = xp.sum(xp.where(xp.isnan(data.y), xp.zeros_like(data.y), data.y), axis=1)
        return float(xp.sum(rows if data.weights is None else rows * data.weights))

    def _foreign_targets(self, y: Array, X: Array) -> Array:
        y = self._placed(floating(y))
        B = backend_of(y)
        return B.xp.astype(y, X.dtype) if B is backend_of(X) and B.xp.isdtype(y.dtype, "real floating") else y

    def _host_targets(self, given: Any, y: Any, X: Array) -> Array:
        y = self._numbers(y)
        check_consistent_length(given, y)
        return placed_in_range("y", y, X)

    def _numbers(self, y: Any) -> Any:
        """Targets of any kind as a NumPy array [N] or [N, K]; some may be NaN."""
        y = unmasked(y)
        frame = as_frame(y, "y")
        settings: Any = {"ensure_2d": False, "input_name": "y", "estimator": self}
        anything: Any = {"dtype": None, "ensure_all_finite": False}
        numbers: Any = {"dtype": "float64", "ensure_all_finite": False}
        y = check_array(y if frame is None else frame.to_numpy(), **settings, **anything)
        refuse_words("y", y)
        y = check_array(y, **settings, **numbers)
        refuse_cells("y", y, None)
        return y

    def _targets_shaped(self, x: Array, *, host: bool) -> Any:
        return answered(x[:, 0, ...] if self._single else x, host=host)

    def _shaped(self, x: Array, *, host: bool) -> Any:
        """An answer [..., K], without its last axis where the targets were [N]."""
        return answered(x[..., 0] if self._single else x, host=host)


def _observed_score(known: Any, found: Any, weight: Any) -> float:
    """R^2, averaged over the columns of targets [N, K] that have two or more observations."""
    seen = ~np.isnan(known)
    if not seen.any():
        raise ValueError(NO_TARGET)
    enough = min(2, seen.sum(axis=0).max())  # of one alone it is NaN, with scikit-learn's warning
    weight = np.ones(len(known)) if weight is None else np.asarray(weight)
    parts = [
        r2_score(targets[rows], means[rows], sample_weight=weight[rows])
        for targets, means, rows in zip(known.T, found.T, seen.T, strict=True)
        if rows.sum() >= enough
    ]
    return float(np.mean(parts))


def _are_unlike(y: Array) -> bool:
    """Whether the deviations of the columns of y [N, K] differ much; constant ones do not count."""
    y = to_numpy(y)
    y = y / (np.nanmax(np.abs(y)) or 1.0)  # squares of large targets would overflow
    observed = [column[~np.isnan(column), None] for column in y.T]
    spreads = [float(column_spreads(column)[0]) for column in observed if len(column)]
    return len(spreads) > 1 and max(spreads) > UNLIKE * min(spreads)


def _logarithms(y: Array) -> Array:
    """log y. ValueError unless all targets are positive, or missing."""
    xp = backend_of(y).xp
    if bool(xp.any(y <= 0.0)):
        least = float(xp.min(xp.where(xp.isnan(y), xp.full_like(y, float("inf")), y)))
        msg = f"target_transform='log' takes positive targets, but y has {least:g}; leave it out."
        raise ValueError(msg)
    return xp.log(y)


def _are_missing(y: Array) -> bool:
    xp = backend_of(y).xp
    return bool(xp.any(xp.isnan(y)))


def _is_constant(y: Array) -> bool:
    """Whether all targets of each column of y [N, K] are the same, but for the missing ones."""
    xp = backend_of(y).xp
    absent, far = xp.isnan(y), xp.full_like(y, float("inf"))
    return bool(xp.all(xp.min(xp.where(absent, far, y), axis=0) >= xp.max(xp.where(absent, -far, y), axis=0)))
