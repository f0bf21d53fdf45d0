"""N-gram models as ARPA files: export, and conversion of a file with its tokenizer to a model."""

from __future__ import annotations

import io
import logging
from dataclasses import replace
from pathlib import Path

from stemma.atomic_files import atomic_file
from stemma.counts.arpa import write_arpa
from stemma.counts.arpa_reader import ArpaModel, ArpaVocabulary, read_arpa
from stemma.errors import UserError, pluralize
from stemma.model import Model
from stemma.network.neighbor_tables import NeighborTable
from stemma.network.ngram_tables import NgramTable
from stemma.objectives import build_network
from stemma.recipe_loading import recipe
from stemma.text.readers import read_lines
from stemma.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

RECIPE = "ngram"


def ngram_counts(model: Model) -> list[int]:
    """The number of different n-grams of each length in an n-gram model."""
    table = model.network.embedding.tokens
    assert isinstance(table, NgramTable)
    return table.tables().num_ngrams()


def export_arpa(model: Model, path: Path) -> None:
    """Write the tables of an n-gram model."""
    table, tokenizer, end_id = model.network.embedding.tokens, model.require_tokenizer(), model.document_separator_id
    if isinstance(table, NeighborTable):
        raise UserError(f"{model.recipe.label} counts a token between its neighbours, which an ARPA file cannot hold; "
                        "train an n-gram model with `stemma pretrain ngram`.")
    if not isinstance(table, NgramTable):
        raise UserError(f"an ARPA file holds n-grams, and {model.recipe.label} computes its probabilities with a "
                        "network; train an n-gram model with `stemma pretrain ngram`.")
    assert end_id is not None  # counting needs it
    tokens = [tokenizer.backend.id_to_token(token_id) or f"<{token_id}>" for token_id in range(table.num_embeddings)]
    with atomic_file(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="\n")
        write_arpa(table.tables(), tokens, end_id, tokenizer.special_token_ids.get("unknown"), text)
        text.flush()
        text.detach()


def convert_arpa(path: Path, tokenizer_path: Path) -> Model:
    """The model of an ARPA file over the vocabulary of a tokenizer."""
    tokenizer = Tokenizer.load(tokenizer_path)
    base = replace(recipe(RECIPE), size=None)  # the order comes from the file
    end_id = tokenizer.document_separator_id(base.settings.corpus.boundary)
    if end_id is None:
        raise UserError(f"the tokenizer {tokenizer_path} has no token that ends a document, which </s> stands for; "
                        "train one with `stemma tokenizer train --for ngram`.")
    vocabulary = ArpaVocabulary.of_tokens(tokenizer.backend.get_vocab(), tokenizer.vocab_size, end_id,
                                          tokenizer.special_token_ids.get("unknown"), tokenizer.special_ids.tolist())
    if not path.is_file():
        raise UserError(f"there is no file {path}.")
    read = read_arpa(path, (line for _, line in read_lines(path, choice=False)), vocabulary)
    settings = {f"tokenizer.{key}": value for key, value in tokenizer.settings().items()}
    resolved = base.with_changes({**settings, "network.depth.order": read.tables.order}, origin=path.name)
    network = build_network(resolved)
    table = network.embedding.tokens
    assert isinstance(table, NgramTable)
    table.assign(read.tables)
    for text in _notes(path, read):
        logger.info(text)
    return Model(resolved, tokenizer, network.eval())


def _notes(path: Path, read: ArpaModel) -> list[str]:
    notes = []
    if read.num_missing:
        share = "the probability of <unk> is divided among them" if read.has_unknown else \
            "they have probability 0, because the file has no <unk>"
        notes.append(f"{path} lacks {pluralize(read.num_missing, 'token')} of the tokenizer: {share}.")
    if read.num_unknown:
        notes.append(f"the tokenizer has no unknown token, so {pluralize(read.num_unknown, 'n-gram')} with <unk> of "
                     f"{path} cannot occur and are left out.")
    if read.num_added:
        notes.append(f"{path} is a pruned model: {pluralize(read.num_added, 'n-gram')} with which others begin were "
                     "added. All probabilities are those of the file.")
    return notes

