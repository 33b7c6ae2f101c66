"""Classification with automatic model selection: hyperparameters from a sample, and the posterior of all rows."""

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from agp import tree
from agp._context import public
from agp.backend import Array, backend_of
from agp.checks import check_weights, check_whole, known_of_rows
from agp.chunking import check_memory
from agp.errors import ConvergenceWarning, NoSignalWarning
from agp.kernels import Kernel
from agp.likelihoods import Likelihood
from agp.models import valid_data
from agp.priors import Prior
from agp.repairs import outside
from agp.selection._class_fit import ALL_ROWS, MOST, ClassFit, ClassPlan
from agp.selection._given import Data, check_kernel, check_priors_or_auto
from agp.selection._trial import ClassificationResult
from agp.selection._watch import Pieces, Watch
from agp.training import Callback, fingerprint_of

CLASSIFICATION_METHODS = ("auto", "tvgp", "svgp")
"""The methods of `fit_classification`."""
KIND = "fit_classification"


@public(repairs=False)
def fit_classification(
    X: Array,
    y: Array,
    /,
    *,
    likelihood: Likelihood,
    kernel: Kernel | Literal["auto"] = "auto",
    priors: Mapping[str, Prior] | Literal["auto"] | None = "auto",
    frozen: str | Iterable[str] = (),
    method: Literal["auto", "tvgp", "svgp"] = "auto",
    most: int = MOST,
    max_seconds: float | None = None,
    memory: float | None = None,
    seed: int = 0,
    callbacks: Iterable[Callback] = (),
    progress: bool = False,
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

    The search runs on the host in float64, and its start is the same for all libraries.

    Parameters
    ----------
    X, y
        Inputs [N, D] and labels [N] or [N, 1], which are numbers from 0 to C - 1.
    likelihood
        `Softmax`, or `Bernoulli` with the link "logit".
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
    memory
        Budget in MiB for working arrays in the passes over the rows.
    seed
        Seed for the random choice of rows.
    callbacks
        Functions called with a `Progress` after each iteration of the search and after each posterior. If a callback
        returns True, the fit ends.
    progress
        Show a progress bar (requires the extra ``cli``).
    checkpoint
        A file that stores the trained kernels. A fit with the same data and arguments resumes from this file and gives
        the same numbers as an uninterrupted fit.
    weights
        The number of observations [N] that each row represents; 1 by default.

    Returns
    -------
    ClassificationResult
        The model is a `TVGP`, an `Ensemble`, or an `SVGP` that does not store the data.

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
        If the time limit or a callback ended the fit.
    agp.errors.NoSignalWarning
        If no model was better than the frequencies of the classes.
    """
    X, y = valid_data(X, y)
    known = known_of_rows(X, 1, weights, None, None)
    if weights is not None:
        check_weights(weights, X)
    _check_choices(likelihood, kernel, method, priors)
    _check_labels(likelihood, y)
    data = Data(X, y, known["weights"])
    if memory is not None:
        check_memory(memory)
    if isinstance(kernel, Kernel):
        kernel = tree.place_leaves(kernel, X)
    most, seed = check_whole("most", most), check_whole("seed", seed, least=0)
    plan = ClassPlan(kernel, likelihood, priors, memory, most, seed, tree.patterns(frozen))
    exact = _is_exact(method, X)
    with Watch(max_seconds, callbacks, progress=progress) as watch:
        facts: dict[str, Any] = {}
        if checkpoint is not None:
            facts = plan.facts() | {"method": "tvgp" if exact else "svgp", "library": backend_of(X).name}
            facts |= {"data": fingerprint_of(data)}
        fit = ClassFit(plan, data, Pieces(checkpoint, facts, watch, kind=KIND), watch)
        with watch.keep_results(fit.result):
            fit.run(exact=exact)
            found = fit.result()
    if not found.converged:
        text = f"the fit has not converged: {found.ending}; let the fit run longer, or check the inputs."
        warnings.warn(text, ConvergenceWarning, stacklevel=outside())
    if not found.learned:
        warnings.warn(found.message, NoSignalWarning, stacklevel=outside())
    return found


def _check_labels(likelihood: Likelihood, y: Array) -> None:
    likelihood.latents(y.shape[1])
    if y.shape[1] != 1:
        msg = f"y has shape {tuple(y.shape)}, but must have one column of labels."
        raise ValueError(msg)
    likelihood.check_targets(y)


def _is_exact(method: str, X: Array) -> bool:
    """Return whether the posterior is that of all rows."""
    if method == "tvgp" or (method == "auto" and X.shape[0] <= ALL_ROWS):
        return True
    if X.shape[0] == 1:
        msg = "X has one row, but inducing inputs need two, because one row is held out; pass method='tvgp'."
        raise ValueError(msg)
    return False


def _check_choices(likelihood: Any, kernel: Any, method: Any, priors: Any) -> None:
    if not isinstance(likelihood, Likelihood) or not likelihood.is_logistic:
        msg = f"likelihood is {likelihood!r}, but must be Softmax, or Bernoulli with link='logit'; use agp.fit."
        raise TypeError(msg)
    check_kernel(kernel)
    if not isinstance(method, str) or method not in CLASSIFICATION_METHODS:
        msg = f"method is {method!r}, but must be 'auto', 'tvgp' or 'svgp'."
        raise ValueError(msg)
    check_priors_or_auto(priors)
