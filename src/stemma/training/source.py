"""The corpus of a run: an existing one as it is, or raw text turned into one by the recipe's own tokenizer.

A corpus made from raw text is kept in a cache, by the content of the text and the tokenizer's settings, so that the
next run on the same text starts at once. STEMMA_CACHE says where.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TypeVar

from stemma import plugins
from stemma.corpus.build import build_corpus
from stemma.corpus.shards import Corpus
from stemma.errors import UserError
from stemma.files import folder_atomically, make_folder, only_here, remove_leftovers, sha256
from stemma.lineage import Recipe, roles_needed
from stemma.notes import quietly
from stemma.schema.corpus import packing_of
from stemma.schema.tokenizer import TokenizerSettings
from stemma.text.holdout import Split
from stemma.text.parallel import PairSource, pair_sources, read_pairs
from stemma.text.readers import list_files, own_readers, read_passages
from stemma.text.tokenizer import Tokenizer
from stemma.text.train import LEARNT, train_tokenizer
from stemma.training.run import Reading, is_stream, keep_streams

logger = logging.getLogger(__name__)

FORMAT = 2  # a new number leaves old cache entries aside
Found = TypeVar("Found", Corpus, Tokenizer)


def cache_folder() -> Path:
    stated = os.environ.get("STEMMA_CACHE")
    return Path(stated) if stated else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "stemma"


def make_cache(place: Path) -> None:
    """A folder of the cache; where the home cannot be written, say which variable names another place."""
    reason = "it is read-only"
    try:
        make_folder(place)
    except UserError as error:
        reason = error.message.rpartition(": ")[2].partition(";")[0]
    if not os.access(place, os.W_OK | os.X_OK):
        raise UserError(f"cannot write the cache {cache_folder()}, where text is kept ready for training ({reason}); "
                        "set STEMMA_CACHE to a folder that can be written.")


def reads_pairs(chosen: Recipe) -> bool:
    """Whether a recipe learns from pairs, so that raw text is read as parallel text. Queries with titles are packed
    alike, but they stand beside running text, in a corpus."""
    settings = chosen.settings
    tasks = settings.objective.values()
    judges = any(task.reads_relevance for task in tasks)
    stated = [settings.corpus.packing, *(task.packing for task in tasks if task.packing is not None and not judges)]
    return any(packing_of(packing).reads == "pairs" for packing in stated)


def locate_target(chosen: Recipe, corpus: str | None, text: Sequence[str], target: Sequence[str]) -> list[str]:
    """Absolute paths of the other side of parallel text; a --target that has no meaning here is refused."""
    if not target:
        return []
    if corpus is not None:
        raise UserError(f"{corpus} is a corpus and holds all that is to be read; --target goes with raw text: leave it "
                        "out, or give it to `stemma corpus build`.")
    if not reads_pairs(chosen):
        raise UserError(f"{chosen.label} reads running text, not pairs; leave --target out, or choose a recipe whose "
                        "corpus.packing is parallel, such as transformer.")
    pair_sources(text, target)  # files without counterpart are told now, before anything is made
    return ["-" if path == "-" else str(Path(path).absolute()) for path in target]


def corpus_from_text(paths: list[str], chosen: Recipe, reading: Reading,
                     tokenizer: Tokenizer | None = None, target: Sequence[str] = (),
                     split_first: bool = False) -> Corpus:
    """The corpus of this text: from the cache, or made with the given tokenizer or one trained as the recipe says. A
    recipe of pairs reads tables of pairs, or with `target` two files line by line. With `split_first`, a tokenizer that
    is trained here does not see what the recipe holds out."""
    if any(map(is_stream, (*paths, *target))):
        with tempfile.TemporaryDirectory() as folder:
            kept, other = (keep_streams(some, Path(folder), called=name)
                           for name, some in (("text", paths), ("target", target)))
            return corpus_from_text(kept, chosen, reading, tokenizer, other, split_first)
    pairs = pair_sources(paths, target, reading.columns) if reads_pairs(chosen) else []
    _check_reading(chosen, reading, bool(pairs))
    roles = roles_needed(chosen) | {"padding", "unknown"}
    settings = chosen.settings.tokenizer
    vocabulary = ([settings.model_dump(), sorted(roles), LEARNT.get(settings.kind, 1)] if tokenizer is None else
                  [tokenizer.backend.to_str(), tokenizer.simplify])
    share = chosen.settings.corpus.validation if split_first and tokenizer is None else 0.0
    if share:
        vocabulary.append({"held out": share})
    content: list[object] = [sha256(file) for file in list_files(paths)]
    if pairs:
        content = [content, [sha256(file) for file in list_files(target)] if target else "table"]
    if own := plugins.used_by(own_readers(paths)):
        content.append(own)
    key = json.dumps([FORMAT, content, asdict(reading), vocabulary])
    place = cache_folder() / hashlib.sha256(key.encode()).hexdigest()[:24]
    make_cache(place)
    try:
        with only_here(place):  # a second run on the same text waits for the first, and has nothing left to do
            remove_leftovers(place)
            found = _sound(place / "corpus", Corpus.open)
            if found is not None:
                return found
            if tokenizer is None:
                tokenizer = _sound(place / "tokenizer", Tokenizer.load)
            split = _split(paths, pairs, reading, share) if share else None
            if tokenizer is None:
                tokenizer = _train(paths, pairs, settings, roles, reading, split)
                with folder_atomically(place / "tokenizer") as temporary:
                    tokenizer.save(temporary)
            logger.info(f"building the corpus (kept in {place} for the next run)")
            if pairs:
                build_corpus([], tokenizer, place / "corpus", **reading.paired(), pairs=pairs,
                             split=split)
            else:
                build_corpus(paths, tokenizer, place / "corpus", **reading.running(), split=split)
            return Corpus.open(place / "corpus")
    finally:
        with suppress(OSError):
            place.rmdir()  # only if nothing came of it


def _check_reading(chosen: Recipe, reading: Reading, paired: bool) -> None:
    """What is asked for and would be without effect."""
    foreign, theirs, ours = ((("documents", "field"), "running text", "pairs") if paired else
                             (("columns", "empty"), "pairs", "running text"))
    if given := [f"--{key}" for key in foreign if getattr(reading, key) != getattr(Reading(), key)]:
        be, them = ("is", "it") if len(given) == 1 else ("are", "them")
        raise UserError(f"{' and '.join(given)} {be} for {theirs}, and {chosen.label} reads {ours}; leave {them} out.")


def _sound(folder: Path, read: Callable[[Path], Found]) -> Found | None:
    """What the cache holds; nothing if it is not there, or damaged: then it is made again."""
    if not folder.is_dir():
        return None
    try:
        return read(folder)
    except UserError as error:
        logger.warning(f"{error.message.partition(';')[0]}; it is made again.")
        shutil.rmtree(folder)
        return None


def _split(paths: list[str], pairs: list[PairSource], reading: Reading, share: float) -> Split:
    if pairs:
        return Split.of_pairs(quietly(read_pairs(pairs, **reading.paired())), share)
    return Split.of_passages(quietly(read_passages(paths, **reading.running())), share)


def _train(paths: list[str], pairs: list[PairSource], settings: TokenizerSettings, roles: set[str], reading: Reading,
           split: Split | None) -> Tokenizer:
    logger.info(f"training a {settings.kind} vocabulary of {settings.vocab_size:,} on the text")
    split = split or Split(frozenset())
    texts: Iterator[str]
    if pairs:  # one vocabulary for both sides
        read = read_pairs(pairs, **reading.paired())
        texts = chain.from_iterable((pair.source, pair.target) for pair in split.pairs(read, held_out=False))
    else:
        passages = read_passages(paths, **reading.running())
        texts = (passage.text for passage in split.passages(passages, held_out=False))
    return train_tokenizer(texts, settings.kind, settings.vocab_size, lowercase=settings.lowercase, roles=roles,
                           cjk_spacing=settings.cjk_spacing, simplify=settings.simplify)


def adopt_tokenizer(chosen: Recipe, corpus: Corpus) -> Recipe:
    """The corpus brings its tokenizer: it replaces the recipe's section, and the recipe says so."""
    tokenizer = corpus.tokenizer
    stated = chosen.settings.tokenizer
    found = tokenizer.settings()
    anew = stated.kind != tokenizer.kind  # another kind drops what was said for the old one
    changes = {f"tokenizer.{key}": value for key, value in found.items() if anew or getattr(stated, key) != value}
    return chosen.with_changes(changes, origin="corpus") if changes else chosen
