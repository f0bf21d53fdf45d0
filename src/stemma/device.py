"""Which device computes: the one place that decides, for training and inference.

    stemma pretrain bert@tiny --corpus notes.txt --out run --device cuda
    model = stemma.load("run", device="cpu")

What is asked for holds for all that one call does: a pipeline's stages, a lab's cells, the scoring after a fine-tune.
So it travels beside the arguments, in a context variable; threads do not see each other's.
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
    """What the caller asked for; None: nothing."""
    return _requested.get()


def check_device_name(name: str) -> str:
    """Refuses what is no device, without looking for it."""
    if not _KNOWN.fullmatch(name):
        raise UserError(f'--device is "{name}"; choose auto, cpu, cuda, cuda:N (the N-th, from 0) or mps.')
    return name


def request_device(name: str | None) -> None:
    """From here on in this context; None changes nothing."""
    if name is not None:
        _requested.set(check_device_name(name))


@contextmanager
def use_device(name: str | None) -> Iterator[None]:
    """While this lasts; None changes nothing."""
    token = _requested.set(_requested.get() if name is None else check_device_name(name))
    try:
        yield
    finally:
        _requested.reset(token)


def takes(keyword: str, given: Callable[[Any], AbstractContextManager[None]]) -> \
        Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """For functions with this keyword: what it is `given` holds for all that they call."""
    def decorated(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @wraps(function)
        def inner(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
            with given(named.get(keyword)):
                return function(*arguments, **named)

        return inner

    return decorated


accepts_device = takes("device", use_device)


def choose_device(name: str | None = None) -> torch.device:
    """The device of this name, or else the one that was asked for; `auto` is the first CUDA device if there is one.
    Apple's has to be named: nothing here has been tried on it, and it lacks double precision."""
    import torch

    chosen = check_device_name(name or _requested.get() or AUTO)
    if chosen == AUTO:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(chosen)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"there is no CUDA device here for --device {chosen} (torch sees none); choose cpu, or auto "
                        "for the best that there is.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"--device {chosen} is not here: torch sees {torch.cuda.device_count()}, counted from 0; "
                        "choose a lower number.")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError("there is no Apple GPU here for --device mps; choose cpu, or auto for the best that there is.")
    return device
