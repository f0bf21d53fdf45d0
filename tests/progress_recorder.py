"""Records the progress stages of a block, with their final counts."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager

from stemma.progress import ProgressLines, ProgressStage, report_to

FinishedStages = dict[str, tuple[float, float | None]]  # label -> (count, total)


class _RecordedStages(list[ProgressStage]):
    def __init__(self) -> None:
        super().__init__()
        self.finished: FinishedStages = {}

    def remove(self, stage: ProgressStage) -> None:
        self.finished[stage.label] = stage.count, stage.total
        super().remove(stage)


@contextmanager
def recorded_stages() -> Iterator[FinishedStages]:
    lines = ProgressLines(io.StringIO())
    lines.stages = stages = _RecordedStages()
    with report_to(lines):
        yield stages.finished
