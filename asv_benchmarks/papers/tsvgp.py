"""t-SVGP: MNIST and UCI data as in Adam, Chang, Khan & Solin, NeurIPS 2021.

    python asv_benchmarks/papers/tsvgp.py --data DIR --out OUT --cells 'mnist-*'

All models have a Matern-5/2 kernel with a lengthscale for each column, and a zero mean. All lengthscales and variances
start at 1, and inducing inputs are trained. An iteration takes E-steps of q(u), by natural gradients in different
parameterisations, and M-steps of Adam for the other parameters. Positive parameters are softplus functions of the
parameters that Adam moves.

- MNIST: The likelihood is softmax with ten latent functions. The first 100 shuffled images are the initial inducing
  inputs, and batches have 200 of the 60,000 training images. All 10,000 test images are scored. The rates and the
  numbers of steps are those of the paper's table. They are part of the names of the cells, as RATExSTEPS for the
  E-steps and for the M-steps. All steps of an iteration take the same batch. In the cells named "new-batches", each
  M-step takes a new batch, E-steps of t-SVGP share a batch, and each E-step of q-SVGP takes a new batch.
- UCI data: The scores are from five-fold cross-validation. The first 50 training rows are the initial inducing inputs,
  and all rows are in one batch. For regression, an iteration takes 8 E-steps at rate 0.8 and 20 M-steps at rate 0.1.
  For two classes, it takes 6 E-steps at rate 0.75 and 14 M-steps at rate 0.2. The method adam moves q(u) and all other
  parameters together. The paper shows curves without numbers.
"""

import one_thread  # noqa: F401 - before NumPy

# isort: split
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cells import Cell, Figure, Paper, Run, Table, curve_table, main, remove_units
from rows import Rows, fold, images

import agp
from agp.bounds import Batch
from agp.posteriors import Dual, Whitened
from agp.random import Draws
from agp.updates import Adam, NaturalGradient, Repeat, SiteStep

Steps = tuple[float, int]
"""Rate and number of the E-steps or M-steps of an iteration."""

CLASSES, INDUCING, BATCH = 10, 100, 200
SAMPLES = 100
"""Number of samples of the softmax likelihood in training, as in GPflow."""
ITERATIONS = 150
"""Number of iterations for MNIST; the paper does not state it for the table, and times 150."""
SMALL = {"iterations": 2, "rows": 400}
"""Number of iterations, and of training and test images, in a rehearsal."""

METHODS = ("t-svgp", "q-svgp", "adam")
UCI_INDUCING = 50
CLASSIFICATION, REGRESSION = ((0.75, 6), (0.2, 14)), ((0.8, 8), (0.1, 20))
"""E-steps and M-steps for UCI data."""
UCI = {"banana": CLASSIFICATION, "ionosphere": CLASSIFICATION, "airfoil": REGRESSION, "concrete": REGRESSION}
SCORED = (1, 2, 5, 10, 20)
"""Iterations after which models for UCI data are scored."""


@dataclass(frozen=True)
class OnParts:
    """An update that applies another update to equal parts of the batch, one after another.

    Parameters
    ----------
    update
        The update.
    parts
        The numbers of the parts to which it is applied.
    of
        The number of parts of the batch.
    """

    update: Any
    parts: Sequence[int]
    of: int

    def init(self, model: Any, /) -> Any:
        """The initial state of the update."""
        return self.update.init(model)

    def moves(self, model: Any, /) -> Any:
        """The leaves that the update may change."""
        return self.update.moves(model)

    def __call__(self, model: Any, batch: Batch, state: Any, /) -> tuple[Any, Any, Any]:
        """The model and the state after the last part, and what the update logs there."""
        info: Any = {}
        for part in self.parts:
            model, state, info = self.update(model, select_part(batch, part, self.of), state)
        return model, state, info


def select_part(batch: Batch, part: int, of: int) -> Batch:
    """One of several equal parts of a batch."""
    size = batch.X.shape[0] // of
    rows = slice(part * size, (part + 1) * size)
    draws = Draws({name: x[:, rows] for name, x in batch.draws.by_row.items()}, batch.draws.whole)
    which = None if batch.rows is None else batch.rows[rows]
    return Batch(batch.X[rows], batch.y[rows], of * batch.scale, which, draws)


def e_and_m_updates(method: str, e_rate: float, m_rate: float) -> tuple[Any, Any]:
    """The updates for E-steps and M-steps."""
    if method == "t-svgp":
        return SiteStep(e_rate), Adam(m_rate)  # which never moves sites
    return NaturalGradient(e_rate), Adam(m_rate, frozen="posterior.*")


def updates(method: str, e_step: Steps, m_step: Steps) -> list[Any]:
    """The updates of an iteration with one batch. The method adam moves all leaves at the rate of the M-steps."""
    (e_rate, e_steps), (m_rate, m_steps) = e_step, m_step
    if method == "adam":
        return [Repeat(Adam(m_rate), e_steps + m_steps)]
    e_update, m_update = e_and_m_updates(method, e_rate, m_rate)
    return [Repeat(e_update, e_steps), Repeat(m_update, m_steps)]


def updates_on_parts(method: str, e_step: Steps, m_step: Steps) -> tuple[list[Any], int]:
    """The updates of an iteration with several batches, and their number.

    M-steps take a new batch each. E-steps of t-SVGP share one batch, and those of q-SVGP take a new batch each.
    """
    (e_rate, e_steps), (m_rate, m_steps) = e_step, m_step
    e_update, m_update = e_and_m_updates(method, e_rate, m_rate)
    if method == "t-svgp":
        e_update, e_steps = Repeat(e_update, e_steps), 1
    of = e_steps + m_steps
    return [OnParts(e_update, range(e_steps), of), OnParts(m_update, range(e_steps, of), of)], of


def start(rows: Rows, method: str, likelihood: Any, inducing: int) -> Any:
    """Build the untrained model, whose inducing inputs are the first rows."""
    parts: dict[str, Any] = {
        "kernel": agp.Matern52(1.0, np.ones(rows.X.shape[1])),
        "likelihood": likelihood,
        "mean_function": agp.ZeroMean(),
        "posterior": Dual if method == "t-svgp" else Whitened,
        "Z": rows.X[:inducing],
    }
    return remove_units(agp.SVGP.from_data(rows.X, rows.y, **parts))


def measure(run: Run, *, table: str, **settings: Any) -> dict[str, float]:
    """Measure a run on MNIST or on UCI data."""
    return mnist(run, **settings) if table == "mnist" else uci(run, table=table, **settings)


def mnist(run: Run, *, method: str, e_step: Steps, m_step: Steps, new_batches: bool = False) -> dict[str, float]:
    """Train a model on MNIST; return the NLPD per test image and the error rate in percent."""
    rows, iterations = images(run.data, "mnist", run.seed), ITERATIONS
    if run.small:
        rows, iterations = rows.head(SMALL["rows"]), SMALL["iterations"]
    model = start(rows, method, agp.Softmax(CLASSES, samples=SAMPLES), INDUCING)
    steps, batches = updates(method, e_step, m_step), 1
    if new_batches:
        steps, batches = updates_on_parts(method, e_step, m_step)
    batch = min(BATCH, len(rows.y) // batches)
    settings = {"batch_size": batches * batch, "seed": run.seed, "updates": steps}
    model = run.train(model, rows.X, rows.y, steps=iterations, **settings).model
    probability = model.predict(rows.X_test, observed=True).mean
    classes = rows.y_test[:, 0].astype(int)
    nlpd = -float(np.mean(np.log(probability[np.arange(len(classes)), classes])))
    return {"nlpd": nlpd, "error": 100.0 * float(np.mean(np.argmax(probability, axis=1) != classes))}


def uci(run: Run, *, table: str, method: str) -> dict[str, float]:
    """Train on all folds but one; return bound, NLPD of the fold and seconds of training after some iterations."""
    classes = UCI[table] is CLASSIFICATION
    rows = fold(run.data, table, run.seed, classes=classes)
    model = start(rows, method, agp.Bernoulli() if classes else agp.Gaussian(1.0), UCI_INDUCING)
    steps = updates(method, *UCI[table])

    def scores(iteration: int) -> dict[str, float]:
        result = run.train(model, rows.X, rows.y, steps=iteration, updates=steps)
        nlpd = -float(np.mean(result.model.log_density(rows.X_test, rows.y_test)))
        values = {"bound": float(result.model.bound(rows.X, rows.y)[0]), "nlpd": nlpd, "seconds": result.seconds}
        return {f"{name}_{iteration}": value for name, value in values.items()}

    return run.stages(SCORED[: 2 if run.small else None], scores)


THEIRS = (
    # E-steps, M-steps, NLPD and standard deviation of q-SVGP and of t-SVGP
    ((0.040, 1), (0.05, 1), (0.304, 0.015), (0.304, 0.006)),
    ((0.035, 2), (0.10, 1), (0.289, 0.010), (0.283, 0.007)),
    ((0.030, 3), (0.10, 1), (0.293, 0.020), (0.281, 0.010)),
    ((0.025, 4), (0.03, 2), (0.259, 0.010), (0.255, 0.006)),
    ((0.050, 4), (0.03, 2), (0.282, 0.007), (0.283, 0.006)),
    ((0.030, 4), (0.03, 1), (0.243, 0.003), (0.230, 0.009)),
)


def cells() -> list[Cell]:
    """The cells of the MNIST table, and those of the UCI data, whose seeds are folds."""
    found = []
    for e_step, m_step, *figures in THEIRS:
        for method, figure in zip(("q-svgp", "t-svgp"), figures, strict=True):
            name = f"mnist-{method}-{e_step[0]}x{e_step[1]}-{m_step[0]}x{m_step[1]}"
            settings = {"table": "mnist", "method": method, "e_step": e_step, "m_step": m_step}
            found.append(Cell(name, "mnist", settings, {"nlpd": Figure.from_deviation(*figure)}))
            found.append(Cell(name.replace("-", "-new-batches-", 1), "mnist", settings | {"new_batches": True}))
    for table in UCI:
        found += [Cell(f"uci-{table}-{method}", table, {"table": table, "method": method}) for method in METHODS]
    return found


PAPER = Paper(
    name="tsvgp",
    version=1,
    title="t-SVGP",
    source=(
        'Adam, Chang, Khan & Solin, "Dual parameterization of sparse variational Gaussian processes", NeurIPS 2021: '
        "the table of NLPD on MNIST, and the figures for UCI data."
    ),
    protocol=__doc__,
    cells=cells(),
    differences=(
        "The paper does not state the number of iterations for the table. We take 150, the number that the paper "
        "times.",
        "The paper does not say what its ± means. We treat it as the standard deviation over five runs.",
        "The rows of the paper's table are read from its text, in which the table is not laid out.",
        "In the authors' example, E-steps and M-steps take different batches. Then the NLPD with two M-steps is "
        "lower by 0.04, and farther from the paper's; with one M-step, it changes by at most 0.014. Therefore, all "
        "steps of an iteration take the same batch in the cells that are compared.",
        "The authors differentiate Monte Carlo averages with 100 samples. We estimate the second derivatives of "
        "t-SVGP's E-steps by the less noisy probabilities of the samples, and predict with 200 samples in "
        "antithetic pairs.",
        "The paper counts 70,000 images. We train on 60,000, and score the other 10,000.",
        "UCI data: The folds are others. Of the paper's data, we take ionosphere, airfoil and concrete, and we add "
        "banana. We score after the M-steps, but the authors' scripts score after the E-steps. Their Adam moves "
        "q(u) in E-steps at the rate of the E-steps, ours at the rate of the M-steps.",
    ),
    reasons={
        "mnist-*": "The NLPD depends on the number of iterations, which is unknown. After 50, 75, 150 and 200 "
        "iterations with new batches, one run of t-SVGP had 0.43, 0.28, 0.24 and 0.22 for 0.04x1-0.05x1, and 0.97, "
        "0.37, 0.25 and 0.23 for 0.03x4-0.03x1. The paper's figures are those of about 70 and about 200 iterations, so "
        "no single number gives both.",
    },
    tables=(
        Table("Error rate on MNIST", "mnist-[qt]-*", {"error": "wrong test images, %"}),
        Table("MNIST with new batches", "mnist-new-batches-*", {"nlpd": "NLPD", "error": "wrong test images, %"}),
        curve_table("UCI data: bound", "uci-*", "bound", SCORED, "iteration"),
        curve_table("UCI data: NLPD", "uci-*", "nlpd", SCORED, "iteration"),
        curve_table("UCI data: seconds of training", "uci-*", "seconds", SCORED, "iteration"),
    ),
)

if __name__ == "__main__":
    sys.exit(main(PAPER, measure))
