"""Atomic writes: a kill at any moment leaves either the old state or the new one. Reads are verified.

A folder is written under a temporary name next to its path, flushed to disk and renamed. `checksums.json` has the
SHA-256 of every file and is verified before the folder is used. The writing process locks the temporary name, which
distinguishes it from the leftovers of a killed process.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from stemma.errors import CorruptFileError, UserError
from stemma.json_files import read_object
from stemma.temporary_files import create_locked, remove_stale, resolve_link, temporary_name, try_lock

CHECKSUMS = "checksums.json"
# Every folder that a command makes has one of these, and so does a model or tokenizer from elsewhere.
OWN_FILES = (CHECKSUMS, "run.json", "recipe.toml", "lab.json", "pipeline.toml", "quickstart.json", "result.json",
             "manifest.json", "config.json", "tokenizer.json")
SYSTEM = ("/dev", "/dev/fd", "/proc/self/fd")  # paths here are devices or open streams
SPECIAL = ((stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"),
           (stat.S_ISBLK, "a device"))


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class DiskFullError(UserError):
    """The disk is full; `advice` says what to do after freeing space."""

    def __init__(self, problem: str, advice: str = "run the same command again"):
        super().__init__(f"{problem}, and {advice}. What was saved before is untouched.")
        self.problem = problem

    def with_advice(self, advice: str) -> DiskFullError:
        return DiskFullError(self.problem, advice)

    def __reduce__(self) -> tuple[object, ...]:
        return (UserError, (self.message, self.problems))


@contextmanager
def explain_disk_errors(path: Path) -> Iterator[None]:
    """Turn disk errors that a user can fix into UserErrors."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        # Libraries written in Rust (safetensors, tokenizers) raise their own types with the number in the text.
        match = re.search(r"\(os error (\d+)\)", str(error))
        error_number = error.errno if isinstance(error, OSError) else int(match[1]) if match else None
        if error_number in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(f"the disk is full while writing {path}; free some space") from error
        if error_number == errno.EFBIG:
            raise DiskFullError(f"{path} would exceed the largest file allowed here; raise the limit (ulimit -f)"
                                ) from error
        if error_number in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG):
            raise UserError(f"cannot write {path}: {os.strerror(error_number)}; choose another place with "
                            "--out.") from error
        raise


def make_folder(path: Path, display_path: Path | None = None) -> None:
    """Make a folder and its parents; errors name it by `display_path`."""
    name = display_path or path
    with explain_disk_errors(name):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError, FileNotFoundError) as error:
            file = next((part for part in (path, *path.parents) if part.is_file()), None)
            reason = f"{file} is a file" if file else error.strerror
            raise UserError(f"cannot make the folder {name}: {reason}; choose another place.") from error


class FolderLockedError(UserError):
    """Another process has locked the folder."""


_locked_folders: set[tuple[int, int]] = set()  # folders that this process has locked, by device and inode


@contextmanager
def lock_folder(folder: Path, locked_message: str | None = None) -> Iterator[None]:
    """Lock a folder for this process. If it is locked, wait, or raise FolderLockedError with `locked_message`.

    The system releases the lock when the process ends. Without such locks (Windows, some network disks) nothing is
    locked: locks prevent duplicate work and mistakes; the atomic renames protect the files.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    identity = _identity(folder)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (fcntl.LOCK_NB if locked_message else 0))
        except BlockingIOError as error:
            raise FolderLockedError(locked_message or "") from error
        except OSError:
            pass
        _locked_folders.add(identity)
        try:
            yield
        finally:
            _locked_folders.discard(identity)
    finally:
        os.close(handle)


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files that a killed process left in `folder`. The caller must be its only user."""
    for pattern in (".*.tmp", ".*.old"):
        for leftover in folder.glob(pattern):
            shutil.rmtree(leftover, ignore_errors=True) if leftover.is_dir() else leftover.unlink()


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def atomic_write(path: Path, content: str | bytes) -> None:
    """Replace one file atomically."""
    with atomic_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A temporary file that replaces `path` when the block succeeds, and is removed if it fails. It can be read too."""
    refuse_special_file(path)
    target = resolve_link(path)
    remove_stale(target)
    with explain_disk_errors(path):
        with _explain_missing_folder(path):
            temporary, handle = create_locked(target, lambda name: name.touch(exist_ok=False))
        try:
            with temporary.open("r+b") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            with _explain_missing_folder(path):
                temporary.replace(target)
                _fsync(target.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(handle)


@contextmanager
def _explain_missing_folder(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:  # the folder was removed meanwhile, or is a system folder
        raise UserError(f"cannot write {path}: {error.strerror}; choose another place.") from error


def refuse_special_file(path: Path) -> None:
    """Raise if the path is a device, a pipe or a socket: these are never replaced, not even with --overwrite."""
    with explain_disk_errors(path):
        mode = path.stat().st_mode if path.exists() else 0
    kind = "a device" if str(path.absolute().parent) in SYSTEM else \
        next((name for holds, name in SPECIAL if holds(mode)), None)
    if kind is not None:
        raise UserError(f"{path} is {kind}, which cannot hold what is written whole or not at all; name a file or a "
                        "folder instead.")


def check_output_path(path: Path, overwrite: bool = False) -> None:
    """Raise if the path exists and may not be overwritten; a folder that Stemma did not make is never overwritten."""
    refuse_special_file(path)
    remove_stale(resolve_link(path))
    _check_replaceable(path, overwrite)
    if path.is_dir() and any(path.iterdir()) and not any((path / name).exists() for name in OWN_FILES):
        raise UserError(f"{path} is a folder that stemma did not make, so --overwrite does not delete it; choose "
                        "another --out, or empty it yourself.")


def _check_replaceable(path: Path, overwrite: bool) -> None:
    with explain_disk_errors(path):
        if not overwrite and (path.is_file() or (path.is_dir() and any(path.iterdir()))):
            raise UserError(f"{path} exists and is not empty; choose another --out or add --overwrite.")
    if overwrite and path.is_dir():
        _check_unlocked(path)


def _check_unlocked(folder: Path) -> None:
    """Raise if another process works in the folder, such as a run, or a cell of a lab."""
    for path in (folder, *(below for below in folder.rglob("*") if below.is_dir())):
        if _identity(path) in _locked_folders:
            continue
        with lock_folder(path, f"another process is at work in {path}, which --overwrite would replace; wait for it, "
                               "or stop it first."):
            pass


@contextmanager
def atomic_folder(path: Path, overwrite: bool = False, checksums: bool = True) -> Iterator[Path]:
    """A temporary folder that replaces `path` when the block succeeds, and is removed if it fails."""
    path = Path(path) if Path(path).name else Path(path).resolve()  # "." has no name for a temporary sibling
    refuse_special_file(path)
    target = resolve_link(path)
    remove_stale(target)
    _check_replaceable(path, overwrite)
    with explain_disk_errors(path):
        temporary, handle = create_locked(target, lambda name: make_folder(name, display_path=path))
        try:
            yield temporary
            if checksums:
                write_checksums(temporary)
            for file in temporary.rglob("*"):
                _fsync(file)
            _fsync(temporary)
            _replace_folder(temporary, target, overwrite)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        finally:
            os.close(handle)


def _replace_folder(temporary: Path, path: Path, overwrite: bool) -> None:
    _check_replaceable(path, overwrite)  # another process may have written it meanwhile
    if path.exists():
        handle = os.open(path, os.O_RDONLY)  # between the two renames, no process may take it for a leftover
        try:
            try_lock(handle)
            aside = path.with_name(temporary_name(path, "old"))
            path.rename(aside)
            temporary.rename(path)
            old = aside.rename(aside.with_suffix(".tmp"))  # from now on it may be incomplete
            shutil.rmtree(old, ignore_errors=True) if old.is_dir() else old.unlink()
        finally:
            os.close(handle)
    else:
        temporary.rename(path)
    _fsync(path.parent)


def write_checksums(folder: Path, files: Iterable[Path] | None = None) -> None:
    """Record the SHA-256 of `files`, or of every file below `folder`."""
    files = files if files is not None else (f for f in folder.rglob("*") if f.is_file() and f.name != CHECKSUMS)
    sums = {file.relative_to(folder).as_posix(): sha256(file) for file in sorted(files)}
    (folder / CHECKSUMS).write_text(json.dumps(sums, indent=1))


def read_checksums(folder: Path, advice: str) -> dict[str, list[str]]:
    """File name -> valid SHA-256 digests; raises for names outside the folder."""
    listing = folder / CHECKSUMS
    sums = read_object(listing, advice)
    for name, listed in sums.items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise CorruptFileError(f"{listing} is damaged (it names {name}, which lies outside of it); {advice}")
        sums[name] = [listed] if isinstance(listed, str) else listed
        if not isinstance(sums[name], list) or not all(isinstance(digest, str) for digest in sums[name]):
            raise CorruptFileError(f"{listing} is damaged (of {name} it gives no checksum); {advice}")
    return sums


def verify_checksums(folder: Path, what: str, advice: str, needed: Iterable[str] = ()) -> None:
    """Raise CorruptFileError for the first file that is missing or has another checksum, and for `needed` files that
    have no checksum."""
    try:
        sums = read_checksums(folder, advice)
    except CorruptFileError as error:
        if (folder / CHECKSUMS).is_file():
            raise
        raise CorruptFileError(f"{what} {folder} has no readable {CHECKSUMS}; {advice}") from error
    if absent := [name for name in needed if name not in sums]:
        raise CorruptFileError(f"{folder / CHECKSUMS} is damaged (it does not list {absent[0]}); {advice}")
    for name, expected in sums.items():
        file = folder / name
        if not file.is_file():
            raise CorruptFileError(f"{what} {folder} lacks {name}; {advice}")
        if sha256(file) not in expected:
            raise CorruptFileError(f"{file} is damaged (its checksum differs from the one written); {advice}")
