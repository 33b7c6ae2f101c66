"""What the benchmarks stand on: every method steps, and calls of a library are counted right."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from agp.methods import METHODS

sys.path.append(str(Path(__file__).parents[2] / "asv_benchmarks"))

from benchmarks import common, imports, launches, neighbours, search, stepping, steps, table

FOLDER = Path(__file__).parents[2] / "asv_benchmarks"


def test_every_method_is_benchmarked():
    assert list(METHODS) == steps.EVERY_METHOD


@pytest.mark.parametrize("method", ["gpr", "qsvgp", "rsvgp", "cagp-cg", "deep-solve"])
def test_a_step_moves_the_model(method):
    from agp import tree

    stepped = stepping.Stepping(method, "numpy", "closed-form", "float64", 8, rows=40, batch_rows=10)
    before = tree.leaves(stepped.model)
    stepped.step()
    assert any(np.any(before[name] != x) for name, x in tree.leaves(stepped.model).items())


def test_the_search_is_benchmarked():
    evidence, newton, table = search.Evidence(), search.Newton(), search.Table()
    evidence.setup("numpy", 60)
    evidence.time_gradient("numpy", 60)
    newton.setup("numpy")
    table.setup((60, 5), "gaussian")
    assert newton.track_steps("numpy") > 1
    assert table.track_evaluations((60, 5), "gaussian") > 1


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


def test_an_environment_of_a_library_skips_the_others(monkeypatch):
    monkeypatch.setattr(common, "LIBRARY", "torch")
    skipped = [
        lambda: common.backend_or_skip("numpy"),
        lambda: search.Table().setup((20, 5), "gaussian"),
        lambda: search.FewRows().setup(20),
        lambda: imports.Import().setup("numpy"),
        lambda: neighbours.Search().setup(3, 60),
        lambda: table.Table().setup("wsvgp", "jax", 128),
    ]
    for setup in skipped:
        with pytest.raises(NotImplementedError):
            setup()
    monkeypatch.setattr(common, "LIBRARY", "numpy")
    assert common.backend_or_skip("numpy")[1] == "cpu"
    with pytest.raises(NotImplementedError):
        common.backend_or_skip("torch")


def test_each_library_has_an_environment_of_its_own():
    text = (FOLDER / "asv.conf.json").read_text()
    conf = json.loads("".join(line for line in text.splitlines() if not line.strip().startswith("//")))
    assert "exclude" not in conf
    environments = [conf["matrix"], *conf["include"]]
    named = [env["env_nobuild"]["AGP_BENCH_LIBRARY"] for env in environments]
    assert named == [["numpy"], "torch", "jax"]
    libraries = [{"torch", "jax", "cupy"} & env["req"].keys() for env in environments]
    assert libraries == [set(), {"torch"}, {"jax"}]
    pinned = dict(line.split("==") for line in (FOLDER.parent / "constraints.txt").read_text().split() if "==" in line)
    assert conf["include"][0]["req"]["torch"] == pinned["torch"]


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


@pytest.mark.long
def test_growth_in_small(tmp_path, capsys):
    import growth

    arguments = ["--small", "--method", "wsvgp", "cggp", "cagp-opt", "gpr"]
    files = ["--json", str(tmp_path / "growth.json"), "--picture", str(tmp_path / "growth.png")]
    assert growth.main([*arguments, *files]) == 0
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| `")]
    found = json.loads((tmp_path / "growth.json").read_text())
    assert len(table) == len(found) == 8
    assert {curve["variable"] for curve in found} == {"N", "M", "i"}
    assert all(np.isfinite(curve["exponent"]) and min(curve["seconds"]) > 0 for curve in found)
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_growth_beyond_the_formula_fails(monkeypatch, capsys):
    import growth

    curve = growth.Growth("gpr", "N", (32, 64), -9.0, "none")
    monkeypatch.setattr(growth, "CURVES", (curve,))
    assert growth.main(["--rounds", "1"]) == 1
    assert "above the formula: gpr in N" in capsys.readouterr().out


def test_growth_has_every_method():
    import growth

    assert {curve.method for curve in growth.CURVES} == set(METHODS)


def test_an_exponent_is_that_of_the_power(monkeypatch):
    import growth

    curve = growth.Growth("gpr", "N", (32, 64, 128), 3.0, "N^3", work="step")
    monkeypatch.setattr(growth, "in_turn", lambda works, *_: [2.0 * n**1.5 for n in (32, 64, 128)])
    assert growth.measured(curve, 1, 1)["exponent"] == pytest.approx(1.5)
