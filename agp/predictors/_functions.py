"""Function samples from a posterior, which can be evaluated at any inputs."""

from collections.abc import Callable

from agp import tree
from agp.backend import Array, Pullback, backend_of
from agp.checks import check_finite, check_results, check_test_inputs
from agp.chunking import row_ranges, tile_rows
from agp.errors import there_are
from agp.processes import Paths
from agp.repairs import public


@tree.model
class FunctionSamples:
    """S samples of P latent functions, which you can evaluate at any inputs. `Predictor.sample_functions` draws them.

    All calls evaluate the same functions. X has shape [N, D], or [S, N, D] if each sample has its own inputs. For
    example, pass separate inputs to search for the maximum of each sample.

    Parameters
    ----------
    paths
        The sampled functions.

    Raises
    ------
    TypeError, ValueError
        On evaluation, if X differs from the training inputs in library, dtype, device or number of columns, or if X is
        not finite.
    agp.errors.NonFiniteError
        On evaluation, if a value is NaN or infinite.
    """

    paths: Paths

    @property
    def count(self) -> int:
        """The number of samples S."""
        return self.paths.count

    @property
    def outputs(self) -> int:
        """The number of latent functions P."""
        return self.paths.outputs

    @public
    def __call__(self, X: Array, /, *, memory: float | None = None) -> Array:
        """Evaluate the functions at X [N, D] or [S, N, D], and return the values [S, N, P].

        Rows are processed in chunks that fit `memory` MiB. The default budget is that of `Predictor.predict`. Torch and
        JAX can differentiate the values. `with_pullback` and `gradient` work with every array library.
        """
        return self._by_chunks(X, memory, lambda chunk: self.paths.evaluate(chunk)[0])

    @public
    def with_pullback(self, X: Array, /) -> tuple[Array, Pullback]:
        """Evaluate the functions at X [N, D] or [S, N, D], and return the values and their pullback.

        The values have shape [S, N, P]. The pullback maps a cotangent of that shape to one with the shape of X.
        """
        self._check(X)
        samples, pullback = self.paths.evaluate(X)
        _refuse_nonfinite(samples)
        return samples, public(pullback, repairs=False, context=False, ignore="underflow")

    @public
    def gradient(self, X: Array, /, *, memory: float | None = None) -> Array:
        """Compute the gradients [S, N, P, D] of all functions at X [N, D] or [S, N, D].

        Rows are processed in chunks that fit `memory` MiB. The default budget is that of `Predictor.predict`.
        """

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
        X = backend_of(X).gather(X)
        copies = self.count if X.ndim == 3 else copies
        one = X if X.ndim == 2 else X[0, ...]
        ranges = row_ranges(one.shape[0], tile_rows(memory, copies * self.paths.floats_per_row, one))
        found = backend_of(X).xp.concat([f(X[..., start:stop, :]) for start, stop in ranges], axis=1)
        _refuse_nonfinite(found)
        return found

    def _check(self, X: Array) -> None:
        check_test_inputs(X, self.paths.width, *self.paths.reference)
        if tuple(X.shape[:-2]) not in ((), (self.count,)):
            raise ValueError(
                f"X has shape {tuple(X.shape)}, but {there_are(self.count, 'sample')}; pass [N, D] or [S, N, D]."
            )
        check_finite("X", backend_of(X).xp.reshape(X, (-1, X.shape[-1])))


def _refuse_nonfinite(samples: Array) -> None:
    remedy = "check the kernel's parameters, use standardised data or float64, or evaluate closer to the data"
    check_results("a function", {"sample": samples}, remedy)
