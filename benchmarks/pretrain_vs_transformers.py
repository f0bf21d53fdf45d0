"""Masked-LM training steps against transformers.Trainer, from the same token ids.

    python benchmarks/pretrain_vs_transformers.py

4 layers x 256, vocabulary 30,522, 128 tokens, batch 32, dropout 0.1 on both sides, AdamW. The peer is `Trainer` with
`DataCollatorForLanguageModeling` as its documentation shows, once in fp32 and once with bf16=True; it may use all
cores. Ours is the loop behind `stemma pretrain`, with its corpus, masking, clipping and logging, in the precision that
`auto` chooses here. One slice is a few optimizer steps.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from side import Side, compare, report, serve

VOCABULARY, LENGTH, BATCH, LAYERS, WIDTH = 30_522, 128, 32, 4, 256
ROWS = 2048


def make_text(folder: Path) -> None:
    """Random words over a whole vocabulary file, as a corpus of ours and as blocks of ids: the same ids for both."""
    import numpy as np

    from stemma.corpus.build import build_corpus
    from stemma.corpus.shards import Corpus

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (folder / "vocabulary").mkdir()
    (folder / "vocabulary" / "vocab.txt").write_text("\n".join([*special, *(f"w{i}" for i in range(VOCABULARY - 5))]))
    rng = np.random.default_rng(0)
    ranks = np.minimum(rng.zipf(1.2, ROWS * (LENGTH - 2)) - 1, VOCABULARY - 6).reshape(ROWS, LENGTH - 2)
    (folder / "text.txt").write_text("\n\n".join(" ".join(f"w{rank}" for rank in row) for row in ranks))
    build_corpus([folder / "text.txt"], folder / "vocabulary", folder / "corpus", workers=1)
    corpus = Corpus.open(folder / "corpus")
    blocks = corpus.slice("tokens", 0, ROWS * (LENGTH - 2)).reshape(ROWS, LENGTH - 2)
    np.save(folder / "blocks.npy", np.pad(blocks, ((0, 0), (1, 1)), constant_values=((0, 0), (2, 3))))


def ours(folder: Path, steps: int, threads: int) -> None:
    import torch

    from stemma.corpus.shards import Corpus
    from stemma.lineage import recipe
    from stemma.objectives import build_network
    from stemma.training.budget import Budget
    from stemma.training.loop import Loop
    from stemma.training.progress import Progress
    from stemma.training.source import adopt_tokenizer

    corpus = Corpus.open(folder / "corpus")
    chosen = recipe("bert@mini", ["remove=objective.next_sentence", "corpus.packing=doc_sentences",
                                  "objective.masked_lm.dynamic=true", f"training.threads={threads}",
                                  f"corpus.sequence_length={LENGTH}", f"training.batch_size={BATCH}",
                                  "training.checkpoint_every=1000000", "training.validate_every=1000000"])
    chosen = adopt_tokenizer(chosen, corpus)
    torch.manual_seed(0)
    network = build_network(chosen, corpus.tokenizer.vocab_size)
    run = folder / "run"
    run.mkdir()
    loop = Loop(run, chosen, corpus, network, Budget("steps", 100_000), 0, print)

    def work() -> float | None:
        with Progress("", "", enabled=False) as progress:
            for _ in range(steps):
                loop._step(progress)
        return loop.course.loss

    serve(work)
    os._exit(0)


def theirs(folder: Path, steps: int, threads: int, bf16: bool) -> None:
    import logging
    import warnings

    import numpy as np
    import torch
    from transformers import (
        BertConfig,
        BertForMaskedLM,
        BertTokenizerFast,
        DataCollatorForLanguageModeling,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(threads)
    tokenizer = BertTokenizerFast(vocab=str(folder / "vocabulary" / "vocab.txt"))
    blocks = np.load(folder / "blocks.npy")
    data = [{"input_ids": row.tolist(), "attention_mask": [1] * LENGTH} for row in blocks]
    config = BertConfig(vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=4,
                        intermediate_size=4 * WIDTH, attn_implementation="sdpa")
    network = BertForMaskedLM(config)

    class Slices(TrainerCallback):
        """Stops after every `steps` steps to wait for the word to go on, so that slices alternate."""

        def on_step_end(self, args, state, control, **kwargs):
            self.done = getattr(self, "done", 0) + 1
            if self.done % steps == 0:
                print(json.dumps({"seconds": time.perf_counter() - self.began, "result": None}), flush=True)
                self.wait(control)

        def on_train_begin(self, args, state, control, **kwargs):
            self.wait(control)

        def wait(self, control):
            if sys.stdin.readline().strip() != "go":
                control.should_training_stop = True
            self.began = time.perf_counter()

    import resource
    import time

    arguments = TrainingArguments(output_dir=str(folder / "trainer"), per_device_train_batch_size=BATCH,
                                  max_steps=100_000, learning_rate=1e-4, weight_decay=0.01, logging_steps=10**9,
                                  save_strategy="no", report_to=[], use_cpu=True, bf16=bf16, disable_tqdm=True)
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    Trainer(model=network, args=arguments, train_dataset=data, data_collator=collator, callbacks=[Slices()]).train()
    print(json.dumps({"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}), flush=True)
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=4, help="optimizer steps a slice")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--no-bf16", action="store_true", help="leave the slow bf16 peer out")
    parser.add_argument("--side", choices=["ours", "fp32", "bf16"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side == "ours":
        ours(options.folder, options.steps, options.threads)
    elif options.side:
        theirs(options.folder, options.steps, options.threads, options.side == "bf16")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_text(folder)
        names = {"ours": "stemma", "fp32": "transformers Trainer fp32", "bf16": "transformers Trainer bf16"}
        if options.no_bf16:
            del names["bf16"]
        common = ["--folder", str(folder), "--steps", str(options.steps), "--threads", str(options.threads)]
        sides = [Side(name, Path(__file__), ["--side", side, *common]) for side, name in names.items()]
        compare(sides, options.rounds)
        report(sides, "tokens", options.steps * BATCH * LENGTH)
        print("wanted: at least 4x the fp32 peer and 2.5x the bf16 one, at no more than 0.6x the memory")


if __name__ == "__main__":
    main()
