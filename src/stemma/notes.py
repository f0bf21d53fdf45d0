"""What stemma's loggers say, seen from the code that calls them.

Modules log as usual: `logging.getLogger(__name__)`. A caller that knows more about its callee's notes says so here:

    with about("domain"):            # "the text has ..." becomes "domain: the text has ..."
    with each_once():                # what was said of one cell is not said again of the next
    with silenced():                 # it was said before, or nobody asked
    for passage in quietly(again):   # a file that is read for the second time

The changes hold for the thread that makes them. While there are any, a handler on the logger `stemma` applies them and
hands the records on to whatever handlers there are, those of the root logger included.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Change = Callable[[str], str | None]  # the text to log instead; None: nothing
Item = TypeVar("Item")

ROOT = logging.getLogger("stemma")
_changes: ContextVar[tuple[Change, ...]] = ContextVar("changes", default=())


@contextmanager
def about(name: str) -> Iterator[None]:
    """Notes from inside begin with this name."""
    with _changed(lambda text: f"{name}: {text}"):
        yield


@contextmanager
def silenced() -> Iterator[None]:
    with _changed(lambda text: None):
        yield


@contextmanager
def each_once(told: set[str] | None = None) -> Iterator[None]:
    """The same note is given once; `told`: those that were given before."""
    known = set[str]() if told is None else told

    def new(text: str) -> str | None:
        if text in known:
            return None
        known.add(text)
        return text

    with _changed(new):
        yield


def quietly(items: Iterable[Item]) -> Iterator[Item]:
    """The same items, made without a note. Whoever takes them may log between two of them."""
    waiting = iter(items)
    while True:
        with silenced():
            try:
                item = next(waiting)
            except StopIteration:
                return
        yield item


@contextmanager
def _changed(change: Change) -> Iterator[None]:
    before = _changes.set((change, *_changes.get()))  # the innermost comes first
    _relay.use()
    try:
        yield
    finally:
        _relay.leave()
        _changes.reset(before)


class _Relay(logging.Handler):
    """In place of the handlers of the logger `stemma`, for as long as anybody has changes to make."""

    def __init__(self) -> None:
        super().__init__()
        self._guard = threading.Lock()
        self._users = 0
        self._handlers: list[logging.Handler] = []
        self._propagate = True

    def use(self) -> None:
        with self._guard:
            self._users += 1
            if self._users == 1:
                self._handlers, self._propagate = ROOT.handlers, ROOT.propagate
                ROOT.handlers, ROOT.propagate = [self], False

    def leave(self) -> None:
        with self._guard:
            self._users -= 1
            if not self._users:
                added = [one for one in ROOT.handlers if one is not self]  # by somebody in between
                ROOT.handlers, ROOT.propagate = [*self._handlers, *added], self._propagate

    def handle(self, record: logging.LogRecord) -> bool:
        text: str | None = record.getMessage()
        for change in _changes.get():
            text = change(text) if text is not None else None
        if text is None:
            return False
        record.msg, record.args = text, None
        for handler in self._handlers:
            if record.levelno >= handler.level:
                handler.handle(record)
        if self._propagate:
            logging.getLogger().callHandlers(record)
        return True


_relay = _Relay()
