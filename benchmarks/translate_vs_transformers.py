"""Learning to translate against transformers' Seq2SeqTrainer: the same pairs, pieces, size, batch, rate and time.

    python benchmarks/translate_vs_transformers.py --data FOLDER --minutes 15

FOLDER holds Multi30k (train.en.gz, train.de.gz, val..., test_2016_flickr...), which is not part of this project. Both
sides are the Transformer of 4 + 4 layers x 256 with one table of 8,000 pieces for three uses. The peer is a Marian
model, which is just that, trained by `Seq2SeqTrainer` as its documentation shows, with dynamic filling and rows
grouped by length; it may use all cores. Sides take turns of some seconds until each has had its minutes; then both
translate the test set with four beams and are scored by sacrebleu.
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
PLACES = 4096  # of a batch's targets, filling included
RATE, WARMUP, SMOOTHING, DROPOUT = 1e-3, 400, 0.1, 0.1
SLICE = 20.0  # seconds of training between two turns


def read(data: Path, name: str) -> list[str]:
    import gzip

    with gzip.open(data / name, "rt", encoding="utf-8") as lines:
        return [line.strip() for line in lines]


def prepare(data: Path, folder: Path) -> None:
    """One vocabulary of pieces for both languages, and our corpus."""
    from stemma.corpus.build import build_corpus
    from stemma.text.parallel import PairSource
    from stemma.text.train_tokenizer import train_tokenizer

    texts = [*read(data, "train.en.gz"), *read(data, "train.de.gz")]
    tokenizer = train_tokenizer(iter(texts), "bpe", VOCABULARY, lowercase=False,
                                roles={"begin", "end", "padding", "unknown"})
    tokenizer.save(folder / "tokenizer")
    pairs = [PairSource(str(data / "train.en.gz"), str(data / "train.de.gz"))]
    build_corpus([], folder / "tokenizer", folder / "corpus", pairs=pairs, workers=1)


def scored(texts: list[str], data: Path) -> dict[str, Any]:
    from stemma.tasks.metrics.bleu_rouge import translation_scores

    found = translation_scores(texts, [read(data, "test_2016_flickr.de.gz")])
    return {"bleu": found["bleu"]["score"], "signature": found["bleu"]["signature"], "chrf": found["chrf"]["score"]}


def tell(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def ours(options: argparse.Namespace) -> None:
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
    chosen = recipe("transformer@mini", [
        f"training.threads={options.threads}", "corpus.sequence_length=128", f"training.batch_size={PLACES // 128}",
        f"training.learning_rate={RATE}", f"training.warmup_steps={WARMUP}", "corpus.validation=0.001",
        "training.checkpoint_every=1000000", "training.validate_every=1000000"])
    chosen = adopt_tokenizer(chosen, corpus)
    torch.manual_seed(0)
    network = build_network(chosen, corpus.tokenizer.vocab_size)
    (options.folder / "run").mkdir()
    supply = PretrainLoader(chosen, corpus, build_objectives(chosen), 0)
    loop = Trainer(options.folder / "run", chosen, supply, network, Budget("steps", 10_000_000), 0)
    with ProgressBar("", "", enabled=False) as progress:
        for line in sys.stdin:
            if line.strip() == "stop":
                break
            began, before = time.perf_counter(), loop.state.tokens
            while time.perf_counter() - began < SLICE:
                loop._step(progress)
            tell(seconds=time.perf_counter() - began, tokens=loop.state.tokens - before, steps=loop.state.step,
                 loss=loop.state.loss)
    model = Model(chosen, corpus.tokenizer, network.eval())
    began = time.perf_counter()
    texts = [found.text for found in translate(model, read(options.data, "test_2016_flickr.en.gz"), beams=4)]
    tell(**scored(texts, options.data), parameters=network.parameter_count(), peak_mib=peak(),
         decoding=time.perf_counter() - began, texts=texts[:3])
    os._exit(0)


def theirs(options: argparse.Namespace) -> None:
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
    sources, targets = (encode(read(options.data, f"train.{side}.gz")) for side in ("en", "de"))
    data = [{"input_ids": source, "attention_mask": [1] * len(source), "labels": target, "length": len(target)}
            for source, target in zip(sources, targets, strict=True)]
    rows = round(PLACES / (sum(map(len, targets)) / len(targets)))  # as many places as the other side, on average
    collator = DataCollatorForSeq2Seq(tokenizer, network)

    class Turns(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            self.wait(control, state)

        def on_step_end(self, args, state, control, **kwargs):
            spent = time.perf_counter() - self.began
            if spent >= SLICE:
                tell(seconds=spent, tokens=counted.tokens - self.before, steps=state.global_step, loss=None)
                self.wait(control, state)

        def wait(self, control, state):
            if sys.stdin.readline().strip() != "go":
                control.should_training_stop = True
            self.began, self.before = time.perf_counter(), counted.tokens

    class Counted:
        tokens = 0

        def __call__(self, features):
            self.tokens += sum(len(row["input_ids"]) + len(row["labels"]) for row in features)
            return collator([{key: row[key] for key in ("input_ids", "attention_mask", "labels")} for row in features])

    counted = Counted()
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(options.folder / "trainer"), per_device_train_batch_size=rows, max_steps=10_000_000,
        learning_rate=RATE, warmup_steps=WARMUP, lr_scheduler_type="inverse_sqrt", adam_beta1=0.9, adam_beta2=0.98,
        adam_epsilon=1e-9, weight_decay=0.0, label_smoothing_factor=SMOOTHING,
        train_sampling_strategy="group_by_length", remove_unused_columns=False, max_grad_norm=0.0,
        logging_steps=10**9, save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True)
    Seq2SeqTrainer(model=network, args=arguments, train_dataset=data, data_collator=counted,
                   processing_class=tokenizer, callbacks=[Turns()]).train()
    network.eval()
    began = time.perf_counter()
    lines = read(options.data, "test_2016_flickr.en.gz")
    order = sorted(range(len(lines)), key=lambda number: len(lines[number]))
    texts = [""] * len(lines)
    with torch.inference_mode():
        for first in range(0, len(lines), 32):
            chosen = order[first:first + 32]
            batch = tokenizer.pad({"input_ids": encode([lines[number] for number in chosen])}, return_tensors="pt")
            found = network.generate(**batch, num_beams=4, length_penalty=0.6, max_new_tokens=80)
            for number, row in zip(chosen, tokenizer.batch_decode(found, skip_special_tokens=True), strict=True):
                texts[number] = row.strip()
    tell(**scored(texts, options.data), parameters=sum(p.numel() for p in network.parameters()), peak_mib=peak(),
         decoding=time.perf_counter() - began, texts=texts[:3])
    os._exit(0)


def peak() -> float:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=15.0, help="of training for each side")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--side", choices=["ours", "theirs"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        (ours if options.side == "ours" else theirs)(options)
    with tempfile.TemporaryDirectory() as temporary:
        prepare(options.data, Path(temporary))
        common = ["--data", str(options.data), "--folder", temporary, "--threads", str(options.threads)]
        names = {"ours": "stemma transformer@mini", "theirs": "transformers Seq2SeqTrainer, Marian"}
        sides = {key: Side(name, Path(__file__), ["--side", key, *common]) for key, name in names.items()}
        turns: dict[str, list[dict[str, Any]]] = {key: [] for key in sides}
        while any(sum(turn["seconds"] for turn in done) < 60 * options.minutes for done in turns.values()):
            for key, side in sides.items():
                if sum(turn["seconds"] for turn in turns[key]) < 60 * options.minutes:
                    turns[key].append(side.ask("go"))
        last = {key: side.ask("stop") for key, side in sides.items()}
    rates = {key: [turn["tokens"] / turn["seconds"] for turn in done[1:]] for key, done in turns.items()}
    for key, side in sides.items():
        end = last[key]
        print(f"{side.name:<38} {end['parameters']:,} parameters, {turns[key][-1]['steps']:,} steps, "
              f"{sum(turn['tokens'] for turn in turns[key]):,} tokens, {statistics.median(rates[key]):,.0f} tokens/s, "
              f"peak {end['peak_mib']:,.0f} MiB")
        print(f"  BLEU {end['bleu']:.2f} ({end['signature']}), chrF {end['chrf']:.1f}, test set decoded in "
              f"{end['decoding']:.0f} s; e.g. {end['texts'][0]}")
    ratio = statistics.median(a / b for a, b in zip(rates["ours"], rates["theirs"], strict=False))
    print(f"stemma against the peer: {ratio:.2f}x the tokens a second, "
          f"{last['ours']['bleu'] - last['theirs']['bleu']:+.2f} BLEU in the same time")
    print("wanted: at least 2x the tokens a second, and no lower BLEU")


if __name__ == "__main__":
    main()
