"""Speed and memory of counting n-grams and of modified Kneser-Ney smoothing.

    python benchmarks/ngram_counting.py [--megabytes 100] [--order 3] [--memory 256] [--compared-tokens 200000]

First, token ids for as many megabytes of text (4.7 bytes each) are counted on disk within a memory limit, in a process
of its own that reports its peak memory. The ids are Zipfian and independent: they have more different n-grams than
text, so text takes less time and memory. Then both sides count fewer of these ids and score held-out ones (nltk 50,
Stemma 10,000), in alternating rounds: Stemma, and nltk.lm (KneserNeyInterpolated, one fixed discount, in memory).
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

VOCABULARY, END, BYTES_PER_TOKEN, DOCUMENT = 8192, 0, 4.7, 1000
SCORED = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=100, help="size of the text that is counted on disk")
    parser.add_argument("--order", type=int, default=3)
    parser.add_argument("--memory", type=int, default=256, help="megabytes for sorting and merging")
    parser.add_argument("--compared-tokens", type=int, default=200_000, help="tokens of the comparison with nltk")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(count_on_disk(int(options.megabytes * 1e6 / BYTES_PER_TOKEN), options.order, options.memory)))
        return
    command = [sys.executable, __file__, "--child", "--megabytes", str(options.megabytes), "--order",
               str(options.order), "--memory", str(options.memory)]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(f"{options.megabytes:g} MB of text, {result['tokens']:,} tokens, order {options.order}, {options.memory} MB "
          "for sorting")
    print(f"  counting {result['counting']:.0f} s, merging {result['merging']:.0f} s, smoothing "
          f"{result['smoothing']:.0f} s: {result['tokens'] / result['seconds']:,.0f} tokens/s")
    print(f"  peak memory {result['counting_peak']:,.0f} MiB when merged, {result['peak']:,.0f} MiB at the end; "
          f"{result['before']:,.0f} MiB before; {result['ngrams']:,} n-grams take {result['tables']:,.0f} MiB")
    compare(options.compared_tokens, options.order, options.rounds)


def zipfian(tokens: int, seed: int) -> np.ndarray:
    weights = 1 / np.arange(1, VOCABULARY)
    return np.random.default_rng(seed).choice(np.arange(1, VOCABULARY), tokens, p=weights / weights.sum()).astype(
        np.uint16)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def document_stream(ids: np.ndarray):
    from stemma.counts.document_stream import DocumentStream

    bounds = np.append(np.arange(0, len(ids), DOCUMENT), len(ids))
    return DocumentStream(np.column_stack([bounds[:-1], bounds[1:]]), lambda offsets: ids[offsets], END)


def count_on_disk(tokens: int, order: int, memory: int) -> dict[str, float]:
    from stemma.counts.kneser_ney import estimate
    from stemma.counts.packed_ngrams import NgramPacker, sort_and_sum
    from stemma.counts.sorted_runs import MergedNgrams, sorting_bytes, write_run

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "ids.npy"
        np.save(file, np.concatenate([zipfian(min(1_000_000, tokens - start), start)
                                      for start in range(0, tokens, 1_000_000)]))
        stream, packer, limit = document_stream(np.load(file, mmap_mode="r")), NgramPacker(order, VOCABULARY), \
            memory * 2**20
        part = min(1 << 20, limit // (2 * sorting_bytes(packer.num_words)))
        before, start = peak_mib(), time.perf_counter()
        runs = []
        for first in range(0, stream.num_positions, part):
            runs.append(folder / f"run-{first:012d}.npy")
            write_run(runs[-1], *sort_and_sum(stream.ngrams(first, min(first + part, stream.num_positions), packer)[0]))
        counted = time.perf_counter()
        merged = MergedNgrams.merge(runs, folder / "merged.npy", limit)
        merged_at, counting_peak = time.perf_counter(), peak_mib()
        tables, _ = estimate(merged, packer)
        end = time.perf_counter()
    arrays = [*tables.keys, *tables.log_probs, *tables.backoffs]
    return {"tokens": tokens, "counting": counted - start, "merging": merged_at - counted, "smoothing": end - merged_at,
            "seconds": end - start, "before": before, "counting_peak": counting_peak, "peak": peak_mib(),
            "ngrams": sum(tables.num_ngrams()), "tables": sum(array.nbytes for array in arrays) / 2**20}


def compare(tokens: int, order: int, rounds: int) -> None:
    train, held_out = zipfian(tokens, 1), zipfian(SCORED, 2)
    times: dict[str, list[tuple[float, float]]] = {"Stemma": [], "nltk.lm": []}
    for _ in range(rounds):
        times["Stemma"].append(ours(train, held_out, order))
        times["nltk.lm"].append(nltks(train, held_out, order))
    medians = {name: [statistics.median(column) for column in zip(*values, strict=True)]
               for name, values in times.items()}
    print(f"{tokens:,} tokens counted and smoothed, {SCORED:,} tokens scored, medians of {rounds} rounds")
    for name, (counting, scoring) in medians.items():
        print(f"  {name:<8} {tokens / counting:>12,.0f} tokens/s counted   {SCORED / scoring:>12,.0f} tokens/s scored")
    print(f"  speedup  {medians['nltk.lm'][0] / medians['Stemma'][0]:.1f}x counting, "
          f"{medians['nltk.lm'][1] / medians['Stemma'][1]:.0f}x scoring")


def ours(train: np.ndarray, held_out: np.ndarray, order: int) -> tuple[float, float]:
    import torch

    from stemma.counts.kneser_ney import estimate
    from stemma.counts.packed_ngrams import NgramPacker, sort_and_sum
    from stemma.network.ngram_tables import NgramTable

    start = time.perf_counter()
    stream, packer = document_stream(train), NgramPacker(order, VOCABULARY)
    tables, _ = estimate([sort_and_sum(stream.ngrams(0, stream.num_positions, packer)[0])], packer)
    counted = time.perf_counter()
    table = NgramTable(VOCABULARY, order)
    table.assign(tables)
    windows = np.lib.stride_tricks.sliding_window_view(held_out.astype(np.int64), order)[:, ::-1]
    table.score(torch.from_numpy(windows[:, 1:].copy()), torch.from_numpy(windows[:, 0].copy()))
    return counted - start, time.perf_counter() - counted


def nltks(train: np.ndarray, held_out: np.ndarray, order: int) -> tuple[float, float]:
    from nltk.lm import KneserNeyInterpolated
    from nltk.lm.preprocessing import padded_everygram_pipeline

    documents = [[str(token) for token in train[first:first + DOCUMENT].tolist()]
                 for first in range(0, len(train), DOCUMENT)]
    start = time.perf_counter()
    model = KneserNeyInterpolated(order)
    model.fit(*padded_everygram_pipeline(order, documents))
    counted = time.perf_counter()
    words = [str(token) for token in held_out.tolist()]
    scored = 50  # nltk counts continuations anew for each probability
    for index in range(order, order + scored):
        model.score(words[index], words[index - order + 1:index])
    return counted - start, (time.perf_counter() - counted) * SCORED / scored


if __name__ == "__main__":
    main()
