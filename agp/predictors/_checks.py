"""Checks of test inputs and targets."""

from agp.backend import Array, check_array_type
from agp.checks import check_inputs, check_like
from agp.likelihoods import Likelihood


def check_test_inputs(X: Array, width: int, name: str, reference: Array) -> None:
    """Raise TypeError or ValueError unless X [..., N, D] fits the model.

    X must have `width` columns, and the library, dtype and device of the reference.
    """
    check_array_type("X", X)
    if X.ndim > 2 and 0 in X.shape:
        msg = f"X has shape {tuple(X.shape)}, but must have at least one row and one column."
        raise ValueError(msg)
    check_inputs("X", X if X.ndim <= 2 else X[(0,) * (X.ndim - 2)], finite=False)
    check_like("X", X, name, reference)
    if X.shape[-1] != width:
        msg = f"X has {X.shape[-1]} columns, but the model was built for {width}."
        raise ValueError(msg)


def check_outputs(likelihood: Likelihood, y: Array, outputs: int) -> None:
    """Raise ValueError unless targets y [N, K] fit a model with `outputs` latent functions."""
    needed = likelihood.latents(y.shape[1])
    if needed != outputs:
        msg = f"y has {needed} outputs, but the model has {outputs}; build a new model from these targets."
        raise ValueError(msg)
    likelihood.check_outputs(needed)
