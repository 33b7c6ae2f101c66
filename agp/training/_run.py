"""A training run: its state, its steps, checks of the numbers, and checkpoints."""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from agp import tree
from agp.backend import Array, backend_of, numbers_of, to_numpy
from agp.bounds import Batch
from agp.errors import CheckpointError, NonFiniteError, NotPositiveDefiniteError, count_of, join_words
from agp.io import arrays_by_path, path_layout, remove_leftovers, unflatten_arrays
from agp.priors import fixed_entry_names, held_leaves
from agp.repairs import Report, Tally, collect_reports, fetch_reports, speculate
from agp.training._batches import Batches
from agp.training._begun import kept_leaves
from agp.training._graphs import Epochs, StepGraph
from agp.training._progress import Tracker
from agp.training._result import Callback, Progress, Result, call_all
from agp.training._resume import checkpoint_exists, not_finite, read, strip_addresses, write_checkpoint
from agp.tree import POSITIVE
from agp.updates import Update, apply_updates, moves_of

REMEDY = "try a smaller learning rate, standardised data, more jitter or float64"
CHECK_EVERY = 10
"""The number of steps after which the numbers are checked again; at each check, the host waits for the device."""


class Run:
    """A model in training, with a checkpoint if a path is given.

    A run resumes from a checkpoint only if the `facts` in the file, such as the seed, equal those of the run. With
    `on_device`, an epoch runs as one compiled loop. With `graphs`, a step runs as a device graph if possible.
    """

    def __init__(
        self,
        model: Any,
        updates: list[Update],
        batches: Batches,
        path: Path | None,
        facts: dict[str, Any],
        *,
        on_device: bool = False,
        graphs: bool = False,
    ) -> None:
        model, _ = tree.make_contiguous(model)
        self.model, self.updates, self.batches, self.path, self.facts = model, updates, batches, path, facts
        self.states = [tree.row_major(update.init(model)) for update in updates]
        self.step, self.seconds = 0, 0.0
        self.wary_until = 0
        self.pending: list[tuple[dict[str, Array], list[Report]]] = []
        self.aside: list[Report] = []  # reports of callbacks
        self.looks: list[dict[str, list[float]]] = []
        self.repairs = Tally()
        self.finite: tuple[int, Any] = (0, model)
        self.saved: int | None = None
        self.unset: dict[str, Any] = {}
        self.ended_by = ""
        if path is not None:
            self.facts = {
                "dtype": backend_of(batches.reference).dtype_name(batches.reference),
                **facts,
                "model": strip_addresses(tree.outline(model)),
                "updates": strip_addresses(repr(updates)),
                "data": batches.fingerprint(),
            }
            self._resume(path)
        step = partial(apply_updates, tuple(updates))
        self._apply = batches.backend.compile(step)
        self.epochs = Epochs(step, batches) if on_device else None
        graphs = graphs and not on_device and batches.backend.captures(batches.reference)
        self.graph = StepGraph(step, batches, self.step) if graphs else None

    # -- steps ------------------------------------------------------------------------------------------------------

    def advance_to(self, steps: int, callbacks: list[Callback], tracker: Tracker | None, checkpoint_every: int) -> None:
        """Take steps until `steps` are done or a callback returns True."""
        step = first = self.step
        while step < steps:
            began = time.perf_counter()
            if self.epochs is None:
                step += 1
            else:
                following = step - step % checkpoint_every + checkpoint_every
                step = self.epochs.to(step, min(steps, following))
            look = step % CHECK_EVERY == 0 or step == steps or self.epochs is not None
            save = step % checkpoint_every == 0
            info = self._reach(step, wait=look or save or bool(callbacks))
            if look:
                self._look()
                self._tell(tracker, first, steps)
            elif callbacks:
                for value in info.values():  # the device must finish the step before the clock is read
                    backend_of(value).synchronise(value)
            self.seconds += time.perf_counter() - began
            if save:
                self.save()
            if callbacks and (name := call_all(callbacks, Progress(self.step, self.model, info, self.seconds))):
                self.ended_by = name
                return

    def _tell(self, tracker: Tracker | None, first: int, steps: int) -> None:
        """Tell how far the training is."""
        if tracker is None:
            return
        detail = f"step {self.step:,} of {steps:,}" + (f", repairs: {self.repairs.total}" if self.repairs.total else "")
        bounds = self.looks[-1].get("bound", [])
        tracker.step(self.step - first, steps - first, detail, bounds[-1] if bounds else -np.inf)

    def _reach(self, step: int, *, wait: bool) -> dict[str, Array]:
        """Take the steps up to `step`; return the log of the last step.

        Unless `wait` is True, a step may be launched without waiting for its result; the log is then empty.
        """
        if self.epochs is not None:
            return self._advance_to(step)
        if self.graph is not None:
            if step > self.wary_until and self.graph.launch(self.model, self.states, step - 1) and not wait:
                return {}
            self._arrive()
        while self.step < step:
            self._advance()
        return self.pending[-1][0]

    def _arrive(self) -> None:
        """Collect the results of launched steps whose guesses were right."""
        if self.graph is None or (arrived := self.graph.collect(self.step)) is None:
            return
        model, states, infos = arrived
        pending = [*self.pending, *((info, []) for info in infos)]
        # one assignment, so that an interrupt cannot separate them
        self.model, self.states, self.step, self.pending = model, states, self.step + len(infos), pending
        self.graph.acknowledge(states)

    def _advance_to(self, last: int) -> dict[str, Array]:
        assert self.epochs is not None
        with collect_reports() as reports:
            model, states, logged = self.epochs(self.model, self.states, self.step, last)
            model, states = tree.make_contiguous(model, states)
        infos = [{name: x[i] for name, x in logged.items()} for i in range(last - self.step)]
        # repairs were counted over all steps; report them with the first non-finite step, or else with the last step
        good = [all(np.isfinite(x) for x in info.values()) for info in infos]
        at = len(infos) - 1 if all(good) else good.index(False)
        told = [(info, reports if i == at else []) for i, info in enumerate(infos)]
        pending = [*self.pending, *told]
        self.model, self.states, self.step, self.pending = model, states, last, pending
        return infos[-1]

    def _advance(self) -> dict[str, Array]:
        try:
            with collect_reports() as reports:
                model, states, info = self._apply_step(self.batches[self.step])
        except NotPositiveDefiniteError as error:
            self._look()  # if earlier numbers are not finite, raise an error about them instead
            raise self._failure(self.step + 1, str(error)) from error
        except NonFiniteError as error:
            self._look()
            raise NonFiniteError(str(error), self._last_finite(), self._circumstances()) from error
        # one assignment, so that an interrupt cannot separate them
        pending = [*self.pending, (info, reports)]
        self.model, self.states, self.step, self.pending = model, states, self.step + 1, pending
        return info

    def _apply_step(self, batch: Batch) -> tuple[Any, list, dict]:
        """Take a step with guessed branches, and check the guesses at its end; after a wrong guess, pause guessing."""

        def once() -> tuple[Any, list, dict]:
            model, states, info = self._apply(self.model, batch, self.states)
            return *tree.make_contiguous(model, states), info  # as if loaded, so that resumed runs round equally

        if self.step < self.wary_until:
            return once()
        done, as_likely = speculate(once, self.batches.reference)
        if not as_likely:
            self.wary_until = self.step + 1 + CHECK_EVERY
        return done

    # -- checks of numbers -------------------------------------------------------------------------------

    def _look(self) -> None:
        """Read the logs of the steps since the last call; raise NonFiniteError if a number or a leaf is not finite."""
        self._arrive()
        first = self.step - len(self.pending) + 1
        leaves = tree.describe(self.model)
        unsound = [leaf.constraint.is_violated(leaf.value) for leaf in leaves]
        logged = iter(numbers_of([*unsound, *(value for info, _ in self.pending for value in info.values())]))
        violated = [leaf for leaf in leaves if next(logged)]
        numbers = [{name: next(logged) for name in info} for info, _ in self.pending]
        for (_, reports), hosted in zip(self.pending, fetch_reports([x for _, x in self.pending]), strict=True):
            reports[:] = hosted
        failures = [self._count(reports) for _, reports in self.pending]
        self._count(self.aside)
        for offset, info in enumerate(numbers):
            if failures[offset]:
                raise self._failure(first + offset, failures[offset][0])
            for name, number in info.items():
                if not np.isfinite(number):
                    seen = [earlier[name] for earlier in numbers[:offset] if name in earlier]
                    last = (_join_logs(self.looks).get(name, []) + seen)[-1:]
                    self._refuse(f"{name} became {number}", first + offset, last)
        if violated:  # non-finite leaves also violate constraints
            if broken := self._nonfinite_leaves():
                self._refuse(f"{', '.join(broken)} became NaN or infinite", self.step, [])
            self._refuse(_outside(violated), self.step, [])
        seen = _join_logs([{name: [number] for name, number in info.items()} for info in numbers])
        # one assignment, so that an interrupt neither loses nor duplicates numbers
        self.looks, self.pending, self.finite = [*self.looks, seen], [], (self.step, self.model)

    def _count(self, reports: list[Report]) -> list[str]:
        """Count the reported repairs, empty the list of reports, and return the messages of failures."""
        if not reports:
            return []
        tally, reports[:] = Tally(reports), []
        self.repairs.merge(tally)
        return tally.failures

    def _failure(self, step: int, why: str) -> NonFiniteError:
        msg = f"a factorisation failed in step {step}; {REMEDY}."
        return NonFiniteError(msg, self._last_finite(), f"Reason: {why}\n{self._circumstances()}")

    def _nonfinite_leaves(self) -> list[str]:
        leaves = tree.leaves(self.model).items()
        return [name for name, x in leaves if not bool(backend_of(x).xp.all(backend_of(x).xp.isfinite(x)))]

    def _refuse(self, what: str, step: int, last: list[float]) -> None:
        value = f"the last finite value: {last[0]:.6g}" if last else "never finite before"
        msg = f"{what} in step {step} ({value}); {REMEDY}."
        raise NonFiniteError(msg, self._last_finite(), self._circumstances())

    def _circumstances(self) -> str:
        """Return further lines of an error message: non-finite leaves, and ranges of the last finite parameters."""
        broken = ", ".join(self._nonfinite_leaves()) or "none"
        extremes = ", ".join(
            f"{name} in [{to_numpy(x).min():.3g}, {to_numpy(x).max():.3g}]"
            for name, x in tree.leaves(self.finite[1], "parameter").items()
        )
        found = f"Non-finite leaves: {broken}.\nIn the last finite model, after step {self.finite[0]}: {extremes}."
        if factors := [*tree.leaves(self.model, "auxiliary")]:
            found += (
                f"\nAn update of your own that moves parameters, such as their average, must renew {factors[0]}, too."
            )
        return found

    def _last_finite(self) -> Result[Any]:
        step, model = self.finite
        told = {"frozen": self._frozen(model), "launched_singly": self.graph.reason if self.graph else ""}
        return Result(model, step, self.seconds, _join_logs(self.looks), self.repairs.messages, **told)

    def _frozen(self, model: Any) -> tuple[str, ...]:
        """Return the names of the parameters and of the entries that no update may have moved."""
        kept = (kept_leaves(model, self.updates) - moves_of(model, self.updates)[0].leaves) | held_leaves(model)
        entries = {x for x in kept if "[" in x}.union(fixed_entry_names(model))
        return (*(x for x in tree.leaves(model, "parameter") if x in kept), *sorted(entries))

    # -- results and checkpoints ------------------------------------------------------------------------------------

    def result(self) -> Result[Any]:
        """Check the numbers, and return the result so far."""
        self._look()
        message = f"{self.ended_by} ended the training" if self.ended_by else "all steps are done"
        return replace(self._last_finite(), message=message)

    def rescue(self) -> tuple[Result[Any], Exception | None]:
        """Save the checkpoint; return the result up to the last finite state, and the error if saving failed.

        After a second interrupt, the result is returned without saving.
        """
        trouble = None
        try:
            self._look()
            self.save()
        except (KeyboardInterrupt, NonFiniteError):
            pass
        except Exception as error:
            trouble = error
        return self._last_finite(), trouble

    def begin(self) -> None:
        """Write the checkpoint before the first step, so that write errors are raised early."""
        if self.path is not None:
            remove_leftovers(self.path)
            self._write(self.path)

    def save(self) -> None:
        """Check the numbers and write the checkpoint if a path is given and there are new steps."""
        self._arrive()
        if self.path is None or self.saved == self.step:
            return
        self._look()
        if broken := not_finite(arrays_by_path(self._named_states()), self.unset):
            self._refuse(f"the state {', '.join(broken)} of an update became NaN or infinite", self.step, [])
        self._write(self.path)

    def _named_states(self) -> dict[str, Any]:
        return {str(i): state for i, state in enumerate(self.states)}

    def _write(self, path: Path) -> None:
        trace = {name: np.asarray(values) for name, values in _join_logs(self.looks).items()}
        arrays = {"model": tree.leaves(self.model), "states": self._named_states(), "trace": trace}
        progress = {"step": self.step, "seconds": self.seconds, "repairs": self.repairs.rows()}
        try:
            result = f" `.result` holds the model after {count_of(self.step, 'step')}."
            write_checkpoint(path, arrays, {"facts": self.facts, "progress": progress}, result)
        except CheckpointError as error:
            error.result = self._last_finite()
            raise
        self.saved = self.step

    def _resume(self, path: Path) -> None:
        """Continue from the checkpoint if the file exists."""
        start = arrays_by_path(self._named_states())
        self.unset = {name: start[name] for name in not_finite(start, {})}
        if not checkpoint_exists(path):
            return
        resized = moves_of(self.model, self.updates)[0].resized
        saved = read(path, self.facts, self.model, start, resized)
        reference = self.batches.reference
        B = backend_of(reference)
        leaves, arrays = (
            {name: B.from_numpy(x, device=B.device_name(reference)) for name, x in found.items()}
            for found in (saved.leaves, saved.states)
        )
        states = unflatten_arrays(path_layout(self._named_states()), arrays)
        self.model, self.states = tree.make_contiguous(tree.with_leaves(self.model, leaves), [*states.values()])
        self.step, self.seconds, self.repairs = saved.step, saved.seconds, saved.repairs
        self.looks, self.finite, self.saved = [saved.trace], (self.step, self.model), self.step


def _outside(leaves: list[tree.Leaf]) -> str:
    """Return what happened to leaves whose values violate their constraints."""
    names = ", ".join(leaf.name for leaf in leaves)
    if all(isinstance(leaf.constraint, type(POSITIVE)) for leaf in leaves):
        return f"{names} became 0, but must be positive"  # softplus underflows, where the gradient vanishes
    return f"{names} left the possible values, which are {join_words(sorted({x.constraint.name for x in leaves}))},"


def _join_logs(looks: list[dict[str, list[float]]]) -> dict[str, list[float]]:
    """Join the logs into one list for each name."""
    out: dict[str, list[float]] = {}
    for look in looks:
        for name, numbers in look.items():
            out.setdefault(name, []).extend(numbers)
    return out
