"""Train-test overlap: the fraction of an evaluation file's 8-grams that also occur in the training corpus.

Method of GPT-2 (Radford et al. 2019, section 4): a Bloom filter of the training text's 8-grams, lower-case alphanumeric
words with a single space, sized for one false positive in 10^8. The false-positive rate is also measured, with n-grams
of random words that no text contains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stemma.atomic_files import atomic_file, make_folder
from stemma.corpus.corpus import MANIFEST, Corpus
from stemma.errors import UserError
from stemma.notes import quietly
from stemma.text.bloom_filter import BloomFilter
from stemma.text.cleaning.documents import DocumentWriter, check_output, whole_documents
from stemma.text.ngrams import ngram_batches, ngram_hashes
from stemma.text.readers import Passage, list_files, read_passages

LOOKUPS = 10_000_000
EXCERPT_CHARACTERS = 100  # length of the excerpt shown of a document
NumberedDocuments = Iterator[tuple[int, str]]


def overlap(
    corpus: Sequence[str | Path], file: str | Path, *, n: int = 8, false_positives: float = 1e-8,
    documents: str = "blank", field: str = "text", encoding: str = "utf-8", errors: str = "strict",
    threshold: float = 0.5, show: int = 10, exclude: str | Path | None = None, overwrite: bool = False,
    lookups: int = LOOKUPS, progress: Callable[[int], None] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Look up every n-gram of `file` in the corpus (a corpus folder, or raw text)."""
    if n < 1:
        raise UserError(f"--n is {n}; an n-gram has at least 1 word.")
    if not 0 < threshold <= 1:
        raise UserError(f"--limit is {threshold:g}; it is a fraction, more than 0 and at most 1.")
    if exclude is not None:
        check_output(Path(exclude), overwrite)
        if not Path(file).is_file():
            raise UserError(f"--exclude reads {file} twice, so it must be a file, not a stream or a folder.")
    settings: dict[str, Any] = {"field": field, "encoding": encoding, "errors": errors}
    evaluation = read_passages([file], documents=documents, **settings)  # a misspelt name fails before the long work
    bloom, num_inserted = _build_filter(_training_text(corpus, settings, progress), n, false_positives, corpus)
    excerpts: list[str] = []
    counts = _look_up(_numbered(evaluation, excerpts), n, bloom, excerpts, file)
    over = np.flatnonzero(counts["share"] >= threshold)
    order = np.lexsort((-counts["hits"], -counts["share"]))[:show]
    worst = [{"document": int(index) + 1, "share": float(counts["share"][index]),
              "n_grams": int(counts["grams"][index]),
              "text": excerpts[index]} for index in order if counts["hits"][index]]
    if exclude is not None:
        passages = quietly(read_passages([file], documents=documents, **settings))
        _write_without_documents(passages, set((over + 1).tolist()), Path(exclude), documents)
    total, hits = int(counts["grams"].sum()), int(counts["hits"].sum())
    return {
        "corpus": [str(path) for path in corpus], "file": str(file), "n": n, "share": hits / total, "n_grams": total,
        "overlapping_n_grams": hits, "documents": len(excerpts), "too_short": int((counts["grams"] == 0).sum()),
        "limit": threshold, "overlapping_documents": (over + 1).tolist(), "worst": worst,
        "filter": {"n_grams": num_inserted, "bytes": len(bloom.bits), "probes": bloom.probes,
                   "fill": bloom.fill_ratio},
        "false_positives": {"wanted": false_positives, "implied": bloom.implied_rate,
                            **measure_false_positives(bloom, n, lookups)},
        "exclude": str(exclude) if exclude is not None else None,
    }


def measure_false_positives(bloom: BloomFilter, n: int, lookups: int, seed: int = 0) -> dict[str, Any]:
    """Measure the false-positive rate with n-grams of random words that are not in the filter. `at_most` is the upper
    95% confidence limit (3 / lookups if there is no hit: the rule of three)."""
    rng = np.random.default_rng(seed)
    hits = 0
    for first in range(0, lookups, 1 << 18):
        count = min(1 << 18, lookups - first)
        hits += int(bloom.contains(ngram_hashes(rng.integers(0, 2**64, count + n - 1, dtype=np.uint64), n)).sum())
    more = hits + 1  # Byar's approximation of the Poisson distribution's upper confidence limit
    upper = more * (1 - 1 / (9 * more) + 1.645 / (3 * math.sqrt(more))) ** 3
    return {"lookups": lookups, "hits": hits, "measured": hits / lookups, "at_most": upper / lookups}


def _training_text(corpus: Sequence[str | Path], settings: dict[str, Any],
                   progress: Callable[[int], None] | None) -> Callable[[], NumberedDocuments]:
    """A function that iterates over the corpus's documents; it can be called several times."""
    def with_progress(texts: NumberedDocuments, num_done: list[int]) -> NumberedDocuments:
        for index, text in texts:
            yield index, text
            if progress:
                num_done[0] += len(text)
                progress(num_done[0])

    num_done = [0]
    if len(corpus) == 1 and (Path(corpus[0]) / MANIFEST).is_file():
        built = Corpus.open(corpus[0])
        count = len(built.document_starts) - 1
        return lambda: with_progress(((index, built.document_text(index)) for index in range(count)), num_done)
    streams = [path for path in list_files(corpus) if not path.is_file()]
    if streams:
        raise UserError(f"the corpus is read twice (to size the filter and to fill it), and {streams[0]} can be read "
                        "only once; put it in a file first.")
    return lambda: with_progress(_numbered(read_passages(corpus, **settings)), num_done)


def _numbered(passages: Iterable[Passage], excerpts: list[str] | None = None) -> NumberedDocuments:
    """(document index, text) of each passage; appends the beginning of each document to `excerpts`."""
    document = -1
    for passage in passages:
        document += passage.starts_document
        if excerpts is not None and passage.starts_document:
            excerpts.append(" ".join(passage.text[: 2 * EXCERPT_CHARACTERS].split())[:EXCERPT_CHARACTERS])
        yield document, passage.text


def _build_filter(texts: Callable[[], NumberedDocuments], n: int, false_positive_rate: float,
                  corpus: Sequence[str | Path]) -> tuple[BloomFilter, int]:
    BloomFilter(1, false_positive_rate)  # an impossible rate fails before the corpus is read
    count = sum(len(hashes) for hashes, _ in ngram_batches(texts(), n))
    if not count:
        raise UserError(f"no document of {', '.join(map(str, corpus))} has {n} words in a row; choose a smaller --n.")
    bloom = BloomFilter(count, false_positive_rate)
    for hashes, _ in ngram_batches(texts(), n):
        bloom.add(hashes)
    return bloom, count


def _look_up(texts: NumberedDocuments, n: int, bloom: BloomFilter, excerpts: list[str],
             file: str | Path) -> dict[str, np.ndarray]:
    """For each document the number of n-grams, of hits in the filter, and the fraction of hits."""
    parts = [(np.zeros(0, np.int64),) * 3]
    for hashes, document_indices in ngram_batches(texts, n):
        documents, inverse = np.unique(document_indices, return_inverse=True)
        matches = np.bincount(inverse, weights=bloom.contains(hashes), minlength=len(documents))
        parts.append((documents, np.bincount(inverse, minlength=len(documents)), matches.astype(np.int64)))
    documents, counts, matches = (np.concatenate(column) for column in zip(*parts, strict=True))
    grams = np.bincount(documents, weights=counts, minlength=len(excerpts)).astype(np.int64)
    hits = np.bincount(documents, weights=matches, minlength=len(excerpts)).astype(np.int64)
    if not grams.any():
        raise UserError(f"{file} has no {n} words in a row in any of its {len(excerpts):,} documents, so there is "
                        "nothing to look up; choose a smaller --n, or say with --documents what a document is.")
    return {"grams": grams, "hits": hits, "share": hits / np.maximum(1, grams)}


def _write_without_documents(passages: Iterable[Passage], dropped: set[int], out: Path, documents: str) -> None:
    make_folder(out.parent)
    with atomic_file(out) as file:
        writer = DocumentWriter(file, out.suffix.lower(), documents)
        for index, text in enumerate(whole_documents(passages, limit=math.inf), start=1):
            if index not in dropped:
                writer.write(text)
