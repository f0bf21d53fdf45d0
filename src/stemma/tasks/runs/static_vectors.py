"""The model of a task over static word vectors: a recipe whose first layer comes from a vector file.

Its vocabulary is made of whole words: those of the training data, then those of the file, so that words which only
later texts have keep their vectors. Words without a vector start at random. Frozen vectors are all frozen, random ones
too (the "static" channel of arXiv:1408.5882).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stemma.corpus.seq2seq_rows import ENCODER
from stemma.errors import UserError
from stemma.model import Model
from stemma.network.memory_check import check_memory
from stemma.network.network import Network
from stemma.network.word_vector_embedding import fill_embedding
from stemma.recipe_loading import Recipe, recipe, recipe_names, required_special_tokens
from stemma.schema.corpus import parse_template
from stemma.schema.overrides import flatten, parse_changes
from stemma.tasks.data.examples import Example
from stemma.tasks.kinds import head_task
from stemma.text.word_vocabulary import count_words, word_tokenizer
from stemma.vectors.files import read_vectors
from stemma.vectors.word_vectors import WordVectors

logger = logging.getLogger(__name__)

DEFAULT_RECIPE = "bilstm"
SECTIONS = ("network", "tokenizer", "corpus")  # whose keys shape the model


def model_over_vectors(name: str | Path | None, path: str | Path, kind: str, examples: Sequence[Example],
                       changes: Sequence[str], seed: int) -> Model:
    """A model of this recipe (None: the default one) for a task, with the vectors of the file in its embedding and
    random weights above."""
    resolved = _resolve(name, changes)
    vectors = read_vectors(path)
    resolved = _with_width(resolved, vectors, path)
    lowercase = not any(word != word.lower() for word in vectors.words)
    by_spaces = head_task(kind).feature_level == "token"
    counts = count_words((text for example in examples for text in example.input_texts()), lowercase=lowercase,
                         by_spaces=by_spaces)
    words = [word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]
    _, known = vectors.for_words(words)
    _report(counts, words, known, path)
    roles = required_special_tokens(resolved) | _template_roles(resolved)
    size = resolved.settings.tokenizer.vocab_size
    tokenizer = word_tokenizer(list(dict.fromkeys([*words, *vectors.words]))[:size], lowercase=lowercase,
                               by_spaces=by_spaces, roles=roles)
    changed = {"tokenizer.kind": "word", "tokenizer.vocab_size": tokenizer.vocab_size, "tokenizer.lowercase": lowercase,
               "tokenizer.fit_to_text": None}
    resolved = resolved.with_changes(changed, Path(path).name)
    check_memory(resolved.settings.network, tokenizer.vocab_size)
    torch.manual_seed(seed)
    network = Network(resolved.settings.network, tokenizer.vocab_size, {})
    network.start_inputs(tokenizer)
    fill_embedding(network.embedding, tokenizer.ids_to_tokens(range(tokenizer.vocab_size)), vectors)
    return Model(resolved, tokenizer, network.eval())


def vector_overrides(model: Model, stack: str, tuned: bool) -> dict[str, Any]:
    """Recipe changes of such a task: all layers start at random, by the seed of the run, and the embedding is frozen
    unless it is tuned."""
    layers = len(model.network.encoder.layer_groups()) if stack == ENCODER else model.network.num_layers
    return {"training.fresh": layers} | ({} if tuned else {"training.frozen": 1})


def _resolve(name: str | Path | None, changes: Sequence[str]) -> Recipe:
    """The recipe, with the changes that shape the model; the others are applied when it is fine-tuned."""
    name = DEFAULT_RECIPE if name is None else str(name)
    if Path(name).is_dir() or (base := name.partition("@")[0]) not in recipe_names() and not base.endswith(".toml"):
        raise UserError(f"--vectors builds a new model from a recipe, and --model is {name}; name a recipe, such as "
                        f"{DEFAULT_RECIPE}, or leave --vectors out: a trained model has vectors of its own.")
    shaping = [change for change in changes if flatten(parse_changes([change])[0]) and all(
        key.partition(".")[0] in SECTIONS for key in flatten(parse_changes([change])[0])) or _removes_shape(change)]
    resolved = recipe(name, shaping)
    if resolved.settings.network.depth.counts:
        raise UserError(f"{resolved.label} is a table of counts and reads no vectors; leave --model out, or name a "
                        "network.")
    return resolved


def _removes_shape(change: str) -> bool:
    return change.startswith("remove=") and change.removeprefix("remove=").partition(".")[0] in SECTIONS


def _with_width(resolved: Recipe, vectors: WordVectors, path: str | Path) -> Recipe:
    """The recipe with the width of the vectors as its embedding size."""
    network = resolved.settings.network
    width = network.embedding.width or network.width
    if width == vectors.width:
        return resolved
    stated = resolved.origin.get("network.embedding.width") == "command line"
    if stated:
        raise UserError(f"the vectors of {path} have {vectors.width} numbers and network.embedding.width is {width}; "
                        "leave it out, or give vectors of that width.")
    return resolved.with_changes({"network.embedding.width": vectors.width}, Path(path).name)


def _template_roles(resolved: Recipe) -> set[str]:
    """Special tokens of the input templates, and those that every vocabulary has."""
    corpus = resolved.settings.corpus
    slots = [*parse_template(corpus.single), *parse_template(corpus.pair)]
    return {slot.name for slot in slots if not slot.is_text} | {"padding", "unknown"}


def _report(counts: Counter[str], words: Sequence[str], known: np.ndarray, path: str | Path) -> None:
    """Say how many words of the training data have a vector."""
    if not known.any():
        raise UserError(f"no word of the training data has a vector in {path} (the most frequent words are "
                        f"{', '.join(words[:3])}); give vectors of the language of the data.")
    running = sum(counts[word] for word, has_vector in zip(words, known, strict=True) if has_vector)
    logger.info(f"{int(known.sum()):,} of the {len(words):,} different words of the training data have a vector "
                f"({running / counts.total():.1%} of all words); the others start at random.")


def refused_with_vectors(options: Mapping[str, object]) -> None:
    """Refuse options that have no meaning for a new model."""
    if given := [name for name, value in options.items() if value]:
        raise UserError(f"{' and '.join(given)} {'is' if len(given) == 1 else 'are'} for a trained model, and "
                        "--vectors builds a new one; leave one of them out.")
