"""Records the progress stages of a block, with their final counts."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

from stemma.progress import ProgressLines, ProgressStage, report_to

Seen = dict[str, tuple[float, float | None]]


class _Stages(list[ProgressStage]):
    def __init__(self) -> None:
        super().__init__()
        self.seen: Seen = {}

    def remove(self, one: ProgressStage) -> None:
        self.seen[one.label] = one.count, one.total
        super().remove(one)


@contextmanager
def noted() -> Iterator[Seen]:
    lines = ProgressLines(io.StringIO())
    lines.stages = stages = _Stages()
    with report_to(lines):
        yield stages.seen
