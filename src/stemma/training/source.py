"""The corpus of a run: an existing one as it is, or raw text turned into one by the recipe's own tokenizer.

A corpus made from raw text is kept in a cache, by the content of the text and the tokenizer's settings, so that the next
run on the same text starts at once. STEMMA_CACHE says where.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from stemma.corpus.build import build_corpus
from stemma.corpus.shards import Corpus
from stemma.errors import UserError
from stemma.files import folder_atomically, sha256
from stemma.lineage import Recipe, roles_needed
from stemma.text.readers import list_files, read_passages
from stemma.text.tokenizer import Tokenizer
from stemma.text.train import train_tokenizer
from stemma.training.run import Reading

FORMAT = 1  # a new number leaves old cache entries aside


def cache_folder() -> Path:
    stated = os.environ.get("STEMMA_CACHE")
    return Path(stated) if stated else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "stemma"


def corpus_from_text(paths: list[str], chosen: Recipe, reading: Reading, notice: Callable[[str], None]) -> Corpus:
    """Train the recipe's tokenizer on the text and build the corpus, unless the cache has it."""
    settings = chosen.settings.tokenizer
    roles = roles_needed(chosen) | {"padding", "unknown"}
    content = [sha256(file) for file in list_files(paths)]
    key = json.dumps([FORMAT, content, asdict(reading), settings.model_dump(), sorted(roles)])
    place = cache_folder() / hashlib.sha256(key.encode()).hexdigest()[:24]
    options = asdict(reading)
    if not (place / "tokenizer").is_dir():
        notice(f"training a {settings.kind} vocabulary of {settings.vocab_size:,} on the text")
        texts = (passage.text for passage in read_passages(paths, **options, notice=notice))
        tokenizer = train_tokenizer(texts, settings.kind, settings.vocab_size, lowercase=settings.lowercase,
                                    roles=roles, cjk_spacing=settings.cjk_spacing, notice=notice)
        _keep(place / "tokenizer", tokenizer.save)
    if not (place / "corpus").is_dir():
        notice(f"building the corpus (kept in {place} for the next run)")
        try:
            build_corpus(paths, Tokenizer.load(place / "tokenizer"), place / "corpus", **options, notice=notice)
        except UserError:
            if not (place / "corpus").is_dir():  # unless another process finished the same one first
                raise
    return Corpus.open(place / "corpus")


def _keep(folder: Path, write: Callable[[Path], None]) -> None:
    try:
        with folder_atomically(folder) as temporary:
            write(temporary)
    except UserError:
        if not folder.is_dir():
            raise


def adopt_tokenizer(chosen: Recipe, corpus: Corpus) -> Recipe:
    """The corpus brings its tokenizer: it replaces the recipe's section, and the recipe says so."""
    tokenizer = corpus.tokenizer
    stated = chosen.settings.tokenizer
    found = {"kind": tokenizer.kind, "vocab_size": tokenizer.vocab_size, "lowercase": tokenizer.lowercase}
    changes = {f"tokenizer.{key}": value for key, value in found.items() if getattr(stated, key) != value}
    return chosen.with_changes(changes, origin="corpus") if changes else chosen
