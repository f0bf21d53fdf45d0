"""Data of text-to-text tasks: the pair sources of each. A prefix names the task (T5, arXiv:1910.10683).

The sampling rate of a task is min(pairs, limit) ^ (1 / temperature) (section 3.5.2 of the paper), times its weight.
`multitask_plan.py` reads plans of several tasks.
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
    """The pair sources of one task."""

    name: str
    train: tuple[PairSource, ...]
    dev: tuple[PairSource, ...]
    test: tuple[PairSource, ...] = ()
    metric: Seq2SeqMetric = "bleu"  # the selection metric, if there are several tasks


@dataclass(frozen=True)
class Seq2SeqData:
    """The tasks of a run, and the settings of their plan."""

    tasks: tuple[Seq2SeqDataset, ...]
    mixture: MixtureSettings | None = None  # None: a single task without a plan
    options: dict[str, Any] | None = None  # command-line options, to repeat the run
    training: Mapping[str, Any] = field(default_factory=dict)  # the plan's [training]
    epochs: float | None = None  # the plan's
    origin: str = ""  # the name of the plan


def data_from_cli(files: dict[str, Sequence[str]], prefix: str = "", columns: str = COLUMNS) -> Seq2SeqData:
    """A single task from command-line options; the keys of `files` are train, train_target, dev and so on."""
    files = {key: [str(path) for path in paths] for key, paths in files.items() if paths}
    for name in SPLITS:
        if f"{name}_target" in files and name not in files:
            raise UserError(f"--{name}-target is the other side of --{name}, which is missing.")
    sources = {name: pair_sources_for(KIND, name, files, prefix, columns) for name in SPLITS if name in files}
    absolute = {key: [str(Path(path).absolute()) for path in paths] for key, paths in files.items()}
    changed = {key: value for key, value, default in (("prefix", prefix, ""), ("columns", columns, COLUMNS))
               if value != default}
    return Seq2SeqData((Seq2SeqDataset(KIND, sources["train"], sources["dev"], sources.get("test", ())),),
                       options={**absolute, **changed})


def pair_sources_for(task: str, name: str, files: Mapping[str, Any], prefix: str,
                     columns: str) -> tuple[PairSource, ...]:
    """The sources of one split. It is read more than once, so it must not be a pipe."""
    paths, targets = files[name], files.get(f"{name}_target", [])
    if stream := next(filter(is_pipe, (*paths, *targets)), None):
        raise UserError(f"{stream} can be read only once, and the pairs of {name} are read again to be scored; give "
                        "a file.")
    source_name = task if name == "train" else f"{task}, {name}"
    return tuple(PairSource(source.path, source.target, source_name, prefix, source.columns)
                 for source in pair_sources(paths, targets, columns))
