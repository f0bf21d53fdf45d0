"""Checkpoint averaging: a model with the mean weights of the last checkpoints of a run.

Late in training the weights oscillate around an optimum, and their mean is better than any of them. The Transformer's
results are averages of the last 5 (base) or 20 (big) checkpoints (arXiv:1706.03762, section 6.1).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from stemma.atomic_files import atomic_folder, check_output_path, verify_checksums
from stemma.corpus.corpus import Corpus
from stemma.corpus.translation_direction import FILE as DIRECTIONS
from stemma.corpus.translation_direction import write_directions
from stemma.errors import UserError
from stemma.exchange.save import write_model
from stemma.json_files import read_object
from stemma.model import Model
from stemma.objectives import build_network
from stemma.pretraining_record import read_record
from stemma.text.tokenizer import Tokenizer
from stemma.training.checkpoints import STATE, WEIGHTS, checkpoints_newest_first
from stemma.training.run_folder import MODEL, is_corpus, read_run

AVERAGED = "averaged"


def average(run: str | Path, last: int = 5, out: str | Path | None = None, overwrite: bool = False) -> dict[str, Any]:
    """Write the mean of the newest `last` checkpoints to `out`, by default RUN/averaged; returns their steps."""
    run = Path(run)
    target = run / AVERAGED if out is None else Path(out)
    recipe, run_config = read_run(run)
    if recipe.settings.network.depth.counts:
        raise UserError(f"{recipe.label} is a table of counts, whose checkpoints have no mean; use {run / MODEL}.")
    if last < 1:
        raise UserError(f"--last must be 1 or more, not {last}.")
    check_output_path(target, overwrite)
    folders = checkpoints_newest_first(run)[:last]
    if len(folders) < last:
        present = f"has {len(folders)} checkpoint{'s' if len(folders) > 1 else ''}" if folders else "has no checkpoint"
        use = f"use --last {len(folders)}, or " if folders else ""
        raise UserError(f"{run} {present}, not {last}; {use}train with training.keep_checkpoints={last} and a smaller "
                        "training.checkpoint_every.")
    for folder in folders:
        verify_checksums(folder, "the checkpoint", f"delete {folder}, and average those that are left.",
                         (WEIGHTS, STATE))
    finished = run / MODEL
    if (finished / "config.json").is_file():
        tokenizer = Tokenizer.load(finished)
    elif run_config.corpus and is_corpus(run_config.corpus):
        tokenizer = Corpus.open(run_config.corpus).tokenizer
    else:
        raise UserError(f"{run} has no model yet and its corpus is gone, so its vocabulary is not known; `stemma "
                        f"resume {run}` finishes it.")
    network = build_network(recipe, tokenizer.vocab_size)
    load_averaged_weights(network.state_dict(), [folder / WEIGHTS for folder in folders])
    with atomic_folder(target, overwrite) as temporary:
        write_model(Model(recipe, tokenizer, network.eval(), pretraining=read_record(finished)), temporary)
        if (finished / DIRECTIONS).is_file():
            shutil.copyfile(finished / DIRECTIONS, temporary / DIRECTIONS)
        elif run_config.corpus and is_corpus(run_config.corpus):
            write_directions(Corpus.open(run_config.corpus, verify=False), temporary)
    steps = [read_object(folder / STATE, f"delete {folder}.")["step"] for folder in reversed(folders)]
    return {"run": str(run), "out": str(target), "checkpoints": len(steps), "steps": steps}


def load_averaged_weights(weights: Mapping[str, Tensor], files: Sequence[Path]) -> None:
    """Set these tensors to the mean over the files, newest first. Works tensor by tensor, so that memory does not grow
    with the number of files; sums in double precision."""
    with ExitStack() as open_files, torch.no_grad():
        saved = [open_files.enter_context(safe_open(file, framework="pt")) for file in files]
        for name in saved[0].keys():  # noqa: SIM118 (not a dictionary)
            newest = saved[0].get_tensor(name)
            if newest.is_floating_point():
                total = newest.double()
                for other in saved[1:]:
                    total += other.get_tensor(name).double()
                newest = total / len(saved)
            weights[name].copy_(newest)
