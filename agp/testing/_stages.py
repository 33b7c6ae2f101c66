"""The differentiable functions of each kind of part and their pullbacks, for `check_pullback`."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np

from agp import tree
from agp.backend import Array, Pullback, asarray_like, backend_of
from agp.inducing import Inducing
from agp.kernels import RBF, Kernel
from agp.likelihoods import Likelihood
from agp.means import Mean
from agp.posteriors import Posterior, start_of
from agp.processes import Process, Sparse
from agp.random import Draws
from agp.testing._inputs import Columns

NOISE = 0.1
"""The number added to the prior variances of inducing variables, to keep all variances above their lower bound."""

JITTER = 1e-3
"""The jitter of processes without a fixed jitter, as a share of the prior variance."""

Inputs = Mapping[str, Array]


class Stage(NamedTuple):
    """One differentiable function of a part."""

    name: str
    part: Any
    """The part on the host, with no leaf missing."""
    inputs: dict[str, Any]
    """Host arrays with respect to which the function is also differentiated."""
    run: Callable[[Any, Inputs], tuple[tuple[Array, ...], Pullback]]
    """The function ``(part, inputs) -> (outputs, pullback)``; the pullback is ``bars -> (part_bar, {input: bar})``."""


class Points(NamedTuple):
    """The data and sizes with which a part is checked."""

    X: Any
    """Inputs [N, D]."""
    y: Any
    """Targets [N, K] of a likelihood, or None."""
    kernel: Kernel | None
    outputs: int
    inducing: int
    rng: np.random.Generator


@singledispatch
def stages_of(part: Any, points: Points, /) -> list[Stage]:
    """Return the stages of a part, with values for missing leaves; raise a TypeError for parts of an unknown kind."""
    if isinstance(part, type) and not issubclass(part, Posterior):
        raise TypeError(f"part is the class {part.__name__}, but only posteriors may be classes; pass an instance.")
    if isinstance(part, (type, str)) or callable(part):
        Kuu = _joint_covariance(points)[: points.inducing, : points.inducing]
        return stages_of(start_of(part)(Kuu, points.outputs), points)
    raise TypeError(
        f"{type(part).__name__} has no pullback to check; pass a kernel, a likelihood, a mean function, a posterior, "
        "inducing variables or a process."
    )


def _with_inputs(output: Array, pull: Any, *names: str) -> tuple[tuple[Array], Pullback]:
    """Return the output, and a pullback that returns the cotangents of the inputs by name."""

    def pullback(bar):
        part_bar, *input_bars = pull(bar)
        return part_bar, dict(zip(names, input_bars, strict=True))

    return (output,), pullback


# -- kernels and mean functions ---------------------------------------------------------------------------------------


@stages_of.register
def _(kernel: Kernel, points: Points, /) -> list[Stage]:
    X = points.X
    kernel = tree.place_leaves(kernel.from_data(X, 1.0), X)
    kernel.check(X.shape[1])
    half, columns = X.shape[0] // 2, Columns(kernel, X.shape[1])
    if not columns.numbers:
        return _stages_of_codes(kernel, X)

    def stage(name: str, rows: dict[str, Any], method: Callable) -> Stage:
        def run(kernel: Kernel, inputs: Inputs) -> tuple[tuple, Pullback]:
            K, pull = method(kernel)(*(columns.join(rows[x], inputs[x]) for x in rows))

            def pullback(bar):
                kernel_bar, *bars = pull(bar)
                return kernel_bar, *(None if x is None else columns.take(x) for x in bars)

            return _with_inputs(K, pullback, *rows)

        return Stage(name, kernel, {x: columns.take(value) for x, value in rows.items()}, run)

    return [
        stage("k(X, Z)", {"X": X[:half], "Z": X[half:]}, lambda kernel: kernel),
        stage("k(X)", {"X": X}, lambda kernel: kernel),
        stage("diag(X)", {"X": X}, lambda kernel: kernel.diag),
    ]


def _stages_of_codes(kernel: Kernel, X: Any) -> list[Stage]:
    """Return the stages of a kernel of categories alone, which is not differentiated by its inputs."""
    half = X.shape[0] // 2

    def stage(name: str, rows: tuple[Any, ...], method: Callable) -> Stage:
        def run(kernel: Kernel, inputs: Inputs) -> tuple[tuple, Pullback]:  # noqa: ARG001
            here = tree.first_leaf(kernel)
            K, pull = method(kernel)(*(asarray_like(x, here) for x in rows))
            return (K,), lambda bar: (pull(bar)[0], {})

        return Stage(name, kernel, {}, run)

    return [
        stage("k(X, Z)", (X[:half], X[half:]), lambda kernel: kernel),
        stage("k(X)", (X,), lambda kernel: kernel),
        stage("diag(X)", (X,), lambda kernel: kernel.diag),
    ]


@stages_of.register
def _(mean: Mean, points: Points, /) -> list[Stage]:
    X = points.X
    mean = tree.place_leaves(mean.from_data(X, np.ones(points.outputs), 1.0), X)
    mean.check(X.shape[1], points.outputs)

    def of_inputs(mean: Mean, inputs: Inputs) -> tuple[tuple, Pullback]:
        h, pull = mean(inputs["X"])
        xp = backend_of(h).xp
        return _with_inputs(xp.broadcast_to(h, (h.shape[0], points.outputs)), pull, "X")

    return [Stage("h(X)", mean, {"X": X}, of_inputs)]


# -- likelihoods ------------------------------------------------------------------------------------------------------


@stages_of.register
def _(likelihood: Likelihood, points: Points, /) -> list[Stage]:
    if points.y is None:
        raise TypeError(f"the likelihood {type(likelihood).__name__} needs targets; pass valid targets [N, K] as y=.")
    y = np.asarray(points.y, dtype=np.float64)
    y = y[:, None] if y.ndim == 1 else y
    likelihood = tree.place_leaves(likelihood.from_data(1.0), y)
    likelihood.check_parameters()
    likelihood.check_targets(y)
    rows, latents = y.shape[0], likelihood.latents(y.shape[1])
    noise = likelihood.draws(points.rng, rows, latents)
    moments = {
        "mu": points.rng.standard_normal((rows, latents)),
        "var": points.rng.uniform(0.1, 1.0, (rows, latents)),
    }

    def of_moments(likelihood: Likelihood, inputs: Inputs) -> tuple[tuple, Pullback]:
        mu = inputs["mu"]
        draws = {name: asarray_like(x, mu) for name, x in noise.items()} or None
        ell, pull = likelihood.expected_log_density(mu, inputs["var"], asarray_like(y, mu), draws)
        return _with_inputs(ell, pull, "mu", "var")

    return [Stage("expected_log_density", likelihood, moments, of_moments)]


# -- posteriors -------------------------------------------------------------------------------------------------------


def _joint_covariance(points: Points) -> Any:
    """Return the joint covariance [M + N, M + N] of the inducing variables and of f at X."""
    M, D = points.inducing, points.X.shape[1]
    rng = np.random.default_rng(0)  # gives the same inducing inputs at each call
    both = np.concat([rng.standard_normal((M, D)), points.X], axis=0)
    joint = RBF(np.asarray(1.0), np.asarray(1.0))(both)[0]
    return joint + np.diag(np.concat([np.full(M, NOISE), np.zeros(both.shape[0] - M)]))


@stages_of.register(Posterior)
def _(posterior: Posterior[Any], points: Points, /) -> list[Stage]:
    joint, M = _joint_covariance(points), points.inducing
    posterior = tree.place_leaves(posterior, joint)
    noise = posterior.draws(points.rng)
    covariances = {"Kuu": joint[:M, :M], "Kuf": joint[:M, M:], "kff": np.diagonal(joint)[M:].copy()}

    def of_covariances(posterior: Posterior[Any], inputs: Inputs) -> tuple[tuple, Pullback]:
        Kuu, Kuf, kff = (inputs[name] for name in ("Kuu", "Kuf", "kff"))
        drawn = posterior.with_draws({name: asarray_like(x, Kuu) for name, x in noise.items()}) if noise else posterior
        factor, pull_factor = drawn.factorise(0.5 * (Kuu + Kuu.mT))
        (mu, var), pull_project = drawn.project(factor, Kuf, kff)
        kl, pull_kl = drawn.kl_divergence(factor)

        def pullback(mu_bar, var_bar, kl_bar):
            own, factor_bar, Kuf_bar, kff_bar = pull_project(mu_bar, var_bar)
            kl_own, kl_factor = pull_kl(kl_bar)
            factor_own, Kuu_bar = pull_factor(tree.add(factor_bar, kl_factor))
            if Kuu_bar is not None:
                Kuu_bar = 0.5 * (Kuu_bar + Kuu_bar.mT)
            total = tree.add(tree.add(own, kl_own), factor_own)
            return total, {"Kuu": Kuu_bar, "Kuf": Kuf_bar, "kff": kff_bar}

        return (mu, var, kl), pullback

    return [Stage("factorise, project and kl_divergence", posterior, covariances, of_covariances)]


# -- inducing variables and processes ---------------------------------------------------------------------------------


@tree.model
class _Placed:
    """Inducing variables, and the kernel of their process."""

    inducing: Inducing
    kernel: Kernel


@stages_of.register
def _(inducing: Inducing, points: Points, /) -> list[Stage]:
    X = points.X
    kernel = RBF() if points.kernel is None else points.kernel
    choice: dict[str, Any] = {"num_inducing": points.inducing, "how": "random", "seed": 0}
    pair = _Placed(*inducing.initialise(X, kernel, 1.0, **choice))

    def stage(name: str, inputs: dict[str, Any]) -> Stage:
        def run(pair: _Placed, inputs: Inputs) -> tuple[tuple, Pullback]:
            K, pull = getattr(pair.inducing, name)(pair.kernel, *inputs.values())

            def pullback(bar):
                inducing_bar, kernel_bar, *input_bars = pull(bar)
                return tree.cotangent(pair, inducing=inducing_bar, kernel=kernel_bar), *input_bars

            return _with_inputs(K, pullback, *inputs)

        return Stage(name, pair, inputs, run)

    return [stage("covariance", {}), *(stage(name, {"X": X}) for name in ("cross", "diag", "full"))]


def _with_fixed_jitter(process: Process) -> Process:
    # default jitter depends on Kuu: the pullback treats it as constant, but differences do not
    sparse = {path: node for path, node in tree.nodes(process, Sparse).items() if node.jitter is None}
    scales = {path: float(np.mean(np.diagonal(node.inducing_covariance()[0]))) for path, node in sparse.items()}
    fixed = {path: dataclasses.replace(node, jitter=JITTER * scales[path]) for path, node in sparse.items()}
    return tree.replace(process, fixed) if fixed else process


@stages_of.register
def _(process: Process, points: Points, /) -> list[Stage]:
    X, process = points.X, _with_fixed_jitter(process)
    process.check()
    found = process.draws(points.rng, X.shape[0])
    noise = points.rng.standard_normal((1, X.shape[0], process.latents))

    def drawn(process: Process, X: Array) -> tuple[Process, Any, Pullback]:
        by_row, whole = ({name: asarray_like(x, X) for name, x in part.items()} for part in found)
        process = process.with_draws(Draws({}, whole)) if whole else process
        factor, pull_factor = process.factorise()
        return process.with_draws(Draws(by_row, {})) if by_row else process, factor, pull_factor

    def marginals(process: Process, inputs: Inputs) -> tuple[tuple, Pullback]:
        process, factor, pull_factor = drawn(process, inputs["X"])
        (mu, var), pull_project = process.project(factor, inputs["X"])
        kl, pull_kl = process.kl_divergence(factor)

        def pullback(mu_bar, var_bar, kl_bar):
            own, factor_bar, X_bar = pull_project(mu_bar, var_bar)
            kl_own, kl_factor = pull_kl(kl_bar)
            rest = pull_factor(tree.add(factor_bar, kl_factor))
            return tree.add(tree.add(own, kl_own), rest), {"X": X_bar}

        return (mu, var, kl), pullback

    def samples(process: Process, inputs: Inputs) -> tuple[tuple, Pullback]:
        process, factor, pull_factor = drawn(process, inputs["X"])
        f, pull = process.sample_marginals(factor, inputs["X"], asarray_like(noise, inputs["X"]))

        def pullback(bar):
            own, factor_bar, X_bar = pull(bar)
            return tree.add(own, pull_factor(factor_bar)), {"X": X_bar}

        return (f,), pullback

    stages = [Stage("factorise, project and kl_divergence", process, {"X": X}, marginals)]
    if not found.by_row:  # processes with draws for each row cannot be layers
        stages.append(Stage("sampled", process, {"X": X}, samples))
    return stages
