"""Standard streams that may be closed or full, and control characters in the output.

Labels, file names, tokens and texts may contain control characters. Everything printed goes through `EscapedStream`,
which escapes them as JSON does: a terminal shows them and does not execute them, and a JSON object keeps its content.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO, cast

from stemma.errors import UserError

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all except tab and line end
REMEDIES = {
    errno.EMFILE: "too many files are open; raise the limit (ulimit -n 1024) and run the same command again",
    errno.ENFILE: "this machine has too many files open; try again later",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
    errno.ENOSPC: "the disk is full; free some space", errno.EDQUOT: "your quota is used up; free some space",
    errno.EACCES: "you may not open it; check its permissions", errno.EPERM: "you may not do that with it",
    errno.EROFS: "the disk is read-only; choose another folder", errno.EIO: "the disk or the terminal fails",
    errno.ENOMEM: "there is not enough memory; make batches or the model smaller",
    errno.ELOOP: "its links lead in a circle",
}


def escape_control(text: str) -> str:
    """Replace control characters by JSON escapes."""
    return CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class ExplainedStream:
    """A stream that raises a UserError with the reason if it cannot be written."""

    def __init__(self, stream: TextIO, vital: bool):
        self._stream = stream
        self._vital = vital  # whether a failed write is an error; not for notes and messages on stderr

    def write(self, text: str) -> int:
        with self._explained():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._explained():
            self._stream.flush()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            if self._vital:
                raise UserError(f"cannot write to standard output: {(error.strerror or str(error)).lower()}; send it "
                                "to another file, or use --out where the command has it.") from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class EscapedStream(ExplainedStream):
    """A stream that escapes control characters; `unescaped` is for code that draws on the terminal."""

    def __init__(self, stream: TextIO, vital: bool):
        super().__init__(stream, vital)
        self.unescaped = ExplainedStream(stream, vital)

    def write(self, text: str) -> int:
        return super().write(escape_control(text))


@contextmanager
def safe_streams() -> Iterator[None]:
    """Replace the standard streams: none is closed, and control characters are escaped."""
    for descriptor in range(3):  # otherwise the next file that is opened gets this descriptor, and output goes into it
        with suppress(OSError):
            _open_if_closed(descriptor)
    before = sys.stdout, sys.stderr
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 (open until the process ends)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a character that the terminal cannot encode must not end the run
            stream.reconfigure(errors="backslashreplace")
    sys.stderr = cast(TextIO, EscapedStream(sys.stderr, vital=False))
    try:
        if sys.stdout is not None:
            sys.stdout = cast(TextIO, EscapedStream(sys.stdout, vital=True))
        yield
    finally:
        sys.stdout, sys.stderr = before


def _open_if_closed(descriptor: int) -> None:
    try:
        os.fstat(descriptor)
    except OSError:
        devnull = os.open(os.devnull, os.O_RDWR)
        if devnull != descriptor:
            os.dup2(devnull, descriptor)
            os.close(devnull)


def check_output() -> None:
    if sys.stdout is None:
        raise UserError("standard output is closed, so that no result can be printed; send it to a file, or to "
                        "/dev/null.")


def text_output() -> TextIO:
    """The stream for generated texts: unchanged into a file or a pipe, escaped on a terminal."""
    return sys.stdout if sys.stdout.isatty() else getattr(sys.stdout, "unescaped", sys.stdout)


def discard_output() -> None:
    """Send buffered output to /dev/null, so that the interpreter does not report a failed write at exit."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def environment_error(error: BaseException | None) -> UserError | None:
    """An error of the operating system (disk, memory, permissions) as a UserError with a remedy, else None."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        text = str(error)
        # Rust (safetensors, tokenizers) and the dynamic linker have the error of the system only in their text
        match = re.search(r"\(os error (\d+)\)", text)
        code = error.errno if isinstance(error, OSError) else int(match[1]) if match else \
            errno.EMFILE if "Too many open files" in text else None
        if isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate memory" in text:
            code = errno.ENOMEM
        if code in REMEDIES:
            any_file = code in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # the file that failed is not the cause
            name = None if any_file else getattr(error, "filename", None)
            prefix = f"{_short(str(name))}: " if name is not None else ""
            return UserError(f"{prefix}{REMEDIES[code]}.")
        error = error.__cause__ or error.__context__
    return None


def _short(name: str) -> str:
    return name if len(name) <= 100 else f"{name[:60]}...{name[-20:]}"
