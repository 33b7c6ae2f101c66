"""The page docs/break-even.md, from the results in docs/break-even.json."""

import textwrap
from collections.abc import Iterable
from dataclasses import replace
from statistics import mean
from typing import Any

from break_even_parts.cards import CARDS, Speed
from break_even_parts.model import MILLI, SIZES, WAYS, Model

NAMES = {"wsvgp": "W-SVGP", "lsvgp": "L-SVGP", "rsvgp": "R-SVGP"}
INTRODUCTION = """# Break-even of R-SVGP

R-SVGP replaces the Cholesky factorisation of W-SVGP and L-SVGP by matrix products. On which GPUs, and for which M, does
a training step of R-SVGP take less time? **The answer on this page is computed, not measured**, except for the H200, on
which [agp has run](accelerator.md). It is computed from two kinds of measurements on a CPU, which do not depend on the
card: the number of inversion steps in training runs, and the number of operations of a training step. The rates of the
cards are peak rates, and the properties of their libraries are assumptions. For the H200, they are measured times of
single operations.

```text
python asv_benchmarks/break_even.py measure --data DIR --tables kin40k elevators bike  # inversion steps
python asv_benchmarks/break_even.py count                                             # operations
python asv_benchmarks/break_even.py compute                                           # step times and break-even
python asv_benchmarks/break_even.py page --steps-of docs/accelerator.json             # this page
```

The first two commands write to `docs/break-even.json`. If you interrupt `measure`, run it again to continue."""
RUNS = """## Inversion steps

The table shows the mean number of inversion steps per training step, from runs of `agp.train` with the default updates,
an RBF kernel and batches of 1,024 rows. A run has 1,000 training steps, or 300 for M = 1,024. The training rates fall
to a tenth of their initial values. "Most" is the largest number in a training step, and "residual" the median of the
last 100 training steps in float64. The condition number is that of the matrix that is inverted, after training.
"Fallbacks" is the number of training steps in which an inversion in float32 returned to float64. Columns of bike that
contain the targets were left out."""
COUNTS = """## Operations

The table shows the operations of a training step with 1,024 rows in float32, as counted while torch runs the step with
the block sizes of a GPU. The operations are in units of $M^3$, where a multiplication and an addition count as two.
Passes are the bytes that all other operations read and write, in units of the bytes of an $M \\times M$ matrix. Adam
moves all parameters. For M above 2,048, R-SVGP estimates traces from 256 probes ([probes](methods/rsvgp.md#probes))."""
MODEL = """## Model

The time of a training step on the card is

$$
t = k\\, n + \\frac{{b}}{{w}} + \\frac{{o_p}}{{r}} + \\Big( \\ell_c\\, m_c + \\frac{{o_c}}{{h\\, r}} \\Big)
 + \\Big( \\ell_s\\, m_s + \\frac{{o_s}}{{h\\, r}} \\Big) ,
$$

where $n$ is the number of launches, $b$ is the number of bytes, $o_p$, $o_c$ and $o_s$ are the operations of products,
factorisations and triangular solves, and $m_c$ and $m_s$ are the rows of the factors. The term $o_p / r$ is a sum over
precisions. With CUDA graphs, a step takes the time $t$. Without graphs, it takes at least the time of the host,
{launch_us:.0f} microseconds for each launch.

The model favours R-SVGP in three ways. It leaves out that R-SVGP without graphs waits for the device once more per
inversion step. A [recorded graph](backends.md#graphs-on-device) contains a single inversion step; if a training step
needs more of them, it and the next ten run without a graph, which the model also leaves out. Steps with an inversion in
a lower precision are computed as if graphs could record them, which agp does not support. In one way, the model favours
W-SVGP: Adam moves the covariance factor, whereas the default updates take natural-gradient steps, with products of
6.5 instead of 4.5 $M^3$ operations for M = 2,048.

| Parameter | | Value | Source |
|---|---|---|---|
| $r$ | rate of products | {product_share:.2g} of the peak rate | assumed |
| $h$ | rate of factorisations and solves, apart from latency | {triangular_share:.2g} of $r$ | assumed |
| $\\ell_c$ | latency of a factorisation | {cholesky_row_us:.2g} microseconds per row | assumed, see below |
| $\\ell_s$ | latency of a triangular solve | {solve_row_us:.2g} microseconds per row | assumed |
| $w$ | rate of passes | {memory_share:.2g} of the bandwidth | assumed |
| $k$ | least time for a kernel | {kernel_us:.2g} microseconds | assumed |
| | launch by the host | {launch_us:.2g} microseconds | assumed |

Others have reported 1.95 ms for a Cholesky factorisation in float32 with M = 2,048 by cuSOLVER, and 2.4 ms with
M = 4,096 on an L40S. These are 0.95 and 0.6 microseconds per row, of which products take a small part."""
PEAKS = """The peak rates of dense products are in 10¹² operations per second. Those of the H100, and of the B300 in
float64, are published figures. The others are assumed: the H200 has the rates of the H100, other rates of the B300
are rounded, and the RTX cards have one float64 unit for 64 float32 units and accumulate products in float32."""
SHARES = "The last column is the rate of a factorisation that the assumptions give for M = 256, 1,024 and 8,192."
TIMES = """Measured milliseconds of a card replace its rates. Write them to a file, and add `--times FILE` to the
commands `compute` and `page`:

```text
{{"H100": {{"float32": {{"4096": {{"gemm": 2.9, "potrf": 3.8, "trsm": 3.5}}}}, "tf32": {{"4096": {{"gemm": 0.6}}}}}}}}
```

`gemm` and `trsm` are for matrices with M rows and columns, and `potrf` is the factorisation. {used}"""
RESULT = """## Break-even

The table shows the largest number of inversion steps per training step with which R-SVGP is faster than W-SVGP, with
CUDA graphs. R-SVGP takes at least one inversion step, so it is never faster where the number is below 1. Numbers above
the measured mean for the same precision and M are bold; for M above {largest:,}, they are compared with the mean for
M = {largest:,}. The inversion uses the precision of the model if no other precision is given."""
MEANS = """The next table shows means over the data sets of the numbers in training steps 51 to 500, and the largest
number for a data set in brackets:"""
FLOOR = """In float32, the smallest residual that rounding allows may be above the tolerance of 5e-3, as in {count} of
the runs. The inversion then ends after the first step without progress ([precision of the
inversion](methods/rsvgp.md#inversion))."""
LOW = """**TF32 and bfloat16 are out of reach with the default settings.** agp uses products in a lower precision only
while the residual that they cause is estimated to be at most 2.5e-3 ([products in a lower
precision](numerics.md#reduced-precision)). After the runs above, the estimates are {tf32} in TF32 and {bfloat16} in
bfloat16. The rows with these precisions show what could be gained if the estimates were small enough."""
WITHOUT = """The next table shows the same number without graphs. For M up to 1,024, a step then takes as long as its
launches in most cases, and R-SVGP has more launches:"""
STEPS = """The next table shows milliseconds of a step of W-SVGP, L-SVGP and R-SVGP, with CUDA graphs and the measured
mean number of inversion steps. The command `compute` also prints those with an inversion in a lower precision."""
COMPARED = """## Compared with measured steps

The table shows milliseconds of training steps with CUDA graphs that were [measured](accelerator.md) on the {card}, and
those of the model for the same number of inversion steps, and the number of inversion steps at break-even from the
measured times of W-SVGP and R-SVGP and the computed time of an inversion step:"""
CHOSEN = ("H100", "float32", (1024, 2048, 4096, 8192))
"""The card, the precision and the sizes for which assumptions are varied."""
VARIED: dict[str, dict[str, float]] = {
    "as assumed": {},
    "factorisations with half the latency": {"cholesky_row_us": 0.5},
    "factorisations with twice the latency": {"cholesky_row_us": 2.0},
    "triangular solves with half the latency": {"solve_row_us": 0.5},
    "triangular solves with twice the latency": {"solve_row_us": 2.0},
    "half the least time for a kernel": {"kernel_us": 0.5},
    "twice the least time for a kernel": {"kernel_us": 2.0},
    "products at 0.9 of the peak rate": {"product_share": 0.9 / 0.7},
    "no passes over memory": {"memory_share": 1e9},
}
"""Factors of assumptions."""


def written(document: dict[str, Any]) -> str:
    """The page."""
    model = Model(document["counts"], document.get("times", {}))
    typical = Typical(document["iterations"])
    parts = [INTRODUCTION, *_runs(document), *_counts(document["counts"]), *_model(model)]
    parts += [
        RESULT.format(largest=max(typical.sizes)),
        break_even_table(model, "wsvgp", typical, graphs=True, ways=WAYS),
    ]
    parts += [_low(document["iterations"]), WITHOUT]
    parts += [break_even_table(model, "wsvgp", typical, graphs=False, ways=MAIN)]
    parts += ["The same number for L-SVGP, with CUDA graphs:"]
    parts += [break_even_table(model, "lsvgp", typical, graphs=True, ways=MAIN)]
    parts += [STEPS, step_table(model, typical, MAIN)]
    parts += _compared(model, document.get("measured steps", {}))
    parts += ["## How much depends on the assumptions", *_varied(model, typical), "## Conclusion"]
    parts += [conclusion(model, typical)]
    return "\n\n".join(map(wrapped, "\n\n".join(parts).split("\n\n"))) + "\n"


def wrapped(paragraph: str) -> str:
    """A paragraph with lines of at most 120 characters; tables, formulas and code are unchanged."""
    if paragraph.startswith(("|", "$$", "```")):
        return paragraph
    return textwrap.fill(" ".join(paragraph.split()), 120, break_long_words=False, break_on_hyphens=False)


MAIN = tuple(way for way in WAYS if way[1] is None)
"""The precisions of models whose inversion has the same precision."""


class Typical:
    """Measured numbers of inversion steps in training steps 51 to 500."""

    def __init__(self, runs: list[dict[str, Any]]) -> None:
        self.runs = runs
        self.sizes = sorted({run["num_inducing"] for run in runs}) or [0]

    def numbers(self, dtype: str, inverse: str | None, M: int) -> list[float]:
        """The numbers of the runs with the size that is closest to M; [1] if there are none.

        An inversion in TF32 or bfloat16, which was not measured, is assumed to take as many steps as one in float32.
        """
        precision = inverse if dtype == "float64" else None
        found = [run for run in self.runs if (run["dtype"], run["precision"]) == (dtype, precision)]
        size = min(self.sizes, key=lambda size: abs(size - M))
        return [run["middle"] for run in found if run["num_inducing"] == size] or [1.0]

    def steps(self, dtype: str, inverse: str | None, M: int) -> float:
        """The mean of `numbers`."""
        return mean(self.numbers(dtype, inverse, M))


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |"]
    lines += ["|" + "---|" * (lines[0].count("|") - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def short(x: float) -> str:
    """A number with two or three digits."""
    return f"{x:,.0f}" if x >= 99.5 else f"{x:.0f}" if x >= 9.95 else f"{x:.1f}"


def _runs(document: dict[str, Any]) -> list[str]:
    runs = document["iterations"]
    names = list(dict.fromkeys(run["table"] for run in runs))
    keys = {(run["table"], run["num_inducing"]) for run in runs}
    head = ["data", "M", "float64: first 50", "51 to 500", "last 100", "most", "residual", "condition"]
    head += ["float32: first 50", "51 to 500", "last 100", "most", "float64, inversion in float32: fallbacks"]
    rows = []
    for name, M in sorted(keys, key=lambda key: (names.index(key[0]), key[1])):
        own = [run for run in runs if (run["table"], run["num_inducing"]) == (name, M)]
        of = {(run["dtype"], run["precision"]): run for run in own}
        double, single, mixed = (of.get(key, {}) for key in (*MAIN, ("float64", "float32")))
        cells = [f"{double[key]:.2f}" for key in ("first", "middle", "last")] if double else [""] * 3
        cells += [f"{double[key]:.2g}" for key in ("most", "residual", "condition")] if double else [""] * 3
        cells += [f"{single[key]:.2f}" for key in ("first", "middle", "last")] if single else [""] * 3
        cells += [f"{single['most']}" if single else "", f"{mixed['fallbacks']} of {mixed['steps']}" if mixed else ""]
        rows.append([name, f"{M:,}", *cells])
    means = []
    for dtype, inverse in (*MAIN, ("float64", "float32")):
        sizes = {M: Typical(runs).numbers(dtype, inverse, M) for M in Typical(runs).sizes}
        means.append([_title(dtype, inverse), *(f"{mean(x):.2f} ({max(x):.2f})" for x in sizes.values())])
    summary = table(["precision", *(f"M = {M:,}" for M in Typical(runs).sizes)], means)
    count = sum(run["residual"] > 5e-3 for run in runs if run["dtype"] == "float32")
    restarts = sum(run["restarts"] for run in runs)
    text = f"There were {restarts} restarts." if restarts else "No run had a restart."
    return [RUNS, table(head, rows), text, MEANS, summary, FLOOR.format(count=count)]


def _counts(counts: list[dict[str, Any]]) -> list[str]:
    head = ["method", "M", "products", "solves", "factorisations", "passes", "launches"]
    rows = []
    for entry in counts:
        if (entry["dtype"], entry["precision"]) != ("float32", None) or entry["M"] not in (512, 2048, 8192):
            continue
        for part in ("step", "inverse step"):
            if found := entry.get(part):
                M = entry["M"]
                own = [found.get(f"{kind} float32", 0) / M**3 for kind in ("product", "solve", "cholesky")]
                name = {"step": ", without the inversion", "inverse step": ", an inversion step"}[part]
                name = NAMES[entry["method"]] + (name if entry["method"] == "rsvgp" else "")
                cells = [f"{x:.2f}" if x else "" for x in own]
                rows.append([name, f"{M:,}", *cells, f"{found['bytes'] / (4 * M**2):.0f}", f"{found['launches']}"])
    return [COUNTS, table(head, rows)]


def _model(model: Model) -> list[str]:
    head = ["card", "float64", "float32", "TF32", "bfloat16", "memory, TB/s", "Cholesky in float32, share of r"]
    rows = []
    for name, card in CARDS.items():
        shares = [Speed(card, M, model.times.get(name, {}), model.assumed).cholesky_share("float32") for M in SIZES]
        texts = ", ".join(f"{100.0 * share:.2g} %" for share in (shares[0], shares[2], shares[-1]))
        rows.append([name, *(f"{x:g}" for x in card.peaks.values()), f"{card.bandwidth:g}", texts])
    used = f"This page uses measured times of {', '.join(model.times)}." if model.times else "This page uses none."
    return [MODEL.format(**vars(model.assumed)), PEAKS, table(head, rows), SHARES, TIMES.format(used=used)]


def _bold(x: float, least: float) -> str:
    return f"**{short(x)}**" if x > least else short(x)


def _title(dtype: str, inverse: str | None) -> str:
    return dtype + (f", inversion in {inverse.replace('tf32', 'TF32')}" if inverse else "")


def break_even_table(model: Model, other: str, typical: Typical, *, graphs: bool, ways: Iterable[Any]) -> str:
    """The number of inversion steps at break-even, for each card, precision and M."""
    ways, rows = list(ways), []
    for card in CARDS:
        for dtype, inverse in ways:
            found = {M: model.break_even(card, other, M, dtype, inverse, graphs=graphs) for M in SIZES}
            cells = [_bold(x, typical.steps(dtype, inverse, M)) for M, x in found.items()]
            rows.append([card, _title(dtype, inverse), *cells])
    return table(["card", "precision", *(f"M = {M:,}" for M in SIZES)], rows)


def step_table(model: Model, typical: Typical, ways: Iterable[Any]) -> str:
    """Milliseconds of a step of each method, for each card, precision and M."""
    ways, rows = list(ways), []
    for card in CARDS:
        for dtype, inverse in ways:
            cells = []
            for M in SIZES:
                methods = {"wsvgp": None, "lsvgp": None, "rsvgp": inverse}
                times = [
                    model.milliseconds(card, method, M, dtype, low, steps=typical.steps(dtype, inverse, M), graphs=True)
                    for method, low in methods.items()
                ]
                cells.append(" / ".join(map(short, times)))
            rows.append([card, _title(dtype, inverse), *cells])
    return table(["card", "precision", *(f"M = {M:,}" for M in SIZES)], rows)


def _low(runs: list[dict[str, Any]]) -> str:
    texts = {}
    for name in ("tf32", "bfloat16"):
        found = [run[f"rounding_{name}"] for run in runs]
        texts[name] = f"{min(found):.2g} to {max(found):,.0f}" if found else "not measured"
    return LOW.format(**texts)


def _compared(model: Model, measured: dict[str, list[dict[str, Any]]]) -> list[str]:
    parts = []
    for card, entries in measured.items():
        found = {(one["dtype"], one["M"], one["method"]): one for one in entries if one["method"] in NAMES}
        rows = []
        for dtype, M in sorted({key[:2] for key in found}):
            own = {name: found[dtype, M, name] for name in NAMES if (dtype, M, name) in found}
            cells = []
            for name, one in own.items():
                ms = model.milliseconds(card, name, M, dtype, steps=one["inverse steps"], graphs=True)
                cells.append(f"{short(one['ms'])} ({short(ms)})")
            each = model.cost(card, "rsvgp", M, dtype)["inverse step"].device / MILLI
            relaxed = own["rsvgp"]
            more = relaxed["inverse steps"] + (own["wsvgp"]["ms"] - relaxed["ms"]) / each
            rows.append([dtype, f"{M:,}", *cells, short(max(more, 0.0))])
        head = ["precision", "M", *(f"{name}: measured (computed)" for name in NAMES.values()), "break-even"]
        parts += [COMPARED.format(card=card), table(head, rows)]
    return parts


def _varied(model: Model, typical: Typical) -> list[str]:
    card, dtype, sizes = CHOSEN
    rows = []
    for name, factors in VARIED.items():
        values = {key: factor * vars(model.assumed)[key] for key, factor in factors.items()}
        other = replace(model, assumed=replace(model.assumed, **values))
        found = {M: other.break_even(card, "wsvgp", M, dtype, graphs=True) for M in sizes}
        rows.append([name, *(_bold(x, typical.steps(dtype, None, M)) for M, x in found.items())])
    text = f"Break-even with W-SVGP on the {card} in {dtype}, with CUDA graphs, if one assumption is changed:"
    return [text, table(["assumption", *(f"M = {M:,}" for M in sizes)], rows)]


def conclusion(model: Model, typical: Typical) -> str:
    """Sentences on where R-SVGP is faster than W-SVGP, and by how much."""
    rows = []
    for dtype, inverse in WAYS:
        for card in CARDS:
            cells = []
            for steps in (None, typical):
                ratios = {M: _ratio(model, card, M, dtype, inverse, steps) for M in SIZES}
                cells.append(", ".join(f"{ratio:.2f} (M = {M:,})" for M, ratio in ratios.items() if ratio < 1.0))
            if any(cells):
                rows.append([_title(dtype, inverse), card, *cells])
    head = ["precision", "card", "with one inversion step", "with the measured mean number"]
    return "\n\n".join([CONCLUSION, table(head, rows), CLOSING])


def _ratio(model: Model, card: str, M: int, dtype: str, inverse: str | None, typical: Typical | None) -> float:
    steps = 1.0 if typical is None else typical.steps(dtype, inverse, M)
    own = model.milliseconds(card, "rsvgp", M, dtype, inverse, steps=steps, graphs=True)
    return own / model.milliseconds(card, "wsvgp", M, dtype, steps=1.0, graphs=True)


CONCLUSION = """The table shows all cases in which R-SVGP is computed to be faster than W-SVGP with CUDA graphs. The
numbers are the times of R-SVGP as shares of those of W-SVGP. R-SVGP takes one inversion step per training step near the
end of most runs, when the rates are small."""
CLOSING = """The gains are small, and for most cards they depend on assumptions. R-SVGP
takes about 1.6 to 2.6 times the operations of W-SVGP. It also reads and writes 1.6 to 2.4 times as many bytes, a
quarter of them to join blocks of triangular matrices. R-SVGP gains where W-SVGP waits for the latency of its
factorisation and solves. It does not gain where M is so small that launches dominate, since it has more launches, or
where M is so large that products and memory limit both methods. On cards with slow float64 units, an inversion in
float32 helps a model in float64 only for large M, where traces are estimated from probes: the bound and its gradient
remain in float64. L-SVGP takes longer than W-SVGP on most cards, because it has more triangular solves."""
