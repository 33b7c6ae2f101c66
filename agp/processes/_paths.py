"""Sample paths: functions drawn from a process, which can be evaluated and differentiated at any inputs.

By Matheron's rule, a posterior sample is f(x) = h(x) + prior(x) + k(x, Z) w. Here `prior` is a sample from the prior, u
is a sample from q(u), and w = Kuu^-1 (u - prior(Z)). `Posterior.path_weights` computes w in a form that suits the
parameterisation. The prior sample is phi(x)^T g, with features phi of the kernel and random weights g.

Source: Wilson, Borovitskiy, Terenin, Mostowsky & Deisenroth, "Efficiently sampling functions from Gaussian process
posteriors", ICML 2020.
"""

from abc import abstractmethod
from collections.abc import Callable
from functools import reduce
from typing import Any, ClassVar

from agp import tree
from agp.backend import Array, Pullback, asarray_like, backend_of
from agp.inducing import Inducing, PatchGrid
from agp.kernels import Kernel, combine_map
from agp.linalg import groups_of
from agp.means import Mean, Projection
from agp.processes._outputs import Alike, Chained, InputsOf, Mapped, MultiOutput, SideBySide


def mix_outputs(x: Array, weights: Array) -> Array:
    """Return x W^T [..., P] for x [..., L]. The weights are W [P, L], or the diagonal [P] of a diagonal W."""
    return x * weights if weights.ndim == 1 else x @ weights.mT


def mix_outputs_pullback(bar: Array, weights: Array) -> Array:
    """Pull back a cotangent [..., P] through `mix_outputs` to x, with the result [..., L]."""
    return bar * weights if weights.ndim == 1 else bar @ weights


def weights_bar(bar: Array, x: Array, weights: Array) -> Array:
    """Pull back a cotangent [R, P] through `mix_outputs` to the weights, given x [R, L]."""
    return backend_of(x).xp.sum(bar * x, axis=0) if weights.ndim == 1 else bar.mT @ x


class Paths(MultiOutput):
    """S samples of P latent functions, which can be evaluated at any inputs."""

    @property
    @abstractmethod
    def count(self) -> int:
        """The number of samples S."""

    @abstractmethod
    def evaluate(self, X: Array, /) -> tuple[Array, Pullback]:
        """Return the values [S, N, P] of all samples at X [N, D], or at separate inputs for each sample, X [S, N, D].

        The pullback is ``bar [S, N, P] -> X_bar``, which has the shape of X.
        """


@tree.model
class SparsePaths(InputsOf, Paths):
    """Sample paths of a process with one kernel. Each path is a prior sample plus Kuf^T w."""

    kernel: Kernel
    inducing: Inducing
    mean_function: Mean
    features: Any
    """A function from X [N, D] to the features phi [N, F] of the kernel and their pullback."""
    prior_weights: Array = tree.auxiliary()
    """g [P, F, S]."""
    weights: Array = tree.auxiliary()
    """w [P, M, S]."""

    takes_inputs_of: ClassVar[str] = "inducing"

    @property
    def count(self) -> int:
        return self.weights.shape[2]

    @property
    def outputs(self) -> int:
        return self.weights.shape[0]

    @property
    def floats_per_row(self) -> int:
        features = 6 * self.prior_weights.shape[1]
        return self.inducing.floats_per_row(self.kernel) + features + 3 * self.count * self.outputs

    def evaluate(self, X: Array, /) -> tuple[Array, Pullback]:
        xp = backend_of(X).xp
        rows = X if X.ndim == 2 else xp.reshape(X, (-1, X.shape[-1]))
        Kuf, pull_Kuf = self.inducing.cross(self.kernel, rows)
        h, pull_h = mean_of_samples(self.mean_function, X)
        groups = X.shape[:-2]  # (S,) if each sample has its own inputs
        prior, pull_prior = prior_samples(self.features, X, self.prior_weights)
        update, pull_update = combine_features(xp.reshape(Kuf.mT, (*groups, -1, Kuf.shape[0])), self.weights)

        def pullback(bar):
            X_bar = pull_Kuf(xp.reshape(pull_update(bar), Kuf.mT.shape).mT)[-1]
            X_bar = tree.add(None if X_bar is None else xp.reshape(X_bar, X.shape), pull_prior(bar))
            X_bar = tree.add(X_bar, pull_h(bar))
            return xp.zeros_like(X) if X_bar is None else X_bar

        return h + prior + update, pullback


def mean_of_samples(mean_function: Mean, X: Array) -> tuple[Array, Pullback]:
    """Return the mean [N, P] at X [N, D] or [S, N, P] at X [S, N, D], and ``bar [S, N, P] -> X_bar`` (None: zero)."""
    xp, groups = backend_of(X).xp, X.shape[:-2]
    h, pull = mean_function(xp.reshape(X, (-1, X.shape[-1])))

    def pullback(bar):
        total = bar if groups else xp.sum(bar, axis=0)
        X_bar = pull(xp.reshape(total, (-1, bar.shape[-1])))[-1]
        return None if X_bar is None else xp.reshape(X_bar, X.shape)

    return xp.reshape(h, (*groups, -1, h.shape[1])), pullback


def prior_samples(phi: Any, X: Array, weights: Array) -> tuple[Array, Pullback]:
    """Return prior samples [S, N, P] at X [N, D] or [S, N, D], and ``bar [S, N, P] -> X_bar`` (None: zero).

    `phi` maps inputs to features [N, F], and the weights are [P, F, S].
    """
    xp, (P, F, S) = backend_of(X).xp, weights.shape
    rows = xp.reshape(X, (-1, X.shape[-1]))
    if X.ndim == 3 and S > 1:
        found, pull_phi = phi(rows)
        sums, pull_sums = combine_features(xp.reshape(found, (S, -1, F)), weights)

        def pull(bar):
            return pull_phi(xp.reshape(pull_sums(bar), found.shape))
    else:
        sums, pull_rows, _ = combine_map(phi, rows, xp.reshape(xp.permute_dims(weights, (1, 2, 0)), (F, -1)))
        sums = xp.permute_dims(xp.reshape(sums, (-1, S, P)), (1, 0, 2))

        def pull(bar):
            return pull_rows(xp.reshape(xp.permute_dims(bar, (1, 0, 2)), (-1, S * P)))

    def pullback(bar):
        X_bar = pull(bar)
        return None if X_bar is None else xp.reshape(X_bar, X.shape)

    return sums, pullback


def combine_features(features: Array, weights: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Return sums [S, N, P] of features [N, F] or [S, N, F] with weights [P, F, S], and ``bar -> features_bar``."""
    xp = backend_of(features).xp
    if features.ndim == 3:
        by_sample = xp.permute_dims(weights, (2, 1, 0))
        return features @ by_sample, lambda bar: bar @ by_sample.mT
    sums = xp.permute_dims(features @ weights, (2, 1, 0))
    return sums, lambda bar: xp.sum(xp.permute_dims(bar, (2, 1, 0)) @ weights.mT, axis=0)


def conditional_paths(
    prior: Any,
    inducing: Inducing,
    weights_of: Callable[[Array, Array], Array],
    rng: Any,
    /,
    *,
    outputs: int,
    count: int,
    features: int,
) -> SparsePaths:
    """Return sample paths, with weights computed from noise and from prior samples of the inducing variables.

    `prior` is an object with a kernel and a mean function h, and `inducing` are inducing variables of f - h. The
    function ``weights_of(values, noise)`` takes prior samples and standard normal noise, and returns weights. All three
    arrays have the shape [P, M, S]. `outputs` is P, `count` is S, and `features` is the number of frequencies for each
    stationary kernel. The NumPy generator `rng` draws all random numbers on the host.
    """
    phi, own = inducing.random_features(prior.kernel, rng, features)
    prior_weights = asarray_like(rng.standard_normal((outputs, own.shape[1], count)), own)
    noise = asarray_like(rng.standard_normal((outputs, own.shape[0], count)), own)
    weights = weights_of(own @ prior_weights, noise)
    return SparsePaths(prior.kernel, inducing, prior.mean_function, phi, prior_weights, weights)


# -- compositions -----------------------------------------------------------------------------------------------------


@tree.model
class StackedPaths(SideBySide, Paths):
    """Sample paths of independent processes, side by side."""

    parts: tuple[Paths, ...]

    @property
    def count(self) -> int:
        return self.parts[0].count

    def evaluate(self, X: Array, /) -> tuple[Array, Pullback]:
        found = [part.evaluate(X) for part in self.parts]

        def pullback(bar):
            shares = zip(found, groups_of([part.outputs for part in self.parts]), strict=True)
            return reduce(tree.add, (pull(bar[..., columns]) for (_, pull), columns in shares))

        return backend_of(X).xp.concat([value for value, _ in found], axis=-1), pullback


@tree.model
class JoinedPaths(Alike, Paths):
    """Sample paths of several processes with the same inputs and outputs, one after the other."""

    parts: tuple[Paths, ...]

    @property
    def count(self) -> int:
        return sum(part.count for part in self.parts)

    @property
    def floats_per_row(self) -> int:
        return max(part.floats_per_row for part in self.parts) + 2 * self.count * self.outputs

    def evaluate(self, X: Array, /) -> tuple[Array, Pullback]:
        places = groups_of([part.count for part in self.parts])
        own = [X if X.ndim == 2 else X[place, ...] for place in places]
        found = [part.evaluate(x) for part, x in zip(self.parts, own, strict=True)]
        xp = backend_of(X).xp

        def pullback(bar):
            bars = [pull(bar[place, ...]) for (_, pull), place in zip(found, places, strict=True)]
            return reduce(tree.add, bars) if X.ndim == 2 else xp.concat(bars, axis=0)

        return xp.concat([value for value, _ in found], axis=0), pullback


@tree.model
class KnownPaths(Mapped, Paths):
    """A known function, represented as S equal samples."""

    mean_function: Projection
    count: int = 1  # type: ignore[override]

    @property
    def floats_per_row(self) -> int:
        return 4 * self.count * self.outputs

    def evaluate(self, X: Array, /) -> tuple[Array, Pullback]:
        h, pull = mean_of_samples(self.mean_function, X)
        return backend_of(X).xp.broadcast_to(h, (self.count, X.shape[-2], self.outputs)), pull


@tree.model
class MixedPaths(InputsOf, Paths):
    """Sample paths of h + W g, given sample paths of g."""

    latent: Paths
    weights: Array = tree.auxiliary()
    mean_function: Mean

    takes_inputs_of: ClassVar[str] = "latent"

    @property
    def count(self) -> int:
        return self.latent.count

    @property
    def outputs(self) -> int:
        return self.weights.shape[0]

    @property
    def floats_per_row(self) -> int:
        return self.latent.floats_per_row + 2 * self.count * self.outputs

    def evaluate(self, X: Array, /) -> tuple[Array, Pullback]:
        latent, pull = self.latent.evaluate(X)
        h, pull_mean = mean_of_samples(self.mean_function, X)

        def pullback(bar):
            return tree.add(pull(mix_outputs_pullback(bar, self.weights)), pull_mean(bar))

        return h + mix_outputs(latent, self.weights), pullback


@tree.model
class EachPatchPaths(Paths):
    """Sample paths of a `Patchwise` process. Each path applies one sample of the inner process to all patches."""

    paths: Paths
    grid: PatchGrid

    @property
    def count(self) -> int:
        return self.paths.count

    @property
    def outputs(self) -> int:
        return self.grid.number * self.paths.outputs

    @property
    def width(self) -> int:
        return self.grid.width

    @property
    def reference(self) -> tuple[str, Array]:
        return self.paths.reference

    @property
    def floats_per_row(self) -> int:
        return self.grid.number * (self.paths.floats_per_row + 2 * self.grid.columns)

    def evaluate(self, X: Array, /) -> tuple[Array, Pullback]:
        xp, groups = backend_of(X).xp, X.shape[:-2]  # (S,) if each sample has its own inputs
        rows, pull_rows = self.grid.rows(xp.reshape(X, (-1, X.shape[-1])))
        values, pull = self.paths.evaluate(xp.reshape(rows, (*groups, -1, rows.shape[1])))

        def pullback(bar):
            rows_bar = pull(xp.reshape(bar, values.shape))
            return xp.reshape(pull_rows(xp.reshape(rows_bar, rows.shape)), X.shape)

        return xp.reshape(values, (self.count, X.shape[-2], self.outputs)), pullback


@tree.model
class DeepPaths(Chained, Paths):
    """Sample paths of a deep process. Sample s of each layer takes sample s of the previous layer as input."""

    layers: tuple[Paths, ...]

    @property
    def count(self) -> int:
        return self.layers[0].count

    @property
    def floats_per_row(self) -> int:
        first, *others = (layer.floats_per_row for layer in self.layers)
        return first + self.count * sum(others)

    def evaluate(self, X: Array, /) -> tuple[Array, Pullback]:
        H, pulls = X, []
        for layer in self.layers:
            H, pull = layer.evaluate(H)
            pulls.append(pull)

        def pullback(bar):
            for pull in reversed(pulls):
                bar = pull(bar)
            return bar

        return H, pullback
