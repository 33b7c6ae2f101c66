"""What the benchmarks stand on: every method steps, and calls of a library are counted right."""

import sys
from pathlib import Path

import numpy as np
import pytest

from agp.methods import METHODS

sys.path.append(str(Path(__file__).parents[1] / "asv_benchmarks"))

from benchmarks import common, launches, stepping, steps


def test_every_method_is_benchmarked():
    assert list(METHODS) == steps.EVERY_METHOD


@pytest.mark.parametrize("method", ["gpr", "qsvgp", "rsvgp", "cagp-cg", "deep-solve"])
def test_a_step_moves_the_model(method):
    from agp import tree

    stepped = stepping.Stepping(method, "numpy", "closed-form", "float64", 8, rows=40, batch_rows=10)
    before = tree.leaves(stepped.model)
    stepped.step()
    assert any(np.any(before[name] != x) for name, x in tree.leaves(stepped.model).items())


def test_axes_in_short_and_in_whole(monkeypatch):
    assert common.axis([1, 2, 3], 2) == [2]
    assert common.axis([1, 2, 3]) == [1, 2, 3]
    monkeypatch.setattr(common, "WHOLE", True)
    assert common.axis([1, 2, 3], 2) == [1, 2, 3]


def test_what_is_not_installed_is_skipped():
    with pytest.raises(NotImplementedError):
        common.backend_or_skip("abacus")
    with pytest.raises(NotImplementedError):
        common.backend_or_skip("numpy", "autodiff")


def test_torch_counts_what_is_computed():
    torch = pytest.importorskip("torch")
    x = torch.ones(3, 3)
    assert launches.torch_calls(lambda: (x @ x.mT + 1.0).sum()) == 3  # the transposition is a view


def test_jax_counts_the_instructions_of_the_entry():
    text = """HloModule jit_f

fused { a = f64[3]{0} parameter(0)  ROOT b = f64[3]{0} add(a, a) }

ENTRY main {
  p = f64[3]{0} parameter(0)
  c = f64[] constant(1)
  f = f64[3]{0} fusion(p, c), kind=kLoop, calls=fused
  w = (f64[3]{0}, s32[]) while(f), body=inside
  g = f64[3]{0} get-tuple-element(w), index=0
  ROOT t = (f64[3]{0}) tuple(g)
}
"""
    assert launches.top_level_instructions(text) == 2


def test_numpy_has_no_count():
    stepped = stepping.Stepping("wsvgp", "numpy", "closed-form", "float64", 8, rows=40, batch_rows=10)
    with pytest.raises(NotImplementedError):
        launches.launches(stepped)


def test_in_turn_gives_medians():
    ticks = iter(range(10_000))
    counted = stepping.in_turn([lambda: None, lambda: [next(ticks) for _ in range(4)]], lambda: next(ticks), rounds=3)
    assert counted == [1.0, 5.0]
