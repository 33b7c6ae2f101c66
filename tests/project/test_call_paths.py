"""How far a reader follows a call: the frames and files between a method of an estimator and the arithmetic."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import pytest

import agp

pytest.importorskip("sklearn", reason="scikit-learn is not installed: not executed")

from agp.estimators import GPRegressor

ROOT = Path(agp.__file__).parent
FRAMES, FILES = 16, 28
"""The deepest nesting of functions of the package in a prediction, and the files that these functions are in."""
FRAMES_TO_EVIDENCE = 21
"""The nesting at which a fit first computes the evidence of a model."""


class CallPath(NamedTuple):
    """The functions of the package that a call enters."""

    frames: int
    """The deepest nesting of functions."""
    files: set[str]
    deepest: list[str]
    """The names of the functions at the deepest nesting, from outside to inside."""


def _nesting(frame: FrameType | None) -> list[str]:
    """Return the names of the functions of the package around a frame, without those of this test."""
    found = []
    while frame is not None:
        if _is_inside(frame):
            found.append(f"{Path(frame.f_code.co_filename).relative_to(ROOT)}:{frame.f_code.co_qualname}")
        frame = frame.f_back
    return found[::-1]


def _is_inside(frame: FrameType) -> bool:
    return Path(frame.f_code.co_filename).is_relative_to(ROOT)


def _traced(call: Callable[[], Any], until: str = "") -> CallPath:
    """Return the path of a call, up to the first call of the function `until` if it is given."""
    deepest: list[str] = []
    files: set[str] = set()

    def seen(frame: FrameType, event: str, _arg: Any) -> None:
        nonlocal deepest
        if event != "call" or not _is_inside(frame):
            return
        files.add(frame.f_code.co_filename)
        here = _nesting(frame)
        if frame.f_code.co_qualname == until:
            deepest = here
            sys.setprofile(None)
        elif not until and len(here) > len(deepest):
            deepest = here

    sys.setprofile(seen)
    try:
        call()
    finally:
        sys.setprofile(None)
    return CallPath(len(deepest), files, deepest)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.uniform(-3.0, 3.0, (60, 2))
    return X, np.sin(X.sum(axis=1)) + 0.1 * rng.standard_normal(60)


def test_a_prediction_passes_few_frames_and_files(data):
    X, y = data
    estimator = GPRegressor(kernel="rbf").fit(X, y)
    estimator.predict(X[:5], return_std=True)  # the first prediction also makes the predictor
    path = _traced(lambda: estimator.predict(X[:5], return_std=True))
    assert 0 < path.frames <= FRAMES, path.deepest
    assert len(path.files) <= FILES, sorted(path.files)


def test_a_fit_reaches_the_evidence_in_few_frames(data):
    path = _traced(lambda: GPRegressor().fit(*data), until="expand_evidence")
    assert 0 < path.frames <= FRAMES_TO_EVIDENCE, path.deepest
