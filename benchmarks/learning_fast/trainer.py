"""transformers.Trainer on the text of a lab, in the same minutes: the peer of masked_after.toml and causal_after.toml.

    python benchmarks/learning_fast/trainer.py LAB --kind masked --minutes 2.5 --rates 5e-5,3e-4,1e-3,3e-3

LAB is the folder of `stemma ablate benchmarks/learning_fast/KIND_after.toml`; its text, its split and the vocabulary of
KIND_after are used here. The peer is BertForMaskedLM or GPT2LMHeadModel of 4 x 256 with `Trainer` as its documentation
shows: rows of 128 tokens without padding, dynamic masks of 15%, fused AdamW, a linear schedule, clipping at 1.0,
fp32 (bf16 with --bf16), both cores. 5e-5 is its default learning rate; its default schedule has no warm-up. As many
steps are trained as fit the minutes at the speed of the first 20, which are not counted, so that the schedule ends with
the budget. The score is the lab's: (pseudo-)likelihood of the held-out documents in bits per byte.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

LENGTH, LAYERS, WIDTH, HEADS, BATCH = 128, 4, 256, 4, 16
TRIAL_STEPS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lab", type=Path)
    parser.add_argument("--kind", choices=["masked", "causal"], required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--rates", default="5e-5")
    parser.add_argument("--warmup", type=float, default=0.0, help="fraction of the steps")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bf16", action="store_true")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    tokenizer_folder = trained_model(options.lab, f"{options.kind}_after")
    rows = token_rows(tokenizer_folder, documents(options.lab, "train"))
    print(f"{len(rows):,} rows of {LENGTH} tokens", flush=True)
    for rate in options.rates.split(","):
        for seed in range(options.seeds):
            result = train(rows, tokenizer_folder, float(rate), seed, options)
            print(json.dumps({"learning_rate": float(rate), "seed": seed, **result}), flush=True)


def documents(lab: Path, part: str) -> list[str]:
    lines = (lab / "text" / f"{part}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines]


def trained_model(lab: Path, variant: str) -> Path:
    """A model of the variant with the smaller vocabulary, which is used here."""
    from stemma.recipe_loading import recipe

    found = [(recipe(file).settings.tokenizer.vocab_size, file.parent / "model")
             for file in sorted(lab.glob("cells/*/run/recipe.toml")) if recipe(file).name == variant]
    if not found:
        raise SystemExit(f"{lab} has no finished cell of {variant}")
    return min(found)[1]


def token_rows(tokenizer_folder: Path, texts: list[str]) -> Any:
    """(rows, length) ids of all documents one after the other, each closed by the separator."""
    import numpy as np

    from stemma.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(tokenizer_folder)
    separator = next(tokenizer.special_token_ids[name] for name in ("separator", "end")
                     if name in tokenizer.special_token_ids)
    ids = np.concatenate([np.append(encoding.ids, separator) for encoding in
                          tokenizer.encode_batch(texts, special=False)])
    return ids[:len(ids) // LENGTH * LENGTH].reshape(-1, LENGTH).astype(np.int64)


def build_peer(kind: str, vocab_size: int) -> Any:
    import transformers

    if kind == "masked":
        return transformers.BertForMaskedLM(transformers.BertConfig(
            vocab_size=vocab_size, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
            intermediate_size=4 * WIDTH))
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=vocab_size, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS))


def train(rows: Any, tokenizer_folder: Path, rate: float, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    import torch
    import transformers

    import stemma
    from stemma.lab.held_out_likelihood import held_out_scores

    transformers.logging.set_verbosity_error()
    torch.set_num_threads(options.threads)
    data = [{"input_ids": row.tolist(), "attention_mask": [1] * LENGTH} for row in rows]
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(tokenizer_folder)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    collator = transformers.DataCollatorForLanguageModeling(tokenizer, mlm=options.kind == "masked",
                                                            mlm_probability=0.15)

    def run(steps: int, folder: str) -> tuple[Any, float]:
        transformers.set_seed(seed)
        arguments = transformers.TrainingArguments(
            output_dir=folder, per_device_train_batch_size=BATCH, max_steps=steps, learning_rate=rate,
            warmup_steps=int(options.warmup * steps), logging_steps=10**9, save_strategy="no", report_to=[],
            use_cpu=True, bf16=options.bf16, disable_tqdm=True, seed=seed)
        network = build_peer(options.kind, len(tokenizer))
        trainer = transformers.Trainer(model=network, args=arguments, train_dataset=data, data_collator=collator)
        start = time.perf_counter()
        trainer.train()
        return network, time.perf_counter() - start

    with tempfile.TemporaryDirectory() as folder:
        run(2, folder)  # what is only done once
        _, trial = run(TRIAL_STEPS, folder)
        steps = max(1, int(60 * options.minutes / trial * TRIAL_STEPS))
        network, seconds = run(steps, folder)
        network.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        scores = held_out_scores(stemma.load(folder), documents(options.lab, "held_out"))
    return {"steps": steps, "seconds": round(seconds, 1), "tokens_per_second": round(steps * BATCH * LENGTH / seconds),
            **{name: round(score.value, 4) for name, score in scores.items()}}


if __name__ == "__main__":
    main()
