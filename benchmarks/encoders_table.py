"""Held-out loss of every encoder recipe at size tiny, with the same text and the same number of tokens.

    python benchmarks/encoders_table.py --english sotu.txt --chinese news.txt --tokens 2_000_000

Prints the table of docs/family/encoders.md. Compare a loss with its unigram baseline, not with other losses: recipes
have different vocabularies and masking units. Phrases are mined from the Chinese text first. There is no list of
entities, so ERNIE's entity stage continues with phrases.
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


def stemma(*arguments: str) -> dict:
    """Run a command and return its JSON output."""
    process = subprocess.run([sys.executable, "-m", "stemma", *arguments, "--json"], capture_output=True, text=True)
    if process.returncode:
        sys.exit(f"stemma {' '.join(arguments)}\n{process.stderr}")
    return json.loads(process.stdout)


def chinese_corpus(text: Path, folder: Path, documents: str) -> Path:
    """A corpus with mined phrases for all Chinese recipes."""
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
    parser.add_argument("--only", nargs="*", help="recipes (default: all)")
    options = parser.parse_args()
    print("| recipe | text | parameters | tokens/s | held-out loss | unigram baseline |\n|---|---|---|---|---|---|",
          flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        corpora = {"English": str(options.english), "Chinese": str(chinese_corpus(options.chinese, folder, "line"))}
        for language, name in [("English", name) for name in ENGLISH] + [("Chinese", name) for name in CHINESE]:
            if options.only and name not in options.only:
                continue
            changes = [f"tokenizer.vocab_size={VOCABULARY}"] if language == "English" else []
            result = stemma("pretrain", f"{name}@tiny", "--corpus", corpora[language], "--out", str(folder / "run"),
                            "--tokens", str(options.tokens), "--overwrite", *changes,
                            f"training.threads={options.threads}", "training.validate_every=100000",
                            "training.checkpoint_every=100000")
            print(f"| `{name}` | {language} | {result['parameters']:,} | {result['tokens_per_second']:,.0f} | "
                  f"{result['validation_loss']:.2f} | {result['unigram_loss']:.2f} |", flush=True)
            losses = ", ".join(f"{objective} {loss:.3f} / {result['baselines'][objective]:.3f}"
                               for objective, loss in result["validation_losses"].items())
            print(f"{language} {name}: {result['steps']:,} steps; {losses}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
