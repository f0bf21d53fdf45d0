"""Small training steps compared with transformers.Trainer: one process, the same inputs, alternating slices.

    python benchmarks/small_step.py
    python benchmarks/small_step.py --only finetune-tiny,bert --threads 2 --precision auto

At these sizes a step is a few milliseconds of arithmetic, so this measures what surrounds it: gradients and optimizer
over a vocabulary that is much larger than the network, Python, small kernels, batches.

- finetune-tiny, finetune-mini: classification with BERT of 2 x 128 and 4 x 256, random weights, a vocabulary of 21,128,
  batch 32, texts of 8 to 32 tokens (640 tokens a step with the special ones), padded to the longest of a batch.
- bert, gpt2, modernbert: pre-training of RECIPE@tiny from rows of 48 tokens, 24 a step, a vocabulary of 8,192.
  Stemma runs the optimizer of the recipe (modernbert: Muon); modernbert-adamw runs the peer's, AdamW.

The peer is `Trainer` as its documentation shows: fused AdamW, clipping at 1.0, its collators, SDPA attention, fp32, no
logging, evaluation or saving. Stemma's side is the loop of `stemma finetune` and `stemma pretrain` with its clipping,
divergence check, logging every 10 steps and background loader. Both have the same number of threads. The process keeps
freed memory (`retain_freed_memory`), which Stemma sets and the peer profits from as well; --separate-memory switches it
off during the slices of the peer. Numbers are medians of CPU seconds of the whole process, so that other programs
matter less; with one thread that is the duration of a step on an idle machine. The ratio comes last.

The arithmetic limit is the time of the matrix products of Stemma's step alone, those of the optimizer included: their
floating-point operations (FlopCounterMode) at the rate of a feed-forward layer's product of the same precision, which
is measured after every slice.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

BATCH, VOCABULARY = 32, 21_128
ROWS, LENGTH, PIECES = 24, 48, 8_192
SIZES = {"tiny": (2, 128, 2), "mini": (4, 256, 4)}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PRETRAIN_CHANGES = {
    "bert": ["remove=objective.next_sentence", "corpus.packing=doc_sentences", "objective.masked_lm.dynamic=true"],
    "gpt2": [], "modernbert": []}
QUIET = ["training.checkpoint_every=1000000", "training.validate_every=1000000"]


# --- finetune ---------------------------------------------------------------------------------------------------------


def finetune_sides(size: str, folder: Path, options: argparse.Namespace) -> tuple[Any, Any, int]:
    """(Stemma's trainer, Trainer, tokens per step) for a classification of short texts."""
    import numpy as np
    import torch
    import transformers

    from stemma.exchange.load import load
    from stemma.exchange.save import write_model
    from stemma.model import Model
    from stemma.network.network import Network
    from stemma.objectives import build_network
    from stemma.recipe_loading import recipe
    from stemma.tasks.data.examples import TextExample
    from stemma.tasks.runs.build_objective import build_task_objective
    from stemma.tasks.runs.common import TrainingLength
    from stemma.tasks.runs.finetune import TaskArguments, build_task_config, finetune_recipe
    from stemma.tasks.runs.finetune_loader import FinetuneLoader
    from stemma.tasks.runs.finetune_run import input_encoder_for, load_start_weights, task_dataset, task_head_specs
    from stemma.text.tokenizer import Tokenizer
    from stemma.training.trainer import Trainer

    vocabulary = folder / "vocabulary"
    vocabulary.mkdir()
    (vocabulary / "vocab.txt").write_text("\n".join([*SPECIAL, *(f"w{i}" for i in range(VOCABULARY - len(SPECIAL)))]))
    tokenizer = Tokenizer.load(vocabulary)
    start_recipe = recipe(f"bert@{size}", [])
    write_model(Model(start_recipe, tokenizer, build_network(start_recipe, VOCABULARY)), start := folder / "start")
    model = load(start)
    rng = np.random.default_rng(0)
    examples = {"train": [TextExample("made here", (" ".join(f"w{rank}" for rank in np.minimum(
        rng.zipf(1.2, rng.integers(6, 31)) - 1, VOCABULARY - len(SPECIAL) - 1)),), str(rng.integers(2)))
        for _ in range(4096)], "dev": [], "test": []}
    resolved = finetune_recipe(model).with_overrides(
        [f"training.batch_size={BATCH}", f"training.threads={options.threads}", "corpus.sequence_length=64",
         f"training.precision={options.precision}", "training.optimizer.kind=adamw", "training.clip_norm=1.0"])
    config = build_task_config(TaskArguments("classify", {"train": folder / "train.tsv"}), examples, model, resolved,
                               "task")
    objective = build_task_objective(config, input_encoder_for(config, tokenizer))
    dataset = task_dataset(objective, examples, BATCH)
    resolved, budget = TrainingLength(steps=100_000).apply_to(resolved, 100_000, ())
    resolved = resolved.with_overrides(QUIET)
    network = Network(resolved.settings.network, VOCABULARY, task_head_specs({"task": config}))
    load_start_weights(str(start), network, {"task": config})
    stemma_model = Model(resolved, tokenizer, network, task_configs={"task": config})
    (run := folder / "run").mkdir()
    trainer = Trainer(run, resolved, FinetuneLoader(stemma_model, [dataset], 0, config.longest), network, budget, 0)
    sequences = [item.sequences[0].input_ids.tolist() for item in dataset.train]
    features = [{"input_ids": ids, "token_type_ids": [0] * len(ids), "attention_mask": [1] * len(ids),
                 "labels": item.target} for ids, item in zip(sequences, dataset.train, strict=True)]
    peer_tokenizer = transformers.AutoTokenizer.from_pretrained(start)
    peer_network = transformers.AutoModelForSequenceClassification.from_pretrained(start, num_labels=2)
    peer = peer_trainer(peer_network, features, transformers.DataCollatorWithPadding(peer_tokenizer), BATCH, folder)
    torch.manual_seed(0)
    return trainer, peer, BATCH * round(statistics.mean(map(len, sequences)))


# --- pretrain ---------------------------------------------------------------------------------------------------------


def pretrain_sides(name: str, folder: Path, options: argparse.Namespace, optimizer: str | None) -> tuple[Any, Any, int]:
    """(Stemma's trainer, Trainer, tokens per step) for pre-training from rows of LENGTH tokens."""
    import numpy as np
    import torch
    import transformers
    from trainer import zipf_corpus

    from stemma.corpus.corpus import Corpus
    from stemma.objectives import build_network, build_objectives
    from stemma.recipe_loading import recipe
    from stemma.training.budget import Budget
    from stemma.training.corpus_cache import adopt_tokenizer
    from stemma.training.pretrain_loader import PretrainLoader
    from stemma.training.trainer import Trainer

    causal = name == "gpt2"
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    blocks = zipf_corpus(folder, PIECES, special, LENGTH if causal else LENGTH - 2)
    if not causal:
        blocks = np.pad(blocks, ((0, 0), (1, 1)), constant_values=((0, 0), (2, 3)))
    corpus = Corpus.open(folder / "corpus")
    changes = [*PRETRAIN_CHANGES[name], *QUIET, f"training.threads={options.threads}", f"training.batch_size={ROWS}",
               f"corpus.sequence_length={LENGTH}", f"training.precision={options.precision}",
               *([f"training.optimizer.kind={optimizer}", "training.learning_rate=1e-3"] if optimizer else [])]
    resolved = adopt_tokenizer(recipe(f"{name}@tiny", changes), corpus)
    torch.manual_seed(0)
    network = build_network(resolved, PIECES)
    (run := folder / "run").mkdir()
    trainer = Trainer(run, resolved, PretrainLoader(resolved, corpus, build_objectives(resolved), 0), network,
                      Budget("steps", 100_000), 0)
    features = [{"input_ids": row.tolist(), "attention_mask": [1] * LENGTH} for row in blocks]
    tokenizer = transformers.BertTokenizerFast(vocab=str(folder / "vocabulary" / "vocab.txt"))
    mask_rate = 0.15 if causal else resolved.settings.objective["masked_lm"].rate
    collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=not causal, mlm_probability=mask_rate)
    peer = peer_trainer(peer_language_model(name, resolved.settings.network), features, collator, ROWS, folder)
    return trainer, peer, ROWS * LENGTH


def peer_language_model(name: str, network: Any) -> Any:
    """The class of transformers for the same network."""
    import transformers

    if name == "gpt2":
        config: Any = transformers.GPT2Config(vocab_size=PIECES, n_embd=network.width, n_layer=network.layers,
                                              n_head=network.heads, n_positions=512)
        return transformers.GPT2LMHeadModel._from_config(config, attn_implementation="sdpa")
    config = transformers.AutoConfig.for_model(
        name, vocab_size=PIECES, hidden_size=network.width, num_hidden_layers=network.layers,
        num_attention_heads=network.heads, intermediate_size=network.feedforward, max_position_embeddings=512,
        pad_token_id=0)
    return transformers.AutoModelForMaskedLM.from_config(config, attn_implementation="sdpa")


# --- both -------------------------------------------------------------------------------------------------------------


def peer_trainer(network: Any, features: list[dict[str, Any]], collator: Any, batch: int, folder: Path) -> Any:
    """`Trainer` as documented; it evaluates, logs and saves nothing."""
    import transformers

    arguments = transformers.TrainingArguments(
        output_dir=str(folder / "trainer"), per_device_train_batch_size=batch, max_steps=100_000, learning_rate=1e-4,
        weight_decay=0.01, logging_steps=10**9, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True)
    trainer = transformers.Trainer(model=network, args=arguments, train_dataset=features, data_collator=collator)
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def alternate(stemma: Any, peer: Any, tokens: int,
              options: argparse.Namespace) -> tuple[list[float], list[float], list[float]]:
    """CPU seconds per step of each slice, of Stemma and of the peer, and the seconds that the products of Stemma's step
    need. The peer's loop owns the process; after each of its slices a callback runs one of Stemma."""
    import transformers

    from stemma.training.progress_bar import ProgressBar

    times: tuple[list[float], list[float], list[float]] = ([], [], [])

    def stemma_slice() -> None:
        with ProgressBar("", "", enabled=False) as progress:
            for _ in range(options.steps):
                stemma._step(progress)

    product = feedforward_product(stemma, tokens)

    def timed(work: Callable[[], None]) -> float:
        start = time.process_time()
        work()
        return (time.process_time() - start) / options.steps

    class Alternate(transformers.TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            keep_memory(not options.separate_memory)
            self.start = time.process_time()

        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step % options.steps:
                return
            times[1].append((time.process_time() - self.start) / options.steps)
            keep_memory(True)
            times[0].append(timed(stemma_slice))
            times[2].append(operations / product())
            keep_memory(not options.separate_memory)
            control.should_training_stop = len(times[0]) > options.rounds
            self.start = time.process_time()

    operations = operations_per_step(stemma, stemma_slice, options.steps)
    peer.add_callback(Alternate())
    peer.train()
    stemma.loader.close()
    return times[0][1:], times[1][1:], times[2][1:]  # the first slice is a warm-up


def operations_per_step(stemma: Any, stemma_slice: Callable[[], None], steps: int) -> float:
    """Floating-point operations of the matrix products of a step: forward, backward and optimizer."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        stemma_slice()
    return counter.get_total_flops() / steps


def feedforward_product(stemma: Any, tokens: int) -> Callable[[], float]:
    """A function that measures the operations per second of a product of all tokens with a feed-forward matrix."""
    import torch

    width, inner = stemma.network.settings.width, stemma.network.settings.feedforward
    x, weight = (torch.randn(rows, width).to(stemma.precision) for rows in (tokens, inner))

    def rate() -> float:
        start, repetitions = time.process_time(), 200
        for _ in range(repetitions):
            torch.nn.functional.linear(x, weight)
        return 2 * tokens * width * inner * repetitions / (time.process_time() - start)

    return rate


def keep_memory(keep: bool) -> None:
    """Keep freed memory in the process, or return it to the system as glibc does by default."""
    from stemma.training.hardware import M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, retain_freed_memory

    if keep:
        retain_freed_memory()
    else:
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 128 << 10)
        ctypes.CDLL(None).mallopt(M_TRIM_THRESHOLD, 128 << 10)


COMPARISONS: dict[str, Callable[[Path, argparse.Namespace], tuple[Any, Any, int]]] = {
    "finetune-tiny": lambda folder, options: finetune_sides("tiny", folder, options),
    "finetune-mini": lambda folder, options: finetune_sides("mini", folder, options),
    "bert": lambda folder, options: pretrain_sides("bert", folder, options, None),
    "gpt2": lambda folder, options: pretrain_sides("gpt2", folder, options, None),
    "modernbert": lambda folder, options: pretrain_sides("modernbert", folder, options, None),
    "modernbert-adamw": lambda folder, options: pretrain_sides("modernbert", folder, options, "adamw")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(COMPARISONS), help="comparisons, comma-separated")
    parser.add_argument("--rounds", type=int, default=15, help="slices per side")
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps per slice")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", default="fp32", help="of Stemma; auto is what it selects on this machine")
    parser.add_argument("--separate-memory", action="store_true", help="the peer gets glibc's default allocator")
    parser.add_argument("--out", type=Path, help="write the results to this file, as JSON")
    options = parser.parse_args()
    names = options.only.split(",")
    if unknown := [name for name in names if name not in COMPARISONS]:
        parser.error(f"no comparison {', '.join(unknown)}; there are {', '.join(COMPARISONS)}")
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    results = {}
    for name in names:
        with tempfile.TemporaryDirectory() as temporary:
            stemma, peer, tokens = COMPARISONS[name](Path(temporary), options)
            ours, theirs, limits = alternate(stemma, peer, tokens, options)
        ratio = statistics.median(b / a for a, b in zip(ours, theirs, strict=True))
        reached = statistics.median(limit / a for limit, a in zip(limits, ours, strict=True))
        results[name] = {"stemma_ms": statistics.median(ours) * 1000, "trainer_ms": statistics.median(theirs) * 1000,
                         "limit_ms": statistics.median(limits) * 1000, "tokens": tokens, "reached": reached,
                         "ratio": ratio}
        sides = "   ".join(f"{side} {statistics.median(slices) * 1000:6.1f} ms, "
                           f"{tokens / statistics.median(slices):7,.0f} tokens/s"
                           for side, slices in (("stemma", ours), ("Trainer", theirs)))
        print(f"{name:<16}  {sides}   limit {statistics.median(limits) * 1000:5.1f} ms, {reached:.0%} reached   "
              f"speedup {ratio:.2f}x", flush=True)
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=1))
    print("goal: 3x in fine-tuning, 5x in pre-training (or 70% of the arithmetic limit)")


if __name__ == "__main__":
    main()
