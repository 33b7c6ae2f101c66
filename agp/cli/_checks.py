"""Whether methods, options, data and machine fit each other."""

import os

from agp.cli._likelihoods import latents_of
from agp.cli._plan import Settings
from agp.data import Dataset
from agp.methods import (
    ACTION_METHODS,
    DEEP_METHODS,
    DENSE_METHODS,
    GAUSSIAN_METHODS,
    GROUP_METHODS,
    LAYERS,
    METHODS,
    STORAGES,
)

__all__ = ["check_fit", "chosen_actions", "chosen_groups", "chosen_layers", "chosen_storage"]

SUPPORT = 2048
"""Rows that actions cover, where the user does not say and there are more."""


def chosen_groups(num_orthogonal: int | None, num_inducing: int, methods: list[str]) -> int | None:
    """The size of the second group of inducing inputs; None if no method has one. ValueError if it cannot be."""
    having = [name for name in methods if name in GROUP_METHODS]
    if num_orthogonal is None:
        return num_inducing if having else None
    if not having:
        msg = f"--num-orthogonal is for --method {', '.join(GROUP_METHODS)}, not {', '.join(methods)}; leave it out."
        raise ValueError(msg)
    least = 1 if "solve-relaxed" in having else 0
    if num_orthogonal < least:
        why = " for solve-relaxed" if least else ""
        msg = f"--num-orthogonal is {num_orthogonal}, but must be at least {least}{why}."
        raise ValueError(msg)
    return num_orthogonal


def chosen_actions(
    num_actions: int | None, support: int | None, num_inducing: int, rows: int, methods: list[str]
) -> tuple[int | None, int | None]:
    """The actions, and the rows that they cover; None if no method has any. ValueError if they cannot be."""
    given = {"--num-actions": num_actions, "--support": support}
    if not any(name in ACTION_METHODS for name in methods):
        if wrong := [name for name, value in given.items() if value is not None]:
            msg = f"{wrong[0]} is for --method {', '.join(ACTION_METHODS)}, not {', '.join(methods)}; leave it out."
            raise ValueError(msg)
        return None, None
    for name, value in given.items():
        if value is not None and value < 1:
            msg = f"{name} is {value}, but must be at least 1."
            raise ValueError(msg)
    support = min(SUPPORT, rows) if support is None else support
    count = min(num_inducing, support) if num_actions is None else num_actions
    if not count <= support <= rows:
        msg = (
            f"--num-actions is {count} and --support {support}, but there are {rows} training rows; use at most as "
            "many actions as rows that they cover, and at most all rows."
        )
        raise ValueError(msg)
    return count, support


def chosen_storage(storage: str | None, methods: list[str]) -> str | None:
    """How t-SVGP keeps its sites; None without t-SVGP. ValueError if it is unknown or for no method."""
    if storage is not None and storage not in STORAGES:
        msg = f"unknown storage {storage!r}; known are {', '.join(STORAGES)}."
        raise ValueError(msg)
    if "tsvgp" in methods:
        return storage or "datum"
    if storage is not None:
        msg = f"--storage is for --method tsvgp, not {', '.join(methods)}; leave it out."
        raise ValueError(msg)
    return None


def chosen_layers(layers: int | None, methods: list[str]) -> int | None:
    """How many layers deep methods have; None without any. ValueError if it cannot be, or is for no method."""
    if layers is not None and layers < 1:
        msg = f"--layers is {layers}, but must be at least 1."
        raise ValueError(msg)
    if any(name in DEEP_METHODS for name in methods):
        return LAYERS if layers is None else layers
    if layers is not None:
        msg = f"--layers is for --method {', '.join(DEEP_METHODS)}, not {', '.join(methods)}; leave it out."
        raise ValueError(msg)
    return None


def check_fit(data: Dataset, methods: list[str], settings: Settings) -> None:
    """ValueError where the methods cannot take the data or the likelihood."""
    if not data.classes and (data.y == data.y[0]).all():
        msg = f"all {len(data.y)} training targets of {data.name} are the same; there is nothing to learn from them."
        raise ValueError(msg)
    exact = [name for name in GAUSSIAN_METHODS if name in methods]
    if exact and settings.likelihood != "gaussian":
        others = ", ".join(name for name in METHODS if name not in GAUSSIAN_METHODS)
        what = f"{data.name} is a {data.task}" if data.classes else f"--likelihood is {settings.likelihood}"
        msg = f"{' and '.join(exact)} can only have the gaussian likelihood, but {what}; use --method {others}."
        raise ValueError(msg)
    _check_inducing(data, methods, settings)
    for name in methods:
        if name in DENSE_METHODS:
            _check_memory(name, data, settings)


def _check_inducing(data: Dataset, methods: list[str], settings: Settings) -> None:
    N, M, M2 = len(data.X), settings.num_inducing, settings.num_orthogonal or 0
    if set(methods) - DENSE_METHODS.keys() - {"cggp", *ACTION_METHODS} and M > N:
        msg = f"--num-inducing is {M}, but {data.name} has only {N} training rows."
        raise ValueError(msg)
    if set(methods) & set(GROUP_METHODS) and M + M2 > N:
        msg = f"--num-inducing and --num-orthogonal are {M} and {M2}, but {data.name} has only {N} training rows."
        raise ValueError(msg)


def _check_memory(method: str, data: Dataset, settings: Settings) -> None:
    """ValueError if the machine cannot hold the N x N numbers that a method without inducing inputs takes."""
    once, each = DENSE_METHODS[method]
    N, latents = len(data.X), latents_of(settings.likelihood, data)
    needed = (once + each * latents) * 8 * N**2
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        msg = (
            f"{method} needs about {needed / 2**30:.0f} GiB for the {N} training rows of {data.name}, this machine has "
            f"{there / 2**30:.0f} GiB; leave --method {method} out, or name smaller data."
        )
        raise ValueError(msg)
