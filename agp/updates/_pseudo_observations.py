"""The optimal pseudo-observations of L-SVGP and R-SVGP at fixed hyperparameters, by products of matrices.

Two kinds of steps take turns. The noise variances s move at a fixed mean of u, by multiplicative steps, which need the
covariances V [M, N] of u and f. The weights mh of the mean move at fixed variances, by Newton steps, which conjugate
gradients solve with the products Kuf @ x and Kuf^T @ x alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from agp import tree
from agp.backend import Array, backend_of
from agp.bounds import Batch, expected_row_density, row_site_gradients
from agp.checks import check_positive, check_whole
from agp.linalg import conjugate_gradients, groups_of
from agp.posteriors import GrowingSiteForm, Posterior
from agp.processes import Process, Sparse
from agp.random import NO_DRAWS, generator
from agp.updates._base import Info, Moved, State, class_names
from agp.updates._schedules import check_rate, settle_numbers

ROUNDING = 20.0
"""Gains of up to this many units of eps |bound| count as rounding errors."""
GROWTH, SHORTEST = 1.4, 1e-3
"""The factor by which the rate grows after each accepted step, up to 1, and the rate at which the steps end."""
ROWS, ROWS_PER_INDUCING = 2048, 10
"""The variances are computed from a random sample of `ROWS` rows, or of 10 rows per inducing variable if that is more.
They are then accurate to about 20 %, which costs about 0.01 nats per inducing variable."""
SAMPLE_TOLERANCE = 1e-3
"""If a sample determines s, steps end at gains below this many nats per inducing variable."""
CG_TOLERANCE, CG_ITERATIONS = 1e-2, 30
"""Each Newton step solves its linear system to this relative residual, or takes this many iterations."""


@dataclass(frozen=True)
class OptimalPseudoObservations:
    """An update that moves the pseudo-observations of q(u) to an optimum, given the other leaves and all rows of data.

    For the posteriors `LikelihoodForm` and `Relaxed`, q(u) is the posterior of u given pseudo-observations m with the
    noise variances s. Each step of s multiplies the precision 1 / s_i of each pseudo-observation by the ratio of what
    the data tell about u_i to what the pseudo-observations tell about it. Newton steps move m. A step that lowers the
    bound is rejected, and the next one is half as long. The steps end when one of them gains less than the tolerance.
    They need products of matrices only; for `Relaxed`, the inverse factor is updated after each step of s.

    With more than 2048 rows, and more than 10 rows per inducing variable, a random sample of so many rows determines s.
    All rows determine m. If outputs are mixed or have processes of their own, one q(u) moves after the other. `agp.fit`
    applies this update before, between and after its searches for hyperparameters, and after minibatches.

    Parameters
    ----------
    tolerance
        The gain of the bound in nats. A smaller tolerance than the rounding error of the bound has no effect.
    max_steps
        The maximum number of steps.
    memory
        Memory budget in MiB; see `agp.models.Model.bound`.

    Raises
    ------
    ValueError
        If the tolerance is negative, the number of steps is not a positive integer, or the memory is not positive.

    Examples
    --------
    At fixed hyperparameters, the bound is nearly that of the best q(u) with a full covariance, which SGPR has.

    >>> import numpy as np
    >>> import agp
    >>> from agp.bounds import Batch
    >>> X = np.linspace(0.0, 6.0, 200)[:, None]
    >>> y = np.sin(2.0 * X) + 0.1 * np.cos(40.0 * X)
    >>> model = agp.training.initial_state(agp.SVGP.from_data(X, y, num_inducing=12))
    >>> update = agp.updates.OptimalPseudoObservations()
    >>> found, _, info = update(model, Batch(X, y), update.init(model))
    >>> best = agp.SGPR.from_data(X, y, kernel=model.kernel, likelihood=model.likelihood, num_inducing=12)
    >>> [round(float(best.bound(X, y)[0] - one.bound(X, y)[0]), 1) for one in (model, found)]
    [1004.3, 0.1]
    """

    tolerance: float = 1e-4
    max_steps: int = 100
    memory: float | None = None

    def __post_init__(self) -> None:
        check_rate("tolerance", self.tolerance)
        settle_numbers(self, "tolerance")
        check_whole("max_steps", self.max_steps)
        if self.memory is not None:
            check_positive("memory", self.memory)

    @staticmethod
    def applies(model: Any, /) -> bool:
        """Return whether q(u) of the model has pseudo-observations that the update can move."""
        found = tree.nodes(model, Sparse)
        if not found or not all(path.startswith("process") for path in found):
            return False
        linear = all(part.shares_inputs for part in tree.nodes(model.process, Process).values())
        if not linear or sum(part.outputs for part in found.values()) != model.process.latents:
            return False
        several = [part.posterior for part in found.values()]
        return all(isinstance(q, GrowingSiteForm) and q.can_match for q in several)

    def init(self, model: Any, /) -> State:
        """Return an empty state. Raise TypeError if the update does not apply to the model."""
        if not self.applies(model):
            raise TypeError(
                f"{class_names(model, Posterior)} has no pseudo-observations to optimise; use SVGP with the posterior "
                "Relaxed or LikelihoodForm, and preconditioned=True."
            )
        return {}

    def moves(self, model: Any, /) -> Moved:
        """Return the leaves of q(u)."""
        found = tree.nodes(model, Sparse).items()
        names = (tree.join_path(path, f"posterior.{name}") for path, part in found for name in _moving(part.posterior))
        return Moved(frozenset(names))

    def __call__(self, model: Any, batch: Batch, state: State, /) -> tuple[Any, State, Info]:
        """Return the model with optimal pseudo-observations. The info contains the number of steps."""
        matching = _Matching(model, batch, self.tolerance, self.max_steps, self.memory)
        found = matching.take_turns()
        places = [tree.join_path(part.path, "posterior") for part in matching.parts]
        new = dict(zip(places, found.posteriors, strict=True))
        return tree.replace(model, new), state, {"matching_steps": found.steps}


class Turns(NamedTuple):
    """The state of the turns."""

    bound: Array
    posteriors: tuple[Any, ...]
    """The q(u) of each part."""
    gain: Array
    """The gain of the last turn in nats."""
    steps: Array
    """The number of steps so far."""


class NoiseSteps(NamedTuple):
    """The state of the steps of s."""

    bound: Array
    posterior: Any
    beta: Array
    """The site gradients beta [n, P] of the likelihood, multiplied by the scale of the batch."""
    rate: Array
    """The rate of the next step."""
    gain: Array
    """The gain of the last accepted step divided by its rate, in nats."""
    steps: Array


class MeanSteps(NamedTuple):
    """The state of the steps of mh."""

    bound: Array
    mh: Array
    gradient: Array
    """The derivatives [M, P] of the bound with respect to mh."""
    rate: Array
    gain: Array
    """The gain of the last accepted step divided by its rate, or the expected gain of the next step if that is less."""
    steps: Array


def _moving(posterior: Any) -> tuple[str, ...]:
    """Return the names of the leaves that steps change."""
    return ("mean", posterior.site_noise.name, *posterior.inverse_factors)


class _Part:
    """A sparse process of a model: its path, what does not depend on its q(u), and its share A [P, Q] of the mixing.

    Given the means mu [N, Q] and the variances v of its functions, f has the means mu A^T and variances v (A * A)^T,
    plus those of the other parts.
    """

    def __init__(self, path: str, process: Any, mixing: Array, sample: Batch, batch: Batch, block_rows: int) -> None:
        self.path, self.process, self.mixing = path, process, mixing
        self.Kuu = process._matrix_to_invert()
        self.features = process.features(sample.X)[0]
        at_once = block_rows >= batch.X.shape[0] and not backend_of(batch.X).is_lazy
        self.inputs = process.features(batch.X)[0][0].mT if at_once else batch.X
        self.at_once = at_once

    def factor(self, q: Any) -> Any:
        """Return the factor of a q(u)."""
        return q.factorise(self.Kuu)[0]


class _Matching:
    """The steps for a model and a batch."""

    def __init__(self, model: Any, batch: Batch, tolerance: float, max_steps: int, memory: float | None) -> None:
        self.process, self.likelihood, self.batch = model.process, model.likelihood, batch
        self.max_steps = max_steps
        found, N = list(tree.nodes(model, Sparse).items()), batch.X.shape[0]
        M = max(part.inducing.count for _, part in found)
        self.block_rows = model._block_rows(batch.X, memory) or N
        self.sample = _sample(batch, max(ROWS, ROWS_PER_INDUCING * M))
        is_sampled = self.sample.X.shape[0] < N
        self.tolerance = max(tolerance, SAMPLE_TOLERANCE * M) if is_sampled else tolerance
        place, mixing = tree.first_leaf(model), model.process.mixing
        self.B = backend_of(place)
        mixing = self.B.xp.eye(model.process.outputs, **self.B.like(place)) if mixing is None else mixing
        columns = groups_of([part.outputs for _, part in found])
        pairs = zip(found, columns, strict=True)
        self.parts = [_Part(*one, mixing[:, each], self.sample, batch, self.block_rows) for one, each in pairs]

    # -- turns --------------------------------------------------------------------------------------------------------

    def take_turns(self) -> Turns:
        """Move s and mh in turn, until both together gain less than the tolerance."""
        xp = self.B.xp
        first = tuple(part.process.posterior.reinvert(part.Kuu) for part in self.parts)
        zero = xp.zeros_like(self.parts[0].Kuu[0, 0])

        def turn(*now: Any) -> tuple[Any, ...]:
            last = Turns(*now)
            several, bound, steps = last.posteriors, last.bound, last.steps
            for i in range(len(self.parts)):
                several, steps = self.match_noise(several, i, steps)
                several, bound, steps = self.match_mean(several, i, steps)
            good = bound >= last.bound
            gain = xp.where(good, bound - last.bound, zero)
            kept = tuple(_choose(good, *pair) for pair in zip(several, last.posteriors, strict=True))
            return tuple(Turns(xp.where(good, bound, last.bound), kept, gain, steps))

        def unfinished(*now: Any) -> Array:
            last = Turns(*now)
            return (last.gain > self.least(last.bound)) & (last.steps < self.max_steps)

        mh = first[0].weights_of_mean(self.parts[0].factor(first[0]))
        begun = Turns(self.mean_problem(first, 0)[0](mh)[0], first, zero + float("inf"), zero)
        return Turns(*self.B.while_loop(unfinished, turn, tuple(begun)))

    def least(self, bound: Array) -> Array:
        """Return the gain in nats below which steps end."""
        xp = self.B.xp
        return xp.maximum(
            xp.zeros_like(bound) + self.tolerance, ROUNDING * float(xp.finfo(bound.dtype).eps) * xp.abs(bound)
        )

    def repeat(self, step: Callable[..., Any], begun: Any) -> Any:
        """Repeat the steps until they gain too little or become too short."""

        def unfinished(*now: Any) -> Array:
            last = type(begun)(*now)
            return (last.gain > self.least(last.bound)) & (last.rate > SHORTEST) & (last.steps < self.max_steps)

        return type(begun)(*self.B.while_loop(unfinished, step, tuple(begun)))

    def judge(self, bound: Array, last: Any) -> tuple[Array, dict[str, Array]]:
        """Return whether a step is accepted, and its bound, gain, number and the next rate."""
        xp = self.B.xp
        good = xp.isfinite(bound) & (bound >= last.bound)
        grown = xp.minimum(GROWTH * last.rate, xp.ones_like(bound))
        return good, {
            "bound": xp.where(good, bound, last.bound),
            "rate": xp.where(good, grown, 0.5 * last.rate),
            "gain": xp.where(good, (bound - last.bound) / last.rate, last.gain),
            "steps": last.steps + 1.0,
        }

    def whole(self, several: tuple[Any, ...]) -> Any:
        """Return the process with these q(u)."""
        places = [tree.join_path(part.path, "posterior").removeprefix("process.") for part in self.parts]
        return tree.replace(self.process, dict(zip(places, several, strict=True)))

    # -- the variances s ----------------------------------------------------------------------------------------------

    def match_noise(self, several: tuple[Any, ...], i: int, steps: Array) -> tuple[tuple[Any, ...], Array]:
        """Move s of a part by multiplicative steps on the sample; all means are fixed. Return all q(u)."""
        xp, part, some, q = self.B.xp, self.parts[i], self.sample, several[i]
        Kuf, kff, _ = part.features
        squares = part.mixing * part.mixing
        process = self.whole(several)
        mu, others = process.project(process.factorise()[0], some.X)[0]
        others = others - q.project(part.factor(q), Kuf, kff)[0][1] @ squares.mT

        def look(q: Any) -> tuple[Array, Array]:
            factor = part.factor(q)
            var = others + q.project(factor, Kuf, kff)[0][1] @ squares.mT
            ell = some.scale * xp.sum(expected_row_density(self.likelihood, mu, var, some)[0])
            beta = row_site_gradients(self.likelihood, mu, var, some)[1] @ squares
            return ell - q.kl_divergence(factor)[0], some.scale * beta

        def step(*now: Any) -> tuple[Any, ...]:
            last = NoiseSteps(*now)
            factor = part.factor(last.posterior)
            new = last.posterior.match_noise(factor, Kuf, last.beta, last.rate).reinvert(part.Kuu)
            bound, beta = look(new)
            good, judged = self.judge(bound, last)
            chosen = _choose(good, new, last.posterior)
            return tuple(NoiseSteps(posterior=chosen, beta=xp.where(good, beta, last.beta), **judged))

        mh = q.weights_of_mean(part.factor(q))
        alone = tree.with_leaves(q, {"mean": xp.zeros_like(q.mean)})  # a KL divergence of the covariance only
        bound, beta = look(alone)
        one = xp.ones_like(bound)
        found = self.repeat(step, NoiseSteps(bound, alone, beta, one, one * float("inf"), steps))
        new = found.posterior.with_weights(part.factor(found.posterior), mh)
        return (*several[:i], new, *several[i + 1 :]), found.steps

    # -- the weights mh of the mean -----------------------------------------------------------------------------------

    def match_mean(self, several: tuple[Any, ...], i: int, steps: Array) -> tuple[tuple[Any, ...], Array, Array]:
        """Move mh of a part by Newton steps on all rows; return all q(u), the bound and the number of steps."""
        xp, part, q = self.B.xp, self.parts[i], several[i]
        factor = part.factor(q)
        look, hessian = self.mean_problem(several, i)

        def column(x: Array) -> Array:
            return xp.reshape(x, (-1, 1))  # mixing couples the columns of mh

        def step(*now: Any) -> tuple[Any, ...]:
            last = MeanSteps(*now)
            product, shape = hessian(last.mh), last.mh.shape
            towards = conjugate_gradients(
                lambda x: column(product(xp.reshape(x, shape))),
                column(last.gradient),
                solve=lambda r: column(q.precondition(factor, xp.reshape(r, shape))),
                tolerance=CG_TOLERANCE,
                max_iterations=CG_ITERATIONS,
            )
            mh = last.mh + last.rate * xp.reshape(towards.x, shape)
            bound, gradient = look(mh)
            good, judged = self.judge(bound, last)
            judged["gain"] = xp.where(good, xp.minimum(judged["gain"], expected_gain(gradient)), last.gain)
            chosen = {"mh": xp.where(good, mh, last.mh), "gradient": xp.where(good, gradient, last.gradient)}
            return tuple(MeanSteps(**judged, **chosen))

        def expected_gain(gradient: Array) -> Array:
            return 0.5 * xp.sum(gradient * q.precondition(factor, gradient))

        mh = q.weights_of_mean(factor)
        bound, gradient = look(mh)
        one = xp.ones_like(bound)
        begun = MeanSteps(bound, mh, gradient, one, one * float("inf"), steps)  # far away, too little gain is expected
        found = self.repeat(step, begun)
        return (*several[:i], q.with_weights(factor, found.mh), *several[i + 1 :]), found.bound, found.steps

    def mean_problem(
        self, several: tuple[Any, ...], i: int
    ) -> tuple[Callable[[Array], tuple[Array, Array]], Callable[[Array], Any]]:
        """Return the function from mh to the bound and its gradient, and that from mh to products with the Hessian.

        The variances of f [N, P] at all rows are computed once. The Hessian has the opposite sign, and negative
        curvatures of the likelihood count as zero.
        """
        xp, scale, part, q = self.B.xp, self.batch.scale, self.parts[i], several[i]
        process = self.whole(several)
        factor, first = process.factorise()[0], q.weights_of_mean(part.factor(q))
        rows = (part.inputs, self.marginals(process, factor), self.batch.y, *self.batch.known)
        kl = process.kl_divergence(factor)[0] - 0.5 * xp.sum(first * (part.Kuu @ first))

        def total(f: Callable[..., Any], *params: Array) -> Any:
            given = (None if part.at_once else part.process, self.likelihood, part.mixing, *params)
            return backend_of(self.batch.X).fold(f, given, rows, self.block_rows, add=tree.add)[0]

        def look(mh: Array) -> tuple[Array, Array]:
            ell, slopes = total(_slopes_of_rows, mh - first)
            prior = part.Kuu @ mh
            return scale * ell - kl - 0.5 * xp.sum(mh * prior), scale * slopes - prior

        def hessian(mh: Array) -> Callable[[Array], Array]:
            return lambda x: part.Kuu @ x + scale * total(_curvature_of_rows, mh - first, x)

        return look, hessian

    def marginals(self, process: Any, factor: Any) -> Array:
        """Return the means and the variances of f, side by side, at all rows [N, 2P]."""

        def marginals(X: Array) -> tuple[Array]:
            found = backend_of(X).map_rows(_marginals_of_rows, (process, factor), X, self.block_rows, add=tree.add)
            return (found[0],)

        example = self.B.xp.zeros((1, 2 * process.outputs), **self.B.like(self.parts[0].Kuu))
        return backend_of(self.batch.X).map_chunks(marginals, (self.batch.X,), (example,))[0]


def _sample(batch: Batch, rows: int) -> Batch:
    """Return a random sample of the rows of a batch, in memory, or the batch itself if it has no more rows."""
    N, B = batch.X.shape[0], backend_of(batch.X)
    if rows >= N:
        return batch
    index = generator(0, 15).permutation(N)[:rows]
    some = batch.take(lambda x: B.gather(x, index))
    return some._replace(scale=batch.scale * N / rows)


def _choose(good: Array, q: Any, otherwise: Any) -> Any:
    """Return one of two posteriors."""
    xp = backend_of(good).xp
    new, old = tree.leaves(q), tree.leaves(otherwise)
    return tree.with_leaves(otherwise, {name: xp.where(good, new[name], old[name]) for name in _moving(q)})


# -- blocks of rows ----------------------------------------------------------------------------------------------------


def _marginals_of_rows(params: tuple[Any, Any], X: Array) -> tuple[Array, None]:
    process, factor = params
    mu, var = process.project(factor, X)[0]
    return backend_of(mu).xp.concat([mu, var], axis=1), None


Rows = tuple[Any, ...]
"""The process of a part, or None if the inputs are rows of Kuf^T; the likelihood; the mixing; and how mh has moved."""


def _at_rows(params: Rows, block: tuple[Any, ...]) -> tuple[Array, Array, Array, Batch]:
    """Return Kuf [M, b], the means and variances of f [b, P] after mh has moved, and the batch of a block."""
    process, _, mixing, moved = params
    X, marginals, y, *known = block
    Kuf, P = X.mT if process is None else process.features(X)[0][0], mixing.shape[0]
    mu = marginals[:, :P] + Kuf.mT @ moved @ mixing.mT
    return Kuf, mu, marginals[:, P:], Batch(X, y, 1.0, None, NO_DRAWS, *known)


def _slopes_of_rows(params: Rows, block: tuple[Any, ...]) -> tuple[tuple[Array, Array], None]:
    """Return the expected log density of a block, and its derivatives with respect to mh, Kuf alpha A [M, Q]."""
    Kuf, mu, var, batch = _at_rows(params, block)
    likelihood, mixing = params[1:3]
    ell = expected_row_density(likelihood, mu, var, batch)[0]
    alpha = row_site_gradients(likelihood, mu, var, batch)[0]
    return (backend_of(ell).xp.sum(ell), Kuf @ (alpha @ mixing)), None


def _curvature_of_rows(params: tuple[Any, ...], block: tuple[Any, ...]) -> tuple[Array, None]:
    """Return Kuf (beta * Kuf^T x A^T) A [M, Q]."""
    likelihood, mixing, x = params[1], params[2], params[4]
    Kuf, mu, var, batch = _at_rows(params[:4], block)
    beta = row_site_gradients(likelihood, mu, var, batch)[1]
    moved = Kuf.mT @ x @ mixing.mT
    return Kuf @ ((backend_of(beta).xp.clip(beta, min=0.0) * moved) @ mixing), None
