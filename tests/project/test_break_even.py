"""The break-even of R-SVGP: the model by hand, measured times, counted operations, runs in small, and the page."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "asv_benchmarks"))

import break_even
from break_even_parts import page
from break_even_parts.cards import ASSUMED, CARDS, Speed, read_times
from break_even_parts.model import SIZES, Model

ROOT = Path(__file__).parents[2]
M = 1024
WAY = {"M": M, "dtype": "float32", "precision": None, "blocks": "fast"}
COUNTS = [
    {"method": "wsvgp", **WAY}
    | {
        "step": {
            "launches": 100,
            "bytes": 4e9,
            "product float32": 4e9,
            "cholesky float32": M**3 / 3.0,
            "cholesky rows": M,
            "solve float32": 2.0 * M**3,
            "solve rows": 2 * M,
        }
    },
    {"method": "rsvgp", **WAY}
    | {
        "step": {"launches": 120, "bytes": 4e9, "product float32": 8e9},
        "inverse step": {"launches": 30, "bytes": 1e9, "product float32": 6e9},
    },
]
"""Operations that are easy to add up."""


def document():
    return json.loads((ROOT / break_even.DOCUMENT).read_text(encoding="utf-8"))


def break_even_of(times, *, graphs=True):
    return Model(COUNTS, times).break_even("H100", "wsvgp", M, "float32", graphs=graphs)


def times(potrf, gemm=0.04, trsm=0.2):
    return {"H100": {"float32": {str(M): {"gemm": gemm, "potrf": potrf, "trsm": trsm}}}}


def test_the_page_shows_what_its_file_holds():
    text = (ROOT / break_even.PAGE).read_text(encoding="utf-8")
    assert text == page.written(document()), "run python asv_benchmarks/break_even.py page"
    assert "**The answer on this page is computed, not measured**" in text.replace("\n", " ")


def test_milliseconds_by_hand():
    rate, memory = 0.7 * 67e12, 0.8 * 3.35e12
    own = 3e-6 * 100 + 4e9 / memory + 4e9 / rate
    own += 0.7e-6 * M + M**3 / 3.0 / (0.5 * rate) + 0.25e-6 * 2 * M + 2.0 * M**3 / (0.5 * rate)
    model = Model(COUNTS, {})
    found = model.milliseconds("H100", "wsvgp", M, "float32", steps=1.0, graphs=True)
    assert found == pytest.approx(1e3 * own, rel=1e-12)
    theirs = 3e-6 * (120 + 2.5 * 30) + (4e9 + 2.5e9) / memory + (8e9 + 2.5 * 6e9) / rate
    found = model.milliseconds("H100", "rsvgp", M, "float32", steps=2.5, graphs=True)
    assert found == pytest.approx(1e3 * theirs, rel=1e-12)
    # without graphs, launches take longer
    found = model.milliseconds("H100", "rsvgp", M, "float32", steps=2.5, graphs=False)
    assert found == pytest.approx(1e3 * max(theirs, 8e-6 * (120 + 2.5 * 30)), rel=1e-12)


@pytest.mark.parametrize("graphs", [True, False])
def test_both_methods_take_equally_long_at_break_even(graphs):
    model = Model(COUNTS, times(potrf=4.0))
    steps = model.break_even("H100", "wsvgp", M, "float32", graphs=graphs)
    theirs, own = (
        model.milliseconds("H100", method, M, "float32", steps=steps, graphs=graphs) for method in ("wsvgp", "rsvgp")
    )
    assert steps > 1.0
    assert own == pytest.approx(theirs, rel=1e-12)


def test_a_faster_factorisation_lowers_the_break_even():
    slow, middle, fast = (break_even_of(times(potrf)) for potrf in (4.0, 2.0, 0.1))
    assert slow > middle > fast
    assert break_even_of(times(0.1, gemm=0.4)) == 0.0


def test_measured_times_replace_rates():
    measured = {"float32": {"1024": {"gemm": 0.1}, "4096": {"gemm": 3.2, "potrf": 5.0}}}
    small, middle, large = (Speed(CARDS["H100"], size, measured) for size in (512, 2048, 8192))
    rates = 2.0 * 1024**3 / 1e-4, 2.0 * 4096**3 / 3.2e-3
    assert small.product_rate("float32") == pytest.approx(rates[0])
    assert middle.product_rate("float32") == pytest.approx((rates[0] * rates[1]) ** 0.5)
    assert large.product_rate("float32") == pytest.approx(rates[1])
    assert small.seconds("cholesky", "float32", 4096**3 / 3.0, 4096) == pytest.approx(5e-3)
    assert small.product_rate("tf32") == pytest.approx(ASSUMED.product_share * 400e12)


def test_measured_steps_are_compared_with_the_model(tmp_path):
    settings = {"method": "wsvgp", "M": M, "dtype": "float32", "graphs": True, "inverse": ""}
    entries = [
        {"settings": settings, "figures": {"ms": 3.0}},
        {"settings": settings | {"method": "rsvgp"}, "figures": {"ms": 4.0, "inverse_steps": 2.0}},
        {"settings": settings | {"graphs": False}, "figures": {"ms": 9.0}},
    ]
    results = {"steps": {"facts": {"card": "NVIDIA H100"}, "entries": entries}}
    found = break_even.steps_of_card(results)
    assert [one["ms"] for one in found["H100"]] == [3.0, 4.0]
    model = Model(COUNTS, {})
    text, table = page._compared(model, found)
    assert "H100" in text
    each = model.cost("H100", "rsvgp", M, "float32")["inverse step"].device * 1e3
    assert table.splitlines()[-1].endswith(f" | {page.short(2.0 - 1.0 / each)} |")
    with pytest.raises(SystemExit, match="no training steps"):
        break_even.steps_of_card({})


def test_factorisations_reach_a_larger_share_of_the_rate_for_larger_matrices():
    shares = [Speed(CARDS["H100"], size, {}).cholesky_share("float32") for size in SIZES]
    assert shares == sorted(shares)
    assert shares[0] < 0.01 < 0.1 < shares[-1] < ASSUMED.triangular_share


def test_wrong_times_are_refused(tmp_path):
    path = tmp_path / "times.json"
    for times, said in (
        ({"abacus": {}}, "card 'abacus'"),
        ({"H100": {"float32": {"8": {"lu": 1.0}}}}, "operation 'lu'"),
    ):
        path.write_text(json.dumps(times))
        with pytest.raises(SystemExit, match=said):
            read_times(path)
    for text in ("no JSON", "[]"):
        path.write_text(text)
        with pytest.raises(SystemExit, match="name a JSON file with milliseconds by card"):
            read_times(path)
    with pytest.raises(SystemExit, match="absent.json cannot be read"):
        read_times(tmp_path / "absent.json")
    assert read_times(None) == {}


def test_measured_times_are_kept_with_the_page(tmp_path, capsys):
    (tmp_path / "docs").mkdir()
    with pytest.raises(SystemExit, match="run the command count first"):
        break_even.main(["page", "--root", str(tmp_path)])
    (tmp_path / break_even.DOCUMENT).write_text(json.dumps(document() | {"times": {}}))
    (tmp_path / "times.json").write_text(json.dumps(times(potrf=1.0)))
    command = ["--root", str(tmp_path), "--times", str(tmp_path / "times.json")]
    assert break_even.main(["compute", *command]) == 0
    assert "Break-even with L-SVGP, without CUDA graphs" in capsys.readouterr().out
    assert break_even.main(["page", *command]) == 0
    assert json.loads((tmp_path / break_even.DOCUMENT).read_text())["times"] == times(potrf=1.0)
    assert "This page uses measured times of H100." in (tmp_path / break_even.PAGE).read_text().replace("\n", " ")


@pytest.mark.slow
def test_counted_operations():
    pytest.importorskip("torch")
    from break_even_parts import counts

    size, batch = 256, counts.BATCH
    white, relaxed = (counts.counted(method, size, "float64", None, 1024) for method in ("wsvgp", "rsvgp"))
    assert white["step"]["cholesky float64"] == size**3 // 3
    assert white["step"]["cholesky rows"] == size
    # two solves with the covariances of the batch, and two of the pullback of the factorisation
    assert white["step"]["solve float64"] == 2 * size**2 * batch + 2 * size**3
    # dense products: two for B = L^T A L, and one for the step
    assert relaxed["inverse step"]["product float64"] == 6 * size**3
    assert not any(name.startswith(("cholesky", "solve")) for part in relaxed.values() for name in part)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["wsvgp", "lsvgp", "rsvgp"])
def test_operations_of_smaller_problems_are_scaled(method):
    pytest.importorskip("torch")
    from break_even_parts.counts import operations_of

    small, whole = (operations_of(method, 1024, "float64", None, 1, 256, factor=factor) for factor in (2, 1))
    assert small.keys() == whole.keys()
    for name, number in whole.items():
        assert small[name] == pytest.approx(number, rel=0.05 if name in ("bytes", "launches") else 0.01)


@pytest.mark.slow
def test_a_run_in_small(tmp_path, monkeypatch):
    from break_even_parts import iterations

    monkeypatch.setattr(iterations, "ROWS", 200)
    (tmp_path / "docs").mkdir()
    command = ["measure", "--root", str(tmp_path), "--sizes", "8", "--steps", "60"]
    assert break_even.main(command) == break_even.main(command) == 0
    runs = json.loads((tmp_path / break_even.DOCUMENT).read_text())["iterations"]
    assert [(run["dtype"], run["precision"]) for run in runs] == [
        ("float64", None),
        ("float32", None),
        ("float64", "float32"),
    ]
    assert all(run["table"] == "synthetic" and 1.0 <= run["mean"] <= run["most"] for run in runs)
    assert all(run["rounding_float32"] < run["rounding_tf32"] < run["rounding_bfloat16"] for run in runs)
    with pytest.raises(SystemExit, match=r"kin40k\.npz does not exist"):
        break_even.main([*command, "--data", str(tmp_path), "--tables", "kin40k"])
