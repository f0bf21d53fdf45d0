"""Text to corpus, once, on every core: the parent reads and writes in order, the workers tokenise.

What is under way at any moment is a few batches of text, so memory does not grow with the corpus; and since batches are
cut by the parent and written in the order they were read, the files are the same for any number of workers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Backend

from stemma.corpus.encode import Encoded, Encoder
from stemma.corpus.shards import FORMAT, MANIFEST, VERSION
from stemma.corpus.workers import WorkerDiedError, ordered_map
from stemma.corpus.writer import Block, ShardWriter
from stemma.errors import UserError, did_you_mean
from stemma.files import folder_atomically, refuse_non_empty, sha256
from stemma.text.parallel import Pair, PairSource, read_pairs
from stemma.text.readers import Passage, read_passages
from stemma.text.sentences import sentence_starts
from stemma.text.tokenizer import Tokenizer
from stemma.text.words import CJK_RUN, cjk_word_starts, load_user_dictionary, segmenter_name

BATCH_CHARACTERS = 1_000_000  # what a worker is handed at a time
SHARD_TOKENS = 1 << 26
SENTENCES = ("auto", "line", "split")
LONGEST_DOCUMENT = (1 << 32) - 1  # characters that `starts` can count


@dataclass(frozen=True, slots=True)
class Batch:
    """What a worker is handed: text, whether it begins a document, how many characters of the document came before."""

    passages: list[tuple[str, bool, int]]
    group: tuple[str, str] | None = None  # of pairs: source and target take turns, all from one group


def build_corpus(
    paths: Sequence[str | Path], tokenizer: Tokenizer | str | Path, out: str | Path, *, workers: int | None = None,
    documents: str = "blank", field: str = "text", encoding: str = "utf-8", errors: str = "strict",
    sentences: str = "auto", user_dictionary: str | Path | None = None, overwrite: bool = False,
    notice: Callable[[str], None] | None = None, progress: Callable[[int], None] | None = None,
    shard_tokens: int = SHARD_TOKENS, pairs: Sequence[PairSource] = (), empty: str = "refuse",
    held_out: Collection[str] = (),
) -> dict[str, Any]:
    """Tokenise text into a corpus folder; `progress` hears how many bytes of text are done. Returns the counts.

    With `pairs` (and no paths) the text is parallel: every pair is a document of two sentences, source and target,
    which are never split further; `documents`, `sentences` and `field` are for running text. Groups of pairs with a
    name in `held_out` are what every run on this corpus validates on."""
    out = Path(out)
    refuse_non_empty(out, overwrite)
    if sentences not in SENTENCES:
        hint = did_you_mean(sentences, SENTENCES)
        raise UserError(f'--sentences is "{sentences}"; choose {", ".join(SENTENCES)}.{hint}')
    if workers is not None and workers < 1:
        raise UserError(f"--workers is {workers}; it must be at least 1.")
    tokenizer = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer.load(tokenizer)
    assert not (pairs and paths), "a corpus is of pairs or of running text"
    notice = notice or (lambda text: None)
    if pairs:
        batches = _pair_batches(read_pairs(pairs, encoding=encoding, errors=errors, empty=empty, notice=notice))
    else:
        batches = _batches(read_passages(paths, documents=documents, field=field, encoding=encoding, errors=errors,
                                         notice=notice))
    if user_dictionary:
        load_user_dictionary(user_dictionary)  # a bad one shall fail here, not in a worker
    work = Work(tokenizer.backend.to_str(), sentences, str(user_dictionary) if user_dictionary else None)
    groups: list[dict[str, Any]] = []
    left_out = 0
    with folder_atomically(out, overwrite) as folder:
        with ShardWriter(folder, tokenizer.vocab_size, shard_tokens) as writer:
            with closing(_blocks(batches, work, workers or _cores())) as blocks:
                for block in blocks:
                    writer.append(block)
                    left_out += block.left_out
                    _count_group(groups, block)
                    if progress:
                        progress(writer.text_bytes)
            if not writer.tokens:
                raise UserError("the text has no token that this tokenizer knows how to make; is it white space?")
            counted = writer.finish()
        if left_out:
            notice(f"{left_out:,} pairs are left out: one of their sides has no token that this tokenizer can make.")
        tokenizer.save(folder / "tokenizer")
        unknown = tokenizer.roles.get("unknown")
        unknown_count = int(writer.counts[unknown]) if unknown is not None else 0
        manifest = {
            "format": FORMAT, "version": VERSION,
            "tokenizer": {"kind": tokenizer.kind, "vocab_size": tokenizer.vocab_size,
                          "fingerprint": tokenizer.fingerprint},
            "segmenter": segmenter_name(),
            "options": {"documents": documents, "field": field, "encoding": encoding, "errors": errors,
                        "sentences": sentences, "empty": empty,
                        "user_dictionary": sha256(Path(user_dictionary)) if user_dictionary else None},
            "sources": [str(path) for path in (*paths, *chain.from_iterable((p.path, p.target) for p in pairs))
                        if path is not None],
            "pairs": bool(pairs),
            "groups": [{**group, "held_out": True} if group["name"] in held_out else group for group in groups],
            "unknown": unknown_count, "text_bytes": writer.text_bytes, **counted,
        }
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
    return {"corpus": str(out), "documents": writer.documents, "sentences": writer.sentences, "tokens": writer.tokens,
            "tokenizer": manifest["tokenizer"], "unknown_rate": unknown_count / writer.tokens,
            "text_bytes": writer.text_bytes, "shards": len(writer.shards), "segmenter": manifest["segmenter"],
            "pairs": bool(pairs)}


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _batches(passages: Iterable[Passage]) -> Iterator[Batch]:
    batch: list[tuple[str, bool, int]] = []
    size = before = 0
    for passage in passages:
        before = 0 if passage.begins else before
        batch.append((passage.text, passage.begins, before))
        before += len(passage.text)
        size += len(passage.text)
        if before > LONGEST_DOCUMENT:
            raise UserError(f"a document of {passage.source} has more than {LONGEST_DOCUMENT:,} characters; "
                            "cut it with --documents blank or line.")
        if size >= BATCH_CHARACTERS:
            yield Batch(batch)
            batch, size = [], 0
    if batch:
        yield Batch(batch)


def _pair_batches(pairs: Iterable[Pair]) -> Iterator[Batch]:
    """Source and target are passages of one document; a line end, which is not tokenised, stands between them."""
    for group, of_group in groupby(pairs, key=lambda pair: pair.group):
        batch: list[tuple[str, bool, int]] = []
        size = 0
        for pair in of_group:
            batch += [(pair.source, True, 0), (pair.target, False, len(pair.source) + 1)]
            size += len(pair.source) + len(pair.target)
            if size >= BATCH_CHARACTERS:
                yield Batch(batch, group)
                batch, size = [], 0
        if batch:
            yield Batch(batch, group)


def _count_group(groups: list[dict[str, Any]], block: Block) -> None:
    """Which documents are from where: blocks of one group follow each other."""
    if block.group is None:
        return
    name, prefix = block.group
    if not groups or (groups[-1]["name"], groups[-1]["prefix"]) != block.group:
        first = groups[-1]["first"] + groups[-1]["documents"] if groups else 0
        groups.append({"name": name, "prefix": prefix, "first": first, "documents": 0})
    groups[-1]["documents"] += int(block.begins.sum())


def _blocks(batches: Iterator[Batch], work: Work, workers: int) -> Generator[Block]:
    """The batches tokenised, in order."""
    first = list(islice(batches, 2))
    batches = chain(first, batches)
    if workers == 1 or len(first) < 2:  # starting a process takes longer than a single batch
        worker = Worker(work)
        for batch in batches:
            yield worker(batch)
        return
    try:
        yield from ordered_map(Worker, work, batches, workers)
    except WorkerDiedError as error:
        raise UserError("a worker process died while tokenising, probably for want of memory; run the same command "
                        "again with fewer --workers.") from error


@dataclass(frozen=True, slots=True)
class Work:
    """What a worker must know; small and picklable."""

    tokenizer: str  # as JSON
    sentences: str
    user_dictionary: str | None


class Worker:
    def __init__(self, work: Work):
        self.encoder = Encoder(Backend.from_str(work.tokenizer))
        self.lines = work.sentences
        if work.user_dictionary:
            load_user_dictionary(work.user_dictionary)

    def __call__(self, batch: Batch) -> Block:
        passages, paired = batch.passages, batch.group is not None
        texts = [text for text, _, _ in passages]
        encoded = self.encoder.encode(texts)
        if paired and not np.diff(encoded.bounds).all():
            return self._without_halves(batch, np.diff(encoded.bounds))
        raw = [text.encode() + (b"\n" if paired and begins else b"") for text, begins, _ in passages]
        characters = _bounds(texts)
        before = np.array([before for _, _, before in passages], np.int64)
        in_document = np.repeat(before - characters[:-1], np.diff(encoded.bounds))
        lengths = np.minimum(encoded.ends - encoded.starts, np.iinfo(np.uint16).max)  # one [UNK] can be a whole line
        arrays = {"tokens": encoded.ids, "word_starts": _word_starts(texts, characters, encoded).astype(np.uint8),
                  "starts": (encoded.starts + in_document).astype(np.uint32), "lengths": lengths.astype(np.uint16)}
        sentences = encoded.bounds[:-1] if paired else self._sentences(texts, characters, encoded)
        return Block(arrays=arrays, sentences=sentences, bounds=encoded.bounds,
                     begins=np.array([begins for _, begins, _ in passages], bool),
                     text=b"".join(raw), text_bounds=_bounds(raw), group=batch.group)

    def _without_halves(self, batch: Batch, tokens: np.ndarray) -> Block:
        """The pairs of which both sides have tokens: the others would no longer be two sentences."""
        whole = np.repeat(tokens.reshape(-1, 2).all(axis=1), 2)
        kept = [passage for passage, keep in zip(batch.passages, whole, strict=True) if keep]
        return replace(self(Batch(kept, batch.group)), left_out=int((~whole).sum()) // 2)

    def _sentences(self, texts: list[str], characters: np.ndarray, encoded: Encoded) -> np.ndarray:
        """First token of each sentence; passages begin sentences too."""
        starts = np.concatenate([sentence_starts(text, self.lines) + offset
                                 for text, offset in zip(texts, characters[:-1], strict=True)])
        # The first token that reaches beyond the place: it may begin with the space before the sentence.
        tokens = np.searchsorted(encoded.ends, starts, side="right")
        tokens = np.unique(np.concatenate([tokens, encoded.bounds[:-1]]))
        return tokens[tokens < len(encoded.ids)]


def _word_starts(texts: list[str], characters: np.ndarray, encoded: Encoded) -> np.ndarray:
    """Where words start: as the tokenizer splits them, except that in a Chinese run the segmenter decides."""
    cjk = np.zeros(characters[-1], bool)
    segmented = np.zeros(characters[-1], bool)
    for text, offset in zip(texts, characters[:-1], strict=True):
        starts = cjk_word_starts(text)
        if starts is not None:
            segmented[offset : offset + len(text)] = starts
            for run in CJK_RUN.finditer(text):
                cjk[offset + run.start() : offset + run.end()] = True
    if not cjk.any():
        return encoded.word_starts
    first = np.minimum(encoded.starts, len(cjk) - 1)  # a token of no width may stand behind the last character
    new_character = np.diff(first, prepend=-1) > 0  # of several tokens that share a character, the first
    after_run = new_character & ~cjk[first] & cjk[first - 1]
    return np.where(cjk[first], segmented[first] & new_character, encoded.word_starts | after_run)


def _bounds(parts: Sequence[str | bytes]) -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)))])
