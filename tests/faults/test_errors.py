"""The library's own errors travel between processes with what they carry."""

import copy
import pickle

import numpy as np
import pytest

from agp import SVGP, train
from agp.errors import CheckpointError, FileError, Interrupted, NonFiniteError
from agp.training import Result
from agp.tree import leaves


def trained():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 2))
    y = np.sin(X[:, :1])
    return train(SVGP.from_data(X, y, num_inducing=4), X, y, steps=2)


ERRORS = {
    "interrupted": Interrupted,
    "non-finite": lambda result: NonFiniteError("bound became nan", result),
    "checkpoint": lambda result: CheckpointError("no space", result),
}


@pytest.mark.parametrize("travel", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", ERRORS)
def test_errors_are_pickled_with_their_results(kind, travel):
    result = trained()
    error = ERRORS[kind](result)
    error.add_note("and a note")
    found = travel(error)
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert found.args == error.args
    assert found.__notes__ == ["and a note"]
    assert found.result.steps == 2
    assert found.result.trace == result.trace
    for name, value in leaves(result.model).items():
        np.testing.assert_array_equal(leaves(found.result.model)[name], value)


@pytest.mark.parametrize("kind", ["non-finite", "checkpoint"])
def test_errors_without_a_result_are_pickled_too(kind):
    assert pickle.loads(pickle.dumps(ERRORS[kind](None))).result is None


def test_a_checkpoint_error_is_an_os_error():
    assert issubclass(CheckpointError, FileError)
    assert issubclass(FileError, OSError)
    assert issubclass(FileError, ValueError)
    assert str(CheckpointError("no space", Result(None, 0, 0.0))) == "no space"
