"""The corpus of a run: an existing one as it is, or raw text turned into one by the recipe's own tokenizer.

A corpus made from raw text is kept in a cache, by the content of the text and the tokenizer's settings, so that the
next run on the same text starts at once. STEMMA_CACHE says where.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from stemma.corpus.build import build_corpus
from stemma.corpus.shards import Corpus
from stemma.errors import UserError
from stemma.files import folder_atomically, make_folder, only_here, remove_leftovers, sha256
from stemma.lineage import Recipe, roles_needed
from stemma.schema.tokenizer import TokenizerSettings
from stemma.text.readers import list_files, read_passages
from stemma.text.tokenizer import Tokenizer
from stemma.text.train import train_tokenizer
from stemma.training.run import Reading, is_stream, keep_streams

FORMAT = 1  # a new number leaves old cache entries aside
Notice = Callable[[str], None]
Found = TypeVar("Found", Corpus, Tokenizer)


def cache_folder() -> Path:
    stated = os.environ.get("STEMMA_CACHE")
    return Path(stated) if stated else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "stemma"


def corpus_from_text(paths: list[str], chosen: Recipe, reading: Reading, notice: Notice,
                     tokenizer: Tokenizer | None = None) -> Corpus:
    """The corpus of this text: from the cache, or made with the given tokenizer or one trained as the recipe says."""
    if any(map(is_stream, paths)):
        with tempfile.TemporaryDirectory() as folder:
            return corpus_from_text(keep_streams(paths, Path(folder)), chosen, reading, notice, tokenizer)
    roles = roles_needed(chosen) | {"padding", "unknown"}
    settings = chosen.settings.tokenizer
    vocabulary = [settings.model_dump(), sorted(roles)] if tokenizer is None else tokenizer.backend.to_str()
    content = [sha256(file) for file in list_files(paths)]
    key = json.dumps([FORMAT, content, asdict(reading), vocabulary])
    place = cache_folder() / hashlib.sha256(key.encode()).hexdigest()[:24]
    make_folder(place)
    try:
        with only_here(place):  # a second run on the same text waits for the first, and has nothing left to do
            remove_leftovers(place)
            found = _sound(place / "corpus", Corpus.open, notice)
            if found is not None:
                return found
            if tokenizer is None:
                tokenizer = _sound(place / "tokenizer", Tokenizer.load, notice)
            if tokenizer is None:
                tokenizer = _train(paths, settings, roles, reading, notice)
                with folder_atomically(place / "tokenizer") as temporary:
                    tokenizer.save(temporary)
            notice(f"building the corpus (kept in {place} for the next run)")
            build_corpus(paths, tokenizer, place / "corpus", **asdict(reading), notice=notice)
            return Corpus.open(place / "corpus")
    finally:
        with suppress(OSError):
            place.rmdir()  # only if nothing came of it


def _sound(folder: Path, read: Callable[[Path], Found], notice: Notice) -> Found | None:
    """What the cache holds; nothing if it is not there, or damaged: then it is made again."""
    if not folder.is_dir():
        return None
    try:
        return read(folder)
    except UserError as error:
        notice(f"{error.message.partition(';')[0]}; it is made again.")
        shutil.rmtree(folder)
        return None


def _train(paths: list[str], settings: TokenizerSettings, roles: set[str], reading: Reading,
           notice: Notice) -> Tokenizer:
    notice(f"training a {settings.kind} vocabulary of {settings.vocab_size:,} on the text")
    texts = (passage.text for passage in read_passages(paths, **asdict(reading), notice=notice))
    return train_tokenizer(texts, settings.kind, settings.vocab_size, lowercase=settings.lowercase, roles=roles,
                           cjk_spacing=settings.cjk_spacing, notice=notice)


def adopt_tokenizer(chosen: Recipe, corpus: Corpus) -> Recipe:
    """The corpus brings its tokenizer: it replaces the recipe's section, and the recipe says so."""
    tokenizer = corpus.tokenizer
    stated = chosen.settings.tokenizer
    found = {"kind": tokenizer.kind, "vocab_size": tokenizer.vocab_size, "lowercase": tokenizer.lowercase}
    anew = stated.kind != tokenizer.kind  # another kind drops what was said for the old one
    changes = {f"tokenizer.{key}": value for key, value in found.items() if anew or getattr(stated, key) != value}
    return chosen.with_changes(changes, origin="corpus") if changes else chosen
