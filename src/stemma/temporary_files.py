"""Temporary names: what is being written stands beside its place, locked by the process that writes it, so that what a
killed process left can be told from what another is writing."""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def resolve_link(path: Path) -> Path:
    """What a link points to: that is replaced, and the link stays."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def temporary_name(path: Path, ending: str) -> str:
    return f".{path.name}.{uuid.uuid4().hex[:8]}.{ending}"


def create_locked(path: Path, create: Callable[[Path], None]) -> tuple[Path, int]:
    """A new temporary name beside `path`, and the handle that keeps it locked until it is closed."""
    while True:
        temporary = path.with_name(temporary_name(path, "tmp"))
        create(temporary)
        try:
            handle = os.open(temporary, os.O_RDONLY)
        except FileNotFoundError:  # taken for dead in the moment before it could be locked: another name
            continue
        try_lock(handle, wait=True)
        if temporary.exists():
            return temporary, handle
        os.close(handle)


def try_lock(handle: int, wait: bool = False) -> bool:
    """Whether the lock was to be had; never where there are none (Windows, some network disks)."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except (ImportError, OSError):
        return False
    return True


def remove_stale(path: Path) -> None:
    """Clear away what killed processes left beside `path` while they wrote it. What a living one is writing is locked.

    A kill between two renames leaves the old folder under another name and nothing in its place: it is put back.
    """
    pattern = re.compile(re.escape(f".{path.name}.") + r"[0-9a-f]{8}\.(tmp|old)")
    with suppress(OSError):  # no such folder, or one that may not be read: then nothing was left there
        for leftover in [one for one in path.parent.iterdir() if pattern.fullmatch(one.name)]:
            _remove_stale_file(leftover, path)


def _remove_stale_file(leftover: Path, path: Path) -> None:
    with suppress(OSError):
        handle = os.open(leftover, os.O_RDONLY | os.O_NONBLOCK)
        try:
            if not try_lock(handle):
                return
            if leftover.suffix == ".old" and not path.exists():
                leftover.rename(path)
            elif leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink()
        finally:
            os.close(handle)
