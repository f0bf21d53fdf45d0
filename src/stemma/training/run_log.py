"""The log of a run: one JSON object per line in `log.jsonl`, and optionally TensorBoard."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from stemma.atomic_files import atomic_write, explain_disk_errors
from stemma.errors import UserError
from stemma.json_files import parse_object
from stemma.training.callbacks import Callback, StepReport

if TYPE_CHECKING:
    from stemma.training.trainer import Trainer


class RunLog:
    """`RunLog(run)` appends to `run/log.jsonl`; every line is handed to the system when `write` returns."""

    def __init__(self, run: Path, tensorboard: bool = False):
        self.path = run / "log.jsonl"
        self._folder = run / "tensorboard"
        self._tensorboard: Any = _writer_class()(str(self._folder)) if tensorboard else None
        self._file = self._open()

    def write(self, entry: dict[str, Any]) -> None:
        """Append one entry; `truncate_after` and TensorBoard use its `step`."""
        with explain_disk_errors(self.path):
            line = json.dumps(_without_nan(entry), ensure_ascii=False, allow_nan=False) + "\n"
            self._file.write(line.encode())
        if self._tensorboard is not None and "step" in entry:
            for name, value in entry.items():
                if name != "step" and isinstance(value, (int, float)) and not isinstance(value, bool):
                    self._tensorboard.add_scalar(name, value, entry["step"])
            self._tensorboard.flush()

    def file_digest(self) -> dict[str, Any]:
        """Size and checksum of the file, which only grows."""
        content = self.path.read_bytes()
        return {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    def truncate_after(self, step: int, recorded: dict[str, Any] | None = None) -> str | None:
        """Drop the entries after `step` and a line cut by a kill: a resumed run writes those steps again. Returns a
        warning if the lines before differ from those `recorded` by a checkpoint; training does not depend on them."""
        self._file.close()
        content = self.path.read_bytes()
        warning = None
        if recorded is not None and hashlib.sha256(content[:recorded["bytes"]]).hexdigest() != recorded["sha256"]:
            warning = (f"{self.path} is damaged before step {step:,}; training does not read it, but curves drawn from "
                       "it may be wrong.")
        lines = []
        for line in content.splitlines(keepends=True):
            entry = _parse(line)
            if entry is None:
                continue
            if entry.get("step", 0) > step:
                break
            lines.append(line)
        if sum(map(len, lines)) != len(content):
            atomic_write(self.path, b"".join(lines))
        self._file = self._open()
        if self._tensorboard is not None:
            self._tensorboard.close()
            # TensorBoard hides the later points of older files.
            self._tensorboard = _writer_class()(str(self._folder), purge_step=step + 1)
        return warning

    def _open(self) -> IO[bytes]:
        # Unbuffered: what a full disk refused would fail again, with another error, when the file is closed.
        return self.path.open("ab", buffering=0)

    def close(self) -> None:
        self._file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LoggingCallback(Callback):
    """Writes a line every `every` steps and one for each validation."""

    def __init__(self, every: int):
        self.every = every

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        state = trainer.state
        if state.step % self.every == 0 or state.step == 1:
            trainer.log.write({"step": state.step, "loss": report.loss, "losses": report.losses, **report.details,
                               "tokens": state.tokens, "seconds": round(state.seconds, 3),
                               "tokens_per_second": round(state.tokens_per_second, 1)})

    def on_validation(self, trainer: Trainer, metrics: dict[str, Any]) -> None:
        trainer.log.write({"step": trainer.state.step, "tokens": trainer.state.tokens, **metrics})


def _writer_class() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError('TensorBoard is not installed; run `pip install "stemma-lm[track]"`, or train without '
                        "it.") from error
    return SummaryWriter


def _parse(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        return parse_object(line)
    except ValueError:
        return None


def _without_nan(value: object) -> Any:
    """Replace NaN and infinity by null: JSON has neither."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
