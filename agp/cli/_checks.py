"""Checks that the methods, options, data and memory of a comparison fit together."""

import argparse
import math
import os
from typing import Any

import numpy as np

from agp.cli._plan import LIKELIHOODS, Settings, make_likelihood
from agp.data import Dataset
from agp.methods import LAYERS, METHODS

SUPPORT = 2048
"""Maximum number of training rows that actions cover by default."""
OPTIONS = ("num_orthogonal", "num_actions", "support", "storage", "layers")
"""Options that only some methods accept."""


def method_settings(a: argparse.Namespace, methods: list[str], rows: int) -> dict[str, Any]:
    """Return the values of `OPTIONS`, and None for options that none of the methods accepts.

    Raise a ValueError if the user sets an option that none of the methods accepts, or if options contradict each other.
    """
    support = min(SUPPORT, rows) if a.support is None else a.support
    storages = [storage for name in methods for storage in METHODS[name].storages]
    usual = {"num_orthogonal": a.num_inducing, "storage": next(iter(storages), None)}
    usual |= {"layers": LAYERS, "support": support}
    usual["num_actions"] = min(a.num_inducing, support)
    found: dict[str, Any] = {}
    for name in OPTIONS:
        given = vars(a)[name]
        known = [method.name for method in METHODS.values() if name in method.takes]
        taken = set(known) & set(methods)
        if given is not None and not taken:
            option = f"--{name.replace('_', '-')}"
            msg = f"{option} is for --method {', '.join(known)}, not {', '.join(methods)}; leave it out."
            raise ValueError(msg)
        found[name] = usual[name] if taken and given is None else given
    for least, name in ((METHODS[name].min_orthogonal, name) for name in methods):
        if least > (found["num_orthogonal"] or 0):
            msg = f"--num-orthogonal is {found['num_orthogonal']}, but must be at least {least} for {name}."
            raise ValueError(msg)
    if found["support"] is not None and not found["num_actions"] <= support <= rows:
        msg = (
            f"--num-actions is {found['num_actions']}, --support is {support} and there are {rows} training rows; "
            "use num-actions <= support <= training rows."
        )
        raise ValueError(msg)
    return found


def check_task(task: str, likelihood: str | None) -> str:
    """Return the likelihood's task, or `task` if no likelihood is given. Raise a ValueError if the two tasks differ."""
    if likelihood is None:
        return task
    needed = LIKELIHOODS[likelihood][0]
    if task not in ("auto", needed):
        fitting = ", ".join(name for name, (its, _) in LIKELIHOODS.items() if its == task)
        msg = f"--likelihood {likelihood} is for {needed}, but --task is {task}; use one of the likelihoods {fitting}."
        raise ValueError(msg)
    return needed


def choose_likelihood(likelihood: str | None, data: Dataset) -> str:
    """Return the given or the default likelihood. Raise a ValueError if the given one does not suit the targets."""
    if likelihood is None:
        return ("bernoulli" if data.binary else "softmax") if data.classes else "gaussian"
    if likelihood.startswith("bernoulli") and not data.binary:
        msg = f"{likelihood} is for two classes, but {data.name} has {data.classes}; use softmax or robustmax."
        raise ValueError(msg)
    try:
        make_likelihood(likelihood, data).check_targets(np.concatenate([data.y, data.y_test]))
    except ValueError as error:
        msg = f"{data.name}: {error}"
        raise ValueError(msg) from error
    return likelihood


def check_fit(data: Dataset, methods: list[str], settings: Settings) -> None:
    """Raise a ValueError if a method does not support the data or the likelihood."""
    if not data.classes and (data.y == data.y[0]).all():
        msg = f"all {len(data.y)} training targets of {data.name} are the same; there is nothing to learn from them."
        raise ValueError(msg)
    exact = [name for name, method in METHODS.items() if method.gaussian_only and name in methods]
    if exact and settings.likelihood != "gaussian":
        others = ", ".join(name for name, method in METHODS.items() if not method.gaussian_only)
        what = f"the task of {data.name} is {data.task}" if data.classes else f"--likelihood is {settings.likelihood}"
        msg = (
            f"--method {' '.join(exact)} requires the gaussian likelihood, but {what}; use one of the methods {others}."
        )
        raise ValueError(msg)
    N, M, M2 = len(data.X), settings.num_inducing, settings.num_orthogonal or 0
    taken = {option for name in methods for option in METHODS[name].takes}
    if "num_inducing" in taken and M > N:
        msg = f"--num-inducing is {M}, but {data.name} has only {N} training rows."
        raise ValueError(msg)
    if "num_orthogonal" in taken and M + M2 > N:
        msg = f"--num-inducing plus --num-orthogonal is {M + M2}, but {data.name} has only {N} training rows."
        raise ValueError(msg)
    for name in methods:
        _check_memory(name, data, settings)


def _check_memory(method: str, data: Dataset, settings: Settings) -> None:
    """Raise a ValueError if the N x N matrices of a method do not fit into memory."""
    once, each = METHODS[method].dense_arrays
    N, latents = len(data.X), make_likelihood(settings.likelihood, data).latents(data.y.shape[1])
    needed = (once + each * latents) * 8 * N**2
    there = _machine_memory()
    if needed > there:
        msg = (
            f"{method} needs about {needed / 2**30:.0f} GiB for the {N} training rows of {data.name}, but this machine "
            f"has {there / 2**30:.0f} GiB; leave --method {method} out, or use a smaller data set."
        )
        raise ValueError(msg)


def _machine_memory() -> float:
    """Return the memory of this machine in bytes, or infinity if the system does not tell it, as on Windows."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return math.inf
