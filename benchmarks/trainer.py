"""Pre-training speed compared with transformers.Trainer, from the same token ids: common code for all objectives.

The peer is `Trainer` as its documentation shows, once in fp32 and once with bf16=True; it may use all cores. Stemma's
side is the training loop of `stemma pretrain`, with its corpus, objectives, clipping and logging, in the precision that
`auto` selects on this machine. A slice is a few optimizer steps.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from side import Side, compare, print_peak_memory, report, serve_trainer, transformers_callback

LENGTH, LAYERS, WIDTH, HEADS = 128, 4, 256, 4
ROWS = 2048


@dataclass(frozen=True)
class Comparison:
    """One objective on both sides: `write_data` writes a corpus and the same ids as blocks, `build_peer` builds
    the model and the collator of transformers."""

    script: Path
    recipe: str
    changes: list[str]
    batch: int
    write_data: Callable[[Path], None]
    build_peer: Callable[[Path], tuple[Any, Any]]
    goal: str


def zipf_corpus(folder: Path, vocabulary: int, special: list[str], length: int) -> Any:
    """Write a vocabulary file and a corpus of Zipf-distributed random words; return its ids, (ROWS, length)."""
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


def run_stemma(comparison: Comparison, folder: Path, steps: int, threads: int) -> None:
    import torch

    from stemma.corpus.corpus import Corpus
    from stemma.objectives import build_network, build_objectives
    from stemma.recipe_loading import recipe
    from stemma.training.budget import Budget
    from stemma.training.corpus_cache import adopt_tokenizer
    from stemma.training.pretrain_loader import PretrainLoader
    from stemma.training.trainer import Trainer

    corpus = Corpus.open(folder / "corpus")
    resolved = recipe(comparison.recipe, [*comparison.changes, f"training.threads={threads}",
                                          f"corpus.sequence_length={LENGTH}",
                                          f"training.batch_size={comparison.batch}",
                                          "training.checkpoint_every=1000000", "training.validate_every=1000000"])
    resolved = adopt_tokenizer(resolved, corpus)
    torch.manual_seed(0)
    network = build_network(resolved, corpus.tokenizer.vocab_size)
    run = folder / "run"
    run.mkdir()
    loader = PretrainLoader(resolved, corpus, build_objectives(resolved), 0)
    serve_trainer(Trainer(run, resolved, loader, network, Budget("steps", 100_000), 0), steps)
    os._exit(0)


def run_transformers(comparison: Comparison, folder: Path, steps: int, threads: int, bf16: bool) -> None:
    import logging
    import warnings

    import numpy as np
    import torch
    from transformers import Trainer, TrainingArguments

    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(threads)
    network, collator = comparison.build_peer(folder)
    data = [{"input_ids": row.tolist(), "attention_mask": [1] * LENGTH} for row in np.load(folder / "blocks.npy")]
    arguments = TrainingArguments(output_dir=str(folder / "trainer"), per_device_train_batch_size=comparison.batch,
                                  max_steps=100_000, learning_rate=1e-4, weight_decay=0.01, logging_steps=10**9,
                                  save_strategy="no", report_to=[], use_cpu=True, bf16=bf16, disable_tqdm=True)
    Trainer(model=network, args=arguments, train_dataset=data, data_collator=collator,
            callbacks=[transformers_callback(steps)]).train()
    print_peak_memory()
    os._exit(0)


def main(comparisons: dict[str, Comparison], description: str | None) -> None:
    """Run the comparison that --recipe names; the default is the first."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=4, help="optimizer steps per slice")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--no-bf16", action="store_true", help="leave out the slow bf16 peer")
    parser.add_argument("--side", choices=["stemma", "fp32", "bf16"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--recipe", choices=list(comparisons), default=next(iter(comparisons)),
                        help=argparse.SUPPRESS if len(comparisons) == 1 else None)
    options = parser.parse_args()
    comparison = comparisons[options.recipe]
    if options.side == "stemma":
        run_stemma(comparison, options.folder, options.steps, options.threads)
    elif options.side:
        run_transformers(comparison, options.folder, options.steps, options.threads, options.side == "bf16")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        comparison.write_data(folder)
        names = {"stemma": "stemma", "fp32": "transformers Trainer fp32", "bf16": "transformers Trainer bf16"}
        if options.no_bf16:
            del names["bf16"]
        common = ["--folder", str(folder), "--steps", str(options.steps), "--threads", str(options.threads),
                  "--recipe", options.recipe]
        sides = [Side(name, comparison.script, ["--side", side, *common]) for side, name in names.items()]
        compare(sides, options.rounds)
        report(sides, "tokens", options.steps * comparison.batch * LENGTH)
        print(f"goal: {comparison.goal}")
