"""Regression with automatic model selection: hyperparameters from a sample, and the posterior from all rows."""

import math
import re
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from agp import tree
from agp._context import public
from agp.backend import Array, asarray_like, backend_of, to_numpy
from agp.checks import check_positive, check_weights, check_whole, known_of_rows
from agp.chunking import check_memory
from agp.errors import CheckpointError, ConvergenceWarning, Interrupted, NoSignalWarning
from agp.kernels import RBF, Kernel, Linear, Matern32, Matern52, Product, Sum
from agp.likelihoods import Gaussian, Likelihood
from agp.means import Mean
from agp.models import GPR, SVGP, valid_data
from agp.priors import Prior
from agp.repairs import outside
from agp.selection._collapse import Collapse, collapse
from agp.selection._exact import (
    LONG,
    Tuned,
    default_priors,
    evaluate_on,
    exact_gp,
    log_density_of,
    on_rows,
    search_hyperparameters,
    train_exact,
)
from agp.selection._result import Candidate, RegressionResult
from agp.selection._rows import Data, Rows, subsample_rows
from agp.selection._watch import Pieces, Watch
from agp.training import Callback, baseline, strip_addresses

SAMPLE, LARGER, EXACT_ROWS = 500, 2000, 4000
"""The number of rows for comparing starts and kernels, the number for training the best kernels, and the maximum number
of rows of an exact GP."""
ITERATIONS, LAST_ITERATIONS = 25, 8
"""The numbers of L-BFGS iterations on the larger sample, and of further iterations on `EXACT_ROWS` rows."""
MOST_ITERATIONS, EVIDENCE_COST = 400, 1.2e12
"""The maximum numbers of L-BFGS iterations and of operations if the larger sample contains all rows. The evidence and
its gradient take 4 N^3 operations."""
COMPARED_ROWS, FEW, MOST = 50_000, 1024, 4096
"""The numbers of rows and inducing inputs in a comparison, and the maximum number of inducing inputs."""
COST, MOST_ROWS = 1e13, 300_000
"""The maximum number of operations in the last pass, which takes 2 N M^2, and the maximum number of rows drawn."""
MIN_GAIN_PER_ROW = 0.003
"""The minimum gain from doubling the inducing inputs, in nats per held-out row."""
CLOSE, ALIKE, FAR = 0.02, 0.01, 0.3
"""Differences in nats per row. Kernels within `CLOSE` of the best are trained further. Kernels within `ALIKE` of it are
considered equally good. A difference above `FAR` cannot be due to the choice of the sample."""
CHANCE, SHARE, HELD_OUT_CHANCE = 2.0, 0.5, 5.0
"""A model has learned something if its gain in nats exceeds the number of hyperparameters by `CHANCE`, or if its gain
on the held-out rows exceeds `HELD_OUT_CHANCE`. The number of hyperparameters is capped at `SHARE` times the rows."""
SHARES = {"search": 0.15, "train": 0.45}
"""The latest end of a stage, as a fraction of the time limit."""
AMPLE, PART, SPEED = 8.0, 0.7, 2e10
"""Constants for a time limit. No stage is skipped if the remaining time exceeds `AMPLE` times that for search and
comparison. `PART` is the fraction of the remaining time for the last pass. `SPEED` is in operations per second."""
SOME, OVER, LEAST_SHARE = 2.0, 0.2, 0.25
"""Constants for a time limit. Training starts only if there is time for `SOME` evaluations of the evidence. An exact
posterior, which takes 2 N^3 operations, may take `OVER` times the limit even if no time is left. The last pass over all
rows is omitted unless it can use at least `LEAST_SHARE` of the inducing inputs of a comparison."""
NO_SIGNAL_VARIANCE = 1e-6
"""The latent function's variance if the inputs are uninformative, as a fraction of the targets' variance."""

REGRESSION_METHODS = ("auto", "gpr", "sgpr")
"""The methods of `fit_regression`."""
KERNELS: dict[str, type[Kernel]] = {"rbf": RBF, "matern52": Matern52, "matern32": Matern32}
"""The kernels that "auto" compares, in addition to the sum of the best of them and a linear kernel."""


@public(repairs=False)
def fit_regression(
    X: Array,
    y: Array,
    /,
    *,
    kernel: Kernel | Literal["auto"] = "auto",
    likelihood: Gaussian | None = None,
    mean_function: Any = None,
    priors: Mapping[str, Prior] | Literal["auto"] | None = "auto",
    method: Literal["auto", "gpr", "sgpr"] = "auto",
    most: int = MOST,
    tolerance: float = 1e-3,
    max_seconds: float | None = None,
    memory: float | None = None,
    seed: int = 0,
    callbacks: Iterable[Callback] = (),
    progress: bool = False,
    checkpoint: str | Path | None = None,
    weights: Array | None = None,
    noise: Array | None = None,
) -> RegressionResult:
    """Fit a Gaussian process to data, and choose its kernel and its number of inducing inputs.

    1. For each kernel, an exact GP on 500 rows is trained from several starts.
    2. The two best kernels are trained further with the exact evidence of 2,000 rows. Then the best kernel is trained
       with the exact evidence of 4,000 rows.
    3. For up to 4,000 rows, the posterior is exact, and models are compared by their leave-one-out predictions
       (`GPR.leave_one_out`).
    4. For more rows, a tenth of the rows, but at most 2,000, are held out. Before and after training, models are
       compared by the density of the held-out rows, which is computed with collapsed posteriors that have 1,024
       inducing inputs. (The bound would favour smooth kernels, which require few inducing inputs.)
    5. The posterior of all rows has up to 4,096 inducing inputs, which are random rows. Their number is doubled as long
       as the predictions improve. For more than 300,000 rows, the posterior has fewer inducing inputs or omits some
       rows. Training gives one pair of kernel and noise variances, and maximising the bound gives another; the model
       uses the pair that predicts the held-out rows better.

    Parameters
    ----------
    X, y
        Inputs [N, D] and targets [N] or [N, P]. All outputs share the kernel and the noise.
    kernel
        A kernel; "auto" compares `RBF`, `Matern52`, `Matern32`, and the best of these three plus a linear kernel.
    likelihood, mean_function
        See `agp.GPR.from_data`.
    priors
        A dictionary of priors whose keys are patterns for leaf names, or None. With "auto", lengthscales have a prior
        if there are fewer than five rows per column (see docs/starts-rates-priors.md).
    method
        "gpr" for the exact posterior, "sgpr" for the collapsed posterior. "auto" chooses by the number of rows.
    most
        Maximum number of inducing inputs.
    tolerance
        L-BFGS stops when 20 iterations gain less than a tenth of this value, in nats per row.
    max_seconds
        Maximum time in seconds; unlimited by default. When the time is up, the best result so far is returned.
    memory
        Budget in MiB for working arrays in the passes over the rows. The default suffices for the largest matrices.
    seed
        Seed for the random choice of rows.
    callbacks
        Functions called with a `Progress` after each L-BFGS iteration. If a callback returns True, the fit ends.
    progress
        Show a progress bar (requires the extra ``cli``).
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

    Returns
    -------
    RegressionResult
        The model is a `GPR`, or an `SVGP` that has the optimal q(u) and does not store the data.

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
        If no model was better than the mean of the targets.
    """
    X, y = valid_data(X, y)
    known = known_of_rows(X, 1, weights, None, noise)
    if weights is not None:
        check_weights(weights, X)
    data = Data(X, y, known["weights"], None if noise is None else known["noise"][:, 0])  # type: ignore[index]
    _check_choices(kernel, method, priors)
    if memory is not None:
        check_memory(memory)
    tolerance = check_positive("tolerance", tolerance)
    plan = _Plan(kernel, Gaussian() if likelihood is None else likelihood, mean_function, priors, memory, tolerance)
    exact = method == "gpr" or (method == "auto" and X.shape[0] <= EXACT_ROWS and not backend_of(X).is_lazy)
    most, seed = check_whole("most", most), check_whole("seed", seed, least=0)
    with Watch(max_seconds, callbacks, progress=progress) as watch:
        facts: dict[str, Any] = {}
        if checkpoint is not None:
            facts = plan.facts() | {"method": "gpr" if exact else "sgpr", "most": most, "seed": seed}
            arrays = tuple(x for x in data if x is not None)
            facts |= {"data": backend_of(X).checksum(arrays), "library": backend_of(X).name}
        rows = subsample_rows(data, X.shape[0] if exact else MOST_ROWS, seed, hold_out=not exact)
        fit = _Fit(plan, rows, most, Pieces(checkpoint, facts, watch), watch)
        try:
            fit.run_exact() if exact else fit.run_collapsed()
            found = fit.result()
        except CheckpointError as error:
            error.result = fit.result()
            raise
        except KeyboardInterrupt as interrupt:
            watch.interrupted = True
            raise Interrupted(fit.result()) from interrupt
    if not found.converged:
        text = f"the fit has not converged: {watch.ending()}; let the fit run longer."
        warnings.warn(text, ConvergenceWarning, stacklevel=outside())
    if not found.learned:
        warnings.warn(found.message, NoSignalWarning, stacklevel=outside())
    return found


def _check_choices(kernel: Any, method: Any, priors: Any) -> None:
    if not isinstance(kernel, Kernel) and not (isinstance(kernel, str) and kernel == "auto"):
        msg = f"kernel is {kernel!r}, but must be 'auto' or an instance of agp's Kernel."
        raise TypeError(msg)
    if not isinstance(method, str) or method not in REGRESSION_METHODS:
        msg = f"method is {method!r}, but must be 'auto', 'gpr' or 'sgpr'."
        raise ValueError(msg)
    if priors is not None and not isinstance(priors, Mapping) and not (isinstance(priors, str) and priors == "auto"):
        msg = f"priors is {priors!r}, but must be 'auto', None or a dictionary of priors."
        raise TypeError(msg)


class _Plan(NamedTuple):
    """The arguments of `fit_regression` that describe the model."""

    kernel: Any
    likelihood: Gaussian
    mean_function: Any
    priors: Any
    memory: float | None
    tolerance: float

    @property
    def least_gain(self) -> float:
        """L-BFGS stops when 20 iterations gain less than this many nats per row."""
        return 0.1 * self.tolerance

    def facts(self) -> dict[str, Any]:
        """Return the arguments as strings, by name. A fit resumes only if the checkpoint stores the same strings."""
        return {name: _describe_part(part) for name, part in self._asdict().items()}

    def kernels(self) -> dict[str, Kernel]:
        """Return the kernels to compare, by name."""
        if isinstance(self.kernel, str):
            return {name: kind() for name, kind in KERNELS.items()}
        return {type(self.kernel).__name__.lower(): self.kernel}

    def parts(self, kernel: Kernel, data: Data) -> dict[str, Any]:
        """Return the arguments of `GPR.from_data` other than the data and the kernel."""
        priors = self.priors
        if isinstance(priors, str):
            priors = default_priors(data.observations, kernel, data.X.shape[1])
        if isinstance(self.kernel, str) and isinstance(kernel, Sum):  # the kernel is now the first part of a sum
            priors = {
                re.sub(r"^kernel\.(?![*?])", "kernel.parts.0.", name): one for name, one in (priors or {}).items()
            }
        return {"likelihood": self.likelihood, "mean_function": self.mean_function, "priors": priors}


def _describe_part(part: Any) -> str:
    """Return an argument as text that depends on every bit of its leaves."""
    text = strip_addresses(f"{part!r}")[:2000]
    return f"{text} {_checksum(part)}" if isinstance(part, Kernel | Likelihood | Mean) else text


def _checksum(part: Any) -> str:
    """Return a checksum of all leaves."""
    found = 0
    for x in tree.leaves(part).values():
        found = zlib.crc32(np.asarray(x if isinstance(x, int | float) else to_numpy(x)).tobytes(), found)
    return f"{found:08x}"


class _Found(NamedTuple):
    """A posterior, and its entries in the result."""

    model: GPR | SVGP
    kernel: str
    kind: str
    bound: float
    """The bound for the posterior's rows, in nats."""
    targets: Data
    """The targets of these rows."""
    log_density: float
    held_out: bool
    """True if the log density is that of the held-out rows."""


class _Chosen(NamedTuple):
    """Hyperparameters, and their scores on the held-out rows."""

    name: str
    tuned: Tuned
    passed: Collapse | None = None
    settings: tuple[tuple[float, float], ...] = ()
    """Pairs of a kernel factor and a noise variance, the best first."""
    log_density: float = -float("inf")
    """The log density of the held-out rows with the first setting; for exact GPs, their score."""
    gain: float = float("inf")
    """The gain from the last doubling of the inducing inputs, or the lead of the exact GP if it exceeds `FAR`."""
    seconds: float = 0.0
    """The duration of the pass over the rows, in seconds per row."""


class _Fit:
    """A fit in progress; `result` can be called at any time."""

    def __init__(self, plan: _Plan, rows: Rows, most: int, pieces: Pieces, watch: Watch) -> None:
        self.plan, self.rows, self.pieces, self.watch = plan, rows, pieces, watch
        self.few = min(FEW, most, len(rows.order))
        self.most = min(most, len(rows.order))
        self.candidates: list[Candidate] = []
        self.best: Callable[[], _Found] = lambda: self._exact_of(self._initialise(), SAMPLE, "")

    # -- the two methods --------------------------------------------------------------------------------------------

    def run_exact(self) -> None:
        """Compare kernels on the sample, train the best on up to 2,000 rows, and keep the posterior of all rows."""
        found = self._search()
        rows = min(self.rows.total, LARGER)
        of_parts = isinstance(self.plan.kernel, (Product, Sum))  # these require more iterations than the search runs
        if (rows > SAMPLE or of_parts) and self._in_time(rows):
            iterations = ITERATIONS
            if rows == self.rows.total:
                iterations = max(ITERATIONS, min(MOST_ITERATIONS, int(EVIDENCE_COST / (4.0 * rows**3))))
            found = self._on_rows(found, rows)
            found = _sort_by_density([*found, *self._train(_close(found), rows, iterations)])
            self._keep_exact(found[0])
        if self.rows.total > rows and self._in_time(self.rows.total):
            found = self._on_rows(found[:1], self.rows.total)
            found = _sort_by_density([*found, *self._train(found, self.rows.total, LAST_ITERATIONS)])
        self._keep_exact(found[0])

    def _in_time(self, rows: int) -> bool:
        """Whether enough time is left to compute the evidence of `rows` rows and its gradient a few times."""
        if not self.watch.is_done and SOME * 4.0 * rows**3 > self.watch.left() * SPEED:
            self.watch.late = True
        return not self.watch.is_done

    def _on_rows(self, found: list[_Chosen], rows: int) -> list[_Chosen]:
        """Score the hyperparameters of the candidates on more rows; return the candidates, the best first."""
        data = self.rows.first(rows)
        judged = []
        with self.watch.stage("judge", data.X.shape[0]):
            for one in found:
                model = on_rows(one.tuned.model, data, self.plan.parts(one.tuned.model.kernel, data)["priors"])
                piece = f"judge {one.name} {rows} from {_checksum(model)}"
                tuned = self._find(piece, model) or self._store(piece, model, evaluate_on(model, data))
                judged.append(one._replace(tuned=tuned, log_density=tuned.score))
        return _sort_by_density(judged)

    def run_collapsed(self) -> None:
        """Compare kernels on the held-out rows with few inducing inputs, then choose the number of inducing inputs."""
        found = self._compare(self._search())
        ample = self.watch.left() > AMPLE * self.watch.elapsed()
        if not found:  # the result is the posterior of the sample
            return
        if not self.watch.is_done and not ample:
            best = found[0]
            trained = self._train([best], LARGER, ITERATIONS)[0].tuned
            found = [best._replace(tuned=trained, settings=((1.0, float(trained.model.likelihood.noise_variance)),))]
        if not self.watch.is_done and ample:
            found = self._compare(self._train(_close(found), LARGER, ITERATIONS), found)
        if not self.watch.is_done and ample and len(self.rows.order) > LARGER:
            found = self._compare(self._train(found[:1], EXACT_ROWS, LAST_ITERATIONS), found)
        if not self.watch.is_done:
            self._grow(_select_best(found))

    # -- hyperparameters --------------------------------------------------------------------------------------------

    def _search(self) -> list[_Chosen]:
        """Search for the hyperparameters of each kernel on the sample; return the candidates, the best first."""
        data = self.rows.first(SAMPLE)
        found: list[_Chosen] = []
        with self.watch.stage("search", data.X.shape[0], SHARES["search"]):
            for name, kernel in self.plan.kernels().items():
                if found and self.watch.stage_over:
                    break
                tuned = self._search_kernel(name, kernel, data)
                found = _sort_by_density([*found, _Chosen(name, tuned, log_density=tuned.score)])
                self._keep_sample(found[0])
            if isinstance(self.plan.kernel, str) and not self.watch.stage_over:
                found = _sort_by_density([*found, *self._with_linear(found[0], data)])
                self._keep_sample(found[0])
        self._note(found, data.X.shape[0])
        return found

    def _initialise(self) -> GPR:
        data = self.rows.first(SAMPLE)
        kernel = next(iter(self.plan.kernels().values()))
        return exact_gp(data, kernel=kernel, **self.plan.parts(kernel, data))

    def _search_kernel(self, name: str, kernel: Kernel, data: Data) -> Tuned:
        parts, piece = self.plan.parts(kernel, data), f"search {name}"
        settings = (self.watch, self.plan.least_gain, lambda: self.rows.first(COMPARED_ROWS).X)
        model = exact_gp(data, kernel=kernel, **parts)
        found = self._find(piece, model)
        return found or self._store(piece, model, search_hyperparameters(kernel, data, parts, *settings))

    def _train_model(self, piece: str, model: Any, data: Data, iterations: int) -> Tuned:
        """Train a model for at most this many iterations, or take the result from the checkpoint."""
        piece = f"{piece} from {_checksum(model)}"
        settings = (iterations, self.watch, self.plan.least_gain)
        return self._find(piece, model) or self._store(piece, model, train_exact(model, data, *settings))

    def _find(self, piece: str, model: Any) -> Tuned | None:
        """Return the model with the result from the checkpoint, or None if it is not there."""
        return self.pieces.find(piece, lambda done: Tuned.of(model, done))

    def _store(self, piece: str, model: Any, found: Tuned) -> Tuned:
        """Store a result in the checkpoint, and return it as it would be read from there."""
        return Tuned.of(model, self.pieces.store(piece, found.pieces()))

    def _with_linear(self, best: _Chosen, data: Data) -> list[_Chosen]:
        """Add a linear kernel to the best kernel; return the sum if its gain is not due to chance."""
        kernel = best.tuned.model.kernel + Linear.centred(data.repeat_rows()[0])
        model = on_rows(best.tuned.model, data, self.plan.parts(kernel, data)["priors"], kernel)
        name = f"{best.name} + linear"
        tuned = self._train_model(f"search {name}", model, data, LONG)
        gain = data.observations * (tuned.evidence - best.tuned.evidence)
        return [_Chosen(name, tuned, log_density=tuned.score)] if gain > data.X.shape[1] + CHANCE else []

    def _train(self, found: list[_Chosen], rows: int, iterations: int) -> list[_Chosen]:
        """Train the hyperparameters of each candidate with the exact evidence of more rows."""
        data = self.rows.first(rows)
        done = data.X.shape[0]
        more: list[_Chosen] = []
        with self.watch.stage("train", done, SHARES["train"]):
            for one in found:
                if more and self.watch.stage_over:
                    break
                start = one.tuned.model
                model = on_rows(start, data, self.plan.parts(start.kernel, data)["priors"])
                tuned = self._train_model(f"train {one.name} {done}", model, data, iterations)
                more.append(_Chosen(one.name, tuned, log_density=tuned.score))
        self._note(more, done)
        return more

    # -- posteriors -------------------------------------------------------------------------------------------------

    def _compare(self, found: list[_Chosen], before: Sequence[_Chosen] = ()) -> list[_Chosen]:
        """Score candidates on the held-out rows; return them with the earlier candidates, the best first."""
        both = [*before]
        rows = self._rows_to_compare(len(found))
        data, held = self.rows.first(rows), self.rows.held_out()
        with self.watch.stage("compare", data.X.shape[0]):
            for one in found:
                if both and self.watch.is_done:
                    break
                begun = self.watch.elapsed()
                try:
                    model = one.tuned.model
                    passed = collapse(model, data.X[: self.few, :], data, held, self.plan.memory, inside=False)
                    seconds = (self.watch.elapsed() - begun) / passed.rows
                    scored = self._score_candidate(one, passed)._replace(seconds=seconds)
                except ArithmeticError:  # the precision of the dtype is too low
                    continue
                both = _sort_by_density([*both, scored])
                self._keep_collapsed(both[0])
        return [*both[:1], *(one._replace(passed=None) for one in both[1:])]  # free the large arrays of the others

    def _rows_to_compare(self, passes: int) -> int:
        rows = min(COMPARED_ROWS, len(self.rows.order))
        if self.watch.limit is None:
            return rows
        operations = SHARES["search"] * self.watch.limit * SPEED
        return max(min(rows, 2 * self.few), min(rows, int(operations / (2.0 * passes * self.few**2))))

    def _score_candidate(self, one: _Chosen, passed: Collapse) -> _Chosen:
        factor, noise, bound = passed.profile()
        settings = ((1.0, float(passed.model.likelihood.noise_variance)), (factor, noise))
        scored = sorted(((passed.log_density(*setting), setting) for setting in settings), reverse=True)
        density, setting = scored[0]
        gain = density - passed.log_density(*setting, count=max(1, self.few // 2))
        behind = one.tuned.log_density - density
        gain = behind if behind > FAR else gain  # too few inducing inputs for the signal
        tuned, rows = one.tuned, one.tuned.model.X.shape[0]
        self.candidates.append(Candidate(one.name, rows, tuned.evidence, tuned.log_density, bound, density))
        return one._replace(passed=passed, settings=tuple(at for _, at in scored), log_density=density, gain=gain)

    def _grow(self, best: _Chosen) -> None:
        """Compute the posterior with the best number of inducing inputs, on all rows or on fewer rows."""
        M, rows = self._affordable(best), self.rows.total
        if not M:
            self.watch.late = True
            return
        if self.few < M < self.most and self.watch.limit is None and self._pays(best, self._part()):
            M, rows = self.most, self._part()
        with self.watch.stage("posterior", rows):
            Z, held = self.rows.first(M).X, self.rows.held_out()
            inside = rows == self.rows.total
            data = self.rows.data if inside else self.rows.first(rows)
            try:
                passed = collapse(best.tuned.model, Z, data, held, self.plan.memory, inside=inside)
            except ArithmeticError:  # the precision of the dtype is too low
                return
            setting, density = _best_setting(passed, best.settings)
            count = M
            while count >= 2 * self.few and density - passed.log_density(*setting, count=count // 2) < MIN_GAIN_PER_ROW:
                count //= 2
            self.best = lambda: self._collapsed_candidate(best, passed, setting, count, density)

    def _part(self) -> int:
        """Return the number of rows for which the maximum number of inducing inputs is affordable."""
        return min(len(self.rows.order), int(COST / (2.0 * self.most**2)))

    def _pays(self, best: _Chosen, rows: int) -> bool:
        """Whether the maximum number of inducing inputs on `rows` rows is better than a smaller number on all rows.

        Each doubling of the number of inducing inputs gains about half as much as the previous one. Estimating the
        weights of M inducing inputs from N rows lowers the log density of another row by about M / 2N nats.
        """
        doublings = math.log2(self.most / self.few)
        return best.gain * 0.5**doublings > self.most / (2.0 * rows)

    def _affordable(self, best: _Chosen) -> int:
        """Return a number of inducing inputs that is affordable and worth the time; 0 if a pass would take too long."""
        few = self.few
        M = min(self.most, few * 2 ** _doublings(best.gain), int((COST / (2.0 * self.rows.total)) ** 0.5))
        M = M if 1.25 * few <= M else few
        if self.watch.limit is None:
            return M
        ratio = PART * max(self.watch.left(), 0.0) / (best.seconds * self.rows.total)
        in_time = int(few * ratio**0.5)
        if in_time >= few:
            return min(M, in_time) if 1.25 * few <= in_time else few
        return in_time if in_time >= LEAST_SHARE * few else 0

    # -- results ----------------------------------------------------------------------------------------------------

    def _note(self, found: list[_Chosen], rows: int) -> None:
        """Record the candidates if no rows are held out."""
        if not len(self.rows.held):
            self.candidates += [Candidate(one.name, rows, *one.tuned[1:]) for one in found]

    def _keep_sample(self, one: _Chosen) -> None:
        self.best = lambda: self._exact_of(one.tuned.model, SAMPLE, one.name)

    def _keep_exact(self, one: _Chosen) -> None:
        """Keep the exact posterior of all rows, or of as many as the time limit allows."""
        rows = self.rows.total
        if self.watch.limit is not None:
            seconds = max(self.watch.left(), OVER * self.watch.limit)
            rows = max(SAMPLE, min(rows, int((seconds * SPEED / 2.0) ** (1.0 / 3.0))))
        self.best = lambda: self._exact_of(one.tuned.model, rows, one.name)

    def _keep_collapsed(self, one: _Chosen) -> None:
        self.best = lambda: self._collapsed_candidate(one, one.passed, one.settings[0], self.few, one.log_density)

    def _exact_of(self, model: Any, rows: int, name: str) -> _Found:
        """Compute the exact posterior of the first rows in the random order, or of all rows."""
        data = self.rows.data if rows >= self.rows.total else self.rows.first(rows)
        parts = {"likelihood": model.likelihood, "mean_function": model.mean_function, "priors": dict(model.priors)}
        found = exact_gp(data, kernel=model.kernel, **parts)
        kind, bound = f"the exact posterior of {data.X.shape[0]:,} rows", float(found.bound(data.X, data.y)[0])
        return _Found(found, name, kind, bound, data, log_density_of(found), held_out=False)

    def _collapsed_candidate(
        self, one: _Chosen, passed: Any, setting: tuple[float, float], count: int, density: float
    ) -> _Found:
        model, bound = passed.posterior(*setting, count)
        seen = self.rows.data if passed.inside else self.rows.targets_seen(passed.rows)
        kind = f"a collapsed posterior with {count:,} inducing inputs on {seen.y.shape[0]:,} rows"
        return _Found(model, one.name, kind, bound, seen, density, held_out=True)

    def result(self) -> RegressionResult:
        """Return the best result so far."""
        best = self.best()
        watch, model = self.watch, best.model
        parameters = sum(
            np.prod(x.shape, dtype=int)
            for name, x in tree.leaves(model, "parameter").items()
            if not {"posterior", "inducing"} & {*name.split(".")}
        )
        count, every = best.targets.observations, self.rows.data
        gain = best.bound - count * _baseline(model.likelihood, best.targets)
        learned = gain > min(parameters, SHARE * count) + CHANCE or (best.held_out and self._predicts(best.log_density))
        ending = watch.ending()
        learned = learned or bool(ending)  # a fit that ended early may still learn
        message = f"{best.kernel}, {best.kind}" + (f"; {ending}" if ending else "")
        if not learned:
            model, kept = self._constant(model)
            message = (
                f"the inputs do not predict the targets: the best of {len(self.candidates)} models has {parameters} "
                f"hyperparameters and gains {gain:.1f} nats over the mean; {kept} is returned"
            )
        return RegressionResult(
            model,
            watch.steps,
            watch.elapsed(),
            {"bound": watch.bounds},
            converged=not ending,
            message=message,
            candidates=self.candidates,
            kernel=best.kernel,
            stages=watch.stages,
            bound=best.bound * every.observations / count,
            baseline=_baseline(model.likelihood, every),
            log_density=best.log_density,
            learned=bool(learned),
        )

    def _predicts(self, log_density: float) -> bool:
        """Whether the model predicts the held-out rows better than the mean and variance of the other rows do."""
        mean, variance = self.rows.first(COMPARED_ROWS).moments()
        left_out = self.rows.held_out()
        held, weights = left_out.targets_on_host()
        variance = np.maximum(variance, np.finfo(np.float64).tiny)
        squares = (held - mean) ** 2 / variance
        alone = -0.5 * float(np.average(np.sum(np.log(2.0 * np.pi * variance) + squares, axis=1), weights=weights))
        return left_out.observations * (log_density - alone) > HELD_OUT_CHANCE

    def _unknown_noise(self, variance: float) -> float:
        """Return the part of the targets' variance that is not due to known noise, or a small part of it if none is."""
        known = self.rows.data.noise
        average = 0.0 if known is None else float(backend_of(known).xp.mean(known))
        return max(variance - average, NO_SIGNAL_VARIANCE * variance)

    def _constant(self, best: GPR | SVGP) -> tuple[GPR | SVGP, str]:
        """Return a model that predicts the mean and the variance of the targets, and a phrase that describes it.

        If the user's mean function is not a constant, return the best model instead.
        """
        started = self._initialise()
        if "mean_function.value" not in tree.leaves(started):
            return best, "the best of them"
        X, one = self.rows.first(SAMPLE).X, self.rows.first(1)
        parts = {"likelihood": started.likelihood, "mean_function": started.mean_function}
        level, variances = self.rows.data.moments()
        spread = float(np.mean(variances)) or 1.0
        kernel = started.kernel
        xp = backend_of(X).xp
        average, least = float(xp.mean(kernel.diag(X)[0])), 2.0 * float(xp.finfo(X.dtype).smallest_normal)
        if average > 0.0:  # else the function is zero at the data
            kernel = kernel.scale_by(asarray_like(np.asarray(max(NO_SIGNAL_VARIANCE * spread, least) / average), X))
        leaves = {
            "likelihood.noise_variance": asarray_like(np.asarray(self._unknown_noise(spread)), X),
            "mean_function.value": asarray_like(level, X),
        }
        model = tree.with_leaves(GPR.from_data(one.X, one.y, kernel=kernel, **parts), leaves)
        return model, "a model that predicts the mean"


def _doublings(gain: float) -> int:
    """Return how many further doublings gain `MIN_GAIN_PER_ROW`, if each gains half as much as the one before.

    `gain` is the gain from the last doubling.
    """
    return 0 if gain < MIN_GAIN_PER_ROW else int(math.log2(min(gain, 1.0) / MIN_GAIN_PER_ROW))


def _sort_by_density(found: Iterable[_Chosen]) -> list[_Chosen]:
    """Sort candidates by their log density, the best first."""
    return sorted(found, key=lambda one: -one.log_density)


def _select_best(found: list[_Chosen]) -> _Chosen:
    """Return the candidate whose exact GP predicts best, among those with a log density within `ALIKE` of the first."""
    as_good = [one for one in found if one.log_density >= found[0].log_density - ALIKE]
    return max(as_good, key=lambda one: one.tuned.log_density)


def _close(found: list[_Chosen]) -> list[_Chosen]:
    """Return the best candidate, and also the second best if its log density is within `CLOSE` of the best."""
    return [one for one in found if one.log_density >= found[0].log_density - CLOSE][:2]


def _best_setting(passed: Collapse, settings: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], float]:
    """Return the kernel factor and noise variance that predict the held-out rows best, and their log density.

    The settings, which were found with fewer inducing inputs, are compared with each other and with their geometric
    mean.
    """
    middle = tuple(float(np.exp(np.mean(np.log(column)))) for column in zip(*settings, strict=True))
    density, setting = max((passed.log_density(*at), at) for at in {*settings, middle})
    return setting, density


def _baseline(likelihood: Likelihood, targets: Data) -> float:
    """Return the log density per observation of a normal distribution with the mean and variance of the targets."""
    noise = None if targets.noise is None else targets.noise[:, None]
    per_row = baseline(likelihood, targets.y, targets.weights, None, noise)
    return per_row if targets.weights is None else per_row * targets.y.shape[0] / targets.observations
