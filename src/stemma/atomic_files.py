"""Writing so that a kill at any moment leaves either the old state or the new one, and reading only what we wrote.

A folder is filled under a temporary name beside its place, flushed to disk and renamed; every file's SHA-256 stands
in `checksums.json`, which is verified before anything in the folder is believed. A temporary name is locked by the
process that made it, so that what a killed process left can be told from what another is writing.
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
# One of these stands in every folder that a verb makes, and in a model or a tokenizer that others made.
OWN_FILES = (CHECKSUMS, "run.json", "recipe.toml", "lab.json", "pipeline.toml", "quickstart.json", "result.json",
         "manifest.json", "config.json", "tokenizer.json")
SYSTEM = ("/dev", "/dev/fd", "/proc/self/fd")  # what is written there goes to a device or to an open stream
SPECIAL = ((stat.S_ISFIFO, "a named pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"),
           (stat.S_ISBLK, "a device"))


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class DiskFullError(UserError):  # noqa: N818  (what is the matter, not what is wrong)
    """There is no room for a file; `then` says what to do when there is."""

    def __init__(self, problem: str, advice: str = "run the same command again"):
        super().__init__(f"{problem}, and {advice}. What was saved before is untouched.")
        self.problem = problem

    def with_advice(self, advice: str) -> DiskFullError:
        return DiskFullError(self.problem, advice)

    def __reduce__(self) -> tuple[object, ...]:
        return (UserError, (self.message, self.problems))


@contextmanager
def explain_disk_errors(path: Path) -> Iterator[None]:
    """Turn the disk errors a user can do something about into sentences."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        # Libraries written in Rust (safetensors, tokenizers) raise their own types and put the number in the text.
        told = re.search(r"\(os error (\d+)\)", str(error))
        number = error.errno if isinstance(error, OSError) else int(told[1]) if told else None
        if number in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(f"the disk is full while writing {path}; free some space") from error
        if number == errno.EFBIG:
            raise DiskFullError(f"{path} would exceed the largest file allowed here; raise the limit (ulimit -f)") from error
        if number in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG):
            raise UserError(f"cannot write {path}: {os.strerror(number)}; choose another place with "
                            "--out.") from error
        raise


def make_folder(path: Path, display_path: Path | None = None) -> None:
    """Make a folder and those above it; `known_as` is what the user calls it."""
    name = display_path or path
    with explain_disk_errors(name):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError, FileNotFoundError) as error:
            file = next((part for part in (path, *path.parents) if part.is_file()), None)
            reason = f"{file} is a file" if file else error.strerror
            raise UserError(f"cannot make the folder {name}: {reason}; choose another place.") from error


class FolderLockedError(UserError):  # noqa: N818  (what is the matter, not what is wrong)
    """Somebody else is at work here."""


_locked_folders: set[tuple[int, int]] = set()  # folders that this process holds, by device and inode


@contextmanager
def lock_folder(folder: Path, locked_message: str | None = None) -> Iterator[None]:
    """Hold a folder for this process alone: wait for whoever has it, or refuse with the sentence `busy`.

    The system lets go when the process ends, however it ends. Where there are no such locks (Windows, some network
    disks) nothing is held: they guard against waste and mistakes, the renames below guard the files.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    held = _identity(folder)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (fcntl.LOCK_NB if locked_message else 0))
        except BlockingIOError as error:
            raise FolderLockedError(locked_message or "") from error
        except OSError:
            pass
        _locked_folders.add(held)
        try:
            yield
        finally:
            _locked_folders.discard(held)
    finally:
        os.close(handle)


def _identity(folder: Path) -> tuple[int, int]:
    found = folder.stat()
    return found.st_dev, found.st_ino


def remove_leftovers(folder: Path) -> None:
    """Clear away what a kill in the middle of a write left in `folder`; only for its single user."""
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
    """Replace one file; a reader sees the old content or the new, never a part."""
    with atomic_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that becomes `path` when the block ends well, and vanishes when it does not; it may be read again."""
    refuse_special_file(path)
    place = resolve_link(path)
    remove_stale(place)
    with explain_disk_errors(path):
        with _explain_missing_folder(path):
            temporary, handle = create_locked(place, lambda name: name.touch(exist_ok=False))
        try:
            with temporary.open("r+b") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            with _explain_missing_folder(path):
                temporary.replace(place)
                _fsync(place.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(handle)


@contextmanager
def _explain_missing_folder(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:  # the folder has gone since, or is one of the system's own
        raise UserError(f"cannot write {path}: {error.strerror}; choose another place.") from error


def refuse_special_file(path: Path) -> None:
    """A device, a pipe or a socket is never replaced by a file, not even with --overwrite."""
    with explain_disk_errors(path):
        mode = path.stat().st_mode if path.exists() else 0
    kind = "a device" if str(path.absolute().parent) in SYSTEM else \
        next((name for holds, name in SPECIAL if holds(mode)), None)
    if kind is not None:
        raise UserError(f"{path} is {kind}, which cannot hold what is written whole or not at all; name a file or a "
                        "folder instead.")


def check_output_path(path: Path, overwrite: bool = False) -> None:
    """Nothing of the user's is overwritten unless they say so, and no folder that we did not make even then."""
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
    """What somebody is at work on is not replaced: a run, or a lab one of whose cells is held."""
    for place in (folder, *(below for below in folder.rglob("*") if below.is_dir())):
        if _identity(place) in _locked_folders:
            continue
        with lock_folder(place, f"another process is at work in {place}, which --overwrite would replace; wait for it, "
                              "or stop it first."):
            pass


@contextmanager
def atomic_folder(path: Path, overwrite: bool = False, checksums: bool = True) -> Iterator[Path]:
    """A temporary folder that becomes `path` when the block ends well, and vanishes when it does not."""
    path = Path(path) if Path(path).name else Path(path).resolve()  # "." has no name to put another beside
    refuse_special_file(path)
    place = resolve_link(path)
    remove_stale(place)
    _check_replaceable(path, overwrite)
    with explain_disk_errors(path):
        temporary, handle = create_locked(place, lambda name: make_folder(name, display_path=path))
        try:
            yield temporary
            if checksums:
                write_checksums(temporary)
            for file in temporary.rglob("*"):
                _fsync(file)
            _fsync(temporary)
            _replace_folder(temporary, place, overwrite)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        finally:
            os.close(handle)


def _replace_folder(temporary: Path, path: Path, overwrite: bool) -> None:
    _check_replaceable(path, overwrite)  # somebody may have been faster
    if path.exists():
        held = os.open(path, os.O_RDONLY)  # between the two renames nobody may take it for something left behind
        try:
            try_lock(held)
            aside = path.with_name(temporary_name(path, "old"))
            path.rename(aside)
            temporary.rename(path)
            rubbish = aside.rename(aside.with_suffix(".tmp"))  # only from here on it may be incomplete
            shutil.rmtree(rubbish, ignore_errors=True) if rubbish.is_dir() else rubbish.unlink()
        finally:
            os.close(held)
    else:
        temporary.rename(path)
    _fsync(path.parent)


def write_checksums(folder: Path, files: Iterable[Path] | None = None) -> None:
    """Note the SHA-256 of every file below `folder` (of all of them, unless `files` are named)."""
    chosen = files if files is not None else (f for f in folder.rglob("*") if f.is_file() and f.name != CHECKSUMS)
    sums = {file.relative_to(folder).as_posix(): sha256(file) for file in sorted(chosen)}
    (folder / CHECKSUMS).write_text(json.dumps(sums, indent=1))


def read_checksums(folder: Path, advice: str) -> dict[str, list[str]]:
    """What each file of a folder may hold, by its name; names that lead out of the folder are refused."""
    listing = folder / CHECKSUMS
    sums = read_object(listing, advice)
    for name, listed in sums.items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise CorruptFileError(f"{listing} is damaged (it names {name}, which lies outside of it); {advice}")
        sums[name] = [listed] if isinstance(listed, str) else listed
        if not isinstance(sums[name], list) or not all(isinstance(one, str) for one in sums[name]):
            raise CorruptFileError(f"{listing} is damaged (of {name} it gives no checksum); {advice}")
    return sums


def verify_checksums(folder: Path, what: str, advice: str, needed: Iterable[str] = ()) -> None:
    """Raise CorruptFileError that names the first file which is not what was written, or of which that is not known
    and `needed`."""
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
