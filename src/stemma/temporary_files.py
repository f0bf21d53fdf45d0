"""Temporary names next to the final path. The writing process locks them, which distinguishes them from the leftovers
of a killed process."""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def resolve_link(path: Path) -> Path:
    """The target of a symbolic link: writing replaces the target and keeps the link."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def temporary_name(path: Path, ending: str) -> str:
    return f".{path.name}.{uuid.uuid4().hex[:8]}.{ending}"


def create_locked(path: Path, create: Callable[[Path], None]) -> tuple[Path, int]:
    """A new temporary path next to `path`, and the handle that keeps it locked until it is closed."""
    while True:
        temporary = path.with_name(temporary_name(path, "tmp"))
        create(temporary)
        try:
            handle = os.open(temporary, os.O_RDONLY)
        except FileNotFoundError:  # another process removed it as a leftover before it was locked: try another name
            continue
        try_lock(handle, wait=True)
        if temporary.exists():
            return temporary, handle
        os.close(handle)


def try_lock(handle: int, wait: bool = False) -> bool:
    """Whether the lock was acquired; always False without lock support (Windows, some network disks)."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except (ImportError, OSError):
        return False
    return True


def remove_stale(path: Path) -> None:
    """Remove leftovers of killed processes next to `path`. Files of running processes are locked and stay.

    A kill between two renames leaves the old folder under another name and nothing at `path`: it is restored.
    """
    pattern = re.compile(re.escape(f".{path.name}.") + r"[0-9a-f]{8}\.(tmp|old)")
    with suppress(OSError):  # the folder does not exist or is not readable
        for leftover in [file for file in path.parent.iterdir() if pattern.fullmatch(file.name)]:
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
