"""A fake device for tests without a GPU: its tensors report another device and compute on the CPU.

FakeTensorMode with CUDA tensors is no alternative. Its tensors have no values, and the networks read some (the number
of target positions in a row, the longest length in a batch). A torch build without CUDA also runs no backward pass over
them. So this is a wrapper subclass, as FakeTensor is: it holds a CPU tensor and reports the fake device. An operation
runs on the CPU tensors, and raises if it would mix the two devices, as CUDA does. Each copy back to the CPU is counted
under the function of stemma that makes it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

import stemma

NAME = "fakegpu"
CPU = torch.device("cpu")
SOURCES = str(Path(stemma.__file__).parent)
aten = torch.ops.aten
COPIES = {aten._to_copy.default, aten.copy_.default}  # these may mix the devices
SYNCHRONIZING = {aten._local_scalar_dense.default}  # tensor.item()


class MixedDevicesError(RuntimeError):
    pass


class FakeDeviceTensor(torch.Tensor):
    """A tensor that reports the fake device and holds its values on the CPU."""

    held: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> FakeDeviceTensor:
        tensor = torch.Tensor._make_wrapper_subclass(cls, held.size(), strides=held.stride(),
                                                     storage_offset=held.storage_offset(), dtype=held.dtype,
                                                     device=device())
        tensor.held = held
        return tensor

    def __repr__(self, **_: Any) -> str:
        return f"FakeDeviceTensor({self.held})"

    def tolist(self) -> Any:  # torch refuses it for tensors of another class
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        return _compute(function, arguments, named or {})  # the backward pass runs in threads without a mode


class _FakeDeviceMode(TorchDispatchMode):
    """Covers factory functions, which get a device and no tensor."""

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        return _compute(function, arguments, named or {})


class _Literals(TorchFunctionMode):
    """torch.tensor([1, 2], device=...) and x[[1, 2]] bypass the dispatcher: build the tensor on the CPU and copy it."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        named = dict(named or {})
        requested = named.get("device")
        to_fake = requested is not None and torch.device(requested).type == NAME
        if function in (torch.tensor, torch.as_tensor) and to_fake:
            del named["device"]
            return function(*arguments, **named).to(requested)
        if function is torch.Tensor.new_tensor and isinstance(arguments[0], FakeDeviceTensor):
            like, content = arguments
            return torch.tensor(content, dtype=named.get("dtype", like.dtype)).to(like.device)
        if function is torch.Tensor.__getitem__ and isinstance(arguments[0], FakeDeviceTensor):
            tensor, index = arguments
            parts = index if isinstance(index, tuple) else (index,)
            copied = tuple(torch.tensor(part).to(tensor.device) if isinstance(part, list) else part for part in parts)
            return function(tensor, copied if isinstance(index, tuple) else copied[0])
        return function(*arguments, **named)


def device() -> torch.device:
    return torch.device(NAME, 0)


_copies_to_cpu: Counter[str] = Counter()


@contextmanager
def use_fake_device() -> Iterator[Counter[str]]:
    """Provide the fake device. Yields the number of copies to the CPU by the function of stemma that made them."""
    if torch._C._get_privateuse1_backend_name() != NAME:
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

        _setup_privateuseone_for_python_backend(NAME)
    _copies_to_cpu.clear()
    with _FakeDeviceMode(), _Literals():
        yield _copies_to_cpu


def _compute(function: Any, arguments: Any, named: dict[str, Any]) -> Any:
    leaves = [leaf for leaf in tree_flatten((arguments, named))[0] if isinstance(leaf, torch.Tensor)]
    on_fake = [leaf for leaf in leaves if isinstance(leaf, FakeDeviceTensor)]
    requested = named.get("device")
    named = {**named, "device": CPU} if requested is not None else named
    to_fake = bool(on_fake) if requested is None else torch.device(requested).type == NAME
    if not on_fake and not to_fake:
        return function(*arguments, **named)
    if function is aten._fused_sdp_choice.default:
        return 0  # the math backend: fused attention kernels are not tested here
    on_cpu = [leaf for leaf in leaves if not isinstance(leaf, FakeDeviceTensor) and leaf.dim() > 0]
    if on_fake and on_cpu and function not in COPIES:  # as on CUDA, a CPU scalar is allowed
        raise MixedDevicesError(f"{function} mixes {len(on_fake)} tensors on the fake device with {len(on_cpu)} on the "
                                f"CPU, of shape {tuple(on_cpu[0].shape)}, at {_calling_function()}")
    if (on_fake and not to_fake) or function in SYNCHRONIZING:
        _copies_to_cpu[_calling_function()] += 1
    if function is aten.copy_.default:
        to_fake = isinstance(arguments[0], FakeDeviceTensor)
    wrappers = {id(tensor.held): tensor for tensor in on_fake}
    result = function(*tree_map_only(FakeDeviceTensor, lambda tensor: tensor.held, arguments),
                      **tree_map_only(FakeDeviceTensor, lambda tensor: tensor.held, named))
    if not to_fake:
        return result

    def wrap(tensor: torch.Tensor) -> torch.Tensor:
        return wrappers[id(tensor)] if id(tensor) in wrappers else FakeDeviceTensor(tensor)

    return tree_map_only(torch.Tensor, wrap, result)


def _calling_function() -> str:
    """The innermost function of stemma on the stack; the backward pass has none."""
    frame = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith(SOURCES):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return "the backward pass"
    return f"{Path(frame.f_code.co_filename).relative_to(SOURCES)}:{frame.f_code.co_name}"
