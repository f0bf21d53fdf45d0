"""Selection of the device, for training and inference.

    stemma pretrain bert@tiny --corpus notes.txt --out run --device cuda
    model = stemma.load("run", device="cpu")

A requested device applies to everything that a call does: a pipeline's stages, a lab's cells, the evaluation after
fine-tuning. So it is a context variable, not an argument; each thread has its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from stemma.errors import UserError

if TYPE_CHECKING:
    import torch

AUTO = "auto"
_KNOWN = re.compile(r"auto|cpu|mps|cuda(:\d+)?")
_requested: ContextVar[str | None] = ContextVar("device", default=None)
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def requested_device() -> str | None:
    """The device that the caller requested; None if none."""
    return _requested.get()


def check_device_name(name: str) -> str:
    """Raise if this is not a device name; does not check that the device exists."""
    if not _KNOWN.fullmatch(name):
        raise UserError(f'--device is "{name}"; choose auto, cpu, cuda, cuda:N (the N-th, from 0) or mps.')
    return name


def request_device(name: str | None) -> None:
    """Request a device for the rest of this context; None changes nothing."""
    if name is not None:
        _requested.set(check_device_name(name))


@contextmanager
def use_device(name: str | None) -> Iterator[None]:
    """Request a device inside the block; None changes nothing."""
    token = _requested.set(_requested.get() if name is None else check_device_name(name))
    try:
        yield
    finally:
        _requested.reset(token)


def runs_within(keyword: str, context_manager: Callable[[Any], AbstractContextManager[None]]) -> \
        Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Decorator for functions with this keyword argument: runs them inside `context_manager(value)`."""
    def decorated(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @wraps(function)
        def inner(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
            with context_manager(named.get(keyword)):
                return function(*arguments, **named)

        return inner

    return decorated


accepts_device = runs_within("device", use_device)


def choose_device(name: str | None = None) -> torch.device:
    """The device of this name, or else the requested one; `auto` is the first CUDA device if there is one, else the
    CPU. `mps` must be named explicitly: it is untested, and it lacks double precision."""
    import torch

    name = check_device_name(name or _requested.get() or AUTO)
    if name == AUTO:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"there is no CUDA device here for --device {name} (torch sees none); choose cpu, or auto "
                        "for the best that there is.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"--device {name} is not here: torch sees {torch.cuda.device_count()}, counted from 0; "
                        "choose a lower number.")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("there is no Apple GPU here for --device mps; choose cpu, or auto for the best that there is.")
    return device


def seed_generators(seed: int) -> None:
    """`torch.manual_seed`, but faster on a machine without an accelerator: there it formats a traceback each time, for
    a CUDA that may be initialized later, and a trainer calls it at every step."""
    import torch

    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)
