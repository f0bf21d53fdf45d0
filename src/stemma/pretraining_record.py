"""How long a model was pre-trained and how well, stored beside its weights in `pretraining.json`.

The recipe says how a model is trained, not for how long. The defaults of fine-tuning depend on that
(`tasks/runs/finetune_defaults.py`). Other programs ignore the file, and a checkpoint of another program has none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from stemma.json_files import explain_damage, read_object

FILE = "pretraining.json"
ADVICE = "save the model again from its run, or delete the file: the model then counts as published."


@dataclass(frozen=True)
class PretrainingRecord:
    tokens: int  # tokens of text read, of all runs that led to this model
    validation_loss: float | None = None  # in nats, at the end of the last run
    unigram_loss: float | None = None  # of a unigram model on the same targets

    @property
    def nats_below_unigram(self) -> float | None:
        if self.validation_loss is None or self.unigram_loss is None:
            return None
        return self.unigram_loss - self.validation_loss

    @classmethod
    def of_run(cls, tokens: int, metrics: Mapping[str, Any], earlier: Self | None = None) -> Self:
        """The record of a run that ends with these metrics, started from a model with the record `earlier`."""
        losses = (metrics.get("validation_loss"), metrics.get("unigram_loss"))
        return cls(tokens + (0 if earlier is None else earlier.tokens),
                   *(None if loss is None else float(loss) for loss in losses))

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        losses = (stored.get("validation_loss"), stored.get("unigram_loss"))
        return cls(int(stored["tokens"]), *(None if loss is None else float(loss) for loss in losses))

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if value is not None}


def write_record(folder: Path, record: PretrainingRecord | None) -> None:
    if record is not None:
        (folder / FILE).write_text(json.dumps(record.to_json(), indent=1) + "\n")


def read_record(folder: Path) -> PretrainingRecord | None:
    """The record of a model folder; None: it was not pre-trained by a run of this program, or is older."""
    file = folder / FILE
    if not file.is_file():
        return None
    with explain_damage(file, ADVICE):
        return PretrainingRecord.from_json(read_object(file, ADVICE))
