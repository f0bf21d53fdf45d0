"""A device that is only pretended: tensors that say they are elsewhere and compute here.

torch's own FakeTensorMode with CUDA tensors does not serve: it has no values, and networks here look at some (how many
positions a row wants, how long its longest text is); and a torch that was built without CUDA runs no backward pass over
them. So this is a tensor of our own, as FakeTensor is one: a wrapper that holds a real tensor and reports another
device. Every operation is computed on the real tensors, and refused where it would mix the two devices, as CUDA
refuses it. What comes back to the CPU is noted with the line of ours that asked for it.
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

NAME = "pretended"
CPU = torch.device("cpu")
SOURCES = str(Path(stemma.__file__).parent)
aten = torch.ops.aten
COPIES = {aten._to_copy.default, aten.copy_.default}  # these may have one end here and the other there
ANSWERS = {aten._local_scalar_dense.default}  # one number that Python wants to know


class MixedDevicesError(RuntimeError):
    pass


class Elsewhere(torch.Tensor):
    """A tensor that says it is on the pretended device."""

    held: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Elsewhere:
        made = torch.Tensor._make_wrapper_subclass(cls, held.size(), strides=held.stride(),
                                                   storage_offset=held.storage_offset(), dtype=held.dtype,
                                                   device=device())
        made.held = held
        return made

    def __repr__(self, **_: Any) -> str:
        return f"Elsewhere({self.held})"

    def tolist(self) -> Any:  # torch refuses it for tensors of another class
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        return _compute(function, arguments, named or {})  # where no mode is on: in the threads of the backward pass


class _Pretend(TorchDispatchMode):
    """Also for what makes a tensor out of nothing: it is told the device and is given no tensor."""

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        return _compute(function, arguments, named or {})


class _Literals(TorchFunctionMode):
    """torch.tensor([1, 2], device=...) and x[[1, 2]] fill a tensor past every dispatcher; here it is made on the CPU
    and sent."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        named = dict(named or {})
        wanted = named.get("device")
        if function in (torch.tensor, torch.as_tensor) and wanted is not None and torch.device(wanted).type == NAME:
            del named["device"]
            return function(*arguments, **named).to(wanted)
        if function is torch.Tensor.new_tensor and isinstance(arguments[0], Elsewhere):
            like, content = arguments
            return torch.tensor(content, dtype=named.get("dtype", like.dtype)).to(like.device)
        if function is torch.Tensor.__getitem__ and isinstance(arguments[0], Elsewhere):
            whole, index = arguments
            parts = index if isinstance(index, tuple) else (index,)
            sent = tuple(torch.tensor(part).to(whole.device) if isinstance(part, list) else part for part in parts)
            return function(whole, sent if isinstance(index, tuple) else sent[0])
        return function(*arguments, **named)


def device() -> torch.device:
    return torch.device(NAME, 0)


_returned: Counter[str] = Counter()


@contextmanager
def pretended() -> Iterator[Counter[str]]:
    """While this lasts the device is there. Yields where (file:line of ours) something was brought back to the CPU."""
    if torch._C._get_privateuse1_backend_name() != NAME:
        from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

        _setup_privateuseone_for_python_backend(NAME)
    _returned.clear()
    with _Pretend(), _Literals():
        yield _returned


def _compute(function: Any, arguments: Any, named: dict[str, Any]) -> Any:
    leaves = [leaf for leaf in tree_flatten((arguments, named))[0] if isinstance(leaf, torch.Tensor)]
    there = [leaf for leaf in leaves if isinstance(leaf, Elsewhere)]
    wanted = named.get("device")
    named = {**named, "device": CPU} if wanted is not None else named
    goes_there = bool(there) if wanted is None else torch.device(wanted).type == NAME
    if not there and not goes_there:
        return function(*arguments, **named)
    if function is aten._fused_sdp_choice.default:
        return 0  # plain products: which kernels there are for fused attention is not what is asked here
    here = [leaf for leaf in leaves if not isinstance(leaf, Elsewhere) and leaf.dim() > 0]
    if there and here and function not in COPIES:  # as on CUDA, a single number may come from here
        raise MixedDevicesError(f"{function} mixes {len(there)} tensors there with {len(here)} here, of shape "
                                f"{tuple(here[0].shape)}, at {_line_of_ours()}")
    if (there and not goes_there) or function in ANSWERS:
        _returned[_line_of_ours()] += 1
    if function is aten.copy_.default:
        goes_there = isinstance(arguments[0], Elsewhere)
    owners = {id(one.held): one for one in there}
    found = function(*tree_map_only(Elsewhere, lambda one: one.held, arguments),
                     **tree_map_only(Elsewhere, lambda one: one.held, named))
    if not goes_there:
        return found
    return tree_map_only(torch.Tensor, lambda one: owners.get(id(one)) if id(one) in owners else Elsewhere(one), found)


def _line_of_ours() -> str:
    """The innermost line of the package that led here; of the backward pass there is none."""
    frame = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith(SOURCES):
        frame = frame.f_back  # type: ignore[assignment]
    if frame is None:
        return "the backward pass"
    return f"{Path(frame.f_code.co_filename).relative_to(SOURCES)}:{frame.f_code.co_name}"
