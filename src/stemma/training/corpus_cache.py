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
from stemma.atomic_files import atomic_folder, lock_folder, make_folder, remove_leftovers, sha256
from stemma.corpus.build import build_corpus
from stemma.corpus.corpus import Corpus
from stemma.errors import UserError
from stemma.notes import quietly
from stemma.recipe_loading import Recipe, required_special_tokens
from stemma.schema.corpus import packing_settings
from stemma.schema.tokenizer import TokenizerSettings
from stemma.text.holdout import HeldOutSplit
from stemma.text.parallel import PairSource, pair_sources, read_pairs
from stemma.text.readers import list_files, plugin_readers, read_passages
from stemma.text.tokenizer import Tokenizer
from stemma.text.train_tokenizer import TRAINER_VERSION, train_tokenizer
from stemma.training.run_folder import TextReadingOptions, is_pipe, spool_streams

logger = logging.getLogger(__name__)

FORMAT = 2  # a new number leaves old cache entries aside
CachedObject = TypeVar("CachedObject", Corpus, Tokenizer)


def cache_folder() -> Path:
    stated = os.environ.get("STEMMA_CACHE")
    return Path(stated) if stated else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "stemma"


def create_cache_folder(folder: Path) -> None:
    """A folder of the cache; where the home cannot be written, say which variable names another place."""
    reason = "it is read-only"
    try:
        make_folder(folder)
    except UserError as error:
        reason = error.message.rpartition(": ")[2].partition(";")[0]
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"cannot write the cache {cache_folder()}, where text is kept ready for training ({reason}); "
                        "set STEMMA_CACHE to a folder that can be written.")


def is_parallel(recipe: Recipe) -> bool:
    """Whether a recipe learns from pairs, so that raw text is read as parallel text. Queries with titles are packed
    alike, but they stand beside running text, in a corpus."""
    settings = recipe.settings
    tasks = settings.objective.values()
    judges = any(task.reads_relevance for task in tasks)
    stated = [settings.corpus.packing, *(task.packing for task in tasks if task.packing is not None and not judges)]
    return any(packing_settings(packing).reads == "pairs" for packing in stated)


def locate_target(recipe: Recipe, corpus: str | None, text: Sequence[str], target: Sequence[str]) -> list[str]:
    """Absolute paths of the other side of parallel text; a --target that has no meaning here is refused."""
    if not target:
        return []
    if corpus is not None:
        raise UserError(f"{corpus} is a corpus and holds all that is to be read; --target goes with raw text: leave it "
                        "out, or give it to `stemma corpus build`.")
    if not is_parallel(recipe):
        raise UserError(f"{recipe.label} reads running text, not pairs; leave --target out, or choose a recipe whose "
                        "corpus.packing is parallel, such as transformer.")
    pair_sources(text, target)  # files without counterpart are told now, before anything is made
    return ["-" if path == "-" else str(Path(path).absolute()) for path in target]


def build_or_load_corpus(paths: list[str], recipe: Recipe, reading: TextReadingOptions,
                     tokenizer: Tokenizer | None = None, target: Sequence[str] = (),
                     split_first: bool = False) -> Corpus:
    """The corpus of this text: from the cache, or made with the given tokenizer or one trained as the recipe says. A
    recipe of pairs reads tables of pairs, or with `target` two files line by line. With `split_first`, a tokenizer that
    is trained here does not see what the recipe holds out."""
    if any(map(is_pipe, (*paths, *target))):
        with tempfile.TemporaryDirectory() as folder:
            kept, other = (spool_streams(some, Path(folder), prefix=name)
                           for name, some in (("text", paths), ("target", target)))
            return build_or_load_corpus(kept, recipe, reading, tokenizer, other, split_first)
    pairs = pair_sources(paths, target, reading.columns) if is_parallel(recipe) else []
    _check_reading(recipe, reading, bool(pairs))
    roles = required_special_tokens(recipe) | {"padding", "unknown"}
    settings = recipe.settings.tokenizer
    vocabulary = ([settings.model_dump(), sorted(roles), TRAINER_VERSION.get(settings.kind,
                                                                             1)] if tokenizer is None else
                  [tokenizer.backend.to_str(), tokenizer.simplify])
    share = recipe.settings.corpus.validation if split_first and tokenizer is None else 0.0
    if share:
        vocabulary.append({"held out": share})
    content: list[object] = [sha256(file) for file in list_files(paths)]
    if pairs:
        content = [content, [sha256(file) for file in list_files(target)] if target else "table"]
    if own := plugins.plugins_of(plugin_readers(paths)):
        content.append(own)
    key = json.dumps([FORMAT, content, asdict(reading), vocabulary])
    place = cache_folder() / hashlib.sha256(key.encode()).hexdigest()[:24]
    create_cache_folder(place)
    try:
        with lock_folder(place):  # a second run on the same text waits for the first, and has nothing left to do
            remove_leftovers(place)
            found = _load_if_valid(place / "corpus", Corpus.open)
            if found is not None:
                return found
            if tokenizer is None:
                tokenizer = _load_if_valid(place / "tokenizer", Tokenizer.load)
            split = _split(paths, pairs, reading, share) if share else None
            if tokenizer is None:
                tokenizer = _train(paths, pairs, settings, roles, reading, split)
                with atomic_folder(place / "tokenizer") as temporary:
                    tokenizer.save(temporary)
            logger.info(f"building the corpus (kept in {place} for the next run)")
            if pairs:
                build_corpus([], tokenizer, place / "corpus", **reading.parallel_text_arguments(), pairs=pairs,
                             split=split)
            else:
                build_corpus(paths, tokenizer, place / "corpus", **reading.plain_text_arguments(), split=split)
            return Corpus.open(place / "corpus")
    finally:
        with suppress(OSError):
            place.rmdir()  # only if nothing came of it


def _check_reading(recipe: Recipe, reading: TextReadingOptions, paired: bool) -> None:
    """What is asked for and would be without effect."""
    foreign, theirs, ours = ((("documents", "field"), "running text", "pairs") if paired else
                             (("columns", "empty"), "pairs", "running text"))
    if given := [f"--{key}" for key in foreign if getattr(reading, key) != getattr(TextReadingOptions(), key)]:
        be, them = ("is", "it") if len(given) == 1 else ("are", "them")
        raise UserError(f"{' and '.join(given)} {be} for {theirs}, and {recipe.label} reads {ours}; leave {them} out.")


def _load_if_valid(folder: Path, read: Callable[[Path], CachedObject]) -> CachedObject | None:
    """What the cache holds; nothing if it is not there, or damaged: then it is made again."""
    if not folder.is_dir():
        return None
    try:
        return read(folder)
    except UserError as error:
        logger.warning(f"{error.message.partition(';')[0]}; it is made again.")
        shutil.rmtree(folder)
        return None


def _split(paths: list[str], pairs: list[PairSource], reading: TextReadingOptions, fraction: float) -> HeldOutSplit:
    if pairs:
        return HeldOutSplit.of_pairs(quietly(read_pairs(pairs, **reading.parallel_text_arguments())), fraction)
    return HeldOutSplit.of_passages(quietly(read_passages(paths, **reading.plain_text_arguments())), fraction)


def _train(paths: list[str], pairs: list[PairSource], settings: TokenizerSettings, special_tokens: set[str],
           reading: TextReadingOptions,
           split: HeldOutSplit | None) -> Tokenizer:
    logger.info(f"training a {settings.kind} vocabulary of {settings.vocab_size:,} on the text")
    split = split or HeldOutSplit(frozenset())
    texts: Iterator[str]
    if pairs:  # one vocabulary for both sides
        read = read_pairs(pairs, **reading.parallel_text_arguments())
        texts = chain.from_iterable((pair.source, pair.target) for pair in split.pairs(read, held_out=False))
    else:
        passages = read_passages(paths, **reading.plain_text_arguments())
        texts = (passage.text for passage in split.passages(passages, held_out=False))
    return train_tokenizer(texts, settings.kind, settings.vocab_size, lowercase=settings.lowercase,
                           roles=special_tokens,
                           cjk_spacing=settings.cjk_spacing, simplify=settings.simplify)


def adopt_tokenizer(recipe: Recipe, corpus: Corpus) -> Recipe:
    """The corpus brings its tokenizer: it replaces the recipe's section, and the recipe says so."""
    tokenizer = corpus.tokenizer
    stated = recipe.settings.tokenizer
    found = tokenizer.settings()
    anew = stated.kind != tokenizer.kind  # another kind drops what was said for the old one
    changes = {f"tokenizer.{key}": value for key, value in found.items() if anew or getattr(stated, key) != value}
    return recipe.with_changes(changes, origin="corpus") if changes else recipe
