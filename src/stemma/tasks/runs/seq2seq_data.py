"""Text-to-text tasks: where the pairs of each come from. A prefix says which task is meant (T5, arXiv:1910.10683).

How often each task is drawn goes by min(pairs, limit) ^ (1 / temperature) (section 3.5.2 of the paper), times its
weight. Plans of several tasks are read in `task_plan.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from stemma.errors import UserError
from stemma.schema.corpus import MixtureSettings
from stemma.tasks.kinds.seq2seq import KIND
from stemma.text.parallel import COLUMNS, PairSource, pair_sources
from stemma.training.run_folder import is_pipe

Seq2SeqMetric = Literal["bleu", "chrf", "rouge_l", "exact_match"]
SPLITS = ("train", "dev", "test")
FILES = tuple(f"{name}{side}" for name in SPLITS for side in ("", "_target"))


@dataclass(frozen=True)
class Seq2SeqDataset:
    """Where the pairs of one task come from."""

    name: str
    train: tuple[PairSource, ...]
    dev: tuple[PairSource, ...]
    test: tuple[PairSource, ...] = ()
    metric: Seq2SeqMetric = "bleu"  # the one that counts, where several tasks are taken together


@dataclass(frozen=True)
class Seq2SeqData:
    tasks: tuple[Seq2SeqDataset, ...]
    mixture: MixtureSettings | None = None  # None: one task, not a plan
    options: dict[str, Any] | None = None  # how the command line spelled it, to be repeated
    training: Mapping[str, Any] = field(default_factory=dict)  # of the recipe, as a plan has it
    epochs: float | None = None  # as a plan has it
    origin: str = ""  # the name of the plan


def data_from_cli(files: dict[str, Sequence[str]], prefix: str = "", columns: str = COLUMNS) -> Seq2SeqData:
    """The task of a command line; `files` by train, train_target, dev and so on."""
    files = {key: [str(path) for path in paths] for key, paths in files.items() if paths}
    for name in SPLITS:
        if f"{name}_target" in files and name not in files:
            raise UserError(f"--{name}-target is the other side of --{name}, which is missing.")
    sources = {name: pair_sources_for(KIND, name, files, prefix, columns) for name in SPLITS if name in files}
    spelled = {key: [str(Path(path).absolute()) for path in paths] for key, paths in files.items()}
    stated = {key: value for key, value, usual in (("prefix", prefix, ""), ("columns", columns, COLUMNS))
              if value != usual}
    return Seq2SeqData((Seq2SeqDataset(KIND, sources["train"], sources["dev"], sources.get("test", ())),),
                options={**spelled, **stated})


def pair_sources_for(task: str, name: str, files: Mapping[str, Any], prefix: str, columns: str) -> tuple[PairSource,
                                                                                                         ...]:
    """One set of a task. It is read more than once, so it cannot come from a pipe."""
    paths, targets = files[name], files.get(f"{name}_target", [])
    if stream := next(filter(is_pipe, (*paths, *targets)), None):
        raise UserError(f"{stream} can be read only once, and the pairs of {name} are read again to be scored; give "
                        "a file.")
    called = task if name == "train" else f"{task}, {name}"
    return tuple(PairSource(found.path, found.target, called, prefix, found.columns)
                 for found in pair_sources(paths, targets, columns))
