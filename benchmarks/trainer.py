"""Training steps against transformers.Trainer, from the same token ids: what the benchmarks of each objective share.

The peer is `Trainer` as its documentation shows, once in fp32 and once with bf16=True; it may use all cores. Ours is
the loop behind `stemma pretrain`, with its corpus, objectives, clipping and logging, in the precision that `auto`
chooses here. One slice is a few optimizer steps.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from side import Side, compare, report, serve_loop, tell_peak, trainer_slices

LENGTH, LAYERS, WIDTH, HEADS = 128, 4, 256, 4
ROWS = 2048


@dataclass(frozen=True)
class Contest:
    """One objective on both sides: `text` writes a corpus and the blocks, `peer` makes its model and collator."""

    script: Path
    recipe: str
    changes: list[str]
    batch: int
    text: Callable[[Path], None]
    peer: Callable[[Path], tuple[Any, Any]]
    wanted: str


def zipf_text(folder: Path, vocabulary: int, special: list[str], length: int) -> Any:
    """A vocabulary file, a corpus of random words over all of it, and the same ids as (ROWS, length) blocks."""
    import numpy as np

    from stemma.corpus.build import build_corpus
    from stemma.corpus.corpus import Corpus

    (folder / "vocabulary").mkdir()
    words = [*special, *(f"w{i}" for i in range(vocabulary - len(special)))]
    (folder / "vocabulary" / "vocab.txt").write_text("\n".join(words))
    rng = np.random.default_rng(0)
    ranks = np.minimum(rng.zipf(1.2, ROWS * length) - 1, vocabulary - len(special) - 1).reshape(ROWS, length)
    (folder / "text.txt").write_text("\n\n".join(" ".join(f"w{rank}" for rank in row) for row in ranks))
    build_corpus([folder / "text.txt"], folder / "vocabulary", folder / "corpus", workers=1)
    return Corpus.open(folder / "corpus").values_between("tokens", 0, ROWS * length).reshape(ROWS, length)


def ours(contest: Contest, folder: Path, steps: int, threads: int) -> None:
    import torch

    from stemma.corpus.corpus import Corpus
    from stemma.objectives import build_network, build_objectives
    from stemma.recipe_loading import recipe
    from stemma.training.budget import Budget
    from stemma.training.corpus_cache import adopt_tokenizer
    from stemma.training.pretrain_loader import PretrainLoader
    from stemma.training.trainer import Trainer

    corpus = Corpus.open(folder / "corpus")
    chosen = recipe(contest.recipe, [*contest.changes, f"training.threads={threads}",
                                     f"corpus.sequence_length={LENGTH}", f"training.batch_size={contest.batch}",
                                     "training.checkpoint_every=1000000", "training.validate_every=1000000"])
    chosen = adopt_tokenizer(chosen, corpus)
    torch.manual_seed(0)
    network = build_network(chosen, corpus.tokenizer.vocab_size)
    run = folder / "run"
    run.mkdir()
    supply = PretrainLoader(chosen, corpus, build_objectives(chosen), 0)
    loop = Trainer(run, chosen, supply, network, Budget("steps", 100_000), 0)
    serve_loop(loop, steps)
    os._exit(0)


def theirs(contest: Contest, folder: Path, steps: int, threads: int, bf16: bool) -> None:
    import logging
    import warnings

    import numpy as np
    import torch
    from transformers import Trainer, TrainingArguments

    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(threads)
    network, collator = contest.peer(folder)
    data = [{"input_ids": row.tolist(), "attention_mask": [1] * LENGTH} for row in np.load(folder / "blocks.npy")]
    arguments = TrainingArguments(output_dir=str(folder / "trainer"), per_device_train_batch_size=contest.batch,
                                  max_steps=100_000, learning_rate=1e-4, weight_decay=0.01, logging_steps=10**9,
                                  save_strategy="no", report_to=[], use_cpu=True, bf16=bf16, disable_tqdm=True)
    Trainer(model=network, args=arguments, train_dataset=data, data_collator=collator,
            callbacks=[trainer_slices(steps)]).train()
    tell_peak()
    os._exit(0)


def main(contests: Contest | dict[str, Contest], description: str | None) -> None:
    """Run the contest; or, of several, the one that --recipe names, by default the first."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=4, help="optimizer steps a slice")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--no-bf16", action="store_true", help="leave the slow bf16 peer out")
    parser.add_argument("--side", choices=["ours", "fp32", "bf16"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    several = contests if isinstance(contests, dict) else {}
    if several:
        parser.add_argument("--recipe", choices=list(several), default=next(iter(several)))
    options = parser.parse_args()
    contest = several[options.recipe] if several else contests
    assert isinstance(contest, Contest)
    if options.side == "ours":
        ours(contest, options.folder, options.steps, options.threads)
    elif options.side:
        theirs(contest, options.folder, options.steps, options.threads, options.side == "bf16")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        contest.text(folder)
        names = {"ours": "stemma", "fp32": "transformers Trainer fp32", "bf16": "transformers Trainer bf16"}
        if options.no_bf16:
            del names["bf16"]
        common = ["--folder", str(folder), "--steps", str(options.steps), "--threads", str(options.threads)]
        common += ["--recipe", options.recipe] if several else []
        sides = [Side(name, contest.script, ["--side", side, *common]) for side, name in names.items()]
        compare(sides, options.rounds)
        report(sides, "tokens", options.steps * contest.batch * LENGTH)
        print(contest.wanted)
