"""Torch devices without float64 or without factorisations: Apple's (MPS) and Intel's (XPU).

What MPS lacks is what the table of operators of the installed torch lists no kernel for. The operators that XPU
computes on the CPU are those of ``XPUFallback.template`` in intel/torch-xpu-ops; here they are refused, so that a test
sees them. Some cards of Intel have no float64 either.
"""

import functools
import importlib.resources
import re
from typing import Any

import torch
from standins.counts import tell
from standins.torch_device import ALL_BYTES, Card

__all__ = ["MPS", "XPU", "without_kernel"]

ENTRY = re.compile(r"^- func: ([\w.]+)\(.*?(?=^- func: |\Z)", re.MULTILINE | re.DOTALL)
KEYS = re.compile(r"^    ([A-Z]\w+(?:, \w+)*): ", re.MULTILINE)
EVERYWHERE = re.compile(r"Composite\w+")
ON_HOST = """cholesky cholesky_inverse _cholesky_solve_helper dot _fft_c2c _fft_c2r _fft_r2c geqrf index_reduce
linalg_cholesky_ex _linalg_det linalg_eig _linalg_eigh linalg_householder_product linalg_inv_ex linalg_ldl_factor_ex
linalg_ldl_solve linalg_lstsq linalg_lu_factor_ex linalg_lu linalg_lu_solve linalg_matrix_exp linalg_qr _linalg_slogdet
_linalg_solve_ex linalg_solve_triangular _linalg_svd lu_unpack ormqr triangular_solve vdot"""


@functools.cache
def without_kernel() -> frozenset[str]:
    """The operators for which the installed torch has no kernel on MPS, such as ``_linalg_svd.U``."""
    text = importlib.resources.files("torchgen").joinpath("packaged/ATen/native/native_functions.yaml").read_text()
    entries = {match[1]: match[0] for match in ENTRY.finditer(text)}

    def has_kernel(name: str) -> bool:
        entry = entries[name]
        delegate = re.search(r"structured_delegate: (\S+)", entry)
        if delegate is not None:
            return has_kernel(delegate[1])
        keys = {key for keys in KEYS.findall(entry) for key in keys.split(", ")}
        return not keys or "MPS" in keys or any(map(EVERYWHERE.fullmatch, keys))

    return frozenset(name for name in entries if not has_kernel(name))


def _check_mps(function: Any, found: list[torch.Tensor]) -> None:
    name = str(function._schema.name).rpartition("::")[2]
    whole = f"{name}.{function._schema.overload_name}".rstrip(".")
    if whole in without_kernel():
        msg = f"The operator 'aten::{whole}' is not currently implemented for the MPS device."
        raise NotImplementedError(msg)
    _refuse_float64(found, "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.")


def _check_xpu(function: Any, found: list[torch.Tensor]) -> None:
    name = str(function._schema.name).rpartition("::")[2]
    if name in ON_HOST.split():
        msg = f"The operator 'aten::{name}' on the XPU backend is falling back to run on the CPU."
        raise NotImplementedError(msg)
    _refuse_float64(found, "Required aspect fp64 is not supported on the device")


def _refuse_float64(found: list[torch.Tensor], msg: str) -> None:
    if any(x.dtype in (torch.float64, torch.complex128) for x in found):
        raise TypeError(msg)


_MPS: dict[str, Any] = {
    "is_available": lambda: True,
    "device_count": lambda: 1,
    "synchronize": lambda: tell("reads"),
    "recommended_max_memory": lambda: ALL_BYTES,
    "current_allocated_memory": lambda: 2**20,
    "driver_allocated_memory": lambda: 2**21,
}
_XPU: dict[str, Any] = {
    "_lazy_init": lambda: None,
    "is_available": lambda: True,
    "device_count": lambda: 1,
    "synchronize": lambda device=None: tell("reads"),
    "max_memory_allocated": lambda device=None: 2**20,
}


class _Properties:
    """Facts about a card of Intel without float64."""

    total_memory = ALL_BYTES
    has_fp64 = False


_XPU["get_device_properties"] = lambda device=None: _Properties
MPS = Card(torch.device("mps:0"), torch.mps, _MPS, _check_mps)
XPU = Card(torch.device("xpu:0"), torch.xpu, _XPU, _check_xpu)
