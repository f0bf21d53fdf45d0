"""Device, precision, threads and memory allocator of a run."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import platform
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from stemma.device import AUTO, choose_device, requested_device
from stemma.training.run_folder import CONFIG, read_run_config

logger = logging.getLogger(__name__)

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def run_device(run: Path) -> torch.device:
    """The device of a run: the one requested now, or the one in its configuration; stored there."""
    if not (run / CONFIG).is_file():
        return choose_device()
    config = read_run_config(run)
    device = choose_device(requested_device() or config.device)
    if config.device not in (AUTO, str(device)):
        logger.warning(
            f"{run} ran on {config.device} before and continues on {device}; from here on its numbers may differ "
            "in their last digits from those of a run on one device.")
    if config.device != str(device):
        replace(config, device=str(device)).write(run)
    return device


def resolve_precision(setting: str, device: torch.device) -> torch.dtype:
    """`auto` is bf16 if the hardware supports it natively, and fp32 if it would be emulated, which is slow."""
    if setting == "auto":
        native = _cpu_has_bf16() if device.type == "cpu" else _gpu_has_bf16(device)
        return torch.bfloat16 if native else torch.float32
    return DTYPES[setting]


def autocast(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[object]:
    """Mixed precision: matrix products in `dtype`; norms, softmax, losses and weights in fp32."""
    return nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype=dtype)


def _gpu_has_bf16(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)  # Ampere and later


@functools.cache
def _cpu_has_bf16() -> bool:
    if platform.machine().lower() in ("x86_64", "amd64"):
        support = [_ask_torch("_is_avx512_bf16_supported"), _ask_torch("_is_amx_tile_supported")]
        native = any(support) if None not in support else bool(_cpu_flags() & {"avx512_bf16", "amx_bf16"})
        return native and _onednn_uses_bf16()
    return "bf16" in _cpu_flags()  # ARM, as Linux reports it


def _onednn_uses_bf16() -> bool:
    """oneDNN computes the products, and ONEDNN_MAX_CPU_ISA can disable an instruction set of the processor."""
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (RuntimeError, AttributeError):  # a private function, which some versions of torch lack
        return True


def _ask_torch(name: str) -> bool | None:
    """Call a private function of torch.cpu; None if this torch lacks it."""
    function: Callable[[], bool] | None = getattr(torch.cpu, name, None)
    try:
        return function() if function else None
    except (RuntimeError, AttributeError):
        return None


def _cpu_flags(path: Path = Path("/proc/cpuinfo")) -> set[str]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return set()
    return {flag for line in lines if line.lower().startswith(("flags", "features")) for flag in line.split()}


def set_num_threads(threads: int | None) -> int:
    """Set and return the number of threads; by default the physical cores that this process may use.

    Sums are split over threads, so a bit-exact resume needs the same number: it is stored with the run.
    """
    if threads is None:
        allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = min(torch.get_num_threads(), allowed)
    torch.set_num_threads(threads)
    return threads


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # as defined in glibc's malloc.h


def retain_freed_memory() -> bool:
    """Keep freed memory in the process; returns False without effect if the C library is not glibc.

    glibc asks the system for every large block and returns it when freed. An activation is such a block, so each
    training step would pay again for mapping and zeroing the same pages. The price is about 10% more memory at the
    peak, from fragmentation.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    set_option = ctypes.CDLL(None).mallopt
    return bool(set_option(M_MMAP_THRESHOLD, 1 << 30) and set_option(M_TRIM_THRESHOLD, (1 << 31) - 1))
