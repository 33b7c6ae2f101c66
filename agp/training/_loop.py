"""The training loop, which applies updates in order, checks numbers and writes checkpoints."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

from agp.backend import Array, backend_of
from agp.checks import check_callables, check_choice, check_whole
from agp.errors import CheckpointError, Interrupted, NonFiniteError, count_of
from agp.priors import restrict
from agp.repairs import collect_reports, public
from agp.training._batches import Batches, Place
from agp.training._begun import check_training, initial_state, kept_leaves, recipe, warn_about_untouched
from agp.training._certificate import judge_bounds
from agp.training._graphs import check_loops
from agp.training._progress import Shown, Tracker, track
from agp.training._result import Callback, ModelType, Result
from agp.training._resume import check_checkpoint
from agp.training._run import Run
from agp.tree import detach, first_leaf
from agp.updates import Update


@public(repairs=False)
def train(
    model: ModelType,
    X: Array,
    y: Array,
    *,
    steps: int,
    updates: Sequence[Update] | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    callbacks: Iterable[Callback] = (),
    progress: Shown = False,
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 1000,
    on_device: bool = False,
    data_parallel: bool = False,
    draws: Place = "host",
    graphs: bool = True,
    weights: Array | None = None,
    offset: Array | None = None,
    noise: Array | None = None,
) -> Result[ModelType]:
    """Train a model by applying the updates in order, `steps` times. An untrained model starts from `initial_state`.

    Parameters
    ----------
    model
        An `agp.models.Model`. The model is not changed; `Result.model` is the trained model.
    X, y
        Inputs [N, D] and targets [N] or [N, P].
    steps
        The number of steps, including those before a resumption.
    updates
        The list of updates that make up a step; `recipe(model, steps)` by default.
    batch_size
        The number of rows in a minibatch; all rows by default. Batches are drawn on the host and depend only on the
        seed.
    seed
        The seed for the minibatches.
    callbacks
        Functions called with a `Progress` after each step. If a callback returns True or a text, the training ends;
        `Result.message` gives the text as the reason.
    progress
        Show a bar for the whole training, with the time left (in a terminal, it needs the extra ``cli``). If standard
        error is not a terminal, a line a minute is written there. A path names a log file, to which such lines are
        appended (see docs/guide/watching.md).
    checkpoint, checkpoint_every
        The path of a safetensors file. The file is written before the first step, after every `checkpoint_every` steps,
        at the end and on an interrupt. If the file exists, the run resumes from this file and gives the same numbers as
        an uninterrupted run.
    on_device
        Run whole epochs (at least a hundred steps) as one compiled loop on the device. This helps with JAX if launching
        a step takes longer than computing it. The results equal those of single steps up to rounding. Numbers are
        checked, shown and saved only between epochs, and you can interrupt the training only then. Callbacks are not
        allowed.
    data_parallel
        Evaluate minibatches of a dask array on the workers that hold its chunks; each worker computes its share of a
        step. By default, a few chunks at a time are fetched in advance, and this process computes the steps. Both
        settings give the same numbers.
    draws
        Where to draw the random numbers of a step (probes, likelihood samples and layer samples). "host" gives the same
        numbers for every library. "device" uses the random generator of X's library on its device, without transfers.
        The same seed and step then give the same numbers only with the same library and kind of device. With NumPy,
        both settings give the same numbers.
    graphs
        Launch each step as one device graph if the array library supports graphs (torch on CUDA devices) and can record
        the updates. Graphs reduce the time on the host and do not change the numbers. Your own updates must be pure
        functions, as with JAX. If no graph was used, `Result.launched_singly` gives the reason. With ``graphs=False``,
        the operations of a step are launched one by one.
    weights, offset, noise
        What is known of each row; see `agp.models.Model.bound`.

    Raises
    ------
    TypeError, ValueError
        If X, y and the model do not fit each other, the batch size is out of range, the checkpoint is from another run,
        `draws` is unknown, `on_device` is used with callbacks or an array library that cannot compile loops, or
        `data_parallel` is used with data in memory.
    agp.errors.NonFiniteError
        If the bound, or a value that an update logs, becomes NaN or infinite; `.result` holds the last finite state.
    agp.errors.Interrupted
        On Ctrl-C; `.result` holds everything so far.
    agp.errors.CheckpointError
        If the checkpoint cannot be written; `.result` holds everything so far.

    Warns
    -----
    agp.errors.UntouchedWarning
        If the model has inverse factors, sites or chosen actions that no update moves.

    Examples
    --------
    The trace has a number per step for everything that the updates log.

    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(0.0, 6.0, 100)[:, None]
    >>> y = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(0).standard_normal(100)
    >>> model = agp.SVGP.from_data(X, y, num_inducing=8, posterior="whitened")
    >>> updates = [agp.updates.Adam(0.05, frozen="Z")]
    >>> result = agp.train(model, X, y, steps=50, batch_size=20, updates=updates)
    >>> {name: len(values) for name, values in result.trace.items()}
    {'bound': 50}
    >>> result.frozen
    ('process.inducing.Z',)
    >>> bool(result.model.bound(X, y)[0] > model.bound(X, y)[0])
    True
    """
    data = check_training(model, X, y, weights, offset, noise)
    callbacks = check_callables("callbacks", callbacks)
    _check_machines(data.X, callbacks, on_device=on_device, data_parallel=data_parallel)
    model = detach(model)
    steps = check_whole("steps", steps, least=0)
    checkpoint_every = check_whole("checkpoint_every", checkpoint_every)
    reference = first_leaf(model) if backend_of(data.X).is_lazy else data.X
    facts = _facts_of_batches(model, data.X.shape[0], batch_size, seed, draws, reference)
    if updates is None:
        updates = recipe(model, steps)
        facts["steps"] = steps  # the recipe depends on the number of steps
    updates = check_updates(updates)
    how: dict[str, Any] = {"known": data.known, "reference": reference, "in_place": data_parallel}
    batches = Batches(data.X, data.y, facts["batch_size"], facts["seed"], model._draws, draws, **how)
    model = restrict(initial_state(model, kept_leaves(model, updates))) if steps else model
    run = Run(model, updates, batches, check_checkpoint(checkpoint), facts, on_device=on_device, graphs=graphs)
    _begin(run, model, steps, checkpoint)
    return _advance(
        run, steps, callbacks, progress, checkpoint_every, lambda tracker: judge_bounds(tracker, model, data)
    )


def _advance(
    run: Run,
    steps: int,
    callbacks: list[Callback],
    progress: Shown,
    checkpoint_every: int,
    prepare: Callable[[Tracker], None],
) -> Result[Any]:
    """Take the steps of a run, and return its result, which is also in the errors. `prepare` is called before."""
    try:
        with track(progress) as tracker:
            prepare(tracker)
            with tracker.inside(), collect_reports(run.aside):
                tracker.begin("steps")
                run.advance_to(steps, callbacks, tracker, checkpoint_every)
                run.save()
        result = run.result()
        run.repairs.tell()
        return result
    except KeyboardInterrupt as interrupt:
        so_far, trouble = run.rescue()
        raise _with_note(Interrupted(so_far), trouble) from interrupt
    except CheckpointError:
        raise
    except NonFiniteError as error:
        _with_note(error, run.rescue()[1])
        raise
    except Exception as error:  # finished steps are in the checkpoint, or in the error about the checkpoint
        trouble = run.rescue()[1]
        if isinstance(trouble, CheckpointError):
            raise trouble from error
        raise


def _check_machines(X: Array, callbacks: list[Callback], *, on_device: bool, data_parallel: bool) -> None:
    """Raise an error unless the steps can run on the device, and in parallel, as the arguments of `train` ask for."""
    if on_device:
        check_loops(X, callbacks)
    if data_parallel and not backend_of(X).is_lazy:
        raise ValueError(
            "data_parallel=True needs dask arrays, but X is in memory; omit data_parallel, or pass dask arrays."
        )


def _facts_of_batches(
    model: Any, rows: int, batch_size: int | None, seed: int, draws: Place, reference: Array
) -> dict[str, Any]:
    """Return the arguments on which the batches depend, for checkpoints; raise an error if one is invalid."""
    size = _batch_size(model, rows, batch_size)
    facts: dict[str, Any] = {"seed": check_whole("seed", seed, least=0), "batch_size": size}
    check_choice("draws", draws, get_args(Place))
    B = backend_of(reference)
    source = f"device ({B.name}, {B.device_name(reference).partition(':')[0]})"
    return facts | {"draws": draws if draws == "host" else source}


def _begin(run: Run, model: Any, steps: int, checkpoint: Any) -> None:
    """Begin a run that was made for this model, unless its checkpoint already holds all steps."""
    if run.step > steps:
        raise ValueError(
            f"{checkpoint} already holds {count_of(run.step, 'step')}, more than steps={steps}; raise steps."
        )
    if run.step < steps:
        warn_about_untouched(model, run.updates)
        run.begin()


def _with_note(error: Any, trouble: Exception | None) -> Any:
    """Return the error, with a note if the checkpoint could not be written."""
    if trouble is not None:
        error.add_note(str(trouble))
    return error


def check_updates(updates: Any) -> list[Update]:
    """Return a list of updates. Raise TypeError or ValueError if there are none, or if one is no update."""
    is_list = isinstance(updates, Iterable) and not callable(updates)
    found = list(updates) if is_list else []
    if not is_list or not all(map(callable, found)):
        raise TypeError(f"updates is {updates!r}, but must be a list of updates, such as [Adam(0.01)].")
    if not found:
        raise ValueError("updates is empty; pass at least one update, such as Adam(0.01), or None for the usual ones.")
    for i, update in enumerate(found):
        if isinstance(update, type):
            raise TypeError(f"updates[{i}] is a class; write {update.__name__}().")
        if not isinstance(update, Update):
            raise TypeError(
                f"updates[{i}] is {update!r}, which has no method `init`; pass an object with `init(model)` and "
                "`__call__(model, batch, state)`."
            )
    return found


def _batch_size(model: Any, rows: int, batch_size: int | None) -> int:
    size = rows if batch_size is None else check_whole("batch_size", batch_size)
    if size > rows:
        raise ValueError(f"batch_size is {size}, but there are only {rows} rows; use at most {rows}.")
    if size < rows and not model.stochastic:
        raise ValueError(
            f"batch_size is {size}, but the bound of {type(model).__name__} needs all rows at once; omit batch_size."
        )
    return size
