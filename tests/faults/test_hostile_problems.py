"""Two hundred hostile problems; thousands more by ``python tests/faults/run_hostile.py --count 10000``."""

import numpy as np
import pytest
from hostile_judge import judged
from hostile_problems import MODELS, NEAR, drawn

COUNT = 200


@pytest.mark.slow
@pytest.mark.sample(9)
@pytest.mark.parametrize("seed", range(COUNT))
def test_a_hostile_problem_ends_well_or_says_why(seed):
    outcome = judged(seed)
    assert not outcome.defects


@pytest.mark.long
@pytest.mark.parametrize("seed", range(COUNT, COUNT + 10))
@pytest.mark.parametrize(("library", "device"), [("torch", None), ("array_api_strict", "device1")])
def test_other_libraries_end_well_or_say_why(library, device, seed):
    pytest.importorskip(library, reason=f"{library} is not installed: not executed")
    assert not judged(seed, library, device, tiny=True).defects


@pytest.mark.slow
@pytest.mark.sample(6)
@pytest.mark.parametrize("seed", range(1000, 1030))
@pytest.mark.parametrize("model", NEAR)
def test_models_with_neighbours_end_well_or_say_why(model, seed):
    assert not judged(seed, model=model).defects


@pytest.mark.slow
def test_all_models_are_drawn():
    assert {drawn(seed).model for seed in range(COUNT)} == set(MODELS)


def test_a_seed_gives_one_problem():
    first, second = drawn(3), drawn(3)
    np.testing.assert_array_equal(first.X, second.X)
    np.testing.assert_array_equal(first.y, second.y)
    assert str(first.about) == str(second.about)
