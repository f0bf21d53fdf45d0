"""Does every recipe's own way of fine-tuning learn? Each one, small, briefly pre-trained, then fine-tuned by default.

    python benchmarks/finetune_recipes.py --english TEXT --chinese TEXT --sst2 SST-2 --reviews REVIEWS --out FOLDER

Every recipe at size `tiny` reads some text once for all seeds; then `stemma finetune` is run as a user types it, with
no setting of its own, on a random part of the examples, once a seed. Chinese recipes read Chinese text and judge
reviews (a table with the columns label and text_a), the others SST-2. A model with a decoder writes its answer as a
word, and counts as right if that is the word. Prints the table of docs/downstream.md: accuracy on dev, mean and
standard deviation over the seeds, and how far that is above always giving the more frequent answer. What is in FOLDER
is not done again.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from stemma.lineage import names, recipe

CHINESE = ("bert-wwm", "bert-wwm-ext", "ernie")
ENOUGH = 0.05  # above the majority class
WORDS = {"0": "bad", "1": "good"}  # what a decoder is to write
Rows = list[tuple[str, str]]  # text, label


def read(file: Path, text: str) -> Rows:
    with file.open(encoding="utf-8", newline="") as lines:
        rows = [(row[text].strip(), row["label"]) for row in csv.DictReader(lines, delimiter="\t",
                                                                            quoting=csv.QUOTE_NONE)]
    return [row for row in rows if row[0]]


def draw(rows: Rows, count: int) -> Rows:
    return random.Random(0).sample(rows, min(count, len(rows)))


def write(file: Path, rows: Rows) -> None:
    """For both ways to be asked: a class, and a word to be written."""
    lines = ["text\tlabel\tsource\ttarget", *(f"{text}\t{label}\t{text}\t{WORDS[label]}" for text, label in rows)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def first_lines(source: Path, out: Path, characters: int) -> Path:
    with source.open(encoding="utf-8") as text:
        out.write_text(text.read(characters).rpartition("\n")[0] + "\n", encoding="utf-8")
    return out


def stemma(*words: str | Path) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-m", "stemma", *map(str, words), "--json"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def one(name: str, options: argparse.Namespace, place: Path, texts: dict[str, Path]) -> dict[str, Any]:
    """The accuracies of a recipe, seed by seed, and what it was fine-tuned with."""
    chosen = recipe(f"{name}@tiny")
    language = "chinese" if name in CHINESE else "english"
    writes = chosen.settings.network.decoder is not None
    start = place / f"start-{name}"
    if not (start / "result.json").is_file():
        pairs = ["--target", texts[language]] if chosen.settings.corpus.packing == "parallel" else []
        stemma("pretrain", chosen.label, "--corpus", texts[language], *pairs, "--out", start, "--overwrite",
               "--steps", str(options.steps), f"training.warmup_steps={options.steps // 6}",
               f"tokenizer.vocab_size={options.vocabulary}", *threads(options))
    found, used = [], {}
    for seed in range(options.seeds):
        run = place / f"tuned-{name}-{seed}"
        if not (run / "result.json").is_file():
            columns = [] if writes else ["--columns", "text=text,label=label"]
            stemma("finetune", "seq2seq" if writes else "classify", "--model", start, "--train",
                   place / f"{language}-train.tsv", "--dev", place / f"{language}-dev.tsv", *columns, "--out", run,
                   "--overwrite", "--seed", str(seed), *threads(options), *options.changes)
        scores = json.loads((run / "result.json").read_text())["metrics"]["dev"]
        found.append(scores["exact_match"] / 100 if writes else scores["accuracy"])
        training, tuning = (getattr(recipe(run / "recipe.toml").settings, part) for part in ("training", "finetuning"))
        used = {"optimizer": training.optimizer.kind, "learning_rate": training.learning_rate, "epochs": tuning.epochs,
                "warmup": tuning.warmup}
    return {"recipe": name, "task": "reviews" if language == "chinese" else "SST-2", "writes": writes,
            "accuracies": found, **used}


def threads(options: argparse.Namespace) -> list[str]:
    return [f"training.threads={options.threads}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--english", type=Path, required=True, help="text to pre-train on")
    parser.add_argument("--chinese", type=Path, required=True)
    parser.add_argument("--sst2", type=Path, required=True, help="the folder of train.tsv and dev.tsv")
    parser.add_argument("--reviews", type=Path, required=True, help="the same with the columns label and text_a")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipes", help="some of them, with commas between; all otherwise")
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--dev", type=int, default=1000, help="examples to be judged by")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600, help="of pre-training")
    parser.add_argument("--characters", type=int, default=2_000_000, help="of text to pre-train on")
    parser.add_argument("--vocabulary", type=int, default=4000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("changes", nargs="*", help="key=value, for a look at another setting")
    options = parser.parse_args()
    place: Path = options.out
    place.mkdir(parents=True, exist_ok=True)
    texts = {language: first_lines(getattr(options, language), place / f"{language}.txt", options.characters)
             for language in ("english", "chinese")}
    majority = {}
    for language, folder, column, task in (("english", options.sst2, "sentence", "SST-2"),
                                           ("chinese", options.reviews, "text_a", "reviews")):
        for part, count in (("train", options.examples), ("dev", options.dev)):
            rows = draw(read(folder / f"{part}.tsv", column), count)
            write(place / f"{language}-{part}.tsv", rows)
        majority[task] = max(Counter(label for _, label in rows).values()) / len(rows)
    print("| recipe | task | optimizer | learning rate | epochs | accuracy | majority | points above |")
    print("|---|---|---|---:|---:|---|---:|---:|", flush=True)
    failed = []
    for name in options.recipes.split(",") if options.recipes else names():
        row = one(name, options, place, texts)
        mean, least = statistics.fmean(row["accuracies"]), min(row["accuracies"])
        spread = statistics.stdev(row["accuracies"]) if len(row["accuracies"]) > 1 else 0.0
        above = mean - majority[row["task"]]
        print(f"| {name} | {row['task']}{', written' if row['writes'] else ''} | {row['optimizer']} | "
              f"{row['learning_rate']:g} | {row['epochs']:g} | {mean:.3f} ± {spread:.3f} (least {least:.3f}) | "
              f"{majority[row['task']]:.3f} | {100 * above:+.1f} |", flush=True)
        failed += [name] if above < ENOUGH else []
    if failed:
        sys.exit(f"less than {100 * ENOUGH:.0f} points above the majority class: {', '.join(failed)}")


if __name__ == "__main__":
    main()
