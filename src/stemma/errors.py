"""What we tell a user whose input is at fault: one sentence that names the thing, the place and the way out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class UserError(Exception):
    """The user's input is at fault (exit code 2); `problems` are listed under the sentence, all at once."""

    def __init__(self, message: str, problems: Sequence[tuple[str, str] | str] = ()):
        super().__init__(message)
        self.message = message
        self.problems = [p if isinstance(p, tuple) else ("", p) for p in problems]

    def __str__(self) -> str:
        width = max((len(where) for where, _ in self.problems), default=0)
        rows = [f"  {where:<{width}}   {what}" if where else f"  {what}" for where, what in self.problems]
        return "\n".join([self.message, *rows])

    def __reduce__(self) -> tuple[object, ...]:  # worker processes hand their errors back through pickle
        return (UserError, (self.message, self.problems))


class CorruptFileError(UserError):
    """A file of ours whose bytes are not what we wrote."""

    def __reduce__(self) -> tuple[object, ...]:
        return (CorruptFileError, (self.message, self.problems))


class Interrupted(Exception):  # noqa: N818  (it is no error)
    """SIGINT or SIGTERM arrived; the state is saved (exit code 130)."""


def closest_match(word: str, candidates: Iterable[str]) -> str | None:
    """The known spelling that `word` was probably meant to be."""
    found = difflib.get_close_matches(word, list(candidates), n=1, cutoff=0.6)
    return found[0] if found else None


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    best = closest_match(word, candidates)
    return f' Did you mean "{best}"?' if best else ""


def pluralize(count: float, singular: str, plural: str = "") -> str:
    """A number with what it counts: 1 step, 1,200 steps, 2 processes, 0.5 minutes."""
    number = f"{count:,.6g}" if isinstance(count, float) else f"{count:,}"
    return f"{number} {singular}" if count == 1 else f"{number} {plural or singular + 's'}"
