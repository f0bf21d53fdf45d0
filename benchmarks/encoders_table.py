"""Every recipe of the encoder branch at `tiny`, the same text and tokens each: what it reached, beside its unigram.

    python benchmarks/encoders_table.py --english sotu.txt --chinese news.txt --tokens 2_000_000

Prints the table of docs/family/encoders.md. Compare a loss with the baseline beside it, not with other losses: each
recipe has its own vocabulary and hides other things. The Chinese text gets its phrases mined first; a list of entities
is not given, so that ERNIE's last stage goes to the one before.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ENGLISH = ("bert", "roberta", "spanbert", "albert", "electra", "structbert", "ernie-2")
CHINESE = ("bert", "bert-wwm", "bert-wwm-ext", "ernie")
VOCABULARY = 8000


def stemma(*words: str) -> dict:
    done = subprocess.run([sys.executable, "-m", "stemma", *words, "--json"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"stemma {' '.join(words)}\n{done.stderr}")
    return json.loads(done.stdout)


def chinese_corpus(text: Path, folder: Path, documents: str) -> Path:
    """One corpus with mined phrases for all Chinese recipes."""
    stemma("tokenizer", "train", str(text), "--kind", "wordpiece", "--vocab-size", str(VOCABULARY), "--out",
           str(folder / "vocabulary"))
    corpus = folder / "corpus"
    stemma("corpus", "build", str(text), "--tokenizer", str(folder / "vocabulary"), "--documents", documents, "--out",
           str(corpus))
    stemma("corpus", "annotate", str(corpus), "--phrases", "mine")
    return corpus


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--english", type=Path, required=True)
    parser.add_argument("--chinese", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=2_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="*", help="some recipes")
    options = parser.parse_args()
    print("| recipe | text | parameters | tokens/s | held-out loss | unigram |\n|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        corpora = {"English": str(options.english), "Chinese": str(chinese_corpus(options.chinese, folder, "line"))}
        wanted = [("English", name) for name in ENGLISH] + [("Chinese", name) for name in CHINESE]
        for language, name in wanted:
            if options.only and name not in options.only:
                continue
            raw = [f"tokenizer.vocab_size={VOCABULARY}"] if language == "English" else []
            found = stemma("pretrain", f"{name}@tiny", "--corpus", corpora[language], "--out", str(folder / "run"),
                           "--tokens", str(options.tokens), "--overwrite", *raw, f"training.threads={options.threads}",
                           "training.validate_every=100000", "training.checkpoint_every=100000")
            others = {task: (loss, found["baselines"][task]) for task, loss in found["validation_losses"].items()}
            print(f"| `{name}` | {language} | {found['parameters']:,} | {found['tokens_per_second']:,.0f} | "
                  f"{found['validation_loss']:.2f} | {found['unigram_loss']:.2f} |", flush=True)
            told = ", ".join(f"{task} {loss:.3f} / {floor:.3f}" for task, (loss, floor) in others.items())
            print(f"{language} {name}: {found['steps']:,} steps; {told}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
