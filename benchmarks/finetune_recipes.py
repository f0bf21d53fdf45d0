"""Accuracy of every recipe after a short pre-training and a fine-tune with its default settings.

    python benchmarks/finetune_recipes.py --reviews REVIEWS --chinese TEXT --out FOLDER
    python benchmarks/finetune_recipes.py --sst2 SST-2 --english TEXT --recipes bert,gpt2 --steps 1000 --out FOLDER

Every recipe at size `tiny` is pre-trained once, then fine-tuned for each seed with the defaults of `stemma finetune` on
a random sample of the examples. REVIEWS and SST-2 are folders with train.tsv and dev.tsv. A model with a decoder
generates the label as a word, which must be exactly correct. Prints the table of docs/how-to/downstream.md: accuracy on
dev (mean and standard deviation over the seeds), and points above the majority class. Finished runs in FOLDER are
reused.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import statistics
import sys
from collections import Counter
from pathlib import Path

from stemma.recipe_loading import recipe, recipe_names

MIN_GAIN = 0.05  # required accuracy above the majority class
# The word that a decoder generates, by text column and label.
WORDS = {"sentence": {"0": "bad", "1": "good"}, "text_a": {"0": "差", "1": "好"}}
Rows = list[tuple[str, str]]  # text, label


def read(file: Path, text: str) -> Rows:
    with file.open(encoding="utf-8", newline="") as lines:
        rows = [(row[text].strip(), row["label"]) for row in csv.DictReader(lines, delimiter="\t",
                                                                            quoting=csv.QUOTE_NONE)]
    return [row for row in rows if row[0]]


def write(file: Path, rows: Rows, words: dict[str, str]) -> None:
    """Write a table with both the label (for a classifier) and its word (for a decoder)."""
    lines = ["text\tlabel\tsource\ttarget", *(f"{text}\t{label}\t{text}\t{words[label]}" for text, label in rows)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def pretrained_run(name: str, options: argparse.Namespace, text: Path) -> Path:
    from stemma.training.pretrain import pretrain

    start: Path = options.out / f"start-{name}"
    if not (start / "result.json").is_file():
        resolved = recipe(f"{name}@tiny", [f"training.warmup_steps={options.steps // 6}", *options.common_changes,
                                           f"tokenizer.vocab_size={options.vocabulary}"])
        pairs = [str(text)] if resolved.settings.corpus.packing == "parallel" else []  # source and target are equal
        pretrain(resolved, [str(text)], start, steps=options.steps, target=pairs, overwrite=True)
    return start


def finetuned_accuracy(start: Path, run: Path, seed: int, options: argparse.Namespace) -> float:
    """Fine-tune, unless the run is finished, and return the accuracy on dev."""
    from stemma.tasks.runs import finetune, seq2seq
    from stemma.tasks.runs.seq2seq_data import data_from_cli

    files = {part: options.out / f"{part}.tsv" for part in ("train", "dev")}
    changes = [*options.common_changes, *options.changes]
    generates = recipe(start / "recipe.toml").settings.network.decoder is not None
    if not (run / "result.json").is_file():
        if generates:
            data = data_from_cli({part: [str(file)] for part, file in files.items()})
            seq2seq.finetune_seq2seq(start, data, run, beams=1, seed=seed, changes=changes, overwrite=True)
        else:
            finetune.finetune(finetune.TaskArguments("classify", files), start, run, seed=seed, changes=changes,
                              overwrite=True)
    scores = json.loads((run / "result.json").read_text())["metrics"]["dev"]
    return float(scores["exact_match"] / 100 if generates else scores["accuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reviews", type=Path, help="Chinese reviews: columns label and text_a")
    parser.add_argument("--sst2", type=Path, help="SST-2 instead: columns sentence and label")
    parser.add_argument("--chinese", type=Path, help="text to pre-train on, with --reviews")
    parser.add_argument("--english", type=Path, help="text to pre-train on, with --sst2")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipes", help="separated by commas (default: all)")
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--dev", type=int, default=1000, help="number of dev examples")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200, help="pre-training steps")
    parser.add_argument("--characters", type=int, default=1_000_000, help="size of the text to pre-train on")
    parser.add_argument("--vocabulary", type=int, default=4000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("changes", nargs="*", help="key=value, to try another setting")
    options = parser.parse_args()
    if (options.reviews is None) == (options.sst2 is None):
        parser.error("give one of --reviews and --sst2")
    options.out.mkdir(parents=True, exist_ok=True)
    # validation after each epoch would cost more than the training
    options.common_changes = [f"training.threads={options.threads}", "training.validate_every=1000000"]
    folder, column, text = (options.reviews, "text_a", options.chinese) if options.reviews else \
        (options.sst2, "sentence", options.english)
    for part, count in (("train", options.examples), ("dev", options.dev)):
        rows = read(folder / f"{part}.tsv", column)
        rows = random.Random(0).sample(rows, min(count, len(rows)))
        write(options.out / f"{part}.tsv", rows, WORDS[column])
    majority = max(Counter(label for _, label in rows).values()) / len(rows)
    with text.open(encoding="utf-8") as source:
        shortened = options.out / "text.txt"
        shortened.write_text(source.read(options.characters).rpartition("\n")[0] + "\n", encoding="utf-8")
    print(f"{len(rows):,} dev examples, majority class {majority:.1%}\n")
    print("| recipe | optimizer | learning rate | warm-up | epochs | accuracy | points above majority |")
    print("|---|---|---:|---:|---:|---|---:|", flush=True)
    failed = []
    for name in options.recipes.split(",") if options.recipes else recipe_names():
        start = pretrained_run(name, options, shortened)
        runs = [options.out / f"tuned-{name}-{seed}" for seed in range(options.seeds)]
        accuracies = [finetuned_accuracy(start, run, seed, options) for seed, run in enumerate(runs)]
        settings = recipe(runs[0] / "recipe.toml").settings
        mean, deviation = statistics.fmean(accuracies), statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
        print(f"| {name} | {settings.training.optimizer.kind} | {settings.training.learning_rate:g} | "
              f"{settings.finetuning.warmup:.3g} | {settings.finetuning.epochs:g} | {mean:.3f} ± {deviation:.3f} | "
              f"{100 * (mean - majority):+.1f} |", flush=True)
        failed += [name] if mean - majority < MIN_GAIN else []
    if failed:
        sys.exit(f"less than {100 * MIN_GAIN:.0f} points above the majority class: {', '.join(failed)}")


if __name__ == "__main__":
    main()
