"""Standard input and output as a verb finds them: closed, full, or a terminal that obeys what is printed on it.

Labels, file names, tokens and texts may hold control characters. Everything printed goes through `EscapedStream`, which
spells them out as JSON does: a terminal shows them and does not obey them, and a JSON object stays exactly what it was.
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

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all of them but tab and line end
REMEDIES = {
    errno.EMFILE: "too many files are open; raise the limit (ulimit -n 1024) and run the same command again",
    errno.ENFILE: "this machine has too many files open; try again later",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
    errno.ENOSPC: "the disk is full; free some space", errno.EDQUOT: "your quota is used up; free some space",
    errno.EACCES: "you may not open it; check its permissions", errno.EPERM: "you may not do that with it",
    errno.EROFS: "the disk is read-only; choose another place", errno.EIO: "the disk or the terminal fails",
    errno.ENOMEM: "there is not enough memory; make batches or the model smaller",
    errno.ELOOP: "its links lead in a circle",
}


def escape_control(text: str) -> str:
    """Control characters as JSON spells them."""
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class ExplainedStream:
    """A stream that says in a sentence why it cannot be written."""

    def __init__(self, stream: TextIO, vital: bool):
        self._stream = stream
        self._vital = vital  # whether it matters that nothing can be written: not for notes and errors

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
    """A stream that only ever gets text; `exact` is for what draws on a terminal itself."""

    def __init__(self, stream: TextIO, vital: bool):
        super().__init__(stream, vital)
        self.unescaped = ExplainedStream(stream, vital)

    def write(self, text: str) -> int:
        return super().write(escape_control(text))


@contextmanager
def safe_streams() -> Iterator[None]:
    """Streams that can be used: none is closed, and all they are given is visible."""
    for number in range(3):  # otherwise the next file that is opened gets this number, and is printed into
        with suppress(OSError):
            _open_if_closed(number)
    before = sys.stdout, sys.stderr
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 (it is the process's own)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a terminal that lacks a character must not end the run
            stream.reconfigure(errors="backslashreplace")
    sys.stderr = cast(TextIO, EscapedStream(sys.stderr, vital=False))
    try:
        if sys.stdout is not None:
            sys.stdout = cast(TextIO, EscapedStream(sys.stdout, vital=True))
        yield
    finally:
        sys.stdout, sys.stderr = before


def _open_if_closed(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        handle = os.open(os.devnull, os.O_RDWR)
        if handle != number:
            os.dup2(handle, number)
            os.close(handle)


def check_output() -> None:
    if sys.stdout is None:
        raise UserError("standard output is closed, so that no result can be printed; send it to a file, or to "
                        "/dev/null.")


def text_output() -> TextIO:
    """Where texts that a model wrote go: exactly as they are into a file or a pipe, visible on a terminal."""
    return sys.stdout if sys.stdout.isatty() else getattr(sys.stdout, "unescaped", sys.stdout)


def discard_output() -> None:
    """Nobody can take what is still waiting to be written; the interpreter must not complain of that at its end."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def environment_error(error: BaseException | None) -> UserError | None:
    """What the system refused, as a sentence: the process's surroundings are at fault, neither our code nor the input
    as such."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        said = str(error)
        # Rust (safetensors, tokenizers) and the loader of libraries put what the system said into the text
        told = re.search(r"\(os error (\d+)\)", said)
        number = error.errno if isinstance(error, OSError) else int(told[1]) if told else \
            errno.EMFILE if "Too many open files" in said else None
        if isinstance(error, MemoryError) or "DefaultCPUAllocator: can't allocate memory" in said:
            number = errno.ENOMEM
        if number in REMEDIES:
            whole = number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # whichever file it was is only chance
            name = None if whole else getattr(error, "filename", None)
            about = f"{_short(str(name))}: " if name is not None else ""
            return UserError(f"{about}{REMEDIES[number]}.")
        error = error.__cause__ or error.__context__
    return None


def _short(name: str) -> str:
    return name if len(name) <= 100 else f"{name[:60]}...{name[-20:]}"
