"""Revisions of a run: complete models saved at numbers of words read, `revisions/words-1M/`, in Hugging Face layout.

Words are those of the corpus: tokens that begin a word of the tokenizer (a punctuation mark is one, too) or, in
Chinese, of the word segmenter. They are counted in the rows that the model reads, so a text that is read twice counts
twice. The number of words of a step depends on its rows only; a resumed run counts the same words and saves the same
bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from stemma.errors import UserError
from stemma.training.callbacks import Callback, StepReport

if TYPE_CHECKING:
    from stemma.training.trainer import Trainer

REVISIONS = "revisions"
UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9}


@dataclass(frozen=True)
class Revision:
    name: str
    words: int | None  # words read; None: not known
    folder: Path


def parse_word_counts(text: str | Sequence[int | str]) -> list[int]:
    """"1M,2.5M,500K" -> [500000, 1000000, 2500000]."""
    parts = text.split(",") if isinstance(text, str) else [str(part) for part in text]
    counts, problems = [], []
    for part in filter(None, (part.strip() for part in parts)):
        match = re.fullmatch(r"(\d[\d_]{0,17}(?:\.\d{1,9})?)([KMB]?)", part.upper(), re.ASCII)
        count = Decimal(match[1].replace("_", "")) * UNITS[match[2]] if match else Decimal(0)
        if count < 1 or count != int(count):
            problems.append((part, "is no number of words; write 500K, 1M or 2000000"))
        counts.append(int(count))
    if problems or not counts:
        raise UserError("--checkpoint-words cannot be read; give numbers of words such as 1M,2M,5M", problems)
    return sorted(set(counts))


def revision_name(words: int) -> str:
    """words-1M, words-2.5M, words-500K, words-1234."""
    for unit in ("B", "M", "K"):
        if words % (UNITS[unit] // 100) == 0 and words >= UNITS[unit]:  # at most two decimals
            return f"words-{words / UNITS[unit]:.10g}{unit}"
    return f"words-{words}"


def list_revisions(run: Path) -> list[Revision]:
    """The revisions of a run, in the order of the words read."""
    found = []
    for folder in (run / REVISIONS).glob("words-*"):
        if (folder / "config.json").is_file():
            words = parse_word_counts(folder.name.removeprefix("words-"))[0]
            found.append(Revision(folder.name, words, folder))
    return sorted(found, key=lambda revision: revision.words or 0)


class RevisionSaver(Callback):
    """Save the model after the step in which the words read reach each of `word_counts`."""

    def __init__(self, word_counts: Sequence[int], write_model: Callable[[Path], None]):
        self.word_counts, self.write_model = word_counts, write_model

    def on_step(self, trainer: Trainer, report: StepReport) -> None:
        words = trainer.state.words
        for count in self.word_counts:
            if words - report.words < count <= words:  # not "is there no folder": a resumed step saves the same bytes
                (trainer.run / REVISIONS).mkdir(exist_ok=True)
                with trainer.method.evaluated_weights():  # the moving average, if the run has one, as in `model/`
                    self.write_model(trainer.run / REVISIONS / revision_name(count))
