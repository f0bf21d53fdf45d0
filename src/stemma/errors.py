"""Errors for users: one sentence that says what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

MAX_PROBLEMS_SHOWN = 8


class UserError(Exception):
    """An error in the user's input (exit code 2); all `problems` are listed under the message."""

    def __init__(self, message: str, problems: Sequence[tuple[str, str] | str] = ()):
        super().__init__(message)
        self.message = message
        self.problems = [p if isinstance(p, tuple) else ("", p) for p in problems]

    def __str__(self) -> str:
        width = max((len(where) for where, _ in self.problems), default=0)
        rows = [f"  {where:<{width}}   {what}" if where else f"  {what}" for where, what in self.problems]
        return "\n".join([self.message, *rows])

    def __reduce__(self) -> tuple[object, ...]:  # worker processes send errors through pickle
        return (UserError, (self.message, self.problems))


class CorruptFileError(UserError):
    """A file that Stemma wrote has been damaged or changed."""

    def __reduce__(self) -> tuple[object, ...]:
        return (CorruptFileError, (self.message, self.problems))


class Interrupted(Exception):  # noqa: N818  (not an error)
    """Stopped by SIGINT or SIGTERM; the state is saved (exit code 130)."""


def first_problems(problems: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The first (location, problem) pairs, and the number of the others: for errors with a line per line of a file."""
    more = len(problems) - MAX_PROBLEMS_SHOWN
    return [*problems[:MAX_PROBLEMS_SHOWN], *([("", f"and {more:,} more")] if more > 0 else [])]


def closest_match(word: str, candidates: Iterable[str]) -> str | None:
    """The candidate that `word` probably means; None if none is similar."""
    matches = difflib.get_close_matches(word, list(candidates), n=1, cutoff=0.6)
    return matches[0] if matches else None


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    best = closest_match(word, candidates)
    return f' Did you mean "{best}"?' if best else ""


def join_names(names: Iterable[str]) -> str:
    """For example "a, b and c"."""
    names = list(names)
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def pluralize(count: float, singular: str, plural: str = "") -> str:
    """A count with its noun: 1 step, 1,200 steps, 2 processes, 0.5 minutes."""
    number = f"{count:,.6g}" if isinstance(count, float) else f"{count:,}"
    return f"{number} {singular}" if count == 1 else f"{number} {plural or singular + 's'}"
