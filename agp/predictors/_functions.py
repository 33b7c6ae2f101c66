"""Samples of latent functions as functions, with gradients."""

from collections.abc import Callable

from agp import tree
from agp._context import public
from agp.backend import Array, Pullback, backend_of, check_array_type
from agp.checks import check_finite, check_inputs, check_like, check_results
from agp.chunking import row_ranges, rows_within
from agp.processes import Paths

__all__ = ["FunctionSamples"]


@tree.model
class FunctionSamples:
    """S samples of P latent functions, from `Predictor.sample_functions`; call it at any inputs.

    All calls evaluate the same functions. X is [N, D], or [S, N, D] with inputs for each sample, as in a search for the
    maximum of each.

    Parameters
    ----------
    paths
        The samples.

    Raises
    ------
    TypeError, ValueError
        From each call, if X has another library, dtype, device or shape than the model takes, or is not finite.
    agp.errors.NonFiniteError
        If a sample is NaN or infinite.
    """

    paths: Paths

    @property
    def count(self) -> int:
        """S."""
        return self.paths.count

    @property
    def outputs(self) -> int:
        """P."""
        return self.paths.outputs

    @public
    def __call__(self, X: Array, /, *, memory: float | None = None) -> Array:
        """The values [S, N, P] at X [N, D] or [S, N, D], in chunks of rows that fit `memory` MiB.

        The default budget is that of `Predictor.predict`. Torch and JAX can differentiate the values; `with_pullback`
        and `gradient` work in every library.
        """
        return self._by_chunks(X, memory, lambda chunk: self.paths.evaluate(chunk)[0])

    @public
    def with_pullback(self, X: Array, /) -> tuple[Array, Pullback]:
        """The values [S, N, P] at X [N, D] or [S, N, D], and ``bar [S, N, P] -> X_bar``, of the shape of X."""
        self._check(X)
        samples, pullback = self.paths.evaluate(X)
        _refuse_nonfinite(samples)
        return samples, public(pullback, repairs=False, context=False, ignore="underflow")

    @public
    def gradient(self, X: Array, /, *, memory: float | None = None) -> Array:
        """The gradients [S, N, P, D] of every function at X [N, D] or [S, N, D]; arguments as a call."""

        def gradients(chunk: Array) -> Array:
            xp = backend_of(chunk).xp
            own = xp.asarray(xp.broadcast_to(chunk, (self.count, *chunk.shape[-2:])), copy=True)
            samples, pullback = self.paths.evaluate(own)
            zeros, ones = xp.zeros_like(samples[..., :1]), xp.ones_like(samples[..., :1])
            choices = ([ones if p == q else zeros for q in range(self.outputs)] for p in range(self.outputs))
            return xp.stack([pullback(xp.concat(choice, axis=-1)) for choice in choices], axis=2)

        return self._by_chunks(X, memory, gradients, copies=self.count)

    def _by_chunks(self, X: Array, memory: float | None, f: Callable[[Array], Array], copies: int = 1) -> Array:
        self._check(X)
        X = backend_of(X).gathered(X)
        copies = self.count if X.ndim == 3 else copies
        one = X if X.ndim == 2 else X[0, ...]
        ranges = row_ranges(one.shape[0], rows_within(memory, copies * self.paths.floats_per_row, one))
        found = backend_of(X).xp.concat([f(X[..., start:stop, :]) for start, stop in ranges], axis=1)
        _refuse_nonfinite(found)
        return found

    def _check(self, X: Array) -> None:
        rows = X
        check_array_type("X", X)
        if X.ndim == 3:
            if X.shape[0] != self.count:
                msg = f"X has shape {tuple(X.shape)}, but there are {self.count} functions; give [N, D] or [S, N, D]."
                raise ValueError(msg)
            rows = X[0, ...]
        check_inputs("X", rows, finite=False)
        check_like("X", X, *self.paths.reference)
        if X.shape[-1] != self.paths.width:
            msg = f"X has {X.shape[-1]} columns, the functions take inputs with {self.paths.width}."
            raise ValueError(msg)
        check_finite("X", backend_of(X).xp.reshape(X, (-1, X.shape[-1])))


def _refuse_nonfinite(samples: Array) -> None:
    remedy = "look at the kernel's parameters, use standardised data or float64, or ask closer to the data"
    check_results("of the functions", {"samples": samples}, remedy)
