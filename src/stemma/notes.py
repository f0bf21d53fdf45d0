"""Filters for log messages of Stemma, set by the calling code.

Modules log as usual: `logging.getLogger(__name__)`. A caller can change the messages of the code it calls:

    with about("domain"):            # "the text has ..." becomes "domain: the text has ..."
    with each_once():                # drop repeated messages
    with silenced():                 # drop all messages
    for passage in quietly(items):   # iterate without messages, such as when a file is read again

The filters apply to the current thread. While there are any, a handler on the logger `stemma` applies them and passes
the records on to the existing handlers, including those of the root logger.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Change = Callable[[str], str | None]  # message -> new message, or None to drop it
Item = TypeVar("Item")

ROOT = logging.getLogger("stemma")
_changes: ContextVar[tuple[Change, ...]] = ContextVar("changes", default=())


@contextmanager
def about(name: str) -> Iterator[None]:
    """Put this name before all messages."""
    with _changed(lambda text: f"{name}: {text}"):
        yield


@contextmanager
def silenced() -> Iterator[None]:
    with _changed(lambda text: None):
        yield


@contextmanager
def each_once(logged: set[str] | None = None) -> Iterator[None]:
    """Log each message once; `logged` holds the messages so far."""
    logged = set[str]() if logged is None else logged

    def drop_repeated(text: str) -> str | None:
        if text in logged:
            return None
        logged.add(text)
        return text

    with _changed(drop_repeated):
        yield


def quietly(items: Iterable[Item]) -> Iterator[Item]:
    """The items, produced without messages. The consumer may log between two items."""
    iterator = iter(items)
    while True:
        with silenced():
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item


@contextmanager
def _changed(change: Change) -> Iterator[None]:
    token = _changes.set((change, *_changes.get()))  # innermost first
    _relay.use()
    try:
        yield
    finally:
        _relay.leave()
        _changes.reset(token)


class _Relay(logging.Handler):
    """Replaces the handlers of the logger `stemma` while there are filters."""

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
                added = [handler for handler in ROOT.handlers if handler is not self]  # added meanwhile
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
