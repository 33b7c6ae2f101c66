"""Regression with a model chosen from the data: hyperparameters from a sample, and the posterior from all rows."""

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
from agp.checks import check_positive, check_whole
from agp.chunking import check_memory
from agp.errors import CheckpointError, ConvergenceWarning, Interrupted, NoSignalWarning
from agp.kernels import RBF, Kernel, Linear, Matern32, Matern52, Product, Sum
from agp.likelihoods import Gaussian, Likelihood
from agp.means import Mean
from agp.models import GPR, valid_data, valid_weights
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

__all__ = ["EXACT_ROWS", "fit_regression"]

SAMPLE, LARGER, EXACT_ROWS = 500, 2000, 4000
"""Rows that compare starts and kernels; rows that train the best; and the most rows of an exact GP."""
ITERATIONS, LAST_ITERATIONS = 25, 8
"""Iterations of L-BFGS on the larger sample, and then on `EXACT_ROWS`."""
MOST_ITERATIONS, EVIDENCE_COST = 400, 1.2e12
"""The most iterations, and operations, of L-BFGS if the larger sample is all rows; an evidence with its gradient takes
4 N^3 operations."""
COMPARED_ROWS, FEW, MOST = 50_000, 1024, 4096
"""Rows and inducing inputs of a comparison, and the most inducing inputs."""
COST, MOST_ROWS = 1e13, 300_000
"""The most operations of the last pass, which takes 2 N M^2; and the most rows that are drawn."""
MIN_GAIN_PER_ROW = 0.003
"""What further inducing inputs must gain, in nats per row held out."""
CLOSE, ALIKE, FAR = 0.02, 0.01, 0.3
"""In nats per row: kernels closer than the first to the best are trained further, those closer than the second count as
equal, and a difference above the third is not due to the sample."""
CHANCE, SHARE, HELD_OUT_CHANCE = 2.0, 0.5, 5.0
"""A model has learned something if it gains so many nats more than it has hyperparameters (counted up to this share of
the rows), or so many nats on the rows held out."""
SHARES = {"search": 0.15, "train": 0.45}
"""When these stages end at the latest, in shares of the time limit."""
AMPLE, PART, SPEED = 8.0, 0.7, 2e10
"""With a time limit: how many times the time of search and comparison must be left to leave nothing out; the share of
the rest for the last pass; and operations per second, as a first guess."""
SOME, OVER, LEAST_SHARE = 2.0, 0.2, 0.25
"""With a time limit: how many evidences must fit in the rest to start with them; by which share of it the 2 N^3
operations of an exact posterior may exceed it; and the least share of the inducing inputs of a comparison for which a
pass over all rows is made."""
NO_SIGNAL_VARIANCE = 1e-6
"""The variance of the latent function if the inputs are uninformative, in shares of that of the targets."""

KERNELS: dict[str, type[Kernel]] = {"rbf": RBF, "matern52": Matern52, "matern32": Matern32}
"""What "auto" compares, and then the best of these with a linear part."""


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
) -> RegressionResult:
    """Fit a Gaussian process to data, and choose its kernel and its number of inducing inputs.

    1. Search: train exact GPs of 500 rows from several starts, for each kernel.
    2. Train: train the hyperparameters of the two best kernels by the exact evidence of 2,000 rows, and those of the
       best kernel by that of 4,000.
    3. With up to 4,000 rows, the posterior is exact, and models are compared by how well the other rows predict each
       row (`GPR.leave_one_out`).
    4. With more rows, a tenth of them, but at most 2,000, is held out. Models are compared by the density of these rows
       under collapsed posteriors with 1,024 inducing inputs, before and after training. (The bound would favour smooth
       kernels, which need few inducing inputs.)
    5. The posterior of all rows has up to 4,096 inducing inputs, which are random rows; their number doubles as long as
       that improves the predictions. With more than 300,000 rows, it uses fewer inducing inputs or omits some rows. The
       noise and kernel variance come from training or from the highest bound, whichever predicts the held-out rows
       better.

    Parameters
    ----------
    X, y
        Inputs [N, D] and targets [N] or [N, P], which share kernel and noise.
    kernel
        A kernel; "auto" compares `RBF`, `Matern52`, `Matern32`, and the best of these with a linear part.
    likelihood, mean_function
        As `agp.GPR.from_data`.
    priors
        Priors by pattern of leaf names, or None. "auto" gives lengthscales a prior if there are fewer than five rows
        for each column (see docs/starts-rates-priors.md).
    method
        "gpr" is the exact posterior, "sgpr" the collapsed one; "auto" chooses by the number of rows.
    most
        The most inducing inputs.
    tolerance
        In nats per row: L-BFGS ends when 20 iterations gain less than a tenth of it.
    max_seconds
        Maximum time in seconds; unlimited by default. When the time is up, the best result so far is returned.
    memory
        Budget for working arrays of the passes over the rows in MiB; by default what the largest matrices need.
    seed
        Seed of the drawn rows.
    callbacks
        Called with a `Progress` after each iteration of L-BFGS; if one returns True, the fit ends.
    progress
        Show a progress bar (needs the extra ``cli``).
    checkpoint
        A file that stores finished stages. A fit with the same data and arguments resumes from it, with the same
        numbers.
    weights
        The number of observations [N] that each row counts as, as in `agp.GPR.from_data`; one each by default. Averages
        and nats per row then refer to observations. Exact repetitions are evidence against noise: if the weights sum to
        more than N and rows with the same inputs never differ, the noise goes to zero. Scale importance weights to a
        mean of 1.

    Returns
    -------
    RegressionResult
        The model is a `GPR`, or an `SVGP` with the optimal q(u) and without the data.

    Raises
    ------
    TypeError, ValueError
        If data, parts or arguments do not fit each other.
    agp.errors.CheckpointError
        If the checkpoint cannot be written, first at the start; `.result` holds the best model so far.
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
    data = Data(X, y, valid_weights(weights, X))
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
        text = f"the fit has not converged: {watch.ending()}. Give it more."
        warnings.warn(text, ConvergenceWarning, stacklevel=outside())
    if not found.learned:
        warnings.warn(found.message, NoSignalWarning, stacklevel=outside())
    return found


def _check_choices(kernel: Any, method: Any, priors: Any) -> None:
    if not isinstance(kernel, Kernel) and not (isinstance(kernel, str) and kernel == "auto"):
        msg = f"kernel is {kernel!r}, but must be 'auto' or an instance of agp's Kernel."
        raise TypeError(msg)
    if not isinstance(method, str) or method not in ("auto", "gpr", "sgpr"):
        msg = f"method is {method!r}, but must be 'auto', 'gpr' or 'sgpr'."
        raise ValueError(msg)
    if priors is not None and not isinstance(priors, Mapping) and not (isinstance(priors, str) and priors == "auto"):
        msg = f"priors is {priors!r}, but must be 'auto', None or a dictionary of priors."
        raise TypeError(msg)


class _Plan(NamedTuple):
    """The arguments of the user."""

    kernel: Any
    likelihood: Gaussian
    mean_function: Any
    priors: Any
    memory: float | None
    tolerance: float

    @property
    def least_gain(self) -> float:
        """In nats per row: L-BFGS ends when 20 iterations gain less."""
        return 0.1 * self.tolerance

    def facts(self) -> dict[str, Any]:
        """What must be the same to resume from a checkpoint, by the names of the arguments."""
        return {name: _describe_part(part) for name, part in self._asdict().items()}

    def kernels(self) -> dict[str, Kernel]:
        """The kernels to be compared, by name."""
        if isinstance(self.kernel, str):
            return {name: kind() for name, kind in KERNELS.items()}
        return {type(self.kernel).__name__.lower(): self.kernel}

    def parts(self, kernel: Kernel, data: Data) -> dict[str, Any]:
        """The other arguments of `GPR.from_data`."""
        priors = self.priors
        if isinstance(priors, str):
            priors = default_priors(data.observations, kernel, data.X.shape[1])
        if isinstance(self.kernel, str) and isinstance(kernel, Sum):  # the kernel became a part of a sum
            priors = {
                re.sub(r"^kernel\.(?![*?])", "kernel.parts.0.", name): one for name, one in (priors or {}).items()
            }
        return {"likelihood": self.likelihood, "mean_function": self.mean_function, "priors": priors}


def _describe_part(part: Any) -> str:
    """A part as text, the numbers of its leaves to the last bit."""
    text = strip_addresses(f"{part!r}")[:2000]
    if not isinstance(part, Kernel | Likelihood | Mean):
        return text
    return f"{text} {_checksum(part)}"


def _checksum(part: Any) -> str:
    """Of the numbers of all leaves."""
    found = 0
    for x in tree.leaves(part).values():
        found = zlib.crc32(np.asarray(x if isinstance(x, int | float) else to_numpy(x)).tobytes(), found)
    return f"{found:08x}"


class _Found(NamedTuple):
    """A posterior, and facts for the result."""

    model: Any
    kernel: str
    kind: str
    bound: float
    """In nats, of the rows of the posterior."""
    targets: Data
    """Their targets."""
    log_density: float
    held_out: bool
    """Whether the log density is of the rows held out."""


class _Chosen(NamedTuple):
    """Hyperparameters, and how well they predict the rows held out."""

    name: str
    tuned: Tuned
    passed: Collapse | None = None
    settings: tuple[tuple[float, float], ...] = ()
    """Factors of the kernel and noise variances, the best first."""
    log_density: float = -float("inf")
    """Of the rows held out, with the first setting; for exact GPs their score."""
    gain: float = float("inf")
    """Gain of the last doubling of the inducing inputs; or the lead of the exact GP of the sample, if it is far."""
    seconds: float = 0.0
    """Time of the pass over the rows, per row."""


class _Fit:
    """A fit in progress; `result` works at any time."""

    def __init__(self, plan: _Plan, rows: Rows, most: int, pieces: Pieces, watch: Watch) -> None:
        self.plan, self.rows, self.pieces, self.watch = plan, rows, pieces, watch
        self.few = min(FEW, most, len(rows.order))
        self.most = min(most, len(rows.order))
        self.candidates: list[Candidate] = []
        self.best: Callable[[], _Found] = lambda: self._exact_of(self._initialise(), SAMPLE, "")

    # -- the two methods --------------------------------------------------------------------------------------------

    def run_exact(self) -> None:
        """Compare kernels on the sample, train them on up to 2,000 rows; then the posterior of all rows."""
        found = self._search()
        rows = min(self.rows.total, LARGER)
        of_parts = isinstance(self.plan.kernel, (Product, Sum))  # these need more iterations than the search has
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
        """Whether there is time for some evidences of so many rows, and their gradients."""
        if not self.watch.is_done and SOME * 4.0 * rows**3 > self.watch.left() * SPEED:
            self.watch.late = True
        return not self.watch.is_done

    def _on_rows(self, found: list[_Chosen], rows: int) -> list[_Chosen]:
        """The same hyperparameters, judged by more rows, the best first."""
        data = self.rows.first(rows)
        judged = []
        with self.watch.stage("judge", data.X.shape[0]):
            for one in found:
                model = on_rows(one.tuned.model, data, self.plan.parts(one.tuned.model.kernel, data)["priors"])
                piece = f"judge {one.name} {rows} from {_checksum(model)}"
                tuned = self._run_piece(piece, model, evaluate_on, model, data)
                judged.append(one._replace(tuned=tuned, log_density=tuned.score))
        return _sort_by_density(judged)

    def run_collapsed(self) -> None:
        """Compare kernels by the rows held out, with few inducing inputs; then as many inducing inputs as pay."""
        found = self._compare(self._search())
        ample = self.watch.left() > AMPLE * self.watch.elapsed()
        if not found:  # the posterior of the sample is the result
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
        """The hyperparameters of each kernel on the sample, the best first."""
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
        parts = self.plan.parts(kernel, data)

        def among() -> Array:
            return self.rows.first(COMPARED_ROWS).X

        settings = (self.watch, self.plan.least_gain, among)
        model = exact_gp(data, kernel=kernel, **parts)
        return self._run_piece(f"search {name}", model, search_hyperparameters, kernel, data, parts, *settings)

    def _train_model(self, piece: str, model: Any, data: Data, iterations: int) -> Tuned:
        """After so many iterations."""
        settings = (iterations, self.watch, self.plan.least_gain)
        return self._run_piece(f"{piece} from {_checksum(model)}", model, train_exact, model, data, *settings)

    def _run_piece(self, piece: str, model: Any, work: Callable[..., Tuned], *arguments: Any) -> Tuned:
        """``work(*arguments)``, or its result from the checkpoint, put into the model."""
        return self.pieces(piece, lambda: work(*arguments).pieces(), lambda done: Tuned.of(model, done))

    def _with_linear(self, best: _Chosen, data: Data) -> list[_Chosen]:
        """A kernel with a linear part, if it gains more than by chance."""
        kernel = best.tuned.model.kernel + Linear.centred(data.repeat_rows()[0])
        model = on_rows(best.tuned.model, data, self.plan.parts(kernel, data)["priors"], kernel)
        name = f"{best.name} + linear"
        tuned = self._train_model(f"search {name}", model, data, LONG)
        gain = data.observations * (tuned.evidence - best.tuned.evidence)
        return [_Chosen(name, tuned, log_density=tuned.score)] if gain > data.X.shape[1] + CHANCE else []

    def _train(self, found: list[_Chosen], rows: int, iterations: int) -> list[_Chosen]:
        """Train the hyperparameters of each by the exact evidence of more rows."""
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
        """Judge each by the rows held out, the best first, together with those judged before."""
        compared: list[_Chosen] = []
        rows = self._rows_to_compare(len(found))
        data, held = self.rows.first(rows), self.rows.held_out()
        with self.watch.stage("compare", data.X.shape[0]):
            for one in found:
                if (compared or before) and self.watch.is_done:
                    break
                begun = self.watch.elapsed()
                try:
                    model = one.tuned.model
                    passed = collapse(model, data.X[: self.few, :], data, held, self.plan.memory, inside=False)
                    seconds = (self.watch.elapsed() - begun) / passed.rows
                    compared.append(self._score_candidate(one, passed)._replace(seconds=seconds))
                except ArithmeticError:  # the precision of the dtype is too low
                    continue
                if not before:
                    self._keep_collapsed(_sort_by_density(compared)[0])
        both = _sort_by_density([*before, *compared])
        if not both:
            return []
        self._keep_collapsed(both[0])
        return [both[0], *(one._replace(passed=None) for one in both[1:])]  # a pass holds large arrays

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
        best, (density, setting) = scored[0][0], scored[0]
        gain = best - passed.log_density(*setting, count=max(1, self.few // 2))
        behind = one.tuned.log_density - best
        gain = behind if behind > FAR else gain  # too few inducing inputs to see the signal
        tuned, rows = one.tuned, one.tuned.model.X.shape[0]
        self.candidates.append(Candidate(one.name, rows, tuned.evidence, tuned.log_density, bound, density))
        return one._replace(passed=passed, settings=tuple(at for _, at in scored), log_density=density, gain=gain)

    def _grow(self, best: _Chosen) -> None:
        """The posterior with as many inducing inputs as pay, on all rows, or more of them on fewer rows."""
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
        """The number of rows that the most inducing inputs can afford."""
        return min(len(self.rows.order), int(COST / (2.0 * self.most**2)))

    def _pays(self, best: _Chosen, rows: int) -> bool:
        """Whether the most inducing inputs on so many rows gain more than fewer on all rows.

        Each doubling gains about half of the previous one. Estimating the weights of M inducing inputs from N rows
        costs the log density of another row about M / 2N nats.
        """
        doublings = math.log2(self.most / self.few)
        return best.gain * 0.5**doublings > self.most / (2.0 * rows)

    def _affordable(self, best: _Chosen) -> int:
        """The number of inducing inputs that is affordable and pays; 0 if there is no time for a pass."""
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
        """Record candidates that are not judged by rows held out."""
        if not len(self.rows.held):
            self.candidates += [Candidate(one.name, rows, *one.tuned[1:]) for one in found]

    def _keep_sample(self, one: _Chosen) -> None:
        self.best = lambda: self._exact_of(one.tuned.model, SAMPLE, one.name)

    def _keep_exact(self, one: _Chosen) -> None:
        """The posterior of all rows, or of as many as time allows."""
        rows = self.rows.total
        if self.watch.limit is not None:
            seconds = max(self.watch.left(), OVER * self.watch.limit)
            rows = max(SAMPLE, min(rows, int((seconds * SPEED / 2.0) ** (1.0 / 3.0))))
        self.best = lambda: self._exact_of(one.tuned.model, rows, one.name)

    def _keep_collapsed(self, one: _Chosen) -> None:
        self.best = lambda: self._collapsed_candidate(one, one.passed, one.settings[0], self.few, one.log_density)

    def _exact_of(self, model: Any, rows: int, name: str) -> _Found:
        """The exact posterior of some rows, or of all."""
        data = self.rows.data if rows >= self.rows.total else self.rows.first(rows)
        parts = {"likelihood": model.likelihood, "mean_function": model.mean_function, "priors": dict(model.priors)}
        found = exact_gp(data, kernel=model.kernel, **parts)
        kind, bound = f"the exact posterior of {data.X.shape[0]:,} rows", float(found.bound(data.X, data.y)[0])
        return _Found(found, name, kind, bound, data, log_density_of(found), held_out=False)

    def _collapsed_candidate(
        self, one: _Chosen, passed: Any, setting: tuple[float, float], count: int, density: float
    ) -> _Found:
        model, bound = passed.posterior(*setting, count=count)
        seen = self.rows.data if passed.inside else self.rows.targets_seen(passed.rows)
        kind = f"a collapsed posterior with {count:,} inducing inputs on {seen.y.shape[0]:,} rows"
        return _Found(model, one.name, kind, bound, seen, density, held_out=True)

    def result(self) -> RegressionResult:
        """The best so far."""
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
        learned = learned or bool(ending)  # a fit that was cut short is not judged
        message = f"{best.kernel}, {best.kind}" + (f"; {ending}" if ending else "")
        if not learned:
            model, prediction = self._constant(model)
            message = (
                f"the inputs tell nothing of the targets: the best of {len(self.candidates)} models gains {gain:.1f} "
                f"nats on their mean, with {parameters} hyperparameters; the model predicts {prediction}"
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
        """Whether the rows held out are more probable than under the mean and variance of the others."""
        mean, variance = self.rows.first(COMPARED_ROWS).moments()
        left_out = self.rows.held_out()
        held, weights = left_out.targets_on_host()
        variance = np.maximum(variance, np.finfo(np.float64).tiny)
        squares = (held - mean) ** 2 / variance
        alone = -0.5 * float(np.average(np.sum(np.log(2.0 * np.pi * variance) + squares, axis=1), weights=weights))
        return left_out.observations * (log_density - alone) > HELD_OUT_CHANCE

    def _constant(self, best: Any) -> tuple[Any, str]:
        """A model that predicts the mean and the variance of the targets, and its prediction in words.

        The best model instead if the user's mean function is not a constant.
        """
        started = self._initialise()
        if "mean_function.value" not in tree.leaves(started):
            return best, "what it found"
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
            "likelihood.noise_variance": asarray_like(np.asarray(spread), X),
            "mean_function.value": asarray_like(level, X),
        }
        return tree.with_leaves(GPR.from_data(one.X, one.y, kernel=kernel, **parts), leaves), "the mean"


def _doublings(gain: float) -> int:
    """How many doublings of the inducing inputs may pay, after one with such a gain: each gains half of the last."""
    return 0 if gain < MIN_GAIN_PER_ROW else int(math.log2(min(gain, 1.0) / MIN_GAIN_PER_ROW))


def _sort_by_density(found: Iterable[_Chosen]) -> list[_Chosen]:
    """The best first."""
    return sorted(found, key=lambda one: -one.log_density)


def _select_best(found: list[_Chosen]) -> _Chosen:
    """Among those as good as the best, the one whose exact GP predicts best."""
    as_good = [one for one in found if one.log_density >= found[0].log_density - ALIKE]
    return max(as_good, key=lambda one: one.tuned.log_density)


def _close(found: list[_Chosen]) -> list[_Chosen]:
    """The best, and the second if it is close."""
    return [one for one in found if one.log_density >= found[0].log_density - CLOSE][:2]


def _best_setting(passed: Collapse, settings: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], float]:
    """The factor of the kernel and the noise variance that predict the rows held out best, and their density.

    Compares the given settings, found with fewer inducing inputs, and their geometric mean.
    """
    middle = tuple(float(np.exp(np.mean(np.log(column)))) for column in zip(*settings, strict=True))
    density, setting = max((passed.log_density(*at), at) for at in {*settings, middle})
    return setting, density


def _baseline(likelihood: Gaussian, targets: Data) -> float:
    """The log density of an observation under the mean and the variance of all."""
    _, y, weights = targets
    per_row = baseline(likelihood, y, weights)
    return per_row if weights is None else per_row * y.shape[0] / targets.observations
