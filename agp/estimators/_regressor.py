"""Regression that follows scikit-learn's conventions."""

import warnings
from dataclasses import dataclass
from typing import Any

from sklearn.base import RegressorMixin

from agp.backend import Array, backend_of
from agp.checks import as_columns
from agp.errors import explain_arguments
from agp.estimators._arrays import as_output, on_host, resolve_seed
from agp.estimators._base import all_or_nothing
from agp.estimators._constant import constant_parts, small_variance, with_starting_noise
from agp.estimators._distribution import joint_covariance
from agp.estimators._error_column import NOISE, check_columns_of_targets, split_errors
from agp.estimators._inputs import convert_training_inputs
from agp.estimators._noise_groups import (
    check_noise_by,
    divide_seconds,
    learn_noise,
    stages_of_groups,
    variances_by_level,
    with_noise_of,
)
from agp.estimators._noise_starts import start_noise
from agp.estimators._observations import Observations, noise_variances, row_numbers
from agp.estimators._outputs import resolve_outputs
from agp.estimators._parts import OfParts, fit_part
from agp.estimators._regressor_checks import check_not_chosen, check_regressor, check_takes_exposure, likelihood_of
from agp.estimators._search import insert_level_effects, search_model, takes_near_rows
from agp.estimators._tags import set_target_tags
from agp.estimators._targets import (
    convert_targets,
    is_constant,
    read_targets,
    rows_with_targets,
    score_targets,
    unused_targets,
    warn_if_unlike,
    warn_of_column,
)
from agp.estimators._transform import TransformedTargets
from agp.likelihoods import (
    LIKELIHOODS,
    Beta,
    Gamma,
    Gaussian,
    LatentNoiseGaussian,
    Likelihood,
    LogNormal,
    StudentT,
)
from agp.means import ConstantMean
from agp.methods import METHODS
from agp.repairs import outside, public
from agp.selection import EXACT_ROWS, NOTHING_TO_LEARN, REGRESSION_METHODS
from agp.training import track

GROWING_KINDS = ("shared", "intrinsic")
"""The values of `outputs` with a single set of inducing inputs, whose number can be chosen during training."""
NOISE_LEARNED = (Gaussian, StudentT, LatentNoiseGaussian, Gamma, Beta, LogNormal)
"""Likelihoods whose density has no maximum if all targets are equal, because the noise tends to zero."""
SPREAD_LEARNED = (Gaussian, StudentT, LatentNoiseGaussian, Gamma, Beta)
"""Likelihoods with a trained noise parameter, about which copies of a row carry no information."""


@explain_arguments
@dataclass(kw_only=True, eq=False, repr=False)
class GPRegressor(RegressorMixin, TransformedTargets):
    """Gaussian-process regression, which predicts means and error bars.

    Parameters
    ----------
    method
        "auto", or the short name of a method as in `agp compare`, such as "gpr" (exact), "sgpr" (collapsed), "wsvgp",
        "rsvgp" (inverse-free) or "deep-rsvgp". "auto" selects "gpr" for up to 4,000 rows and, for more rows, the best
        of "nngp" (nearest rows), "sgpr" and, for up to 10,000 rows, "vif" (both), as measured on held-out rows
        (`agp.fit_regression`). It selects "wsvgp" for `partial_fit`, and also for several targets because the noise may
        differ between them. For other noise than Gaussian, it selects "wsvgp" for up to 4,000 rows and, unless the
        kernel does not support it, "tnngp" (nearest rows) for more.
    kernel
        An `agp.kernels.Kernel`, a string such as ``"matern32 + seasonal(365.25) * rbf"``, or "auto". "auto" selects the
        kernel that best predicts held-out rows, or RBF for deep methods. A part of the kernel may act on some columns
        of a table, which are named, as in ``RBF().on(("width", "colour"))`` or ``"rbf.on(width, colour)"``.
    num_inducing
        The number of inducing inputs (per group for methods with two groups, per layer for deep methods) or, for
        computation-aware GPs, the number of actions. It is reduced if there are too few rows. For one target,
        `agp.fit_regression` chooses the number by default, up to 4,096. For other models, the default is 2 sqrt(N),
        limited to the range from 128 to 1,000, or N / 3 for fewer than 384 rows. If the noise is not Gaussian, W-SVGP
        and M-SVGP use all of up to 400 rows, unless outputs are mixtures. With "auto", the number is chosen
        during training (`agp.fit_growing`); this is available for the M-, W-, L-, R- and A-SVGP. Methods that have
        neither inducing inputs nor actions, such as "gpr" and "nngp", do not use it.
    layers
        The number of layers of a deep method; by default 2. Other methods have no layers.
    outputs
        How several target columns are related: "shared" (one kernel for all), "separate" (one kernel per target),
        "coregionalised" (mixtures of latent functions with one kernel each) or "intrinsic" (mixtures of latent
        functions with a common kernel), as in `SVGP.from_data`. All values except "shared" require a method with a
        sparse posterior. With "latent-noise" and one target, the mean and the noise have a kernel each if possible.
    num_latents
        The number of latent functions of coregionalised outputs; by default one per output.
    likelihood
        "gaussian" for noise of constant variance per target; "student-t" for noise with outliers; "latent-noise" for
        noise whose variance depends on X; "poisson" or "negative-binomial" for counts; "gamma" or "exponential" for
        positive numbers; "beta" for proportions between 0 and 1; or an `agp.likelihoods.Likelihood`. All likelihoods
        except "gaussian" require a method that supports any likelihood.
    target_transform
        "log" for the logarithms of positive targets, "yeo-johnson" for a power that makes one skewed target more
        symmetric (`agp.likelihoods.YeoJohnson`), "logit" for the log odds of proportions from 0 to 1 or percentages
        from 0 to 100, and None or "none" for the targets as they are. The transformed targets are modelled with
        Gaussian noise, but predictions, densities and `bound_` still refer to the original targets. The likelihood must
        be "gaussian". "auto" compares the transforms for one target with Gaussian noise, unknown for all rows, and the
        methods "auto", "gpr", "sgpr", "nngp" and "vif" (see docs/selection.md); elsewhere it stands for None.
    missing
        How to treat missing cells in X: "refuse" raises an error; "impute" replaces them by the mean and marks them in
        an additional column. If a column had no missing cells in training, predictions at a missing cell average over
        the distribution of the column in training, which makes error bars wider.
    keep
        The names of table columns to keep. Other columns of text or categories are left out if they only identify the
        rows, which is the case if most rows have a value that no other row has.
    noise_by
        The name of a column or, for arrays, its number, if the variance of the noise differs between the levels of this
        column, such as instruments or sites. It holds categories, or up to 50 different numbers, and remains an input
        of the mean. Known noise (`noise` of `fit`) is added to the variances of the levels. Predictions of observations
        have the variance of their level; an unseen level has the mean of the variances of the levels or of the rows,
        whichever is larger. There must be one target with Gaussian noise, whose transforms are not compared.
        `max_steps` then limits each of up to four fits.
    error_column
        The name of a column or, for arrays, its number, that contains the standard deviation of the measurement error
        of each target, in the unit of the targets, as in ``agp fit --noise``; for several targets, a list with the
        column of each. These columns are no inputs, and the numbers of other parameters count the columns without them.
        Their squares are the `noise` of `fit`, `partial_fit` and all predictions. Rows that are predicted may lack
        columns; predictions are then without measurement error.
    missing_targets
        How to treat NaN in y: "refuse" raises an error; "ignore" treats NaN as unobserved. Rows without any observed
        target are left out; rows with only some observed targets require a variational method.
    hyperparameters
        For one target with Gaussian noise and the methods "auto" and "gpr": "mixture" integrates over the
        hyperparameters, and "mode" chooses the best values. "auto" integrates for up to 200 rows and 30 hyperparameters
        (`agp.fit_regression`). Other models always choose values.
    store_data
        If false, the model does not contain the training rows, for one target with Gaussian noise and the methods
        "auto" and "sgpr". "auto" then selects "sgpr" for any number of rows. Models of other methods contain the rows
        if `model_.X` exists.
    backend, device, dtype
        The library, device and precision of the computation, as in `agp.to_backend`; by default those of the inputs.
    tolerance, max_steps, max_seconds
        Conditions that end training, as in `agp.fit`, or as in `agp.fit_regression` if that function chooses the model.
        In this case, `max_steps` limits the total number of steps for all candidates.
    batch_size
        The number of rows per step, as in `agp.fit`. It is ignored if "auto" selects a method without minibatches.
    total_rows
        The total number of different rows, if rows are passed to `partial_fit` repeatedly. By default, all rows are
        assumed to be new, so the total is the number of rows passed so far.
    priors
        A dictionary of priors (`agp.priors`) and limits, such as ``{"likelihood.noise_variance": Between(1e-4)}``,
        whose keys are patterns of leaf names of `model_`, None, or "auto": those of `agp.fit_regression` if this
        function chooses the model, otherwise none.
    frozen
        One or several patterns of the names of leaves, such as ``"kernel.lengthscale"``, or of single entries, such as
        ``"kernel.lengthscale[0]"``, that keep their starting values: those of the given kernel, likelihood or mean.
    mean_function
        An `agp.means.Mean`, the mean of the function before training; by default a trained constant.
    random_state
        A seed, a `numpy.random.RandomState`, or None, for the selection of inducing inputs and minibatches. If all rows
        are inducing inputs, nothing is drawn.
    verbose
        Whether to show the progress: a bar in a terminal or a notebook, else a line a minute on standard error. A path
        names a log file, to which such lines are appended.

    Attributes
    ----------
    model_
        The trained `agp.models.Model`. For collapsed methods, it is the sparse model with the optimal q(u), without the
        training rows.
    method_
        The name of the method; if `method` is "auto", the method that was selected.
    bound_
        The bound of the model: for most methods, one on the log evidence of the training data.
    history_
        The values that training logged in each step, by name.
    growth_, growth_reason_
        The results for each number of inducing inputs, under the field names of `agp.training.Round`, and the reason
        why growth ended. These attributes exist only if training chose the number of inducing inputs.
    kernel_, candidates_
        The selected kernel or, if `kernel` is given, its text, and the compared candidates under the field names of
        `agp.selection.Candidate`. These attributes exist only if `agp.fit_regression` chose the model.
    noise_by_
        If `noise_by` is given, the noise variances by level, in squared units of the targets. `model_` has the smallest
        one, and `predictor_` all of them.
    transform_
        The transform of the targets as an `agp.likelihoods.Transform`, or None. `model_` is that of the transformed
        targets, and `predictor_` that of the targets in their own units.
    learned_
        Whether the inputs carry information about the targets.
    n_iter_, converged_
        The number of training steps, and whether training reached its tolerance.
    n_rows_seen_
        The number of rows passed to `fit` and to each later `partial_fit`.
    n_features_in_, feature_names_in_
        As in every scikit-learn estimator.
    left_out_
        The names of the table columns that were left out. Tables for predictions need not have these columns.

    Examples
    --------
    Where there are no rows, the standard deviation is larger.

    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(0.0, 6.0, 30)[:, None]
    >>> model = agp.GPRegressor(hyperparameters="mode").fit(X, np.sin(X[:, 0]))
    >>> mean, deviation = model.predict([[1.5], [20.0]], return_std=True)
    >>> round(float(mean[0]), 1), bool(deviation[1] > 3.0 * deviation[0])
    (1.0, True)
    """

    outputs: str = "shared"
    num_latents: int | None = None
    likelihood: Any = "gaussian"
    target_transform: str | None = "auto"
    noise_by: str | int | None = None
    error_column: str | int | list | tuple | None = None
    missing_targets: str = "refuse"
    hyperparameters: str = "auto"
    store_data: bool = True
    mean_function: Any = None

    def __sklearn_tags__(self) -> Any:
        return set_target_tags(self, super().__sklearn_tags__())

    @public(repairs=False, ignore=None)
    @all_or_nothing
    def fit(self, X: Any, y: Any, sample_weight: Any = None, exposure: Any = None, noise: Any = None) -> "GPRegressor":
        """Train on a table X [N, D] of any kind and targets y [N] or [N, K].

        If all targets are equal, a warning is issued and nothing is trained.

        Parameters
        ----------
        X, y
            The rows and their targets.
        sample_weight
            The number of times [N] that each row was observed. Rows with weight 0 are left out. Copies of a row carry
            no information about the noise variance. For likelihoods with a trained noise parameter ("gaussian",
            "student-t", "latent-noise", "gamma" and "beta"), weights are therefore scaled to mean 1, unless most inputs
            were observed several times with different targets.
        exposure
            The factors [N] that multiply the rates of the rows, such as the time, area or number of items to which each
            count refers. The likelihood must have a logarithmic link, as "poisson" does.
        noise
            Known noise variances [N] or [N, K] of the targets, in squared units of the targets, which are added to the
            trained noise variance. The likelihood must be Gaussian. With ``likelihood=agp.Gaussian(0.0)``, there is no
            other noise; without `noise`, the model then interpolates the targets.
        """
        data = self._data(X, y, sample_weight, exposure, noise, reset=True)
        rows = data.X.shape[0]
        self._forget("_largest", "_noise_groups", "noise_by_")
        self._note_largest(data)
        fixed = isinstance(self.likelihood, Gaussian) and not self.likelihood.noise_variance
        data = data.distinct(spread_learned=self._likelihood_class in SPREAD_LEARNED and not fixed)
        constant = self._likelihood_class in NOISE_LEARNED and is_constant(data.rates())
        with track(self.verbose) as tracker, stages_of_groups(self, tracker):
            if self.noise_by is not None:
                data = self._learn_noise(data, tracker, constant=constant)
            self._note_facts(data)
            if constant:
                self._fit_constant(data)
            elif self._chooses(data):
                self._fit_regression(data, tracker)
            else:
                check_not_chosen(self)
                self._fit(self._model(data, parts=False), data, tracker)
            self.bound_ += self._log_jacobian(data)
        self.n_rows_seen_ = rows
        if self.noise_by is not None:
            self.noise_by_ = variances_by_level(self)
        return self

    def _learn_noise(self, data: Observations, tracker: Any, *, constant: bool) -> Observations:
        """Learn the noise of the groups of rows, and return the data with this noise."""
        self._seed = resolve_seed(self.random_state)
        self._noise_groups = learn_noise(self, data, tracker, constant=constant)
        tracker.begin("fit", "training with this noise")
        return with_noise_of(self._noise_groups, data, self)

    def _fit_constant(self, data: Observations) -> None:
        """Build a model of targets that are all the same, which cannot be trained."""
        warnings.warn(NOTHING_TO_LEARN, UserWarning, stacklevel=outside())
        self._start(self._model(data, parts=False, constant=True))
        self.bound_ = float(self.model_.bound(data.X, data.y, **data.known)[0])
        self.converged_, self.learned_ = True, False

    @OfParts
    @public(repairs=False, ignore=None)
    @all_or_nothing
    def partial_fit(
        self, X: Any, y: Any, sample_weight: Any = None, exposure: Any = None, noise: Any = None
    ) -> "GPRegressor":
        """Take a training step on more rows. The first call also builds the model from the rows of that call.

        The rows of the first call should represent all rows. The arguments are those of `fit`, but weights are never
        rescaled. Rows of calls without weights, exposures or noise variances have weight 1, exposure 1 and noise 0.
        """
        first = not self._is_started
        data = self._data(X, y, sample_weight, exposure, noise, reset=first)
        self._note_largest(data)
        if first:
            self._note_facts(data)
            self._start(self._model(data, parts=True))
        fit_part(self, data)
        self.bound_ += self._log_jacobian(data)
        return self

    @public(repairs=False, ignore=None)
    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        exposure: Any = None,
        noise: Any = None,
        *,
        observed: bool = True,
    ) -> Any:
        """Return the means [N] or [N, K] of new observations at X [N, D].

        Parameters
        ----------
        X
            Rows [N, D].
        return_std
            Also return the standard deviations of the observations, including noise, in the same shape.
        return_cov
            Also return the joint covariances of the observations [N, N] or [N, N, K]. This option requires Gaussian
            noise and is not available for deep models.
        exposure
            The factors [N] that multiply the rates of the rows; None means 1.
        noise
            Known noise variances [N] or [N, K] of the observations, in squared units of the targets, which are added to
            the trained noise variance of a Gaussian likelihood. None means 0.
        observed
            If false, the results are those of the function without noise, which `sample_y` draws: the latent function
            of the likelihood or, if the targets are transformed, this function in the unit of the targets. For Gaussian
            and Student-t noise, it is in the unit of the targets; for counts, it is the logarithm of the rate.
        """
        if return_std and return_cov:
            raise ValueError("return_std and return_cov are both true; set at most one of them.")
        predictor, A, known, host = self._predictor_at(X, exposure, noise, observed=observed)
        if not (return_std or return_cov):
            return self._reshape_targets(predictor.predict_mean(A, observed=True, **known), host=host)
        mean, variance = predictor.predict(A, observed=True, **known)
        found = self._reshape_targets(mean, host=host)
        if return_cov:
            covariance = joint_covariance(predictor, A, mean[:, : self._targets], variance[:, : self._targets])
            stacked = backend_of(covariance).xp.permute_dims(covariance, (1, 2, 0))
            return found, as_output(stacked[..., 0] if self._single else stacked, host=host)
        return found, self._reshape_targets(backend_of(variance).xp.sqrt(variance), host=host)

    @public(repairs=False, ignore=None)
    def score(self, X: Any, y: Any, sample_weight: Any = None, exposure: Any = None, noise: Any = None) -> float:
        """Return the R^2 of the predicted means, averaged over the targets.

        If `missing_targets` is "ignore", missing targets do not count. `exposure` is that of `predict`. `noise` is
        accepted for scikit-learn's metadata routing, and does not change the means.
        """
        found = as_columns(on_host(self.predict(X, exposure=exposure, noise=noise)))
        known = as_columns(read_targets(on_host(y), self))
        return score_targets(known, found, sample_weight, missing=self.missing_targets == "ignore")

    # -- inside -----------------------------------------------------------------------------------------------------

    @property
    def _is_gaussian(self) -> bool:
        """Whether the noise is Gaussian with a constant variance."""
        return isinstance(self.likelihood, Gaussian) or self.likelihood == "gaussian"

    def _can_take_all(self, likelihood: Likelihood) -> bool:
        return super()._can_take_all(likelihood) and self.outputs in ("shared", "separate")

    def _chooses(self, data: Observations) -> bool:
        """Whether `fit_regression` chooses the kernel and the number of inducing inputs."""
        plain = (self.outputs, self.layers) == ("shared", None) and self._is_gaussian and data.y.shape[1] == 1
        open_size = self.num_inducing in (None, "auto") and (self.batch_size is None or self.method == "auto")
        moved = backend_of(data.X).is_lazy and (self.backend, self.device) != (None, None)
        return plain and open_size and not moved and self.method in REGRESSION_METHODS

    @property
    def _seconds_per_fit(self) -> float | None:
        return super()._seconds_per_fit if self.noise_by is None else divide_seconds(self.max_seconds)

    def _fit_regression(self, data: Observations, progress: Any) -> None:
        self._seed = resolve_seed(self.random_state)
        data = insert_level_effects(self, data)
        settings: dict[str, Any] = {"method": self.method, "hyperparameters": self.hyperparameters}
        settings |= {"store_data": self.store_data, "progress": progress}
        settings |= {"transforms": "auto" if self.target_transform == "auto" else None}
        result = search_model(self, data, **settings)
        self._keep_transform(result.transform, data)
        self._keep_search(result, data.X)
        self._prepare_search()

    def _usual_method(self, data: Observations) -> str:
        if self.outputs != "shared" or not self._single or not self._is_gaussian:
            return "tnngp" if takes_near_rows(self, data) else "wsvgp"
        return "gpr" if data.X.shape[0] <= EXACT_ROWS else "sgpr"

    def _check_grows(self) -> None:
        super()._check_grows()
        if self.outputs not in GROWING_KINDS and self._record.can_grow:
            known = " or ".join(f"outputs={kind!r}" for kind in GROWING_KINDS)
            asked = f"num_inducing is 'auto', which outputs={self.outputs!r} does not support"
            raise ValueError(f"{asked}; give a number, or use {known}.")

    def _model(self, data: Observations, *, parts: bool, constant: bool = False) -> Any:
        method = METHODS[self._method(data, parts=parts)]
        outputs = resolve_outputs(self, data.y.shape[1], separable="outputs" in method.takes and not constant)
        likelihood = likelihood_of(self, data.y, method)
        if not self._is_gaussian:
            likelihood.check_targets(data.y)
        if "outputs" not in method.takes:
            known = ", ".join(name for name, other in METHODS.items() if "outputs" in other.takes)
            if outputs is not None:
                asked = f"outputs is {self.outputs!r}, but the method {method.name} does not support it"
                raise ValueError(f"{asked}; use auto, or one of {known}.")
            warn_if_unlike(data.y, method.name, known)
        mean_function, variance = self.mean_function or ConstantMean(), None
        given = not isinstance(self.likelihood, str)
        if constant:
            parts_of_equal = constant_parts(likelihood, data.rates(), given=given, transform=self.transform_)
            likelihood, mean_function, variance = parts_of_equal
        elif not given and data.exposure is None and not backend_of(data.y).is_lazy:
            likelihood = with_starting_noise(likelihood, data.y)
            variance = None if parts else small_variance(likelihood, data.y)  # further rows may vary more
        settings: Any = {"mean_function": mean_function, "outputs": outputs, "variance": variance, "parts": parts}
        return start_noise(self._built(data, likelihood, **settings), data, selected=self.kernel == "auto")

    @property
    def _likelihood_class(self) -> type[Likelihood]:
        return LIKELIHOODS[self.likelihood] if isinstance(self.likelihood, str) else type(self.likelihood)

    @property
    def _likelihood_name(self) -> str:
        """The name of the likelihood in messages, as the user passed it."""
        return repr(self.likelihood) if isinstance(self.likelihood, str) else type(self.likelihood).__name__

    def _check_takes_exposure(self) -> None:
        check_takes_exposure(self)

    def _data(self, X: Any, y: Any, sample_weight: Any, exposure: Any, noise: Any, *, reset: bool) -> Observations:
        check_regressor(self)
        if reset:
            self._forget("transform_")
        if y is None:
            raise ValueError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        names: Any = NOISE
        if self.error_column is not None:
            X, noise, names = split_errors(self, X, noise, training=True)
        if exposure is not None:
            check_takes_exposure(self)
        if noise is not None:
            self._check_takes_noise()
        A = convert_training_inputs(self, X, reset=reset)
        targets = self._prepare_targets(y, A, reset=reset)
        if self.error_column is not None:
            check_columns_of_targets(self.error_column, targets.shape[1])
        weights = row_numbers("sample_weight", sample_weight, A)
        exposures = row_numbers("exposure", exposure, A, positive=True)
        unused = None if noise is None else unused_targets(self, targets, weights)
        known = weights, exposures, noise_variances(noise, A, targets.shape[1], unused=unused, names=names)
        whole = None if self._is_gaussian else self._likelihood_name
        data = Observations(A, targets, *known)
        data = rows_with_targets(data, ignore=self.missing_targets != "refuse", single=self._single, whole=whole)
        data = data.drop_zero_weights()
        if self.noise_by is not None:
            check_noise_by(self, data)
        return self._transform_targets(data, reset=reset)

    def _prepare_targets(self, y: Any, A: Array, *, reset: bool = False) -> Array:
        targets = convert_targets(y, A, self)
        if reset:
            self._single = targets.ndim == 1
            warn_of_column(self, targets)
        return as_columns(targets)

    def _reshape_targets(self, x: Array, *, host: bool) -> Any:
        return as_output(x[:, 0, ...] if self._single else x[:, : self._targets, ...], host=host)

    @property
    def _targets(self) -> int:
        """The number of targets. Further functions model the noise."""
        return self.model_.outputs // self.model_.likelihood.latents(1)
