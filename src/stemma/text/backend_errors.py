"""Turns panics of the Rust tokenizer backend into error messages.

The backend panics when the regular-expression engine reaches a limit, and prints a backtrace. Python gets a
`PanicException`, which is not a subclass of `Exception`. Only expressions of third-party tokenizers do this.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from tokenizers import Tokenizer as Backend

from stemma.errors import UserError

# Expressions of our own pipelines: none of them backtracks, so they reach no limit.
KNOWN_REGEXES = {r'" {2,}"', r'"[\\s\\S]"', r'"\\s+"', r'"▁?\\p{P}+"'}


def has_foreign_regex(backend: Backend) -> bool:
    """Whether a step of this pipeline has an expression that is not ours."""
    patterns = re.findall(r'"Regex":\s*("(?:[^"\\]|\\.)*")', backend.to_str())
    return any(pattern not in KNOWN_REGEXES for pattern in patterns)


class _SilencedStderr:
    """Redirects stderr to the null device. The file descriptor belongs to the whole process, so threads share one
    redirection: the first starts it and the last ends it. Other output to stderr is lost meanwhile, so only pipelines
    with foreign expressions use it."""

    def __init__(self) -> None:
        self._lock, self._users, self._original = threading.Lock(), 0, -1

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                if sys.stderr is not None:
                    sys.stderr.flush()
                self._original, null_device = os.dup(2), os.open(os.devnull, os.O_WRONLY)
                os.dup2(null_device, 2)
                os.close(null_device)
            self._users += 1

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                os.dup2(self._original, 2)
                os.close(self._original)


_silence = _SilencedStderr()


@contextmanager
def catch_panics(foreign: bool) -> Iterator[None]:
    """Turn a panic into a UserError; with `foreign`, also silence stderr, since a panic prints before it raises."""
    try:
        with _silence if foreign else nullcontext():
            yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise UserError(f"the tokenizer cannot read this text ({str(error)[:160]}): a regular expression in its "
                        "tokenizer.json gives up; correct the expression, or use another tokenizer.") from None
