"""Build a corpus from text on all cores: the parent reads and writes in order, worker processes tokenise.

At most two batches of text per worker are in memory. The parent cuts the batches and writes them in reading order, so
the files are identical for any number of workers.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from stemma import registry
from stemma.atomic_files import atomic_folder, check_output_path, sha256
from stemma.corpus import text_batches
from stemma.corpus.corpus import FORMAT, MANIFEST, VERSION
from stemma.corpus.process_pool import WorkerDiedError, parallel_map
from stemma.corpus.shard_writer import ShardWriter, TokenizedBlock
from stemma.corpus.text_batches import (
    RELEVANCE,
    ROLES,
    MultiPartDocument,
    TextBatch,
    multipart_batches,
    plain_text_batches,
)
from stemma.corpus.tokenize_worker import TokenizeOptions, TokenizeWorker
from stemma.errors import UserError, did_you_mean
from stemma.notes import quietly
from stemma.progress import progress_stage
from stemma.text.chinese_words import (
    MIN_CHINESE_FRACTION,
    load_user_dictionary,
    missing_segmenter_notice,
    segmenter_name,
)
from stemma.text.dialogue import read_dialogues
from stemma.text.holdout import HeldOutSplit
from stemma.text.parallel import PairSource, read_pairs
from stemma.text.readers import PLAIN, Passage, list_files, read_passages
from stemma.text.relevance import open_relevance
from stemma.text.text_io import COMPRESSED
from stemma.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

SHARD_TOKENS = 1 << 26
SENTENCES = ("auto", "line", "split")


def build_corpus(
    paths: Sequence[str | Path], tokenizer: Tokenizer | str | Path, out: str | Path, *, workers: int | None = None,
    documents: str = "blank", field: str = "text", encoding: str = "utf-8", errors: str = "strict",
    sentences: str = "auto", user_dictionary: str | Path | None = None, overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
    shard_tokens: int = SHARD_TOKENS, pairs: Sequence[PairSource] = (), empty: str = "refuse",
    held_out: Collection[str] = (), dialogue: Sequence[str | Path] = (), relevance: Sequence[str | Path] = (),
    split: HeldOutSplit | None = None,
) -> dict[str, Any]:
    """Tokenise text into a corpus folder and return its counts; calls `progress` with the bytes of text done so far.

    With `pairs` (and no paths) the text is parallel: each pair is a document of two sentences, source and target, which
    are never split further; `documents`, `sentences` and `field` apply to plain text. Pair sets named in `held_out` are
    the validation set of every run on this corpus.

    With or without plain text, a corpus may contain `dialogue` files (a document is a dialogue, a sentence is a turn,
    speakers are in the annotation `roles`) and `relevance` files (query and title, labels in the annotation
    `relevance`).

    With `split`, the held-out documents come last and are the validation set of every run on this corpus."""
    out = Path(out)
    check_output_path(out, overwrite)
    if sentences not in SENTENCES:
        hint = did_you_mean(sentences, SENTENCES)
        raise UserError(f'--sentences is "{sentences}"; choose {", ".join(SENTENCES)}.{hint}')
    if workers is not None and workers < 1:
        raise UserError(f"--workers is {workers}; it must be at least 1.")
    tokenizer = tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer.load(tokenizer)
    assert not pairs or not (paths or dialogue or relevance), "a corpus has either pairs, or other kinds of text"
    read_options: dict[str, Any] = {"encoding": encoding, "errors": errors}
    passages: Iterator[Passage] = iter(())
    multipart: list[Iterator[MultiPartDocument]] = []
    if pairs:
        multipart.append(map(MultiPartDocument.from_pair, read_pairs(pairs, **read_options, empty=empty)))
    elif paths or not (dialogue or relevance):
        passages = read_passages(paths, **read_options, documents=documents, field=field)
    relevance_data = open_relevance(relevance, **read_options) if relevance else None
    if dialogue:
        multipart.append(map(MultiPartDocument.from_dialogue, read_dialogues(dialogue, **read_options)))
    if relevance_data:
        multipart.append(map(MultiPartDocument.from_relevance, relevance_data.rows()))
    if split is None:
        batches = _batches(passages, chain.from_iterable(multipart), tokenizer)
    else:
        assert not dialogue and not relevance, "only pairs or plain text can be split before tokenising"
        batches = _split_batches(paths, pairs, split, tokenizer,
                                 {**read_options, "documents": documents, "field": field},
                                 {**read_options, "empty": empty})
    annotations = [name for name, files in ((ROLES, dialogue), (RELEVANCE, relevance)) if files]
    if user_dictionary:
        load_user_dictionary(user_dictionary)  # a bad dictionary fails here, not in a worker
    options = TokenizeOptions(tokenizer.backend.to_str(), sentences, str(user_dictionary) if user_dictionary else None,
                              tuple(annotations))
    groups: list[dict[str, Any]] = []
    num_dropped = chinese = 0
    held_out_from: int | None = None
    kinds: Counter[str | None] = Counter()
    with atomic_folder(out, overwrite) as folder:
        with ShardWriter(folder, tokenizer.vocab_size, shard_tokens, annotations) as writer:
            size = None if dialogue or relevance else text_size([*paths, *_files(pairs)])
            with closing(_tokenized_blocks(batches, options, workers or _num_cores())) as blocks, \
                    progress_stage("tokenising", size, "bytes") as stage:
                for block in blocks:
                    if block.held_out and held_out_from is None:
                        held_out_from = writer.tokens
                    writer.append(block)
                    num_dropped += block.num_dropped
                    chinese += block.num_chinese_tokens
                    kinds[block.annotation] += block.num_documents if block.annotation else 0
                    _count_pair_set(groups, block)
                    stage.set_count(writer.text_bytes)
                    if progress:
                        progress(writer.text_bytes)
            if not writer.tokens:
                raise UserError("the text has no token that this tokenizer knows how to make; is it white space?")
            array_info = writer.finish()
        if num_dropped:
            logger.warning(
                f"{num_dropped:,} pairs are left out: one of their sides has no token that this tokenizer can make.")
        if segmenter_name() == "none" and chinese > MIN_CHINESE_FRACTION * writer.tokens:
            logger.warning(missing_segmenter_notice())
        tokenizer.save(folder / "tokenizer")
        unknown = tokenizer.special_token_ids.get("unknown")
        unknown_count = int(writer.counts[unknown]) if unknown is not None else 0
        manifest = {
            "format": FORMAT, "version": VERSION,
            "tokenizer": {"kind": tokenizer.kind, "vocab_size": tokenizer.vocab_size,
                          "fingerprint": tokenizer.fingerprint},
            "segmenter": segmenter_name(),
            "options": {"documents": documents, "field": field, "encoding": encoding, "errors": errors,
                        "sentences": sentences, "empty": empty,
                        "user_dictionary": sha256(Path(user_dictionary)) if user_dictionary else None},
            "sources": [str(path) for path in (*paths, *chain.from_iterable((p.path, p.target) for p in pairs),
                                               *dialogue, *relevance) if path is not None],
            "pairs": bool(pairs), "dialogues": kinds[ROLES], "judged": kinds[RELEVANCE],
            "labels": relevance_data.labels if relevance_data else [], "chinese": chinese / writer.tokens,
            "groups": [{**group, "held_out": True} if group["name"] in held_out else group for group in groups],
            "unknown": unknown_count, "text_bytes": writer.text_bytes, **array_info,
            **({} if held_out_from is None else {"held_out_from": held_out_from}),  # first held-out token
        }
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
    return {"corpus": str(out), "documents": writer.documents, "sentences": writer.sentences, "tokens": writer.tokens,
            "tokenizer": manifest["tokenizer"], "unknown_rate": unknown_count / writer.tokens,
            "text_bytes": writer.text_bytes, "shards": len(writer.shards), "segmenter": manifest["segmenter"],
            "pairs": bool(pairs), "dialogues": kinds[ROLES], "judged": kinds[RELEVANCE]}


def _files(pairs: Sequence[PairSource]) -> list[str | Path]:
    return [path for pair in pairs for path in (pair.path, pair.target) if path is not None]


def text_size(paths: Sequence[str | Path]) -> int | None:
    """Total bytes of text, or None if file sizes do not give it: compressed files, and JSON, Parquet and the like."""
    files = list_files(paths) if paths else []
    suffixes = {file.suffix.lower() for file in files} - set(PLAIN)
    if not all(map(Path.is_file, files)) or any(suffix in COMPRESSED or registry.find("reader", suffix)
                                                for suffix in suffixes):
        return None
    return sum(file.stat().st_size for file in files) or None


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _batches(passages: Iterable[Passage], multipart: Iterable[MultiPartDocument],
             tokenizer: Tokenizer) -> Iterator[TextBatch]:
    """Batches of pre-normalized text. The corpus stores this text, since token offsets refer to it."""
    if tokenizer.simplify:
        passages = (replace(passage, text=tokenizer.pre_normalize(passage.text)) for passage in passages)
        multipart = (replace(document, texts=list(map(tokenizer.pre_normalize, document.texts)))
                     for document in multipart)
    return chain(plain_text_batches(passages), multipart_batches(multipart))


def _split_batches(paths: Sequence[str | Path], pairs: Sequence[PairSource], split: HeldOutSplit, tokenizer: Tokenizer,
                   passage_options: dict[str, Any], pair_options: dict[str, Any]) -> Iterator[TextBatch]:
    """Training documents, then held-out documents. The text is read twice; its warnings appear once."""
    for held_out in (False, True):
        iterate: Callable[[Iterator[Any]], Iterator[Any]] = quietly if held_out else iter
        passages: Iterator[Passage] = iter(())
        multipart: Iterator[MultiPartDocument] = iter(())
        if pairs:
            pair_rows = split.pairs(iterate(read_pairs(pairs, **pair_options)), held_out)
            multipart = map(MultiPartDocument.from_pair, pair_rows)
        else:
            passages = split.passages(iterate(read_passages(paths, **passage_options)), held_out)
        yield from (replace(batch, held_out=held_out) for batch in _batches(passages, multipart, tokenizer))


def _count_pair_set(groups: list[dict[str, Any]], block: TokenizedBlock) -> None:
    """Count the documents of each pair set; blocks of one set are consecutive."""
    if block.pair_set is None:
        return
    name, prefix = block.pair_set
    if not groups or (groups[-1]["name"], groups[-1]["prefix"]) != block.pair_set:
        first = groups[-1]["first"] + groups[-1]["documents"] if groups else 0
        groups.append({"name": name, "prefix": prefix, "first": first, "documents": 0})
    groups[-1]["documents"] += int(block.starts_document.sum())


def _tokenized_blocks(batches: Iterator[TextBatch], options: TokenizeOptions,
                      workers: int) -> Generator[TokenizedBlock]:
    """The tokenised batches, in order."""
    first: list[TextBatch] = []  # enough to see whether there is more text than one batch holds
    while (small := len(first) < 2 or sum(batch.characters for batch in first) <= text_batches.BATCH_CHARACTERS) \
            and (batch := next(batches, None)) is not None:
        first.append(batch)
    batches = chain(first, batches)
    if workers == 1 or small:  # starting processes takes longer than tokenising one batch
        worker = TokenizeWorker(options)
        for batch in batches:
            yield worker(batch)
        return
    try:
        yield from parallel_map(TokenizeWorker, options, batches, workers)
    except WorkerDiedError as error:
        raise UserError("a worker process died while tokenising, probably for want of memory; run the same command "
                        "again with fewer --workers.") from error
