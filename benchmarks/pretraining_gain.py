"""What pre-training on plain text contributes to translation from few pairs.

    python benchmarks/pretraining_gain.py --data multi30k --out OUT --minutes 5

Every recipe is pre-trained on captions of Multi30k, English and German mixed, of which none has its translation in the
text: English captions come from one half of the training set, German ones from the other. Then it is fine-tuned on
other 2,000 pairs, with the default settings, from the pre-trained weights and from random ones of the same recipe and
vocabulary. Prints the table of docs/family/seq2seq.md: the held-out loss of pre-training, the loss on the validation
set, and BLEU on 500 sentences of the test set. A second call continues where the first was stopped. DATA has
train.en.gz, val.en.gz, test_2016_flickr.en.gz and the same with de.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

TEST_SENTENCES = 500


def stemma(*arguments: object) -> dict[str, Any]:
    """Run a command and return its JSON output."""
    process = subprocess.run([sys.executable, "-m", "stemma", *map(str, arguments), "--json"], text=True,
                             stdout=subprocess.PIPE)
    if process.returncode:
        sys.exit(f"stemma {' '.join(map(str, arguments))}: exit code {process.returncode}")
    return dict(json.loads(process.stdout))


def read(data: Path, part: str) -> dict[str, list[str]]:
    return {language: gzip.decompress((data / f"{part}.{language}.gz").read_bytes()).decode().rstrip("\n").split("\n")
            for language in ("en", "de")}


def write_data(data: Path, out: Path, pairs: int) -> None:
    """text.txt, train.en, train.de, val.en, ..."""
    train, middle = read(data, "train"), 0
    middle = (pairs + len(train["en"])) // 2
    (out / "text.txt").write_text("\n".join(train["en"][pairs:middle] + train["de"][middle:]) + "\n")
    parts = {"train": {language: lines[:pairs] for language, lines in train.items()}, "val": read(data, "val"),
             "test": {language: lines[:TEST_SENTENCES] for language, lines in read(data, "test_2016_flickr").items()}}
    for part, languages in parts.items():
        for language, lines in languages.items():
            (out / f"{part}.{language}").write_text("\n".join(lines) + "\n")


def random_model(run: Path, folder: Path, seed: int) -> Path:
    """The recipe and the tokenizer of a run, with random weights."""
    import torch

    from stemma.exchange.load import load
    from stemma.exchange.save import write_model
    from stemma.model import Model
    from stemma.objectives import build_network

    if not folder.exists():
        model = load(run)
        assert model.tokenizer is not None
        torch.manual_seed(seed)
        write_model(Model(model.recipe, model.tokenizer, build_network(model.recipe, model.tokenizer.vocab_size)),
                    folder)
    return folder


def finetuned_scores(model: Path, run: Path, options: argparse.Namespace) -> tuple[float, float]:
    """The loss on the validation set, and BLEU."""
    out = options.out
    if not (run / "result.json").exists():
        length = ["--epochs", options.epochs] if options.epochs else []
        stemma("finetune", "seq2seq", "--model", model, "--train", out / "train.en", "--train-target", out / "train.de",
               "--dev", out / "val.en", "--dev-target", out / "val.de", "--out", run, "--overwrite", "--beams", 1,
               "--seed", options.seed, *length, *options.changes, f"training.threads={options.threads}")
    result = json.loads((run / "result.json").read_text())
    scores = stemma("translate", run, out / "test.en", "--out", run / "test.hyp", "--overwrite", "--force",
                    "--reference", out / "test.de")
    return result["validation_loss"], scores["bleu"]["score"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="of fine-tuning")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipes", default="mass,bart,t5,unilm")
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--epochs", type=float, help="of fine-tuning; default: the program's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_intermixed_args()
    options.out.mkdir(parents=True, exist_ok=True)
    write_data(options.data, options.out, options.pairs)
    print("| recipe | tokens | held-out loss (unigram) | dev loss: pre-trained, random | BLEU: pre-trained, random |\n"
          "|---|---:|---|---|---|", flush=True)
    for name in options.recipes.split(","):
        run = options.out / name
        if not (run / "result.json").exists():
            stemma("pretrain", f"{name}@{options.size}", "--corpus", options.out / "text.txt", "--documents", "line",
                   "--out", run, "--overwrite", "--minutes", options.minutes, "--seed", options.seed,
                   f"training.threads={options.threads}", "training.validate_every=1000000",
                   "training.checkpoint_every=1000000")
        start = json.loads((run / "result.json").read_text())
        suffix = f"s{options.seed}"
        losses, bleu = zip(*(finetuned_scores(model, options.out / f"{name}-{kind}-{suffix}", options)
                             for kind, model in (("tuned", run), ("from-random", random_model(
                                 run, options.out / f"{name}-random-{suffix}", options.seed)))), strict=True)
        print(f"| `{name}` | {start['tokens']:,} | {start['validation_loss']:.2f} ({start['unigram_loss']:.2f}) | "
              f"{losses[0]:.2f}, {losses[1]:.2f} | {bleu[0]:.1f}, {bleu[1]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
