"""The likelihoods that the command line knows, by name, and which data each one takes."""

from collections.abc import Callable
from typing import Any

import numpy as np

from agp import methods
from agp.data import Dataset, TaskName
from agp.likelihoods import Bernoulli, Likelihood, Ordinal, RobustMax, Softmax

__all__ = ["LIKELIHOODS", "chosen_likelihood", "chosen_task", "latents_of", "likelihood_named", "takes_own_unit"]

LIKELIHOODS: dict[str, tuple[TaskName, Callable[[Dataset], Likelihood]]] = {
    **{name: ("regression", lambda _, kind=kind: kind()) for name, kind in methods.LIKELIHOODS.items()},
    "ordinal": ("regression", lambda data: Ordinal(max(2, 1 + int(max(data.y.max(), data.y_test.max()))))),
    "bernoulli": ("classification", lambda _: Bernoulli()),
    "bernoulli-logit": ("classification", lambda _: Bernoulli(link="logit")),
    "softmax": ("classification", lambda data: Softmax(data.classes)),
    "robustmax": ("classification", lambda data: RobustMax(data.classes)),
}
"""The task, and the constructor, which takes the data: they tell how many classes or levels there are."""


def likelihood_named(name: str, data: Dataset) -> Likelihood:
    """The likelihood without starting values, for these data."""
    return LIKELIHOODS[name][1](data)


def latents_of(name: str, data: Dataset) -> int:
    """The number of latent functions of a likelihood for these data."""
    return likelihood_named(name, data).latents(data.y.shape[1])


def takes_own_unit(name: str | None) -> bool:
    """Whether the targets are counts, positive numbers, shares or levels, which are not standardised."""
    return name in ("poisson", "negative-binomial", "gamma", "exponential", "beta", "ordinal")


def chosen_task(task: Any, likelihood: str | None) -> TaskName:
    """What the options say about the task. ValueError if they are unknown, or contradict each other."""
    known = ("auto", "regression", "classification")
    if task not in known:
        msg = f"unknown task {task!r}; known are {', '.join(known)}."
        raise ValueError(msg)
    if likelihood is None:
        return task
    if likelihood not in LIKELIHOODS:
        msg = f"unknown likelihood {likelihood!r}; known are {', '.join(LIKELIHOODS)}."
        raise ValueError(msg)
    needed = LIKELIHOODS[likelihood][0]
    if task not in ("auto", needed):
        fitting = ", ".join(name for name, (its, _) in LIKELIHOODS.items() if its == task)
        msg = f"the likelihood {likelihood} is for {needed}, but --task is {task}; for that, use {fitting}."
        raise ValueError(msg)
    return needed


def chosen_likelihood(likelihood: str | None, data: Dataset) -> str:
    """The name of the likelihood for the data. ValueError if the one that was asked for cannot take them."""
    if likelihood is None:
        return ("bernoulli" if data.binary else "softmax") if data.classes else "gaussian"
    if likelihood.startswith("bernoulli") and not data.binary:
        msg = f"{likelihood} takes two classes, {data.name} has {data.classes}; use softmax or robustmax."
        raise ValueError(msg)
    try:
        likelihood_named(likelihood, data).check_targets(np.concatenate([data.y, data.y_test]))
    except ValueError as error:
        msg = f"{data.name}: {error}"
        raise ValueError(msg) from error
    return likelihood
