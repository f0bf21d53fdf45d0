"""Regular expressions of other people's tokenizers: one that gives up is a sentence, not a backtrace.

The Rust side panics where its expression engine reaches a limit, and prints a backtrace on its own. Python only sees a
`PanicException`, which is no `Exception`.
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

# Of our own pipelines: none of these tries anything twice, so that they reach no limit.
KNOWN_REGEXES = {r'" {2,}"', r'"[\\s\\S]"', r'"\\s+"', r'"▁?\\p{P}+"'}


def has_foreign_regex(backend: Backend) -> bool:
    """Whether a step of this pipeline has an expression that is not ours."""
    found = re.findall(r'"Regex":\s*("(?:[^"\\]|\\.)*")', backend.to_str())
    return any(pattern not in KNOWN_REGEXES for pattern in found)


class _SilencedStderr:
    """stderr leads nowhere while anybody needs it to. It belongs to the whole process, so that threads share one
    redirection: the first one begins it and the last one ends it. What others print meanwhile is lost, which is why
    only pipelines with foreign expressions ask for it."""

    def __init__(self) -> None:
        self._lock, self._users, self._kept = threading.Lock(), 0, -1

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                if sys.stderr is not None:
                    sys.stderr.flush()
                self._kept, silent = os.dup(2), os.open(os.devnull, os.O_WRONLY)
                os.dup2(silent, 2)
                os.close(silent)
            self._users += 1

    def __exit__(self, *raised: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                os.dup2(self._kept, 2)
                os.close(self._kept)


_silence = _SilencedStderr()


@contextmanager
def catch_panics(foreign: bool) -> Iterator[None]:
    """Run a pipeline; `foreign`: its messages are kept off stderr while it runs, since it prints before it raises."""
    try:
        with _silence if foreign else nullcontext():
            yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise UserError(f"the tokenizer cannot read this text ({str(error)[:160]}): a regular expression in its "
                        "tokenizer.json gives up; mend the expression, or use another tokenizer.") from None
