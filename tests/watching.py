"""What was under way while something ran, and how much of it was done at its end."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

from stemma.progress import Lines, Stage, reporting_to

Seen = dict[str, tuple[float, float | None]]


class _Stages(list[Stage]):
    def __init__(self) -> None:
        super().__init__()
        self.seen: Seen = {}

    def remove(self, one: Stage) -> None:
        self.seen[one.label] = one.count, one.total
        super().remove(one)


@contextmanager
def noted() -> Iterator[Seen]:
    lines = Lines(io.StringIO())
    lines.stages = stages = _Stages()
    with reporting_to(lines):
        yield stages.seen
