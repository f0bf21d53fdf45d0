"""Translation training compared with transformers' Seq2SeqTrainer: same pairs, vocabulary, size, learning rate, time.

    python benchmarks/translate_vs_transformers.py --data FOLDER --minutes 15

FOLDER holds Multi30k (train.en.gz, train.de.gz, val..., test_2016_flickr...), which is not part of this project. Both
sides train the Transformer with 4 + 4 layers x 256; one embedding matrix of 8,000 tokens serves encoder, decoder and
output layer. The peer is a Marian model, which has this architecture, trained by `Seq2SeqTrainer` as its documentation
shows, with dynamic padding and rows grouped by length; it may use all cores. The sides alternate every few seconds
until each has trained for the given time. Then both translate the test set with four beams, scored by sacreBLEU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from side import Side

VOCABULARY, LAYERS, WIDTH, HEADS, INNER = 8000, 4, 256, 4, 1024
TARGET_POSITIONS = 4096  # per batch, including padding
LEARNING_RATE, WARMUP, SMOOTHING, DROPOUT = 1e-3, 400, 0.1, 0.1
SLICE = 20.0  # seconds of training per slice


def read_lines(data: Path, name: str) -> list[str]:
    import gzip

    with gzip.open(data / name, "rt", encoding="utf-8") as lines:
        return [line.strip() for line in lines]


def prepare(data: Path, folder: Path) -> None:
    """Train one tokenizer for both languages, and build the corpus."""
    from stemma.corpus.build import build_corpus
    from stemma.text.parallel import PairSource
    from stemma.text.train_tokenizer import train_tokenizer

    texts = [*read_lines(data, "train.en.gz"), *read_lines(data, "train.de.gz")]
    tokenizer = train_tokenizer(iter(texts), "bpe", VOCABULARY, lowercase=False,
                                roles={"begin", "end", "padding", "unknown"})
    tokenizer.save(folder / "tokenizer")
    pairs = [PairSource(str(data / "train.en.gz"), str(data / "train.de.gz"))]
    build_corpus([], folder / "tokenizer", folder / "corpus", pairs=pairs, workers=1)


def score(texts: list[str], data: Path) -> dict[str, Any]:
    from stemma.tasks.metrics.bleu_rouge import translation_scores

    scores = translation_scores(texts, [read_lines(data, "test_2016_flickr.de.gz")])
    return {"bleu": scores["bleu"]["score"], "signature": scores["bleu"]["signature"],
            "chrf": scores["chrf"]["score"]}


def print_json(**values: Any) -> None:
    """Answer a request of the main process."""
    print(json.dumps(values), flush=True)


def run_stemma(options: argparse.Namespace) -> None:
    import torch

    from stemma.corpus.corpus import Corpus
    from stemma.generation.translate import translate
    from stemma.model import Model
    from stemma.objectives import build_network, build_objectives
    from stemma.recipe_loading import recipe
    from stemma.training.budget import Budget
    from stemma.training.corpus_cache import adopt_tokenizer
    from stemma.training.pretrain_loader import PretrainLoader
    from stemma.training.progress_bar import ProgressBar
    from stemma.training.trainer import Trainer

    corpus = Corpus.open(options.folder / "corpus")
    resolved = recipe("transformer@mini", [
        f"training.threads={options.threads}", "corpus.sequence_length=128",
        f"training.batch_size={TARGET_POSITIONS // 128}",
        f"training.learning_rate={LEARNING_RATE}", f"training.warmup_steps={WARMUP}", "corpus.validation=0.001",
        "training.checkpoint_every=1000000", "training.validate_every=1000000"])
    resolved = adopt_tokenizer(resolved, corpus)
    torch.manual_seed(0)
    network = build_network(resolved, corpus.tokenizer.vocab_size)
    (options.folder / "run").mkdir()
    loader = PretrainLoader(resolved, corpus, build_objectives(resolved), 0)
    trainer = Trainer(options.folder / "run", resolved, loader, network, Budget("steps", 10_000_000), 0)
    with ProgressBar("", "", enabled=False) as progress:
        for line in sys.stdin:
            if line.strip() == "stop":
                break
            start, tokens_before = time.perf_counter(), trainer.state.tokens
            while time.perf_counter() - start < SLICE:
                trainer._step(progress)
            print_json(seconds=time.perf_counter() - start, tokens=trainer.state.tokens - tokens_before,
                       steps=trainer.state.step, loss=trainer.state.loss)
    model = Model(resolved, corpus.tokenizer, network.eval())
    start = time.perf_counter()
    lines = read_lines(options.data, "test_2016_flickr.en.gz")
    texts = [translation.text for translation in translate(model, lines, beams=4)]
    print_json(**score(texts, options.data), parameters=network.parameter_count(), peak_mib=peak_memory(),
               decoding=time.perf_counter() - start, texts=texts[:3])
    os._exit(0)


def run_transformers(options: argparse.Namespace) -> None:
    import logging
    import warnings

    import torch
    from transformers import (
        DataCollatorForSeq2Seq,
        MarianConfig,
        MarianMTModel,
        PreTrainedTokenizerFast,
        Seq2SeqTrainer,
        Seq2SeqTrainingArguments,
        TrainerCallback,
    )

    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(options.folder / "tokenizer")
    end, begin = tokenizer.eos_token_id, tokenizer.bos_token_id
    network = MarianMTModel(MarianConfig(
        vocab_size=len(tokenizer), decoder_vocab_size=len(tokenizer), d_model=WIDTH, encoder_layers=LAYERS,
        decoder_layers=LAYERS, encoder_attention_heads=HEADS, decoder_attention_heads=HEADS, encoder_ffn_dim=INNER,
        decoder_ffn_dim=INNER, activation_function="relu", dropout=DROPOUT, attention_dropout=0.0,
        activation_dropout=0.0, scale_embedding=True, share_encoder_decoder_embeddings=True, tie_word_embeddings=True,
        max_position_embeddings=512, pad_token_id=tokenizer.pad_token_id, bos_token_id=begin, eos_token_id=end,
        decoder_start_token_id=begin, forced_eos_token_id=None, attn_implementation="sdpa"))
    encode = lambda texts: [row + [end] for row in tokenizer(texts, add_special_tokens=False)["input_ids"]]  # noqa: E731
    sources, targets = (encode(read_lines(options.data, f"train.{side}.gz")) for side in ("en", "de"))
    data = [{"input_ids": source, "attention_mask": [1] * len(source), "labels": target, "length": len(target)}
            for source, target in zip(sources, targets, strict=True)]
    rows = round(TARGET_POSITIONS / (sum(map(len, targets)) / len(targets)))  # on average as many positions as stemma
    collator = DataCollatorForSeq2Seq(tokenizer, network)

    class Slices(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            self.wait(control, state)

        def on_step_end(self, args, state, control, **kwargs):
            seconds = time.perf_counter() - self.start
            if seconds >= SLICE:
                print_json(seconds=seconds, tokens=counting_collator.tokens - self.tokens_before,
                           steps=state.global_step, loss=None)
                self.wait(control, state)

        def wait(self, control, state):
            if sys.stdin.readline().strip() != "go":
                control.should_training_stop = True
            self.start, self.tokens_before = time.perf_counter(), counting_collator.tokens

    class CountingCollator:
        tokens = 0  # without padding

        def __call__(self, features):
            self.tokens += sum(len(row["input_ids"]) + len(row["labels"]) for row in features)
            return collator([{key: row[key] for key in ("input_ids", "attention_mask", "labels")} for row in features])

    counting_collator = CountingCollator()
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(options.folder / "trainer"), per_device_train_batch_size=rows, max_steps=10_000_000,
        learning_rate=LEARNING_RATE, warmup_steps=WARMUP, lr_scheduler_type="inverse_sqrt",
        adam_beta1=0.9, adam_beta2=0.98, adam_epsilon=1e-9, weight_decay=0.0, label_smoothing_factor=SMOOTHING,
        train_sampling_strategy="group_by_length", remove_unused_columns=False, max_grad_norm=0.0,
        logging_steps=10**9, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True)
    Seq2SeqTrainer(model=network, args=arguments, train_dataset=data, data_collator=counting_collator,
                   processing_class=tokenizer, callbacks=[Slices()]).train()
    network.eval()
    start = time.perf_counter()
    lines = read_lines(options.data, "test_2016_flickr.en.gz")
    order = sorted(range(len(lines)), key=lambda index: len(lines[index]))
    texts = [""] * len(lines)
    with torch.inference_mode():
        for first in range(0, len(lines), 32):
            indices = order[first:first + 32]
            batch = tokenizer.pad({"input_ids": encode([lines[index] for index in indices])}, return_tensors="pt")
            generated = network.generate(**batch, num_beams=4, length_penalty=0.6, max_new_tokens=80)
            for index, text in zip(indices, tokenizer.batch_decode(generated, skip_special_tokens=True), strict=True):
                texts[index] = text.strip()
    print_json(**score(texts, options.data), parameters=sum(p.numel() for p in network.parameters()),
               peak_mib=peak_memory(), decoding=time.perf_counter() - start, texts=texts[:3])
    os._exit(0)


def peak_memory() -> float:
    """MiB of this process."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=15.0, help="training time per side")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--side", choices=["stemma", "transformers"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        (run_stemma if options.side == "stemma" else run_transformers)(options)
    with tempfile.TemporaryDirectory() as temporary:
        prepare(options.data, Path(temporary))
        common = ["--data", str(options.data), "--folder", temporary, "--threads", str(options.threads)]
        names = {"stemma": "stemma transformer@mini", "transformers": "transformers Seq2SeqTrainer, Marian"}
        sides = {key: Side(name, Path(__file__), ["--side", key, *common]) for key, name in names.items()}
        slices: dict[str, list[dict[str, Any]]] = {key: [] for key in sides}
        while any(sum(part["seconds"] for part in parts) < 60 * options.minutes for parts in slices.values()):
            for key, side in sides.items():
                if sum(part["seconds"] for part in slices[key]) < 60 * options.minutes:
                    slices[key].append(side.request("go"))
        results = {key: side.request("stop") for key, side in sides.items()}
    speeds = {key: [part["tokens"] / part["seconds"] for part in parts[1:]] for key, parts in slices.items()}
    for key, side in sides.items():
        result = results[key]
        print(f"{side.name:<38} {result['parameters']:,} parameters, {slices[key][-1]['steps']:,} steps, "
              f"{sum(part['tokens'] for part in slices[key]):,} tokens, "
              f"{statistics.median(speeds[key]):,.0f} tokens/s, peak {result['peak_mib']:,.0f} MiB")
        print(f"  BLEU {result['bleu']:.2f} ({result['signature']}), chrF {result['chrf']:.1f}, test set decoded in "
              f"{result['decoding']:.0f} s; e.g. {result['texts'][0]}")
    ratio = statistics.median(a / b for a, b in zip(speeds["stemma"], speeds["transformers"], strict=False))
    print(f"stemma relative to transformers: {ratio:.2f}x tokens/s, "
          f"{results['stemma']['bleu'] - results['transformers']['bleu']:+.2f} BLEU in the same time")
    print("goal: at least 2x tokens/s, and no lower BLEU")


if __name__ == "__main__":
    main()
