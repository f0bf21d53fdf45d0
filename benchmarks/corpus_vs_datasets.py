"""Tokenization speed: `stemma corpus build` compared with `datasets.map` and grouping, as in the run_mlm example.

    python benchmarks/corpus_vs_datasets.py [--text FILE] [--vocab FILE] [--megabytes 20] [--rounds 3]

Same text, same tokenizer, two workers each, new folders in every round, alternating. Each side runs in a separate
process and is timed after its imports. Stemma's time includes reading every (1024, 128) batch of ids once through the
memory map; the time of datasets ends when the grouped dataset is on disk.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from itertools import chain
from pathlib import Path

WORKERS = 2
LENGTH = 128
BLOCKS_PER_READ = 1024
MEMORY_GOAL = 1 << 30  # bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="plain text (default: the source of the standard library)")
    parser.add_argument("--vocab", type=Path, help="a tokenizer or vocab.txt (default: WordPiece trained on the text)")
    parser.add_argument("--megabytes", type=float, default=20, help="size of the text, which is repeated or cut")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(SIDES[options.side](options.work)))
        return
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        prepare(work, options.text, options.vocab, int(options.megabytes * 1e6))
        compare(work, options.rounds)


def prepare(work: Path, text: Path | None, vocab: Path | None, size: int) -> None:
    from stemma.text.tokenizer import Tokenizer
    from stemma.text.train_tokenizer import train_tokenizer

    content = text.read_text(encoding="utf-8", errors="replace") if text else standard_library(size)
    while len(content) < size:
        content += "\n\n" + content
    (work / "text.txt").write_text(content[:size], encoding="utf-8")
    if vocab:
        tokenizer = Tokenizer.load(vocab)
    else:
        sample = iter([content[start : start + 100_000] for start in range(0, size, 100_000)])
        tokenizer = train_tokenizer(sample, "wordpiece", 30_522, lowercase=True)
    tokenizer.save(work / "tokenizer", single="start A separator", pair="start A separator B:1 separator:1")
    print(f"{size / 1e6:.1f} MB of text, {tokenizer.vocab_size:,} pieces, blocks of {LENGTH}, {WORKERS} workers each")


def standard_library(size: int) -> str:
    """One document per module, without its blank lines, which would separate documents."""
    documents: list[str] = []
    length = 0
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if "site-packages" not in file.parts and length < size:
            lines = file.read_text(encoding="utf-8", errors="replace").replace("\0", "").splitlines()
            documents.append("\n".join(line for line in lines if line.strip()))
            length += len(documents[-1])
    return "\n\n".join(documents)


def compare(work: Path, rounds: int) -> None:
    runs: dict[str, list[dict]] = {side: [] for side in SIDES}
    for round_number in range(1, rounds + 1):
        for side in SIDES:
            runs[side].append(run := measure(side, work))
            print(f"  round {round_number}  {side:<9} {run['seconds']:6.2f} s   {run['ids']:,} ids   "
                  f"peak {run['rss'] / 2**20:,.0f} MiB", flush=True)
    seconds = {side: statistics.median(run["seconds"] for run in runs[side]) for side in SIDES}
    memory = {side: statistics.median(run["rss"] for run in runs[side]) for side in SIDES}
    print(f"datasets: {WORKERS} processes (num_proc), batched maps, threads of the tokenizer, no cache from earlier "
          "rounds, no progress bars; it adds [CLS] and [SEP] to every line, stemma adds none.")
    print(f"peak resident memory (sum over the processes): stemma {memory['stemma'] / 2**20:,.0f} MiB, datasets "
          f"{memory['datasets'] / 2**20:,.0f} MiB, ratio {memory['stemma'] / memory['datasets']:.2f}; "
          f"below 1 GiB: {'yes' if memory['stemma'] < MEMORY_GOAL else 'no'}")
    print(f"seconds (median of {rounds}): stemma {seconds['stemma']:.2f}, datasets {seconds['datasets']:.2f}; "
          f"stemma is {seconds['datasets'] / seconds['stemma']:.2f}x as fast (goal: 2x)")


def measure(side: str, work: Path) -> dict:
    """Run one side in its own process and sample the memory of all its descendants."""
    import psutil

    with tempfile.TemporaryDirectory(dir=work) as scratch:
        environment = {**os.environ, "HF_HOME": scratch, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
                       "SCRATCH": scratch}
        command = [sys.executable, __file__, "--side", side, "--work", str(work)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env=environment) as process:
            tree = psutil.Process(process.pid)
            peak = 0
            while process.poll() is None:
                peak = max(peak, resident_memory(tree))
                time.sleep(0.05)
            output, errors = process.communicate()
        if process.returncode:
            raise SystemExit(f"{side} failed:\n{errors}")
        return {**json.loads(output.splitlines()[-1]), "rss": peak}


def resident_memory(tree) -> int:
    """Bytes of a process and its descendants."""
    import psutil

    total = 0
    try:
        for process in (tree, *tree.children(recursive=True)):
            total += process.memory_info().rss
    except psutil.NoSuchProcess:
        pass  # a process ended meanwhile: return the sum so far
    return total


def stemma_side(work: Path) -> dict:
    import numpy as np

    from stemma.corpus.build import build_corpus
    from stemma.corpus.corpus import Corpus
    from stemma.text.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(work / "tokenizer")
    out = Path(os.environ["SCRATCH"]) / "corpus"
    start = time.perf_counter()
    build_corpus([work / "text.txt"], tokenizer, out, workers=WORKERS)
    corpus = Corpus.open(out)
    blocks = corpus.num_tokens // LENGTH
    ids = 0
    for first in range(0, blocks, BLOCKS_PER_READ):
        index = np.arange(first * LENGTH, min(first + BLOCKS_PER_READ, blocks) * LENGTH).reshape(-1, LENGTH)
        ids += corpus.values_at("tokens", index).size
    return {"seconds": time.perf_counter() - start, "ids": ids}


def datasets_side(work: Path) -> dict:
    import datasets
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    tokenizer = AutoTokenizer.from_pretrained(work / "tokenizer")

    def tokenize(rows: dict) -> dict:
        return tokenizer(rows["text"], return_special_tokens_mask=True)

    def group(rows: dict) -> dict:
        columns = {name: list(chain.from_iterable(values)) for name, values in rows.items()}
        end = len(columns["input_ids"]) // LENGTH * LENGTH
        return {name: [values[start : start + LENGTH] for start in range(0, end, LENGTH)]
                for name, values in columns.items()}

    start = time.perf_counter()
    text = datasets.load_dataset("text", data_files=str(work / "text.txt"), split="train")
    tokens = text.map(tokenize, batched=True, num_proc=WORKERS, remove_columns=["text"])
    blocks = tokens.map(group, batched=True, num_proc=WORKERS)
    return {"seconds": time.perf_counter() - start, "ids": len(blocks) * LENGTH}


SIDES = {"stemma": stemma_side, "datasets": datasets_side}

if __name__ == "__main__":
    main()
