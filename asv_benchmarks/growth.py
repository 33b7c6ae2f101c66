"""Measure the growth of CPU time with N, M and the number of iterations i, and compare it with the formulas.

``python asv_benchmarks/growth.py --picture growth.png --json growth.json`` takes some minutes on one thread. It fits
exponents for each method with NumPy, closed-form gradients and float64. The sizes are so large that arithmetic
dominates the time.
"""

import argparse
import dataclasses
import json
import os
import sys
import time
import warnings
from pathlib import Path

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import numpy as np
from benchmarks.stepping import Stepping, in_turn

BAR = 0.15
"""Maximum amount by which an exponent may exceed that of the formula."""
BATCH = 256
SHRINK = 32
"""Divisor of the sizes with --small."""


@dataclasses.dataclass(frozen=True)
class Growth:
    """A curve of time against one size, for a step on a minibatch or for the full-data bound with its gradient."""

    method: str
    variable: str
    """The size that varies: N, M or i."""
    sizes: tuple[int, ...]
    exponent: float
    """Exponent of the formula if only this size grows."""
    formula: str
    num_inducing: int = 256
    rows: int = 4096
    work: str = "step"
    options: dict = dataclasses.field(default_factory=dict)
    """Options of the method; the value "size" stands for the size that varies."""

    @property
    def label(self):
        """Name of the curve in tables and plots."""
        support = self.options.get("support")
        return self.method + ("" if support is None else ", full support" if support == "size" else ", capped support")

    def problem(self, size, shrink):
        """Create the training problem of a given size."""
        M = size if self.variable == "M" else max(4, self.num_inducing // shrink)
        rows = size if self.variable == "N" else max(self.rows // shrink, 2 * M)
        batch = max(8, BATCH // shrink) if self.work == "step" else rows
        grown = {name: size if value == "size" else max(4, value // shrink) for name, value in self.options.items()}
        iterations = grown.pop("max_iterations", None)
        stepping = Stepping(
            self.method, "numpy", "closed-form", "float64", M, rows=rows, batch_rows=batch, **grown
        )  # fmt: skip
        if iterations is not None:  # a fixed number, whatever the residual
            settings = {"max_iterations": iterations, "tolerance": 1e-300}
            stepping.model = dataclasses.replace(stepping.model, **settings)
        return stepping


FAMILY = ("msvgp", "wsvgp", "lsvgp", "rsvgp", "asvgp", "qsvgp", "tsvgp", "solve", "odvgp", "solve-relaxed")
DEEP = ("deep-msvgp", "deep-wsvgp", "deep-lsvgp", "deep-rsvgp", "deep-asvgp", "deep-solve")
STEP = "M^3 + M^2 B"
EVALUATION = {"work": "bound_and_gradient"}
CAPPED = {"support": 1024}
CURVES = (
    *(Growth(method, "M", (512, 724, 1024), 3.0, STEP) for method in FAMILY),
    *(Growth(method, "M", (256, 362, 512), 3.0, STEP, rows=2048) for method in DEEP),
    Growth("sgpr", "M", (128, 181, 256, 362), 2.0, "N M^2", rows=8192, **EVALUATION),
    Growth("solve-collapsed", "M", (128, 181, 256), 2.0, "N M^2", rows=8192, **EVALUATION),
    *(
        Growth(method, "N", (8192, 16_384, 32_768), 0.0, "none", num_inducing=256)
        for method in ("wsvgp", "rsvgp", "lsvgp", "asvgp", "solve")
    ),
    Growth("tsvgp", "N", (8192, 16_384, 32_768), 1.0, "N M^2"),
    Growth("sgpr", "N", (4096, 8192, 16_384), 1.0, "N M^2", **EVALUATION),
    Growth("solve-collapsed", "N", (4096, 8192, 16_384), 1.0, "N M^2", num_inducing=128, **EVALUATION),
    Growth("nngp", "N", (4096, 8192, 16_384), 1.0, "N k^3", **EVALUATION),
    Growth("vif", "N", (4096, 8192, 16_384), 1.0, "N k^2 M", num_inducing=128, **EVALUATION),
    Growth("gpr", "N", (1024, 1448, 2048), 3.0, "N^3", **EVALUATION),
    Growth("tvgp", "N", (512, 724, 1024), 3.0, "N^3"),
    Growth("tnngp", "N", (4096, 8192, 16_384), 1.0, "N k^3", **EVALUATION),
    Growth("cggp", "N", (2896, 4096, 5792), 2.0, "N^2 i", options={"max_iterations": 10}, **EVALUATION),  # in tiles
    Growth("cagp-opt", "N", (2048, 4096, 8192), 2.0, "N^2", options={"support": "size", "num_actions": 64}),
    Growth("cagp-opt", "N", (8192, 16_384, 32_768), 1.0, "N m", options=CAPPED | {"num_actions": 64}, **EVALUATION),
    Growth("cggp", "i", (20, 40, 80, 160), 1.0, "N^2 i", rows=2048, options={"max_iterations": "size"}, **EVALUATION),
    Growth("cagp-opt", "i", (256, 362, 512), 2.0, "N i^2", options=CAPPED | {"num_actions": "size"}, **EVALUATION),
    Growth("cagp-cg", "i", (6, 12, 24), 1.0, "N^2 i", rows=2048, options={"num_actions": "size"}),
)


def measured(curve, shrink, rounds):
    """Measure median CPU seconds for alternating sizes, and fit the exponent of a power law."""
    sizes = [max(4, size // shrink) for size in curve.sizes]
    works = []
    for size in sizes:
        stepping = curve.problem(size, shrink)
        works.append(getattr(stepping, curve.work))
        works[-1]()
    seconds = in_turn(works, time.process_time, rounds)
    return {
        "method": curve.label, "variable": curve.variable, "sizes": sizes, "seconds": seconds,
        "formula": curve.formula, "expected": curve.exponent,
        "exponent": float(np.polyfit(np.log(sizes), np.log(np.maximum(seconds, 1e-9)), 1)[0]),
    }  # fmt: skip


def line(found):
    """Format a row of the Markdown table."""
    sizes = ", ".join(f"{size:,}" for size in found["sizes"])
    times = ", ".join(f"{1e3 * seconds:,.0f}" for seconds in found["seconds"])
    return (
        f"| `{found['method']}` | {found['variable']} | {sizes} | {times} | {found['exponent']:.2f} | "
        f"{found['expected']:g} | {found['formula']} |"
    )


def draw(curves, path):
    """Plot seconds against size, with a panel for each variable."""
    from matplotlib.figure import Figure

    variables = list(dict.fromkeys(found["variable"] for found in curves))
    figure = Figure(figsize=(5.2 * len(variables), 6.2), layout="constrained")
    for ax, variable in zip(figure.subplots(1, len(variables), squeeze=False)[0], variables, strict=True):
        chosen = [found for found in curves if found["variable"] == variable]
        for i, found in enumerate(chosen):
            label = f"{found['method']}, {found['exponent']:.2f} ({found['expected']:g})"
            style = ("o-", "s--", "^:")[i // 10 % 3]
            ax.loglog(found["sizes"], found["seconds"], style, color=f"C{i % 10}", label=label, markersize=4)
        ax.set(xlabel=variable, title=f"exponent in {variable} (formula)")
        ax.grid(alpha=0.3)
        ax.legend(fontsize=7, ncols=2, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.12))
    figure.axes[0].set_ylabel("CPU seconds")
    figure.savefig(path, dpi=120)


def main(arguments=None):
    """Print the table row by row; return 1 if an exponent exceeds that of its formula by more than BAR."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", nargs="+", help="only these methods")
    parser.add_argument("--small", action="store_true", help="tiny sizes; the exponents are meaningless")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--json", type=Path)
    a = parser.parse_args(arguments)
    warnings.simplefilter("ignore")  # conjugate gradients stop early with a fixed number of iterations
    print("| method | variable | sizes | CPU ms | fitted exponent | exponent of the formula | formula |")
    print("|---|---|---|---|---|---|---|")
    found = []
    for curve in CURVES:
        if a.method is None or curve.method in a.method:
            found.append(measured(curve, SHRINK if a.small else 1, 1 if a.small else a.rounds))
            print(line(found[-1]), flush=True)
    if a.json:
        a.json.write_text(json.dumps(found, indent=1) + "\n")
    if a.picture:
        draw(found, a.picture)
    above = [curve for curve in found if curve["exponent"] > curve["expected"] + BAR]
    for curve in above:
        print(f"above the formula: {curve['method']} in {curve['variable']}, {curve['exponent']:.2f}")
    return 1 if above and not a.small else 0


if __name__ == "__main__":
    sys.exit(main())
