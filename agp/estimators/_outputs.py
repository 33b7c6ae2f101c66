"""How several target columns are related, as a parameter of estimators and as an argument of models."""

from typing import Any

from agp.checks import check_whole
from agp.errors import count_of, unknown_name_message
from agp.methods import OUTPUTS
from agp.models import Coregionalised

NOISE_KINDS = ("shared", "separate")
"""The values of `outputs` with independent outputs, which the likelihood "latent-noise" requires."""


def resolve_outputs(outputs: str, num_latents: Any, count: int, latent_noise: str | None, own_noise: bool) -> Any:
    """Return the argument `outputs` for `SVGP.from_data`; None if the outputs share one kernel.

    Parameters
    ----------
    outputs, num_latents
        The parameters of the estimator.
    count
        The number of target columns.
    latent_noise
        The name of the likelihood if its noise is a latent function; None otherwise.
    own_noise
        Whether the latent noise of one target has a kernel of its own also if `outputs` is "shared".

    Raises
    ------
    ValueError
        If the parameters contradict each other, the targets or the likelihood.
    """
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
