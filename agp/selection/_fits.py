"""`fit_regression` and `fit_classification`: hyperparameters from samples of the rows, the posterior of all rows."""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from agp import tree
from agp.backend import Array, backend_of
from agp.checks import check_choice, check_positive, check_whole
from agp.chunking import check_memory
from agp.errors import ConvergenceWarning, NoSignalWarning
from agp.inducing import Points
from agp.kernels import Kernel, count_levels
from agp.likelihoods import Gaussian, Likelihood
from agp.models import SGPR, SVGP, warn_of_moved
from agp.priors import Prior
from agp.repairs import outside, public
from agp.selection._arguments import (
    check_gaussian,
    check_kernel_and_priors,
    check_labels,
    method_to_use,
    split_priors,
    valid_rows,
    with_least_noise,
    with_limits,
)
from agp.selection._class_fit import ALL_ROWS, MOST_INDUCING, ClassFit, ClassPlan
from agp.selection._equal import result_of_equal, spread_of_equal
from agp.selection._given import (
    Columns,
    Plan,
    check_categories,
    check_times,
    logistic_likelihood,
    parts_to_compare,
    subsample_rows,
)
from agp.selection._many_rows import run_many_rows, why_not_neighbours
from agp.selection._outlook import scale_of, stages_of_regression
from agp.selection._race import takes_mixture
from agp.selection._seasons import describe_times, moments_of
from agp.selection._sizes import is_exact
from agp.selection._stages import Fit
from agp.selection._targets import transforms_to_compare
from agp.selection._trial import ClassificationResult, RegressionResult
from agp.selection._watch import Pieces, Watch
from agp.training import Callback, Shown, fingerprint_of

MOST = 4096
"""The maximum number of inducing inputs."""
MOST_ROWS = 300_000
"""The maximum number of rows drawn."""

REGRESSION_METHODS = ("auto", "gpr", "sgpr", "nngp", "vif")
"""The methods of `fit_regression`."""
HYPERPARAMETERS = ("auto", "mode", "mixture")
"""What `fit_regression` does with hyperparameters."""
CLASSIFICATION_METHODS = ("auto", "tvgp", "svgp")
"""The methods of `fit_classification`."""


@public(repairs=False)
def fit_regression(
    X: Array,
    y: Array,
    /,
    *,
    categories: Iterable[int] = (),
    kernel: Kernel | Literal["auto"] = "auto",
    likelihood: Gaussian | None = None,
    mean_function: Any = None,
    priors: Mapping[str, Prior] | Literal["auto"] | None = "auto",
    frozen: str | Iterable[str] = (),
    method: Literal["auto", "gpr", "sgpr", "nngp", "vif"] = "auto",
    hyperparameters: Literal["auto", "mode", "mixture"] = "auto",
    store_data: bool = True,
    most: int = MOST,
    tolerance: float = 1e-3,
    max_seconds: float | None = None,
    max_steps: int | None = None,
    memory: float | None = None,
    seed: int = 0,
    callbacks: Iterable[Callback] = (),
    progress: Shown = False,
    checkpoint: str | Path | None = None,
    weights: Array | None = None,
    noise: Array | None = None,
    transforms: Iterable[str] | Literal["auto"] | None = None,
    times: Iterable[int] = (),
) -> RegressionResult:
    """Fit a Gaussian process to data, and choose its kernel, and nearest rows or inducing inputs for many rows.

    For up to 200 rows, the hyperparameters are not chosen, but integrated over (`integrate`): the model is a mixture of
    exact GPs. The kernel is the sum of a Matern-5/2 and a linear kernel; for more than 100 rows, its average with the
    sum of an RBF and a linear kernel, weighted by their evidence. With more rows:

    1. A Matern-5/2 kernel is trained from several starts on 250 rows, with the exact evidence, and the best optima are
       trained further on 500 rows. Other kernels start from the best hyperparameters. A linear kernel is added to the
       best kernel if the evidence improves by more than chance. With fewer than five rows per column, all starts are
       trained on 500 rows, with an RBF kernel.
    2. The best candidate is trained further with the exact evidence of 2,000 rows, and then of more: all of up to 4,000
       rows, or 3,200 of more rows. Of up to 4,000 rows, 2,000 also train the second-best candidate if it is close.
       If columns are skewed, the best kernel is also trained on warped inputs (`agp.Warped`).
       With `times`, trend and seasons of these columns are added to the best kernel if they improve predictions. If
       the rows are a series, with one row for each time, the predictions are forecasts of three parts of the sample
       from the rows before them.
    3. For up to 4,000 rows, the posterior is exact, and models are compared by their leave-one-out predictions
       (`GPR.leave_one_out`), or by the evidence if there are fewer than five rows per column.
    4. For more rows, a tenth of the rows, but at most 2,000, are held out. Training continues with the densities of
       2,000, 4,000 and 12,000 rows given their 60 nearest rows (`NNGP` with ``among="others"``), and compares kernels.
       The predictions of exact GPs on the 100 or 200 nearest rows are compared with those of inducing inputs, alone
       (`SGPR`, 1,024 to 4,096 random rows) and, for up to 10,000 rows, together with nearest rows (`VIF`). The density
       of the held-out rows decides. Inducing inputs are tried only where they may be as good. Kernel variance and noise
       are scaled so that the held-out errors have the predicted spread.
    5. With the method "sgpr", the posterior of all rows has 1,024 to 4,096 inducing inputs. Their number is doubled as
       long as the predictions improve. For more than 300,000 rows, the posterior has fewer inducing inputs or omits
       some rows. Of several pairs of kernel and noise variances, from training, from the held-out rows and from the
       bound, the model uses the one that predicts the held-out rows best.

    Training uses Newton's method (`fit_newton`), or L-BFGS if the kernel or the mean function does not support it. From
    1,000 rows on, it computes in float32 where this suffices; the posterior has the dtype of the data.

    Parameters
    ----------
    X, y
        Inputs [N, D] and targets [N] or [N, P]. All outputs share the kernel and the noise.
    categories
        The columns of X that contain codes of levels: whole numbers from 0, or -1 for an unknown level. A kernel of
        other columns is multiplied by `Overlap`, and `RandomEffects` are added to a linear kernel
        (`Kernel.with_categories`).
    kernel
        A kernel; "auto" compares `RBF`, `Matern52`, `Matern32`, the best of these three plus a linear kernel, and the
        best of these with skewed columns warped.
    likelihood, mean_function
        See `agp.GPR.from_data`. ``Gaussian(0.0)`` without `noise` means that the targets have no noise; the model then
        interpolates them.
    priors
        A dictionary of priors and limits whose keys are patterns for leaf names, or None. With "auto", or with limits
        alone, lengthscales have a prior if there are fewer than five rows per column (see
        docs/starts-rates-priors.md). Limits (`agp.priors.Between`) hold for every kernel that has the parameter, but
        for "auto" not for the lengthscales of seasons.
    frozen
        One or several patterns for the names of leaves, or of single entries, that keep their values, as in `agp.fit`.
    method
        "gpr" for the exact posterior, "sgpr" for the collapsed posterior, "nngp" for nearest rows, "vif" for inducing
        inputs and nearest rows. "auto" is "gpr" for up to 4,000 rows, and compares the other methods for more rows.
        Rows of a dask array always have a collapsed posterior.
    hyperparameters
        "mixture" integrates over the hyperparameters, and "mode" chooses the best values with steps 1 to 5. "auto"
        integrates if there are at most 200 rows, 30 hyperparameters, and no short time limit.
    store_data
        If false, the model does not contain the training rows, for any number of rows; the method is then "sgpr".
    most
        Maximum number of inducing inputs.
    tolerance
        Training on a sample ends when the next step is predicted to gain less than a hundred times this value, in nats
        for all rows of the sample, or 0.5 nats on more than 2,000 rows.
    max_seconds
        Maximum time in seconds; unlimited by default. When the time is up, the best result so far is returned. An exact
        posterior uses fewer rows if that of all rows would take too long.
    max_steps
        Maximum number of steps: evaluations of an evidence or of a bound in training; unlimited by default.
    memory
        Budget in MiB for working arrays in the passes over the rows. The default suffices for the largest matrices.
    seed
        Seed for the random choice of rows.
    callbacks
        Functions called with a `Progress` after each step of training. If a callback returns True or a text,
        the reason, the fit ends.
    progress
        Show the progress, or append it to a log file; see `agp.train`.
    checkpoint
        A file that stores finished stages. A fit with the same data and arguments resumes from this file and gives the
        same numbers as an uninterrupted fit.
    weights
        The number of observations [N] that each row represents, as in `agp.GPR.from_data`; 1 by default. With weights,
        averages are over observations, not rows. Exact repetitions of a row are evidence against noise: if the weights
        sum to more than N and rows with equal inputs have equal targets, the noise variance goes to zero. Therefore,
        scale importance weights to a mean of 1.
    noise
        Known noise variances [N] of the rows, which are added to the trained noise variance; 0 by default.
    times
        The numbers of columns that hold times in days. For ``kernel="auto"``, these columns may also have a linear
        trend, a second smooth part and seasons of a year, a week and a day, as far as the times can tell them. If the
        rows are a series, the held-out rows of more than 4,000 rows are the last ones.

    transforms
        The names of transforms of the targets to compare, of "log", "yeo-johnson" and "logit"; "auto" compares those
        that may matter, and none if the noise is known, if several targets, arrays that are not in memory, or parts
        with values in the unit of the targets are given. By default, none is compared. See docs/selection.md.

    Returns
    -------
    RegressionResult
        The model is a `GPRMixture` after integration, a `GPR`, an `NNGP`, a `VIF`, or an `SVGP` that has the optimal
        q(u) and, unlike the others, does not store the data. `learned` is False if left-out or held-out rows are not
        predicted better than by the mean of the targets. In this case, the mean is predicted if the hyperparameters and
        the kernel were chosen.

    Raises
    ------
    TypeError, ValueError
        If the data and the arguments are inconsistent.
    agp.errors.CheckpointError
        If the checkpoint cannot be written; it is first written before training. `.result` holds the best model so far.
    agp.errors.Interrupted
        On Ctrl-C; `.result` holds the best model so far.

    Warns
    -----
    agp.errors.ConvergenceWarning
        If a limit or a callback ended the fit.
    agp.errors.NoSignalWarning
        If the inputs do not predict the targets. If all targets are the same, or if there is one row, the model
        predicts this number, with error bars of a tenth of it, or of 0.1 if it is zero. With ``Gaussian(0.0)``, a
        positive noise variance or known noise, these are error bars of the function away from the rows.

    Examples
    --------
    The trend in the first column makes a kernel with a linear part the best of those compared.

    >>> import numpy as np
    >>> import agp
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0.0, 6.0, (60, 2))
    >>> y = X[:, 0] + np.sin(X[:, 1]) + 0.1 * rng.standard_normal(60)
    >>> result = agp.fit_regression(X, y, hyperparameters="mode")
    >>> sorted({one.kernel for one in result.candidates})
    ['matern32', 'matern52', 'matern52 + linear', 'rbf']
    >>> result.kernel, result.method
    ('matern52 + linear', 'gpr')
    >>> mean, variance = result.model.predict(np.asarray([[3.0, 1.5]]))
    >>> bool(abs(mean[0, 0] - (3.0 + np.sin(1.5))) < 0.2)
    True

    A column of times may have a season, so that forecasts continue it.

    >>> days = np.arange(0.0, 1400.0, 10.0)[:, None]
    >>> y = np.sin(2.0 * np.pi * days[:, 0] / 365.25) + 0.1 * rng.standard_normal(140)
    >>> result = agp.fit_regression(days, y, times=(0,))
    >>> result.kernel
    'matern52 + linear + seasonal(365.25) * rbf'
    >>> print(result.model.predict_mean(365.25 * np.asarray([[4.25], [4.75]]))[:, 0].round(0))
    [ 1. -1.]
    """
    likelihood = Gaussian() if likelihood is None else likelihood
    data = with_least_noise(valid_rows(X, y, weights, noise), likelihood, kernel)
    X = data.X
    _check_choices(kernel, priors, likelihood, hyperparameters, method)
    method = method_to_use(method, store_data, hyperparameters)
    check_memory(memory)
    tolerance = check_positive("tolerance", tolerance)
    columns, kernel = _mix_categories(X, categories, kernel)
    kernel, start, mean = parts_to_compare(kernel, likelihood, mean_function, X=X)
    priors, limits = split_priors(priors, frozen)
    plan = Plan(kernel, start, mean, priors, memory, tolerance, columns, times=check_times(times, X))
    plan = with_limits(plan, limits)
    _warn_of_moved(plan, X)
    plan = plan._replace(transforms=transforms_to_compare(transforms, plan, data))
    exact = is_exact(method, X)
    near = not exact and _uses_neighbours(method, plan, X)
    most, seed = check_whole("most", most), check_whole("seed", seed, least=0)
    spread = spread_of_equal(data)
    with Watch(max_seconds, callbacks, progress=progress, max_steps=max_steps) as watch:
        mixed = takes_mixture(plan, data, hyperparameters, method, watch.limit)
        facts: dict[str, Any] = {}
        if checkpoint is not None:
            facts = plan.facts() | {"method": "gpr" if exact else method, "most": most, "seed": seed}
            facts |= {"hyperparameters": "mixture" if mixed else "mode"}
            facts |= {"data": fingerprint_of(data), "library": backend_of(X).name}
        known = describe_times(X, plan.times)
        drawn, moments = X.shape[0] if exact else MOST_ROWS, moments_of(known, X)
        rows = subsample_rows(data, drawn, seed, hold_out=not exact, times=moments)
        fit = Fit(plan, rows, most, Pieces(checkpoint, facts, watch), watch, seed, known)
        watch.expect(stages_of_regression(fit, mixed=mixed, exact=exact, near=near), scale_of(fit))
        stages = fit.run_mixture if mixed else fit.run_exact if exact else fit.run_collapsed
        with watch.keep_results(fit.result):
            if spread is None:
                run_many_rows(fit, method) if near and not mixed else stages()
            found = fit.result() if spread is None else result_of_equal(plan, data, spread, watch)
        watch.conclude(watch.ending())
    if not store_data and found.model._holds_data:  # a fit that ended early, or the constant model
        found = replace(found, model=_without_rows(found.model))
    return _warn_about(found, f"{watch.ending()}; let the fit run longer")


def _check_choices(kernel: Any, priors: Any, likelihood: Any, hyperparameters: Any, method: Any) -> None:
    """Raise TypeError or ValueError unless these arguments of `fit_regression` are valid."""
    check_kernel_and_priors(kernel, priors)
    check_gaussian(likelihood)
    check_choice("hyperparameters", hyperparameters, HYPERPARAMETERS)
    check_choice("method", method, REGRESSION_METHODS)


def _warn_of_moved(plan: Plan | ClassPlan, X: Array) -> None:
    """Warn of values that the user gave, and that are outside the limits of the user."""
    given = {} if isinstance(plan.kernel, str) else {"kernel": plan.kernel}
    mean_function = plan.mean_function if isinstance(plan, Plan) else None
    warn_of_moved({**given, "likelihood": plan.likelihood, "mean_function": mean_function}, plan.limits, X)


def _mix_categories(X: Array, categories: Iterable[int], kernel: Any) -> tuple[Columns, Any]:
    """Return the kinds of columns, and the kernel, if it is given, for these columns."""
    columns = Columns(X.shape[1], check_categories(categories, X))
    return columns, count_levels(columns.mix(kernel), X) if isinstance(kernel, Kernel) else kernel


def _warn_about(found: Any, why: str) -> Any:
    """Return the result, after a warning if the fit has not converged, or if the inputs do not predict the targets."""
    if not found.converged:
        warnings.warn(f"the fit has not converged: {why}.", ConvergenceWarning, stacklevel=outside())
    if not found.learned:
        warnings.warn(found.message, NoSignalWarning, stacklevel=outside())
    return found


def _without_rows(model: Any) -> SVGP:
    """Return an exact GP of few rows as a model whose inducing inputs are those of the rows, without their targets."""
    names = ("X", "y", "mean_function", "weights", "noise")
    rows = {name: getattr(model, name) for name in names}
    return SGPR(model.kernel, model.likelihood, Points(model.X), **rows).to_svgp()


def _uses_neighbours(method: str, plan: Plan, X: Array) -> bool:
    """Whether models of near rows are compared. Raise ValueError if only they may be used, but cannot be."""
    why = "" if method == "sgpr" else why_not_neighbours(plan, X)
    if why and method != "auto":
        remedy = "compute as many random rows as fit in memory, or use" if backend_of(X).is_lazy else "use"
        raise ValueError(f"method is {method!r}, but {why}; {remedy} 'auto' or 'sgpr'.")
    return method != "sgpr" and not why


# -- classes ----------------------------------------------------------------------------------------------------------


@public(repairs=False)
def fit_classification(
    X: Array,
    y: Array,
    /,
    *,
    likelihood: Likelihood | None = None,
    categories: Iterable[int] = (),
    kernel: Kernel | Literal["auto"] = "auto",
    priors: Mapping[str, Prior] | Literal["auto"] | None = "auto",
    frozen: str | Iterable[str] = (),
    method: Literal["auto", "tvgp", "svgp"] = "auto",
    most: int = MOST_INDUCING,
    max_seconds: float | None = None,
    max_steps: int | None = None,
    memory: float | None = None,
    seed: int = 0,
    callbacks: Iterable[Callback] = (),
    progress: Shown = False,
    checkpoint: str | Path | None = None,
    weights: Array | None = None,
) -> ClassificationResult:
    """Fit Gaussian processes to labels, and choose their kernels.

    1. The Laplace approximation of the evidence of a sample (500 rows for two classes, fewer for more classes) trains
       three kernels: an `RBF` kernel with one lengthscale, the same plus a `Linear` kernel, and a `Matern52` kernel
       with a lengthscale for each column. The columns are in units of their spreads or, if this has more evidence, in
       one common unit. Kernels whose evidence is lower than that of the best by more than 25 nats are left out.
    2. For up to 2,000 rows, each kernel has a t-VGP on all rows. For two classes, its q(f) is optimal. For more
       classes, the latent functions of a row share the precision of its site, so that the time hardly depends on the
       number of classes.
    3. The latent functions of the kernels are averaged (`Ensemble`). Their weights maximise the density of each row
       given the others. For three or more classes, the same density chooses a factor of the variances: 1, 1/2 or 1/4.
    4. For more rows, the best kernel is trained further, and q(u) has 256 to 1,024 inducing inputs, which are random
       rows. A tenth of the rows, but at most 2,000, choose their number and the factor of the variances.
    5. For two classes and more than 4,000 rows, they also choose between inducing inputs and nearest rows (`TNNGP`).

    The search runs on the host in float64, and its start is the same for all libraries.

    Parameters
    ----------
    X, y
        Inputs [N, D] and labels [N] or [N, 1], which are numbers from 0 to C - 1.
    likelihood
        `Softmax`, or `Bernoulli` with the link "logit", which is the default for the labels 0 and 1; `Softmax` is the
        default for more labels.
    categories
        The columns of X that contain codes of levels, as in `fit_regression`.
    kernel
        A kernel; "auto" compares the kernels above.
    priors
        A dictionary of priors whose keys are patterns for leaf names, or None. With "auto", the logarithms of
        hyperparameters have normal priors around their starting values, with the standard deviations 1 for variances
        and 1.5 for lengthscales.
    frozen
        Patterns of leaf names, such as ``"kernel.variance"``, of the parameters of a given kernel that keep their
        values.
    method
        "tvgp" for a posterior of all rows, "svgp" for inducing inputs. "auto" chooses by the number of rows.
    most
        Maximum number of inducing inputs.
    max_seconds
        Maximum time in seconds; unlimited by default. When the time is up, the best result so far is returned.
    max_steps
        Maximum number of steps: evaluations of an evidence or of a bound in training; unlimited by default.
    memory
        Budget in MiB for working arrays in the passes over the rows.
    seed
        Seed for the random choice of rows.
    callbacks
        Functions called with a `Progress` after each iteration of the search and after each posterior. If a callback
        returns True or a text, the reason, the fit ends.
    progress
        Show the progress, or append it to a log file; see `agp.train`.
    checkpoint
        A file that stores the trained kernels. A fit with the same data and arguments resumes from this file and gives
        the same numbers as an uninterrupted fit.
    weights
        The number of observations [N] that each row represents; 1 by default.

    Returns
    -------
    ClassificationResult
        The model is a `TVGP`, a `TNNGP`, an `Ensemble`, or an `SVGP` that does not store the data.

    Raises
    ------
    TypeError, ValueError
        If the data and the arguments are inconsistent.
    agp.errors.CheckpointError
        If the checkpoint cannot be written; it is first written before training. `.result` holds the best model so far.
    agp.errors.Interrupted
        On Ctrl-C; `.result` holds the best model so far.

    Warns
    -----
    agp.errors.ConvergenceWarning
        If a limit or a callback ended the fit.
    agp.errors.NoSignalWarning
        If no model was better than the frequencies of the classes.

    Examples
    --------
    The model averages kernels that predict the labels on both sides of a line.

    >>> import numpy as np
    >>> import agp
    >>> X = np.random.default_rng(0).uniform(0.0, 6.0, (80, 2))
    >>> labels = np.where(X[:, 0] > X[:, 1], 1.0, 0.0)
    >>> result = agp.fit_classification(X, labels, likelihood=agp.Bernoulli(link="logit"))
    >>> sorted(result.kernel.split(", "))
    ['matern52', 'rbf', 'rbf + linear']
    >>> mean = result.model.predict_mean(np.asarray([[5.0, 1.0], [1.0, 5.0]]), observed=True)
    >>> print(mean[:, 0].round(1))
    [1. 0.]
    """
    data = valid_rows(X, y, weights)
    X, y = data.X, data.y
    logistic = logistic_likelihood(likelihood, y)
    check_kernel_and_priors(kernel, priors)
    check_choice("method", method, CLASSIFICATION_METHODS)
    check_labels(logistic, y)
    check_memory(memory)
    columns, kernel = _mix_categories(X, categories, kernel)
    kernel = tree.place_leaves(tree.place_host_arrays(kernel, X), X) if isinstance(kernel, Kernel) else kernel
    most, seed = check_whole("most", most), check_whole("seed", seed, least=0)
    priors, limits = split_priors(priors)
    plan = ClassPlan(kernel, logistic, priors, memory, most, seed, columns, tree.patterns(frozen), limits)
    _warn_of_moved(plan, X)
    exact = _is_exact(method, X)
    with Watch(max_seconds, callbacks, progress=progress, max_steps=max_steps) as watch:
        facts: dict[str, Any] = {}
        if checkpoint is not None:
            facts = plan.facts() | {"method": "tvgp" if exact else "svgp", "library": backend_of(X).name}
            facts |= {"data": fingerprint_of(data)}
        fit = ClassFit(plan, data, Pieces(checkpoint, facts, watch, kind="fit_classification"), watch)
        fit.expect(exact=exact)
        with watch.keep_results(fit.result):
            fit.run(exact=exact)
            found = fit.result()
        watch.conclude(found.ending)
    return _warn_about(found, f"{found.ending}; let the fit run longer, or check the inputs")


def _is_exact(method: str, X: Array) -> bool:
    """Return whether the posterior is that of all rows."""
    if method == "tvgp" or (method == "auto" and X.shape[0] <= ALL_ROWS):
        return True
    if X.shape[0] == 1:
        raise ValueError(
            "X has one row, but inducing inputs need two, because one row is held out; pass method='tvgp'."
        )
    return False
