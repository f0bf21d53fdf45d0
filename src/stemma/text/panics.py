"""Regular expressions of other people's tokenizers: one that gives up is a sentence, not a backtrace.

The Rust side panics where its expression engine reaches a limit, and prints a backtrace on its own. Python only sees a
`PanicException`, which is no `Exception`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tokenizers import Tokenizer as Backend

from stemma.errors import UserError

# Of our own pipelines: none of these tries anything twice, so that they reach no limit.
OWN = {r'" {2,}"', r'"[\\s\\S]"', r'"\\s+"', r'"▁?\\p{P}+"'}


def has_foreign_regex(backend: Backend) -> bool:
    """Whether a step of this pipeline has an expression that is not ours."""
    found = re.findall(r'"Regex":\s*("(?:[^"\\]|\\.)*")', backend.to_str())
    return any(pattern not in OWN for pattern in found)


@contextmanager
def no_panic(foreign: bool) -> Iterator[None]:
    """Run a pipeline; `foreign`: its messages are kept off stderr while it runs, since it prints before it raises."""
    kept = -1
    if foreign:
        if sys.stderr is not None:
            sys.stderr.flush()
        kept, silent = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 2)
        os.close(silent)
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise UserError(f"the tokenizer cannot read this text ({str(error)[:160]}): a regular expression in its "
                        "tokenizer.json gives up; mend the expression, or use another tokenizer.") from None
    finally:
        if kept >= 0:
            os.dup2(kept, 2)
            os.close(kept)
