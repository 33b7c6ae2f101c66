"""Processes with several outputs, which may share kernels, inducing variables or latent functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agp import tree
from agp.backend import Array, asarray_like, backend_of, like, to_numpy
from agp.checks import check_instance, check_whole, usable
from agp.errors import count_of, there_are, unknown_name_message
from agp.kernels import Kernel
from agp.models._start import Observed, sparse_kernel, sparse_process
from agp.processes import LinearMixing, Process, Sparse, Stack
from agp.starts import correlation_root
from agp.tree import detach


@dataclass(frozen=True)
class Coregionalised:
    """Outputs f = h + W g that mix L latent functions g with trained weights W, for `SVGP.from_data(outputs=...)`.

    Parameters
    ----------
    latents
        The number of latent functions L. The default is the number of columns of `weights` if they are given, otherwise
        the number of outputs. Without `weights`, L cannot exceed the number of outputs.
    weights
        The initial weights W [P, L], in units of f. By default, W W^T is the covariance of the targets. If L < P, W
        contains the leading principal directions of the standardised targets.
    intrinsic
        Whether the latent functions share one kernel and one set of inducing inputs (intrinsic coregionalisation).
        Otherwise, each latent function has its own kernel and inducing inputs (linear model of coregionalisation).

    Source: Alvarez, Rosasco & Lawrence, "Kernels for vector-valued functions: a review", 2012.

    Examples
    --------
    The second output is three times the first. Its missing targets are predicted from those of the first.

    >>> import numpy as np
    >>> import agp
    >>> X = np.linspace(0.0, 6.0, 40)[:, None]
    >>> y = np.concatenate([np.sin(X), 3.0 * np.sin(X)], axis=1)
    >>> y[10:, 1] = np.nan
    >>> outputs = agp.Coregionalised(weights=np.asarray([[1.0], [3.0]]))
    >>> prior = {"kernel": agp.RBF(1.0, 1.0), "mean_function": agp.ZeroMean()}
    >>> parts = {"posterior": "whitened", "likelihood": agp.Gaussian(0.01, missing=True)}
    >>> model = agp.SVGP.from_data(X, y, outputs=outputs, num_inducing=10, **prior, **parts)
    >>> step = agp.updates.NaturalGradient(1.0)
    >>> model = agp.train(model, X, y, steps=1, updates=[step]).model
    >>> bool(np.max(np.abs(model.predict_mean(X)[:, 1] - 3.0 * np.sin(X[:, 0]))) < 0.1)
    True

    The step trains only q(u). `agp.fit` also trains the weights.
    """

    latents: int | None = None
    weights: Any = None
    intrinsic: bool = False


Outputs = str | Coregionalised | None

MODELS_OF_OUTPUTS: dict[str, Coregionalised | None] = {
    "shared": None,
    "separate": None,
    "coregionalised": Coregionalised(),
    "intrinsic": Coregionalised(intrinsic=True),
}


def initialise_process(data: Observed, outputs: Outputs, kernel: Any, posterior: Any, /) -> Process:
    """Build a process with starting values from the data.

    The arguments are those of `SVGP.from_data`. Raises TypeError or ValueError if options are unknown, contradict each
    other, or do not fit the number of outputs.
    """
    choice = {**data.options, "posterior": posterior}
    chosen = _resolve_outputs(outputs, data)
    if chosen == "separate":
        return _separate(data, _kernels(kernel, data.outputs, "outputs"), choice)
    if isinstance(chosen, Coregionalised):
        return _coregionalised_process(data, chosen, kernel, choice)
    return _shared_process(data, _one_kernel(kernel, "shared"), choice)


def _resolve_outputs(outputs: Outputs, data: Observed) -> str | Coregionalised:
    if outputs is None or outputs == "shared":
        return "shared"
    if not isinstance(outputs, Coregionalised) and outputs not in MODELS_OF_OUTPUTS:
        raise ValueError(unknown_name_message("outputs", outputs, [*MODELS_OF_OUTPUTS, "agp.Coregionalised(...)"]))
    if data.outputs < 2:
        raise ValueError(
            f"outputs is {outputs!r}, but y has only one output; omit outputs=, or pass y with several columns."
        )
    return outputs if isinstance(outputs, Coregionalised) else MODELS_OF_OUTPUTS[outputs] or outputs


def _one_kernel(kernel: Any, outputs: str) -> Kernel | None:
    if isinstance(kernel, (list, tuple)):
        raise ValueError(
            f"kernel has {count_of(len(kernel), 'entry')}, but outputs={outputs!r} uses only one kernel; pass one "
            "kernel."
        )
    check_instance("kernel", kernel, Kernel, optional=True)
    return kernel


def _kernels(kernel: Any, count: int, what: str) -> Sequence[Kernel | None]:
    if isinstance(kernel, (list, tuple)) and len(kernel) != count:
        raise ValueError(
            f"kernel has {count_of(len(kernel), 'entry')}, but there are {count} {what}; pass one kernel, or one "
            "for each."
        )
    several = kernel if isinstance(kernel, (list, tuple)) else [kernel] * count
    for one in several:
        check_instance("kernel", one, Kernel, optional=True)
    return several


def _shared_process(data: Observed, kernel: Kernel | None, choice: dict[str, Any]) -> Process:
    """Build a process in which all outputs share one kernel and the inducing variables.

    Each output has its own scale, unless the variance of the kernel is given.
    """
    kernel = sparse_kernel(data, kernel)
    given = kernel is not None and not any(name.endswith("variance") for name in tree.missing(kernel))
    if min(data.outputs, data.y.shape[1]) < 2 or data.variances is None or given:
        return sparse_process(data, kernel=kernel, **choice)
    latent = Sparse.from_data(data.X, outputs=data.outputs, kernel=kernel, **choice)
    return _mixed_process(data, latent, _spreads(data))


def _separate(data: Observed, kernels: Sequence[Kernel | None], choice: dict[str, Any]) -> Stack:
    """Build a process with a kernel and inducing variables for each output.

    The starting values of an output are computed from the rows in which it was observed.
    """
    xp = backend_of(data.X).xp
    variances = xp.ones_like(data.level) if data.variances is None else data.variances
    parts = []
    for p, kernel in enumerate(kernels):
        own = {"level": data.level[p : p + 1], "variance": float(variances[p]), "mean_function": data.mean_function}
        kernel = sparse_kernel(data, kernel, slice(p, p + 1))
        parts.append(Sparse.from_data(_rows_of(data, p, choice), kernel=kernel, **own, **choice))
    return Stack(tuple(parts))


def _rows_of(data: Observed, p: int, choice: dict[str, Any]) -> Array:
    """Return the inputs at which output p was observed.

    If there are fewer such inputs than inducing inputs, return all inputs.
    """
    values, X = _values(data), data.X
    if values is None or not data.likelihood.missing:
        return X
    B = backend_of(X)
    rows = B.xp.nonzero(~B.xp.isnan(values[:, p]))[0]
    return B.rows_at(X, rows) if rows.shape[0] >= max(2, choice["num_inducing"] or 2) else X


def _coregionalised_process(data: Observed, chosen: Coregionalised, kernel: Any, choice: dict[str, Any]) -> Process:
    W, X = _weights(data, chosen), data.X
    L = W.shape[1]
    if chosen.intrinsic:
        kernel = sparse_kernel(data, _one_kernel(kernel, "intrinsic"))
        latent: Process = Sparse.from_data(X, outputs=L, kernel=kernel, **choice)
    else:
        kernels = [sparse_kernel(data, one) for one in _kernels(kernel, L, "latent functions")]
        latent = Stack(tuple(Sparse.from_data(X, kernel=one, **choice) for one in kernels))
    return _mixed_process(data, latent, W)


def _weights(data: Observed, chosen: Coregionalised) -> Array:
    """Return the initial W [P, L]."""
    X, P, L = data.X, data.outputs, chosen.latents
    if L is not None:
        check_whole("latents", L)
    if chosen.weights is not None:
        W = backend_of(X).xp.asarray(chosen.weights, **like(X))
        if W.ndim != 2 or W.shape[0] != P or L not in (None, W.shape[1]):
            wanted = f"({P}, {'L' if L is None else L})"
            raise ValueError(
                f"weights has shape {tuple(W.shape)}, but must have shape {wanted}; pass a row for each output and a "
                "column for each latent function."
            )
        return W
    L = P if L is None else L
    if L > P:
        raise ValueError(f"latents is {L}, but {there_are(P, 'output')}; use at most {P}, or pass weights [{P}, {L}].")
    values = _values(data)
    root = correlation_root(to_numpy(values), L) if values is not None else None
    unit = _spreads(data)[:, None]
    return unit * (backend_of(X).xp.eye(P, L, **like(X)) if root is None else asarray_like(root, X))


def _values(data: Observed) -> Array | None:
    """Return the targets [N, P] with one column for each output, or None if the likelihood has no such targets."""
    values = data.likelihood.observations(data.y)
    return data.y if values is None and data.y.shape[1] == data.outputs else values


def _spreads(data: Observed) -> Array:
    """Return the output standard deviations [P], or ones if the targets are not observations of latent functions."""
    xp = backend_of(data.X).xp
    return xp.ones_like(data.level) if data.variances is None else xp.sqrt(data.variances)


def _mixed_process(data: Observed, latent: Process, weights: Array) -> LinearMixing:
    spreads = _spreads(data)
    mean = usable(data.mean_function.from_data(data.X, data.level, spreads), data.X)
    mean.check(data.X.shape[1], data.outputs)
    unit = spreads if weights.ndim == 1 else spreads[:, None]
    return detach(LinearMixing(latent, weights, mean, weights_unit=unit))
