"""The corpus cache: build a corpus from raw text with the tokenizer of the recipe, once.

Entries are keyed by the content of the text and the tokenizer settings, so that the next run on the same text starts at
once. STEMMA_CACHE sets the folder.
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
from stemma.text.vocabulary_size import vocab_size_for_text
from stemma.training.run_folder import TextReadingOptions, is_pipe, spool_streams

logger = logging.getLogger(__name__)

FORMAT = 2  # a new number invalidates old entries
CachedObject = TypeVar("CachedObject", Corpus, Tokenizer)


def cache_folder() -> Path:
    setting = os.environ.get("STEMMA_CACHE")
    return Path(setting) if setting else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "stemma"


def create_cache_folder(folder: Path) -> None:
    """Create a folder of the cache; if it is not writable, the error names the variable that sets another one."""
    reason = "it is read-only"
    try:
        make_folder(folder)
    except UserError as error:
        reason = error.message.rpartition(": ")[2].partition(";")[0]
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(f"cannot write the cache {cache_folder()}, where text is kept ready for training ({reason}); "
                        "set STEMMA_CACHE to a folder that can be written.")


def is_parallel(recipe: Recipe) -> bool:
    """Whether a recipe trains on pairs, so that raw text is read as parallel text. Query-title pairs (relevance) do not
    count: they are part of a corpus of running text."""
    settings = recipe.settings
    objectives = settings.objective.values()
    relevance = any(objective.reads_relevance for objective in objectives)
    packings = [settings.corpus.packing,
                *(objective.packing for objective in objectives if objective.packing is not None and not relevance)]
    return any(packing_settings(packing).reads == "pairs" for packing in packings)


def locate_target(recipe: Recipe, corpus: str | None, text: Sequence[str], target: Sequence[str]) -> list[str]:
    """Absolute paths of the target side of parallel text; refuses a --target that has no effect."""
    if not target:
        return []
    if corpus is not None:
        raise UserError(f"{corpus} is a corpus and holds all that is to be read; --target goes with raw text: leave it "
                        "out, or give it to `stemma corpus build`.")
    if not is_parallel(recipe):
        raise UserError(f"{recipe.label} reads running text, not pairs; leave --target out, or choose a recipe whose "
                        "corpus.packing is parallel, such as transformer.")
    pair_sources(text, target)  # unpaired files fail here, before anything is written
    return ["-" if path == "-" else str(Path(path).absolute()) for path in target]


def build_or_load_corpus(paths: list[str], recipe: Recipe, reading: TextReadingOptions,
                         tokenizer: Tokenizer | None = None, target: Sequence[str] = (),
                         split_first: bool = False) -> Corpus:
    """The corpus of this text: from the cache, or built with the given tokenizer or with one trained for the recipe. A
    recipe of pairs reads tables of pairs, or with `target` two aligned files. With `split_first`, the tokenizer is
    trained without the validation text."""
    if any(map(is_pipe, (*paths, *target))):
        with tempfile.TemporaryDirectory() as temporary:
            copies, target_copies = (spool_streams(streams, Path(temporary), prefix=name)
                                     for name, streams in (("text", paths), ("target", target)))
            return build_or_load_corpus(copies, recipe, reading, tokenizer, target_copies, split_first)
    pairs = pair_sources(paths, target, reading.columns) if is_parallel(recipe) else []
    _check_reading(recipe, reading, bool(pairs))
    roles = required_special_tokens(recipe) | {"padding", "unknown"}
    settings = recipe.settings.tokenizer
    vocabulary = ([settings.model_dump(exclude_none=True), sorted(roles), TRAINER_VERSION.get(settings.kind, 1)]
                  if tokenizer is None else [tokenizer.backend.to_str(), tokenizer.simplify])
    validation = recipe.settings.corpus.validation if split_first and tokenizer is None else 0.0
    if validation:
        vocabulary.append({"held out": validation})
    content: list[object] = [sha256(file) for file in list_files(paths)]
    if pairs:
        content = [content, [sha256(file) for file in list_files(target)] if target else "table"]
    if reader_plugins := plugins.plugins_of(plugin_readers(paths)):
        content.append(reader_plugins)
    key = json.dumps([FORMAT, content, asdict(reading), vocabulary])
    folder = cache_folder() / hashlib.sha256(key.encode()).hexdigest()[:24]
    create_cache_folder(folder)
    try:
        with lock_folder(folder):  # a second run on the same text waits for the first
            remove_leftovers(folder)
            corpus = _load_if_valid(folder / "corpus", Corpus.open)
            if corpus is not None:
                return corpus
            if tokenizer is None:
                tokenizer = _load_if_valid(folder / "tokenizer", Tokenizer.load)
            split = _split(paths, pairs, reading, validation) if validation else None
            if tokenizer is None:
                tokenizer = _train(paths, pairs, settings, roles, reading, split)
                with atomic_folder(folder / "tokenizer") as temporary:
                    tokenizer.save(temporary)
            logger.info(f"building the corpus (kept in {folder} for the next run)")
            if pairs:
                build_corpus([], tokenizer, folder / "corpus", **reading.parallel_text_arguments(), pairs=pairs,
                             split=split)
            else:
                build_corpus(paths, tokenizer, folder / "corpus", **reading.plain_text_arguments(), split=split)
            return Corpus.open(folder / "corpus")
    finally:
        with suppress(OSError):
            folder.rmdir()  # succeeds only if it is empty: the build failed


def _check_reading(recipe: Recipe, reading: TextReadingOptions, paired: bool) -> None:
    """Refuse reading options that have no effect for this recipe."""
    unused, for_kind, kind = ((("documents", "field"), "running text", "pairs") if paired else
                              (("columns", "empty"), "pairs", "running text"))
    if options := [f"--{key}" for key in unused if getattr(reading, key) != getattr(TextReadingOptions(), key)]:
        be, them = ("is", "it") if len(options) == 1 else ("are", "them")
        raise UserError(f"{' and '.join(options)} {be} for {for_kind}, and {recipe.label} reads {kind}; leave {them} "
                        "out.")


def _load_if_valid(folder: Path, read: Callable[[Path], CachedObject]) -> CachedObject | None:
    """A cached object; None if it is missing or damaged, so that it is built again."""
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
           reading: TextReadingOptions, split: HeldOutSplit | None) -> Tokenizer:
    held_out = split or HeldOutSplit(frozenset())

    def texts() -> Iterator[str]:
        if pairs:  # one vocabulary for both sides
            read = read_pairs(pairs, **reading.parallel_text_arguments())
            return chain.from_iterable((pair.source, pair.target) for pair in held_out.pairs(read, held_out=False))
        passages = read_passages(paths, **reading.plain_text_arguments())
        return (passage.text for passage in held_out.passages(passages, held_out=False))

    vocab_size, why = settings.vocab_size, ""
    if settings.fit_to_text:
        vocab_size = vocab_size_for_text(quietly(texts()), settings.kind, settings.vocab_size)
        if vocab_size < settings.vocab_size:
            why = f" (chosen by the amount of text; the published size is tokenizer.vocab_size={settings.vocab_size})"
    logger.info(f"training a {settings.kind} vocabulary of {vocab_size:,} on the text{why}")
    return train_tokenizer(texts(), settings.kind, vocab_size, lowercase=settings.lowercase,
                           roles=special_tokens, cjk_spacing=settings.cjk_spacing,
                           simplify=settings.simplify)


def adopt_tokenizer(recipe: Recipe, corpus: Corpus) -> Recipe:
    """The recipe with the tokenizer settings of the corpus, whose tokenizer is used."""
    tokenizer = corpus.tokenizer
    settings = recipe.settings.tokenizer
    other_kind = settings.kind != tokenizer.kind  # then the keys of the old kind do not apply
    changes = {f"tokenizer.{key}": value for key, value in tokenizer.settings().items()
               if other_kind or getattr(settings, key) != value}
    if settings.fit_to_text:  # the vocabulary is fixed now
        changes["tokenizer.fit_to_text"] = False
    return recipe.with_changes(changes, origin="corpus") if changes else recipe
