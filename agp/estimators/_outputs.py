"""How several target columns are related, as a parameter of estimators and as an argument of models."""

from typing import Any

from agp.checks import check_whole
from agp.errors import count_of, unknown_name_message
from agp.likelihoods import LatentNoiseGaussian
from agp.methods import OUTPUTS
from agp.models import Coregionalised

NOISE_KINDS = ("shared", "separate")
"""The values of `outputs` with independent outputs, which the likelihood "latent-noise" requires."""


def resolve_outputs(regressor: Any, count: int, *, separable: bool) -> Any:
    """Return the argument `outputs` for `SVGP.from_data`; None if the outputs share one kernel.

    Parameters
    ----------
    regressor
        The estimator, with the parameters `outputs`, `num_latents` and `likelihood`.
    count
        The number of target columns.
    separable
        Whether outputs may have kernels of their own, as the latent noise of one target then has.

    Raises
    ------
    ValueError
        If the parameters contradict each other, the targets or the likelihood.
    """
    outputs, num_latents = regressor.outputs, regressor.num_latents
    is_latent = issubclass(regressor._likelihood_class, LatentNoiseGaussian)
    latent_noise = regressor._likelihood_name if is_latent else None
    own_noise = separable and regressor.num_inducing != "auto"
    if outputs not in OUTPUTS:
        raise ValueError(unknown_name_message("outputs", outputs, OUTPUTS))
    if latent_noise is not None and outputs not in NOISE_KINDS:
        known = " or ".join(map(repr, NOISE_KINDS))
        raise ValueError(f"outputs is {outputs!r}, but must be {known} for likelihood={latent_noise}.")
    if outputs != "shared" and count == 1 and latent_noise is None:
        raise ValueError(f"outputs is {outputs!r}, but y has one column; leave it out, or give y as [N, K].")
    if outputs in ("coregionalised", "intrinsic"):
        latents = None if num_latents is None else check_whole("num_latents", num_latents)
        if latents is not None and latents > count:
            raise ValueError(
                f"num_latents is {latents}, but y has {count_of(count, 'column')}; use at most {count} latent "
                "functions."
            )
        return Coregionalised(latents, intrinsic=outputs == "intrinsic")
    if num_latents is not None:
        raise ValueError(f"num_latents is {num_latents!r}, but outputs={outputs!r} does not use it; leave it out.")
    if latent_noise is not None and count == 1 and own_noise:
        return "separate"
    return None if outputs == "shared" else outputs
