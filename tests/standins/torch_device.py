"""A torch device for tests that is not the CPU: tensors that say ``cuda:0``, over values that the host computes.

Inside `standing_in()` what is made on ``cuda:0`` is a `DeviceTensor`. As on a card, a tensor of the host beside one of
the device is refused, and what passes between host and device is counted: calls that launch something, reads that make
the host wait, and uploads, each with the line of the library that asked. Nothing here says how long a card would take.
`standing_in` takes another `Card`, such as one without float64.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import pytest
import torch
from standins.counts import tell
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["CAPABILITY", "CUDA", "Card", "DeviceTensor", "standing_in"]

CAPABILITY = (9, 0)
"""That of a card with fast float64."""
FREE_BYTES, ALL_BYTES = 72 * 2**30, 80 * 2**30

FREE = {"detach", "alias", "lift_fresh", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
FREE |= {"_unsafe_view", "view", "reshape"}
"""Calls that only look at memory in another way, or take memory: they launch nothing."""
WAITING = {"_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive"}
WAITING |= {"_linalg_check_errors", "_linalg_eigh", "_linalg_svd", "linalg_eig", "linalg_lstsq", "bincount"}
"""Calls whose result, or its shape, or whose failure the host reads: they wait for the device."""
BY_MASK = {"index", "index_put", "index_put_", "_index_put_impl_"}
"""Calls that take positions: true entries of a mask are found by the host, and positions on the host travel."""


WIDE_PRODUCTS: dict[Any, Any] = {}
"""Calls that the host does not have, and what does the same there."""
if "dtype" in torch.ops.aten.mm.overloads():
    WIDE_PRODUCTS[torch.ops.aten.mm.dtype] = lambda X, Y, out_dtype: X.to(out_dtype) @ Y.to(out_dtype)


class DeviceTensor(torch.Tensor):
    """A tensor on the device, whose values `held` lie in a tensor of the host."""

    held: torch.Tensor
    # C++ takes it for a tensor on "meta", which every build of torch has, and where autograd asks for no card
    device = property(lambda self: _card.device)
    is_cuda = property(lambda self: _card.device.type == "cuda")
    is_meta = property(lambda self: False)
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> "DeviceTensor":  # noqa: PYI034
        """The values on the device."""
        layout = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        out = torch.Tensor._make_wrapper_subclass(cls, held.shape, device="meta", **layout)
        out.held = held
        return out

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(function, args, kwargs or {})

    def numpy(self, **_: Any) -> Any:
        msg = (
            f"can't convert {_card.device} device type tensor to numpy. Use Tensor.cpu() to copy it to the host first."
        )
        raise TypeError(msg)

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.numpy()

    def __repr__(self, *_: Any, **__: Any) -> str:
        return f"DeviceTensor({self.held!r})"

    def __format__(self, spec: str) -> str:
        return format(self.item() if self.ndim == 0 else repr(self), spec)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def data_ptr(self) -> int:
        return int(self.storage_offset()) * self.element_size()  # new memory begins at a multiple of 512

    def __getitem__(self, key: Any) -> torch.Tensor:
        return super().__getitem__(_positions(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(_positions(key), value)


def _positions(key: Any) -> Any:
    """An index, its lists as tensors of the host: torch would make them in the memory of the device at once."""
    if isinstance(key, tuple):
        return tuple(map(_positions, key))
    return torch.as_tensor(key) if isinstance(key, (list, np.ndarray)) else key


class _Device(TorchDispatchMode):
    """Takes every call of torch, also those that have no tensor yet."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(function, args, kwargs or {})


def _tensors(x: Any) -> Iterator[torch.Tensor]:
    if isinstance(x, torch.Tensor):
        yield x
    elif isinstance(x, (list, tuple)):
        for one in x:
            yield from _tensors(one)


def _values(x: Any) -> Any:
    if isinstance(x, DeviceTensor):
        return x.held
    return type(x)(map(_values, x)) if isinstance(x, (list, tuple)) else x


def _computed(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a call gives, computed on the host and counted."""
    name = function._schema.name.rpartition("::")[2]
    given = [*_tensors(args), *_tensors(tuple(kwargs.values()))]
    ours = [x for x in given if isinstance(x, DeviceTensor)]
    place = kwargs.get("device")
    there = bool(ours) if place is None else torch.device(place).type != "cpu"
    if not ours and not there:
        return function(*args, **kwargs)
    if place is not None:
        kwargs = {**kwargs, "device": "cpu"}
    _count_call(function, name, args, given, ours, there)
    function = WIDE_PRODUCTS.get(function, function)
    found = function(*map(_values, args), **{key: _values(x) for key, x in kwargs.items()})
    if not there:
        return found
    _card.check(function, [*_tensors(found)])
    same = {id(x.held): x for x in ours}  # what is changed in place stays the same tensor
    return _there(found, same)


def _there(found: Any, same: dict[int, DeviceTensor]) -> Any:
    if isinstance(found, torch.Tensor):
        return same[id(found)] if id(found) in same else DeviceTensor(found)
    return type(found)(_there(x, same) for x in found) if isinstance(found, (list, tuple)) else found


def _count_call(function: Any, name: str, args: tuple, given: list, ours: list, there: bool) -> None:
    """Count one call that has to do with the device; RuntimeError where tensors of the host stand beside its own."""
    if name in ("_to_copy", "copy_"):
        target = there if name == "_to_copy" else isinstance(args[0], DeviceTensor)
        source = isinstance(args[name == "copy_"], DeviceTensor)
        tell("launches" if target and source else "uploads" if target else "reads")
        return
    hosted = [x for x in given if not isinstance(x, DeviceTensor)]
    if any(x.ndim for x in hosted) and name not in BY_MASK:
        msg = f"Expected all tensors to be on the same device, but found at least two devices, {_card.device} and cpu!"
        raise RuntimeError(msg)
    tell("uploads", len(hosted))
    masks = name in BY_MASK and any(x.dtype == torch.bool for x in _tensors(args[1]))
    if name in WAITING or masks:
        tell("reads")
    if name != "_local_scalar_dense" and name not in FREE and not function.is_view:
        tell("launches")


_CUDA: dict[str, Any] = {
    "_lazy_init": lambda: None,
    "is_available": lambda: True,
    "device_count": lambda: 1,
    "current_device": lambda: 0,
    "get_device_name": lambda device=None: "stand-in",
    "get_device_capability": lambda device=None: CAPABILITY,
    "synchronize": lambda device=None: tell("reads"),
    "max_memory_allocated": lambda device=None: ALL_BYTES - FREE_BYTES,
    "get_device_properties": lambda device=None: SimpleNamespace(total_memory=ALL_BYTES),
}


@dataclass(frozen=True)
class Card:
    """A device: its name, what replaces functions of torch's module for it, and a check of each call on it.

    The check takes the function of a call and the tensors that it gives; it raises what torch would raise.
    """

    device: torch.device
    module: Any
    functions: dict[str, Any]
    check: Callable[[Any, list[torch.Tensor]], None] = lambda function, found: None


CUDA = Card(torch.device("cuda:0"), torch.cuda, _CUDA)
_card = CUDA


@contextlib.contextmanager
def standing_in(card: Card = CUDA) -> Iterator[None]:
    """Inside, torch has one such device."""
    with pytest.MonkeyPatch.context() as patch:
        for name, f in card.functions.items():
            patch.setattr(card.module, name, f)
        patch.setattr(torch, "Generator", _Generator)
        patch.setitem(globals(), "_card", card)
        before = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)  # what the host has is put together there, and then travels
        try:
            with _Device():
                yield
        finally:
            torch._C._set_only_lift_cpu_tensors(before)


class _Generator(torch.Generator):
    """Random numbers of the host that are taken for those of the device that was asked for."""

    def __new__(cls, device: Any = "cpu") -> Self:
        out = super().__new__(cls, "cpu")
        out.place = torch.device(device)
        return out

    @property
    def device(self) -> torch.device:
        return self.place

    def manual_seed(self, seed: int) -> Self:
        super().manual_seed(seed)
        return self
