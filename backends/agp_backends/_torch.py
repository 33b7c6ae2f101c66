"""PyTorch: closed-form gradients or autograd, on the CPU and on CUDA devices.

`compile` stays the identity: the compiler has been seen to drop the jitter before a Cholesky factorisation without a
warning, and an eager step is right.
"""

import math
from collections.abc import Callable
from typing import Any

import array_api_compat.torch as xp
import torch
from torch.utils.checkpoint import checkpoint

from agp.backend import Array, Backend
from agp.ledger import collected


class TorchBackend(Backend):
    name = "torch"
    xp = xp
    array_types = (torch.Tensor,)
    gradients = ("closed-form", "autodiff")

    def version(self) -> str:
        return torch.__version__

    def devices(self) -> list[str]:
        return ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))]

    def from_numpy(self, x: Any, /, *, dtype: str | None = None, device: str | None = None) -> Array:
        return torch.tensor(x, dtype=getattr(torch, dtype) if dtype else None, device=device)

    def to_numpy(self, x: Array, /) -> Any:
        return x.detach().cpu().numpy()

    def synchronise(self, x: Array, /) -> None:
        if x.device.type == "cuda":
            torch.cuda.synchronize(x.device)

    def peak_memory(self) -> float:
        if torch.cuda.is_initialized():
            return torch.cuda.max_memory_allocated() / 2**20
        return super().peak_memory()

    def cholesky(self, A: Array, /) -> Array:
        L, info = torch.linalg.cholesky_ex(A)
        return torch.where((info == 0)[..., None, None], L, torch.nan)

    def solve_triangular(self, L: Array, B: Array, /, *, transpose: bool = False) -> Array:
        return torch.linalg.solve_triangular(L.mT if transpose else L, B, upper=transpose)

    def _special_functions(self):
        s = torch.special
        return {"log_ndtr": s.log_ndtr, "ndtr": _ndtr, "erf": s.erf, "gammaln": s.gammaln}

    def remat(self, f: Callable, /) -> Callable:
        def recomputed(*args):
            return checkpoint(f, *args, use_reentrant=False)

        return lambda *args: recomputed(*args) if torch.is_grad_enabled() else f(*args)

    def stop_gradient(self, x: Array, /) -> Array:
        return x.detach()

    def value_and_grad(self, f: Callable, leaves: dict[str, Array], /) -> tuple[Array, dict[str, Array]]:
        with torch.inference_mode(False), torch.enable_grad():
            inputs = {name: x.detach().clone().requires_grad_() for name, x in leaves.items()}
            value = f(inputs)
            with collected():  # what is recomputed has been reported with the value
                grads = torch.autograd.grad(value, list(inputs.values()), materialize_grads=True)
        return value.detach(), dict(zip(inputs, grads, strict=True))


def _ndtr(x: Array) -> Array:
    # torch.special.ndtr loses all digits in the left tail; erfc does not
    return 0.5 * torch.special.erfc(-math.sqrt(0.5) * x)
