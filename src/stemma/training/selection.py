"""The best of a run's looks at held-out data: its weights are kept, and training ends where no better one comes.

They stand in `checkpoints/best-N`. An older best goes only once a checkpoint knows of the newer one, so that a kill at
any moment leaves what the run will ask for.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stemma.errors import UserError
from stemma.files import verify_checksums
from stemma.network.network import Network
from stemma.training.callbacks import Callback
from stemma.training.checkpoints import WEIGHTS, load_weights, save_weights

if TYPE_CHECKING:
    from stemma.training.loop import Loop

Judge = Callable[[], float]  # how good the network is now: the higher, the better


@dataclass
class Best:
    """What is known of the looks so far; it goes into a checkpoint."""

    score: float | None = None
    step: int | None = None
    since: int = 0  # looks that were not better


class Selection(Callback):
    """Without a `judge`, the held-out loss decides."""

    def __init__(self, run: Path, network: Network, patience: int | None, judge: Judge | None):
        self.run, self.network, self.patience, self.judge = run, network, patience, judge
        self.best = Best()

    def on_validation(self, loop: Loop, found: dict[str, Any]) -> bool:
        return self.look(loop.course.step, found)

    def on_checkpoint(self, loop: Loop, folder: Path) -> None:
        self.tidy()

    def look(self, step: int, found: dict[str, Any]) -> bool:
        """Take note of how good the network is after this step; with a judge, its word is added to what was found.
        Whether it has been waited long enough for a better one."""
        if self.judge is not None:
            self.network.eval()
            found["score"] = self.judge()
        score = found["score"] if self.judge is not None else -found["validation_loss"]
        score = -math.inf if math.isnan(score) else score
        if self.best.score is None or score > self.best.score:
            save_weights(self._folder(step), self.network)
            self.best = Best(score, step)
        else:
            self.best.since += 1
        return self.settled

    @property
    def settled(self) -> bool:
        return self.patience is not None and self.best.since >= self.patience

    def tidy(self) -> None:
        """Remove what was the best before, or in a past that was abandoned."""
        for folder in (self.run / "checkpoints").glob("best-*"):
            if folder != self._folder(self.best.step):
                shutil.rmtree(folder, ignore_errors=True)

    def take(self) -> None:
        """Fill the network with the weights of the best look."""
        folder = self._folder(self.best.step)
        advice = f"delete {self.run / 'checkpoints'}, and `stemma resume {self.run}` starts again from step 0."
        if not folder.is_dir():
            raise UserError(f"{folder}, the best weights of {self.run}, is not there any more; {advice}")
        verify_checksums(folder, "the best weights", advice, (WEIGHTS,))
        load_weights(folder, self.network)

    def _folder(self, step: int | None) -> Path:
        return self.run / "checkpoints" / f"best-{step}"
