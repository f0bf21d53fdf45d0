"""Statistics of a corpus: counts, length histograms, vocabulary coverage and the unigram baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from stemma.corpus.corpus import Corpus
from stemma.errors import pluralize

BAR_WIDTH = 30
CHUNK_BOUNDARIES = 1 << 20  # boundaries read at a time, so that memory stays bounded


def corpus_info(path: str | Path) -> dict[str, Any]:
    """Counts, vocabulary coverage and length histograms of a corpus. Verifies its checksums."""
    corpus = Corpus.open(path)
    manifest = corpus.manifest
    counts = np.sort(np.asarray(corpus.token_counts))[::-1]
    frequency = counts[counts > 0] / corpus.num_tokens
    return {
        "corpus": str(path), "fingerprint": corpus.fingerprint,
        "documents": manifest["documents"], "sentences": manifest["sentences"], "tokens": corpus.num_tokens,
        "pairs": manifest.get("pairs", False), "groups": manifest.get("groups", []),
        "dialogues": manifest.get("dialogues", 0), "judged": manifest.get("judged", 0),
        "labels": manifest.get("labels", []),
        "text_bytes": manifest["text_bytes"], "shards": len(manifest["shards"]),
        "tokenizer": manifest["tokenizer"], "segmenter": manifest["segmenter"], "options": manifest["options"],
        "sides": corpus.annotations(), "annotations": manifest.get("annotations", {}),
        "fields": manifest.get("fields", {}),
        "unknown_rate": manifest["unknown"] / corpus.num_tokens,
        "unigram_loss": float(-(frequency * np.log(frequency)).sum()),
        "coverage": {"vocabulary_seen": len(frequency) / len(counts), "top_1000": float(frequency[:1000].sum()),
                     "top_10000": float(frequency[:10_000].sum())},
        "document_lengths": length_histogram(corpus.document_starts),
        "sentence_lengths": length_histogram(corpus.sentence_starts),
    }


def length_histogram(bounds: np.ndarray) -> list[dict[str, int]]:
    """Counts of the lengths 1, 2-3, 4-7, ... in tokens: the range is too wide for bins of equal width."""
    bins = np.zeros(64, np.int64)
    for first in range(0, len(bounds) - 1, CHUNK_BOUNDARIES):
        lengths = np.diff(bounds[first : first + CHUNK_BOUNDARIES + 1])
        bins += np.bincount(np.frexp(lengths)[1] - 1, minlength=64)  # the exponent counts the bits of a length
    used = np.flatnonzero(bins)
    return [{"from": 1 << b, "to": (2 << b) - 1, "count": int(bins[b])} for b in range(used[0], used[-1] + 1)]


def describe_corpus(info: dict[str, Any]) -> str:
    """`corpus_info` as text."""
    tokenizer, coverage = info["tokenizer"], info["coverage"]
    rows = {
        "documents": f"{info['documents']:,}",
        "sentences": f"{info['sentences']:,}",
        "tokens": f"{info['tokens']:,} in {info['shards']:,} shard{'s' if info['shards'] > 1 else ''}"
                  f" ({info['text_bytes'] / info['tokens']:.2f} bytes of text each)",
        "tokenizer": f"{tokenizer['kind']}, {tokenizer['vocab_size']:,} pieces, {tokenizer['fingerprint'][:12]}",
        "words by": f"the tokenizer; Chinese by {info['segmenter'].replace('none', 'character')}",
        "unknown": f"{info['unknown_rate']:.3%} of the tokens",
        "vocabulary seen": f"{coverage['vocabulary_seen']:.1%} of the pieces",
        "covered": f"{coverage['top_1000']:.1%} of the tokens by the 1,000 most frequent pieces, "
                   f"{coverage['top_10000']:.1%} by 10,000",
        "unigram loss": f"{info['unigram_loss']:.2f} nats, what a model must beat",
    }
    if info["sides"]:
        rows["added"] = ", ".join(info["sides"])
    for name, side in info["annotations"].items():
        rows[name] = (f"{pluralize(side['units'], 'unit')}, {pluralize(side['tokens'], 'token')} "
                      f"({side['share']:.2%} of all), {_annotation_source(side)}")
    if info["fields"]:
        rows["fields"] = ", ".join(f"{name} ({pluralize(field['size'], 'number')} a {field['per']})"
                                   for name, field in info["fields"].items())
    if info["pairs"]:
        rows["pairs"] = "every document is a source and its target, a sentence each"
    if info["dialogues"]:
        rows["dialogues"] = f"{info['dialogues']:,} of the documents, a turn a sentence"
    if info["judged"]:
        rows["relevance"] = f"{info['judged']:,} of the documents are a query and a title: {', '.join(info['labels'])}"
    if len(info["groups"]) > 1:
        rows["groups"] = ", ".join(f"{group['name']} {group['documents']:,}" for group in info["groups"])
    lines = [info["corpus"], *(f"  {name:<16} {value}" for name, value in rows.items())]
    for name in ("document_lengths", "sentence_lengths"):
        lines += ["", f"  {name.replace('_', ' ')} in tokens", *_bars(info[name])]
    return "\n".join(lines)


def _annotation_source(annotation: dict[str, object]) -> str:
    if annotation["source"] == "mined":
        return (f"mined: {annotation['score']} of at least {annotation['threshold']:g}, "
                f"{annotation['min_count']:,} times or more")
    return f"by the {annotation['source']} in {annotation['file']}"


def _bars(bins: list[dict[str, int]]) -> list[str]:
    highest = max(b["count"] for b in bins)
    labels = [f"{b['from']:,}" if b["from"] == b["to"] else f"{b['from']:,}-{b['to']:,}" for b in bins]
    width = max(map(len, labels))
    bars = ["█" * round(BAR_WIDTH * b["count"] / highest) or "▏" * (b["count"] > 0) for b in bins]
    rows = zip(labels, bars, bins, strict=True)
    return [f"  {label:>{width}}  {bar:<{BAR_WIDTH}} {b['count']:,}" for label, bar, b in rows]
